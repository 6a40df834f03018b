"""The keys `config.model`, with their defaults and meanings."""

import ml_collections
from ml_collections import config_dict


def model() -> ml_collections.ConfigDict:
  """Returns the keys of a model; None keeps the named model's value."""
  keys = ml_collections.ConfigDict()
  # Family, size and patch size; `vit_jax.list_models()` lists them. 'init_from'
  # is the model of the checkpoint at init_from.path.
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
  # 'plain', 'einsum', 'fused', 'xla' or 'cudnn'; None is what suits the
  # platform. 'xla' and 'cudnn' have no attention dropout; 'cudnn' needs a GPU
  # and train.dtype=bfloat16.
  keys.attention_implementation = config_dict.placeholder(str)
  # The keys below override fields of the named model; None keeps the model's
  # value. Not every model family has every field. models/spec.py,
  # models/flat.py, models/mixer.py and models/resnet.py explain them.
  # Parts by name, in place of what other keys describe: 'parallel',
  # 'attention(qk_norm=True)', 'experts(8)', 'learned + rope', or a class of
  # your own, as 'my_parts:WindowAttention(window=7)'. The page of parts lists
  # them with their options; so does `python -m vit_jax.summary --parts`.
  keys.block = config_dict.placeholder(str)
  keys.attention = config_dict.placeholder(str)
  keys.mlp = config_dict.placeholder(str)
  keys.positions = config_dict.placeholder(str)
  keys.patches = config_dict.placeholder(str)
  keys.hidden_size = config_dict.placeholder(int)  # width D of a token
  keys.mlp_dim = config_dict.placeholder(int)  # hidden width of an MLP
  keys.num_heads = config_dict.placeholder(int)  # attention heads of a layer
  # Heads of keys and values, fewer than those of queries; and the number of
  # first layers, and of last ones, that have as many all the same, 0.
  keys.key_heads = config_dict.placeholder(int)
  keys.full_key_layers = config_dict.placeholder(int)
  keys.depth = config_dict.placeholder(int)  # number of layers
  keys.patch_size = config_dict.placeholder(object)  # pixels: int or (h, w)
  # The head reads: 'token', the class token; 'gap', the mean of the patch
  # tokens; 'map', attention pooling; 'token+gap', the first two concatenated.
  keys.pool = config_dict.placeholder(str)
  # 'learned'; 'sincos2d' (fixed, as big_vision's), 'sincos2d_mae',
  # 'sincos2d_moco'; or 'none'.
  keys.position_embedding = config_dict.placeholder(str)
  # 'factorized': learned positions of rows and of columns, added. How learned
  # positions are resized to images of their own grids: 'linear', 'bicubic',
  # 'plain' or 'corner' (linear without antialias); whether to a square around
  # the grid; and their grid, None: a square.
  keys.position_resize = config_dict.placeholder(str)
  keys.position_aspect = config_dict.placeholder(bool)
  keys.position_grid = config_dict.placeholder(tuple)
  # The tokens with a learned position: 'all'; 'class', the class token and the
  # patches; or 'patches'.
  keys.position_tokens = config_dict.placeholder(str)
  # A learned token before the patches, which the head may read.
  keys.class_token = config_dict.placeholder(bool)
  keys.distillation_token = config_dict.placeholder(bool)  # as in DeiT
  # Whether the distillation token has a head of its own.
  keys.distillation_head = config_dict.placeholder(bool)
  keys.registers = config_dict.placeholder(int)  # number of register tokens
  # Width of a dense layer with tanh before the head; 0: none.
  keys.pre_logits = config_dict.placeholder(int)
  # With 'gap': apply the last LayerNorm after the mean, not before it.
  keys.norm_after_pool = config_dict.placeholder(bool)
  keys.last_norm = config_dict.placeholder(bool)  # a norm after the last layer
  # With 'map': attend to tokens before the patches, too; its heads, None: those
  # of a layer; whether its query is projected; whether query, keys and values
  # have biases; and the width of its MLP, None: that of a layer, 0: no MLP.
  keys.map_prefix = config_dict.placeholder(bool)
  keys.map_heads = config_dict.placeholder(int)
  keys.map_query = config_dict.placeholder(bool)
  keys.map_bias = config_dict.placeholder(bool)
  keys.map_mlp_dim = config_dict.placeholder(int)
  # Initial scale of the residual branches (LayerScale). None: no LayerScale.
  keys.layer_scale = config_dict.placeholder(float)
  keys.layer_scale_mlp = config_dict.placeholder(bool)  # False: attention alone
  keys.qk_norm = config_dict.placeholder(bool)  # normalize queries and keys
  # Biases of queries, keys and values.
  keys.qkv_bias = config_dict.placeholder(bool)
  # With qkv_bias: whether keys have one, too.
  keys.key_bias = config_dict.placeholder(bool)
  # Of the layer after the heads and of MLPs.
  keys.dense_bias = config_dict.placeholder(bool)
  # A norm after the heads, as in EVA-02 and BEiT-3; and norms that follow
  # attention and MLP, as in Swin V2, instead of preceding them.
  keys.attention_norm = config_dict.placeholder(bool)
  keys.post_norm = config_dict.placeholder(bool)
  # The MLP beside attention, as in ViT-22B, instead of after it; and how many
  # attentions are beside each other, and then MLPs: 1.
  keys.parallel_mlp = config_dict.placeholder(bool)
  keys.branches = config_dict.placeholder(int)
  # Each head's weights are the difference of two softmaxes.
  keys.differential = config_dict.placeholder(bool)
  keys.causal = config_dict.placeholder(bool)  # attend to earlier tokens only
  # A learned bias of attention for each distance between patches, as BEiT's:
  # 'shared' by all layers, one in each of the 'layers', or 'none'. An MLP that
  # computes it, as Swin V2's: 'shared_mlp' or 'layers_mlp'; its width, 128.
  keys.relative_positions = config_dict.placeholder(str)
  keys.relative_mlp_dim = config_dict.placeholder(int)
  # 'layer' or 'rms' (scale only), or a part.
  keys.norm = config_dict.placeholder(str)
  # Rotary position embeddings: 'dinov3', 'eva02', 'rope_vit', 'rope_vit_mixed'
  # (learned) or 'none'; the base of their frequencies, 100 (EVA-02: 10_000,
  # mixed: 10); the grid (h, w) to which 'eva02' and 'rope_vit' scale the
  # patches' indices, None: not scaled; and what is added to these before, 0.
  keys.rotary = config_dict.placeholder(str)
  keys.rotary_base = config_dict.placeholder(float)
  keys.rotary_grid = config_dict.placeholder(tuple)
  keys.rotary_offset = config_dict.placeholder(float)
  # A learned token for masked patches, for objectives that mask.
  keys.mask_token = config_dict.placeholder(bool)
  keys.gated_mlp = config_dict.placeholder(bool)  # SwiGLU
  # Its gate: 'silu', or 'sigmoid' (GLU) or 'gelu' (GEGLU).
  keys.gate = config_dict.placeholder(str)
  # A norm after the MLP's activation function, as in EVA-02.
  keys.mlp_norm = config_dict.placeholder(bool)
  # Experts in the place of an MLP, 0: none. Tokens go to their best experts
  # ('top_experts', V-MoE), experts take their best tokens ('top_tokens'), or
  # slots mix all tokens ('soft', Soft MoE). Layers with experts, from 1: every
  # second one, or with 'soft' the second half.
  keys.experts = config_dict.placeholder(int)
  keys.routing = config_dict.placeholder(str)
  keys.expert_layers = config_dict.placeholder(tuple)
  # 'soft': slots of an expert; 0: of all experts as many as tokens.
  keys.expert_slots = config_dict.placeholder(int)
  # 'top_experts': how many a token goes to, 2; places of all experts as a share
  # of those that tokens need, 1.05; whether tokens with larger gates get theirs
  # first; noise of the router in training, 1, over the number of experts; and
  # the weight of the balancing loss, 0.01.
  keys.experts_per_token = config_dict.placeholder(int)
  keys.expert_capacity = config_dict.placeholder(float)
  keys.expert_priority = config_dict.placeholder(bool)
  keys.expert_noise = config_dict.placeholder(float)
  keys.expert_loss = config_dict.placeholder(float)
  keys.patch_bias = config_dict.placeholder(bool)  # of the patch embedding
  # Images lose what is behind their last whole patch; else a patch must divide
  # them.
  keys.crop_to_patches = config_dict.placeholder(bool)
  keys.patch_norm = config_dict.placeholder(bool)  # a norm after it
  # A LayerNorm before the layers, as in CLIP.
  keys.pre_norm = config_dict.placeholder(bool)
  # 'exact', or an approximation: 'tanh', 'sigmoid' (iGPT, CLIP).
  keys.gelu = config_dict.placeholder(str)
  keys.layer_norm_epsilon = config_dict.placeholder(float)  # 1e-6
  keys.dropout_rate = config_dict.placeholder(float)  # 0
  keys.attention_dropout_rate = config_dict.placeholder(float)  # 0
  # Share of the patches that training leaves out at random; 0.
  keys.patch_dropout = config_dict.placeholder(float)
  # Token merging (ToMe): how many tokens an average layer merges into others,
  # 0; whether the first layers merge more (False); whether attention counts a
  # token as often as it stands for patches (True).
  keys.merge = config_dict.placeholder(int)
  keys.merge_decreasing = config_dict.placeholder(bool)
  keys.merge_proportional = config_dict.placeholder(bool)
  # Probability that the last layer is skipped: 0. The probability grows
  # linearly with depth from 0 at the first layer; with
  # stochastic_depth_uniform it is the same in all layers.
  keys.stochastic_depth = config_dict.placeholder(float)
  keys.stochastic_depth_uniform = config_dict.placeholder(bool)
  # Initial weights: 'vit' (the paper's code), 'mixer', 'lecun', 'deit',
  # 'igpt', 'moco' or 'mimetic' (attention as in pre-trained models).
  keys.initializers = config_dict.placeholder(str)
  # 'batch': normalise what the head reads by a BatchNorm, for a linear probe.
  keys.head_norm = config_dict.placeholder(str)
  keys.head_bias = config_dict.placeholder(float)  # its initial value: 0
  # Hybrids: blocks of each stage of the ResNet.
  keys.resnet_stages = config_dict.placeholder(tuple)
  keys.resnet_width = config_dict.placeholder(int)  # hybrids: channels
  # Mixer: width of the token MLP.
  keys.tokens_mlp_dim = config_dict.placeholder(int)
  keys.stages = config_dict.placeholder(tuple)  # BiT: blocks of each stage
  keys.width_factor = config_dict.placeholder(int)  # BiT: times channels
  keys.stem_width = config_dict.placeholder(int)  # BiT: channels of the stem
  keys.channels = config_dict.placeholder(tuple)  # BiT: channels of each stage
  keys.num_groups = config_dict.placeholder(int)  # BiT: groups of GroupNorm
  keys.zero_padded_pool = config_dict.placeholder(bool)  # BiT: pad by zeros
  # iGPT: number of colours of a pixel, 512.
  keys.colours = config_dict.placeholder(int)
  # iGPT: whether the model has the clusters of colours that map images to ids.
  keys.has_clusters = config_dict.placeholder(bool)
  # iGPT: layer that gives the features, from 0; None: the middle one.
  keys.feature_layer = config_dict.placeholder(int)
  return keys
