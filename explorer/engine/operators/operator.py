"""Operator record: output types, cost, gradient, and role along a text.

A family (`onnx/`) is a list of these records beside their rules; `registry` puts the families together and
hands shapes, costs, training and decode what each asks. To add an operator touches its family and nothing
else. What it means to the proof stands apart on purpose (`proof/meanings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from explorer.engine.operators.call import Call, Rule, ShapeRule
from explorer.engine.operators.gradients import Gradient, Want, pair

Role = Literal["each"]
"""What an operator does along the positions of a batch or a text: each element is made by itself."""


Layout = Literal["", "last", "attribute", "either"]
"""Where the channels of an operator's images stand. '': second; last; attribute: last if `channels_last` is
set; either: its rules need not know. In onnxruntime's NHWC domain they stand last if it is not either.
"""


Packed = tuple[tuple[int, ...], tuple[str, ...], int]
"""Inputs that hold several values in a byte; see `Operator.packed`."""


def bits_of(attributes: Mapping[str, Any], names: tuple[str, ...], default: int) -> int:
    """Bits of a packed value, from the first of the attributes that is given."""
    return next((attributes[name] for name in names if attributes.get(name)), default)


class BackwardNode(NamedTuple):
    """A node and its forward MACs, for the rule of its gradient.

    Attributes:
        call: The node.
        wants: Who wants the gradient of each input.
        macs: Of all its runs.
        trips: How often it runs.
    """

    call: Call
    wants: tuple[Want, ...]
    macs: int
    trips: int

    def want(self, index: int) -> Want:
        """Who wants the gradient of an input."""
        return self.wants[index] if index < len(self.wants) else ""

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Shape of an input; None if a size is not a known number."""
        shape = self.call.known(index)
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return tuple(d for d in shape if isinstance(d, int))


GradientRule = Callable[[BackwardNode], Gradient | None]
"""What the gradients of a node multiply; None if too little is known."""


def first_two(node: BackwardNode) -> Gradient:
    """Of an operator that multiplies its first two inputs."""
    return pair(node.macs, node.want(0), node.want(1))


def blocked(_: BackwardNode) -> Gradient:
    """No gradient flows through: steps, and outputs that do not depend on the inputs' values."""
    return Gradient()


class Operator(Struct, frozen=True):
    """One operator, or several with equal rules.

    Attributes:
        names: Operator types, apart by spaces.
        cost: The rule for the cost of a node.
        domain: Their domain, or several; '' is ONNX's own.
        shape: Types of the outputs; None leaves them to onnx.
        reads: Inputs whose contents `shape` looks at, not only their types.
        layout: Where the channels stand in its first input and its outputs.
        fresh: Whether `shape` makes names of sizes, or is told of one node; such an answer holds for it only.
        reader: Whether `cost` looks at what an input holds.
        gradient: What its gradients multiply; None if that is not known.
        statistics: Inputs that are found by counting, not by training.
        position: 'each' for one that works element by element.
        settings: Inputs that say how to compute (shapes, axes, indices, limits): never parameters.
        quantized: Whether stored inputs of any type are parameters: packed data, scales, zero points, biases.
        packed: Inputs that hold several values in a byte, the attributes of which the first that is given
            says how wide one is, the width if none is; several such groups.
        learned: Attributes that are parameters.
        rows: Inputs of which one row is read for each row of the first output.
        alias: Whether it hands a stored tensor on as the same parameter in another guise.
        view: Whether its first output is its first input under another shape: no runtime copies it.
        unread: Whether it looks at a shape, not at what is in the tensor.
    """

    names: str
    cost: Rule
    domain: str | tuple[str, ...] = ""
    shape: ShapeRule | None = None
    reads: tuple[int, ...] = ()
    layout: Layout = ""
    fresh: bool = False
    reader: bool = False
    gradient: GradientRule | None = None
    statistics: tuple[int, ...] = ()
    position: Role | None = None
    settings: tuple[int, ...] = ()
    quantized: bool = False
    packed: tuple[Packed, ...] = ()
    learned: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    alias: bool = False
    view: bool = False
    unread: bool = False
