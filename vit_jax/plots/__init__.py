"""Canvases, charts and tiles for pictures."""
