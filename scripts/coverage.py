"""Which ViTs of timm and transformers `vit_jax.load` reads: a Markdown table.

  python scripts/coverage.py --timm --transformers >coverage.md

Each model is made with random weights and one or two layers where its class
takes a number of layers, so that few need more than some hundred megabytes; one
is in memory at a time. It is written as a file and read by `vit_jax.load`; its
outputs for one random image are compared. A model agrees if no output differs
by more than 1e-4 of the largest one. Otherwise the table has the reason.

With --small, of timm's models with arrays of the same names only the smallest
is compared. The others' files are read, with zeros in them, and must have as
many heads and the same epsilon as the library's model.

Of timm, the models are those of the modules with isotropic ViTs in the version
that is installed; of transformers, the image models of `_CLASSES`.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import json
import pathlib
import re
import tempfile
from typing import Any

from absl import flags
from absl import logging
import numpy as np

from benchmarks.peers import torchvision_operators
from vit_jax import cli
from vit_jax.config import UserError

_TIMM = flags.DEFINE_boolean('timm', False, "Try timm's models.")
_TRANSFORMERS = flags.DEFINE_boolean(
  'transformers', False, "Try transformers' models."
)
_SMALL = flags.DEFINE_boolean(
  'small', False, "Of timm's models with the same arrays, run the smallest."
)
_ONLY = flags.DEFINE_string('only', '', 'Part of the names to try; all.')
_AGREES, _LOADS = 'agrees', 'loads'
_TOLERANCE = 1e-4
_CLASSES_OF_HEAD = 3

# timm's modules whose models are stacks of equal layers.
_MODULES = (
  *('vision_transformer', 'deit', 'beit', 'eva', 'naflexvit', 'mlp_mixer'),
  *('vision_transformer_hybrid', 'vision_transformer_relpos'),
  'vision_transformer_sam',
)
_SIZES = {
  'hidden_size': 48,
  'intermediate_size': 64,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'image_size': 32,
  'patch_size': 8,
  'num_labels': _CLASSES_OF_HEAD,
}
_TOWER = {k: x for k, x in _SIZES.items() if k != 'num_labels'}
_PATCHES = {
  **{k: x for k, x in _TOWER.items() if k != 'image_size'},
  'num_patches': 16,
}
_TEXT = {'vocab_size': 99, 'hidden_size': 48, 'intermediate_size': 64}
_BOTH = {'vision_config': _TOWER, 'text_config': _TEXT}
_DINO = {k: x for k, x in _SIZES.items() if k != 'intermediate_size'}
# transformers' classes, and fields of their configs.
_CLASSES: dict[str, dict[str, Any]] = {
  'ViTModel': _TOWER,
  'ViTForImageClassification': _SIZES,
  'DeiTModel': _TOWER,
  'DeiTForImageClassification': _SIZES,
  'DeiTForImageClassificationWithTeacher': _SIZES,
  'BeitModel': _TOWER,
  'BeitForImageClassification': _SIZES,
  'Data2VecVisionModel': _TOWER,
  'Data2VecVisionForImageClassification': _SIZES,
  'Dinov2Model': _DINO,
  'Dinov2ForImageClassification': _DINO,
  'Dinov2WithRegistersModel': _DINO,
  'Dinov2WithRegistersForImageClassification': _DINO,
  'DINOv3ViTModel': _TOWER,
  'IJepaModel': _TOWER,
  'IJepaForImageClassification': _SIZES,
  'ViTMAEModel': {**_TOWER, 'mask_ratio': 0.0},
  'ViTMSNModel': _TOWER,
  'ViTMSNForImageClassification': _SIZES,
  'YolosModel': {**_TOWER, 'image_size': [32, 32]},
  'CLIPVisionModel': _TOWER,
  'CLIPVisionModelWithProjection': _TOWER,
  'CLIPModel': _BOTH,
  'SiglipVisionModel': _TOWER,
  'SiglipModel': _BOTH,
  'Siglip2VisionModel': _PATCHES,
  'Aimv2VisionModel': _TOWER,
  'Aimv2Model': _BOTH,
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
      torchvision_operators.define_missing()
    except (ImportError, RuntimeError) as e:
      reason = str(e).partition('\n')[0]
      raise UserError(
        f'{name} cannot be imported ({reason}): pip install {name}'
      ) from None
  counts: collections.Counter[str] = collections.Counter()
  version = importlib.metadata.version(library)
  print(f'| {library} {version} | layers | load and outputs |\n|---|---|---|')
  for name, make in models():
    if _ONLY.value not in name:
      continue
    how, depth = _outcome(make)
    counts[next((x for x in (_AGREES, _LOADS) if how.startswith(x)), '')] += 1
    print(f'| {name} | {depth or "all"} | {how} |', flush=True)
    gc.collect()
  loads = f'; {counts[_LOADS]} load and are like one' * bool(counts[_LOADS])
  agree = f'{counts[_AGREES]} of {counts.total()} models agree'
  print(f'\n{library}: {agree}{loads}.\n')


def _outcome(make: Callable[[pathlib.Path], Any]) -> tuple[str, int]:
  """Returns how a model ended, and its reduced number of layers, or 0."""
  with tempfile.TemporaryDirectory() as folder:
    try:
      answer, depth = make(pathlib.Path(folder))
    except Exception as e:  # of another library, for any of its models
      return f'cannot be made: {_line(e)}', 0
    try:
      if isinstance(answer, _Like):
        return _likened(pathlib.Path(folder), answer), depth
      return _compared(pathlib.Path(folder), answer), depth
    except UserError as e:
      return _line(e).replace(folder, '').removeprefix(': '), depth


def _line(error: Exception) -> str:
  text = ' '.join(str(error).split()).replace('|', '/')
  return text if len(text) <= 200 else f'{text[:200]}...'


@dataclasses.dataclass(frozen=True)
class _Like:
  """A model whose arrays have another one's names.

  Attributes:
    name: Name of the other, which is compared.
    heads: Heads of attention, by the library; 0: it has none.
    epsilon: Epsilon of its norms; 0: not known.
  """

  name: str
  heads: int
  epsilon: float


def _likened(folder: pathlib.Path, like: _Like) -> str:
  """Loads a model's file, and compares what its arrays do not show."""
  import vit_jax
  from vit_jax.models import describing

  values = describing.key_values(vit_jax.load(folder).model)
  found = {
    'heads': (values.get('num_heads', 0), like.heads),
    'epsilon': (values.get('layer_norm_epsilon', 0), like.epsilon),
  }
  for name, (ours, theirs) in found.items():
    if theirs and ours != theirs:
      return f'differs: {name} {ours}, not {theirs}'
  return f'{_LOADS} as {like.name}'


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

  names = [x for module in _MODULES for x in timm.list_models(module=module)]
  smallest = _smallest(names) if _SMALL.value else {}
  for name in sorted(names, key=lambda x: smallest.get(x, x) != x):
    first = smallest.get(name, name)
    if first == name:
      yield name, functools.partial(_write_timm, name)
    else:
      yield name, functools.partial(_write_zeros, name, first)


