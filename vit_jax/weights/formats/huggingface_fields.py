"""What the configs of transformers' classes of images share."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import count
from vit_jax.weights.formats.fields import Entry
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import show

Values = Mapping[str, Any]

# Keys that not every table has, and that do not change the logits of a trained
# model: for generation, training, ...
KNOWN: Mapping[str, typed.Kind | None] = dict.fromkeys(
  """
  add_fpn apply_layernorm attention_dropout attention_probs_dropout_prob
  auxiliary_channels auxiliary_concat_input auxiliary_loss_weight
  auxiliary_num_convs chunk_size_feed_forward drop_path_rate dropout
  encoder_stride finetuning_task gradient_checkpointing hidden_dropout_prob
  id2label initializer_factor initializer_range interpolate_antialias
  interpolate_offset label2id mlp_ratio model_type num_labels num_patches
  out_features out_indices pool_scales pooler_output_size pos_embed_jitter
  pos_embed_rescale pos_embed_shift problem_type projection_dim
  reshape_hidden_states segmentation_indices semantic_loss_ignore_index
  stage_names task_specific_params use_auxiliary_head use_head use_mask_token
  vision_use_head vocab_size

  decoder_hidden_size decoder_intermediate_size decoder_num_attention_heads
  decoder_num_hidden_layers mask_ratio norm_pix_loss

  _attn_implementation_autoset _commit_hash _name_or_path architectures
  attn_implementation auto_map dtype output_attentions output_hidden_states
  return_dict tf_legacy_loss torch_dtype torchscript transformers_version
  use_bfloat16 use_cache use_return_dict

  bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id
  diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
  eos_token_id exponential_decay_length_penalty forced_bos_token_id
  forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size
  num_beam_groups num_beams num_return_sequences output_scores pad_token_id
  prefix remove_invalid_values repetition_penalty return_dict_in_generate
  sep_token_id suppress_tokens temperature tie_encoder_decoder
  tie_word_embeddings tokenizer_class top_k top_p typical_p
  """.split()
)
GELUS = {
  'gelu': 'exact',
  'gelu_pytorch_tanh': 'tanh',
  'quick_gelu': 'sigmoid',
  'gelu_new': 'tanh',
  'gelu_fast': 'tanh',
}
# The gate of an MLP is always a SiLU.
ACTIVATIONS = {**GELUS, 'silu': 'none'}


def header(model_type: str, architecture: str) -> dict[str, Any]:
  """Returns what a config says of a class."""
  return {
    'model_type': model_type,
    'architectures': [architecture],
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }


def activation(values: Values) -> str | None:
  """Returns transformers' name of the activation function of the MLPs."""
  words: dict[Any, str] = {
    ours: word for word, ours in reversed(ACTIVATIONS.items())
  }
  is_gated = values.get('mlp') == 'swiglu'
  return words.get('none' if is_gated else values.get('mlp.gelu'))


def one_number(sides: tuple[int, ...]) -> int | list[int]:
  """Returns (height, width) as a config has it: one number for a square."""
  return sides[0] if len({*sides}) == 1 else [*sides]


def heads(file: Seen) -> int:
  """Returns the number of heads of a file whose config does not say it."""
  return base.num_heads(file.values)


def num_heads(default: Any) -> Entry:
  """Returns the entry of the number of heads."""
  return said(
    'num_heads',
    'num_attention_heads',
    default,
    kind=typed.COUNT,
    is_stated=True,
  )


def gelu(default: str, check: Callable[[Seen], None] | None = None) -> Entry:
  """Returns the entry of the activation function.

  Args:
    default: The GELU that a config leaves out.
    check: As of `Entry`, of a class that may have gated MLPs.
  """
  return said(
    'mlp.gelu',
    'hidden_act',
    default,
    ACTIVATIONS if check else GELUS,
    write=activation,
    check=check,
    is_stated=True,
  )


def sizes(
  projection: str,
  layer: str,
  mlp: Entry,
  heads_unsaid: Any = heads,
  gelu_unsaid: str = 'exact',
  check: Callable[[Seen], None] | None = None,
) -> tuple[Entry, ...]:
  """Returns the entries of a model's sizes, and of its activation function.

  Args:
    projection: Name of the kernel of patches.
    layer: Name of a layer, with `#` for its number.
    mlp: The entry of `mlp_dim`.
    heads_unsaid: The number of heads that a config leaves out, or what returns
      it.
    gelu_unsaid: The GELU that a config leaves out.
    check: As of `gelu`.
  """
  return (
    shape('hidden_size', projection, 0, 'hidden_size', axes=4),
    shape(
      'patch_size',
      projection,
      (2, 3),
      'patch_size',
      write=lambda values: one_number(values['patch_size']),
    ),
    count('depth', f'{layer}.', 'num_hidden_layers'),
    mlp,
    num_heads(heads_unsaid),
    gelu(gelu_unsaid, check),
    told('num_channels', lambda values: values['image_channels']),
    told('image_size', lambda values: one_number(values['image_size'])),
  )


