"""Rotary, gated and flexible ViTs, and what they are made of."""

import re

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import golden_cases
from vit_jax.data import naflex as naflex_lib
from vit_jax.models import block
from vit_jax.models import masking
from vit_jax.models import values
from vit_jax.models.context import Context
from vit_jax.models.parts import experts
from vit_jax.models.parts import merging
from vit_jax.models.parts import mlp
from vit_jax.models.parts import pooling
from vit_jax.models.parts import rotary
from vit_jax.objectives import mae
from vit_jax.weights import resize
from vit_jax.weights.files import containers
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_naflex


def _load(case, size, **fields):
  return golden_cases.load(
    case, size, num_heads=case.dims['num_heads'], **fields
  )


def _pool(case):
  """Returns the pool of a case, whose norm may follow it."""
  assert case.weights is not None
  pool = {'avg': 'mean', 'token': 'token', 'map': "map(gelu='exact')"}[
    case.dims['global_pool']
  ]
  with containers.open_arrays(case.weights) as arrays:
    is_after = 'fc_norm.weight' in arrays.shapes
  return 'mean(norm_after=True)' if is_after else pool


def like(case):
  """A small version of a published ViT of timm."""
  fields = {}
  if 'global_pool' in case.dims:
    fields['pool'] = _pool(case)
  base = case.dims.get('rope_temperature')
  if grid := case.dims.get('ref_feat_shape'):
    fields['positions'] = golden_cases.with_rope(
      case, kind='eva02', grid=tuple(grid), base=base or 10_000.0
    )
  elif 'dinov3' in case.name:
    fields['positions'] = golden_cases.with_rope(case, base=base or 100.0)
  vit = _load(case, case.dims['image_size'], **fields)
  variables, images = {'params': vit.params}, case.inputs['images']
  outputs = vit.model.apply(variables, images, method='trunk')
  return {
    'features': outputs['tokens'],
    'pooled': outputs['features'],
    'logits': vit.model.apply(variables, images),
  }


def pi_resize(case):
  """Kernels and positions of other sizes."""
  inputs, answers = case.inputs, {}
  kernel, patch = (inputs[k].astype(np.float64) for k in ('kernel', 'patch'))
  old = kernel.shape[:2]
  answers['embed_base'] = np.einsum('hwc,hwcd->d', patch, kernel)
  methods = {
    'bilinear': 'half_pixel',
    'bicubic_aa': 'bicubic_antialias',
    'bilinear_aa': 'linear_antialias',
  }
  for size in map(tuple, case.dims['sizes']):
    end = f'{size[0]}x{size[1]}'
    positions = {
      name: resize.patch_kernel(kernel, size, method)
      for name, method in methods.items()
    }
    answers |= {f'{name}_{end}': x for name, x in positions.items()}
    axes = [
      resize.resize_matrix(*x, 'half_pixel')
      for x in zip(old, size, strict=True)
    ]
    larger = np.einsum('ah,bw,hwc->abc', *axes, patch)
    answers[f'matrix_{end}'] = np.kron(*axes)
    answers[f'embed_up_{end}'] = np.einsum(
      'hwc,hwcd->d', larger, positions['bilinear']
    )
  grid = tuple(case.dims['grid'])
  for new in map(tuple, case.dims['new_grids']):
    for name, method in (
      ('bv', 'linear_antialias'),
      ('timm', 'bicubic_antialias'),
    ):
      positions = resize.positions(inputs['pos_embed'], grid, new, method)
      answers[f'pos_{name}_{new[0]}x{new[1]}'] = positions
  return answers


