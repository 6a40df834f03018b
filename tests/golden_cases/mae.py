"""MAE: masks, encoder, decoder, targets and loss, and their gradients."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features
from vit_jax.models import block
from vit_jax.models import decoder
from vit_jax.objectives import mae
from vit_jax.weights import initial


def _config(case):
  """A config with the dimensions of a case, which starts from its weights."""
  config = config_lib.default()
  fields = case.fields
  h, w = fields['grid']
  p = fields['patch_size']
  p, q = (p, p) if isinstance(p, int) else p
  config.data.image_size = (h * p, w * q)
  config.data.channels = case.inputs['image'].shape[-1]
  config.model.name = 'ViT-B/16'
  config.model.num_classes = 0
  config.model.patch_size = (p, q)
  config.model.hidden_size = fields['hidden']
  config.model.depth = fields['layers']
  config.model.num_heads = fields['heads']
  config.model.mlp_dim = _mlp_dim(fields, '')
  config.model.layer_norm_epsilon = fields['layer_norm_eps']
  config.model.mlp = "mlp(gelu='exact')"
  config.model.positions = "sincos2d(kind='sincos2d_mae')"
  config.objective.name = 'mae'
  config.objective.options = {
    'mask_ratio': fields['mask_ratio'],
    'decoder_width': fields['decoder_hidden'],
    'decoder_depth': fields['decoder_layers'],
    'decoder_heads': fields['decoder_heads'],
    'decoder_mlp_dim': _mlp_dim(fields, 'decoder_'),
  }
  objectives.fill_options(config)
  config.init_from.path = str(case.weights)
  return config


def _mlp_dim(fields, prefix):
  ratio = fields.get(f'{prefix}mlp_ratio', fields.get('mlp_ratio', 4))
  return fields.get(f'{prefix}mlp', int(fields[f'{prefix}hidden'] * ratio))


def _objective(config, normalize):
  config = config.copy_and_resolve_references()
  config.objective.options.normalize_targets = normalize
  return objectives.create(config, {'image': features.Image()})


def _loss(objective, params, image, drawn):
  predicted = objective.predict(params, image, drawn)
  errors = mae.reconstruction_errors(
    predicted, objective.targets(image), drawn.removed
  )
  return errors.mean(), predicted


def _started(case):
  """Returns the objective, its parameters from the file, images and masks."""
  config, image = _config(case), jnp.asarray(case.inputs['image'])
  objective = _objective(config, normalize=False)
  start = initial.Start(config, (), initial.load(config), objective)
  params = jax.tree.map(jnp.asarray, start.take())
  noise = jnp.asarray(case.inputs['noise'])
  drawn = mae.masks(noise, config.objective.options.mask_ratio)
  return objective, params, image, drawn


def check(case):
  """Returns all answers of a case."""
  plain, params, image, drawn = _started(case)
  scaled = _objective(plain.config, normalize=True)
  return jax.jit(lambda params: _answers(plain, scaled, params, image, drawn))(
    params
  )


def _answers(plain, scaled, params, image, drawn):
  (loss, predicted), grads = jax.value_and_grad(
    lambda params: _loss(plain, params, image, drawn), has_aux=True
  )(params)
  return {
    'ids_keep': drawn.seen_patches,
    'ids_restore': drawn.places,
    'mask': drawn.removed,
    'latent': plain.encode(params, image, drawn),
    'pred': predicted,
    'target': plain.targets(image),
    'target_norm': scaled.targets(image),
    'loss': loss,
    'loss_norm_pix': _loss(scaled, params, image, drawn)[0],
    'grad_norm': optax.global_norm(grads),
    'grad_mask_token': grads['decoder']['mask_token'],
    'grad_cls_token': grads['trunk']['class_token'],
  }


def check_hf(case):
  """Returns all answers of a case of transformers.

  Its global norm counts the gradients of both position tables, too, although
  they do not train: they are parameters there.
  """
  answers = check(case)
  tables = _table_gradients(*_started(case))
  norm = optax.global_norm([answers['grad_norm'], tables])
  return answers | {'grad_norm': norm}


def _table_gradients(objective, params, image, drawn):
  """Returns the gradients of the position tables of encoder and decoder.

  What is added to the input of the first layer has the gradient of positions.
  """

  def loss(added):
    def intercept(call, args, kwargs, context):
      is_first = context.method_name == '__call__' and isinstance(
        context.module, block.Block
      )
      if is_first and context.module.name == 'blocks_0':
        is_decoder = isinstance(context.module.parent, decoder.Decoder)
        args = (args[0] + added[is_decoder], *args[1:])
      return call(*args, **kwargs)

    with nn.intercept_methods(intercept):
      return _loss(objective, params, image, drawn)[0]

  b, k = drawn.seen_patches.shape
  n = drawn.places.shape[1]
  widths = objective.model.hidden_size, objective.decoder.hidden_size
  token_grads, position_grads = jax.jit(jax.grad(loss))(
    [jnp.zeros((b, 1 + k, widths[0])), jnp.zeros((1, 1 + n, widths[1]))]
  )
  table = jnp.zeros((1 + n, widths[0])).at[0].add(token_grads[:, 0].sum(axis=0))
  return [
    table.at[1 + drawn.seen_patches].add(token_grads[:, 1:]),
    position_grads,
  ]


CHECKS = {
  'mae_fb': check,
  'mae_fb_rectangle': check,
  'mae_hf': check_hf,
}
