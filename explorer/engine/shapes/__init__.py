"""Finds the shapes of every value of a model: declared, inferred or observed.

`inference` infers a model with the rules of `operators.registry`, computes the contents of small values
(`constants`), and passes the remaining nodes to onnx (`onnx_pass`). Dimensions that are not numbers are
symbolic expressions (`engine.symbolic`). `runtime_shapes` observes shapes in a run. During inference the
known types are in a `ShapeTable` (`shape_table`). `provenance` converts them to facts with an origin.
"""

from explorer.engine.shapes.binding import InputShapes, bind_inputs
from explorer.engine.shapes.bodies import find_captured_names, substitute_attributes
from explorer.engine.shapes.inference import Inference, InferredTypes, Shapes, infer

__all__ = [
    "InferredTypes",
    "Inference",
    "InputShapes",
    "Shapes",
    "bind_inputs",
    "find_captured_names",
    "infer",
    "substitute_attributes",
]
