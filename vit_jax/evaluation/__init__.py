"""Metrics over a whole split."""
