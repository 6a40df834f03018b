"""Cases of DINO, iBOT and DINOv2: heads, losses, schedules and masks."""

import jax
import jax.numpy as jnp
import mask_samples
import numpy as np
import optax

from golden_cases import Judged
from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.models import prototypes as heads
from vit_jax.objectives import block_masks
from vit_jax.objectives import dinov2
from vit_jax.objectives import prototypes
from vit_jax.weights.files import containers
from vit_jax.weights.formats import dino_head
from vit_jax.weights.formats import tables


def head(case):
  f, x = case.fields, jnp.asarray(case.inputs['x'])
  module = heads.PrototypeHead(
    f['out'], f['hidden'], f['bottleneck'], f['layers'], f['batch_norm']
  )
  variables = jax.eval_shape(lambda: module.init(jax.random.key(0), x))
  rules = dino_head.rules('', '', f['layers'], f['batch_norm'])
  with containers.open_arrays(case.weights) as arrays:
    variables = {
      name: tables.read(arrays, rules, tree, '.*')
      for name, tree in variables.items()
    }

  def loss(params):
    return jnp.mean(module.apply({**variables, 'params': params}, x) ** 2)

  kernel = module.apply(
    variables, method=lambda head: head.last_layer(jnp.eye(head.bottleneck))
  )
  answers = {
    'bottleneck': module.apply(variables, x, method='narrow'),
    'output': module.apply(variables, x),
    'last_weight': kernel.T,
    'grad_norm': optax.global_norm(jax.grad(loss)(variables['params'])),
  }
  if f['batch_norm']:
    answers['output_train'], _ = module.apply(
      variables, x, train=True, mutable=['statistics']
    )
  return answers


# Of iBOT's class, for fields that a case does not have.
IBOT_DEFAULTS = {'student_temp': 0.1, 'center_momentum': 0.9}


def by_image(x, batch):
  """[crops * B, ...], crop after crop -> [B, crops, ...]."""
  x = jnp.asarray(x)
  return x.reshape(-1, batch, *x.shape[1:]).swapaxes(0, 1)


def temperatures(case, kind='temp', first=0):
  """Returns a teacher's temperature in each epoch."""
  f = case.fields
  return prototypes.warmed_up(
    f[f'warmup_teacher_{kind}'],
    f[f'teacher_{kind}_final'],
    f['warmup_epochs'],
    np.maximum(np.arange(f['epochs']) - first, 0),
  )


def dino_loss(case):
  f, x = case.fields, case.inputs
  centre = jnp.zeros(f['out'])
  answers = {'teacher_temp': temperatures(case)}
  for call in (1, 2):
    teacher = by_image(x[f'teacher_{call}'], f['batch'])
    probabilities = prototypes.centred(
      teacher, centre, answers['teacher_temp'][f[f'epoch_{call}']]
    )

    def loss(student, probabilities=probabilities):
      pairs = prototypes.between_crops(
        by_image(student, f['batch']), probabilities, f['student_temp']
      )
      return sum(prototypes.cross_crop_loss(pairs))

    loss_and_grad = jax.value_and_grad(loss)(jnp.asarray(x[f'student_{call}']))
    answers[f'loss_{call}'], answers[f'grad_student_{call}'] = loss_and_grad
    centre = prototypes.update_centre(centre, teacher, f['center_momentum'])
    answers[f'center_{call}'] = centre[None]
  return answers


def schedules(case):
  f = case.fields
  config = config_lib.default().optim
  config.learning_rate = f['lr'] * f['batch_size'] / 256
  final_factor = f['min_lr'] / config.learning_rate
  config.schedule = f'cosine({final_factor})'
  config.warmup_inclusive = True
  config.weight_decay = f['weight_decay_start']
  config.final_weight_decay = f['weight_decay_end']
  per_epoch = f['steps_per_epoch']
  total = f['epochs'] * per_epoch
  lengths = optim.Lengths(total, f['warmup_epochs'] * per_epoch)
  with jax.enable_x64(True):
    steps = jnp.arange(total)
    momentum = optim.half_cosine(f['momentum_base'], 1.0, total)
    decay = optim.make_decay(config, lengths)
    return {
      'learning_rate': jax.vmap(optim.make_schedule(config, lengths))(steps),
      'weight_decay': config.weight_decay * jax.vmap(decay)(steps),
      'momentum': jax.vmap(momentum)(steps),
    }