def flexivit(case):
  """FlexiViT with patches of several sizes."""
  dims, answers = case.dims, {}
  stored, patch = (
    golden_cases.pair(dims[k]) for k in ('posemb_size', 'patch_size')
  )
  vit = _load(case, [n * p for n, p in zip(stored, patch, strict=True)])
  size = golden_cases.pair(dims['image_size'])
  for count in dims['seqhw']:
    grid = golden_cases.pair(count)
    resized = vit.adapted(
      image_size=size,
      patch_size=tuple(n // k for n, k in zip(size, grid, strict=True)),
      resize='linear_antialias',
    )
    answers[f'logits_seq{count}'] = resized.model.apply(
      {'params': resized.params}, case.inputs['images']
    )
  return answers


# Names of tables: kind, base of the frequencies, and the reference grid's side.
# EVA-02's and DINOv3's have no base in their names.
_ROTARY = re.compile(r'(eva02|dinov3|[a-z]+)(\d+)?(?:_ref(\d+))?(?:_xy)?')
_KINDS = {'dinov3': ('dinov3', 100.0), 'naver': ('rope_vit', 100.0)}


def rotations(case):
  """Tables of all kinds of rotary embeddings, and queries that they rotate."""
  dims, answers = case.dims, {}
  grid, prefix = (dims['H'], dims['W']), dims['prefix']
  query = jnp.asarray(case.inputs['q']).swapaxes(1, 2)  # [B, T, H, K]
  for name in _tables(case):
    match = _ROTARY.fullmatch(name)
    if match is None:
      raise ValueError(f'no rotary embedding is known by the name {name}')
    kind, base = _KINDS.get(match[1], ('eva02', 1e4))
    base = float(match[2] or base)
    reference = (int(match[3]),) * 2 if match[3] else None
    cos, sin = rotary.table(kind, grid, dims['head_dim'], base, reference)
    rotation = rotary.token_tables(cos, sin, prefix, None)
    turned = rotary.rotate(query, rotation, rotary.KINDS[kind].halves).swapaxes(
      1, 2
    )
    answers |= {f'cos_{name}': cos, f'sin_{name}': sin, f'q_{name}': turned}
  places = rotary.coordinates(grid, prefix, None)
  frequencies = jnp.asarray(case.inputs['mixed_freqs'])
  layers = [
    rotary.mixed(places, frequencies[:, i]) for i in range(dims['depth'])
  ]
  turned = rotary.rotate(query, layers[0], halves=False)
  answers['q_mixed_xy'] = turned.swapaxes(1, 2)
  for i, name in enumerate(('cos', 'sin')):
    rotations = jnp.stack([x[i][0, prefix:] for x in layers])  # [L, N, H, K]
    answers[f'{name}_mixed_xy'] = rotations.swapaxes(1, 2)
  return answers


def _tables(case):
  """Returns the names of a case's tables of fixed frequencies."""
  names = [x.removeprefix('cos_') for x in case.expected if x[:4] == 'cos_']
  return [x for x in names if not x.startswith('mixed')]


def _params(case, rules, abstract):
  assert case.weights is not None
  with containers.open_arrays(case.weights) as arrays:
    return tables.read(arrays, rules, abstract, ignored='.*')


def _abstract(layer, x):
  """Returns the shapes of the parameters of a part."""
  key = jax.random.key(0)
  return jax.eval_shape(lambda x: layer.init(key, x, Context()), x)['params']


def gated(case):
  """SwiGLU: one kernel or two, and with a norm."""
  hidden, x = case.dims['H'], jnp.asarray(case.inputs['x'])
  norm = block.LayerNorm(1e-5)

  def run(rules, kind=mlp.SwiGLU, hidden_norm=False):
    layer = kind(hidden, hidden_norm=hidden_norm, norm=norm)
    abstract = _abstract(layer, x)
    rules = [
      *rules,
      *tables.arrays("""
down  fc2   dense*
norm  norm  norm*
"""),
    ]
    variables = {'params': _params(case, rules, abstract)}
    return layer.apply(variables, x, Context())

  first = tables.arrays('up fc1 dense*')
  plain = run(first)
  last = tables.arrays(
    'up/kernel fc1.weight swapped\nup/bias fc1.bias swapped', swapped=_SWAPPED
  )
  return {
    'packed': plain,
    'unpacked': plain,
    'unpacked_norm': run(first, hidden_norm=True),
    'glu_last': run(last, mlp.GLU),
  }


# A gate behind the value, in torch's [out, in].
_SWAPPED = tables.Layout(
  lambda a, _: np.concatenate(np.split(a[0], 2)[::-1]).T,
  lambda a: [np.concatenate(np.split(a.T, 2)[::-1])],
)


def attention_pool(case):
  """Attention pooling, with and without padding."""
  width = case.dims['D']
  x, valid = jnp.asarray(case.inputs['x']), jnp.asarray(case.inputs['valid'])
  rules = tables.arrays("""
probe      latent
query      q        dense*
key_value  kv       dense*
out        proj     dense2*
norm       norm     norm*
mlp/up     mlp.fc1  dense*
mlp/down   mlp.fc2  dense*
""")

  def run(gelu, attended):
    hidden = int(width * case.dims['mlp_ratio'])
    head = pooling.Map(case.dims['heads'], hidden, gelu=gelu)
    variables = {'params': _params(case, rules, _abstract(head, x))}
    context = Context(attended=attended)
    return head.apply(variables, x, context, mutable=['pooling'])

  pooled, state = run('exact', None)
  return {
    'pooled': pooled,
    'attention': state['pooling']['weights'][:, :, None],
    'pooled_masked': run('exact', valid)[0],
    'pooled_tanh': run('tanh', None)[0],
  }


_PROTECTED = {'c': 1, 'd': 2, 'n': 0}


def matching(case):
  """Token merging with none, one and two protected tokens."""
  inputs = {k: jnp.asarray(x) for k, x in case.inputs.items()}
  x, sizes = inputs['x'], inputs['size'][..., 0]
  answers = {}
  for name, protected in _PROTECTED.items():
    for count in case.dims['r']:
      end = f'{name}{count}'
      merge = merging.match(inputs['metric'], count, protected)
      if merge is None:  # all stay
        stay = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
        unmerged = dict.fromkeys(('mean', 'sum', 'wavg', 'unmerged'), x)
        unmerged |= {
          'size': inputs['size'],
          'source': _sources(stay, x.shape[1]),
        }
        answers |= {f'{k}_{end}': v for k, v in unmerged.items()}
        continue
      mean = merge.mean(x, jnp.ones(x.shape[:2]))
      new = merge.sizes(sizes)
      answers |= {
        f'mean_{end}': mean,
        f'sum_{end}': merge.total(x),
        f'wavg_{end}': merge.mean(x, sizes),
        f'size_{end}': new[..., None],
        f'source_{end}': _sources(merge.places, new.shape[1]),
        f'unmerged_{end}': jnp.take_along_axis(
          mean, merge.places[..., None], axis=1
        ),
      }
  return answers


def _sources(places, count):
  """Returns which first tokens each token has, 0 or 1 [B, count, N]."""
  return jax.nn.one_hot(places, count, axis=1, dtype=jnp.int8)


def merged_vit(case):
  """A ViT that merges tokens."""
  loaded, images = _load(case, case.dims['image_size']), case.inputs['images']
  variables = {'params': loaded.params}

  def logits(**fields):
    return loaded.adapted(**fields).model.apply(variables, images)

  answers = {'logits_plain': logits(), 'schedule': None}
  for count in case.dims['r']:
    for proportional in (True, False):
      fields = {'block': f'merging({count}, proportional={proportional})'}
      end = f'r{count}_prop{int(proportional)}'
      vit = loaded.adapted(**fields)
      outputs = vit.model.apply(variables, images, method='trunk')
      answers |= {
        f'logits_{end}': logits(**fields),
        f'tokens_{end}': outputs['tokens'],
      }
      if count:
        sources = _sources(outputs['places'], outputs['tokens'].shape[1])
        answers[f'size_{end}'] = outputs['sizes'][..., None]
        answers[f'source_{end}'] = sources
  # The authors' r = (3, -1): a mean number, falling.
  match = re.search(r'r = \((\d+)', case.described('logits_schedule'))
  largest = int(match[1]) if match else max(case.dims['r'])
  answers['logits_schedule'] = logits(
    block=f'merging({largest}, decreasing=True)'
  )
  answers['schedule'] = merging.schedule(case.dims['depth'], largest, True)
  return answers


def dropped(case):
  """Patch dropout, and MAE's masks, of given noise."""
  noise, answers = jnp.asarray(case.inputs['noise']), {}
  prefix, x = case.dims['prefix'], case.inputs['x']
  patches = x[:, prefix:]

  def at(indices):
    return np.take_along_axis(patches, np.asarray(indices)[..., None], axis=1)

  for rate in case.dims['probs']:
    ids_keep = masking.least(noise, rate)
    for name, order in (
      ('shuffled', ids_keep),
      ('ordered', ids_keep.sort(axis=1)),
    ):
      tokens = np.concatenate([x[:, :prefix], at(order)], axis=1)
      answers |= {f'keep_{rate}_{name}': order, f'x_{rate}_{name}': tokens}
  masks = mae.masks(noise, case.dims['mask_ratio'])
  return answers | {
    'mae_kept': at(masks.seen_patches),
    'mae_mask': masks.removed,
    'mae_ids_restore': masks.places,
    'mae_ids_keep': masks.seen_patches,
  }


def _tanh_experts(case, x):
  """Applies the cases' experts, a tanh layer each, to [E, G, C, D]."""
  y = jnp.einsum('egcd,edf->egcf', x, case.inputs['expert_w'])
  return jnp.tanh(y + case.inputs['expert_b'][:, None, None])


def soft_experts(case):
  """Soft MoE: what slots see, and what tokens get."""
  inputs, dims = case.inputs, case.dims
  x = jnp.asarray(inputs['x'])
  routes = experts.soft(x, jnp.asarray(inputs['mu']), inputs['scale'])
  slots = routes.gather(x)
  low = _tanh_experts(case, routes.gather(x.astype(jnp.bfloat16)))
  return {
    'dispatch': routes.dispatch,
    'combine': routes.combine,
    'slots': slots.reshape(len(slots), -1, slots.shape[-1]),
    'out': routes.scatter(_tanh_experts(case, slots)),
    'out_bfloat16': routes.scatter(low.astype(jnp.bfloat16)),
    'slots_per_expert_cf1': experts.soft_slots(dims['tokens'], dims['experts']),
  }


def _gshard_loss(gates):
  """Returns GShard's loss of gates [G, S, E] (arXiv:2006.16668), float32 [G].

  The mean gates times the shares of first choices; 1 if both are even.
  """
  e = gates.shape[-1]
  first = jax.nn.one_hot(gates.argmax(axis=-1), e).mean(axis=1)
  return (first * gates.mean(axis=1)).sum(axis=-1) * e


def routed(case):
  """V-MoE: gates, losses, buffers and outputs for several capacities."""
  inputs, dims = case.inputs, case.dims
  logits, x = (jnp.asarray(inputs[k]) for k in ('logits', 'x'))
  noise = dims['noise_std'] / dims['experts']
  noisy = logits + noise * inputs['noise']
  gates, training = jax.nn.softmax(logits), jax.nn.softmax(noisy)
  answers = {
    'gates': gates,
    'gates_noisy': training,
    'importance_loss': experts.importance_loss(gates),
    'gshard_loss': _gshard_loss(training),
  }

  def add(end, routes):
    buffers = routes.gather(x)
    answers[f'dispatch_{end}'] = routes.dispatch
    answers[f'combine_{end}'] = routes.combine
    answers[f'out_{end}'] = routes.scatter(_tanh_experts(case, buffers))
    return buffers.reshape(len(buffers), -1, buffers.shape[-1])

  number = dims['items'], dims['experts']
  for count, factor, multiple in dims['configs']:
    places = experts.capacity(number[0] * count, number[1], factor, multiple)
    answers[f'load_loss_k{count}'] = experts.load_loss(
      logits, noisy, count, noise
    )
    for by_gate in (False, True):
      end = f'k{count}_f{factor}_m{multiple}_bpr{int(by_gate)}'
      weights, chosen, at = experts.choices(gates, count, by_gate)
      routes = experts.top_experts(gates, count, places, by_gate)
      answers |= {
        f'weights_{end}': weights,
        f'indices_{end}': jnp.stack([chosen, at], axis=-1),
        f'capacity_{end}': places,
        f'buffers_{end}': add(end, routes),
      }
  for name in case.expected:
    if name.startswith('out_items_f'):
      factor = float(name.removeprefix('out_items_f'))
      places = experts.capacity(*number, factor, multiple=1)
      add(f'items_f{factor}', experts.top_tokens(gates, places))
  return answers


_SEQUENCE = 16, 256  # patch and length, where a case does not say them


def _flexible(case):
  """Loads a NaFlexViT; written back, it has the file's bits."""
  dims = case.dims
  patch = golden_cases.pair(dims['patch'])
  fields = {}
  if 'global_pool' in dims:
    fields['pool'] = _pool(case)
  if dims.get('pos_embed_ar_preserving', False):
    grid = tuple(dims['pos_grid'])
    fields['positions'] = f'factorized(keep_aspect=True, grid={grid})'
  vit = _load(
    case,
    [n * p for n, p in zip(dims['pos_grid'], patch, strict=True)],
    **fields,
  )
  assert case.weights is not None
  with containers.open_arrays(case.weights) as arrays:
    stored = {name: arrays.read(name) for name in arrays.shapes}
  rules, params = (
    timm_naflex.NAFLEX.rules(values.model_values(vit.model)),
    jax.device_get(vit.params),
  )
  written = dict(tables.write(rules, params))
  assert written.keys() == stored.keys()
  for name, x in stored.items():
    np.testing.assert_array_equal(written[name], x, err_msg=name)
  return vit


def naflex(case):
  """timm's NaFlexViT on images of different shapes, together and alone."""
  vit, inputs = _flexible(case), case.inputs
  model, variables = vit.model, {'params': vit.params}
  patches, valid = inputs['patches'], inputs['patch_valid']
  grids = inputs['patch_coord'].max(axis=1) + 1
  embedded = []

  def watch(call, args, kwargs, context):
    if context.module.name == 'blocks_0' and context.method_name == '__call__':
      embedded.append(args[0])
    return call(*args, **kwargs)

  with nn.intercept_methods(watch):
    outputs = model.apply(variables, patches, grids=grids, method='trunk')
  front = np.ones((len(valid), model.prefix_length), bool)
  is_real = np.concatenate([front, valid], axis=1)[..., None]
  answers = {
    'embeds': embedded[0] * is_real,
    'features': outputs['tokens'] * is_real,
    'pooled': outputs['features'],
    'logits': model.apply(variables, patches, grids=grids),
  }
  for i, grid in enumerate(grids):
    image = inputs[f'image_{i}']
    count = int(grid.prod())
    patch = model.patches.patch_size
    cut, size = naflex_lib.padded(image, patch, count)
    assert size == tuple(grid)
    padded, _ = naflex_lib.padded(image, patch, len(patches[i]))
    np.testing.assert_allclose(padded, patches[i], atol=1e-6)
    answers[f'logits_single_{i}'] = model.apply(
      variables, cut[None], grids=grid[None]
    )
  if 'sizes' in inputs:
    # '... get_image_size_for_seq(size, 16, max_seq_len=256): pixels'
    match = re.search(
      r'\(size, (\d+), max_seq_len=(\d+)\)', case.described('target_sizes')
    )
    limits = (int(match[1]), int(match[2])) if match else _SEQUENCE
    sizes = [tuple(x) for x in inputs['sizes'].tolist()]
    answers['target_sizes'] = np.array(
      [naflex_lib.size(x, *limits) for x in sizes]
    )
    answers['target_grids'] = answers['target_sizes'] // limits[0]
    answers['ratios'] = [naflex_lib.scale(x, *limits) for x in sizes]
  return answers


def other_patch(case):
  """timm's NaFlexViT with patches of another size."""
  patch = golden_cases.pair(case.dims['new_patch'])
  vit = _flexible(case)
  grid = tuple(case.dims['pos_grid'])
  size = tuple(n * p for n, p in zip(grid, patch, strict=True))
  vit = vit.adapted(patch_size=patch, image_size=size)
  variables, inputs = {'params': vit.params}, case.inputs
  patches = inputs['patches'].reshape(*inputs['patches'].shape[:2], -1)
  grids = inputs['patch_coord'].max(axis=1) + 1
  return {
    'logits': vit.model.apply(variables, patches, grids=grids),
    'pooled': vit.model.apply(variables, patches, grids=grids, method='trunk')[
      'features'
    ],
  }


CHECKS = {
  'attention_pool_latent': attention_pool,
  'dinov3_like': like,
  'eva02_like': like,
  'flexivit_model': flexivit,
  'flexivit_pi_resize': pi_resize,
  'naflex_factorized_ar': naflex,
  'naflex_gap_reg': naflex,
  'naflex_map': naflex,
  'naflex_variable_patch': other_patch,
  'rope_tables': rotations,
  'patch_dropout_and_masking': dropped,
  'soft_moe': soft_experts,
  'so150m2_like': like,
  'swiglu_packed_qknorm_ls': like,
  'swiglu_variants': gated,
  'tome_matching': matching,
  'tome_vit': merged_vit,
  'vit_rope_mixed_like': like,
  'vit_rope_reg_gap_like': like,
  'vmoe_routing': routed,
}
