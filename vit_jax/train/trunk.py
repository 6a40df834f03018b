"""Checks that the model of a user's objective is that of the config.

After training, `load` builds the model from the config, and so do all commands.
An objective may make another one in Python, which trains as well; they would
then measure and export a function that was never trained.
"""

import inspect
from typing import Any

from flax import traverse_util
import jax
from jax.interpreters import partial_eval
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax import objectives
from vit_jax import weights
from vit_jax.models import subtrees
from vit_jax.objectives import base
from vit_jax.train import program as program_lib
from vit_jax.weights import fit


def check(
  objective: objectives.Objective, config: ml_collections.ConfigDict
) -> None:
  """Checks that `load` will give the model that a user's objective trains."""
  config, outputs = (
    config.copy_and_resolve_references(),
    objective.output_facts(),
  )
  built, shapes = weights.model_of_run(
    config, data.Preprocess.from_config(config, objective.features, outputs)
  )
  has_init = type(objective).init is not base.Objective.init
  if 'logits' in outputs or not has_init:  # what `apply` computes is kept
    _check_model(objective, 'self.model', objective.model, built)
  path = objective.trunk_path
  params = jax.eval_shape(objective.init, jax.random.key(0))
  model, _ = objective.trunk(params)
  _check_model(objective, 'trunk(params)', model, built)
  flat = traverse_util.flatten_dict(subtrees.at(params, path), sep='/')
  if problems := fit.different_arrays(flat, shapes):
    raise config_lib.UserError(
      f'{_name(objective)}: the parameters of trunk(params) are not those of'
      f' the model of config.model, {config.model.name}, which load, evaluate'
      f' and export build: {config_lib.join_first(problems)}. Let init return'
      ' what'
      " super().init returns, or that under the key 'trunk' and others beside"
      ' it'
    )


def check_evaluation(program: program_lib.Program, measures: bool) -> None:
  """Traces the evaluation of a user's objective, to find mistakes early.

  `measures` is whether the run computes the metrics of the objective.
  """
  objective, params = program.objective, program.abstract_state().params
  batch = jax.eval_shape(
    program.prepare, program.abstract_batch(program.config.train.batch_size)
  )
  _check_outputs(objective, params, batch)
  if not measures:
    return

  def evaluate(params: Any, batch: Any) -> Any:
    return objective.measure(objective.outputs(params, batch), batch)

  jax.eval_shape(evaluate, params, batch)


def _check_outputs(
  objective: objectives.Objective, params: Any, batch: Any
) -> None:
  """Checks that an objective and the model have the same logits.

  `predict`, `explore` and `export` compute the model alone, whose head would
  never have been trained if the logits came from parameters beside it. `params`
  and `batch` are shapes.
  """
  path = objective.trunk_path
  if not path or 'logits' not in objective.output_facts():
    return

  def logits(params: Any) -> Any:
    inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
    return objective.outputs(params, inputs).get('logits')

  jaxpr = jax.make_jaxpr(logits)(params).jaxpr
  _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  tree = jax.tree.unflatten(jax.tree.structure(params), used)
  flat = traverse_util.flatten_dict(subtrees.remainder(tree, path), sep='/')
  if read := [name for name, is_used in flat.items() if is_used]:
    raise config_lib.UserError(
      f'{_name(objective)}: outputs computes logits from parameters beside the'
      f' trunk ({config_lib.join_first(read)}), which predict, explore and'
      ' export do'
      ' not apply: they would take the head of the trunk, which learns nothing.'
      ' Leave that head out, by num_outputs that returns 0 and output_facts'
      ' that returns {}; evaluate then measures what outputs returns'
    )


def _check_model(
  objective: objectives.Objective,
  place: str,
  model: Any,
  built: models.Model,
) -> None:
  """Raises a UserError unless a model computes what that of the config does."""
  start = f'{_name(objective)}: {place} is a {type(model).__name__}'
  if type(model) is not type(built):
    raise config_lib.UserError(
      f'{start}, but config.model builds a {type(built).__name__}, which load,'
      ' evaluate and export would take in its place: keep the model that'
      ' super().__init__ makes, name parts of your own by config.model.block,'
      ' attention, mlp, positions or pool (docs/own_parts.md), and apply other'
      " layers beside it, with parameters beside those of the 'trunk'"
      ' (docs/methods.md)'
    )
  if model == built:
    return
  full_values = config_lib.wing('vit_jax.models.describing:full_values')
  actual, expected = full_values(model), full_values(built)
  for name, configured in expected.items():
    value = actual[name]
    if value != configured and name not in models.EXECUTION:
      raise config_lib.UserError(
        f'{start} with {name}={value!r}, but config.model builds one with'
        f' {name}={configured!r}, which load, evaluate and export would take'
        f' in its place: set config.model.{name}={value!r}, not the model'
      )


def _name(objective: objectives.Objective) -> str:
  """Returns the config's key, the class and its file."""
  cls = type(objective)
  name = objective.config.objective.name
  return f'config.objective.name={name} ({inspect.getsourcefile(cls)})'
