"""Builder of the body of a number format's function: float32 operators and attributes of the call."""

from __future__ import annotations

import math

import numpy as np

from explorer.engine.graph.model import AttributeRef
from explorer.engine.tiling.builder import Emission, GraphBuilder

INTEGER = 2
"""Value of AttributeProto.AttributeType for an integer."""


class FunctionBody(GraphBuilder):
    """Body of a function that computes in float32 and returns Y."""

    @classmethod
    def create(cls, opset: int) -> FunctionBody:
        """Creates an empty body in a version of the default operator set."""
        return cls(Emission(opset, set()), "", "")

    def op(self, op: str, label: str, *inputs: str) -> str:
        """Adds an operator without attributes; returns the name of its output."""
        return self.add(op, inputs, label)

    def real(self, value: float, label: str) -> str:
        """Adds a float32 constant; returns its name."""
        return self.add_number(value, np.float32, label)

    def flag(self, name: str) -> str:
        """Converts an value attribute of the call to 0.0 or 1.0; returns the name of the value."""
        value = self.add("Constant", (), f"{name}_int", attributes={"value_int": AttributeRef(name, INTEGER)})
        return self.cast(value, "float32", name)


def add_log_of_two(body: FunctionBody, x: str, label: str) -> str:
    """Adds the base-2 logarithm of `x`, with the accuracy of float32's natural logarithm."""
    factor = body.real(1 / math.log(2), f"{label}_log2_e")
    return body.op("Mul", f"{label}_log2", body.op("Log", f"{label}_log", x), factor)


def add_step(body: FunctionBody, x: str, least_exponent: str, last_bit: str) -> str:
    """Adds the distance between neighboring floats of a format at `x`.

    The distance is 2 ** (max(exponent of x, `least_exponent`) + `last_bit`).
    """
    exponent = body.op("Floor", "exponent", add_log_of_two(body, body.op("Abs", "magnitude", x), "magnitude"))
    reached = body.op("Max", "exponent_or_least", exponent, least_exponent)
    return body.op("Pow", "step", body.real(2, "base"), body.op("Add", "step_exponent", reached, last_bit))
