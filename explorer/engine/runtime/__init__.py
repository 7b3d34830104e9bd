"""Running models: onnxruntime sessions, the reference evaluator, random inputs, parallel work."""
