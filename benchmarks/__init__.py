"""Benchmarks against plain formulations of the same work, in the same run."""
