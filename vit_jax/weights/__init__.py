"""Loads trained models of this and other packages, ready to predict.

What cannot be used raises a `UserError`, whose message is one line.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
from typing import Any
from typing import cast
from typing import Self

from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.config import checkpoints
from vit_jax.config import parts
from vit_jax.data import features as features_lib
from vit_jax.data import kinds as kinds_lib
from vit_jax.models import subtrees
from vit_jax.models import values as values_lib
from vit_jax.runs import safe_io
from vit_jax.weights import adapt as adapt_lib
from vit_jax.weights import batched
from vit_jax.weights import fit
from vit_jax.weights import model_fields
from vit_jax.weights import origin as origin_lib
from vit_jax.weights import published
from vit_jax.weights import quantized
from vit_jax.weights.fit import grid
from vit_jax.weights.formats import foreign


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded:
  """A model with its parameters and the preprocessing of its images.

  Attributes:
    model: Linen module: [B, H, W, C] -> logits [B, classes].
    params: Its parameters, float32 arrays in a nested dict; of a quantized
      model also instances of `quantized.Kernel`.
    preprocess: Images (paths, PIL images, arrays) -> float32 [B, H, W, C].
    position_size: (height, width) of the images that its positions are for; of
      volumes (depth, height, width).
    resize: Method by which the original code resizes positions, one of
      `resize.METHODS`.
    format: Format that was read, one of `export.FORMATS`.
    changes: Changes that were made to the parameters, in order.
    origin: The checkpoint that was read.
    trained_with: Config of the run that trained it, if that was one of ours.
    objective_params: Parameters that the objective of that run has beside the
      model, in their places in the objective's tree; {} if there are none.
    overrides: Values of `models.KEYS` that the caller of `load` has chosen.
  """

  model: models.Model
  params: Any
  preprocess: data.Preprocess
  position_size: tuple[int, int]
  resize: str
  format: str = 'vit_jax'
  changes: tuple[adapt_lib.Change, ...] = ()
  origin: origin_lib.Origin = origin_lib.MEMORY
  trained_with: ml_collections.ConfigDict | None = dataclasses.field(
    default=None, compare=False
  )
  objective_params: Any = dataclasses.field(default_factory=dict, compare=False)
  overrides: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False
  )

  def __repr__(self) -> str:
    """Returns the facts in one line; `model` and `changes` have the fields."""
    sides = ' × '.join(map(str, self.preprocess.image_size))
    facts = [self.describe(), f'images of {sides} pixels']
    if self.classes:
      facts.append(f'{len(self.classes)} classes')
    return f'<{type(self).__name__}: {", ".join(facts)}, {self.origin}>'

  @property
  def classes(self) -> tuple[str, ...]:
    """Names of the classes, in the order of the logits; () if unknown."""
    return self.preprocess.classes

  @property
  def target(self) -> features_lib.Target:
    """The feature that the logits predict.

    A single logit without a known meaning, as that of a user's own objective,
    is a number: as the only class it would always have the probability 1.
    """
    is_known = self.classes or 'logits' in self.preprocess.outputs
    if self.model.num_classes == 1 and not is_known:
      number = kinds_lib.from_dict(
        {'kind': 'Number', 'quantities': ('output',)}
      )
      assert isinstance(number, features_lib.Target)
      return number
    return self.preprocess.target

  def outputs(self, images: Any) -> dict[str, np.ndarray]:
    """Returns the model's outputs for one image or a sequence.

    They are float32: `features`, the input of the head, [B, D]; `logits`, [B,
    outputs], if there is a head; and `numbers`, [B, K] in the units of the
    data, if the model predicts numbers.
    """
    outputs = self._all(self.params, self.preprocess(images))
    return {name: np.asarray(x, np.float32) for name, x in outputs.items()}

  def predict(self, images: Any) -> np.ndarray:
    """Returns logits, float32 [B, classes], of paths, PIL images or arrays."""
    return batched.apply(self.model, self.params, self.preprocess(images))

  def describe(self) -> str:
    """Returns the model's kind and sizes in words."""
    count = sum(x.size for x in quantized.leaves(self.params))
    count_text = f'{count / 1e6:.1f} million' if count >= 1e6 else f'{count:,}'
    facts = [f'{type(self.model).__name__} of {count_text} parameters']
    values = values_lib.model_values(self.model)
    facts += [
      f'{values[key]} {name}'
      for key, name in (('depth', 'layers'), ('num_heads', 'heads'))
      if values.get(key)
    ]
    if patch := models.pixels_per_token(self.model):
      facts.append(f'patches of {" × ".join(map(str, patch))} pixels')
    return ', '.join(facts)

  @functools.cached_property
  def _all(self) -> Any:
    """The compiled function of all outputs."""
    facts = self.preprocess.outputs.get('logits', {})
    headless = self.model.clone(num_classes=0)

    def apply(params: Any, images: jax.Array) -> Any:
      variables = {'params': params}
      outputs: dict[str, Any] = {'features': headless.apply(variables, images)}
      if not self.model.num_classes:
        return outputs
      outputs['logits'] = self.model.apply(variables, images)
      if 'std' in facts:
        mean, std = (
          jnp.asarray(facts[k], jnp.float32) for k in ('mean', 'std')
        )
        outputs['numbers'] = outputs['logits'] * std + mean
      return outputs

    return jax.jit(apply)

  def adapted(
    self,
    num_classes: int | None = None,
    image_size: int | tuple[int, ...] | None = None,
    resize: str | None = None,
    quantize: str | None = None,
    **model_overrides: Any,
  ) -> Self:
    """Returns the model for another task, image size or architecture.

    Args:
      num_classes: Number of classes; a different number than the model's gives
        a new head of zeros.
      image_size: In pixels, one number or (height, width); of volumes (depth,
        height, width).
      resize: How positions are resized, one of `resize.METHODS`; None: as in
        the code that the model comes from.
      quantize: 'int8', only to predict; see `weights.quantized`.
      **model_overrides: Values of `models.KEYS`.
    """
    quantized.check(quantize, self.params)
    target = self._with_keys(num_classes, model_overrides)
    is_int8 = quantize == 'int8'
    if is_int8 and 'scan' not in model_overrides:
      if quantized.can_scan(target, self.objective_params):
        target = target.clone(scan=True)
    preprocess, size = self.preprocess, self.preprocess.image_size
    if target.num_classes != self.model.num_classes:
      preprocess = dataclasses.replace(
        preprocess, classes=(), features={}, outputs={}
      )
    if image_size is not None:
      size = fit.sides(image_size, self.position_size)
    params, changes = adapt_lib.adapt(
      self.params,
      self.model,
      target,
      grid(self.model, self.position_size),
      grid(target, size),
      channels=self.preprocess.channels,
      resize=resize or self.resize,
    )
    objective_params = self.objective_params
    if is_int8:
      params, objective_params = quantized.quantize((params, objective_params))
    return dataclasses.replace(
      self,
      model=target,
      params=params,
      preprocess=preprocess.at_size(size),
      position_size=size,
      changes=(*self.changes, *changes),
      objective_params=objective_params,
      overrides={**self.overrides, **model_overrides},
    )

  def _with_keys(
    self, num_classes: int | None, overrides: Mapping[str, Any]
  ) -> models.Model:
    """Returns the module with other values of keys, without parameters."""
    model, changes = self.model, dict(overrides)
    if num_classes is not None and num_classes != model.num_classes:
      model = models.without_head(model)
      changes['num_classes'] = num_classes
    if 'dtype' in changes:
      changes['dtype'] = _dtype(changes['dtype'])
    with model_fields.explained():
      with_keys = config_lib.wing('vit_jax.models.describing:with_keys')
      return with_keys(model, **changes)


