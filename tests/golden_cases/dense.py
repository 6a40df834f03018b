"""Segmentation: heads, decoders, losses, metrics, windows and schedules."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.data import codes
from vit_jax.evaluation import metrics
from vit_jax.evaluation import segments
from vit_jax.evaluation import windows
from vit_jax.models import maps
from vit_jax.models import patches as patches_lib
from vit_jax.models import registry
from vit_jax.models import setr as setr_lib
from vit_jax.models import trans2seg as trans2seg_lib
from vit_jax.models import unetr as unetr_lib
from vit_jax.models import vit
from vit_jax.models.zoo import vit as zoo_vit
from vit_jax.objectives import pixel_losses
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import dense
from vit_jax.weights.formats import tables

_AUXILIARY_WEIGHT = 0.4
# Of a patch embedding that is a dense layer: its columns are ordered by the
# patch's axes, and then by channel.
_PERCEPTRON = tables.arrays(
  """
patch_embedding/kernel  patch_embeddings.1.weight  columns
patch_embedding/bias    patch_embeddings.1.bias
position_embedding      position_embeddings
""",
  columns=tables.linear(4),
)
# Of a UNETR, by how it embeds patches.
_TRUNKS = {
  'conv': dense.UNETR_TRUNK.arrays,
  'perceptron': [
    *tables.below(_PERCEPTRON, '', 'patch_embedding.'),
    *(
      x
      for x in dense.UNETR_TRUNK.arrays
      if not x.path_pattern.startswith('patch_embedding/')
    ),
  ],
}


def _read(case, rules, module, *args, prefix='', ignored=''):
  """Returns a module's parameters in the file of a case."""
  abstract = jax.eval_shape(module.init, jax.random.key(0), *args)['params']
  with containers.open_arrays(case.weights) as arrays:
    named = base.Renamed(arrays, lambda name: name.removeprefix(prefix))
    return tables.read(named, rules, abstract, ignored)


def _numbers(names, prefix):
  """Returns how many different numbers are behind a prefix of names."""
  endings = (n.removeprefix(prefix) for n in names if n.startswith(prefix))
  return len({n.partition('.')[0] for n in endings})


def _foreign_arrays(rules, tree):
  """Returns the arrays of our tree under the names of a format."""
  return dict(tables.write(rules, tree))


def setr(kind, case):
  """Logits, losses, gradients and running statistics of a SETR."""
  inputs, dims = case.inputs, case.dims
  features = sorted(k for k in inputs if k.startswith('feat_'))
  levels = [jnp.asarray(inputs[k]) for k in features]
  labels, size = jnp.asarray(inputs['labels']), inputs['labels'].shape[1:]
  with containers.open_arrays(case.weights) as arrays:
    convs, auxiliary_convs = (
      _numbers(arrays.shapes, f'{head}.up_convs.')
      for head in ('decode_head', 'auxiliary_head.0')
    )
  module, aligned = (
    setr_lib.SETR(
      kind,
      dims['num_classes'],
      dims.get('neck_channels', dims['channels']),
      dims.get('mla_channels', 0),
      convs=convs,
      auxiliary_convs=auxiliary_convs,
      align_corners=corners,
    )
    for corners in (False, True)
  )
  params = _read(case, dense.SETR, module, levels)
  logits, auxiliary_logits = module.apply({'params': params}, levels)

  def total(params, levels):
    (main, auxiliary_logits), changed = module.apply(
      {'params': params}, levels, train=True, mutable=['statistics']
    )
    losses = [
      weight * pixel_losses.cross_entropy(maps.resize(x, size), labels)
      for weight, x in zip(
        itertools.chain([1.0], itertools.repeat(_AUXILIARY_WEIGHT)),
        [main, *auxiliary_logits],
        strict=False,
      )
    ]
    return sum(losses), (main, losses, changed['statistics'])

  (loss, (main, losses, moved)), grads = jax.value_and_grad(
    total, (0, 1), has_aux=True
  )(params, levels)
  predicted = maps.resize(main, size).argmax(axis=-1)
  matrix = _confusion(
    np.asarray(labels), np.asarray(predicted), dims['num_classes']
  )
  answers = {
    'head_logits': logits,
    'logits': maps.resize(logits, size),
    'logits_align_corners': maps.resize(
      aligned.apply({'params': params}, levels)[0], size, align_corners=True
    ),
    'train_head_logits': main,
    'loss_main': losses[0],
    'acc_seg': np.array([100 * segments.overlaps(matrix).total]),
    'loss_total': loss,
  }
  answers |= {f'aux{i}_head_logits': x for i, x in enumerate(auxiliary_logits)}
  answers |= {f'loss_aux{i}': x for i, x in enumerate(losses[1:])}
  answers |= {f'grad_feat_{i}': x for i, x in enumerate(grads[1])}
  arrays = _foreign_arrays(dense.SETR, grads[0])
  answers |= {f'grad.{name}': x for name, x in arrays.items()}
  arrays = _foreign_arrays(dense.SETR, moved)
  answers |= {f'after.{name}': x for name, x in arrays.items()}
  if kind == 'mla':
    neck = setr_lib.Neck(dims['neck_channels'])
    outputs = neck.apply({'params': params['neck']}, levels)
    answers |= {f'neck_{i}': x for i, x in enumerate(outputs)}
  return answers


