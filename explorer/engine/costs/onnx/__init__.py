"""Costs of an ONNX graph's layers."""
