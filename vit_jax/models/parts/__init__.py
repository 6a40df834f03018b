"""Further parts of a ViT: a class each, which nothing else pays for."""
