"""The keys `config.model`, with their defaults and meanings."""

import ml_collections
from ml_collections import config_dict


def model() -> ml_collections.ConfigDict:
  """Returns the keys of a model; None keeps the named model's value."""
  keys = ml_collections.ConfigDict()
  # Family, size and patch size; `vit_jax.list_models()` lists them. Options of
  # a family that is no ViT follow in brackets, as 'iGPT-S(colours=64)'.
  # 'init_from' is the model of the checkpoint at init_from.path.
  keys.name = 'ViT-S/16'
  keys.num_classes = config_dict.placeholder(int)  # None: the data's classes
  # Compile one layer and run it `depth` times, which compiles faster.
  keys.scan = False
  # Which values the backward pass recomputes, to save memory: 'none';
  # 'activations', those within the MLP's activation function, and its dropout;
  # 'products', all but the results of dense layers and of attention; 'full'; or
  # the name of a policy of jax.checkpoint_policies. 'auto' is one of these by
  # the platform.
  keys.remat = 'auto'
  # How attention is computed: 'plain', 'einsum', 'fused', 'xla' or 'cudnn';
  # None is what suits the platform. 'xla' and 'cudnn' have no attention
  # dropout; 'cudnn' needs a GPU and train.dtype=bfloat16.
  keys.attention_implementation = config_dict.placeholder(str)
  # The keys below override the named model; None keeps its value. Not every
  # family has every key.
  keys.hidden_size = config_dict.placeholder(int)  # width D of a token
  keys.mlp_dim = config_dict.placeholder(int)  # hidden width of an MLP
  keys.num_heads = config_dict.placeholder(int)  # attention heads of a layer
  keys.depth = config_dict.placeholder(int)  # number of layers
  keys.patch_size = config_dict.placeholder(object)  # pixels: int or (h, w)
  # Parts: a name, with options that differ from their defaults, as
  # 'attention(qk_norm=True)', or a class of your own, as
  # 'my_parts:WindowAttention(window=7)'. An option that is not set takes the
  # value of the key of its name, as num_heads. The page of parts lists them
  # with their options; so does `python -m vit_jax.summary --parts`.
  # Patch embedding: 'patches', 'normed', or 'hybrid', after a ResNet.
  keys.patches = config_dict.placeholder(str)
  # Positions, of which several may be added: 'learned', 'factorized',
  # 'sincos2d', 'rope', 'relative_bias', 'relative_mlp_bias', as
  # 'learned + rope'; or 'none'.
  keys.positions = config_dict.placeholder(str)
  # A layer: 'block', 'parallel', 'branches', 'post_norm', 'merging'.
  keys.block = config_dict.placeholder(str)
  # Attention: 'attention', 'grouped', 'differential'.
  keys.attention = config_dict.placeholder(str)
  # What follows attention: 'mlp', 'swiglu', 'glu', 'geglu', 'experts'.
  keys.mlp = config_dict.placeholder(str)
  keys.norm = config_dict.placeholder(str)  # 'layer_norm' or 'rms_norm'
  # What the head reads: 'token', the class token; 'mean', that of the patches;
  # 'token_and_mean'; or 'map', attention pooling.
  keys.pool = config_dict.placeholder(str)
  # The head: 'linear', with options as pre_logits, a layer before it, and bias,
  # its initial value.
  keys.head = config_dict.placeholder(str)
  keys.last_norm = config_dict.placeholder(bool)  # a norm after the last layer
  # A norm before the layers, as in CLIP.
  keys.pre_norm = config_dict.placeholder(bool)
  # A learned token before the patches, which the head may read.
  keys.class_token = config_dict.placeholder(bool)
  keys.distillation_token = config_dict.placeholder(bool)  # as in DeiT
  keys.registers = config_dict.placeholder(int)  # number of register tokens
  # A learned token for masked patches, for objectives that mask.
  keys.mask_token = config_dict.placeholder(bool)
  keys.dropout_rate = config_dict.placeholder(float)  # 0
  keys.attention_dropout_rate = config_dict.placeholder(float)  # 0
  # Probability that the last layer is skipped: 0. It grows linearly with depth
  # from 0 at the first layer.
  keys.stochastic_depth = config_dict.placeholder(float)
  # Share of the patches that training leaves out at random; 0.
  keys.patch_dropout = config_dict.placeholder(float)
  keys.layer_norm_epsilon = config_dict.placeholder(float)  # 1e-6
  # Initial weights: 'vit' (the paper's code), 'mixer', 'lecun', 'deit',
  # 'igpt', 'moco' or 'mimetic' (attention as in pre-trained models).
  keys.initializers = config_dict.placeholder(str)
  return keys
