"""ONNX operators by family: what each makes, costs, multiplies backward, and does along a text.

A family says which inputs and attributes a cost comes from; the count itself is a function of `..formulas`.
"""
