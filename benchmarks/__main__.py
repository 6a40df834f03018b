r"""Measures speed: JSON on stdout, and a table for people on stderr.

  python -m benchmarks
  python -m benchmarks --parts=train,infer --blocks=20
  python -m benchmarks --parts=train,infer --model=ViT-B/16 \
      --compare=timm

The model is the ViT of configs/cifar10_tutorial.py, or any other (--model), on
generated JPEG files (or your own: --data=folder:PATH). It takes turns with its
rival in the same run. By default the rival is `baseline`, a plain formulation
of the same work: a Linen model as in a tutorial; a loop over cv2.imread; a
script that takes one step; for end_to_end, the bare train step; for parallel,
one device instead of two. With --compare, the rival in train and infer is the
model of a library, if that is installed. Ratios are medians over the turns.
Before the last five parts are timed, our model and the rival must give the same
logits, and the same losses in two steps; `input` compares images. Results of
parts in other processes (startup, restart, parallel) are not compared.

  startup         a command, up to its first step
  restart         up to the first step: resumed with a compile cache, or new
  parallel        data-parallel steps on two CPU devices, against one
  input           reading and decoding
  infer, train    forward passes and steps on a batch that is on the device
  augment         the cost of RandAugment(2,10) and mixup in a step
  checkpoint      steps with a save among them, against steps alone
  end_to_end      the whole loop

Modern parts:

  python -m benchmarks --parts=modern,packing --model=ViT-Ti/16

This times the forward and backward pass with each modern part (RoPE, registers,
SwiGLU of as many parameters, QK-norm, RMSNorm, layer scale, merged tokens, soft
experts) against that of the plain ViT, in turns in one run: a ratio above 1 is
faster. `packing` is images of their own sizes, a quarter to all of the tokens:
several in a sequence (NaViT), against each padded to the largest; both must
give the same loss.

The allocator:

  python -m benchmarks --parts=allocator --model=ViT-Ti/16

This times steps with mimalloc, which commands use on CPUs, in turns with
glibc's malloc.

Other methods:

  python -m benchmarks --parts=train --objective=mae

This times the training step of a method without labels (mae, beit, igpt, dino,
dinov2, mocov3), of image-text pairs (clip) or of segmentation (setr, unetr) in
turns with PyTorch's: the classes of transformers and MONAI, or, for dino,
mocov3 and setr, a plain formulation; there is none of dinov2. The settings are
those of the method's recipe in configs/, with ViT-Ti/16, iGPT-S or ViT-B/32, or
--model. Both must have as many parameters, and about the same first loss.

A served model:

  python -m benchmarks --parts=serve --model=ViT-S/16

This times `vit_jax.serve` with 1, 8 and 64 clients that send an image at a
time, in turns with the bare model on full batches of decoded images. Server,
clients and model share the cores.

Devices that are not here:

  python -m benchmarks --parts=compile --hardware=v5e:2x2 \
      --model=ViT-B/16 --batch_size=128

This compiles the train step for devices that are not here, with their own
compiler (extra [compile-tpu] or [cuda]), in bfloat16: temporary memory, bytes
accessed, TFLOP and copies of ours and of the baseline, with the ratios. The
batch size is that of one device. This part runs only where --hardware names a
topology.
"""

from collections.abc import Callable
import datetime
import json
import os
import sys
from typing import Any

from absl import flags
from absl import logging

from benchmarks import methods
from vit_jax import cli

PROCESS_PARTS = ('startup', 'restart', 'parallel')
# The first ones show their memory best.
MODEL_PARTS = ('infer', 'train', 'augment', 'checkpoint', 'end_to_end')
_TIMED = (*PROCESS_PARTS, 'input', *MODEL_PARTS)
_COMPILE = 'compile'
# Models by themselves, on random images.
_ALONE = ('modern', 'packing')
_ALLOCATOR = 'allocator'
_SERVE = 'serve'
PARTS = (*_TIMED, *_ALONE, _ALLOCATOR, _SERVE, _COMPILE)

