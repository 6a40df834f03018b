"""Meshes, sharding rules, processes and the hardware they run on."""
