r"""Writes a model for programs that know neither Flax nor vit_jax.

  python -m vit_jax.export --from=runs/digits --to=onnx --out=digits.onnx
  python -m vit_jax.export --from=runs/digits --to=stablehlo \
    --out=digits.stablehlo

FILE (by default named after the model: digits.onnx, here) is one function with
its parameters: float32 images [batch, height, width, channels] to float32
logits [batch, classes], for batches of any size unless --batch_size fixes it.
The preprocessing and the classes are stored as JSON with the keys of a work
directory's preprocess.json (classes, image_size, channels, mean, std, resize,
crop_pct, fill, antialias, interpolation, resize_like, bits, intensity): for
ONNX in the metadata under `preprocess`, for StableHLO in FILE.json. If
intensity is (low, high), these values become 0 and 1 instead of 0 and 255; if
it is null and bits are 16, 0 and 65535 do.

  import json, numpy as np, onnxruntime
  session = onnxruntime.InferenceSession('digits.onnx')
  facts = json.loads(session.get_modelmeta().custom_metadata_map['preprocess'])
  images = (pixels / 255 - facts['mean']) / facts['std']  # uint8 [B, 8, 8, 1]
  (logits,) = session.run(None, {'images': images.astype(np.float32)})

  import jax.export, pathlib
  data = pathlib.Path('digits.stablehlo').read_bytes()
  logits = jax.export.deserialize(data).call(images.astype(np.float32))

StableHLO is written by jax.export, for the CPU, CUDA and TPU alike. Before FILE
replaces an earlier one, it is loaded again, and its logits for random images
are compared with the model's, at batch sizes 1 and 3. Restrictions of the
export and their reasons go to stderr; the exit status is 1 if nothing could be
exported.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import logging as python_logging
import os
import pathlib
import re
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import check_package
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  import jax
  import numpy as np

  from vit_jax import weights

FORMATS = ('stablehlo', 'onnx')
PLATFORMS = ('cpu', 'cuda', 'tpu')

USAGE = 'export --from=PATH --to=FORMAT [--out=FILE]'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_TO = flags.DEFINE_enum(
  'to', None, FORMATS, 'Format to write.', flag_values=FLAGS
)
_OUT = cli.define_path(
  'out',
  None,
  'File to write. Default: named after the model, such as digits.onnx.',
  flag_values=FLAGS,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  'Fixed number of images in a batch. Default: any number.',
  lower_bound=1,
  flag_values=FLAGS,
)

_PACKAGES = {
  'stablehlo': ('flatbuffers',),
  'onnx': ('jax2onnx', 'onnx', 'onnxruntime'),
}
_MOST_BYTES = 2**31 - 2**26  # the limit of flatbuffers and protobuf is 2 GiB
_OPSET = 21  # of ONNX


def main(argv: list[str]) -> None:
  """Exports the model."""
  cli.refuse_arguments(argv)
  form = _TO.value
  if not form:
    raise UserError(f'--to is missing: choose one of {", ".join(FORMATS)}')
  source_name = FLAGS['from'].value or ''
  source = pathlib.Path(os.path.abspath(source_name))
  name = source.stem if source.is_file() else source.name
  if not source.exists():  # the name of a model
    name = re.sub('[/:]+', '-', source_name)
  path = pathlib.Path(_OUT.value or f'{name}.{form}')
  check(path, form)
  loaded = cli.load(FLAGS)
  for note in write(loaded, path, form, _BATCH_SIZE.value):
    logging.warning('not exported: %s', note)


def check(path: pathlib.Path, form: str) -> None:
  """Checks that a format can be written here, before anything slow."""
  for package in _PACKAGES[form]:
    check_package(f'--to={form}', package, 'export')
  folder = path.absolute().parent
  if path.exists() and not path.is_file():  # it would be replaced
    raise UserError(f'{path} is a folder or a device: name a file')
  if not folder.is_dir():
    raise UserError(f'{path}: there is no folder {folder}; make it first')


def stablehlo(
  vit: 'weights.Loaded',
  batch_size: int | None = None,
  platforms: Sequence[str] = PLATFORMS,
) -> bytes:
  """Returns a model as StableHLO, for `jax.export.deserialize`.

  It is a serialized `jax.export.Exported` from float32 [B, H, W, C], as
  `vit.preprocess` makes it, to logits, float32 [B, classes], for batches of any
  size if `batch_size` is None.
  """
  import jax
  from jax import export as jax_export

  vit, _ = _simplified(vit, 'stablehlo')
  function = jax.jit(_function(vit))
  exported = jax_export.export(function, platforms=tuple(platforms))
  return bytes(exported(_images(vit, batch_size)).serialize())


def onnx(vit: 'weights.Loaded', batch_size: int | None = None) -> bytes:
  """Returns a model as ONNX, converted by jax2onnx.

  The input is called `images`, float32 [B, H, W, C] as `vit.preprocess` makes
  it; the output `logits`, float32 [B, classes], or `features` if the model has
  no head. The computation is in float32. B is any if `batch_size` is None.
  """
  import jax2onnx

  from vit_jax.export import plain_jaxpr

  vit, _ = _simplified(vit, 'onnx')
  images = _images(vit, batch_size)
  # jax2onnx warns of its plugins for other versions of JAX.
  level = python_logging.root.manager.disable
  python_logging.disable(python_logging.WARNING)
  try:
    model = jax2onnx.to_onnx(
      plain_jaxpr.plain(_function(vit), images),
      inputs=[images],
      model_name='vit_jax',
      opset=_OPSET,
      input_names=['images'],
      output_names=['logits' if vit.model.num_classes else 'features'],
    )
  finally:
    python_logging.disable(level)
  origin, preprocess = vit.origin.to_dict(), vit.preprocess.to_dict()
  for key, content in {'preprocess': preprocess, 'checkpoint': origin}.items():
    facts = model.metadata_props.add()
    facts.key, facts.value = key, json.dumps(content)
  return model.SerializeToString()


def write(
  vit: 'weights.Loaded',
  path: pathlib.Path,
  form: str,
  batch_size: int | None = None,
) -> list[str]:
  """Writes a model to a file after checking that its logits are the same.

  If the model cannot be exported for any batch size or for all platforms, it is
  exported for fewer. An earlier file stays until the new one is complete.
  StableHLO also gets a file with .json appended to the name. Returns
  restrictions of the export with their reasons, one line each.
  """
  check(path, form)
  vit, notes = _simplified(vit, form)
  written = f'{path}'
  with safe_io.replacing_path(path) as temporary:
    temporary.touch()  # fails early if nothing can be written
    lack, difference = _best(vit, temporary, form, batch_size)
    if form == 'stablehlo':
      facts = path.with_name(f'{path.name}.json')
      safe_io.write_json(facts, vit.preprocess.to_dict())
      written += f' and {facts.name}'
  logging.info(
    "wrote %s, %.1f MB: its logits are the model's %s",
    written,
    path.stat().st_size / 1e6,
    f'within {difference:.0e} of the largest' if difference else 'to the bit',
  )
  return notes + lack


def _best(
  vit: 'weights.Loaded', path: pathlib.Path, form: str, batch_size: int | None
) -> tuple[list[str], float]:
  """Writes the least restricted export that works.

  Returns its restrictions, and the largest difference of its logits as a
  fraction of the largest logit.
  """
  from jax import export as jax_export

  # Options, and their restrictions.
  attempts: list[tuple[dict[str, Any], str]] = [
    ({'batch_size': batch_size}, '')
  ]
  if batch_size is None:
    attempts += [({'batch_size': 1}, 'batches of other sizes than 1')]
  if form == 'stablehlo':
    platform = jax_export.default_export_platform()
    attempts += [
      (
        {**options, 'platforms': [platform]},
        f'other platforms than {platform}' + (f' and {lack}' if lack else ''),
      )
      for options, lack in attempts
    ]
  reason = ''
  for options, lack in attempts:
    try:
      _write(path, _CONVERT[form](vit, **options))
      difference = _compare(vit, path, form, options['batch_size'])
    except OSError:
      raise
    except Exception as e:  # jax2onnx and onnxruntime raise any type
      reason = reason or f'{type(e).__name__}: {one_line(e)[:300]}'
    else:
      return [f'{lack}, since {reason}'] if lack else [], difference
  raise UserError(f'the model cannot be written as {form}: {reason}')


def _write(path: pathlib.Path, content: bytes) -> None:
  with path.open('wb') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _compare(
  vit: 'weights.Loaded', path: pathlib.Path, form: str, batch_size: int | None
) -> float:
  """Compares the logits of a file with the model's.

  Returns the largest difference, as a fraction of the largest logit; raises a
  ValueError if it is more than rounding, or they are not finite.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  counts = (1, 3) if batch_size is None else (batch_size,)
  shape = (max(counts), *vit.preprocess.image_size, vit.preprocess.channels)
  images = np.random.default_rng(0).standard_normal(shape, np.float32)
  # onnxruntime computes products in float32 on any device.
  precision = 'highest' if form == 'onnx' else None
  with jax.default_matmul_precision(precision):
    function = jax.jit(_function(vit))
    expected = np.asarray(function(images))
    nearby = np.asarray(function(images * np.float32(1 + 2**-20)))
  if not np.isfinite(expected).all():
    raise ValueError("the model's own logits are not finite")
  scale = max(float(abs(expected).max()), 1e-6)

  def distance(logits: np.ndarray) -> float:
    return float(abs(logits - expected[: len(logits)]).max()) / scale

  outputs = _run(path, form, [images[:count] for count in counts])
  if [x.shape for x in outputs] != [expected[:count].shape for count in counts]:
    raise ValueError(f'its logits have the shapes {[x.shape for x in outputs]}')
  difference = max(map(distance, outputs))
  least = 1e-3 if jnp.dtype(vit.model.dtype) == jnp.float32 else 3e-2
  if not difference <= np.clip(10 * distance(nearby), least, 0.1):
    raise ValueError(
      f"its logits differ from the model's by {difference:.0e} of the largest"
    )
  return difference


