"""ONNX operators by family: output types, cost, gradient, and role along a text.

A family says which inputs and attributes a cost comes from; the count itself is a function of `..formulas`.
"""
