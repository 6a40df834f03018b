r"""The first ViTs, trained from scratch as in their paper.

  vit-jax train --config=vit_paper_i1k:B/16
  vit-jax train --config=vit_paper_i1k:B/16,i21k \
      --config.data.name=folder:/path/to/imagenet21k

The first command trains on ImageNet-1k. The second trains on ImageNet-21k,
which TFDS does not have. The variant is B/16, B/32, L/16 or L/32. vit_i1k.py
and vit_i21k.py are better recipes.

Source: "An Image is Worth 16x16 Words", arXiv:2010.11929, appendix B.1 and
table 3. Its authors report (google-research/vision_transformer, issue 62) after
300 epochs of ImageNet-1k at 224 px: B/16 74.79%, B/32 69.19%, L/16 72.59%, L/32
66.90%. After 90 epochs of ImageNet-21k, on its classes: B/16 47.88%, B/32
44.04%, L/16 49.90%, L/32 45.42%. Not run by us.

As in that repository (issues 2 and 89), the loss is sigmoid cross-entropy, the
head has a hidden layer, and its bias starts at -10. On ImageNet-21k the
learning rate ends at 1e-5, and gradients are not clipped. To save memory:
--config.train.accumulation=8.
"""

import ml_collections

from vit_jax.config import recipes

_VARIANTS = ('B/16', 'B/32', 'L/16', 'L/32')


def get_config(arg: str = 'B/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT, or VARIANT,i21k.
  """
  variant, data = recipes.split(arg, 'VARIANT,i21k')
  recipes.choose(variant, _VARIANTS, 'a variant')
  recipes.choose(data, ('', 'i1k', 'i21k'), 'a dataset')
  is_large = data == 'i21k'
  config = recipes.imagenet21k() if is_large else recipes.imagenet()
  config.model.name = recipes.vit_name(variant)
  config.model.dropout_rate = 0.1
  width = recipes.hidden_size(variant)
  config.model.head = f'linear(pre_logits={width}, bias=-10.0)'
  config.objective.loss = 'sigmoid'

  config.train.batch_size = 4096
  if is_large:
    config.train.duration = '90 epochs'
    config.optim.learning_rate = 1e-3
    config.optim.schedule = 'linear(final_factor=1e-2)'
    config.optim.weight_decay = 0.03
    config.optim.clip_norm = 0.0
  else:
    config.train.duration = '300 epochs'
    config.optim.learning_rate = 3e-3
    config.optim.schedule = 'cosine'
    config.optim.weight_decay = 0.3
    config.optim.clip_norm = 1.0
  return config
