"""Compares runs (a command)."""
