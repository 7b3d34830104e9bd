"""Numbers the values of two graphs so that values that are equal by construction get the same number.

The number of a value follows from its operator, its attributes, its constants (compared by bits) and the
numbers of its inputs. Together they are the form of the value: a nested tuple that is the key of the table of
numbers. This needs no run and is valid for every input. Names do not matter, and neither do different
spellings of the same operation (`normal_form`). An inlined function, a renamed value, a Constant in place of
an initializer, or an additional Identity does not change a number.

This is global value numbering, which compilers use to find repeated values in one program (Alpern, Wegman and
Zadeck, "Detecting equality of variables in programs", POPL 1988). Here it is applied across two graphs. In
both graphs, the number of a proved tiled site follows from its product and its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.diff.forms import Form, Forms, encode_literal
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import AttributeRef, Function, Graph, Model, Node, Tensor, build_tensor
from explorer.engine.graph.random_operators import RANDOM
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.structure.constant_results import compute_result
from explorer.engine.proof.structure.identities import record_source
from explorer.engine.proof.structure.normal_form import OUTPUT_COUNT_OPERATORS, normalize
from explorer.engine.proof.structure.normal_node import NormalNode, Sources
from explorer.engine.proof.structure.opset_forms import NEWEST, find_changed_version
from explorer.engine.shapes.subgraphs import name_body, name_function
from explorer.facts import TensorInfo

Types = Callable[[tuple[str, ...], str], TensorInfo | None]
"""Function from the path of a graph and a value name to the inferred type, or None if it is unknown."""

_ABSENT = 0
"""Number of an absent input."""

_MAX_NODES = 4_000_000
"""Maximum number of visited nodes, including nodes of inlined functions. If each function of a chain calls
the next one twice, the number of nodes grows exponentially with the length."""

_SWAPPED_BRANCHES = {"then_branch": "else_branch", "else_branch": "then_branch"}
"""Names of the attributes of an If, with those that take their place if its condition is negated."""

_MAX_DEPTH = 64
"""Maximum nesting depth of calls and bodies."""


class ValueNumbers:
    """Table of value numbers that graphs share. Values with equal numbers are equal.

    Args:
        models: All models whose values will be numbered.
        cancel: Callback between chunks of weights; the numbering stops when it returns True.
    """

    def __init__(self, models: Iterable[Model], cancel: Cancel) -> None:
        self._forms = Forms(cancel)
        self._table: dict[Form, int] = {("absent",): _ABSENT}
        self._stored: dict[Form, list[tuple[Tensor, int]]] = {}
        versions: dict[str, set[int]] = {}
        for model in models:
            for opsets in (model.opsets, *(f.opsets for f in model.functions.values())):
                for domain, version in opsets.items():
                    versions.setdefault(domain, set()).add(version)
        self._mixed_domains = {domain for domain, numbers in versions.items() if len(numbers) > 1}
        self._versions: dict[tuple[str, str, int], int] = {}
        self.sources = Sources()
        self.tensors = self.sources.tensors
        """Stored tensors by their number."""

    def get_number(self, *form: Any) -> int:
        """Returns the number of a form, which is the tuple of the arguments. A new form gets a new number."""
        return self._table.setdefault(form, len(self._table))

    def number_tensor(self, tensor: Tensor) -> int:
        """Returns the number of a stored tensor, which is equal for equal type, shape and bits.

        A tensor whose bits are unavailable gets a number of its own.
        """
        bucket = self._stored.setdefault(self._forms.get_sample(tensor), [])
        has_bytes = tensor.payload is not None or (tensor.dtype == "string" and tensor.record is not None)
        for candidate, number in bucket:
            if candidate is tensor or (has_bytes and self._forms.has_equal_content(candidate, tensor)):
                return number
        number = self.get_number("stored", len(self._table))
        bucket.append((tensor, number))
        self.tensors[number] = tensor
        self.sources.dtypes[number] = tensor.dtype
        return number

    def build_operator_form(self, key: tuple[str, str, str], opset: int) -> Form:
        """Returns the form of an operator without attributes.

        If the models use different versions of a domain, the form includes the version in which the operator
        last changed.

        Args:
            key: Domain, operator and overload.
            opset: Opset version of the domain.
        """
        domain, op, _ = key
        if domain not in self._mixed_domains:
            return key
        if not domain and opset <= NEWEST:
            return (*key, find_changed_version(op, opset))
        version = domain, op, opset
        if version not in self._versions:
            import onnx.defs  # the import takes 200 ms, and only models with different opsets need it

            try:
                since = onnx.defs.get_schema(op, opset, domain).since_version
                is_known = not domain and since <= NEWEST
                self._versions[version] = find_changed_version(op, since) if is_known else since
            except onnx.defs.SchemaError:
                self._versions[version] = opset
        return (*key, self._versions[version])


class _BoundAttribute(Struct, frozen=True):
    """Attribute of a function call: its value, and its form in the scope of the caller."""

    value: Any
    form: Form


class _Scope(Struct, eq=False):
    """A graph or body during numbering.

    Attributes:
        nodes: Nodes of the graph.
        stored: Initializers by name.
        numbers: Value numbers by name.
        opsets: Opset versions by domain.
        parent: Scope of the outer graph, or None for the main graph and for functions.
        path: Path of the graph in the model.
        bindings: Attributes of the function call, or None outside of functions.
        depth: Nesting depth of calls and bodies.
        body_depth: Nesting depth of bodies, without calls. The numbers of a body's parameters include it.
        producers: Nodes by output name.
    """

    nodes: Sequence[Node]
    stored: Mapping[str, Tensor]
    numbers: dict[str, int]
    opsets: Mapping[str, int]
    parent: _Scope | None = None
    path: tuple[str, ...] = ()
    bindings: Mapping[str, _BoundAttribute] | None = None
    depth: int = 0
    body_depth: int = 0
    producers: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}


class GraphNumbers:
    """Value numbers of one model, for all values on which its outputs depend.

    Args:
        table: Table that the models share.
        model: Model to number.
        inputs: Numbers of the graph inputs by name.
        find_site: Function of graph path, value name and node. It returns the proved product that computes
            the value, or None.
        assumed: Numbers of values of the main graph that are assumed instead of derived, by name.
        types: Function of graph path and value name that returns the inferred type. None if types are not
            inferred.

    Attributes:
        values: Value numbers of the main graph by name.
        derived: Numbers that the `assumed` values would have without the assumption, by name.
        visited_nodes: Ids of the visited nodes of the main graph.
        nodes: Number of visited nodes of the main graph.
        sites: Keys of the sites that were visited.
    """

    def __init__(
        self,
        table: ValueNumbers,
        model: Model,
        inputs: Mapping[str, int],
        *,
        find_site: Callable[[tuple[str, ...], str, Node], Original | None],
        assumed: Mapping[str, int] | None = None,
        types: Types | None = None,
    ) -> None:
        self.table = table
        self.model = model
        self.find_site = find_site
        self.assumed = assumed or {}
        self.types = types
        self.derived: dict[str, int] = {}
        self.sites: set[str] = set()
        self._draw_counts: dict[Form, int] = {}
        self._draws = 0
        self._outputs_by_call: dict[Form, list[int]] = {}
        self._remaining_nodes = _MAX_NODES
        graph = model.graph
        default_inputs = {
            name: table.get_number("default", name, table.number_tensor(graph.initializers[name]))
            for name in model.defaults
        }
        self._main = _Scope(graph.nodes, graph.initializers, {**default_inputs, **inputs}, model.opsets)
        self.visited_nodes: set[int] = set()
        self._number_values([value.name for value in graph.outputs], self._main)
        self.values = self._main.numbers
        self.nodes = len(self.visited_nodes)

    def _number_values(self, names: Sequence[str], scope: _Scope) -> list[int]:
        """Numbers values and all values on which they depend, and returns the numbers of `names`.

        A loop replaces recursion, because a graph may be deeper than Python's recursion limit.
        """
        pending = list(reversed(names))
        started: set[str] = set()
        numbers, producers = scope.numbers, scope.producers
        while pending:
            name = pending[-1]
            if name in numbers or name not in producers:
                pending.pop()
                if name not in numbers:
                    numbers[name] = self._find_outer_number(name, scope)
                continue
            node = producers[name]
            product = self.find_site(scope.path, name, node)
            input_names = product.inputs if product is not None else tuple(list_reads(node))
            unnumbered = [n for n in input_names if n not in numbers]
            if unnumbered and name not in started:
                started.add(name)
                pending += reversed(unnumbered)
                continue
            pending.pop()
            if unnumbered:
                self._assign_unique(name, scope)  # an invalid graph: the value depends on itself
            elif product is not None:
                self._assign_site(product, name, scope)
            else:
                self._assign_outputs(node, scope)
        return [numbers[name] for name in names]

    def _find_outer_number(self, name: str, scope: _Scope) -> int:
        """Returns the number of a value that no node of the scope computes.

        The value is absent, stored, or from an outer graph. An undefined value gets a number of its own.
        """
        if not name:
            return _ABSENT
        if name in scope.stored:
            return self.table.number_tensor(scope.stored[name])
        if scope.parent is not None:
            return self._number_values([name], scope.parent)[0]
        self._assign_unique(name, scope)
        return scope.numbers[name]

    def _assign_unique(self, name: str, scope: _Scope) -> None:
        """Assigns a number that no other value has."""
        scope.numbers[name] = self.table.get_number("unknown", id(self), scope.path, name)

    def _assign_site(self, product: Original, name: str, scope: _Scope) -> None:
        """Assigns the number of a proved product to the value that it computes."""
        key = "/".join((*scope.path, name))
        self.sites.add(key)
        if scope is self._main:
            self.visited_nodes.add(id(scope.producers[name]))
        input_numbers = tuple(scope.numbers[n] for n in product.inputs)
        self._assign(name, self.table.get_number("site", key, input_numbers), scope)

    def _assign(self, name: str, number: int, scope: _Scope) -> None:
        """Assigns a derived number to a value, or the assumed number if there is one."""
        assumed = self.assumed.get(name) if scope is self._main else None
        if assumed is not None:
            self.derived[name] = number
        scope.numbers[name] = number if assumed is None else assumed

    def _assign_outputs(self, node: Node, scope: _Scope) -> None:
        """Assigns numbers to all outputs of a node whose inputs have numbers."""
        self._remaining_nodes -= 1
        if scope is self._main:
            self.visited_nodes.add(id(node))
        input_numbers = [scope.numbers.get(name, _ABSENT) if name else _ABSENT for name in node.inputs]
        while input_numbers and input_numbers[-1] == _ABSENT:
            input_numbers.pop()
        numbers = self._number_outputs(node, input_numbers, scope)
        for name, number in zip(node.outputs, numbers, strict=False):
            if name:
                self._assign(name, number, scope)

    def _number_outputs(self, node: Node, input_numbers: list[int], scope: _Scope) -> list[int]:
        """Returns the numbers of the outputs of a node."""
        function = self.model.functions.get(node.key)
        if self._remaining_nodes < 0 or scope.depth > _MAX_DEPTH:
            return [
                self.table.get_number("unknown", id(self), id(node), slot)
                for slot in range(len(node.outputs))
            ]
        if function is not None:
            return self._number_call(function, node, input_numbers, scope)
        if not node.domain and node.op == "Identity" and len(input_numbers) == 1:
            return input_numbers
        attributes, from_caller = self._resolve_attributes(node, scope)
        if node.op == "Constant" and not node.domain:
            tensor = read_constant(node.replace_attributes(attributes) if from_caller else node)
            if tensor is not None:
                return [self.table.number_tensor(tensor)]
        if node.op == "If" and not node.domain:
            branch = self._find_chosen_branch(input_numbers, attributes)
            if branch is not None:
                return self._number_branch(node, branch, attributes[branch], scope)
        normal = self._normalize_node(node, input_numbers, attributes, scope)
        if normal.equal_value is not None:
            return [
                normal.equal_value,
                *(self.table.get_number("other output", id(node), name) for name in node.outputs[1:]),
            ]
        endless_form = self._build_endless_body_form(node, input_numbers, attributes.get("body"), scope)
        if endless_form is not None:
            del normal.attributes["body"]
            normal.inputs[1:2] = [("endless body", endless_form)]
        is_swapped = node.op == "If" and not node.domain and normal.attributes.pop("is_swapped", 0)
        forms = tuple(
            (_SWAPPED_BRANCHES[name] if is_swapped else name, attribute_form)
            for name in sorted(normal.attributes, reverse=bool(is_swapped))
            if (
                attribute_form := self._get_attribute_form(
                    node, name, normal.attributes[name], from_caller, scope
                )
            )
            is not None
        )
        has_several_outputs = node.domain or node.op in OUTPUT_COUNT_OPERATORS
        operator = self.table.build_operator_form((normal.domain, normal.op, node.overload), normal.opset)
        form: Form = (operator, tuple(normal.inputs), forms, len(node.outputs) if has_several_outputs else 0)
        if (node.op in RANDOM and not node.domain) or (node.op == "Dropout" and len(input_numbers) > 2):
            # each draw is a different value, but the i-th draws of both graphs count as equal
            self._draws += 1
            self._draw_counts[form] = self._draw_counts.get(form, 0) + 1
            form = (*form, "draw", self._draw_counts[form])
        number = self.table.get_number("node", form)
        outputs = [self.table.get_number("output", number, slot) for slot in range(len(node.outputs))]
        record_source(normal, outputs[0])
        return outputs

    def _resolve_attributes(
        self, node: Node, scope: _Scope
    ) -> tuple[dict[str, Any], dict[str, _BoundAttribute]]:
        """Resolves references to attributes of the caller.

        Returns:
            The values of the attributes, and the bindings of those that were references, by name.
        """
        values: dict[str, Any] = {}
        from_caller: dict[str, _BoundAttribute] = {}
        for name, value in node.attributes.items():
            if isinstance(value, AttributeRef):
                binding = (scope.bindings or {}).get(value.name)
                if binding is not None:  # without a binding, the operator's default applies
                    values[name], from_caller[name] = binding.value, binding
            else:
                values[name] = value
        return values, from_caller

    def _normalize_node(
        self, node: Node, input_numbers: Sequence[int], attributes: dict[str, Any], scope: _Scope
    ) -> NormalNode:
        """Returns the node in normal form."""
        table = self.table

        def find_type(names: Sequence[str], index: int) -> TensorInfo | None:
            if self.types is None or index >= len(names) or not names[index]:
                return None
            return self.types(scope.path, names[index])

        def get_type_info(index: int) -> TensorInfo | None:
            return find_type(node.inputs, index)

        def output_rank(index: int) -> int | None:
            type_info = find_type(node.outputs, index)
            return len(type_info.shape) if type_info is not None and type_info.shape is not None else None

        def rank(index: int) -> int | None:
            tensor = table.tensors.get(input_numbers[index]) if index < len(input_numbers) else None
            if tensor is not None:
                return len(tensor.shape)
            type_info = get_type_info(index)
            return len(type_info.shape) if type_info is not None and type_info.shape is not None else None

        def size(index: int, axis: int) -> int | None:
            type_info = get_type_info(index)
            if type_info is None or type_info.shape is None or type_info.origin == "bound":
                return None
            is_valid_axis = -len(type_info.shape) <= axis < len(type_info.shape)
            length = type_info.shape[axis] if is_valid_axis else None
            return length if isinstance(length, int) else None

        def dtype(index: int) -> str | None:
            source_type = (
                table.sources.dtypes.get(input_numbers[index]) if index < len(input_numbers) else None
            )
            if source_type is not None:
                return source_type
            type_info = get_type_info(index)
            return type_info.dtype if type_info is not None else None

        output_count = max((position for position, name in enumerate(node.outputs, 1) if name), default=0)
        normal = NormalNode(
            node.domain,
            node.op,
            scope.opsets.get(node.domain, 0),
            list(input_numbers),
            attributes,
            output_count,
            rank,
            output_rank,
            size,
            dtype,
            table.sources,
        )
        result = compute_result(normal)
        if result is not None:
            normal.equal_value = table.number_tensor(result)
        else:
            normalize(normal)
        return normal

    def _get_attribute_form(
        self, node: Node, name: str, value: Any, from_caller: Mapping[str, _BoundAttribute], scope: _Scope
    ) -> Form | None:
        """Returns the form of a normalized attribute, or None for a reference that the caller does not set.

        An attribute from the caller already has a form, which is valid if normalization kept its value.
        """
        binding = from_caller.get(name)
        if binding is not None and binding.value is value:
            return binding.form
        return self._build_attribute_form(node, name, value, scope)

    def _number_call(
        self, function: Function, node: Node, input_numbers: list[int], scope: _Scope
    ) -> list[int]:
        """Returns the numbers of a call's outputs, which are the numbers of the function's outputs."""
        attributes = {**function.defaults, **node.attributes}
        bindings: dict[str, _BoundAttribute] = {}
        for name, value in attributes.items():
            if isinstance(value, AttributeRef):
                if (outer_binding := (scope.bindings or {}).get(value.name)) is not None:
                    bindings[name] = outer_binding
            elif (attribute_form := self._build_attribute_form(node, name, value, scope)) is not None:
                bindings[name] = _BoundAttribute(value, attribute_form)
        # visit a function once for each combination of inputs and attributes
        forms = tuple((name, bindings[name].form) for name in sorted(bindings))
        form: Form = id(function), scope.body_depth, tuple(input_numbers), forms
        if form in self._outputs_by_call:
            return self._outputs_by_call[form]
        draws = self._draws
        padded = [*input_numbers, *[_ABSENT] * (len(function.inputs) - len(input_numbers))]
        inner = _Scope(
            function.nodes,
            {},
            dict(zip(function.inputs, padded, strict=False)),
            {**scope.opsets, **function.opsets},
            path=(name_function(self.model, function),),
            bindings=bindings,
            depth=scope.depth + 1,
            body_depth=scope.body_depth,
        )
        outputs = self._number_values(function.outputs, inner)
        if draws == self._draws:
            self._outputs_by_call[form] = outputs
        return outputs

    def _build_body_form(
        self,
        node: Node,
        attribute: str,
        graph: Graph,
        scope: _Scope,
        input_numbers: Mapping[str, int] = MappingProxyType({}),
    ) -> Form:
        """Returns the form of a subgraph as a function of its inputs and of outer values.

        Args:
            node: Node that runs the subgraph.
            attribute: Attribute with the subgraph.
            graph: Subgraph.
            scope: Scope of the node.
            input_numbers: Numbers of inputs that are the same in every run, by name.
        """
        body_depth = scope.body_depth + 1
        parameters = {
            v.name: self.table.get_number("parameter", body_depth, index)
            for index, v in enumerate(graph.inputs)
        }
        inner = _Scope(
            graph.nodes,
            graph.initializers,
            {**parameters, **input_numbers},
            scope.opsets,
            parent=scope,
            path=(*scope.path, name_body(node, attribute)),
            bindings=scope.bindings,
            depth=scope.depth + 1,
            body_depth=body_depth,
        )
        return len(graph.inputs), tuple(self._number_values([v.name for v in graph.outputs], inner))

    def _find_chosen_branch(self, input_numbers: Sequence[int], attributes: Mapping[str, Any]) -> str | None:
        """Returns the attribute of the branch that an If with a stored condition takes, or None."""
        condition = self.table.tensors.get(input_numbers[0]) if input_numbers else None
        if condition is None or condition.payload is None or condition.elements != 1:
            return None
        branch = "then_branch" if condition.array().all() else "else_branch"
        return branch if isinstance(attributes.get(branch), Graph) else None

    def _number_branch(self, node: Node, attribute: str, graph: Graph, scope: _Scope) -> list[int]:
        """Returns the numbers of the outputs of a branch that always runs."""
        inner = _Scope(
            graph.nodes,
            graph.initializers,
            {},
            scope.opsets,
            parent=scope,
            path=(*scope.path, name_body(node, attribute)),
            bindings=scope.bindings,
            depth=scope.depth + 1,
            body_depth=scope.body_depth,
        )
        return self._number_values([v.name for v in graph.outputs], inner)

    def _build_endless_body_form(
        self, node: Node, input_numbers: Sequence[int], body: Any, scope: _Scope
    ) -> Form | None:
        """Returns the form of the body of a Loop whose condition is always true, or None for other nodes.

        An absent condition is true.
        """
        if node.op != "Loop" or node.domain or not isinstance(body, Graph):
            return None
        true = self.table.number_tensor(build_tensor("", np.asarray(True)))
        condition = input_numbers[1] if len(input_numbers) > 1 else _ABSENT
        if condition not in (_ABSENT, true) or len(body.inputs) < 2:
            return None
        form = self._build_body_form(node, "body", body, scope, {body.inputs[1].name: true})
        return form if form[1][:1] == (true,) else None

    def _build_attribute_form(self, node: Node, name: str, value: Any, scope: _Scope) -> Form | None:
        """Returns the form of an attribute value, or None for a reference that the caller does not set."""
        if (form := encode_literal(value)) is not None:
            return form
        if isinstance(value, Tensor):
            return "tensor", self.table.number_tensor(value)
        if isinstance(value, AttributeRef):
            binding = (scope.bindings or {}).get(value.name)
            return binding.form if binding is not None else None
        if isinstance(value, Graph):
            return "graph", self._build_body_form(node, name, value, scope)
        if isinstance(value, (tuple, list)):
            elements = enumerate(value)
            return "many", tuple(
                self._build_attribute_form(node, f"{name}[{i}]", element, scope) for i, element in elements
            )
        return "opaque", id(value)
