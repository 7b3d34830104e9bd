"""Speed of a quantized file in onnxruntime: the fastest form, the kernels of its layers, and run times."""
