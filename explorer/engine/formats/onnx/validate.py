"""Graph validation: checks after reading that a model can run, and sorts its nodes.

Analysis, transforms and diff visit the nodes in order and look up values by name. Therefore every value must
be defined exactly once, every name must have a definition, and the graph must have no cycles. A file may
violate each rule, by accident or on purpose.

The rules are those of the ONNX IR specification: single static assignment, imported domains, functions
without recursion. There are two exceptions: nodes may be unsorted, and a subgraph may shadow an outer name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.tensors import read_sparse_initializers
from explorer.engine.graph.arity import (
    ATTRIBUTE_TYPES,
    MICROSOFT_TYPES,
    MIN_INPUTS,
    NO_REQUIRED_INPUTS,
    REQUIRED_ATTRIBUTES,
    has_type,
)
from explorer.engine.graph.model import CONTROL_FLOW, AttributeRef, Function, Graph, Model, Node, list_bodies

MAX_EXPANDED = 10_000_000
"""Maximum number of operators after inlining all function calls. The largest real graph, AlexNet in tiles of
16x16x16, has 229,000. A dozen functions that each call the next ten times have a billion."""

MAX_NESTED = 48
"""Maximum depth of nested bodies (functions, branches and loops together): traversal is recursive."""

MAX_CALL_DEPTH = 64
"""Maximum depth of functions that call functions; real models stay below 5."""

_Key = tuple[str, str, str]


def validate(model: Model) -> Model:
    """Checks a model and sorts its nodes topologically.

    Args:
        model: Model as read from a file.

    Returns:
        `model` itself if its nodes were sorted. Otherwise a copy with sorted nodes in the graph, its
        subgraphs and the functions.

    Raises:
        BadModel: A value is undefined, is defined twice, or depends on itself. An operator's domain is not
            imported. An operator lacks a required input or attribute, or an attribute has a wrong type. Local
            functions are recursive, nest more than `MAX_CALL_DEPTH` deep, or expand to more than
            `MAX_EXPANDED` operators.
    """
    try:
        return _run_checks(model)
    except BadModel as error:
        raise BadModel(error.what, where=error.where or model.path, hint=error.hint) from None


def _run_checks(model: Model) -> Model:
    """Checks all graphs and functions, and returns the model with their nodes in execution order."""
    bodies: dict[_Key | None, _Census] = {}
    functions: dict[_Key, Function] = {}
    for key, function in model.functions.items():
        where = f"function '{function.name}'"
        census = _Census(model.functions, function.opsets, Counter())
        nodes, _ = _order_body(
            function.nodes,
            _collect_distinct(where, "inputs", function.inputs),
            function.outputs,
            [],
            where,
            census,
        )
        bodies[key] = census
        # the encoded record of the function has the old order
        is_unchanged = nodes is function.nodes
        functions[key] = function if is_unchanged else replace(function, nodes=nodes, record=None)
    census = _Census(model.functions, model.opsets, Counter())
    graph, _ = _order_graph(model.graph, [], "the graph", census)
    bodies[None] = census
    _check_calls(model.functions, bodies)
    if graph is model.graph and all(functions[k] is f for k, f in model.functions.items()):
        return model
    return replace(model, graph=graph, functions=functions)


class _Census(Struct):
    """Context and counts of one body (the main graph, or a function), including its subgraphs.

    Attributes:
        functions: Local functions of the model.
        opsets: Operator set version of each imported domain.
        calls: Number of calls of each local function.
        nodes: Number of operators.
        call_depth: Maximum subgraph depth at which each local function is called.
        deepest: Maximum depth of nested subgraphs.
        checked_attributes: Attribute mappings whose types were checked, by `id`: many nodes share a mapping.
    """

    functions: Mapping[_Key, Function]
    opsets: Mapping[str, int]
    calls: Counter[_Key]
    nodes: int = 0
    call_depth: dict[_Key, int] = field(default_factory=dict)
    deepest: int = 0
    checked_attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)


def _collect_distinct(where: str, kind: str, names: Iterable[str]) -> set[str]:
    """Returns the names as a set.

    Raises:
        BadModel: A name occurs twice.
    """
    distinct: set[str] = set()
    for name in names:
        if name in distinct:
            raise BadModel(f"{where} has two {kind} named '{name}'")
        distinct.add(name)
    return distinct


def _order_graph(graph: Graph, outer: list[set[str]], where: str, census: _Census) -> tuple[Graph, set[str]]:
    """Returns the checked and sorted graph, and the names that it reads from enclosing scopes."""
    sources = _collect_distinct(where, "inputs", (v.name for v in graph.inputs))
    # an initializer may share the name of an input: it is the input's default
    sources.update(graph.initializers)
    if graph.extra:
        sources.update(read_sparse_initializers(graph))
    results = [v.name for v in graph.outputs]
    nodes, free = _order_body(graph.nodes, sources, results, outer, where, census)
    return (graph if nodes is graph.nodes else replace(graph, nodes=nodes)), free


def _order_body(
    nodes: Sequence[Node],
    sources: set[str],
    results: Sequence[str],
    outer: list[set[str]],
    where: str,
    census: _Census,
) -> tuple[Sequence[Node], set[str]]:
    """Checks and sorts the nodes of a body.

    Args:
        nodes: Nodes of the body.
        sources: Names of its inputs and initializers.
        results: Names of its outputs.
        outer: Names defined in each enclosing scope, outermost first.
        where: Description of the body for errors.
        census: Counts of the body, updated in place.

    Returns:
        The sorted nodes, and the names that they read from enclosing scopes.
    """
    producers = _map_producers(nodes, sources, results, where)
    free: set[str] = set()
    is_ordered = True
    changed_nodes: list[Node] | None = None
    needed_nodes: list[list[int]] = []
    functions, opsets, calls = census.functions, census.opsets, census.calls
    census.nodes += len(nodes)
    census.deepest = max(census.deepest, len(outer))
    scopes: list[set[str]] | None = None
    for i, node in enumerate(nodes):
        if node.domain not in opsets:
            _refuse_domain(node, where, opsets)
        if not node.op:
            raise BadModel(f"{where}: node '{node.label}' has no operator")
        min_inputs = MIN_INPUTS.get((node.domain, node.op))
        if min_inputs is not None or node.op == "Einsum":  # the equation of Einsum gives its number of inputs
            _check_arity(node, min_inputs or 0, where, functions)
        if not node.domain and node.op in REQUIRED_ATTRIBUTES and node.key not in functions:
            _check_attributes(node, where)
        # an operator that ONNX does not define may have any attributes
        is_defined = min_inputs is not None or (not node.domain and node.op in NO_REQUIRED_INPUTS)
        types = _TYPES.get(node.domain) if is_defined else None
        if types is not None and node.op != "Constant":
            attributes = node.attributes
            if attributes and id(attributes) not in census.checked_attributes:
                _check_types(node, types, where, census)
        if functions and node.key in functions:
            calls[node.key] += 1
            census.call_depth[node.key] = max(census.call_depth.get(node.key, 0), len(outer))
        names: Iterable[str] = node.inputs
        # of the operators of ONNX, only control flow has subgraphs
        if node.domain or node.op in CONTROL_FLOW:
            bodies = list_bodies(node)
            if bodies:
                if scopes is None:
                    scopes = [*outer, sources | set(producers)]
                replaced, body_free = _order_bodies(node, bodies, scopes, where, census)
                names = (*node.inputs, *sorted(body_free))
                if replaced is not node:
                    changed_nodes = changed_nodes or list(nodes)
                    changed_nodes[i] = replaced
        need: list[int] = []
        for name in names:
            j = producers.get(name)
            if j is not None:
                need.append(j)
                is_ordered &= j < i
            elif name and name not in sources:
                if not any(name in scope for scope in outer):
                    problem = f"node '{node.label}' ({node.op}) takes '{name}', which nothing defines"
                    raise BadModel(f"{where}: {problem}")
                free.add(name)
        needed_nodes.append(need)
    free |= _find_results_from_outside(results, producers, sources, outer, where)

    if changed_nodes is not None:
        nodes = tuple(changed_nodes)
    if not is_ordered:
        nodes = tuple(nodes[i] for i in _order(nodes, needed_nodes, where))
    return nodes, free


def _map_producers(
    nodes: Sequence[Node], sources: set[str], results: Sequence[str], where: str
) -> dict[str, int]:
    """Maps each value to the index of the node that defines it.

    Raises:
        BadModel: A value is defined twice, or an output is listed twice.
    """
    producers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.outputs:
            if not name:
                continue
            if name in producers:
                first = nodes[producers[name]].label
                raise BadModel(f"{where} defines '{name}' twice: by node '{first}' and by '{node.label}'")
            if name in sources:
                raise BadModel(f"{where}: node '{node.label}' defines '{name}', which is an input already")
            producers[name] = i
    _collect_distinct(where, "outputs", results)
    return producers


def _find_results_from_outside(
    results: Sequence[str], producers: Mapping[str, int], sources: set[str], outer: list[set[str]], where: str
) -> set[str]:
    """Returns the names of results that enclosing scopes define.

    Raises:
        BadModel: No scope defines a result.
    """
    free = {name for name in results if name not in producers and name not in sources}
    for name in results:
        if name in free and not any(name in scope for scope in outer):
            raise BadModel(f"{where}: nothing defines its output '{name}'")
    return free


def _order_bodies(
    node: Node, bodies: Sequence[tuple[str, Graph]], scopes: list[set[str]], where: str, census: _Census
) -> tuple[Node, set[str]]:
    """Checks and sorts the subgraphs of a node. Returns the node, and the names from enclosing scopes."""
    free_names: set[str] = set()
    changed: dict[str, Graph] = {}
    for name, graph in bodies:
        inner = f"{where}, node '{node.label}', {name}"
        ordered, free = _order_graph(graph, scopes, inner, census)
        # the caller checks these names again, because some are defined outside the caller
        free_names |= free
        if ordered is not graph:
            changed[name] = ordered
    if not changed:
        return node, free_names
    attributes: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, tuple):
            value = tuple(changed.get(f"{name}[{i}]", element) for i, element in enumerate(value))
        attributes[name] = changed.get(name, value)
    return node.replace_attributes(attributes), free_names


def _check_attributes(node: Node, where: str) -> None:
    """Raises an error for a node that lacks a required attribute."""
    missing = REQUIRED_ATTRIBUTES[node.op] - node.attributes.keys()
    if missing:
        raise BadModel(f"{where}: node '{node.label}' lacks the attribute '{min(missing)}' of {node.op}")


_TYPES: Mapping[str, Mapping[str, str]] = {"": ATTRIBUTE_TYPES, "com.microsoft": MICROSOFT_TYPES}


def _check_types(node: Node, types: Mapping[str, str], where: str, census: _Census) -> None:
    """Raises an error for a node with an attribute of a wrong type."""
    if node.key in census.functions:
        return
    for name, value in node.attributes.items():
        kind = types.get(name)
        if kind is not None and not isinstance(value, AttributeRef) and not has_type(value, kind):
            raise BadModel(f"{where}: '{name}' of node '{node.label}' ({node.op}) is not {kind}")
    census.checked_attributes[id(node.attributes)] = node.attributes


def _check_arity(node: Node, min_inputs: int, where: str, functions: Mapping[_Key, Function]) -> None:
    """Raises an error for a node that lacks a required input or has no output.

    Calls of local functions are not checked: inputs of a function may be omitted.
    """
    count = len(node.inputs)
    if node.key in functions:
        return
    if not any(node.outputs):
        raise BadModel(f"{where}: node '{node.label}' makes no output: {node.op} makes 1 at least")
    if (node.domain, node.op) == ("", "Einsum") and isinstance(
        equation := node.attributes.get("equation"), str
    ):
        min_inputs = max(min_inputs, equation.partition("->")[0].count(",") + 1)
    if count >= min_inputs and all(node.inputs[:min_inputs]):
        return
    missing = next((index for index in range(min_inputs) if index >= count or not node.inputs[index]), 0)
    required = "1 input" if min_inputs == 1 else f"{min_inputs} inputs"
    raise BadModel(
        f"{where}: node '{node.label}' lacks its input {missing + 1}: {node.op} takes {required} at least"
    )


def _refuse_domain(node: Node, where: str, opsets: Mapping[str, int]) -> None:
    domain = node.domain or "ai.onnx"
    imported = ", ".join(sorted(d or "ai.onnx" for d in opsets)) or "none"
    raise BadModel(
        f"{where}: node '{node.label}' is a {node.op} of the operator domain '{domain}',"
        f" which the model does not import",
        hint=f"it imports: {imported}",
    )


def _order(nodes: Sequence[Node], needs: Sequence[Sequence[int]], where: str) -> list[int]:
    """Sorts nodes topologically with Kahn's algorithm, the earliest ready node first.

    Args:
        nodes: Nodes of a body.
        needs: Indices of the nodes whose outputs each node reads.
        where: Description of the body for errors.

    Returns:
        The indices of the nodes in the new order.
    """
    waiting = [len(set(need)) for need in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for i, need in enumerate(needs):
        for j in set(need):
            users[j].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) < len(nodes):
        path = _find_cycle(waiting, needs)
        names = [f"'{nodes[i].label}'" for i in path[:6]] + (["..."] if len(path) > 6 else [])
        raise BadModel(f"{where} has a cycle: " + " -> ".join([*names, names[0]]))
    return order


def _find_cycle(waiting: Sequence[int], needs: Sequence[Sequence[int]]) -> list[int]:
    """Finds a cycle among the nodes that are not sorted yet, in the direction of the data flow.

    Each of these nodes needs another one, so following the needs reaches some node twice.

    Args:
        waiting: Number of unsorted nodes that each node needs.
        needs: Indices of the nodes whose outputs each node reads.
    """
    node_index = next(i for i, count in enumerate(waiting) if count)
    path_index: dict[int, int] = {}
    path: list[int] = []
    while node_index not in path_index:
        path_index[node_index] = len(path)
        path.append(node_index)
        node_index = next(j for j in needs[node_index] if waiting[j])
    cycle = path[path_index[node_index] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def _check_calls(functions: Mapping[_Key, Function], bodies: Mapping[_Key | None, _Census]) -> None:
    """Raises an error for functions that are recursive, nest too deeply, or expand to too many operators."""
    # of each finished body: operators after inlining, call depth, and depth of nested bodies
    size: dict[_Key | None, int] = {}
    depth: dict[_Key | None, int] = {}
    nested: dict[_Key | None, int] = {}
    for root in (*functions, None):
        # an explicit stack, because a chain of ten thousand functions would exhaust Python's
        stack: list[_Key | None] = [root]
        active: list[_Key | None] = []
        while stack:
            key = stack[-1]
            if key in size:
                stack.pop()
                continue
            calls = bodies[key].calls
            pending = [callee for callee in calls if callee not in size]
            if not pending:
                stack.pop()
                if active and active[-1] == key:
                    active.pop()
                size[key] = bodies[key].nodes + sum(n * size[callee] for callee, n in calls.items())
                depth[key] = 1 + max((depth[callee] for callee in calls), default=0)
                call_depths = (level + 1 + nested[callee] for callee, level in bodies[key].call_depth.items())
                nested[key] = max(bodies[key].deepest, max(call_depths, default=0))
                continue
            active.append(key)
            if len(active) > MAX_CALL_DEPTH + 1:
                raise BadModel(f"local functions are nested more than {MAX_CALL_DEPTH} deep")
            for callee in pending:
                if callee in active:
                    ring = [*active[active.index(callee) :], callee]
                    names = [f"'{k[1]}'" for k in ring if k is not None]
                    names = [*names[:6], "..."] if len(names) > 7 else names
                    raise BadModel("local functions call themselves: " + " -> ".join(names))
            stack.extend(pending)
        if depth[root] - 1 > MAX_CALL_DEPTH:
            raise BadModel(f"local functions are nested more than {MAX_CALL_DEPTH} deep")
        # functions alone may nest deeper: traversing them takes less of Python's stack
        if nested[root] > max(MAX_NESTED, depth[root] - 1):
            raise BadModel(f"functions, branches and loops are nested more than {MAX_NESTED} deep together")
        if size[root] > MAX_EXPANDED:
            owner = "the graph" if root is None else f"function '{root[1]}'"
            raise BadModel(
                f"{owner} expands to more than {MAX_EXPANDED:,} operators when its functions are put in place"
            )
