"""Parameters, memory and collectives of a config (a command)."""
