"""Graph validation: checks, right after reading, that a graph can run.

Analysis, transforms and diff walk graphs in order and look values up by name. This needs every value to be
defined exactly once, every name to have a definition, and no cycles. A file may break each rule, by accident
or on purpose, so they are checked here. Nodes in the wrong order are sorted.

The rules are those of the ONNX IR specification (single static assignment, imports, functions without
recursion), except that an unsorted graph is accepted and that a subgraph may shadow an outer name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.tensors import sparse_initializers
from explorer.engine.graph.arity import LEAST
from explorer.engine.graph.model import CONTROL_FLOW, Function, Graph, Model, Node, subgraphs

MAX_EXPANDED = 10_000_000
"""Most operators after every function call is replaced by its body. The largest real graph, AlexNet in tiles
of 16x16x16, has 229,000; a dozen functions that call each other ten times have a billion."""

MAX_NESTED = 48
"""Most levels of nested bodies (functions, branches and loops together): walking them recurses."""

MAX_CALL_DEPTH = 64
"""Most levels of functions that call functions; real models stay below 5."""

_Key = tuple[str, str, str]


def validate(model: Model) -> Model:
    """The model, checked and with its nodes in an order in which they can run.

    Args:
        model: As read from a file.

    Returns:
        `model` itself if it was in order, else a copy with the nodes of the graph, of subgraphs and of
        functions sorted; nodes that could stay in their place did.

    Raises:
        BadModel: A value is defined twice, used but not defined, or depends on itself; an operator's
            domain is not imported, or an operator lacks an input that it needs; local functions call
            themselves, nest more than `MAX_CALL_DEPTH` deep, or expand to more than `MAX_EXPANDED`
            operators.
    """
    try:
        return _validated(model)
    except BadModel as error:
        raise BadModel(error.what, where=error.where or model.path, hint=error.hint) from None


def _validated(model: Model) -> Model:
    bodies: dict[_Key | None, _Census] = {}
    functions: dict[_Key, Function] = {}
    for key, function in model.functions.items():
        where = f"function '{function.name}'"
        census = _Census(model.functions, function.opsets, Counter())
        nodes, _ = _order_body(
            function.nodes, _distinct(where, "inputs", function.inputs), function.outputs, [], where, census
        )
        bodies[key] = census
        # the encoded form has the old order
        same = nodes is function.nodes
        functions[key] = function if same else replace(function, nodes=nodes, record=None)
    census = _Census(model.functions, model.opsets, Counter())
    graph, _ = _order_graph(model.graph, [], "the graph", census)
    bodies[None] = census
    _check_calls(model.functions, bodies)
    if graph is model.graph and all(functions[k] is f for k, f in model.functions.items()):
        return model
    return replace(model, graph=graph, functions=functions)


class _Census(Struct):
    """Counts of one body (the main graph, or a function), including its subgraphs.

    `calls` counts the calls of each local function, `nodes` every operator; `within` says how deep in
    subgraphs a function is called at most, `deepest` how deep subgraphs go.
    """

    functions: Mapping[_Key, Function]
    opsets: Mapping[str, int]
    calls: Counter[_Key]
    nodes: int = 0
    within: dict[_Key, int] = field(default_factory=dict)
    deepest: int = 0


def _distinct(where: str, kind: str, names: Iterable[str]) -> set[str]:
    """The set of these names; raises an error if a name occurs twice."""
    distinct: set[str] = set()
    for name in names:
        if name in distinct:
            raise BadModel(f"{where} has two {kind} named '{name}'")
        distinct.add(name)
    return distinct


def _order_graph(graph: Graph, outer: list[set[str]], where: str, census: _Census) -> tuple[Graph, set[str]]:
    """The graph with sorted nodes, and the names that it takes from enclosing scopes."""
    sources = _distinct(where, "inputs", (v.name for v in graph.inputs))
    # an initializer may share the name of an input: it is the input's default
    sources.update(graph.initializers)
    if graph.extra:
        sources.update(sparse_initializers(graph))
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
    """The sorted nodes, and the names that they take from the scopes in `outer`."""
    producers = _producers(nodes, sources, results, where)
    free: set[str] = set()
    ordered = True
    rebuilt: list[Node] | None = None
    needs: list[list[int]] = []
    functions, opsets, calls = census.functions, census.opsets, census.calls
    census.nodes += len(nodes)
    census.deepest = max(census.deepest, len(outer))
    scopes: list[set[str]] | None = None
    for i, node in enumerate(nodes):
        if node.domain not in opsets:
            _refuse_domain(node, where, opsets)
        if not node.op:
            raise BadModel(f"{where}: node '{node.label}' has no operator")
        least = LEAST.get((node.domain, node.op))
        if least is not None or node.op == "Einsum":  # the equation of Einsum gives its number of inputs
            _check_arity(node, least or 0, where, functions)
        if functions and node.key in functions:
            calls[node.key] += 1
            census.within[node.key] = max(census.within.get(node.key, 0), len(outer))
        names: Iterable[str] = node.inputs
        if node.domain or node.op in CONTROL_FLOW:
            inside = subgraphs(node)
            if inside:
                if scopes is None:
                    scopes = [*outer, sources | set(producers)]
                replaced, taken = _order_bodies(node, inside, scopes, where, census)
                names = (*node.inputs, *sorted(taken))
                if replaced is not node:
                    rebuilt = rebuilt or list(nodes)
                    rebuilt[i] = replaced
        need: list[int] = []
        for name in names:
            j = producers.get(name)
            if j is not None:
                need.append(j)
                ordered &= j < i
            elif name and name not in sources:
                if not any(name in scope for scope in outer):
                    problem = f"node '{node.label}' ({node.op}) takes '{name}', which nothing defines"
                    raise BadModel(f"{where}: {problem}")
                free.add(name)
        needs.append(need)
    free |= _results_from_outside(results, producers, sources, outer, where)

    if rebuilt is not None:
        nodes = tuple(rebuilt)
    if not ordered:
        nodes = tuple(nodes[i] for i in _order(nodes, needs, where))
    return nodes, free


def _producers(
    nodes: Sequence[Node], sources: set[str], results: Sequence[str], where: str
) -> dict[str, int]:
    """Index of the node that defines each value; raises an error if a value is defined or listed twice."""
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
    _distinct(where, "outputs", results)
    return producers


def _results_from_outside(
    results: Sequence[str], producers: Mapping[str, int], sources: set[str], outer: list[set[str]], where: str
) -> set[str]:
    """Names of results that are defined in the scopes in `outer`."""
    free = {name for name in results if name not in producers and name not in sources}
    for name in results:
        if name in free and not any(name in scope for scope in outer):
            raise BadModel(f"{where}: nothing defines its output '{name}'")
    return free


def _order_bodies(
    node: Node, inside: Sequence[tuple[str, Graph]], scopes: list[set[str]], where: str, census: _Census
) -> tuple[Node, set[str]]:
    """The node with sorted subgraphs, and the names that these take from enclosing scopes."""
    taken: set[str] = set()
    changed: dict[str, Graph] = {}
    for name, graph in inside:
        inner = f"{where}, node '{node.label}', {name}"
        ordered, free = _order_graph(graph, scopes, inner, census)
        # the caller looks up the names that lie outside the caller, too
        taken |= free
        if ordered is not graph:
            changed[name] = ordered
    if not changed:
        return node, taken
    attributes: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, tuple):
            value = tuple(changed.get(f"{name}[{i}]", element) for i, element in enumerate(value))
        attributes[name] = changed.get(name, value)
    return node.with_attributes(attributes), taken


def _check_arity(node: Node, least: int, where: str, functions: Mapping[_Key, Function]) -> None:
    """Refuses a node that lacks a required input, or has no output."""
    count = len(node.inputs)
    if node.key in functions:
        return
    if not any(node.outputs):
        raise BadModel(f"{where}: node '{node.label}' makes no output: {node.op} makes 1 at least")
    if (node.domain, node.op) == ("", "Einsum") and isinstance(
        equation := node.attributes.get("equation"), str
    ):
        least = max(least, equation.partition("->")[0].count(",") + 1)
    if count >= least and all(node.inputs[:least]):
        return
    lacking = next((at for at in range(least) if at >= count or not node.inputs[at]), 0)
    takes = "1 input" if least == 1 else f"{least} inputs"
    raise BadModel(
        f"{where}: node '{node.label}' lacks its input {lacking + 1}: {node.op} takes {takes} at least"
    )


def _refuse_domain(node: Node, where: str, opsets: Mapping[str, int]) -> None:
    domain = node.domain or "ai.onnx"
    there = ", ".join(sorted(d or "ai.onnx" for d in opsets)) or "none"
    raise BadModel(
        f"{where}: node '{node.label}' is a {node.op} of the operator domain '{domain}',"
        f" which the model does not import",
        hint=f"it imports: {there}",
    )


def _order(nodes: Sequence[Node], needs: Sequence[Sequence[int]], where: str) -> list[int]:
    """Indices of the nodes in topological order (Kahn's algorithm, earliest ready node first)."""
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
        path = _cycle(waiting, needs)
        names = [f"'{nodes[i].label}'" for i in path[:6]] + (["..."] if len(path) > 6 else [])
        raise BadModel(f"{where} has a cycle: " + " -> ".join([*names, names[0]]))
    return order


def _cycle(waiting: Sequence[int], needs: Sequence[Sequence[int]]) -> list[int]:
    """One cycle among the waiting nodes, in the direction of the data flow.

    Every waiting node needs another waiting node, so walking back through them must reach a node twice.
    """
    at = next(i for i, count in enumerate(waiting) if count)
    path_index: dict[int, int] = {}
    path: list[int] = []
    while at not in path_index:
        path_index[at] = len(path)
        path.append(at)
        at = next(j for j in needs[at] if waiting[j])
    cycle = path[path_index[at] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def _check_calls(functions: Mapping[_Key, Function], bodies: Mapping[_Key | None, _Census]) -> None:
    """Refuses functions that call themselves, nest too deeply, or expand to too many operators."""
    # operators after expansion, and call depth, of each finished body
    size: dict[_Key | None, int] = {}
    depth: dict[_Key | None, int] = {}
    nested: dict[_Key | None, int] = {}
    for root in (*functions, None):
        # an explicit stack: a chain of ten thousand functions must not exhaust Python's
        stack: list[_Key | None] = [root]
        open_: list[_Key | None] = []
        while stack:
            key = stack[-1]
            if key in size:
                stack.pop()
                continue
            calls = bodies[key].calls
            pending = [callee for callee in calls if callee not in size]
            if not pending:
                stack.pop()
                if open_ and open_[-1] == key:
                    open_.pop()
                size[key] = bodies[key].nodes + sum(n * size[callee] for callee, n in calls.items())
                depth[key] = 1 + max((depth[callee] for callee in calls), default=0)
                within = (at + 1 + nested[callee] for callee, at in bodies[key].within.items())
                nested[key] = max(bodies[key].deepest, max(within, default=0))
                continue
            open_.append(key)
            if len(open_) > MAX_CALL_DEPTH + 1:
                raise BadModel(f"local functions are nested more than {MAX_CALL_DEPTH} deep")
            for callee in pending:
                if callee in open_:
                    ring = [*open_[open_.index(callee) :], callee]
                    names = [f"'{k[1]}'" for k in ring if k is not None]
                    names = [*names[:6], "..."] if len(names) > 7 else names
                    raise BadModel("local functions call themselves: " + " -> ".join(names))
            stack.extend(pending)
        if depth[root] - 1 > MAX_CALL_DEPTH:
            raise BadModel(f"local functions are nested more than {MAX_CALL_DEPTH} deep")
        # functions alone may nest deeper: walking them takes less of Python's stack
        if nested[root] > max(MAX_NESTED, depth[root] - 1):
            raise BadModel(f"functions, branches and loops are nested more than {MAX_NESTED} deep together")
        if size[root] > MAX_EXPANDED:
            owner = "the graph" if root is None else f"function '{root[1]}'"
            raise BadModel(
                f"{owner} expands to more than {MAX_EXPANDED:,} operators when its functions are put in place"
            )
