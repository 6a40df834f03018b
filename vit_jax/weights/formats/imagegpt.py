"""Directories of Hugging Face transformers: ImageGPT.

config.json has the heads and the activation, preprocessor_config.json the
clusters of colours. Without the latter, the model takes ids of colours alone.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import re
from typing import Any

from absl import logging
import jax.numpy as jnp
import numpy as np

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.models import block
from vit_jax.models import igpt
from vit_jax.models.parts import norms
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_clip as clip
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule

MODEL_TYPE = 'imagegpt'
# Masks that older versions of transformers stored.
IGNORED = r'h\.\d+\.attn\.(bias|masked_bias)'

_PREFIX = 'transformer.'
_OUTPUT = 'lm_head.weight'  # named without the prefix
_OFF = typed.one_of(False)

# Fields of config.json that arrays show, that are read below, or that do not
# affect the logits of a trained model.
_KNOWN: dict[str, typed.Kind | None] = dict.fromkeys(
  """
  activation_function layer_norm_epsilon model_type n_embd n_head n_inner
  n_layer n_positions vocab_size

  attn_pdrop bos_token_id embd_pdrop eos_token_id gradient_checkpointing
  id2label initializer_range label2id n_ctx pad_token_id
  reorder_and_upcast_attn resid_pdrop use_cache

  _commit_hash _name_or_path architectures attn_implementation dtype
  output_attentions output_hidden_states return_dict torch_dtype torchscript
  transformers_version use_bfloat16
  chunk_size_feed_forward is_encoder_decoder max_length min_length num_beams
  num_beam_groups num_return_sequences problem_type remove_invalid_values
  return_dict_in_generate temperature tokenizer_class top_k top_p typical_p
  diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
  length_penalty no_repeat_ngram_size output_scores repetition_penalty
  """.split()
)
_KNOWN |= {
  'add_cross_attention': _OFF,
  'scale_attn_by_inverse_layer_idx': _OFF,
  'scale_attn_weights': typed.one_of(True),
  'tie_word_embeddings': _OFF,
}

_ELSEWHERE = tables.Layout(lambda a, _: a[0], lambda _: [])
_LAYER = 'h.{}'
# Weights are [in, out].
RULES = [
  rule('token_embedding', 'wte.weight'),
  rule('position_embedding', 'wpe.weight', tables.squeezed(0)),
  rule('blocks_{}/norm1/scale', f'{_LAYER}.ln_1.weight'),
  rule(
    'blocks_{}/attention/qkv/kernel',
    f'{_LAYER}.attn.c_attn.weight',
    tables.FLAT_OUTPUTS,
  ),
  rule(
    'blocks_{}/attention/qkv/bias', f'{_LAYER}.attn.c_attn.bias', tables.FLAT
  ),
  rule(
    'blocks_{}/attention/out/kernel',
    f'{_LAYER}.attn.c_proj.weight',
    tables.FLAT_INPUTS,
  ),
  rule('blocks_{}/attention/out/bias', f'{_LAYER}.attn.c_proj.bias'),
  rule('blocks_{}/norm2/scale', f'{_LAYER}.ln_2.weight'),
  rule('blocks_{}/mlp/up/kernel', f'{_LAYER}.mlp.c_fc.weight'),
  rule('blocks_{}/mlp/up/bias', f'{_LAYER}.mlp.c_fc.bias'),
  rule('blocks_{}/mlp/down/kernel', f'{_LAYER}.mlp.c_proj.weight'),
  rule('blocks_{}/mlp/down/bias', f'{_LAYER}.mlp.c_proj.bias'),
  rule('norm/scale', 'ln_f.weight'),
  rule('output/kernel', _OUTPUT, tables.linear()),
  rule('clusters', (), _ELSEWHERE),  # in preprocessor_config.json
]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays is of an ImageGPT."""
  found = set(names)
  return any(re.search(r'(^|\.)h\.\d+\.attn\.c_attn', name) for name in found)


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  return base.Renamed(
    arrays, lambda name: name.removeprefix(_PREFIX), stored_name
  )


