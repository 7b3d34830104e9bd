"""ONNX operators by family: what each makes, costs, multiplies backward, and does along a text."""
