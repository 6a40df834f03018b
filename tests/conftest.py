"""Eight CPU devices for all tests, and flags that nobody parses."""

import os

# Before jax starts: the tests run on the CPU, whatever else there is.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_NUM_CPU_DEVICES'] = '8'

from absl import flags

flags.FLAGS.mark_as_parsed()  # Grain reads flags
