"""Per-parameter rules of `config.optim`: which parameters train, and how.

Patterns are searched for in the paths of the unrolled model, as in
`blocks_3/mlp/up/kernel`, even if the layers are scanned. A stacked array then
holds one parameter of each layer. In comments: L layers.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import config as config_lib
from vit_jax.models import stack

# Parameters before the first layer, for layer_decay. All other parameters
# outside the layers count as after the last layer.
_BEFORE = (
  'patch_embedding',
  'stem',
  'token_embedding',
  'position_embedding',
  'rows_position_embedding',
  'columns_position_embedding',
  'class_token',
  'distillation_token',
  'register_tokens',
  'mask_token',
)

# Parameters that never train: the colours of an iGPT, which are found before
# training, and the running statistics of batches.
_FIXED = re.compile(r'(^|/)(clusters|mean|var)$')


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One parameter of the unrolled model.

  Attributes:
    size: Number of elements.
    trains: Whether it is trained or frozen.
    factor: Factor of the learning rate.
    decay: Weight decay.
    begins: Step from which on it changes; its optimizer runs before, too.
  """

  size: int
  trains: bool
  factor: float
  decay: float
  begins: int = 0


@dataclasses.dataclass(frozen=True)
class Rules:
  """The rules applied to a model: which parameters train, and how.

  Attributes:
    parameters: The parameters of the unrolled model by path.
  """

  parameters: dict[str, Parameter]

  @property
  def trains_layers_alike(self) -> bool:
    """Whether the same parameters train in all layers."""
    trains: dict[str, bool] = {}
    for name, p in self.parameters.items():
      any_layer = re.sub(r'\bblocks_\d+/', 'blocks/', name)
      if trains.setdefault(any_layer, p.trains) != p.trains:
        return False
    return True

  def trained(self, params: Any) -> Any:
    """Returns a tree with None in place of frozen arrays."""
    return jax.tree_util.tree_map_with_path(
      lambda path, x: x if self._layer_parameters(path, x)[0].trains else None,
      params,
    )

  def scale(self, updates: Any, step: jax.typing.ArrayLike) -> Any:
    """Multiplies directions by the factors of the learning rate.

    `step` is the number of completed updates.
    """
    if all(p.factor == 1 and not p.begins for p in self.parameters.values()):
      return updates

    def scaled(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
      parameters = self._layer_parameters(path, x)
      x = x * _per_layer([p.factor for p in parameters], x)
      if not any(p.begins for p in parameters):
        return x
      return jnp.where(
        step < _per_layer([p.begins for p in parameters], x), 0.0, x
      )

    return jax.tree_util.tree_map_with_path(scaled, updates)

  def _layer_parameters(self, path: tuple[Any, ...], x: Any) -> list[Parameter]:
    return [self.parameters[name] for name in stack.layer_names(path, x)[0]]


def merge(trained: Any, params: Any) -> Any:
  """Replaces the None of a tree of `Rules.trained` by frozen parameters."""
  return jax.tree.map(
    lambda x, p: p if x is None else x,
    trained,
    params,
    is_leaf=lambda x: x is None,
  )


def check(config: ConfigDict) -> None:
  """Checks the values of these rules in `config.optim`."""
  config_lib.within(config, 'optim.layer_decay', '(0, 1]')
  for i, rule in enumerate(config.optim.rules):
    if not _is_rule(rule):
      raise config_lib.UserError(
        f'config.optim.rules[{i}] is {rule!r}: it must be (pattern, factor of'
        ' the learning rate above 0, weight decay or None), as in'
        ' --config.optim.rules="((\'^head/\', 10.0, 0.0),)"; to freeze'
        ' parameters set config.optim.freeze'
      )
  for key, pattern in _patterns(config.optim).items():
    with config_lib.explained(
      f'config.optim.{key} {pattern!r} is no regular expression', re.error
    ):
      re.compile(pattern)


def _is_rule(rule: Any) -> bool:
  if not isinstance(rule, tuple | list) or len(rule) != 3:
    return False
  pattern, factor, decay = rule
  numbers = [factor] if decay is None else [factor, decay]
  return (
    isinstance(pattern, str)
    and all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
    and factor > 0
    and min(numbers) >= 0
  )


def _patterns(config: ConfigDict) -> dict[str, str]:
  keys = ('trainable', 'freeze', 'decay_pattern')
  rules = {f'rules[{i}]': rule[0] for i, rule in enumerate(config.rules)}
  return {key: config[key] for key in keys} | rules


def make(
  config: ConfigDict,
  params: Any,
  frozen: str = '',
  held: tuple[str, int] = ('', 0),
) -> Rules:
  """Applies the rules of `config.optim` to a model's arrays, or their shapes.

  Args:
    config: `config.optim`, checked.
    params: The arrays.
    frozen: Regular expression for parameters that the objective freezes,
      beside `config.freeze`.
    held: Regular expression for parameters that the objective holds for so many
      first steps, and these steps.
  """
  sizes: dict[str, int] = {}
  is_stacked = False
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    names, is_stack = stack.layer_names(path, x)
    sizes |= dict.fromkeys(names, x.size // len(names))
    is_stacked |= is_stack
  depth = 1 + max(_layer(name, -1) for name in sizes)
  ordered_names = sorted(sizes, key=lambda name: (_layer(name, depth), name))
  _check_matches(config, ordered_names, depth)

  def trains(name: str) -> bool:
    if _FIXED.search(name) or not re.search(config.trainable, name):
      return False
    patterns = [x for x in (config.freeze, frozen) if x]
    return not any(re.search(pattern, name) for pattern in patterns)

  parameters = {
    name: Parameter(
      sizes[name],
      trains(name),
      _factor(config, name, depth),
      weight_decay(config, name),
      held[1] if held[0] and re.search(held[0], name) else 0,
    )
    for name in ordered_names
  }
  if not any(p.trains for p in parameters.values()):
    raise config_lib.UserError(
      f'config.optim.trainable={config.trainable!r} and'
      f' config.optim.freeze={config.freeze!r} leave nothing to train, of'
      f' {_examples(ordered_names)}'
    )
  rules = Rules(parameters)
  if is_stacked and not rules.trains_layers_alike:
    raise config_lib.UserError(
      f'config.optim.trainable={config.trainable!r} and'
      f' config.optim.freeze={config.freeze!r} freeze parameters of some layers'
      ' and not of others, but scanned layers are one array: set'
      ' config.model.scan=False'
    )
  return rules


def _check_matches(
  config: ConfigDict, names: Sequence[str], depth: int
) -> None:
  """Raises a UserError if a pattern or layer_decay affects no parameter."""
  patterns = _patterns(config)
  if not config.weight_decay:
    del patterns['decay_pattern']
  for key, pattern in patterns.items():
    if pattern and not any(re.search(pattern, name) for name in names):
      raise config_lib.UserError(
        f'config.optim.{key} {pattern!r} matches no parameter; there are'
        f' {_examples(names)}'
      )
  reached = [_rule(config, name) for name in names]
  for i, rule in enumerate(config.rules):
    if rule not in reached:
      raise config_lib.UserError(
        f'config.optim.rules[{i}] {rule[0]!r} matches nothing that no'
        ' rule before it matches: change their order'
      )
  if config.layer_decay != 1 and not depth:
    raise config_lib.UserError(
      f'config.optim.layer_decay is {config.layer_decay}, but this model has no'
      ' stack of blocks: set it to 1'
    )


def _examples(names: Sequence[str]) -> str:
  return ', '.join(names[:: max(len(names) // 6, 1)])


def _rule(config: ConfigDict, name: str) -> Any:
  """Returns the first rule that matches a path, or None."""
  return next((r for r in config.rules if re.search(r[0], name)), None)


def weight_decay(config: ConfigDict, name: str) -> float:
  """Returns the weight decay of a path: its rule's, or optim.weight_decay."""
  rule = _rule(config, name)
  if rule is not None and rule[2] is not None:
    return rule[2]
  return config.weight_decay if re.search(config.decay_pattern, name) else 0.0


def _factor(config: ConfigDict, name: str, depth: int) -> float:
  """Returns the factor of the learning rate of a path.

  Layer decay follows BEiT (arXiv:2106.08254, `optim_factory.py` of its code)
  and MAE (arXiv:2111.06377, `lr_decay.py`). The factor is layer_decay^(L - i)
  for layer i of 0 to L - 1, 1 for parameters after the layers, and
  layer_decay^(L + 1) for parameters before them.
  """
  factor = config.layer_decay ** (depth - _layer(name, depth))
  rule = _rule(config, name)
  return factor if rule is None else factor * rule[1]


def _layer(name: str, after: int) -> int:
  """Returns the layer of a path; -1: before all layers, `after`: after them."""
  if match := re.search(r'\bblocks_(\d+)/', name):
    return int(match[1])
  return after if set(name.split('/')).isdisjoint(_BEFORE) else -1


def per_array(params: Any, value: Callable[[str], float]) -> Any:
  """Maps a function of a path of the unrolled model over arrays.

  The result is a tree of numbers. If the value differs between the layers of a
  stacked array, its entry is an array that broadcasts with it: float32
  [layers, 1, ...].
  """

  def array_value(path: tuple[Any, ...], x: Any) -> Any:
    return _per_layer([value(n) for n in stack.layer_names(path, x)[0]], x)

  return jax.tree_util.tree_map_with_path(array_value, params)


def _per_layer(values: Sequence[float], x: Any) -> Any:
  if len(set(values)) == 1:
    return values[0]
  return np.array(values, np.float32).reshape(-1, *[1] * (x.ndim - 1))
