"""Computes the costs of an ONNX graph's layers."""
