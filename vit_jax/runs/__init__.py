"""The files of a run: its directory, checkpoints, logs and records."""
