"""Rules that say along which dimensions parameters are split over the mesh.

A rule is a pair of a pattern and a spec. The pattern is searched for in the
path of a parameter of the unrolled model, as in `blocks_3/mlp/up/kernel`. The
spec has one entry for each dimension: None, the name of an axis, or several
names. Where layers are scanned, the stacked dimension is not split.

An axis need not divide the dimension that a default rule names. `fsdp` then
splits the largest other dimension that it divides, as in big_vision's rule for
FSDP (`big_vision/sharding.py`). `tensor` splits no other one: a part of a head
would take a reduction within the attention. A line of the log says which arrays
an axis splits along no dimension. Only a rule of the config must fit as it is
written.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import math
import re
from types import EllipsisType
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding

# `...` at the start of a spec stands for dimensions that are not split.
_Rule = tuple[sharding.Entry | EllipsisType, ...]

# The first rule that matches wins. Where none does, or where the rule has other
# dimensions (a user's part may reuse a path), `fsdp` splits the largest
# dimension of an array of several, and vectors are replicated. `tensor` splits
# the first matrix of an MLP by columns and the second by rows, so that one
# reduction per MLP is enough (Megatron-LM, section 3); likewise qkv and the
# output of attention, by heads. It does not split the classifier's head, since
# it need not divide the number of classes.
DEFAULT_RULES: tuple[tuple[str, _Rule], ...] = (
  (r'attention/qkv/kernel$', ('fsdp', None, 'tensor', None)),  # [D, 3, H, K]
  (r'attention/qkv/bias$', (None, 'tensor', None)),
  (r'(attention|map_head)/out/kernel$', ('tensor', None, 'fsdp')),  # [H, K, D]
  (r'(map_head|qkv)/query/kernel$', ('fsdp', 'tensor', None)),  # [D, H, K]
  (r'map_head/key_value/kernel$', ('fsdp', None, 'tensor', None)),
  # Shared heads may be fewer than the parts of `tensor`.
  (r'qkv/key_value/kernel$', ('fsdp', None, None, None)),
  # [T, M] and [M, T]: axes of the mesh need not divide the number of tokens.
  (r'token_mlp/up/kernel$', (None, ('tensor', 'fsdp'))),
  (r'token_mlp/down/kernel$', (('tensor', 'fsdp'), None)),
  # [E, D, M]: `fsdp` splits the experts, so that tokens move to them.
  (r'experts/up/kernel$', ('fsdp', None, 'tensor')),
  (r'experts/up/bias$', ('fsdp', 'tensor')),
  (r'experts/down/kernel$', ('fsdp', 'tensor', None)),
  (r'experts/down/bias$', ('fsdp', None)),
  (r'mlp/up/kernel$', ('fsdp', 'tensor')),  # [D, M]
  (r'mlp/up/bias$', ('tensor',)),
  (r'mlp/down/kernel$', ('tensor', 'fsdp')),
  (r'(head|head_distillation|pre_logits|output)/kernel$', ('fsdp', None)),
  (r'(^|/)token_embedding$', (None, 'fsdp')),  # [K + 1, D]
  # [P, P, C, D], and convolutions [h, w, C, D] and [d, h, w, C, D].
  (r'(patch_embedding|conv\d*|conv_proj)/kernel$', (..., 'fsdp')),
  (r'(^|_)(position_embedding|tokens?)$', (..., 'fsdp')),  # [1, T, D]
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the rules alone, without a model."""
  for i, rule in enumerate(config.mesh.rules):
    _check_rule(rule, f'config.mesh.rules[{i}]')


def _check_rule(rule: Any, key: str) -> None:
  example = "as in --config.mesh.rules=\"(('^head/kernel$', (None, 'fsdp')),)\""
  is_pair = isinstance(rule, tuple | list) and len(rule) == 2
  if not is_pair or not isinstance(rule[1], tuple | list):
    raise config_lib.UserError(
      f'{key} is {rule!r}: it must be a pattern and, for each dimension, None'
      f' or an axis of the mesh, {example}'
    )
  with config_lib.explained(
    f'{key}: {rule[0]!r} is no regular expression', re.error, TypeError
  ):
    re.compile(rule[0])
  axes = [axis for entry in rule[1] for axis in sharding.entry_axes(entry)]
  for axis in axes:
    if axis not in mesh_lib.AXES:
      raise config_lib.UserError(
        f'{key}: the mesh has no axis {axis!r}: choose of'
        f' {", ".join(mesh_lib.AXES)}'
      )
  if len(set(axes)) < len(axes):
    raise config_lib.UserError(
      f'{key}: {rule[1]!r} names an axis twice; one splits one dimension'
    )