def _dtype(name: Any) -> Any:
  with contextlib.suppress(TypeError):
    if jnp.issubdtype(dtype := jnp.dtype(name), jnp.floating):
      return dtype
  raise config_lib.UserError(
    f'dtype is {name!r}: choose float32, bfloat16 or float16'
  )


def load(
  path: str | os.PathLike[str],
  num_classes: int | None = None,
  image_size: int | tuple[int, int] | None = None,
  *,
  pretrained: str | None = None,
  step: int | str | None = None,
  state: str | None = None,
  resize: str | None = None,
  quantize: str | None = None,
  as_stored: bool = False,
  position_size: tuple[int, int] | None = None,
  unseen: Mapping[str, Any] | None = None,
  adapters: str | os.PathLike[str] | None = None,
  **model_overrides: Any,
) -> Loaded:
  """Loads a model of Google (npz), timm, Hugging Face, torchvision or ours.

  Shapes of the arrays determine the architecture. Values that they do not show
  (heads of a fused qkv, GELU, epsilon, normalisation) come from
  `model_overrides`, else from config.json in the same directory, else from the
  published sizes.

  Args:
    path: One of:

      - an .npz, .safetensors or .pth file;
      - a directory in the format of Hugging Face or of timm's Hub;
      - a work directory; its averaged parameters are read if there are any;
      - a file of adapters, which names the checkpoint that they are loaded on;
      - an address (https, gs://, s3:// or hf:owner/name) of one of these; a run
        may be in gs:// or s3://;
      - a published name such as 'ViT-B/16': the ImageNet-21k checkpoint that
        its authors recommend.

    num_classes: Number of classes; a different number than the checkpoint's
      gives a new head of zeros. 0: no head.
    image_size: In pixels; positions are resized to a different size.
    pretrained: Which checkpoint of a published name: its tag in
      `vit_jax.list_models(pretrained=True)`.
    step: Checkpoint of a work directory: its step, 'best' or 'newest'; None:
      the best if there is one, else the newest good one.
    state: Which of the states in a training checkpoint of torch is read, by its
      key, such as 'model' or 'student'; None: averaged weights and a teacher
      before others.
    resize: How positions are resized, one of `resize.METHODS`; None: as in the
      code that the checkpoint comes from.
    quantize: 'int8': kernels are int8, a quarter of the bytes, only to predict
      (`pip install 'vit_jax[quantize]'`).
    as_stored: Whether to keep the size of the positions if the preprocessing in
      the same directory has another image size, and `image_size` is None.
    position_size: (height, width) of the images that a file's positions are
      for, where they are no square grid and nothing else defines it; None:
      `image_size`.
    unseen: Further values of `config.model`, of which a file's arrays do not
      show some.
    adapters: A file of adapters, or its address, that are loaded on `path`,
      which is their base; None: there are none, or `path` is such a file.
    **model_overrides: Values of `models.KEYS`.

  Returns:
    The model with its parameters and its preprocessing.
  """
  quantized.check(quantize)
  if pretrained is None:
    address = _address(os.fspath(path))
  else:
    address = published.find(os.fspath(path), pretrained, image_size).address
  overrides = dict(model_overrides)
  step = origin_lib.parse_step(step)
  adapted = config_lib.wing('vit_jax.weights.adapters')
  keys = {**(unseen or {}), **overrides}
  if adapters is not None:
    loaded = adapted.load(
      local_path(os.fspath(adapters)),
      address,
      keys,
      step=step,
      state=state,
      unseen=unseen,
      position_size=position_size,
    )
  elif adapted.is_file(local := local_path(address, step)):
    loaded = adapted.load(local, '', keys, step=step, state=state)
  elif is_workdir(local):
    if state is not None:
      raise config_lib.UserError(
        f'{path} is a work directory, which has no states to choose from: leave'
        ' state out'
      )
    loaded = _from_workdir(local, step)  # its config has all fields
  else:
    if step is not None:
      raise config_lib.UserError(
        f'{path} is no work directory, and has no steps to choose from: leave'
        ' step out'
      )
    size = None if image_size is None else fit.pair(image_size)
    description, params, form = foreign.read(
      local,
      values_lib.explicit_values(adapted.bare_values(keys)),
      position_size or size,
      state,
    )
    loaded = Loaded(
      description.model,
      params,
      data.Preprocess.from_dict(description.preprocess),
      description.image_size,
      description.resize,
      form,
      origin=origin_lib.Origin(str(local), form),
    )
  choices = num_classes, image_size, resize, quantize
  fits = as_stored or loaded.position_size == loaded.preprocess.image_size
  if fits and not overrides and all(x is None for x in choices):
    return loaded
  with config_lib.explained(str(path)):
    return loaded.adapted(*choices, **overrides)