def _smallest(names: Iterable[str]) -> dict[str, str]:
  """Returns the smallest model with arrays of the same names, for each."""
  import torch

  groups: dict[Any, list[tuple[int, str]]] = {}
  for name in names:
    with torch.device('meta'), contextlib.suppress(Exception):
      model, _ = _made_timm(name)
      count = sum(x.numel() for x in model.parameters())
      arrays = frozenset(re.sub(r'\d+', '*', k) for k in model.state_dict())
      pool = getattr(model, 'global_pool', '')
      groups.setdefault((type(model), pool, arrays), []).append((count, name))
  return {name: min(x)[1] for x in groups.values() for _, name in x}


def _made_timm(name: str) -> tuple[Any, dict[str, int]]:
  """Makes a model of timm; returns the argument with its layers, too."""
  import timm

  one: dict[str, Any] = {'depth': 1}
  for arguments in (one, one | {'num_kv_heads': 1}, {'num_blocks': 1}, {}):
    # The class has no such argument, or one for each layer beside it.
    with contextlib.suppress(TypeError, AssertionError):
      made = timm.create_model(name, num_classes=_CLASSES_OF_HEAD, **arguments)
      return made, arguments
  raise TypeError(f'{name} takes no num_classes')


def _write_zeros(
  name: str, first: str, folder: pathlib.Path
) -> tuple[_Like, int]:
  """Writes a model of timm with zeros, which need no disk."""
  import torch

  with torch.device('meta'):
    model, arguments = _made_timm(name)
  header, end = {}, 0
  for key, x in model.state_dict().items():
    start, end = end, end + 4 * x.numel()
    offsets = {'data_offsets': [start, end]}
    header[key] = {'dtype': 'F32', 'shape': list(x.shape), **offsets}
  text = json.dumps(header).encode()
  with (folder / 'model.safetensors').open('wb') as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    file.truncate(8 + len(text) + end)
  _write_config(name, model, arguments, folder)
  block = next(iter(getattr(model, 'blocks', ())), None)
  attention = getattr(block, 'attn', None)
  epsilon = getattr(getattr(block, 'norm1', None), 'eps', 0.0)
  heads = getattr(attention, 'num_heads', 0)
  return _Like(first, heads, epsilon), min(len(arguments), 1)


def _write_timm(name: str, folder: pathlib.Path) -> tuple[Any, int]:
  """Writes a model of timm; returns its answer and its number of layers."""
  import safetensors.torch
  import torch

  model, arguments = _made_timm(name)
  _draw(model)
  weights = {k: x.contiguous() for k, x in model.state_dict().items()}
  safetensors.torch.save_file(weights, folder / 'model.safetensors')
  _write_config(name, model, arguments, folder)

  def answer(images: np.ndarray) -> dict[str, np.ndarray]:
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    with torch.no_grad():
      tokens = model.forward_features(pixels)
      found = {'logits': model(pixels)}
      if not isinstance(tokens, dict):
        found['features'] = model.forward_head(tokens, pre_logits=True)
    return {key: x.numpy() for key, x in found.items()}

  return answer, min(len(arguments), 1)


def _write_config(
  name: str, model: Any, arguments: dict[str, int], folder: pathlib.Path
) -> None:
  """Writes config.json, as timm's Hub has it."""
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
      arguments = _patches(images, _SIZES['patch_size'])
    if name.startswith('ViTMAE'):
      count = (images.shape[1] // _SIZES['patch_size']) ** 2
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
