"""Segmentation: heads, decoders, losses, metrics, windows and schedules."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import trans2seg_names

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
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
from vit_jax.weights.formats import mmseg
from vit_jax.weights.formats import monai
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
  'conv': monai.TRUNK,
  'perceptron': [
    *tables.below(_PERCEPTRON, '', 'patch_embedding.'),
    *(
      x
      for x in monai.TRUNK
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
  rest = (n.removeprefix(prefix) for n in names if n.startswith(prefix))
  return len({n.partition('.')[0] for n in rest})


def _theirs(rules, tree):
  """Returns the arrays of our tree under the names of a format."""
  return dict(tables.write(rules, tree))


def setr(kind, case):
  """Logits, losses, gradients and running statistics of a SETR."""
  given, dims = case.inputs, case.dims
  features = sorted(k for k in given if k.startswith('feat_'))
  levels = [jnp.asarray(given[k]) for k in features]
  labels, size = jnp.asarray(given['labels']), given['labels'].shape[1:]
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
  params = _read(case, mmseg.SETR, module, levels)
  logits, others = module.apply({'params': params}, levels)

  def total(params, levels):
    (main, others), changed = module.apply(
      {'params': params}, levels, train=True, mutable=['statistics']
    )
    losses = [
      weight * pixel_losses.cross_entropy(maps.resize(x, size), labels)
      for weight, x in zip(
        itertools.chain([1.0], itertools.repeat(_AUXILIARY_WEIGHT)),
        [main, *others],
        strict=False,
      )
    ]
    return sum(losses), (main, losses, changed['statistics'])

  (loss, (main, losses, moved)), grads = jax.value_and_grad(
    total, (0, 1), has_aux=True
  )(params, levels)
  predicted = maps.resize(main, size).argmax(axis=-1)
  matrix = metrics.confusion(
    np.asarray(labels), np.asarray(predicted), dims['num_classes']
  )
  found = {
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
  found |= {f'aux{i}_head_logits': x for i, x in enumerate(others)}
  found |= {f'loss_aux{i}': x for i, x in enumerate(losses[1:])}
  found |= {f'grad_feat_{i}': x for i, x in enumerate(grads[1])}
  theirs = _theirs(mmseg.SETR, grads[0])
  found |= {f'grad.{name}': x for name, x in theirs.items()}
  theirs = _theirs(mmseg.SETR, moved)
  found |= {f'after.{name}': x for name, x in theirs.items()}
  if kind == 'mla':
    neck = setr_lib.Neck(dims['neck_channels'])
    outputs = neck.apply({'params': params['neck']}, levels)
    found |= {f'neck_{i}': x for i, x in enumerate(outputs)}
  return found


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
    rest = [n for n in arrays.shapes if not n.startswith('vit.')]
  params = _read(
    case,
    _TRUNKS[dims['proj_type']],
    trunk,
    volume,
    prefix='vit.',
    ignored='|'.join([monai.IGNORED, *map(_exactly, rest)]),
  )
  seen, state = trunk.apply(
    {'params': params}, volume, method='trunk', mutable=['levels']
  )
  every = state['levels']['tokens']

  def laid_out(x):
    return x.reshape(len(x), *grid, x.shape[-1])

  levels = [laid_out(every[i]) for i in unetr_lib.LEVELS]
  last = laid_out(seen['tokens'])
  rest = _read(
    case,
    monai.DECODER,
    decoder,
    volume,
    levels,
    last,
    ignored=r'vit\..*',
  )
  found = decoder.apply({'params': rest}, volume, levels, last, method='stages')
  found |= {f'tokens_{i}': x for i, x in enumerate(every)}
  found['tokens_final'] = seen['tokens']
  # Of some the file has the first volumes alone.
  return {name: found[name][: len(x)] for name, x in case.expected.items()}


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
  again = _theirs(monai.TRUNK, params)
  kernel = again['patch_embedding.patch_embeddings.weight']
  embedding = patches_lib.Patches(
    dims['hidden_size'], tuple(dims['patch_size'])
  )
  found = {}
  for name, x in (
    ('tokens', params['patch_embedding']['kernel']),
    ('tokens_conv', np.moveaxis(kernel, (0, 1), (-1, -2))),
  ):
    layer = params['patch_embedding'] | {'kernel': jnp.asarray(x)}
    y = embedding.apply({'params': layer}, volume)
    patches = y.reshape(len(y), -1, y.shape[-1])
    found[name] = patches + params['position_embedding']
  return found


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
  own = jax.eval_shape(trunk.init, key, volume)['params']
  rest = jax.eval_shape(decoder.init, key, volume, [tokens] * 3, tokens)
  # MONAI's blocks hold a LayerNorm that nothing uses.
  unused = trunk.depth * 2 * hidden
  used = _count(own) + _count(rest)
  return {
    'state_dict_total': used + unused,
    'unused_norm_cross_attn': unused,
    'used': used,
    'vit': _count(own),
    'decoder_and_encoders': _count(rest),
  } | {
    f'per_module/{"out" if k == "classifier" else k}': _count(x)
    for k, x in rest['params'].items()
  }


def _setr_counts(kind, size, classes, convs):
  """Numbers of a SETR's parameters, by head."""
  module = setr_lib.SETR(kind, classes, auxiliary_convs=convs)
  width = zoo_vit.SIZES[size]['hidden_size']
  levels = [jax.ShapeDtypeStruct((1, 2, 2, width), jnp.float32)] * 4
  params = jax.eval_shape(module.init, jax.random.key(0), levels)['params']
  others = sorted(k for k in params if k.startswith('auxiliary'))
  found = {
    'decode_head': _trained(params['decode']),
    'auxiliary_heads_each': [_trained(params[k]) for k in others],
  }
  if 'neck' in params:
    found['neck'] = _trained(params['neck'])
  return found


