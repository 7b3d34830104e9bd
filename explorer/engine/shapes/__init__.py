"""Shapes of every value of an ONNX model: declared, inferred, observed, and which one is used.

`inference` goes through a model with the rules of `operators.registry`, follows the contents of small values
(`constants`), and hands what is left to onnx (`onnx_pass`). Dimensions that are not numbers are expressions
(`engine.symbolic`). `observed` runs the model. What is known meanwhile is a table (`known`), and becomes
facts in `provenance`.
"""

from explorer.engine.shapes.binding import InputShapes, bind_inputs
from explorer.engine.shapes.bodies import captured_names, substituted
from explorer.engine.shapes.inference import Inference, InferredTypes, Shapes, infer

__all__ = [
    "InferredTypes",
    "Inference",
    "InputShapes",
    "Shapes",
    "bind_inputs",
    "captured_names",
    "infer",
    "substituted",
]
