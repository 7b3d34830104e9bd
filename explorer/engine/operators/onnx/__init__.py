"""Records of the ONNX operators, one module for each family.

A record takes shapes from a node's inputs and attributes; `cost_formulas` computes the cost from them.
"""
