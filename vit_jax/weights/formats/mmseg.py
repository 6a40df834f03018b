"""Names of SETR in the checkpoints of mmsegmentation."""

from vit_jax.weights.formats import tables

# Of `models.setr.SETR`; the kinds of heads have parts of different names.
SETR = tables.arrays("""
decode/norm                   decode_head.norm               norm*
decode/convolutions_#         decode_head.up_convs.#.0       conv_bn*
decode/classifier/dense       decode_head.conv_seg           conv1x1*
auxiliary_#/norm              auxiliary_head.#.norm          norm*
auxiliary_#/convolutions_#    auxiliary_head.#.up_convs.#.0  conv_bn*
auxiliary_#/classifier/dense  auxiliary_head.#.conv_seg      conv1x1*
neck/norms_#                  neck.norm.#                    norm*
neck/inputs_#                 neck.mla.channel_proj.#        conv_bn*
neck/outputs_#                neck.mla.feat_extract.#        conv_bn*
decode/levels_#_#             decode_head.up_convs.#.#       conv_bn*
auxiliary_#/dense             auxiliary_head.#.conv_seg      conv1x1*
""")
TRUNK = tables.arrays("""
patch_embedding                patch_embed.projection             conv*
class_token                    cls_token
position_embedding             pos_embed
blocks_#/norm1                 layers.#.ln1                       norm*
blocks_#/attention/qkv/kernel  layers.#.attn.attn.in_proj_weight  dense
blocks_#/attention/qkv/bias    layers.#.attn.attn.in_proj_bias    flat
blocks_#/attention/out         layers.#.attn.attn.out_proj        dense2*
blocks_#/norm2                 layers.#.ln2                       norm*
blocks_#/mlp/up                layers.#.ffn.layers.0.0            dense*
blocks_#/mlp/down              layers.#.ffn.layers.1              dense*
norm                           ln1                                norm*
""")
