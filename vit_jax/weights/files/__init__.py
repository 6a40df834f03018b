"""Containers of arrays: npz, safetensors, PyTorch's archives."""
