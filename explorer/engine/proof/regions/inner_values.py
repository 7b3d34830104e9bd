"""Makes the operands of a region values of its main graph, including those in bodies of loops and branches.

An operand in the body of a Loop or Scan becomes another output of the body, which the runtime stacks over all
iterations. The nodes of a branch run next to the If, and their operands count only if the condition chose the
branch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value, list_bodies, replace_bodies
from explorer.engine.graph.repeated_nodes import create_free_name, list_value_names
from explorer.engine.proof.regions.bend_points import OperandWatch, find_dependent_values, watch_nodes
from explorer.engine.proof.regions.value_bounds import UNKNOWN, Bounds, compute_bounds

_LOOPS = ("Loop", "Scan")


class Watched(Struct, frozen=True):
    """A region whose operands are values of its main graph.

    Attributes:
        model: The region as a model. The operands are values of its graph, but not outputs yet.
        watches: Operands to watch.
    """

    model: Model
    watches: tuple[OperandWatch, ...]


def watch_region(
    model: Model, inputs: Mapping[str, str], changed: Collection[str], *, bodies: bool = True
) -> Watched:
    """Lists the operands of a region to watch, and makes those in bodies values of the main graph.

    Args:
        model: The region as a model, with computed constants stored.
        inputs: Element type of each input, by name.
        changed: Names of the inputs that runs change.
        bodies: Whether to look into bodies of loops and branches.
    """
    watcher = _Watcher(model, set(list_value_names(model.graph)), bodies)
    types = dict(inputs)
    nodes, watches = watcher.watch(model.graph.nodes, dict(model.graph.initializers), {}, types, set(changed))
    graph = replace(model.graph, nodes=tuple(nodes)) if bodies else model.graph
    return Watched(replace(model, graph=graph), tuple(watches))


class _Watcher:
    """Collects the operands of a model's graphs."""

    def __init__(self, model: Model, used_names: set[str], bodies: bool) -> None:
        self.model, self.used_names, self.bodies = model, used_names, bodies

    def watch(
        self,
        nodes: Iterable[Node],
        tensors: dict[str, Tensor],
        outer: Mapping[str, Bounds],
        types: Mapping[str, str],
        dependent: Collection[str],
    ) -> tuple[list[Node], list[OperandWatch]]:
        """Lists the operands of one graph and of its bodies.

        Args:
            nodes: Nodes of the graph.
            tensors: Stored tensors that the graph can read, by name.
            outer: Bounds of the inputs and of the values of the enclosing graphs.
            types: Element types of inputs by name.
            dependent: Names of the values that synthetic inputs change.

        Returns:
            The nodes with operands of bodies as outputs, and the operands.
        """
        guards: dict[int, tuple[str, bool]] = {}
        expanded = list(self._expand_branches(nodes, guards)) if self.bodies else list(nodes)
        tensors = {**tensors}
        tensors.update((n.outputs[0], t) for n in expanded if (t := read_constant(n)) is not None)
        bounds = {**outer, **compute_bounds(expanded, types, tensors, outer)}
        all_dependent = find_dependent_values(expanded, dependent)
        watches: list[OperandWatch] = []
        new_nodes: list[Node] = []
        for node in expanded:
            if node.op in _LOOPS and not node.domain and self.bodies:
                node, inner = self._watch_body(node, tensors, bounds, all_dependent)
            else:
                inner = watch_nodes(self.model, [node], bounds, tensors, all_dependent)
            if id(node) in guards:
                name, value = guards[id(node)]
                inner = [replace(watch, guard=name, guard_value=value) for watch in inner]
            new_nodes.append(node)
            watches += inner
        return new_nodes, watches

    def _expand_branches(self, nodes: Iterable[Node], guards: dict[int, tuple[str, bool]]) -> Iterable[Node]:
        """Yields the nodes, and before each If the nodes of both branches under new names.

        The condition of each node of a branch is added to `guards`.
        """
        for node in nodes:
            if node.op == "If" and not node.domain:
                for key, body in list_bodies(node):
                    for inner in self._expand_branches(self._rename(body), guards):
                        guards.setdefault(id(inner), (node.inputs[0], key == "then_branch"))
                        yield inner
            yield node

    def _rename(self, body: Graph) -> Iterable[Node]:
        """Yields the nodes of a branch under other names, and its stored tensors as Constant nodes.

        The nodes from the first one whose own body reads a value of the branch are left out.
        """
        names: dict[str, str] = {}
        for name, tensor in body.initializers.items():
            names[name] = create_free_name(name, self.used_names)
            yield Node("Constant", (), (names[name],), attributes={"value": tensor})
        for node in body.nodes:
            if not names.keys().isdisjoint(_list_reads_of_bodies(node)):
                return  # a body inside the branch reads renamed values
            for output in filter(None, node.outputs):
                names[output] = create_free_name(output, self.used_names)
            yield node.replace_values(
                [names.get(name, name) for name in node.inputs],
                [names.get(name, "") for name in node.outputs],
            )

    def _watch_body(
        self,
        node: Node,
        tensors: Mapping[str, Tensor],
        outer: Mapping[str, Bounds],
        dependent: Collection[str],
    ) -> tuple[Node, list[OperandWatch]]:
        """Adds the operands in the body of a loop to its outputs."""
        ((key, body),) = list_bodies(node)
        inputs = [value.name for value in body.inputs]
        bounds = {name: bound for name, bound in outer.items() if name not in inputs}
        bounds.update(dict.fromkeys(inputs, UNKNOWN))
        if node.op == "Loop" and inputs:
            bounds[inputs[0]] = Bounds(0.0, is_integer=True)
        inner_dependent = set(dependent) - set(inputs)
        if not inner_dependent.isdisjoint(list_reads(node)):
            inner_dependent.update(inputs)
        visible_tensors = {**{n: t for n, t in tensors.items() if n not in inputs}, **body.initializers}
        nodes, watches = self.watch(body.nodes, visible_tensors, bounds, {}, inner_dependent)
        body_names = {
            *inputs,
            *body.initializers,
            *(name for inner in nodes for name in inner.outputs if name),
        }
        watched_names = [
            n for n in dict.fromkeys(n for watch in watches for n in watch.reads) if n in body_names
        ]
        if not watched_names:
            return node, watches
        copies = {name: create_free_name(f"{name}/watched", self.used_names) for name in watched_names}
        outputs = {name: create_free_name(f"{name}/iterations", self.used_names) for name in watched_names}
        identities = [Node("Identity", (name,), (copy,)) for name, copy in copies.items()]
        new_body = replace(
            body,
            nodes=(*nodes, *identities),
            outputs=(*body.outputs, *(Value(copy, None, None) for copy in copies.values())),
        )
        node = replace_bodies(node, {key: new_body})
        lists = {
            name: (*node.attributes[name], *(0 for _ in watched_names))
            for name in ("scan_output_axes", "scan_output_directions")
            if name in node.attributes
        }
        node = node.replace_attributes({**node.attributes, **lists})
        node = node.replace_values(node.inputs, (*_pad_outputs(node, body), *outputs.values()))
        return node, [_rename_watch(watch, outputs) for watch in watches]


def _list_reads_of_bodies(node: Node) -> set[str]:
    """Lists the values that bodies of a node read from the enclosing graph."""
    return set(list_reads(node)) - set(node.inputs) if list_bodies(node) else set()


def _pad_outputs(node: Node, body: Graph) -> Sequence[str]:
    """Returns the outputs of a loop, with '' for the last ones that the node omits."""
    count = len(body.outputs) - (node.op == "Loop")
    return (*node.outputs, *("" for _ in range(count - len(node.outputs))))


def _rename_watch(watch: OperandWatch, names: Mapping[str, str]) -> OperandWatch:
    return replace(
        watch,
        stacked=all(name in names for name in watch.names),
        names=tuple(names.get(name, name) for name in watch.names),
        guard=names.get(watch.guard, watch.guard),
    )