def parameter_counts(case):
  """Numbers of parameters with the sizes that the names of a case say."""
  found = {}
  for name in case.fields['values']:
    if match := re.fullmatch(
      r'unetr_(\d+)_in(\d+)_out(\d+)_feature(\d+)_hidden(\d+)_mlp(\d+)', name
    ):
      each = _unetr_counts(*map(int, match.groups()))
    elif match := re.fullmatch(
      r'setr_([a-z]+)_vit_([a-z]+)_(\d+)_classes(?:_aux_num_convs(\d+))?', name
    ):
      kind, size, classes, convs = match.groups()
      each = _setr_counts(kind, size.upper(), int(classes), int(convs or 1))
    else:
      raise ValueError(f'no model is known by the name {name}')
    found |= {f'{name}/{k}': np.asarray(x) for k, x in each.items()}
  return found


def dice_cross_entropy(case):
  """Dice and cross-entropy in all of MONAI's variants.

  They are computed in float64: what sums round in float32 is as large as the
  tolerance.
  """
  with jax.enable_x64(True):
    return _dice_cross_entropy(case)


def _dice_cross_entropy(case):
  given = {
    k: jnp.asarray(x, jnp.float64 if x.dtype.kind == 'f' else x.dtype)
    for k, x in case.inputs.items()
  }
  logits, labels = given['logits'], given['labels']
  smooth = case.dims['smooth_nr'], case.dims['smooth_dr']
  dice = functools.partial(pixel_losses.dice, smooth=smooth)
  found = {'ce': pixel_losses.cross_entropy(logits, labels, None, -1)}
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
    how = {
      'background': background,
      'over_batch': over_batch,
      'squared': squared,
      'labels': labels,
      'smooth': smooth,
    }
    total = functools.partial(pixel_losses.dice_cross_entropy, **how)
    found[f'dice{name}'] = pixel_losses.mean_dice(logits, **how)
    found[f'total{name}'], found[f'grad{name}'] = jax.value_and_grad(total)(
      logits
    )
  probabilities = jax.nn.softmax(logits, axis=-1)
  one_hot = jax.nn.one_hot(labels, logits.shape[-1])
  sigmoid, several = jax.nn.sigmoid(logits), given['multi_hot']
  first, binary = logits[..., :1], given['binary_target']
  found |= {
    'per_class_dice': dice(probabilities, one_hot),
    'per_class_dice_batch': dice(probabilities, one_hot, over_batch=True),
    'jaccard': pixel_losses.mean_dice(
      logits, labels, jaccard=True, smooth=smooth
    ),
    'total_weighted': pixel_losses.dice_cross_entropy(
      logits, labels, weights=given['class_weight'], smooth=smooth
    ),
    'sigmoid_dice': dice(sigmoid, several).mean(),
    'sigmoid_dice_sq_batch': dice(
      sigmoid, several, over_batch=True, squared=True
    ).mean(),
    'binary_total': dice(jax.nn.sigmoid(first), binary).mean()
    + optax.sigmoid_binary_cross_entropy(first, binary).mean(),
  }
  return found


