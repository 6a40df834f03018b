"""Answers of a model for images: `python -m vit_jax.predict`."""
