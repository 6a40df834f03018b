"""Steps of a finished run, computed again."""
