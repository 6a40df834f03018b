"""The common part of all commands: flags, errors and exit statuses."""

from vit_jax.cli.definitions import check_from as check_from
from vit_jax.cli.definitions import config_path as config_path
from vit_jax.cli.definitions import define_compile_cache as define_compile_cache
from vit_jax.cli.definitions import define_config as define_config
from vit_jax.cli.definitions import define_format as define_format
from vit_jax.cli.definitions import define_from as define_from
from vit_jax.cli.definitions import define_overrides as define_overrides
from vit_jax.cli.definitions import define_path as define_path
from vit_jax.cli.definitions import define_quantize as define_quantize
from vit_jax.cli.definitions import define_texts as define_texts
from vit_jax.cli.definitions import define_workdir as define_workdir
from vit_jax.cli.definitions import load as load
from vit_jax.cli.definitions import missing as missing
from vit_jax.cli.definitions import parse_flags as parse_flags
from vit_jax.cli.definitions import parse_size as parse_size
from vit_jax.cli.definitions import refuse_arguments as refuse_arguments
from vit_jax.cli.status import run as run
