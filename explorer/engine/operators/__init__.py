"""Operators: what each costs, makes and is in a backward pass or a text, in one record.

How many MACs a Conv or a MatMul of some shapes takes is in `cost_formulas` (`convolution`: Conv), once for
ONNX and PyTorch; a family in `onnx/` says which inputs and attributes of a node those shapes come from.
"""
