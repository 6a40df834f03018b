"""Opens the source that `config.data.name` names."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import base
from vit_jax.data import splits

# Names, and prefixes that end with a colon.
SOURCES = {
  'digits': 'vit_jax.data.digits:DigitsSource',
  'moving_digits': 'vit_jax.data.moving_digits:MovingDigitsSource',
  'scenes': 'vit_jax.data.scenes:ScenesSource',
  'tones': 'vit_jax.data.tones:TonesSource',
  'volumes': 'vit_jax.data.volumes:VolumesSource',
  'folder:': 'vit_jax.data.folder:FolderSource',
  'video:': 'vit_jax.data.recordings:VideoSource',
  'audio:': 'vit_jax.data.recordings:AudioSource',
  'table:': 'vit_jax.data.table:TableSource',
  'tar:': 'vit_jax.data.tar:TarSource',
  'hf:': 'vit_jax.data.hf:HfSource',
}
_TFDS = 'vit_jax.data.tfds:TfdsSource'  # reads data of any other name


def find(name: str) -> type[base.Source]:
  """Returns the class that reads the data of a `config.data.name`."""
  prefix, colon, _ = name.partition(':')
  if prefix + colon not in SOURCES and config_lib.is_own(name):
    return config_lib.load_own(name, 'data.name', base.Source)
  return config_lib.wing(SOURCES.get(prefix + colon, _TFDS))


def open_source(config: ml_collections.ConfigDict, split: str) -> base.Source:
  """Opens a split of the data, such as `config.data.split`."""
  data = config.data
  source = open_stored(config, split)
  if data.source_size is not None:
    config_lib.wing('vit_jax.data.stored_sizes:check')(config, source)
  if data.tokenizer or data.class_names or 'text' in source.features:
    attach = config_lib.wing('vit_jax.data.captions:attach')
    source = attach(source, config, split)
  return source


def open_stored(config: ml_collections.ConfigDict, split: str) -> base.Source:
  """Opens a split with the captions that it has, without damaged examples."""
  source = find(config.data.name).from_config(config, split)
  if config.data.skip_damaged:
    skip = config_lib.wing('vit_jax.data.skipping:skip_damaged')
    source = skip(source, config, split)
  return source


def open_split(
  config: ml_collections.ConfigDict,
  key: str = 'data.split',
  split: str | None = None,
) -> base.Source:
  """Opens the split that a key holds, or a part of it; errors name the key."""
  if split is None:
    split = config_lib.value_at(config, key)
  try:
    return open_source(config, split)
  except splits.SplitError as e:
    hint = ''
    if e.only and key.startswith('evals.') and key.endswith('.split'):
      hint = (
        '. To hold some out, set'
        f" --config.data.split='{e.only}[:90%]' --config.{key}='{e.only}[90%:]'"
      )
    raise config_lib.UserError(f'config.{key}: {e}{hint}') from None


@dataclasses.dataclass(frozen=True)
class Splits:
  """The splits of an experiment, which are read anew at each step.

  `data.cache.Cache` is one whose examples stay in memory.
  """

  config: ml_collections.ConfigDict
  mesh: Any  # devices that steps run on
  # Sources by use: 'train', 'evals.NAME', and 'evals.NAME.train' for the
  # examples that a probe learns from.
  splits: Mapping[str, base.Source]
  # Examples by split: arrays [N, ...] by feature name, and `index`, replicated
  # over the mesh; {} unless `load` put them there.
  on_devices: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def load(self) -> 'Splits':
    """Returns the splits with what stays in memory."""
    return self

  def check(self) -> None:
    """Raises a UserError if what stays does not fit into the memory."""

  def bytes_on_device(self) -> int:
    """Returns the bytes of a device's memory that examples take."""
    return 0

  def take(self, split: str, batch: Any) -> Any:
    """Returns the batch of a step, gathered from what is `on_devices`."""
    raise NotImplementedError(f'no examples of {split} are on the devices')


def keep(
  config: ml_collections.ConfigDict,
  mesh: Any,
  splits: Mapping[str, base.Source],
) -> Splits:
  """Returns splits that stay in memory, if `config.data.cache` says so."""
  if config.data.cache == 'none':
    return Splits(config, mesh, splits)
  return config_lib.wing('vit_jax.data.cache:Cache')(config, mesh, splits)
