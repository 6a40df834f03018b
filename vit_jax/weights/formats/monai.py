"""Names of UNETR in the checkpoints of MONAI."""

import numpy as np

from vit_jax.weights.formats import tables

# Torch's transposed convolutions are [in, out, ...].
_TRANSPOSED = tables.Layout(
  lambda a, _: np.moveaxis(a[0], (0, 1), (-2, -1)),
  lambda a: [np.moveaxis(a, (-2, -1), (0, 1))],
)
# A dense layer as a convolution of size 1; the file says of how many axes.
_POINTS = tables.Layout(
  lambda a, shape: a[0].reshape(shape[::-1]).T,
  lambda a: [a.T[:, :, None, None, None]],
)
# MONAI's blocks have a norm for cross-attention that UNETR does not use.
IGNORED = r'(vit\.)?blocks\.\d+\.(norm_cross_attn|cross_attn)\..*'

# Of a trunk, `models.vit.ViT`, behind the prefix `vit.`.
TRUNK = tables.arrays("""
patch_embedding         patch_embedding.patch_embeddings    conv*
position_embedding      patch_embedding.position_embeddings
blocks_#/norm1          blocks.#.norm1                      norm*
blocks_#/attention/qkv  blocks.#.attn.qkv                   dense*
blocks_#/attention/out  blocks.#.attn.out_proj              dense2*
blocks_#/norm2          blocks.#.norm2                      norm*
blocks_#/mlp/up         blocks.#.mlp.linear1                dense*
blocks_#/mlp/down       blocks.#.mlp.linear2                dense*
norm                    norm                                norm*
""")
_UNIT = tables.arrays("""
conv1/kernel          conv1.conv.weight  conv
conv2/kernel          conv2.conv.weight  conv
conv_shortcut/kernel  conv3.conv.weight  conv
""")
# Of the decoder, `models.unetr.UNETR`.
DECODER = [
  *tables.below(_UNIT, 'encoder1/', 'encoder1.layer.'),
  *tables.below(_UNIT, 'encoder#/unit_#/', 'encoder#.blocks.#.1.'),
  *tables.below(_UNIT, 'decoder#/unit/', 'decoder#.conv_block.'),
  *tables.arrays(
    """
encoder#/first/kernel      encoder#.transp_conv_init.conv.weight  transposed
encoder#/doubled_#/kernel  encoder#.blocks.#.0.conv.weight        transposed
decoder#/doubled/kernel    decoder#.transp_conv.conv.weight       transposed
classifier/dense/kernel    out.conv.conv.weight                   points
classifier/dense/bias      out.conv.conv.bias
""",
    transposed=_TRANSPOSED,
    points=_POINTS,
  ),
]
