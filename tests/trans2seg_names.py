"""Names of Trans2Seg's transformer and head in its authors' checkpoints."""

from vit_jax.weights.formats import tables

_SEPARABLE = tables.arrays("""
depthwise_#/conv/kernel  lay#.block.depthwise.weight  conv         +1
depthwise_#/norm         lay#.block.bn_depth          batch_norm*  +1
pointwise_#/conv/kernel  lay#.block.pointwise.weight  conv         +1
pointwise_#/norm         lay#.block.bn_point          batch_norm*  +1
""")
_TRANSFORMER = tables.arrays("""
embedding                      hybrid_embed.proj                dense*
class_token                    cls_token
position_embedding             pos_embed
class_prototypes               cls_embed
blocks_#/norm1                 blocks_encoder.#.norm1           norm*
blocks_#/attention/qkv         blocks_encoder.#.attn.qkv        dense*
blocks_#/attention/out         blocks_encoder.#.attn.proj       dense2*
blocks_#/norm2                 blocks_encoder.#.norm2           norm*
blocks_#/mlp/up                blocks_encoder.#.mlp.fc1         dense*
blocks_#/mlp/down              blocks_encoder.#.mlp.fc2         dense*
norm                           norm                             norm*
decoder_#/norm_classes         blocks_decoder.#.norm1_clsembed  norm*
decoder_#/norm_places          blocks_decoder.#.norm1           norm*
decoder_#/attention/query      blocks_decoder.#.attn.fc_q       dense*
decoder_#/attention/key_value  blocks_decoder.#.attn.fc_kv      dense*
decoder_#/attention/out        blocks_decoder.#.attn.proj       dense*
decoder_#/norm_query           blocks_decoder.#.norm2           norm*
decoder_#/mlp_query/up         blocks_decoder.#.mlp.fc1         dense*
decoder_#/mlp_query/down       blocks_decoder.#.mlp.fc2         dense*
decoder_#/norm_features        blocks_decoder.#.norm3           norm*
decoder_#/mlp_features/up      blocks_decoder.#.mlp2.fc1        dense*
decoder_#/mlp_features/down    blocks_decoder.#.mlp2.fc2        dense*
decoder_#/norm_masks           blocks_decoder.#.norm4           norm*
decoder_#/mlp_masks/up         blocks_decoder.#.mlp3.fc1        dense*
decoder_#/mlp_masks/down       blocks_decoder.#.mlp3.fc2        dense*
""")
# Of `models.trans2seg.Trans2Seg`.
RULES = [
  *tables.below(_TRANSFORMER, '', 'transformer.vit.'),
  *_SEPARABLE,
  *tables.arrays("""
fine              conv_c1  conv_bn*
classifier/dense  pred     conv1x1*
"""),
]
