"""Operators: cost, output types, gradient and role along a text, in one record each.

How many MACs a Conv or a MatMul of some shapes takes is in `cost_formulas` (`convolution`: Conv), once for
ONNX and PyTorch; a family in `onnx/` says which inputs and attributes of a node those shapes come from.
"""