def dice_by_image(labels, predicted, classes, ignore_empty):
  """Returns Dice coefficients [B, K]; MONAI's empty classes have 1 or 0."""
  scores = np.empty((len(labels), classes))
  for i, pair in enumerate(zip(labels, predicted, strict=True)):
    matrix = metrics.confusion(*pair, classes)
    scores[i] = segments.overlaps(matrix).dice
    empty = matrix.sum(axis=1) == 0
    missed = matrix.sum(axis=0)[empty] == 0
    scores[i, empty] = np.nan if ignore_empty else missed
  return scores


def dice_metric(case):
  """Dice coefficients and their means, with and without empty classes."""
  given, classes = case.inputs, case.dims['classes']
  found = {}
  for empty, background in itertools.product((True, False), repeat=2):
    name = f'bg{"T" if background else "F"}_ignore_empty{"T" if empty else "F"}'
    each = dice_by_image(given['labels'], given['pred'], classes, empty)
    each = each[:, 0 if background else 1 :]
    by_image = np.array([segments.mean(x) for x in each])
    by_class = np.array([segments.mean(x) for x in each.T])
    counts = ~np.isnan(each)
    found |= {
      f'dice_{name}': each,
      f'mean_{name}': segments.mean(by_image),
      f'not_nans_mean_{name}': (~np.isnan(by_image)).sum(),
      f'mean_batch_{name}': np.nan_to_num(by_class),
      f'not_nans_mean_batch_{name}': counts.sum(axis=0),
      f'mean_channel_{name}': np.nan_to_num(by_image),
      f'not_nans_mean_channel_{name}': counts.sum(axis=1),
    }
  return found


