"""Checkpoint formats of other libraries: names, shapes and configs."""
