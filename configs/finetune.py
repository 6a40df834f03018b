r"""Any checkpoint, fine-tuned on any dataset.

  vit-jax train --config=finetune:MODEL,DATASET

MODEL is a published name (ViT-B/16, R50+ViT-B/16, Mixer-B/16, ...), a work
directory, an .npz, .safetensors or .pth file, a directory of Hugging Face or
timm, an address (https://, gs://) or hf:owner/name. DATASET is a TFDS name,
folder:PATH or digits. Of a folder without val and test, a fifth of train is
held out:

  vit-jax train --config=finetune:ViT-B/16,oxford_iiit_pet
  vit-jax train --config=finetune:runs/mine,folder:images \
      --config.data.image_size=224

The protocol is that of the ViT and AugReg papers. Try the learning rates 0.001,
0.003, 0.01 and 0.03 (--config.optim.learning_rate). The architecture, mean and
std come from the checkpoint. --config.optim.trainable='^head/' trains the head
only. docs/fine_tuning.md has results.
"""

import ml_collections

from vit_jax import data
from vit_jax.config import recipes


def get_config(arg: str = 'ViT-B/16,cifar10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Checkpoint and dataset, with a comma between.
  """
  model, dataset = recipes.model_and_dataset(arg, 'configs/finetune.py')
  size = 224 if model.startswith('Mixer-') else 384
  config = recipes.fine_tuning(model, dataset, image_size=size)
  if dataset.startswith('folder:'):
    data.hold_out(config)
  return config