def segmentation_metrics(case):
  """Areas and overlaps over images, places with an ignored label left out."""
  given, classes = case.inputs, case.dims['classes']
  labels, predicted = given['labels'], given['pred']
  ignore = case.dims['ignore']
  each = np.stack(
    [
      metrics.confusion(label, guess, classes, label != ignore)
      for label, guess in zip(labels, predicted, strict=True)
    ]
  )
  right = np.diagonal(each, axis1=1, axis2=2)
  by_label, by_prediction = each.sum(axis=2), each.sum(axis=1)
  total = segments.overlaps(each.sum(axis=0))
  summary = segments.measures(each.sum(axis=0))
  # As mmsegmentation reads ADE20K's classes 1 to 150, with 0 for all else.
  raw = given['raw_labels']
  reduced = np.where((raw == 0) | (raw == ignore), ignore, raw.astype(int) - 1)
  # What goes wrong if ignored places count as predictions.
  kept = np.stack(
    [np.bincount(x.ravel(), minlength=classes) for x in predicted]
  )
  union = (by_label + kept - right).sum(axis=0)
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
    'confusion': each.sum(axis=0),
    'mIoU_per_image_mean': np.mean(
      [segments.overlaps(x).mean_iou for x in each]
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
  dims, given = case.dims, case.inputs
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
  size = given['volume'].shape[1:-1]
  corners = windows.starts(size, roi, stride)
  count = np.zeros(size, np.float32)
  for at in corners:
    count[tuple(slice(a, a + n) for a, n in zip(at, roi, strict=True))] += (
      weights
    )
  found = {
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
      found[name] = slide(
        images=given['small_volume' if small else 'volume'],
        stride=windows.strides(roi, overlap),
        weights=kinds[kind],
      )
  return found


def slide_inference(case):
  """Windows in images, as mmsegmentation lays them."""
  dims, given = case.dims, case.inputs
  window, stride = dims['crop'], dims['stride']
  apply, size = _network(case), given['image'].shape[1:3]
  corners = windows.starts(size, window, stride)
  logits = windows.slide(apply, given['image'], window, stride)
  count = np.zeros(size, np.int32)
  for y, x in corners:
    count[y : y + window[0], x : x + window[1]] += 1
  return {
    'logits': logits,
    'pred': logits.argmax(axis=-1),
    'small_logits': windows.slide(apply, given['small_image'], window, stride),
    'boxes': np.concatenate([corners, corners + window], axis=1),
    'count': count,
  }


def multi_scale(case):
  """Views of an image at several sizes and their mirror images."""
  image, ratios, found = case.inputs['image'], case.dims['ratios'], {}
  apply, size = _network(case), case.inputs['image'].shape[:2]
  each = []
  for ratio in ratios:
    for one, mirrored in windows.views(image, [ratio]):
      each.append(windows.view_logits(apply, one, mirrored, size))
      found[f'logits_{ratio}_{"flip" if mirrored else "plain"}'] = each[-1]
      if not mirrored:
        found[f'resized_{ratio}'] = one
  mean = windows.multi_scale(apply, image, ratios)
  shape = case.expected['pred'].shape
  return found | {
    'probs': mean,
    'pred': mean.argmax(axis=-1).reshape(shape),
    'pred_mean_logits': np.mean(each, axis=0).argmax(axis=-1),
  }


def resize(case):
  """Bilinear resizing with and without aligned corners."""
  x, one = (jnp.asarray(case.inputs[k]) for k in ('x', 'one'))
  found = {}
  for name in case.expected:  # such as up2_aT, to_11x13_aF, one_pixel_4x4_aF
    if match := re.fullmatch(r'up(\d+)_a([FT])', name):
      factor, aligned = match.groups()
      found[name] = maps.scaled(x, int(factor), aligned == 'T')
    elif match := re.fullmatch(r'(\w+)_(\d+)x(\d+)_a([FT])', name):
      kind, *size, aligned = match.groups()
      given = one if kind == 'one_pixel' else x
      found[name] = maps.resize(given, tuple(map(int, size)), aligned == 'T')
  return found


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
  params = _read(case, trans2seg_names.RULES, module, deep, fine)
  found = module.apply({'params': params}, deep, fine)
  size = case.expected['masks_resized'].shape
  trained, _ = module.apply(
    {'params': params}, deep, fine, train=True, mutable=['statistics']
  )
  resized = maps.resize(found['logits'], size[1:3], align_corners=True)
  attention = {f'attn_{i}': found[f'masks_{i}'] for i in range(dims['depth'])}
  return attention | {
    'masks': found['logits'],
    'masks_resized': resized[: size[0]],
    'feat_enc': found['features'],
    'train_masks': trained['logits'],
  }


def poly(case):
  """Polynomial decay of mmengine and of the SETR repository, in float64."""
  dims, given = case.dims, case.arrays
  config = config_lib.default().optim
  found = {}

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
    found[classic] = rates(given['steps'], base_rate, *main, False)
    found[f'lr{name or "_mmengine"}'] = rates(
      given['steps'], base_rate, *main, True
    )
  found['warm_lr'] = rates(
    given['warm_steps'],
    dims['warm_base'],
    dims['warm_min'],
    dims['warm_power'],
    dims['warm_max'],
    True,
    dims['warmup'],
  )
  return found | {k: given[k] for k in ('steps', 'warm_steps')}


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
