"""Speed of a quantized file in onnxruntime: which form is fast, what runs on integers, how long it takes."""
