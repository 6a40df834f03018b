"""Compiles training steps for devices that are not here, and reads them."""