def clip(case):
  grads = {k: jnp.asarray(x) for k, x in case.inputs.items()}
  config = config_lib.default().optim
  config.name = 'sgd(momentum=0.0)'
  config.clip = f'each({case.fields["clip"]})'
  optimizer = optim.make_optimizer(config)
  clipped, _ = optimizer.update(grads, optimizer.init(grads), grads)
  norms = [optax.global_norm(grads[f'grad_{i}']) for i in range(len(grads))]
  return {'norms': jnp.stack(norms)} | {
    name.replace('grad', 'clipped'): x for name, x in clipped.items()
  }


def sinkhorn(case):
  f, logits = case.fields, jnp.asarray(case.inputs['logits'])
  options = f['temperature'], f['iterations']
  # The patch version leaves out what is not masked.
  padded = jnp.concatenate([logits, 10 + logits])
  weights = jnp.arange(len(padded)) < len(logits)
  of_patches = prototypes.sinkhorn_knopp(padded, *options, weights * 1.0)
  return {
    'assignment': prototypes.sinkhorn_knopp(logits, *options),
    'assignment_ibot': of_patches[: len(logits)],
  }


def centering(case):
  f, answers = case.fields, {}
  for kind in ('cls', 'patch'):
    centre = jnp.zeros(f['prototypes'])
    for call in (1, 2):
      logits = jnp.asarray(case.inputs[f'{kind}_{call}'])
      answers[f'{kind}_probs_{call}'] = prototypes.centred(
        logits, centre, f['temperature']
      )
      centre = prototypes.update_centre(centre, logits, f['center_momentum'])
    answers[f'{kind}_center'] = centre
  return answers


def dinov2_losses(case):
  f = case.fields
  x = {k: jnp.asarray(v) for k, v in case.inputs.items()}
  batch, temperature = f['batch'], f['student_temp']
  teacher, local = (
    by_image(x[name], batch) for name in ('teacher_probs', 'student_local')
  )

  def dino(student):
    crops = [by_image(student, batch), local]
    pairs = prototypes.between_crops(
      jnp.concatenate(crops, axis=1), teacher, temperature
    )
    return prototypes.cross_crop_loss(pairs)

  def ibot(student, places=slice(None)):
    weights = prototypes.patch_weights(x['masks'])
    return prototypes.patch_loss(
      student, x['teacher_patches'], weights, temperature
    )

  def koleo(features):
    return sum(map(prototypes.koleo, features.reshape(-1, batch, f['dim'])))

  parts = dino(x['student_global'])
  patches = dinov2.Patches.from_masks(x['masks'], max(f['masked']))
  return {
    'dino_global': parts[0],
    'dino_local': parts[1],
    'dino': sum(parts),
    'ibot': prototypes.patch_loss(
      patches.take(x['student_patches']),
      patches.take(x['teacher_patches']),
      patches.weights,
      temperature,
    ),
    'ibot_full': ibot(x['student_patches']),
    'koleo': koleo(x['student_features']),
    'koleo_crop_0': koleo(x['student_features'][:batch]),
    'grad_student_global': jax.grad(lambda s: sum(dino(s)))(
      x['student_global']
    ),
    'grad_student_patches': jax.grad(ibot)(x['student_patches']),
    'grad_student_features': jax.grad(koleo)(x['student_features']),
  }