def stored_name(name: str) -> str:
  """Returns the name in a file for a name in the rules."""
  return name if name == _OUTPUT else _PREFIX + name


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json."""
  shapes, config = base.Shapes(arrays), hints.config
  config.check_known(_KNOWN)
  activation = config.get('activation_function', typed.TEXT, 'quick_gelu')
  if activation not in clip.GELUS:
    raise UserError(
      f'its config.json says activation_function {activation!r}: those that can'
      f' be computed are {", ".join(clip.GELUS)}'
    )
  rows, hidden = shapes.get('wte.weight', 2)
  depth, mlp_dim = shapes.count('h.{}.'), shapes.get('h.{}.mlp.c_fc.weight', 2)
  clusters = _clusters(hints.preprocessor, rows - 1)
  sizes = {'hidden_size': hidden, 'mlp_dim': mlp_dim[1], 'depth': depth}
  fields = {
    **sizes,
    'num_heads': base.num_heads(
      hints, config.get('n_head', typed.COUNT), sizes
    ),
    'num_classes': 0,
    'colours': rows - 1,
    'has_clusters': clusters is not None,
    'gelu': clip.GELUS[activation],
    'layer_norm_epsilon': config.get(
      'layer_norm_epsilon', typed.POSITIVE, 1e-5
    ),
    'qkv_bias': 'h.0.attn.c_attn.bias' in shapes,
  }
  model = base.build(igpt.IGPT, fields, hints)
  positions = shapes.get('wpe.weight', 2)[0]
  given = hints.preprocessor.get('size', preprocessing.IMAGE_SIZE)
  default = preprocessing.pair(given) if given else None
  size = base.image_size(positions, (1, 1), hints, default)
  preprocess: dict[str, Any] = {
    'channels': 3 if clusters is None else clusters.shape[1],
    'image_size': size,
    'resize': size,
    'mean': (0.5,),
    'std': (0.5,),
    'interpolation': 'bilinear',
    'resize_like': 'transformers',
    'classes': (),
  }
  others = {} if clusters is None else {'clusters': jnp.asarray(clusters)}
  return base.Description(model, size, preprocess, 'corner', others=others)


def _clusters(given: typed.Json, colours: int) -> np.ndarray | None:
  """Returns the clusters of a preprocessor_config.json, float32 [K, C]."""
  found = given.get('clusters', _TABLE)
  if found is None:
    logging.warning(
      'warning: no preprocessor_config.json with clusters of colours is beside'
      ' its weights: the model takes ids of colours, and no images'
    )
    return None
  clusters = np.asarray(found, np.float32)
  if len(clusters) != colours or clusters.shape[1] not in (1, 3, 4):
    raise given.error(
      'clusters',
      f'of shape {clusters.shape}',
      f'the model has {colours} colours, each of 1, 3 or 4 numbers',
    )
  return clusters


def _is_table(value: Any) -> bool:
  if not isinstance(value, list) or not value:
    return False
  return all(
    isinstance(row, list)
    and len(row) == len(value[0]) > 0
    and all(map(typed.is_number, row))
    for row in value
  )


_TABLE = typed.Kind('a list of colours, each a list of numbers', _is_table)


def unsupported(model: igpt.IGPT) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  attention, mlp = model.block.attention, model.block.mlp
  return base.first_of(
    {
      'a classifier on the features of an iGPT': model.num_classes,
      'normalised queries and keys': attention.qk_norm,
      'a gated MLP': type(mlp) is not block.Mlp,
      'LayerScale': model.block.layer_scale is not None,
      'an iGPT with LayerNorm': not isinstance(model.norm, norms.RMSNorm),
      'queries, keys and values without biases': not attention.qkv_bias
      or not attention.key_bias,
    }
  )


def companions(
  model: igpt.IGPT,
  params: Mapping[str, Any],
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  names = {ours: theirs for theirs, ours in reversed(clip.GELUS.items())}
  attention, mlp = model.block.attention, model.block.mlp
  height, width = image_size
  config = {
    'model_type': MODEL_TYPE,
    'architectures': ['ImageGPTForCausalImageModeling'],
    'activation_function': names[mlp.gelu],
    'attn_pdrop': attention.dropout_rate,
    'embd_pdrop': model.dropout_rate,
    'resid_pdrop': model.dropout_rate,
    'layer_norm_epsilon': model.norm.epsilon,
    'n_embd': model.hidden_size,
    'n_head': attention.num_heads,
    'n_inner': mlp.hidden_dim,
    'n_layer': model.depth,
    'n_positions': height * width,
    'vocab_size': model.colours + 1,
    'scale_attn_weights': True,
    'scale_attn_by_inverse_layer_idx': False,
    'tie_word_embeddings': False,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }
  processor: dict[str, Any] = {
    'image_processor_type': 'ImageGPTImageProcessor',
    'do_resize': True,
    'size': {'height': height, 'width': width},
    'resample': 2,
    'do_normalize': True,
  }
  if 'clusters' in params:
    clusters = np.asarray(params['clusters'])
    mean, std = np.asarray(preprocess.mean), np.asarray(preprocess.std)
    if (mean != 0.5).any() or (std != 0.5).any():  # theirs are in [-1, 1]
      clusters = 2 * (clusters * std + mean) - 1
    processor['do_color_quantize'] = True
    processor['clusters'] = clusters.tolist()
  return {'config.json': config, 'preprocessor_config.json': processor}


def usage(directory: str) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  name = 'ImageGPTForCausalImageModeling'
  return 'transformers', (
    f'from transformers import AutoImageProcessor, {name}\n'
    f"model = {name}.from_pretrained('{directory}')\n"
    f"processor = AutoImageProcessor.from_pretrained('{directory}')"
  )


# Where transformers computes something else.
NOTES = [
  "transformers' image processor takes images of three channels: of others,"
  ' give the model the ids of colours'
]
