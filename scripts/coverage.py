"""Which ViTs of timm and transformers `vit_jax.load` reads: a Markdown table.

  python scripts/coverage.py --timm --transformers >coverage.md

Each model is made with random weights and one or two layers where its class
takes a number of layers, so that few need more than some hundred megabytes; one
is in memory at a time. It is written as a file and read by `vit_jax.load`; its
outputs for one random image are compared. A model agrees if no output differs
by more than 1e-4 of the largest one. Otherwise the table has the reason.

Of timm, the models are those of the modules with isotropic ViTs in the version
that is installed; of transformers, the image models of `_CLASSES`.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
import functools
import gc
import importlib
import importlib.metadata
import json
import pathlib
import tempfile
from typing import Any

from absl import flags
from absl import logging
import numpy as np

from vit_jax import cli
from vit_jax.config import UserError

_TIMM = flags.DEFINE_boolean('timm', False, "Try timm's models.")
_TRANSFORMERS = flags.DEFINE_boolean(
  'transformers', False, "Try transformers' models."
)
_ONLY = flags.DEFINE_string('only', '', 'Part of the names to try; all.')
_AGREES = 'agrees'
_TOLERANCE = 1e-4
_CLASSES_OF_HEAD = 3

# timm's modules whose models are stacks of equal layers.
_MODULES = (
  *('vision_transformer', 'deit', 'beit', 'eva', 'naflexvit', 'mlp_mixer'),
  *('vision_transformer_hybrid', 'vision_transformer_relpos'),
  'vision_transformer_sam',
)
_SMALL = {
  'hidden_size': 48,
  'intermediate_size': 64,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'image_size': 32,
  'patch_size': 8,
  'num_labels': _CLASSES_OF_HEAD,
}
_TOWER = {k: x for k, x in _SMALL.items() if k != 'num_labels'}
_PATCHES = {
  **{k: x for k, x in _TOWER.items() if k != 'image_size'},
  'num_patches': 16,
}
_TEXT = {'vocab_size': 99, 'hidden_size': 48, 'intermediate_size': 64}
_BOTH = {'vision_config': _TOWER, 'text_config': _TEXT}
_DINO = {k: x for k, x in _SMALL.items() if k != 'intermediate_size'}
# transformers' classes, and fields of their configs.
_CLASSES: dict[str, dict[str, Any]] = {
  'ViTModel': _TOWER,
  'ViTForImageClassification': _SMALL,
  'DeiTModel': _TOWER,
  'DeiTForImageClassification': _SMALL,
  'DeiTForImageClassificationWithTeacher': _SMALL,
  'BeitModel': _TOWER,
  'BeitForImageClassification': _SMALL,
  'Data2VecVisionModel': _TOWER,
  'Data2VecVisionForImageClassification': _SMALL,
  'Dinov2Model': _DINO,
  'Dinov2ForImageClassification': _DINO,
  'Dinov2WithRegistersModel': _DINO,
  'Dinov2WithRegistersForImageClassification': _DINO,
  'DINOv3ViTModel': _TOWER,
  'IJepaModel': _TOWER,
  'IJepaForImageClassification': _SMALL,
  'ViTMAEModel': {**_TOWER, 'mask_ratio': 0.0},
  'ViTMSNModel': _TOWER,
  'ViTMSNForImageClassification': _SMALL,
  'YolosModel': {**_TOWER, 'image_size': [32, 32]},
  'CLIPVisionModel': _TOWER,
  'CLIPVisionModelWithProjection': _TOWER,
  'CLIPModel': _BOTH,
  'SiglipVisionModel': _TOWER,
  'SiglipModel': _BOTH,
  'Siglip2VisionModel': _PATCHES,
  'Aimv2VisionModel': _TOWER,
  'BitForImageClassification': {'num_labels': _CLASSES_OF_HEAD},
}


def main(argv: list[str]) -> int:
  """Prints the tables."""
  if argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}')
  asked = {
    'timm': (_TIMM.value, _of_timm),
    'transformers': (_TRANSFORMERS.value, _of_transformers),
  }
  if not any(wanted for wanted, _ in asked.values()):
    raise UserError('nothing to try: give --timm, --transformers or both')
  logging.set_verbosity(logging.ERROR)
  for library, (wanted, models) in asked.items():
    if wanted:
      _print_table(library, models)
  return 0


def _print_table(library: str, models: Callable[[], Iterator[Any]]) -> None:
  """Tries the models of a library, and prints how each one ended."""
  for name in ('torch', library):
    try:
      importlib.import_module(name)
    except (ImportError, RuntimeError) as e:
      reason = str(e).partition('\n')[0]
      raise UserError(
        f'{name} cannot be imported ({reason}): pip install {name}'
      ) from None
  counts: collections.Counter[bool] = collections.Counter()
  version = importlib.metadata.version(library)
  print(f'| {library} {version} | layers | load and outputs |\n|---|---|---|')
  for name, make in models():
    if _ONLY.value not in name:
      continue
    how, depth = _outcome(make)
    counts[how.startswith(_AGREES)] += 1
    print(f'| {name} | {depth or "all"} | {how} |', flush=True)
    gc.collect()
  print(f'\n{library}: {counts[True]} of {counts.total()} models agree.\n')


def _outcome(make: Callable[[pathlib.Path], Any]) -> tuple[str, int]:
  """Returns how a model ended, and its reduced number of layers, or 0."""
  with tempfile.TemporaryDirectory() as folder:
    try:
      answer, depth = make(pathlib.Path(folder))
    except Exception as e:  # of another library, for any of its models
      return f'cannot be made: {_line(e)}', 0
    try:
      return _compared(pathlib.Path(folder), answer), depth
    except UserError as e:
      return _line(e).replace(folder, '').removeprefix(': '), depth


def _line(error: Exception) -> str:
  text = ' '.join(str(error).split()).replace('|', '/')
  return text if len(text) <= 200 else f'{text[:200]}...'


def _compared(folder: pathlib.Path, answer: Callable[..., Any]) -> str:
  """Loads a model's file, and compares its outputs with its library's.

  Args:
    folder: Has the file.
    answer: Images [1, H, W, C] -> outputs by name; `features` are those of the
      model without a head.
  """
  import jax

  import vit_jax

  loaded = vit_jax.load(folder)
  preprocess = loaded.preprocess
  shape = (1, *preprocess.image_size, preprocess.channels)
  images = np.random.default_rng(0).standard_normal(shape, np.float32)
  headless = loaded.model.clone(num_classes=0)

  def outputs(params: Any) -> dict[str, Any]:
    variables = {'params': params}
    found: dict[str, Any] = {'features': headless.apply(variables, images)}
    if loaded.model.num_classes:
      found['logits'] = loaded.model.apply(variables, images)
    return found

  # Each runs once: most of the time would go to LLVM.
  options = {'xla_backend_optimization_level': 0}
  all_ours = jax.jit(outputs, compiler_options=options)(loaded.params)
  found = {}
  for name, wanted in answer(images).items():
    ours = np.asarray(all_ours[name])
    ours = ours.reshape(-1)[: wanted.size]
    error = np.abs(ours - wanted.reshape(-1)).max() / np.abs(wanted).max()
    found[name] = float(error)
  named = ', '.join(found)
  worst = max(found.values())
  if worst <= _TOLERANCE:
    return f'{_AGREES} ({named})'
  return f'differs by {worst:.1e} of the largest ({named})'


def _of_timm() -> Iterator[tuple[str, Callable[[pathlib.Path], Any]]]:
  """Yields timm's names, and functions that write a model's file."""
  import timm

  for module in _MODULES:
    for name in timm.list_models(module=module):
      yield name, functools.partial(_write_timm, name)


def _write_timm(name: str, folder: pathlib.Path) -> tuple[Any, int]:
  """Writes a model of timm; returns its answer and its number of layers."""
  import safetensors.torch
  import timm
  import torch

  model, arguments = None, {}
  for key in ('depth', 'num_blocks'):
    try:
      arguments = {key: 1}
      model = timm.create_model(name, num_classes=_CLASSES_OF_HEAD, **arguments)
      break
    except TypeError:  # this class has no such argument
      model = None
  if model is None:
    arguments = {}
    model = timm.create_model(name, num_classes=_CLASSES_OF_HEAD)
  _draw(model)
  weights = {k: x.contiguous() for k, x in model.state_dict().items()}
  safetensors.torch.save_file(weights, folder / 'model.safetensors')
  given = model.pretrained_cfg
  config = {
    'architecture': name,
    'num_classes': _CLASSES_OF_HEAD,
    'global_pool': getattr(model, 'global_pool', 'avg'),
    'model_args': arguments,
    'pretrained_cfg': {
      'input_size': list(given['input_size']),
      **{key: given[key] for key in ('mean', 'std', 'crop_pct')},
    },
  }
  (folder / 'config.json').write_text(json.dumps(config))

  def answer(images: np.ndarray) -> dict[str, np.ndarray]:
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    with torch.no_grad():
      tokens = model.forward_features(pixels)
      found = {'logits': model(pixels)}
      if not isinstance(tokens, dict):
        found['features'] = model.forward_head(tokens, pre_logits=True)
    return {key: x.numpy() for key, x in found.items()}

  return answer, len(arguments)


def _of_transformers() -> Iterator[tuple[str, Callable[[pathlib.Path], Any]]]:
  """Yields classes of transformers, and functions that write a file."""
  for name in _CLASSES:
    yield name, functools.partial(_write_transformers, name)


def _write_transformers(name: str, folder: pathlib.Path) -> tuple[Any, int]:
  """Writes a model of transformers; returns its answer, and its layers."""
  import torch
  import transformers

  module = getattr(transformers, name)
  model = module(module.config_class(**_CLASSES[name])).eval()
  _draw(model)
  model.save_pretrained(folder)

  def answer(images: np.ndarray) -> dict[str, np.ndarray]:
    tower = getattr(model, 'vision_model', model)
    arguments: dict[str, Any] = {
      'pixel_values': torch.tensor(np.moveaxis(images, -1, 1).copy())
    }
    if name.startswith('Siglip2'):
      arguments = _patches(images, _SMALL['patch_size'])
    if name.startswith('ViTMAE'):
      count = (images.shape[1] // _SMALL['patch_size']) ** 2
      arguments['noise'] = torch.arange(count)[None] / count
    with torch.no_grad():
      output = tower(**arguments)
    if 'logits' in output:
      return {'logits': output.logits.numpy()}
    pooled = output.get('pooler_output')
    if pooled is None:
      tokens = output.last_hidden_state
      pooled = tokens.mean(1) if 'IJepa' in name else tokens[:, 0]
    return {'features': pooled.numpy()}

  return answer, 0 if name.startswith('Bit') else 2


def _patches(images: np.ndarray, side: int) -> dict[str, Any]:
  """Returns images as patches, as SigLIP 2 takes them."""
  import torch

  b, height, width, c = images.shape
  h, w = height // side, width // side
  x = images.reshape(b, h, side, w, side, c).swapaxes(2, 3)
  return {
    'pixel_values': torch.tensor(x.reshape(b, h * w, -1)),
    'pixel_attention_mask': torch.ones(b, h * w, dtype=torch.int32),
    'spatial_shapes': torch.tensor([[h, w]] * b),
  }


def _draw(model: Any) -> None:
  """Draws all parameters, so that none is zero or one."""
  import torch

  torch.manual_seed(0)
  model.eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.05)


if __name__ == '__main__':
  cli.run(main, __doc__)
