"""Augmentation and normalisation of batches on the devices, under jit."""
