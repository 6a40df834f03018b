"""What the CPUs of a host do: reading, decoding, batching."""
