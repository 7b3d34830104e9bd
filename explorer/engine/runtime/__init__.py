"""Models run: onnxruntime sessions, the reference evaluator, random inputs, work in parallel."""