def _run(
  path: pathlib.Path, form: str, batches: 'list[np.ndarray]'
) -> 'list[np.ndarray]':
  """Returns the logits of batches of images, by the program in a file."""
  if form == 'onnx':
    import onnxruntime

    session = onnxruntime.InferenceSession(
      path, providers=['CPUExecutionProvider']
    )
    return [session.run(None, {'images': x})[0] for x in batches]
  from jax import export as jax_export
  import numpy as np

  program = jax_export.deserialize(bytearray(path.read_bytes()))
  return [np.asarray(program.call(x)) for x in batches]


def _function(vit: 'weights.Loaded') -> Callable[..., Any]:
  return lambda images: vit.model.apply({'params': vit.params}, images)


def _images(
  vit: 'weights.Loaded', batch_size: int | None
) -> 'jax.ShapeDtypeStruct':
  import jax
  from jax import export as jax_export
  import jax.numpy as jnp

  size = 'batch' if batch_size is None else str(batch_size)
  shape = (
    *jax_export.symbolic_shape(size),
    *vit.preprocess.image_size,
    vit.preprocess.channels,
  )
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _simplified(
  vit: 'weights.Loaded', form: str
) -> tuple['weights.Loaded', list[str]]:
  """Returns a model that a format can store, and notes on its differences."""
  import jax
  import jax.numpy as jnp

  from vit_jax import models
  from vit_jax.models import describing
  from vit_jax.models import layouts
  from vit_jax.weights import adapters

  size = sum(x.nbytes for x in jax.tree.leaves(vit.params))
  if size > _MOST_BYTES:
    raise UserError(
      f'the parameters take {size / 2**30:.1f} GiB, and a file of {form} holds'
      ' less than 2 GiB: export a smaller model'
    )
  vit = adapters.merge(vit)
  # These fields only say how the function is computed.
  model, params, notes = models.with_kernel(vit.model, 'plain'), vit.params, []
  if hasattr(model, 'remat'):
    model = model.clone(remat='none')
  if form == 'onnx':
    if getattr(vit.model, 'scan', False):  # loops are slow in onnxruntime
      params = layouts.unstack_layers(params)
      model = model.clone(scan=False)
    if (dtype := jnp.dtype(vit.model.dtype)) != jnp.float32:
      notes.append(
        f'{dtype.name}, since onnxruntime has few operations of that type: the'
        ' file computes in float32'
      )
      model = describing.with_keys(model, dtype=jnp.float32)
  return dataclasses.replace(vit, model=model, params=params), notes


_CONVERT = {'stablehlo': stablehlo, 'onnx': onnx}


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