def local_path(path: str, step: int | str | None = None) -> pathlib.Path:
  """Returns where a path of `load` is here; downloads it first if needed.

  Of a run in an object store, `step` is the checkpoint that will be read.
  """
  fetch = config_lib.wing('vit_jax.weights.download:fetch')
  local: pathlib.Path = fetch(_address(path), step=step)
  return local


def check_path(path: str) -> None:
  """Raises a UserError if `load` cannot find a path; downloads nothing."""
  address = _address(path)
  download = config_lib.wing('vit_jax.weights.download')
  if not download.is_remote(address):
    download.fetch(address)


def _address(path: str) -> str:
  """Returns the address of a published name's checkpoint, or the path."""
  if os.path.exists(path):
    return path
  if path in checkpoints.CHECKPOINTS:
    return checkpoints.CHECKPOINTS[path]
  published_names = ', '.join(checkpoints.CHECKPOINTS)
  if re.fullmatch(r'(R\d*\+)?(ViT|Mixer)-\w+/\d+|BiT-\w+', path):
    raise config_lib.UserError(
      f'{path!r}: there is no such file, and no published checkpoint of that'
      f' name; those that are known are {published_names}; or give a path, or'
      ' hf:owner/name'
    )
  is_timms = config_lib.wing('vit_jax.models.mistakes:is_timms')
  if '/' not in path and is_timms(path):
    name, _, tag = path.partition('.')
    hub = f'hf:timm/{name}.{tag or "TAG"}'
    raise config_lib.UserError(
      f'{path!r}: there is no such file; of a model of timm write {hub!r}'
      + ('' if tag else f", as timm.list_pretrained('{name}.*') names them")
    )
  return path


