"""Checks that a user's own evaluator keeps the contract of `base.Evaluator`."""

from collections.abc import Mapping
from typing import Any

from vit_jax.evaluation import base


class Checked(base.Evaluator):
  """Extends an evaluator by a check that it returns the metrics it declares."""

  def run(self, context: base.Context) -> dict[str, Any]:
    """Returns the metrics.

    Raises:
      EvaluationError: They are no dict of numbers, lack one that the class
        declares, or have one that it does not.
    """
    results: Any = super().run(context)
    if not isinstance(results, Mapping):
      raise base.EvaluationError(
        f'run() of {self.kind} returns a {type(results).__name__}: it must'
        " return a dict of metrics, as {'accuracy': 0.9}"
      )
    for name, value in results.items():
      shape = getattr(value, 'shape', ())
      is_number = hasattr(value, '__float__') and not shape
      if name != 'confusion' and not is_number:
        form = f' of the shape {shape}' if shape else ''
        raise base.EvaluationError(
          f'run() of {self.kind} returns {name!r}, a'
          f' {type(value).__name__}{form}: it must be one number'
        )
    if self.metrics is not None:
      self._check_names(self.metrics, results)
    return {**results}

  def _check_names(
    self, declared: Mapping[str, str], results: Mapping[str, Any]
  ) -> None:
    """Checks that results have the names that are declared."""
    groups = tuple(name for name in declared if name.endswith('/'))
    undeclared = [
      repr(name)
      for name in results
      if name not in declared
      and name != 'confusion'
      and not str(name).startswith(groups)
    ]
    missing = [
      repr(x) for x in declared if x not in results and x not in groups
    ]
    problems = []
    if undeclared:
      names = ', '.join(undeclared)
      problems.append(f'returns {names}, which `metrics` does not declare')
    if missing:
      names = ', '.join(missing)
      problems.append(f'does not return {names}, which `metrics` declares')
    if problems:
      declares = ', '.join(declared) or 'nothing'
      raise base.EvaluationError(
        f'run() of {self.kind} {", and ".join(problems)}: `metrics` has'
        f' {declares}; give each metric that run() returns, with the better'
        f" direction, as metrics = {{'accuracy': 'max'}}"
      )