def specs(
  config: ml_collections.ConfigDict,
  arrays: Mapping[str, Any],
  sizes: Mapping[str, int],
) -> dict[str, tuple[sharding.Spec, frozenset[str]]]:
  """Returns the spec of each array, and axes that it cannot use, by its path.

  Args:
    config: `config.mesh`, checked.
    arrays: Parameters or their shapes, by path; layers may be scanned.
    sizes: The size of each axis of the mesh.
  """
  rules, used = config.rules, set[int | None]()
  result: dict[str, tuple[sharding.Spec, frozenset[str]]] = {}
  for name, x in arrays.items():
    is_stacked = 'blocks' in name.split('/')[:-1]
    shape, stacked = tuple(x.shape), (None,) * is_stacked
    layers = [  # paths in the unrolled model
      re.sub(r'\bblocks/', f'blocks_{i}/', name, count=1)
      for i in range(shape[0] if is_stacked else 1)
    ]
    inner, unsplit = shape[len(stacked) :], frozenset[str]()
    numbers = {_first_match(rules, layer) for layer in layers}
    if len(numbers) > 1:
      raise config_lib.UserError(
        f'config.mesh.rules treat the layers of {name} differently, but they'
        ' are one array: let a pattern match all of them, or set'
        ' config.model.scan=False'
      )
    used |= numbers
    (number,) = numbers
    if number is None:
      spec, unsplit = _default_spec(layers[0], inner, config.min_size, sizes)
    else:
      spec = tuple(rules[number][1])
      label = f'config.mesh.rules[{number}] for {layers[0]}'
      _check_spec(label, spec, inner, sizes)
    axes = [[a for a in sharding.entry_axes(e) if sizes[a] > 1] for e in spec]
    spec = (*stacked, *map(_entry, axes)) if any(axes) else ()
    result[name] = spec, unsplit
  for i, (pattern, _) in enumerate(rules):
    if i not in used:
      raise config_lib.UserError(
        f'config.mesh.rules[{i}] {pattern!r} matches no parameter that no rule'
        ' before it matches; there are'
        f' {config_lib.join_first(list(arrays), 6)}'
      )
  return result


def _first_match(
  rules: Sequence[tuple[str, sharding.Spec]], path: str
) -> int | None:
  matches = (i for i, (key, _) in enumerate(rules) if re.search(key, path))
  return next(matches, None)


def _check_spec(
  label: str,
  spec: sharding.Spec,
  shape: tuple[int, ...],
  sizes: Mapping[str, int],
) -> None:
  """Raises a UserError if a spec does not fit a shape."""
  if spec and len(spec) != len(shape):
    raise config_lib.UserError(
      f'{label} has {len(spec)} entries, but its shape is {list(shape)}: write'
      ' one for each dimension'
    )
  for size, entry in zip(shape, spec, strict=False):
    if size % _ways(entry, sizes):
      axes = sharding.entry_axes(entry)
      by = ' x '.join(f'{axis}={sizes[axis]}' for axis in axes)
      raise config_lib.UserError(
        f'{label}: {by} does not divide {size} of {list(shape)}: write None for'
        ' this dimension, or choose another config.mesh'
      )


def _default_spec(
  name: str, shape: tuple[int, ...], min_size: int, sizes: Mapping[str, int]
) -> tuple[sharding.Spec, frozenset[str]]:
  """Returns the spec of a default rule, and the axes that it cannot use."""
  if math.prod(shape) < min_size:
    return (), frozenset()
  matches = (rule for key, rule in DEFAULT_RULES if re.search(key, name))
  rule = next(matches, ())
  if rule[:1] == (...,):
    rule = (*[None] * (len(shape) - len(rule) + 1), *rule[1:])
  if len(rule) != len(shape):
    largest = shape.index(max(shape)) if len(shape) > 1 else None
    rule = tuple('fsdp' if i == largest else None for i in range(len(shape)))
  named = [sharding.entry_axes(entry) for entry in rule]
  axes = [
    tuple(a for a in entry if a != 'fsdp' and not size % sizes[a])
    for size, entry in zip(shape, named, strict=True)
  ]
  if any('fsdp' in entry for entry in named):
    # First the dimension of the rule, then those that no other axis splits,
    # from the largest on.
    def rank(i: int) -> tuple[bool, int, int]:
      return 'fsdp' not in named[i], _ways(axes[i], sizes), -shape[i]

    for i in sorted(range(len(shape)), key=rank):
      if shape[i] % (_ways(axes[i], sizes) * sizes['fsdp']) == 0:
        axes[i] = (*axes[i], 'fsdp')
        break
  unsplit = {*itertools.chain(*named)} - {*itertools.chain(*axes)}
  return tuple(map(_entry, axes)), frozenset(unsplit)


def _ways(entry: sharding.Entry, sizes: Mapping[str, int]) -> int:
  """Returns the number of shards into which an entry splits its dimension."""
  return math.prod(sizes[axis] for axis in sharding.entry_axes(entry))


def _entry(axes: Sequence[str]) -> sharding.Entry:
  return tuple(axes) if len(axes) > 1 else axes[0] if axes else None
