"""Reading, decoding and batching, on the CPUs of a host."""
