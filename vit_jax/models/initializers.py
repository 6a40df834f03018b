"""Parameter initializers, as in the code of the papers."""

from collections.abc import Callable
import dataclasses

from flax import linen as nn
import jax

from vit_jax.models import fields

Initializer = Callable[..., jax.Array]

MIMETIC = 'mimetic'


@dataclasses.dataclass(frozen=True)
class Initializers:
  """Initializers of each kind of parameter."""

  kernel: Initializer
  patch: Initializer
  mlp_bias: Initializer
  class_token: Initializer
  position: Initializer
  head: Initializer


INITIALIZERS = {
  # google-research/vision_transformer, the code of the ViT paper.
  'vit': Initializers(
    kernel=nn.initializers.xavier_uniform(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.normal(1e-6),
    class_token=nn.initializers.zeros,
    position=nn.initializers.normal(0.02),
    head=nn.initializers.zeros,
  ),
  # MLP-Mixer in the same code: Flax's defaults, and a head of zeros.
  'mixer': Initializers(
    kernel=nn.initializers.lecun_normal(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.zeros,
    position=nn.initializers.normal(0.02),
    head=nn.initializers.zeros,
  ),
  # Flax's defaults; learned tokens and positions start with unit variance.
  'lecun': Initializers(
    kernel=nn.initializers.lecun_normal(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(1.0),
    position=nn.initializers.normal(1.0),
    head=nn.initializers.lecun_normal(),
  ),
  # DeiT's code (arXiv:2012.12877); the patch embedding has the default
  # initialization of PyTorch's convolutions.
  'deit': Initializers(
    kernel=nn.initializers.truncated_normal(0.02),
    patch=nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.truncated_normal(0.02),
    position=nn.initializers.truncated_normal(0.02),
    head=nn.initializers.truncated_normal(0.02),
  ),
  # GPT-2's code; iGPT starts the matrices that make logits at zeros (appendix
  # C of Generative Pretraining from Pixels).
  'igpt': Initializers(
    kernel=nn.initializers.normal(0.02),
    patch=nn.initializers.normal(0.02),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(0.02),
    position=nn.initializers.normal(0.01),
    head=nn.initializers.zeros,
  ),
  # MoCo v3's code (arXiv:2104.02057); the head is that of its linear probe.
  'moco': Initializers(
    kernel=nn.initializers.xavier_uniform(),
    patch=nn.initializers.xavier_uniform(in_axis=(0, 1, 2), out_axis=3),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(1e-6),
    position=nn.initializers.normal(0.02),
    head=nn.initializers.normal(0.01),
  ),
}
# As 'vit'; `mimetic.mimetic` then replaces the kernels of attention in a trunk.
# Decoders and text towers keep these.
INITIALIZERS[MIMETIC] = INITIALIZERS['vit']

FIELD = fields.Field(fields.Kind.TRAINING, choices=tuple(INITIALIZERS))
