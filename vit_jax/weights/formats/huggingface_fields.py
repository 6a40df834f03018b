"""What the configs of transformers' classes of images share."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.fields import Entry
from vit_jax.weights.formats.format import Format

# Keys that not every table has, and that do not change the logits of a trained
# model: for generation, training, ...
UNREAD_KEYS: Mapping[str, typed.Kind | None] = dict.fromkeys(
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


def classes(text: str) -> dict[str, Any]:
  """Returns the attributes of `Format` that follow from a library's classes.

  A line of the text has a condition (`tables.holds`), or `-`, a `model_type`,
  and a class, in whose name a star is its purpose. Beside a classifier names of
  arrays begin with the type.
  """
  choose = tables.chosen(text)

  def chosen(values: Values) -> tuple[str, str]:
    name, architecture = (choose(values) or '').split()
    purpose = 'ForImageClassification' if values['num_classes'] else 'Model'
    return name, architecture.replace('*', purpose)

  def stored(values: Values, name: str) -> str:
    prefix = f'{chosen(values)[0]}.' if values['num_classes'] else ''
    return name if 'classifier.' in name else prefix + name

  return {
    'header': lambda values: header(*chosen(values)),
    'stored': stored,
  }


def activation(values: Values) -> str | None:
  """Returns transformers' name of the activation function of the MLPs."""
  is_gated = values.get('mlp') == 'swiglu'
  gelu = 'none' if is_gated else values.get('mlp.gelu')
  word: str | None = fields.first_word(ACTIVATIONS, gelu)
  return word


def is_masked(file: FileFacts) -> bool:
  """Whether a file has a mask token that means something."""
  is_used = file.config.get('use_mask_token', typed.TRUTH, True)
  return is_used and file.has('embeddings.mask_token')


def sizes(
  patch: str,
  layer: str,
  hidden: str,
  *,
  gated: str = '',
  epsilon: str = '1e-12',
  num_heads: str = 'heads()',
  gelu: str = 'exact',
  is_gate_said: bool = True,
  patch_kind: str = 'side',
  image_kind: str = 'side',
) -> tuple[Entry, ...]:
  """Returns the entries of a model's sizes, and of its layers.

  Args:
    patch: Name of the kernel of patches.
    layer: Name of a layer, with `#` for its number.
    hidden: The side that is the MLP's hidden size, of an array of a layer.
    gated: Columns of the entry that says whether MLPs are gated; '': never.
    epsilon: The epsilon of norms that a config leaves out.
    num_heads: The number of heads that a config leaves out.
    gelu: The GELU that a config leaves out.
    is_gate_said: Whether `hidden_act` is that of a gated MLP, too.
    patch_kind: Whether patches must be squares: 'side' or 'square'.
    image_kind: Whether images must be.
  """
  mlp = f'mlp {gated}' if gated else ''
  words = 'ACTIVATIONS check=gate()' if gated else 'GELUS'
  return fields.table(
    f"""
hidden_size         {patch}[0]        hidden_size          axes=4
patch_size          {patch}[2,3]      patch_size           {patch_kind}
depth               {layer}.[#]       num_hidden_layers
mlp_dim             {layer}.{hidden}  intermediate_size    axes=2
{mlp}
num_heads           -                 num_attention_heads! COUNT
                                      default={num_heads}
mlp.gelu            -                 hidden_act!          {words}
                                      default={gelu} write=activation()
layer_norm_epsilon  -                 layer_norm_eps!      POSITIVE
                                      default={epsilon}
>                   num_channels      image_channels
>                   image_size        image_size           {image_kind}
""",
    activation,
    heads=lambda file: base.num_heads(file.values),
    gate=fields.check_gate('hidden_act', is_gate_said),
    GELUS=GELUS,
    ACTIVATIONS=ACTIVATIONS,
  )


def stated_size(file: FileFacts) -> tuple[int, int] | None:
  """Returns (height, width) of images that a config says, or None."""
  size = file.config.get('image_size', typed.SIZE)
  return preprocessing.pair(size) if size else None


def is_type(file: FileFacts, types: Sequence[str]) -> bool:
  """Whether a config has one of some `model_type`s."""
  return file.config.get('model_type', typed.TEXT) in types


def class_format(
  types: Sequence[str],
  title: str,
  arrays: list[tables.Rule],
  fields: tuple[Entry, ...],
  *,
  resize: str | Callable[[FileFacts], str] = 'bicubic',
  unread_keys: Mapping[str, typed.Kind | None] | None = None,
  **more: Any,
) -> Format:
  """Returns the format of a class of transformers with some `model_type`s.

  The others, and `more`, are attributes of `Format`.
  """
  attributes: dict[str, Any] = {
    'family': vit.ViT,
    'matches': lambda file: is_type(file, types),
    'stated_size': stated_size,
    'preprocess': preprocess,
    'resize': resize if callable(resize) else lambda file: resize,
    **more,
  }
  return Format(
    title=f"transformers' {title}",
    arrays=arrays,
    fields=fields,
    unread_keys={**UNREAD_KEYS, **(unread_keys or {})},
    **attributes,
  )


def preprocess(
  file: FileFacts, size: tuple[int, int], channels: int
) -> tuple[dict[str, Any], str]:
  """Returns the preprocessing of preprocessor_config.json, or the usual one."""
  kind = file.config.get('model_type', typed.TEXT, '')
  content, silent = preprocessing.from_transformers(
    file.preprocessor, kind, size, channels
  )
  # Without trailing placeholders (LABEL_7).
  names = [*file.config.labels('id2label', file.values['num_classes'])]
  while names and names[-1] == f'LABEL_{len(names) - 1}':
    names.pop()
  return {'classes': tuple(names), **content}, silent
