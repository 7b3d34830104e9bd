"""Defines the operator record: output types, cost, gradient and properties of the inputs of an operator.

Each family module (in `onnx/`, for example) has a list of records and their rules. `registry` collects the
families and answers queries about shapes, costs and training. To add an operator, change only its family. Its
meaning for the proof is separate on purpose (`proof/meanings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from explorer.engine.operators.call import Call, Rule, ShapeRule
from explorer.engine.operators.gradients import Gradient, GradientPurpose, product_gradient

Role = Literal["each"]
"""Behavior along the positions of a batch or sequence. 'each': an output element depends on one position."""


Layout = Literal["", "last", "attribute", "either"]
"""Position of the channel axis in an operator's images.

- '': the second axis. In onnxruntime's NHWC domain: the last axis.
- 'last': the last axis.
- 'attribute': the last axis if the attribute `channels_last` is set, else the second.
- 'either': the rules do not depend on the position.
"""


Packed = tuple[tuple[int, ...], tuple[str, ...], int]
"""Inputs with several values in a byte: (input indices, attributes with the bits per value, default bits).

A node uses its first attribute in this list, or the default without any.
"""


def get_bits(attributes: Mapping[str, Any], names: tuple[str, ...], default: int) -> int:
    """Returns the bits of a packed value from the first attribute in `names` that the node has."""
    return next((attributes[name] for name in names if attributes.get(name)), default)


class BackwardNode(NamedTuple):
    """Argument of a gradient rule: a node, and how often it multiplies in the forward pass.

    Attributes:
        call: Node.
        gradient_purposes: Purpose of the gradient of each input; see `GradientPurpose`.
        macs: Forward MACs of all executions of the node.
        trips: Number of executions.
    """

    call: Call
    gradient_purposes: tuple[GradientPurpose, ...]
    macs: int
    trips: int

    def gradient_purpose(self, index: int) -> GradientPurpose:
        """Returns the purpose of the gradient of the input at `index`."""
        return self.gradient_purposes[index] if index < len(self.gradient_purposes) else ""

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Returns the shape of the input at `index`, or None if a size is not a number."""
        shape = self.call.shape_or_none(index)
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return tuple(d for d in shape if isinstance(d, int))


GradientRule = Callable[[BackwardNode], Gradient | None]
"""Function that counts the MACs of a node's gradients, or returns None if a shape is unknown."""


def multiply_first_two(node: BackwardNode) -> Gradient:
    """Returns the gradients of an operator that multiplies its first two inputs."""
    return product_gradient(node.macs, node.gradient_purpose(0), node.gradient_purpose(1))


def blocked(_: BackwardNode) -> Gradient:
    """Returns no gradients, for step functions and for outputs that do not depend on values."""
    return Gradient()


class Operator(Struct, frozen=True):
    """Record of one operator, or of several operators with equal rules. Inputs are given by their index.

    Attributes:
        names: Operator types, separated by spaces.
        cost: Cost rule.
        domain: Domain or domains of the operators; '' is the ONNX standard.
        shape: Shape rule, or None to use the inference of the onnx package.
        shape_reads: Inputs whose contents `shape` reads.
        layout: Position of the channel axis in the first input and in the outputs.
        node_specific: Whether the result of `shape` is valid for one node only, because it contains new
            symbolic sizes or depends on the node.
        cost_reads: Whether `cost` reads the contents of an input.
        gradient: Gradient rule, or None if the gradients are unknown.
        statistics: Inputs with running statistics, which are not trained by gradients.
        position: 'each' for an operator that works element by element, else None.
        settings: Inputs that configure the operator (shapes, axes, indices, limits) and are never parameters.
        quantized: Whether stored inputs of any type are parameters: packed data, scales, zero points, biases.
        packed: Inputs with several values in a byte; see `Packed`.
        learned: Attributes that contain parameters.
        rows: Inputs of which one row is read for each row of the first output.
        same_parameter: Whether the output counts as the same parameter as a stored input, in another form.
        view: Whether the first output is the first input with another shape, which runtimes do not copy.
        reads_only_shape: Whether the operator reads the shape of its input, but not the contents.
    """

    names: str
    cost: Rule
    domain: str | tuple[str, ...] = ""
    shape: ShapeRule | None = None
    shape_reads: tuple[int, ...] = ()
    layout: Layout = ""
    node_specific: bool = False
    cost_reads: bool = False
    gradient: GradientRule | None = None
    statistics: tuple[int, ...] = ()
    position: Role | None = None
    settings: tuple[int, ...] = ()
    quantized: bool = False
    packed: tuple[Packed, ...] = ()
    learned: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    same_parameter: bool = False
    view: bool = False
    reads_only_shape: bool = False
