"""Graph under rewriting: tracks the maker and the readers of each value while nodes and weights change.

Values that are visible outside keep their names: inputs, outputs, and values that bodies read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from explorer.engine import shapes
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.constant_nodes import constant_of
from explorer.engine.graph.interpreter import free_names, reads
from explorer.engine.graph.model import AttributeRef, Graph, Model, Node, Tensor, subgraphs, with_bodies
from explorer.engine.graph.repeated_nodes import free_name, value_names
from explorer.engine.shapes.subgraphs import body_name
from explorer.facts import TensorInfo
from explorer.facts.split.fold import FoldedNode, NodeLeft


class FoldingGraph:
    """A graph under rewriting: a model's main graph, a function, or a body inside one of them.

    Args:
        model: A model with this graph as its main graph.
        only: Places of the nodes that may be removed; None for all.
        around: The graph around a body, whose values the body can read.
        path: A prefix for the names of its nodes; '' for the main graph.

    Attributes:
        nodes: Its nodes; None for a removed node.
        stored: Its stored tensors.
        folded: The nodes that were folded.
        left: The nodes that stay, and why.
        places: The place of each folded node, and the places of the nodes that took over.
        sizes: For each new tensor, by name, the element-wise magnitude of the terms that were added up, from
            which its rounding is estimated; None for the tensor itself.
    """

    def __init__(
        self,
        model: Model,
        only: Collection[int] | None = None,
        around: FoldingGraph | None = None,
        path: str = "",
    ) -> None:
        graph = model.graph
        self.model = model
        self.only = only
        self.around, self.path = around, path
        self._called: bool = bool(path) if around is None else around._called
        self.places: list[tuple[int, tuple[int, ...]]] = []
        self.sizes: dict[str, Array | None] = {}
        self.nodes: list[Node | None] = list(graph.nodes)
        self.stored = dict(graph.initializers)
        self.folded: list[FoldedNode] = []
        self.left: list[NodeLeft] = []
        self.maker = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.readers: dict[str, Counter[int]] = {}
        self.captured: set[str] = set()
        for at, node in enumerate(graph.nodes):
            self._register_reads(at, node)
        self._ends = {value.name for value in graph.outputs}
        self._given = {value.name for value in graph.inputs}
        self._taken: set[str] = set(value_names(graph)) if around is None else around._taken
        self._idle: set[str] = set()

    def candidates(self, *ops: str) -> Iterator[tuple[int, Node]]:
        """Nodes of the given operators (none: of all) that still exist when their turn comes."""
        for at in range(len(self.nodes)):
            node = self.nodes[at]
            if node is None or node.domain or (ops and node.op not in ops):
                continue
            if self.only is not None and at not in self.only:
                continue
            if not self.refers(node):
                yield at, node
            elif ops:
                self.stay(node, "the function's caller gives an attribute of it")

    @cached_property
    def types(self) -> Mapping[str, TensorInfo]:
        """Types of the values in the original graph."""
        graph = self.model.graph
        outer = {name: tensor for name in free_names(graph) if (tensor := self.constant(name)) is not None}
        whole = replace(graph, initializers={**graph.initializers, **outer})
        return shapes.infer(replace(self.model, graph=whole)).values

    def fold_bodies(self, run: Callable[[FoldingGraph], None]) -> None:
        """Applies a pass to the bodies inside its nodes."""
        for at, node in enumerate(self.nodes):
            changed: dict[str, Graph] = {}
            for name, body in () if node is None or node.domain else subgraphs(node):
                assert node is not None
                path = f"{self.path}{body_name(node, name)}/"
                inner = FoldingGraph(replace(self.model, graph=body), around=self, path=path)
                run(inner)
                inner.fold_bodies(run)
                self.folded += inner.folded
                self.left += inner.left
                if inner.folded:
                    changed[name] = inner.model_now().graph
            if node is not None and changed:
                self.put(at, with_bodies(node, changed))

    def refers(self, node: Node) -> bool:
        """Whether an attribute of a node comes from the call of the function around it."""
        return self._called and any(isinstance(value, AttributeRef) for value in node.attributes.values())

    def constant(self, name: str) -> Tensor | None:
        """The constant tensor behind a value; None if a node computes it or a caller may replace it."""
        if name in self.stored:
            return None if name in self.model.defaults else self.stored[name]
        if owner := self._owner(name):
            return owner.constant(name)
        maker_at = self.maker.get(name)
        node = None if maker_at is None else self.nodes[maker_at]
        tensor = None if node is None else constant_of(node)
        return None if tensor is None else replace(tensor, name=name, record=None)  # an attribute has no name

    def why_not_constant(self, name: str, role: str) -> str:
        """Why a value is not constant, in words."""
        if owner := self._owner(name):
            return owner.why_not_constant(name, role)
        if name in self.model.defaults:
            return f"{role} '{name}' is an input with a default: a caller may give another"
        maker_at = self.maker.get(name)
        node = None if maker_at is None else self.nodes[maker_at]
        input_text = f"an input of the {self._kind}" if self.path else "an input"
        return f"{role} '{name}' is {input_text if node is None else f'computed ({node.op})'}"

    def _owner(self, name: str) -> FoldingGraph | None:
        """The outer graph that defines a value; None if this graph does."""
        is_own = name in self.maker or name in self._given or name in self.stored
        return None if is_own else self.around

    @property
    def _kind(self) -> str:
        return "body" if self.around is not None else "function" if self.path else "graph"

    def read_by(self, name: str) -> list[int]:
        """Places of the nodes that read a value."""
        return sorted(self.readers.get(name, ()))

    def why_seen(self, name: str) -> str:
        """Why a value is visible outside the graph's nodes; '' if it is not."""
        if name in self._ends:
            return f"is an output of the {self._kind}"
        return "is read within a body" if name in self.captured else ""

    def stay(self, node: Node, reason: str) -> None:
        """Records why a node stays."""
        self.left.append(NodeLeft(self.path + node.label, node.op, reason))

    def remove(self, at: int, into: Sequence[int] = (), beside: Sequence[int] = ()) -> None:
        """Removes a node. The nodes at `into` do its work now; those at `beside` add a bias for them."""
        node = self._take_node(at)
        doing = [doer for place in into if (doer := self.nodes[place]) is not None]
        op = doing[0].op if doing else ""
        names = tuple([self.path + doer.label for doer in doing])
        self.folded.append(FoldedNode(self.path + node.label, node.op, names, op))
        self.places.append((at, (*into, *beside)))

    def put(self, at: int, node: Node) -> None:
        """Replaces the node at a place."""
        self._take_node(at)
        self.nodes[at] = node
        for name in node.outputs:
            if name:
                self.maker[name] = at
        self._register_reads(at, node)

    def redirect(self, name: str, to: str) -> None:
        """Makes every reader of a value read another value."""
        for at in self.read_by(name):
            node = self.nodes[at]
            assert node is not None
            inputs = [to if input_name == name else input_name for input_name in node.inputs]
            self.put(at, node.with_values(inputs, node.outputs))

    def rename(self, name: str, to: str) -> None:
        """Renames a value that a node makes."""
        at = self.maker.pop(name)
        node = self.nodes[at]
        assert node is not None
        outputs = [to if output_name == name else output_name for output_name in node.outputs]
        self.put(at, node.with_values(node.inputs, outputs, node.label))
        self.redirect(name, to)

    def renamable(self, name: str) -> bool:
        """Whether a value may be renamed: a node makes it, and its name is not visible outside."""
        return name in self.maker and name not in self._ends and name not in self.captured

    def store(self, tensor: Tensor, base: str) -> str:
        """Stores a new tensor under a free name; for a body, in the outermost graph around it."""
        if self.around is not None:
            return self.around.store(tensor, base)
        name = free_name(base, self._taken)
        self.stored[name] = replace(tensor, name=name)
        return name

    def keep(self, tensor: Tensor, reader: int, old: str, base: str = "", size: Array | None = None) -> str:
        """Stores a new tensor for one reader, under the old name if nothing else reads the old tensor."""
        name = self._store_for(tensor, reader, old, base)
        self.sizes[name] = size
        return name

    def _store_for(self, tensor: Tensor, reader: int, old: str, base: str) -> str:
        node = self.nodes[reader]
        alone = self.read_by(old) == [reader] and node is not None and node.inputs.count(old) == 1
        if old in self.stored and alone and not self.why_seen(old):
            self.stored[old] = replace(tensor, name=old)
            return old
        return self.store(tensor, f"{old}_folded" if old else base)

    def model_now(self) -> Model:
        """The rewritten model, without nodes and tensors that only removed nodes used."""
        graph = self.model.graph
        used = {name for node in self.nodes if node is not None for name in reads(node)} | self._ends
        self.nodes = [None if self._is_idle(node, used) else node for node in self.nodes]
        nodes = tuple([node for node in self.nodes if node is not None])
        initializers = {
            name: tensor
            for name, tensor in self.stored.items()
            if name in used or (name in graph.initializers and name not in self._idle)
        }
        defined = {name for node in nodes for name in node.outputs} | {*initializers}
        inputs = [v for v in graph.inputs if v.name not in graph.initializers or v.name in initializers]
        values = tuple([value for value in graph.values if value.name in defined])
        return replace(
            self.model,
            graph=replace(graph, nodes=nodes, inputs=tuple(inputs), initializers=initializers, values=values),
        )

    def _is_idle(self, node: Node | None, used: Collection[str]) -> bool:
        """Whether a Constant was used only by removed nodes."""
        if node is None or constant_of(node) is None:
            return False
        return node.outputs[0] not in used and node.outputs[0] in self._idle

    def _take_node(self, at: int) -> Node:
        node = self.nodes[at]
        assert node is not None
        self.nodes[at] = None
        for name in reads(node):
            self._idle.add(name)
            self.readers[name][at] -= 1
            if not self.readers[name][at]:
                del self.readers[name][at]
        for name in node.outputs:
            if self.maker.get(name) == at:
                del self.maker[name]
        return node

    def _register_reads(self, at: int, node: Node) -> None:
        direct = Counter(name for name in node.inputs if name)
        every = Counter(reads(node))
        for name, count in every.items():
            self.readers.setdefault(name, Counter())[at] += count
        self.captured.update((every - direct).keys())