def is_workdir(path: pathlib.Path) -> bool:
  """Whether a path is one of our work directories."""
  return path.is_dir() and (path / 'preprocess.json').exists()


def _from_workdir(workdir: pathlib.Path, step: int | str | None) -> Loaded:
  # Imported here, since Orbax takes a second and foreign files do not need it.
  from vit_jax.runs import restoring

  config, preprocess = _stored(workdir)
  size = cast(tuple[int, int], config_lib.sides(config.data.image_size))
  with config_lib.explained(str(workdir), ValueError):
    model, expected = model_of_run(config, preprocess)
  everything, _, checkpoint = restoring.restore_params(workdir, step)
  trunk = '/'.join(filter(None, preprocess.trunk.split('/')))
  paths = traverse_util.flatten_dict(everything, sep='/')
  if trunk and not any(path.startswith(f'{trunk}/') for path in paths):
    raise config_lib.UserError(
      f'{workdir}/preprocess.json: trunk is {trunk!r}, and the parameters have'
      f' {config_lib.join_first(sorted(everything))}: restore the file'
    )
  params = subtrees.at(everything, trunk)
  flat = traverse_util.flatten_dict(params, sep='/')
  if problems := fit.different_arrays(flat, expected):
    raise config_lib.UserError(
      f'{workdir} does not hold the model that its config.json describes:'
      f' {config_lib.join_first(problems)}. Restore config.json if it was'
      ' changed; a'
      ' model that an objective made otherwise cannot be loaded: train one that'
      ' config.model describes'
    )
  resize = config.init_from.resize or 'corner'
  steps = config.train.variant
  if steps and parts.parse(steps, 'train.variant').name == 'patches':
    resize = 'linear_antialias'  # as in its training
  origin = origin_lib.read(workdir, checkpoint)
  return Loaded(
    model,
    params,
    preprocess,
    size,
    resize,
    origin=origin,
    trained_with=config,
    objective_params=subtrees.remainder(everything, preprocess.trunk),
  )


def model_of_run(
  config: ml_collections.ConfigDict, preprocess: data.Preprocess
) -> tuple[models.Model, dict[str, tuple[int, ...]]]:
  """Returns the model of a run, and its shapes by path, layers unrolled.

  `config` is that of the run, with all values set; it is changed.
  """
  if preprocess.outputs and 'logits' not in preprocess.outputs:
    config.model.num_classes = 0  # what it predicts is beside the trunk
  size = cast(tuple[int, int], config_lib.sides(config.data.image_size))
  model = models.from_config(
    config.model, len(preprocess.target.names), config.train.dtype
  )
  # The kernel used in training may not be available here.
  model = models.with_kernel(model, 'auto')
  return model, fit.expected_shapes(
    model, grid(model, size), preprocess.channels
  )


def _stored(
  workdir: pathlib.Path,
) -> tuple[ml_collections.ConfigDict, data.Preprocess]:
  stored = {
    name: safe_io.read_json(workdir / name)
    for name in ('config.json', 'preprocess.json')
  }
  for name, content in stored.items():
    if not isinstance(content, dict):
      problem = 'is missing' if content is None else 'holds no JSON object'
      raise config_lib.UserError(
        f'{workdir} is no whole work directory: {name} {problem}'
      )
  if tasks := stored['preprocess.json'].get('tasks'):
    several = f'{workdir} is a run of several tasks, {", ".join(tasks)}: name'
    raise config_lib.UserError(f'{several} one, as {workdir}/tasks/{tasks[0]}')
  with config_lib.explained(str(workdir)):
    config = config_lib.from_dict(stored['config.json'])
    return config, data.Preprocess.from_dict(stored['preprocess.json'])
