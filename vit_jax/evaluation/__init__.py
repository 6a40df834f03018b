"""Evaluators, selected by kind, and their metrics and reports."""
