"""The program `vit-jax`, as `python -m vit_jax VERB`."""

from vit_jax.cli import verbs

if __name__ == '__main__':
  verbs.run()
