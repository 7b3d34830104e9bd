"""Describes each operator in one record: its cost, output types, gradient and elementwise role.

`cost_formulas` computes the MACs of a Conv or a MatMul from plain shapes, for ONNX and PyTorch alike. Each
module in `onnx/` covers one family of operators and takes these shapes from a node's inputs and attributes.
"""