_PARTS = flags.DEFINE_list('parts', list(_TIMED), 'Parts to measure.')
_OBJECTIVE = flags.DEFINE_string(
  'objective',
  None,
  'A method for --parts=train, such as mae or clip. setr and unetr also have'
  ' --parts=infer.',
)
_MODEL = flags.DEFINE_string(
  'model',
  'tutorial',
  'A model name, or the ViT of configs/cifar10_tutorial.py.',
)
_IMAGE_SIZE = flags.DEFINE_integer(
  'image_size',
  None,
  'Image size in pixels. Default: 32 for the tutorial, else 224.',
  lower_bound=1,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  'Images in a step. Default: a number that suits a CPU.',
  lower_bound=1,
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'float32', ['float32', 'bfloat16'], 'Type of the computation.'
)
_ATTENTION = flags.DEFINE_string(
  'attention', None, 'Value of config.model.attention_implementation.'
)
_SCAN = flags.DEFINE_bool('scan', None, 'Value of config.model.scan.')
_REMAT = flags.DEFINE_string('remat', None, 'Value of config.model.remat.')
_HARDWARE = flags.DEFINE_string(
  'hardware', None, 'Topology for --parts=compile: v5e:2x2 or h100:8.'
)
_BLOCKS = flags.DEFINE_integer(
  'blocks', 10, 'Number of timed blocks.', lower_bound=1
)
_COMPARE = flags.DEFINE_enum(
  'compare',
  'baseline',
  ['baseline', 'timm', 'transformers'],
  'Implementation to compare with.',
)
_TORCH_COMPILE = flags.DEFINE_bool(
  'torch_compile', False, 'Compile the PyTorch model.'
)
_DATA = flags.DEFINE_string(
  'data', None, 'folder:PATH of images, of 32x32 pixels for the tutorial.'
)


def main(argv: list[str]) -> None:
  """Prints the report."""
  from vit_jax import config as config_lib

  if argv[1:] or set(_PARTS.value) - set(PARTS):
    raise config_lib.UserError(f'choose --parts from {",".join(PARTS)}')
  if (_PARTS.value == [_COMPILE]) != (_HARDWARE.value is not None):
    raise config_lib.UserError(
      '--parts=compile and --hardware=v5e:2x2 go together, without other parts'
    )
  if _OBJECTIVE.value is not None:
    known = methods.named(_OBJECTIVE.value).parts
    if set(_PARTS.value) - set(known):
      raise config_lib.UserError(
        f'--objective={_OBJECTIVE.value} needs --parts={",".join(known)}'
      )
    for fixed in (_COMPARE, _DATA, _TORCH_COMPILE):
      if fixed.value != fixed.default:
        raise config_lib.UserError(
          f'--{fixed.name} does not go with --objective, which has images and a'
          ' rival of its own: leave it out'
        )
  is_torch = _COMPARE.value != 'baseline' or _OBJECTIVE.value is not None
  if is_torch:  # JAX would reserve the GPU's memory
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  from benchmarks import report as report_lib
  from benchmarks import setting as setting_lib  # it imports jax

  setting = setting_lib.Setting(
    model=_MODEL.value,
    image_size=_IMAGE_SIZE.value,
    batch_size=_BATCH_SIZE.value,
    dtype='bfloat16' if _HARDWARE.value else _DTYPE.value,
    attention=_ATTENTION.value,
    scan=_SCAN.value,
    remat=_REMAT.value,
    data=_DATA.value,
  )
  if _HARDWARE.value is not None:
    print(json.dumps(_compile(setting)))
    return
  measure = _measure if _OBJECTIVE.value is None else _measure_method
  report = measure(setting)
  print(report_lib.table(report), file=sys.stderr)
  print(json.dumps(report))
  sys.stdout.flush()


