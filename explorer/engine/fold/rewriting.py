"""A graph under rewriting: tracks the producer and the readers of each value while nodes and weights change.

Values that are visible outside of the graph keep their names: inputs, outputs, and values that bodies read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from explorer.engine import shapes
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.interpreter import list_free_names, list_reads
from explorer.engine.graph.model import AttributeRef, Graph, Model, Node, Tensor, list_bodies, replace_bodies
from explorer.engine.graph.repeated_nodes import create_free_name, list_value_names
from explorer.engine.shapes.subgraphs import name_body
from explorer.facts import TensorInfo
from explorer.facts.split.fold import FoldedNode, NodeLeft


class FoldingGraph:
    """A graph under rewriting: a model's main graph, a function, or a body in one of them.

    Args:
        model: Model with this graph as its main graph.
        only: Indices of the nodes that may be removed, or None for all.
        outer: Graph that encloses a body, whose values the body can read; None for other graphs.
        path: Prefix for the names of its nodes; '' for the main graph.

    Attributes:
        nodes: Nodes of the graph; None for a removed node.
        stored: Stored tensors by name.
        folded: Nodes that were folded.
        unfolded: Nodes that stay, with the reason.
        replacements: Index of each folded node, and the indices of the nodes that replace it.
        magnitudes: For each new tensor, by name, the element-wise magnitude of the summed terms, which bounds
            its rounding error; None if it is the tensor's own magnitude.
        producers: Index of the node that produces a value, by name.
        readers: Indices of the nodes that read a value, with the number of reads, by name.
        captured: Names of the values that bodies of its nodes read.
    """

    def __init__(
        self,
        model: Model,
        only: Collection[int] | None = None,
        outer: FoldingGraph | None = None,
        path: str = "",
    ) -> None:
        graph = model.graph
        self.model = model
        self.only = only
        self.outer, self.path = outer, path
        self._is_in_function: bool = bool(path) if outer is None else outer._is_in_function
        self.replacements: list[tuple[int, tuple[int, ...]]] = []
        self.magnitudes: dict[str, Array | None] = {}
        self._shared_names: dict[tuple[str, str, tuple[int, ...], bytes], str] = {}
        self.nodes: list[Node | None] = list(graph.nodes)
        self.stored = dict(graph.initializers)
        self.folded: list[FoldedNode] = []
        self.unfolded: list[NodeLeft] = []
        self.producers = {
            name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name
        }
        self.readers: dict[str, Counter[int]] = {}
        self.captured: set[str] = set()
        for index, node in enumerate(graph.nodes):
            self._register_reads(index, node)
        self._output_names = {value.name for value in graph.outputs}
        self._input_names = {value.name for value in graph.inputs}
        self._used_names: set[str] = set(list_value_names(graph)) if outer is None else outer._used_names
        self._unread: set[str] = set()
        """Names of the values that a removed or replaced node read."""

    def iterate_candidates(self, *ops: str) -> Iterator[tuple[int, Node]]:
        """Yields each node of the default domain that the pass may change, after its index.

        A node that the pass removes before the iteration arrives at it is not yielded. A node whose attribute
        refers to the function's call is recorded as unfolded, unless all operators are candidates.

        Args:
            *ops: Operators of the nodes; none for all operators.
        """
        for index in range(len(self.nodes)):
            node = self.nodes[index]
            if node is None or node.domain or (ops and node.op not in ops):
                continue
            if self.only is not None and index not in self.only:
                continue
            if not self.uses_call_attribute(node):
                yield index, node
            elif ops:
                self.record_unfolded(node, "the function's caller gives an attribute of it")

    @cached_property
    def types(self) -> Mapping[str, TensorInfo]:
        """Types of the values in the original graph."""
        graph = self.model.graph
        outer = {
            name: tensor
            for name in list_free_names(graph)
            if (tensor := self.find_constant(name)) is not None
        }
        closed_graph = replace(graph, initializers={**graph.initializers, **outer})
        return shapes.infer(replace(self.model, graph=closed_graph)).values

    def fold_bodies(self, fold_graph: Callable[[FoldingGraph], None]) -> None:
        """Applies a pass to the bodies of its nodes."""
        for index, node in enumerate(self.nodes):
            changed: dict[str, Graph] = {}
            for name, body in () if node is None or node.domain else list_bodies(node):
                assert node is not None
                path = f"{self.path}{name_body(node, name)}/"
                inner = FoldingGraph(replace(self.model, graph=body), outer=self, path=path)
                fold_graph(inner)
                inner.fold_bodies(fold_graph)
                self.folded += inner.folded
                self.unfolded += inner.unfolded
                if inner.folded:
                    changed[name] = inner.build_model().graph
            if node is not None and changed:
                self.replace_node(index, replace_bodies(node, changed))

    def uses_call_attribute(self, node: Node) -> bool:
        """Whether an attribute of a node refers to an attribute of the enclosing function's call."""
        return self._is_in_function and any(
            isinstance(value, AttributeRef) for value in node.attributes.values()
        )

    def find_constant(self, name: str) -> Tensor | None:
        """Returns the constant tensor of a value, or None if it is computed or a caller may replace it."""
        if name in self.stored:
            return None if name in self.model.defaults else self.stored[name]
        if owner := self._find_owner(name):
            return owner.find_constant(name)
        producer_index = self.producers.get(name)
        node = None if producer_index is None else self.nodes[producer_index]
        tensor = None if node is None else read_constant(node)
        return None if tensor is None else replace(tensor, name=name, record=None)  # an attribute has no name

    def explain_not_constant(self, name: str, role: str) -> str:
        """Returns the reason why a value is not constant."""
        if owner := self._find_owner(name):
            return owner.explain_not_constant(name, role)
        if name in self.model.defaults:
            return f"{role} '{name}' is an input with a default: a caller may give another"
        producer_index = self.producers.get(name)
        node = None if producer_index is None else self.nodes[producer_index]
        input_text = f"an input of the {self._kind}" if self.path else "an input"
        return f"{role} '{name}' is {input_text if node is None else f'computed ({node.op})'}"

    def _find_owner(self, name: str) -> FoldingGraph | None:
        """Returns the enclosing graph if this graph does not define the value; None otherwise."""
        is_own = name in self.producers or name in self._input_names or name in self.stored
        return None if is_own else self.outer

    @property
    def _kind(self) -> str:
        return "body" if self.outer is not None else "function" if self.path else "graph"

    def list_readers(self, name: str) -> list[int]:
        """Returns the indices of the nodes that read a value."""
        return sorted(self.readers.get(name, ()))

    def explain_visibility(self, name: str) -> str:
        """Returns the reason why a value is visible outside the graph's nodes, or ''."""
        if name in self._output_names:
            return f"is an output of the {self._kind}"
        return "is read within a body" if name in self.captured else ""

    def record_unfolded(self, node: Node, reason: str) -> None:
        """Records the reason why a node stays."""
        self.unfolded.append(NodeLeft(self.path + node.label, node.op, reason))

    def remove(
        self, index: int, target_indices: Sequence[int] = (), bias_indices: Sequence[int] = ()
    ) -> None:
        """Removes a node.

        Args:
            index: Index of the node.
            target_indices: Indices of the nodes that do its work instead.
            bias_indices: Indices of the nodes that add a bias for them.
        """
        node = self._unregister(index)
        targets = [
            target for target_index in target_indices if (target := self.nodes[target_index]) is not None
        ]
        op = targets[0].op if targets else ""
        names = tuple([self.path + target.label for target in targets])
        self.folded.append(FoldedNode(self.path + node.label, node.op, names, op))
        self.replacements.append((index, (*target_indices, *bias_indices)))

    def replace_node(self, index: int, node: Node) -> None:
        """Replaces the node at an index."""
        self._unregister(index)
        self.nodes[index] = node
        for name in node.outputs:
            if name:
                self.producers[name] = index
        self._register_reads(index, node)

    def redirect(self, name: str, new_name: str) -> None:
        """Makes every reader of a value read another value."""
        for index in self.list_readers(name):
            node = self.nodes[index]
            assert node is not None
            inputs = [new_name if input_name == name else input_name for input_name in node.inputs]
            self.replace_node(index, node.replace_values(inputs, node.outputs))

    def rename(self, name: str, new_name: str) -> None:
        """Renames a value that a node produces, and all uses of it."""
        index = self.producers.pop(name)
        node = self.nodes[index]
        assert node is not None
        outputs = [new_name if output_name == name else output_name for output_name in node.outputs]
        self.replace_node(index, node.replace_values(node.inputs, outputs, node.label))
        self.redirect(name, new_name)

    def is_renamable(self, name: str) -> bool:
        """Whether a value may be renamed: a node produces it, and it is not visible outside."""
        return name in self.producers and name not in self._output_names and name not in self.captured

    def store(self, tensor: Tensor, base: str) -> str:
        """Stores a new tensor under an unused name; a body stores it in the outermost enclosing graph."""
        if self.outer is not None:
            return self.outer.store(tensor, base)
        name = create_free_name(base, self._used_names)
        self.stored[name] = replace(tensor, name=name)
        return name

    def store_for_reader(
        self,
        tensor: Tensor,
        reader: int,
        old: str,
        numbers: Array,
        base: str = "",
        magnitude: Array | None = None,
    ) -> str:
        """Stores a new tensor for one reader, under the old name if nothing else reads the old tensor.

        Readers of one old tensor that are given equal numbers share the new tensor, as two calls of a module
        do.

        Args:
            tensor: The new tensor.
            reader: Index of the node that reads it.
            old: Name of the tensor that it replaces, or ''.
            numbers: Numbers that determine the new tensor, given the old tensor or `base`.
            base: Name for a tensor that replaces none; a number is appended if the name is used.
            magnitude: Magnitude of the summed terms, as in `magnitudes`.

        Returns:
            The name of the new tensor.
        """
        key = old, base, numbers.shape, numbers.tobytes()
        name = self._shared_names.get(key, "")
        if name not in self.stored:
            name = self._store_for(tensor, reader, old, base)
            if name != old:
                self._shared_names[key] = name
        self.magnitudes[name] = magnitude
        return name

    def _store_for(self, tensor: Tensor, reader: int, old: str, base: str) -> str:
        node = self.nodes[reader]
        is_only_reader = (
            self.list_readers(old) == [reader] and node is not None and node.inputs.count(old) == 1
        )
        if old in self.stored and is_only_reader and not self.explain_visibility(old):
            self.stored[old] = replace(tensor, name=old)
            # no later reader may share the numbers that this name had
            self._shared_names = {key: name for key, name in self._shared_names.items() if name != old}
            return old
        return self.store(tensor, f"{old}_folded" if old else base)

    def build_model(self) -> Model:
        """Returns the rewritten model, without nodes and tensors that only removed nodes used."""
        graph = self.model.graph
        used_names = {
            name for node in self.nodes if node is not None for name in list_reads(node)
        } | self._output_names
        self.nodes = [None if self._is_unused_constant(node, used_names) else node for node in self.nodes]
        nodes = tuple([node for node in self.nodes if node is not None])
        initializers = {
            name: tensor
            for name, tensor in self.stored.items()
            if name in used_names or (name in graph.initializers and name not in self._unread)
        }
        defined = {name for node in nodes for name in node.outputs} | {*initializers}
        inputs = [v for v in graph.inputs if v.name not in graph.initializers or v.name in initializers]
        values = tuple([value for value in graph.values if value.name in defined])
        return replace(
            self.model,
            graph=replace(graph, nodes=nodes, inputs=tuple(inputs), initializers=initializers, values=values),
        )

    def _is_unused_constant(self, node: Node | None, used_names: Collection[str]) -> bool:
        """Whether a Constant was used only by removed nodes."""
        if node is None or read_constant(node) is None:
            return False
        return node.outputs[0] not in used_names and node.outputs[0] in self._unread

    def _unregister(self, index: int) -> Node:
        """Removes a node from the indices of producers and readers, and returns it."""
        node = self.nodes[index]
        assert node is not None
        self.nodes[index] = None
        for name in list_reads(node):
            self._unread.add(name)
            self.readers[name][index] -= 1
            if not self.readers[name][index]:
                del self.readers[name][index]
        for name in node.outputs:
            if self.producers.get(name) == index:
                del self.producers[name]
        return node

    def _register_reads(self, index: int, node: Node) -> None:
        direct_reads = Counter(name for name in node.inputs if name)
        all_reads = Counter(list_reads(node))
        for name, count in all_reads.items():
            self.readers.setdefault(name, Counter())[index] += count
        self.captured.update((all_reads - direct_reads).keys())
