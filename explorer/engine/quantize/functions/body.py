"""Body of a number format's function: operators in float32, attributes of the call as numbers."""

from __future__ import annotations

import math

import numpy as np

from explorer.engine.graph.model import AttributeRef
from explorer.engine.tiling.builder import Emission, GraphBuilder

INTEGER = 2
"""AttributeProto.AttributeType of an integer."""


class FunctionBody(GraphBuilder):
    """The body of a function that computes in float32 and returns Y."""

    @classmethod
    def of_opset(cls, opset: int) -> FunctionBody:
        """An empty one, in this version of the default operator set."""
        return cls(Emission(opset, set()), "", "")

    def of(self, op: str, label: str, *inputs: str) -> str:
        """Adds an operator without attributes."""
        return self.add(op, inputs, label)

    def real(self, value: float, label: str) -> str:
        """A constant."""
        return self.number(value, np.float32, label)

    def flag(self, name: str) -> str:
        """An integer attribute of the call, as 0.0 or 1.0."""
        whole = self.add("Constant", (), f"{name}_int", attributes={"value_int": AttributeRef(name, INTEGER)})
        return self.cast(whole, "float32", name)


def log_of_two(to: FunctionBody, x: str, label: str) -> str:
    """log2, as near as float32's logarithm is."""
    factor = to.real(1 / math.log(2), f"{label}_log2_e")
    return to.of("Mul", f"{label}_log2", to.of("Log", f"{label}_log", x), factor)


def step_of(to: FunctionBody, x: str, least_exponent: str, last_bit: str) -> str:
    """Distance of a float's numbers around `x`: of the last bit, at the exponent of `x` or the least."""
    exponent = to.of("Floor", "exponent", log_of_two(to, to.of("Abs", "magnitude", x), "magnitude"))
    reached = to.of("Max", "exponent_or_least", exponent, least_exponent)
    return to.of("Pow", "step", to.real(2, "base"), to.of("Add", "step_exponent", reached, last_bit))