def _unetr(dims):
  """Returns a trunk and a decoder with the dimensions of a case."""
  trunk = models.create(
    vit.ViT,
    {
      'num_classes': 0,
      'depth': dims['num_layers'],
      'patch_size': (dims['patch_size'],) * 3,
      'pool': 'mean',
      'attention': f'attention(qkv_bias={dims["qkv_bias"]})',
      'mlp': "mlp(gelu='exact')",
      'layer_norm_epsilon': dims['layer_norm_eps'],
      **{key: dims[key] for key in ('hidden_size', 'mlp_dim', 'num_heads')},
    },
  )
  decoder = unetr_lib.UNETR(dims['out_channels'], dims['feature_size'])
  return trunk, decoder


def unetr(case):
  """Tokens of the trunk, stages of the decoder, and logits."""
  volume, dims = jnp.asarray(case.inputs['volume']), case.dims
  trunk, decoder = _unetr(dims)
  grid = tuple(n // dims['patch_size'] for n in volume.shape[1:-1])
  with containers.open_arrays(case.weights) as arrays:
    decoder_params = [n for n in arrays.shapes if not n.startswith('vit.')]
  params = _read(
    case,
    _TRUNKS[dims['proj_type']],
    trunk,
    volume,
    prefix='vit.',
    ignored='|'.join([dense.UNETR_IGNORED, *map(_exactly, decoder_params)]),
  )
  outputs, state = trunk.apply(
    {'params': params}, volume, method='trunk', mutable=['levels']
  )
  every = state['levels']['tokens']

  def laid_out(x):
    return x.reshape(len(x), *grid, x.shape[-1])

  levels = [laid_out(every[i]) for i in unetr_lib.LEVELS]
  last = laid_out(outputs['tokens'])
  decoder_params = _read(
    case,
    dense.UNETR,
    decoder,
    volume,
    levels,
    last,
    ignored=r'vit\..*',
  )
  answers = decoder.apply(
    {'params': decoder_params}, volume, levels, last, method='stages'
  )
  answers |= {f'tokens_{i}': x for i, x in enumerate(every)}
  answers['tokens_final'] = outputs['tokens']
  # Of some the file has the first volumes alone.
  return {name: answers[name][: len(x)] for name, x in case.expected.items()}


def _exactly(name):
  return name.replace('.', r'\.')


def patch_perceptron(case):
  """A patch embedding of volumes, stored as a dense layer."""
  volume, dims = jnp.asarray(case.inputs['volume']), case.dims
  trunk = models.create(
    vit.ViT,
    {
      'num_classes': 0,
      'hidden_size': dims['hidden_size'],
      'mlp_dim': dims['hidden_size'],
      'num_heads': dims['num_heads'],
      'depth': 1,
      'patch_size': tuple(dims['patch_size']),
      'pool': 'mean',
    },
  )
  abstract = jax.eval_shape(trunk.init, jax.random.key(0), volume)['params']
  names = ('patch_embedding', 'position_embedding')
  with containers.open_arrays(case.weights) as arrays:
    part = {k: abstract[k] for k in names}
    params = tables.read(arrays, _PERCEPTRON, part, '')
  # Stored as a convolution it must be the same layer.
  again = _foreign_arrays(dense.UNETR_TRUNK.arrays, params)
  kernel = again['patch_embedding.patch_embeddings.weight']
  embedding = patches_lib.Patches(
    dims['hidden_size'], tuple(dims['patch_size'])
  )
  answers = {}
  for name, x in (
    ('tokens', params['patch_embedding']['kernel']),
    ('tokens_conv', np.moveaxis(kernel, (0, 1), (-1, -2))),
  ):
    layer = params['patch_embedding'] | {'kernel': jnp.asarray(x)}
    y = embedding.apply({'params': layer}, volume)
    patches = y.reshape(len(y), -1, y.shape[-1])
    answers[name] = patches + params['position_embedding']
  return answers


def _count(tree):
  return sum(x.size for x in jax.tree.leaves(tree))


def _trained(tree):
  """Returns how many parameters train: all but running statistics."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return sum(
    x.size for path, x in leaves if path[-1].key not in ('mean', 'var')
  )


def _unetr_counts(size, channels, classes, features, hidden, mlp):
  """Numbers of a UNETR's parameters, by module and in sum."""
  trunk, decoder = _unetr(
    {
      'hidden_size': hidden,
      'mlp_dim': mlp,
      'num_heads': 1,  # as many parameters as of any number
      'num_layers': 12,
      'patch_size': unetr_lib.PATCH,
      'qkv_bias': False,
      'layer_norm_eps': 1e-5,
      'out_channels': classes,
      'feature_size': features,
    }
  )
  key, grid = jax.random.key(0), (size // unetr_lib.PATCH,) * 3
  volume = jax.ShapeDtypeStruct((1, *(size,) * 3, channels), jnp.float32)
  tokens = jax.ShapeDtypeStruct((1, *grid, hidden), jnp.float32)
  trunk_params = jax.eval_shape(trunk.init, key, volume)['params']
  decoder_params = jax.eval_shape(
    decoder.init, key, volume, [tokens] * 3, tokens
  )
  # MONAI's blocks hold a LayerNorm that nothing uses.
  unused = trunk.depth * 2 * hidden
  used = _count(trunk_params) + _count(decoder_params)
  return {
    'state_dict_total': used + unused,
    'unused_norm_cross_attn': unused,
    'used': used,
    'vit': _count(trunk_params),
    'decoder_and_encoders': _count(decoder_params),
  } | {
    f'per_module/{"out" if k == "classifier" else k}': _count(x)
    for k, x in decoder_params['params'].items()
  }


def _setr_counts(kind, size, classes, convs):
  """Numbers of a SETR's parameters, by head."""
  module = setr_lib.SETR(kind, classes, auxiliary_convs=convs)
  width = zoo_vit.SIZES[size]['hidden_size']
  levels = [jax.ShapeDtypeStruct((1, 2, 2, width), jnp.float32)] * 4
  params = jax.eval_shape(module.init, jax.random.key(0), levels)['params']
  auxiliary_heads = sorted(k for k in params if k.startswith('auxiliary'))
  counts = {
    'decode_head': _trained(params['decode']),
    'auxiliary_heads_each': [_trained(params[k]) for k in auxiliary_heads],
  }
  if 'neck' in params:
    counts['neck'] = _trained(params['neck'])
  return counts


def parameter_counts(case):
  """Numbers of parameters with the sizes that the names of a case say."""
  answers = {}
  for name in case.fields['values']:
    if match := re.fullmatch(
      r'unetr_(\d+)_in(\d+)_out(\d+)_feature(\d+)_hidden(\d+)_mlp(\d+)', name
    ):
      counts = _unetr_counts(*map(int, match.groups()))
    elif match := re.fullmatch(
      r'setr_([a-z]+)_vit_([a-z]+)_(\d+)_classes(?:_aux_num_convs(\d+))?', name
    ):
      kind, size, classes, convs = match.groups()
      counts = _setr_counts(kind, size.upper(), int(classes), int(convs or 1))
    else:
      raise ValueError(f'no model is known by the name {name}')
    answers |= {f'{name}/{k}': np.asarray(x) for k, x in counts.items()}
  return answers


def dice_cross_entropy(case):
  """Dice and cross-entropy in all of MONAI's variants.

  They are computed in float64: what sums round in float32 is as large as the
  tolerance.
  """
  with jax.enable_x64(True):
    return _dice_cross_entropy(case)


def _dice_cross_entropy(case):
  inputs = {
    k: jnp.asarray(x, jnp.float64 if x.dtype.kind == 'f' else x.dtype)
    for k, x in case.inputs.items()
  }
  logits, labels = inputs['logits'], inputs['labels']
  smooth = case.dims['smooth_nr'], case.dims['smooth_dr']
  dice = functools.partial(pixel_losses.dice, smooth=smooth)
  answers = {'ce': pixel_losses.cross_entropy(logits, labels, None, -1)}
  for background, over_batch, squared in itertools.product(
    (True, False), repeat=3
  ):
    name = ''.join(
      f'_{key}{"T" if on else "F"}'
      for key, on in (
        ('bg', background),
        ('batch', over_batch),
        ('sq', squared),
      )
    )
    options = {
      'background': background,
      'over_batch': over_batch,
      'squared': squared,
      'labels': labels,
      'smooth': smooth,
    }
    total = functools.partial(pixel_losses.dice_cross_entropy, **options)
    answers[f'dice{name}'] = pixel_losses.mean_dice(logits, **options)
    answers[f'total{name}'], answers[f'grad{name}'] = jax.value_and_grad(total)(
      logits
    )
  probabilities = jax.nn.softmax(logits, axis=-1)
  one_hot = jax.nn.one_hot(labels, logits.shape[-1])
  sigmoid, several = jax.nn.sigmoid(logits), inputs['multi_hot']
  first, binary = logits[..., :1], inputs['binary_target']
  answers |= {
    'per_class_dice': dice(probabilities, one_hot),
    'per_class_dice_batch': dice(probabilities, one_hot, over_batch=True),
    'jaccard': pixel_losses.mean_dice(
      logits, labels, jaccard=True, smooth=smooth
    ),
    'total_weighted': pixel_losses.dice_cross_entropy(
      logits, labels, weights=inputs['class_weight'], smooth=smooth
    ),
    'sigmoid_dice': dice(sigmoid, several).mean(),
    'sigmoid_dice_sq_batch': dice(
      sigmoid, several, over_batch=True, squared=True
    ).mean(),
    'binary_total': dice(jax.nn.sigmoid(first), binary).mean()
    + optax.sigmoid_binary_cross_entropy(first, binary).mean(),
  }
  return answers


def _confusion(labels, predicted, classes, ignore=segments.IGNORE):
  """Counts places by label and prediction, but those whose label is ignored."""
  return metrics.confusion(labels, predicted, classes, labels != ignore)


def dice_by_image(labels, predicted, classes, ignore_empty):
  """Returns Dice coefficients [B, K]; MONAI's empty classes have 1 or 0."""
  scores = np.empty((len(labels), classes))
  for i, pair in enumerate(zip(labels, predicted, strict=True)):
    matrix = _confusion(*pair, classes)
    scores[i] = segments.overlaps(matrix).dice
    empty = matrix.sum(axis=1) == 0
    missed = matrix.sum(axis=0)[empty] == 0
    scores[i, empty] = np.nan if ignore_empty else missed
  return scores


def dice_metric(case):
  """Dice coefficients and their means, with and without empty classes."""
  inputs, classes = case.inputs, case.dims['classes']
  answers = {}
  for empty, background in itertools.product((True, False), repeat=2):
    name = f'bg{"T" if background else "F"}_ignore_empty{"T" if empty else "F"}'
    coefficients = dice_by_image(
      inputs['labels'], inputs['pred'], classes, empty
    )
    coefficients = coefficients[:, 0 if background else 1 :]
    by_image = np.array([segments.mean(x) for x in coefficients])
    by_class = np.array([segments.mean(x) for x in coefficients.T])
    counts = ~np.isnan(coefficients)
    answers |= {
      f'dice_{name}': coefficients,
      f'mean_{name}': segments.mean(by_image),
      f'not_nans_mean_{name}': (~np.isnan(by_image)).sum(),
      f'mean_batch_{name}': np.nan_to_num(by_class),
      f'not_nans_mean_batch_{name}': counts.sum(axis=0),
      f'mean_channel_{name}': np.nan_to_num(by_image),
      f'not_nans_mean_channel_{name}': counts.sum(axis=1),
    }
  return answers


def segmentation_metrics(case):
  """Areas and overlaps over images, places with an ignored label left out."""
  inputs, classes = case.inputs, case.dims['classes']
  labels, predicted = inputs['labels'], inputs['pred']
  ignore = case.dims['ignore']
  confusions = np.stack(
    [
      _confusion(label, guess, classes, ignore)
      for label, guess in zip(labels, predicted, strict=True)
    ]
  )
  right = np.diagonal(confusions, axis1=1, axis2=2)
  by_label, by_prediction = confusions.sum(axis=2), confusions.sum(axis=1)
  total = segments.overlaps(confusions.sum(axis=0))
  summary = segments.measures(confusions.sum(axis=0))
  # As mmsegmentation reads ADE20K's classes 1 to 150, with 0 for all else.
  raw = inputs['raw_labels']
  reduced = codes._label_table(range(1, ignore), 2**16 - 1, ignore)[raw]
  # What goes wrong if ignored places count as predictions.
  all_predictions = np.stack(
    [np.bincount(x.ravel(), minlength=classes) for x in predicted]
  )
  union = (by_label + all_predictions - right).sum(axis=0)
  with np.errstate(invalid='ignore'):
    wrong = right.sum(axis=0) / union
    precision = right.sum(axis=0) / by_prediction.sum(axis=0)
  exists = ~np.isnan(precision + total.accuracy)
  return {
    'iou': total.iou,
    'acc': total.accuracy,
    'dice': total.dice,
    'aAcc': total.total,
    'precision': precision,
    'recall': total.accuracy,
    'fscore': np.where(exists, total.dice, np.nan),
    'mIoU': total.mean_iou,
    'mAcc': summary['mean_accuracy'],
    'mDice': summary['dice'],
    'area_intersect': right,
    'area_union': by_label + by_prediction - right,
    'area_pred': by_prediction,
    'area_label': by_label,
    'confusion': confusions.sum(axis=0),
    'mIoU_per_image_mean': np.mean(
      [segments.overlaps(x).mean_iou for x in confusions]
    ),
    'mIoU_wrong_ignore_as_class': segments.mean(wrong),
    'reduced_labels': reduced,
  }


def _network(case):
  """Returns a convolution as a model: windows [B, ..., C] -> [B, ..., K]."""
  kernel, bias = (jnp.asarray(case.inputs[k]) for k in ('kernel', 'bias'))
  axes = 'DHW'[-(kernel.ndim - 2) :]

  @jax.jit
  def apply(x):
    numbers = (f'N{axes}C', f'{axes}IO', f'N{axes}C')
    y = jax.lax.conv_general_dilated(
      x, kernel, (1,) * len(axes), 'SAME', dimension_numbers=numbers
    )
    return y + bias

  return apply


def sliding_window(case):
  """Windows in volumes, with Gaussian and constant weights."""
  dims, inputs = case.dims, case.inputs
  roi = tuple(dims['roi'])
  slide = functools.partial(
    windows.slide,
    _network(case),
    window=roi,
    pad=True,
    batch_size=dims['sw_batch'],
  )
  weights = windows.gaussian(roi, dims['sigma_scale'])
  stride = windows.strides(roi, dims['overlap'])
  size = inputs['volume'].shape[1:-1]
  corners = windows.starts(size, roi, stride)
  count = np.zeros(size, np.float32)
  for at in corners:
    count[tuple(slice(a, a + n) for a, n in zip(at, roi, strict=True))] += (
      weights
    )
  answers = {
    'starts': corners,
    'importance_gaussian': weights,
    'count_gaussian': count,
  }
  kinds = {'gaussian': weights, 'constant': None}
  for name in case.expected:
    if match := re.fullmatch(
      r'(small_)?out_(gaussian|constant)(?:_overlap(\d+))?', name
    ):
      small, kind, percent = match.groups()
      overlap = int(percent) / 100 if percent else dims['overlap']
      answers[name] = slide(
        images=inputs['small_volume' if small else 'volume'],
        stride=windows.strides(roi, overlap),
        weights=kinds[kind],
      )
  return answers


def slide_inference(case):
  """Windows in images, as mmsegmentation lays them."""
  dims, inputs = case.dims, case.inputs
  window, stride = dims['crop'], dims['stride']
  apply, size = _network(case), inputs['image'].shape[1:3]
  corners = windows.starts(size, window, stride)
  logits = windows.slide(apply, inputs['image'], window, stride)
  count = np.zeros(size, np.int32)
  for y, x in corners:
    count[y : y + window[0], x : x + window[1]] += 1
  return {
    'logits': logits,
    'pred': logits.argmax(axis=-1),
    'small_logits': windows.slide(apply, inputs['small_image'], window, stride),
    'boxes': np.concatenate([corners, corners + window], axis=1),
    'count': count,
  }


def multi_scale(case):
  """Views of an image at several sizes and their mirror images."""
  image, ratios, answers = case.inputs['image'], case.dims['ratios'], {}
  apply, size = _network(case), case.inputs['image'].shape[:2]
  logits = []
  for ratio in ratios:
    for view, mirrored in windows.views(image, [ratio]):
      logits.append(windows.view_logits(apply, view, mirrored, size))
      answers[f'logits_{ratio}_{"flip" if mirrored else "plain"}'] = logits[-1]
      if not mirrored:
        answers[f'resized_{ratio}'] = view
  mean = windows.multi_scale(apply, image, ratios)
  shape = case.expected['pred'].shape
  return answers | {
    'probs': mean,
    'pred': mean.argmax(axis=-1).reshape(shape),
    'pred_mean_logits': np.mean(logits, axis=0).argmax(axis=-1),
  }


def resize(case):
  """Bilinear resizing with and without aligned corners."""
  x, one_pixel = (jnp.asarray(case.inputs[k]) for k in ('x', 'one'))
  answers = {}
  for name in case.expected:  # such as up2_aT, to_11x13_aF, one_pixel_4x4_aF
    if match := re.fullmatch(r'up(\d+)_a([FT])', name):
      factor, aligned = match.groups()
      answers[name] = maps.scaled(x, int(factor), aligned == 'T')
    elif match := re.fullmatch(r'(\w+)_(\d+)x(\d+)_a([FT])', name):
      kind, *size, aligned = match.groups()
      image = one_pixel if kind == 'one_pixel' else x
      answers[name] = maps.resize(image, tuple(map(int, size)), aligned == 'T')
  return answers


# Names of Trans2Seg's transformer and head in its authors' checkpoints.
_SEPARABLE = tables.arrays("""
depthwise_#/conv/kernel  lay#.block.depthwise.weight  conv         +1
depthwise_#/norm         lay#.block.bn_depth          batch_norm*  +1
pointwise_#/conv/kernel  lay#.block.pointwise.weight  conv         +1
pointwise_#/norm         lay#.block.bn_point          batch_norm*  +1
""")
_TRANSFORMER = tables.arrays("""
embedding                      hybrid_embed.proj                dense*
class_token                    cls_token
position_embedding             pos_embed
class_prototypes               cls_embed
blocks_#/norm1                 blocks_encoder.#.norm1           norm*
blocks_#/attention/qkv         blocks_encoder.#.attn.qkv        dense*
blocks_#/attention/out         blocks_encoder.#.attn.proj       dense2*
blocks_#/norm2                 blocks_encoder.#.norm2           norm*
blocks_#/mlp/up                blocks_encoder.#.mlp.fc1         dense*
blocks_#/mlp/down              blocks_encoder.#.mlp.fc2         dense*
norm                           norm                             norm*
decoder_#/norm_classes         blocks_decoder.#.norm1_clsembed  norm*
decoder_#/norm_places          blocks_decoder.#.norm1           norm*
decoder_#/attention/query      blocks_decoder.#.attn.fc_q       dense*
decoder_#/attention/key_value  blocks_decoder.#.attn.fc_kv      dense*
decoder_#/attention/out        blocks_decoder.#.attn.proj       dense*
decoder_#/norm_query           blocks_decoder.#.norm2           norm*
decoder_#/mlp_query/up         blocks_decoder.#.mlp.fc1         dense*
decoder_#/mlp_query/down       blocks_decoder.#.mlp.fc2         dense*
decoder_#/norm_features        blocks_decoder.#.norm3           norm*
decoder_#/mlp_features/up      blocks_decoder.#.mlp2.fc1        dense*
decoder_#/mlp_features/down    blocks_decoder.#.mlp2.fc2        dense*
decoder_#/norm_masks           blocks_decoder.#.norm4           norm*
decoder_#/mlp_masks/up         blocks_decoder.#.mlp3.fc1        dense*
decoder_#/mlp_masks/down       blocks_decoder.#.mlp3.fc2        dense*
""")
# Of `models.trans2seg.Trans2Seg`. Their backbone, a ResNet with BatchNorm, is
# none of ours, so that no file of theirs is read whole.
TRANS2SEG = [
  *tables.below(_TRANSFORMER, '', 'transformer.vit.'),
  *_SEPARABLE,
  *tables.arrays("""
fine              conv_c1  conv_bn*
classifier/dense  pred     conv1x1*
"""),
]


def trans2seg(case):
  """Masks in evaluation and in training, and the maps of each layer."""
  dims = case.dims
  deep, fine = (jnp.asarray(case.inputs[k]) for k in ('c4', 'c1'))
  module = registry.build_model(
    trans2seg_lib.Trans2Seg,
    hidden_size=dims['embed_dim'],
    mlp_dim=int(dims['embed_dim'] * dims['mlp_ratio']),
    depth=dims['depth'],
    num_heads=dims['num_heads'],
    num_classes=dims['classes'],
    channels=dims['hid_dim'],
  )
  params = _read(case, TRANS2SEG, module, deep, fine)
  outputs = module.apply({'params': params}, deep, fine)
  size = case.expected['masks_resized'].shape
  trained, _ = module.apply(
    {'params': params}, deep, fine, train=True, mutable=['statistics']
  )
  resized = maps.resize(outputs['logits'], size[1:3], align_corners=True)
  attention = {f'attn_{i}': outputs[f'masks_{i}'] for i in range(dims['depth'])}
  return attention | {
    'masks': outputs['logits'],
    'masks_resized': resized[: size[0]],
    'feat_enc': outputs['features'],
    'train_masks': trained['logits'],
  }


def poly(case):
  """Polynomial decay of mmengine and of the SETR repository, in float64."""
  dims, arrays = case.dims, case.arrays
  config = config_lib.default().optim
  answers = {}

  def rates(steps, base, low, power, total, inclusive, warmup=0):
    config.learning_rate = base
    config.schedule = (
      f'poly({power}, {low / base}, final_inclusive={inclusive})'
    )
    config.warmup_inclusive = inclusive
    config.warmup_factor = dims['warmup_start_factor'] if warmup else 0.0
    with jax.enable_x64(True):
      schedule = optim.make_schedule(config, optim.Lengths(total, warmup))
      return np.array([np.asarray(schedule(int(t))) for t in steps])

  main = dims['min_lr'], dims['power'], dims['max_iters']
  for name, factor in (('', 1.0), ('_head', dims['head_mult'])):
    base_rate = factor * dims['base']
    classic = f'lr{name}_classic'
    answers[classic] = rates(arrays['steps'], base_rate, *main, False)
    answers[f'lr{name or "_mmengine"}'] = rates(
      arrays['steps'], base_rate, *main, True
    )
  answers['warm_lr'] = rates(
    arrays['warm_steps'],
    dims['warm_base'],
    dims['warm_min'],
    dims['warm_power'],
    dims['warm_max'],
    True,
    dims['warmup'],
  )
  return answers | {k: arrays[k] for k in ('steps', 'warm_steps')}


CHECKS = {
  'unetr': unetr,
  'unetr_patch_perceptron': patch_perceptron,
  'dice_ce_loss': dice_cross_entropy,
  'dice_metric': dice_metric,
  'sliding_window_3d': sliding_window,
  'setr_naive': functools.partial(setr, 'naive'),
  'setr_pup': functools.partial(setr, 'pup'),
  'setr_mla': functools.partial(setr, 'mla'),
  'parameter_counts': parameter_counts,
  'resize_bilinear': resize,
  'trans2seg_head': trans2seg,
  'segmentation_metrics': segmentation_metrics,
  'poly_schedule': poly,
  'slide_inference_2d': slide_inference,
  'multi_scale_flip_inference': multi_scale,
}
