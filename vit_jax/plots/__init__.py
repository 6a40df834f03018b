"""Canvases, charts and tiles that pictures are made of."""
