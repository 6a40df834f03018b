"""MAE: masks, encoder, decoder, targets and loss, and their gradients."""

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features
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
  config.model.gelu = 'exact'
  config.model.position_embedding = 'sincos2d_mae'
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


def check(case):
  """Returns all answers of a case."""
  config, image = _config(case), jnp.asarray(case.inputs['image'])
  plain, scaled = (_objective(config, x) for x in (False, True))
  loaded = initial.load(config)
  start = initial.Start(config, (), loaded, plain)
  params = jax.tree.map(jnp.asarray, start.take())
  noise = jnp.asarray(case.inputs['noise'])
  drawn = mae.masks(noise, config.objective.options.mask_ratio)
  (loss, predicted), grads = jax.value_and_grad(
    lambda params: _loss(plain, params, image, drawn), has_aux=True
  )(params)
  return {
    'ids_keep': drawn.kept,
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


CHECKS = dict.fromkeys(('mae_fb', 'mae_fb_rectangle', 'mae_hf'), check)