def ibot_loss(case):
  f = case.fields
  x = {k: jnp.asarray(v) for k, v in case.inputs.items()}
  batch, epoch = f['batch'], f['epoch']
  student_temp, momentum = (f.get(k, x) for k, x in IBOT_DEFAULTS.items())
  temps = temperatures(case)
  patch_temps = temperatures(case, 'patch_temp', f['mim_start_epoch'])
  centre, patch_centre = jnp.zeros(f['out']), jnp.zeros(f['patch_out'])
  teacher = by_image(x['teacher_cls'], batch)
  crops = [by_image(x[f'student_{k}'], batch) for k in ('cls', 'local')]
  pairs = prototypes.between_crops(
    jnp.concatenate(crops, axis=1),
    prototypes.centred(teacher, centre, temps[epoch]),
    student_temp,
  )
  of_class = sum(prototypes.cross_crop_loss(pairs))
  masks = x['masks'].reshape(len(x['masks']), -1)
  of_patches = prototypes.patch_loss(
    x['student_patches'],
    prototypes.centred(x['teacher_patches'], patch_centre, patch_temps[epoch]),
    prototypes.patch_weights(masks),
    student_temp,
  )
  update = prototypes.update_centre
  return {
    'cls': of_class,
    'patch': of_patches,
    'loss': of_class + of_patches,
    'center': update(centre, teacher, momentum),
    'center_patch': update(patch_centre, x['teacher_patches'], momentum),
    'teacher_temp': temps,
    'teacher_patch_temp': patch_temps,
  }


def one_mean(sample, expected, count):
  """Judges the mean of a sample by one of another, of `count` draws.

  Args:
    sample: Our sample, [draws, ...].
    expected: The mean of the other sample, [...].
    count: Draws of the other sample.
  """
  sample = np.asarray(sample, np.float64)
  spread = sample.std(axis=0)
  # A handful of values that one sample lacks is no difference.
  least = 1 / np.sqrt(min(len(sample), count))
  error = np.maximum(spread, least) * np.sqrt(1 / len(sample) + 1 / count)
  worst = np.abs(sample.mean(axis=0) - expected) / error
  return Judged(float(np.max(worst)), 5.0)


def masks(case):
  f = case.fields
  target = {'target': np.int32(f['target'])}
  return (
    mask_batches(case)
    | target
    | mask_samples.compare(case, block_shapes(case, f['target']))
  )


def block_shapes(case, target):
  f = case.fields
  return block_masks.BlockMasks(
    tuple(f['grid']),
    target,
    least=f['min_num_patches'],
    most=int(f['max_num_patches']),
    aspect=(f['min_aspect'], 1 / f['min_aspect']),
  )


def mask_batches(case):
  """Answers about the masks of a batch."""
  f, x, count = case.fields, case.expected, 100
  shares = dinov2.MaskShares(
    f['batch'], f['mask_probability'], tuple(f['mask_ratio'])
  )
  patches = int(np.prod(f['grid']))
  blocks = block_shapes(case, int(patches * shares.ratio[1]))

  def draw_batch(key):
    keys = jax.random.split(key, f['batch'])
    draws = jax.vmap(jax.random.uniform)(keys)
    counts = shares.counts(key, jnp.arange(f['batch']), draws, patches)
    return blocks.draw(keys, counts).mask

  key = jax.random.key(f['seed'] + 1)
  masks = jax.lax.map(draw_batch, jax.random.split(key, count))
  masks = masks.reshape(count, f['batch'], -1)
  sorted_counts = np.sort(np.asarray(masks.sum(axis=2)), axis=1)
  weights = np.asarray(prototypes.patch_weights(masks)).sum(axis=(1, 2))
  # The number of batches is that in which all means are whole numbers.
  means = x['sorted_masked_mean'].astype(np.float64)
  candidates = (
    n
    for n in range(10, 10_000)
    if np.abs(n * means - np.round(n * means)).max() < 1e-2
  )
  num_batches = next(candidates, count)
  return {
    'images_masked': np.int32(shares.masked),
    'upperbound': np.int32(sum(int(patches * b) for b in shares.bounds[1:])),
    'ratio_bounds': Judged(
      float(np.abs(shares.bounds - x['ratio_bounds']).max()), 1e-6
    ),
    'sorted_masked_mean': one_mean(sorted_counts, means, num_batches),
    'masks_weight_sum': Judged(
      float(np.abs(weights - x['masks_weight_sum']).max()), 1e-4
    ),
  }


CHECKS = {
  'dino_head': head,
  'dino_head_batch_norm': head,
  'dino_loss': dino_loss,
  'dino_schedules': schedules,
  'dino_clip': clip,
  'dinov2_sinkhorn': sinkhorn,
  'dinov2_centering': centering,
  'dinov2_losses': dinov2_losses,
  'dinov2_masks': masks,
  'ibot_loss': ibot_loss,
}