def epsilon(default: float | Callable[[Seen], float]) -> Entry:
  """Returns the entry of the epsilon of norms, with a class's default."""
  return said(
    'layer_norm_epsilon',
    'layer_norm_eps',
    default,
    kind=typed.POSITIVE,
    is_stated=True,
  )


def is_masked(file: Seen) -> bool:
  """Whether a file has a mask token that means something."""
  is_used = file.config.get('use_mask_token', typed.TRUTH, True)
  return is_used and file.has('embeddings.mask_token')


MASK_TOKEN = seen('mask_token', is_masked, 'use_mask_token', is_stated=True)


def oblong(values: Values, *names: str) -> str | None:
  """Returns the first of some sizes that is no square; None: all are."""
  sizes = ((name, values[name]) for name in names)
  return next((show(*x) for x in sizes if x[1][0] != x[1][1]), None)


def stated_size(file: Seen) -> tuple[int, int] | None:
  """Returns (height, width) of images that a config says, or None."""
  size = file.config.get('image_size', typed.SIZE)
  return preprocessing.pair(size) if size else None


def image_size(file: Seen, positions: str = '') -> tuple[int, int]:
  """Returns (height, width) that a file's positions are for.

  Args:
    file: What is known of it.
    positions: Name of the array of learned ones; of the tokens before the
      patches, class and distillation token have one.
  """
  tokens = None
  if positions and file.has(positions):
    before = ('class_token', 'distillation_token')
    tokens = file.size(positions, -2)
    tokens -= sum(bool(file.values.get(name)) for name in before)
  patch = file.values['patch_size']
  return base.image_size(tokens, patch, file.hints, stated_size(file))


def is_type(file: Seen, types: Sequence[str]) -> bool:
  """Whether a config has one of some `model_type`s."""
  return file.config.get('model_type', typed.TEXT) in types


def vit_format(
  types: Sequence[str],
  title: str,
  arrays: list[tables.Rule],
  fields: tuple[Entry, ...],
  *,
  projection: str,
  positions: str = '',
  resize: str | Callable[[Seen], str] = 'bicubic',
  known: Mapping[str, typed.Kind | None] | None = None,
  **more: Any,
) -> Format:
  """Returns the format of a class of transformers.

  Args:
    types: Its `model_type`s.
    title: The class.
    arrays: As of `Format`.
    fields: As of `Format`.
    projection: Name of the kernel of patches.
    positions: Name of the array of learned positions.
    resize: How the class resizes them, or what returns it.
    known: Types of further keys.
    **more: Further attributes, or others in place of these.
  """
  usual: dict[str, Any] = {
    'matches': lambda file: is_type(file, types),
    'image_size': lambda file: image_size(file, positions),
    'channels': lambda file: file.size(projection, 1),
    'preprocess': preprocess,
    'resize': resize if callable(resize) else lambda file: resize,
  }
  return Format(
    title=f"transformers' {title}",
    family=vit.ViT,
    arrays=arrays,
    fields=fields,
    known={**KNOWN, **(known or {})},
    **{**usual, **more},
  )


# Classes under other names, with the same preprocessing.
_SAME = {
  'vit_msn': 'vit',
  'data2vec-vision': 'beit',
  **{f'{name}_vision_model': name for name in ('clip', 'siglip', 'siglip2')},
}


def preprocess(
  file: Seen, size: tuple[int, int], channels: int
) -> tuple[dict[str, Any], str]:
  """Returns the preprocessing of preprocessor_config.json, or the usual one."""
  name = file.config.get('model_type', typed.TEXT, '')
  content, silent = preprocessing.of_transformers(
    file.hints.preprocessor, _SAME.get(name, name), size, channels
  )
  return {'classes': labels(file), **content}, silent


def labels(file: Seen) -> tuple[str, ...]:
  """Returns the names in id2label, without trailing placeholders (LABEL_7)."""
  names = [*file.config.labels('id2label', file.values['num_classes'])]
  while names and names[-1] == f'LABEL_{len(names) - 1}':
    names.pop()
  return tuple(names)
