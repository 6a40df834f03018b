"""Runs beside each other (a command)."""
