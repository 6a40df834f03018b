"""Checkpoints fitted to another size, patch, number of channels or task."""

import functools

import compiled
import jax
import numpy as np
import pytest
import scipy.ndimage

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import registry
from vit_jax.models import resnet
from vit_jax.models import vit
from vit_jax.weights import adapt as adapt_lib
from vit_jax.weights import fit
from vit_jax.weights import resize

GRID = (2, 3)


def tiny(**overrides):
  fields = {'hidden_size': 16, 'mlp_dim': 24, 'num_heads': 2, 'depth': 2}
  fields |= {'patch_size': (4, 4)} | overrides
  return models.create(vit.ViT, {'num_classes': 5, **fields})


@functools.cache
def init(model, grid=GRID, channels=3):
  """Parameters without a compilation; none is zero."""
  images = np.zeros((1, *fit.image_size(model, grid), channels), np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32) * 0.3, shapes
  )


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, images):
  return compiled.apply(model, {'params': params}, images)


def random_images(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def adapt(source, target, grid=GRID, *, channels=3, **kwargs):
  """Adapts fresh parameters; also returns what was done by path."""
  adapted, changes = adapt_lib.adapt(
    init(source), source, target, GRID, grid, channels=channels, **kwargs
  )
  # The model takes them.
  shapes = jax.tree.map(np.shape, init(target, grid, channels))
  assert jax.tree.map(np.shape, adapted) == shapes
  return adapted, {change.path: change for change in changes}


def assert_same_function(source, target, tolerance=1e-5):
  adapted, changes = adapt(source, target)
  x = random_images(2, *fit.image_size(source, GRID), 3)
  expected = apply(source, init(source), x)
  np.testing.assert_allclose(
    apply(target, adapted, x), expected, atol=tolerance, rtol=tolerance
  )
  return changes


# Resizing of one axis.


def test_corner_is_scipys_zoom():
  for old in range(1, 34):
    x = random_images(old, 2).astype(np.float64)
    for new in range(1, 34):
      actual = resize.resize_matrix(old, new, 'corner') @ x
      expected = scipy.ndimage.zoom(x, (new / old, 1), order=1)
      if new > 1 and not expected[-1].any():
        # It rounds the last sample to beyond the edge, as for 8 -> 26.
        actual, expected = actual[:-1], expected[:-1]
      np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize('old, new', [(4, 6), (7, 7), (14, 9), (3, 16), (6, 1)])
def test_half_pixel_is_jax_image_resize(old, new):
  x = random_images(old, 2)
  expected = jax.image.resize(x, (new, 2), 'linear', antialias=False)
  actual = resize.resize_matrix(old, new, 'half_pixel') @ x
  np.testing.assert_allclose(actual, expected, atol=1e-5)


# torch.nn.functional.interpolate of the squares of 1 to 5, to 3 and to 7.
TORCH = {
  'bicubic': [
    [1.6666667, 9.0, 22.5555556],
    [0.7638484, 2.2157434, 5.3411079, 9.0, 13.3877551, 20.5131195, 25.7084548],
  ],
  'bicubic_antialias': [
    [1.8769231, 9.1953488, 21.6307692],
    [0.8252427, 2.3462604, 5.2244898, 9.0, 13.7959184, 20.4293629, 25.5242718],
  ],
}


@pytest.mark.parametrize('method', TORCH)
def test_bicubic_is_torchs(method):
  for expected in TORCH[method]:
    matrix = resize.resize_matrix(5, len(expected), method)
    actual = matrix @ np.arange(1, 6) ** 2
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize('method', resize.METHODS[1:])
def test_grids_as_torch_itself_resizes_them(method):
  torch = pytest.importorskip('torch', reason='PyTorch is not installed')
  table = random_images(1, 12, 7)
  mode, _, antialias = method.partition('_anti')
  others = {'half_pixel': 'bilinear', 'linear': 'bilinear'}
  others['geometric'] = 'bicubic'
  mode = others.get(mode, mode)
  x = torch.tensor(table.reshape(1, 3, 4, 7).transpose(0, 3, 1, 2))
  for new in [(5, 3), (6, 8), (2, 11)]:
    settings = {'size': new, 'mode': mode, 'antialias': bool(antialias)}
    if method == 'dino':  # as in its code
      scale = [(n + 0.1) / old for n, old in zip(new, (3, 4), strict=True)]
      settings = {'scale_factor': scale, 'mode': 'bicubic'}
    y = torch.nn.functional.interpolate(x, align_corners=False, **settings)
    expected = y.numpy().transpose(0, 2, 3, 1).reshape(1, -1, 7)
    actual = resize.positions(table, (3, 4), new, method)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize('method', resize.METHODS)
def test_resizing_keeps_what_is_constant_or_not_resized(method):
  matrix = resize.resize_matrix(5, 8, method)
  np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
  if method == 'dino':  # it resizes each axis if one changes
    return
  same = resize.resize_matrix(6, 6, method)
  np.testing.assert_allclose(same, np.eye(6), atol=1e-12)


def test_rows_and_columns_are_not_confused():
  """Corner-aligned linear resizing keeps a plane, and its corners."""

  def plane(h, w):
    y, x = np.mgrid[0 : 1 : h * 1j, 0 : 10 : w * 1j]
    return (y + x).reshape(1, h * w, 1)

  actual = resize.positions(plane(3, 4), (3, 4), (5, 2), 'corner')
  np.testing.assert_allclose(actual, plane(5, 2), atol=1e-6)


def test_an_unknown_method_names_the_known_ones():
  with pytest.raises(
    UserError, match=r"'nearest'.*half_pixel, linear_antialias, bicubic"
  ):
    resize.resize_matrix(2, 3, 'nearest')
  with pytest.raises(UserError, match=r"'nearest'"):
    adapt(tiny(), tiny(), resize='nearest')


# Patches and channels.


@pytest.mark.parametrize('new', [(8, 5), (7, 9), (4, 12)])
def test_grown_kernel_gives_grown_patches_the_same_tokens(new):
  kernel, patch = random_images(4, 5, 3, 6), random_images(4, 5, 3)
  grown = jax.image.resize(patch, (*new, 3), 'linear', antialias=False)
  expected = np.einsum('pqc,pqcd->d', patch, kernel)
  actual = np.einsum('pqc,pqcd->d', grown, resize.patch_kernel(kernel, new))
  np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_shrunk_kernel_is_the_nearest_over_white_noise():
  kernel, new = random_images(8, 6, 1, 2), (4, 3)
  basis = np.eye(48).reshape(48, 8, 6)
  shrink = jax.image.resize(basis, (48, *new), 'linear', antialias=False)
  expected = kernel.reshape(48, 2)
  best = np.linalg.lstsq(shrink.reshape(48, 12), expected, rcond=None)[0]
  actual = resize.patch_kernel(kernel, new).reshape(12, 2)
  np.testing.assert_allclose(actual, best, atol=1e-5)


def test_model_with_a_larger_patch_is_the_same_function():
  """On images whose patches are grown one by one."""
  source, target = tiny(), tiny(patch_size=(7, 6))
  adapted, changes = adapt(source, target)
  assert list(changes) == ['patch_embedding/kernel']
  patches = random_images(2, 2, 3, 4, 4, 3)
  grown = jax.image.resize(
    patches, (2, 2, 3, 7, 6, 3), 'linear', antialias=False
  )

  def image(patches):
    b, h, w, p, q, c = patches.shape
    return patches.transpose(0, 1, 3, 2, 4, 5).reshape(b, h * p, w * q, c)

  np.testing.assert_allclose(
    apply(target, adapted, image(grown)),
    apply(source, init(source), image(patches)),
    atol=1e-4,
  )


def test_channels():
  kernel = random_images(2, 2, 3, 5)
  grey = resize.channels(kernel, 1)
  np.testing.assert_allclose(grey[:, :, 0], kernel.sum(axis=2), rtol=1e-5)
  alpha = resize.channels(kernel, 4)
  np.testing.assert_array_equal(alpha[:, :, :3], kernel)
  assert not alpha[:, :, 3].any()
  np.testing.assert_array_equal(resize.channels(alpha, 3), kernel)
  np.testing.assert_allclose(resize.channels(alpha, 1), grey)
  for count in (2, 5, 6):  # equal channels: the same response
    repeated = resize.channels(grey, count)
    np.testing.assert_allclose(repeated, np.repeat(grey / count, count, 2))
  order = resize.channels(kernel, 5) * (5 / 3)
  np.testing.assert_allclose(order, kernel[:, :, [0, 1, 2, 0, 1]], rtol=1e-5)


def test_grey_images_in_a_model_that_took_rgb():
  source, target = tiny(), tiny()
  adapted, changes = adapt(source, target, channels=1)
  assert changes['patch_embedding/kernel'].action == '3 -> 1 channels'
  grey = random_images(2, 8, 12, 1)
  np.testing.assert_allclose(
    apply(target, adapted, grey),
    apply(source, init(source), np.repeat(grey, 3, axis=3)),
    atol=1e-4,
  )


@pytest.mark.parametrize('family', ['hybrid', 'BiT'])
def test_standardized_kernels_ignore_a_new_alpha(family):
  if family == 'hybrid':
    fields = {'patches': 'hybrid(width=32)', 'patch_size': (2, 2)}
    model = tiny(**fields)
  else:
    model = resnet.BiT(5, (1,), stem_width=32, channels=(128,))
  params = jax.tree.map(np.array, init(model))
  # Filters of many sizes, and a mean that is not zero.
  kernel = params['stem']['conv']['kernel']
  kernel *= np.linspace(0.05, 2, 32, dtype=np.float32)
  kernel += 0.3
  adapted, changes = adapt_lib.adapt(
    params, model, model, GRID, GRID, channels=4
  )
  assert [change.path for change in changes] == ['stem/conv/kernel']
  x = random_images(2, *fit.image_size(model, GRID), 4)
  np.testing.assert_allclose(
    apply(model, adapted, x), apply(model, params, x[..., :3]), atol=2e-4
  )


def test_standardized_kernel_of_grey_images_keeps_its_filters():
  kernel = random_images(7, 7, 3, 4) + 1
  actual = resize.channels(kernel, 1, is_standardized=True)
  summed = kernel.sum(axis=2, keepdims=True)
  for x, y in zip(actual.T, summed.T, strict=True):
    assert np.corrcoef(x.ravel(), y.ravel())[0, 1] == pytest.approx(1)
  np.testing.assert_allclose(actual.std((0, 1, 2)), kernel.std((0, 1, 2)), 1e-4)
  # One grey kernel repeated for equal colours scales all filters alike.
  colour = resize.channels(actual, 3, is_standardized=True)
  np.testing.assert_allclose(colour, np.repeat(actual, 3, axis=2), atol=1e-5)


# Tokens and positions.


def test_nothing_to_do_copies_nothing():
  model = tiny(head='linear(pre_logits=12)')
  params = init(model)
  adapted, changes = adapt_lib.adapt(
    params,
    model,
    describing.with_keys(model, dropout_rate=0.1),
    GRID,
    GRID,
    channels=3,
  )
  assert not changes
  assert all(
    jax.tree.leaves(jax.tree.map(lambda a, b: a is b, adapted, params))
  )


@pytest.mark.parametrize('method', resize.METHODS)
def test_positions_of_another_grid(method):
  model = tiny(distillation_token=True, registers=2)
  adapted, changes = adapt(model, model, (5, 4), resize=method)
  old = init(model)['position_embedding']
  new = adapted['position_embedding']
  np.testing.assert_array_equal(new[:, :4], old[:, :4])
  expected = resize.positions(old[:, 4:], GRID, (5, 4), method)
  np.testing.assert_array_equal(new[:, 4:], expected)
  assert list(changes) == ['position_embedding']
  change = changes['position_embedding']
  assert change.action == f'grid 2 x 3 -> 5 x 4, {method}'
  assert (change.old, change.new) == ((1, 10, 16), (1, 24, 16))


@pytest.mark.parametrize('to', ['class', 'patches'])
def test_positions_added_to_their_tokens_are_the_same_function(to):
  source = tiny(distillation_token=True, registers=2)
  target = describing.with_keys(source, positions=f"learned(tokens='{to}')")
  changes = assert_same_function(source, target)
  assert 'the same function' in changes['register_tokens'].action
  assert ('class_token' in changes) == (to == 'patches')


@pytest.mark.parametrize(
  'positions',
  ["learned(tokens='class')", "learned(tokens='patches')", 'sincos2d', 'none'],
)
def test_new_positions_of_zero_are_the_same_function(positions):
  fields = {'distillation_token': True, 'registers': 2}
  changes = assert_same_function(
    tiny(positions=positions, **fields), tiny(**fields)
  )
  assert list(changes) == ['position_embedding']


@pytest.mark.parametrize('to', ['sincos2d', 'none'])
def test_learned_positions_are_dropped(to):
  adapted, changes = adapt(tiny(), tiny(positions=to))
  assert changes['position_embedding'].action == f'learned -> {to}: dropped'
  params = init(tiny())
  expected = params['class_token'] + params['position_embedding'][:, :1]
  np.testing.assert_array_equal(adapted['class_token'], expected)


def test_class_token_dropped():
  for source in (tiny(), tiny(pool='mean', class_token=True)):
    adapted, changes = adapt(source, tiny(pool='mean'))
    assert changes['class_token'].action == 'dropped, and its position'
    old = init(source)['position_embedding']
    np.testing.assert_array_equal(adapted['position_embedding'], old[:, 1:])


def test_tokens_added():
  source = tiny(pool='mean')
  target = tiny(distillation_token=True, registers=3)
  adapted, changes = adapt(source, target)
  assert not adapted['class_token'].any()
  assert changes['class_token'].action == '1 added: zeros'
  rows = np.concatenate(
    [adapted['register_tokens'][0], adapted['distillation_token'][0]]
  )
  assert len(np.unique(rows, axis=0)) == 4
  position = adapted['position_embedding']
  assert not position[:, :5].any()
  np.testing.assert_array_equal(
    position[:, 5:], init(source)['position_embedding']
  )
  again, _ = adapt(source, target.clone(registers=2))
  more, _ = adapt_lib.adapt(
    again, target.clone(registers=2), target, GRID, GRID, channels=3
  )
  jax.tree.map(np.testing.assert_array_equal, more, adapted)


@pytest.mark.parametrize('count', [1, 4])
def test_number_of_registers(count):
  source = tiny(registers=2)
  adapted, _ = adapt(source, tiny(registers=count))
  both, params = min(count, 2), init(source)
  for name, start in {'register_tokens': 0, 'position_embedding': 1}.items():
    kept = slice(start, start + both)
    np.testing.assert_array_equal(adapted[name][:, kept], params[name][:, kept])
  assert not adapted['position_embedding'][:, 1 + both : 1 + count].any()
  np.testing.assert_array_equal(
    adapted['position_embedding'][:, 1 + count :],
    params['position_embedding'][:, 3:],
  )


# Heads.


def test_head_of_other_classes_is_zeros():
  source = tiny(head='linear(pre_logits=12)')
  adapted, changes = adapt(source, tiny(num_classes=7))
  assert not any(x.any() for x in adapted['head'].values())
  assert adapted['head']['kernel'].shape == (16, 7)
  assert changes['head/bias'].action == 'zeros: 5 -> 7 classes'
  assert changes['pre_logits/kernel'].new is None
  kept, _ = adapt(source, tiny(num_classes=7, head='linear(pre_logits=12)'))
  assert kept['pre_logits']['kernel'] is init(source)['pre_logits']['kernel']


def test_class_names_decide_where_both_are_known():
  model, names = tiny(), ('a', 'b', 'c', 'd', 'e')
  assert not adapt(model, model, classes=(names, list(names)))[1]
  assert not adapt(model, model, classes=(names, ()))[1]
  _, changes = adapt(model, model, classes=(names, names[::-1]))
  assert changes['head/kernel'].action == 'zeros: other classes'


def test_heads_of_distillation():
  distilled = tiny(distillation_token=True)
  _, changes = adapt(distilled, tiny())
  assert changes['head_distillation/kernel'].action == 'dropped'
  assert 'head/kernel' not in changes
  adapted, _ = adapt(distilled, distilled.clone(num_classes=3))
  assert not adapted['head_distillation']['kernel'].any()
  _, changes = adapt(tiny(), distilled)
  assert changes['head_distillation/bias'].action.startswith('zeros')


def test_features_alone():
  adapted, changes = adapt(tiny(), tiny(num_classes=0))
  assert 'head' not in adapted
  assert changes['head/kernel'].action == 'dropped'


def test_head_of_another_pool():
  adapted, changes = adapt(tiny(), tiny(pool='mean'))
  assert adapted['head']['kernel'] is init(tiny())['head']['kernel']
  assert 'kept, but it reads' in changes['head/kernel'].action
  adapted, changes = adapt(tiny(), tiny(pool='token_and_mean'))
  assert adapted['head']['kernel'].shape == (32, 5)
  assert changes['head/kernel'].action.startswith('zeros: it reads')


HEADS = {
  'map': {'pool': 'map'},
  'token+gap': {'pool': 'token_and_mean'},
  'MLP': {'head': 'linear(pre_logits=12)'},
  'MLP of both': {'pool': 'token_and_mean', 'head': 'linear(pre_logits=8)'},
}


@pytest.mark.parametrize('name', HEADS)
@pytest.mark.parametrize('classes', [5, 7])
def test_another_kind_of_head_starts_anew(name, classes):
  """From fixed seeds; and back, what the model lacks is dropped."""
  source, target = tiny(), tiny(num_classes=classes, **HEADS[name])
  adapted, changes = adapt(source, target)
  assert changes['head/kernel'].action.startswith('zeros: ')
  assert not adapted['head']['kernel'].any()
  new = {
    path: change
    for path, change in changes.items()
    if path.startswith(('map_head', 'pre_logits'))
  }
  assert bool(new) == (name != 'token+gap')
  assert all(x.old is None and 'new: ' in x.action for x in new.values())
  for part in {path.split('/')[0] for path in new}:
    again, _ = adapt(source, target)
    jax.tree.map(np.testing.assert_array_equal, adapted[part], again[part])
  for path in new:
    if path.endswith(('kernel', 'probe')):
      part, *names = path.split('/')
      assert functools.reduce(dict.get, names, adapted[part]).std() > 0.01
  _, changes = adapt(target, source)
  assert all(changes[path].new is None for path in new)
  assert changes['head/kernel'].action.startswith('zeros: ')


def test_the_same_kind_of_head_is_kept():
  for fields in HEADS.values():
    assert not adapt(tiny(**fields), tiny(**fields))[1]
  source = tiny(pool='map', head='linear(pre_logits=12)')
  adapted, changes = adapt(
    source, tiny(pool='map', head='linear(pre_logits=9)')
  )
  assert not any(path.startswith('map_head') for path in changes)
  assert adapted['pre_logits']['kernel'].shape == (16, 9)


# The whole.


def test_layers_stacked_or_unrolled_and_kinds_of_arrays():
  source, scanned = tiny(), tiny(scan=True)
  unrolled = init(source)
  stacked, changes = adapt(source, scanned)
  assert not changes
  jax.tree.map(
    np.testing.assert_array_equal, stacked, layouts.stack_layers(unrolled)
  )
  back, _ = adapt_lib.adapt(stacked, scanned, source, GRID, GRID, channels=3)
  jax.tree.map(np.testing.assert_array_equal, back, unrolled)
  for kind, tree in [
    (np.ndarray, unrolled),
    (jax.Array, jax.tree.map(jax.numpy.asarray, stacked)),
  ]:
    for model in (source, scanned):
      target = model.clone(registers=2, num_classes=3)
      result, _ = adapt_lib.adapt(
        tree, source, target, GRID, (4, 4), channels=1
      )
      leaves = jax.tree.leaves(result)
      assert all(isinstance(x, kind) for x in leaves)
      assert all(x.dtype == np.float32 for x in leaves)


def test_mixer():
  sizes = {'hidden_size': 16, 'tokens_mlp_dim': 8, 'mlp_dim': 24, 'depth': 2}
  model = registry.build_model(
    mixer.Mixer, num_classes=5, patch_size=(4, 4), **sizes
  )
  target = describing.with_keys(
    model, num_classes=3, patch_size=(6, 8), scan=True
  )
  _, changes = adapt(model, target, channels=1)
  assert set(changes) == {
    'patch_embedding/kernel',
    'head/kernel',
    'head/bias',
  }
  with pytest.raises(UserError, match=r'takes 2 x 3 patches.* size 8 x 12'):
    adapt(model, model, (3, 3))


def test_bit():
  model = resnet.BiT(5, (1, 1), stem_width=32, channels=(128, 128))
  _, changes = adapt(model, model.clone(num_classes=3), (4, 4), channels=1)
  assert list(changes) == ['stem/conv/kernel', 'head/bias', 'head/kernel']


@pytest.mark.parametrize('stages', [(), (1,), (1, 1, 1)])
def test_grid_of_a_hybrid(stages):
  model = tiny(patches=f'hybrid(stages={stages}, width=32)', patch_size=(1, 2))
  _, changes = adapt(model, model, (3, 2))
  assert list(changes) == ['position_embedding']


def test_all_differences_are_in_one_line():
  source = tiny()
  target = tiny(
    num_heads=4,
    mlp="mlp(gelu='exact')",
    block='block(layer_scale=0.1)',
    depth=3,
  )
  with pytest.raises(UserError) as error:
    adapt(source, target)
  message = str(error.value)
  assert '\n' not in message
  for text in (
    'num_heads is 2 in the checkpoint, 4 in the model',
    "gelu is 'tanh' in the checkpoint, 'exact' in the model",
    'depth is 2',
    'blocks_*/attention/qkv/kernel: 16 x 3 x 2 x 8 in the checkpoint,'
    ' 16 x 3 x 4 x 4 in the model (in 2 layers)',
    'blocks_*/layer_scale1: not in the checkpoint (in 3 layers)',
    'blocks_2/norm1/scale: not in the checkpoint',
  ):
    assert text in message
  with pytest.raises(UserError, match='layer_scale1: not in the model'):
    adapt(tiny(block='block(layer_scale=0.1)'), tiny())


def test_norm_after_pool_matters_where_both_average():
  source = tiny(pool='mean(norm_after=True)')
  with pytest.raises(UserError, match=r'pool\.norm_after is True'):
    adapt(source, tiny(pool='mean'))
  adapt(source, tiny(pool='token'))


def test_wrong_family_and_wrong_grid():
  with pytest.raises(UserError, match='of a ViT, the model is a BiT'):
    adapt_lib.adapt({}, tiny(), resnet.BiT(5), GRID, GRID, channels=3)
  with pytest.raises(
    UserError, match='lacks head/kernel, head/bias, class_tok'
  ):
    adapt_lib.adapt({}, tiny(), tiny(), GRID, GRID, channels=3)
  with pytest.raises(UserError, match=r'7 rows, 1 of them .* no grid of 3 x 3'):
    adapt_lib.adapt(init(tiny()), tiny(), tiny(), (3, 3), GRID, channels=3)


def test_table():
  _, changes = adapt(tiny(), tiny(num_classes=10), (4, 4))
  table = adapt_lib.changes_table(list(changes.values()))
  assert table.split('\n') == [
    'parameter           checkpoint  model        what was done',
    'position_embedding  1 x 7 x 16  1 x 17 x 16  grid 2 x 3 -> 4 x 4, corner',
    'head/bias           5           10           zeros: 5 -> 10 classes',
    'head/kernel         16 x 5      16 x 10      zeros: 5 -> 10 classes',
  ]
  some = [
    adapt_lib.Change(f'blocks_{i}/norm1/{name}', (2, 3), None, 'dropped')
    for name, layers in (('bias', (0, 1, 2)), ('scale', (0, 2, 3)))
    for i in layers
  ]
  lines = adapt_lib.changes_table(some).split('\n')[1:]
  assert [line.split()[0] for line in lines] == [
    'blocks_0..2/norm1/bias',
    'blocks_0,2..3/norm1/scale',
  ]
