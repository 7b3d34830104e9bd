"""Speed of a quantized file in onnxruntime: the fastest form, the integer kernels, the time of a run."""
