"""Addresses of the checkpoints that the authors published."""

from collections.abc import Mapping

_GOOGLE = 'gs://vit_models'

# Checkpoints pre-trained on ImageNet-21k: the ViT paper's, and for other sizes
# AugReg's (arXiv:2106.10270) with the best final_val in its index.csv.
# Mixer: arXiv:2105.01601. BiT-M: arXiv:1912.11370.
CHECKPOINTS: Mapping[str, str] = {
  'ViT-B/16': f'{_GOOGLE}/imagenet21k/ViT-B_16.npz',
  'ViT-B/32': f'{_GOOGLE}/imagenet21k/ViT-B_32.npz',
  'ViT-L/16': f'{_GOOGLE}/imagenet21k/ViT-L_16.npz',
  'ViT-L/32': f'{_GOOGLE}/imagenet21k/ViT-L_32.npz',
  'ViT-H/14': f'{_GOOGLE}/imagenet21k/ViT-H_14.npz',
  'R50+ViT-B/16': f'{_GOOGLE}/imagenet21k/R50+ViT-B_16.npz',
  'ViT-Ti/16': f'{_GOOGLE}/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'ViT-S/16': f'{_GOOGLE}/augreg/S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'ViT-S/32': f'{_GOOGLE}/augreg/S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'R+ViT-Ti/16': f'{_GOOGLE}/augreg/R_Ti_16-i21k-300ep-lr_0.001-aug_none'
  '-wd_0.03-do_0.0-sd_0.0.npz',
  'R26+ViT-S/32': f'{_GOOGLE}/augreg/R26_S_32-i21k-300ep-lr_0.001-aug_medium2'
  '-wd_0.03-do_0.0-sd_0.0.npz',
  'R50+ViT-L/32': f'{_GOOGLE}/augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium2'
  '-wd_0.1-do_0.0-sd_0.0.npz',
  'Mixer-B/16': 'gs://mixer_models/imagenet21k/Mixer-B_16.npz',
  'Mixer-L/16': 'gs://mixer_models/imagenet21k/Mixer-L_16.npz',
  **{
    f'BiT-{size}': f'gs://bit_models/BiT-M-{size}.npz'
    for size in ('R50x1', 'R50x3', 'R101x1', 'R101x3', 'R152x2', 'R152x4')
  },
}
