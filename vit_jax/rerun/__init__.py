"""Repeats a step or all steps of an earlier run."""