def _compile(setting: Any) -> dict[str, Any]:
  """Returns the report of the part `compile`."""
  import jax

  from benchmarks import compile_part
  from benchmarks import setting as setting_lib
  from vit_jax.parallel import topologies

  topology = topologies.parse(_HARDWARE.value or '')
  with setting.changes() as changes:
    config = setting_lib.config(changes)
    if config.model.num_classes is None:
      config.model.num_classes = setting_lib.NUM_CLASSES
    entry = compile_part.measure(config, topology)
  # The only part: its numbers are at the top as well.
  return {
    'compile': entry,
    **entry,
    'model': _MODEL.value,
    'image_size': config.data.image_size,
    'batch_size': config.train.batch_size,
    'scan': config.model.scan,
    'remat': config.model.remat,
    'jax': jax.__version__,
    'date': datetime.date.today().isoformat(),
  }


def _measure(setting: Any) -> dict[str, Any]:
  """Returns the report; `setting` is a `setting.Setting`."""
  from benchmarks import input as input_lib
  from benchmarks import measures
  from benchmarks import modern
  from benchmarks import processes
  from benchmarks import serving
  from benchmarks import setting as setting_lib
  from benchmarks import timing

  blocks, runs = _BLOCKS.value, min(_BLOCKS.value, 3)
  report: dict[str, Any] = {}

  def measure(part: str, function: Callable[..., Any], *args: Any) -> None:
    if part in _PARTS.value:
      report[part] = function(*args)
      logging.info('%s: %s', part, report[part])

  with setting.changes() as changes:
    config, command = setting_lib.config(changes), setting_lib.flags(changes)
    # These come first, as they may need all memory of an accelerator.
    measure('startup', processes.startup, config, command, runs)
    measure('restart', processes.restart, command, runs)
    measure('parallel', processes.parallel, config, blocks)
    measure(_ALLOCATOR, processes.allocator, config, blocks)
    measure(_SERVE, serving.measure, config, blocks)
    measure('input', input_lib.measure, config, blocks)
    matmul_flops = timing.matmul_flops(_DTYPE.value)
    for part in _ALONE:
      measure(part, getattr(modern, part), config, blocks)
    if set(_PARTS.value) & set(MODEL_PARTS):
      bench = measures.Bench(
        config, blocks, matmul_flops, _COMPARE.value, _TORCH_COMPILE.value
      )
      bench.check()
      for part in MODEL_PARTS:
        measure(part, getattr(bench, part))
  return report | _described(config) | {'matmul_gflops': matmul_flops / 1e9}


def _measure_method(setting: Any) -> dict[str, Any]:
  """Returns the report on --objective; `setting` is a `setting.Setting`."""
  from benchmarks import pretraining

  name = str(_OBJECTIVE.value)
  config = pretraining.config(name, setting)
  bench = pretraining.Bench(name, config, _BLOCKS.value)
  entries = {part: getattr(bench, part)() for part in _PARTS.value}
  facts = _described(config) | {'model': config.model.name}
  return entries | {'objective': name} | facts


def _described(config: Any) -> dict[str, Any]:
  """Returns facts about the model and the machine."""
  import jax

  from vit_jax.data.host import batches

  is_library = _COMPARE.value != 'baseline'
  compiled = {'torch_compile': _TORCH_COMPILE.value} if is_library else {}
  return {
    'model': _MODEL.value,
    'image_size': config.data.image_size,
    'batch_size': config.train.batch_size,
    'dtype': config.train.dtype,
    'attention': config.model.attention_implementation,
    'scan': config.model.scan,
    'remat': config.model.remat,
    **compiled,
    'device': jax.devices()[0].device_kind,
    'cores': batches.num_cores(),
    'jax': jax.__version__,
    'date': datetime.date.today().isoformat(),
  }


if __name__ == '__main__':
  cli.run(main, __doc__)
