"""A model behind HTTP: `python -m vit_jax.serve`."""
