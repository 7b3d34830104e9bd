"""Operators of netlists, and the ONNX operators that they are."""

__all__ = ["ONNX_OPERATORS"]

ONNX_OPERATORS = {"product": "MatMul", "sum": "Add", "relu": "Relu"}
