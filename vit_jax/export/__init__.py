"""Models as StableHLO and ONNX (a command)."""
