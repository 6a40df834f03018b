"""The config of an experiment: defaults, durations, checks and errors.

`default()` returns all keys with their defaults, `load()` the config of a file
in `configs/`. Nothing here imports jax.
"""

from typing import Any
from typing import TYPE_CHECKING

from vit_jax.config.checks import check as check
from vit_jax.config.checks import check_choice as check_choice
from vit_jax.config.checks import duration as duration
from vit_jax.config.checks import is_due as is_due
from vit_jax.config.checks import MOST_PIXELS as MOST_PIXELS
from vit_jax.config.checks import normalization as normalization
from vit_jax.config.checks import num_steps as num_steps
from vit_jax.config.checks import pair as pair
from vit_jax.config.checks import parse_duration as parse_duration
from vit_jax.config.checks import period as period
from vit_jax.config.checks import sides as sides
from vit_jax.config.checks import within as within
from vit_jax.config.defaults import default as default
from vit_jax.config.defaults import evaluation as evaluation
from vit_jax.config.defaults import no_argument as no_argument
from vit_jax.config.errors import counted as counted
from vit_jax.config.errors import explained as explained
from vit_jax.config.errors import join_first as join_first
from vit_jax.config.errors import number as number
from vit_jax.config.errors import one_line as one_line
from vit_jax.config.errors import reason as reason
from vit_jax.config.errors import UserError as UserError
from vit_jax.config.files import call_file as call_file
from vit_jax.config.files import file_name as file_name
from vit_jax.config.files import find as find
from vit_jax.config.files import load as load
from vit_jax.config.keys import accumulation as accumulation
from vit_jax.config.keys import all_evaluations as all_evaluations
from vit_jax.config.keys import AUTO as AUTO
from vit_jax.config.keys import each_task as each_task
from vit_jax.config.keys import flatten as flatten
from vit_jax.config.keys import INIT_FROM as INIT_FROM
from vit_jax.config.keys import num_microbatches as num_microbatches
from vit_jax.config.keys import sam as sam
from vit_jax.config.keys import set_value as set_value
from vit_jax.config.keys import to_dict as to_dict
from vit_jax.config.keys import value_at as value_at
from vit_jax.config.keys import with_accumulation as with_accumulation
from vit_jax.config.registry import build as build
from vit_jax.config.registry import build_sum as build_sum
from vit_jax.config.registry import class_finder as class_finder
from vit_jax.config.registry import extend as extend
from vit_jax.config.registry import find_class as find_class
from vit_jax.config.registry import is_own as is_own
from vit_jax.config.registry import load_function as load_function
from vit_jax.config.registry import load_own as load_own
from vit_jax.config.registry import wing as wing

if TYPE_CHECKING:
  from vit_jax.config.addresses import check_data as check_data
  from vit_jax.config.addresses import check_local as check_local
  from vit_jax.config.addresses import is_in_store as is_in_store
  from vit_jax.config.addresses import store_address as store_address
  from vit_jax.config.near_paths import nearby as nearby
  from vit_jax.config.packages import check_package as check_package
  from vit_jax.config.packages import import_package as import_package
  from vit_jax.config.stored import from_dict as from_dict
  from vit_jax.config.synonyms import unknown_key as unknown_key
  from vit_jax.config.tasks import for_task as for_task
  from vit_jax.config.tasks import task as task
else:
  # Imported on first use, since few runs need them.
  _LATER = {
    'check_data': 'addresses',
    'check_local': 'addresses',
    'check_package': 'packages',
    'for_task': 'tasks',
    'from_dict': 'stored',
    'import_package': 'packages',
    'is_in_store': 'addresses',
    'nearby': 'near_paths',
    'store_address': 'addresses',
    'task': 'tasks',
    'unknown_key': 'synonyms',
  }

  def __getattr__(name: str) -> Any:
    if name not in _LATER:
      raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return wing(f'vit_jax.config.{_LATER[name]}:{name}')
