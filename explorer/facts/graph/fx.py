"""Facts of a module's graph as torch.fx has it: nodes by kind, and what each is."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from explorer.facts import Shape, TensorInfo


class FxNode(Struct, frozen=True):
    """One node.

    Attributes:
        name: In the graph.
        kind: 'placeholder', 'get_attr', 'call_function', 'call_module', 'call_method' or 'output'.
        target: What it calls or gets: a module's path, a function's name.
        type: Class of the module, 'Parameter' or 'Buffer', the module of the function.
        layer: Path of the module in which it stands; '' outside of all, or where the tracer does not say.
        dtype: Of what comes out, if that is a tensor; of several the first.
        inputs: Shapes of the tensors that go in.
        outputs: Tensors that come out.
        values: Statistics of what came out, where they were asked for, by label.
    """

    name: str
    kind: str
    target: str
    type: str
    layer: str
    dtype: str | None
    inputs: tuple[Shape | None, ...]
    outputs: tuple[TensorInfo, ...]
    values: Mapping[str, float | None] = field(default_factory=dict)


class FxGraph(Struct, frozen=True):
    """A module's graph.

    Attributes:
        traced_by: 'torch.fx', or 'torch.export' where the former cannot trace the module.
        reason: Why it cannot, and where; '' if it can.
        kinds: How many nodes of each kind there are, of all six.
        modules: How many calls there are of each class of module, most first.
        nodes: In order.
        inputs_from: How the inputs came about, where statistics were asked for.
    """

    traced_by: str
    reason: str
    kinds: Mapping[str, int]
    modules: tuple[tuple[str, int], ...]
    nodes: tuple[FxNode, ...]
    inputs_from: tuple[str, ...] = ()
