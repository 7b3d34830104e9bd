"""Graph of an exported program, read from its JSON: nodes in the module calls that they ran in.

Every node names its module and the call of it. Consecutive nodes of one call are a segment. Its inputs and
outputs follow from the uses of the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.formats.torch_files.exported_program import DTYPES, module_stack, read_graph, symbol_of
from explorer.engine.formats.torch_files.zip_archive import ZipArchive

LARGEST = 1 << 56
"""Upper limit of a tensor's elements: a larger number of bytes would overflow."""


class GraphNode(Struct):
    """An operator: arguments as JSON, names of its results, and the values that it uses last."""

    target: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    stack: tuple[tuple[str, str, str], ...]
    spent: list[str] = field(default_factory=list)

    def made(self) -> Iterator[str]:
        """Names of its results."""
        for out in self.outputs:
            yield from names_in(out)


class Segment(Struct):
    """Nodes of one module call, and module calls inside it.

    Attributes:
        path: Path of the module; '' is the model.
        key: Key of the call: a module that runs twice has two.
        items: Nodes and inner segments in execution order.
        given: Names of the values from outside; `result`: names of the values used outside.
    """

    path: str
    key: str
    items: list[GraphNode | Segment] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    result: list[str] = field(default_factory=list)


class ProgramInput(Struct):
    """An input of the program; a size is a number, or an expression with its value at export."""

    name: str
    dtype: str
    sizes: tuple[int | tuple[str, int], ...]


class Program(Struct):
    """An exported program from its file.

    Attributes:
        root: All nodes, in module calls.
        kinds: Class of every module, by its path.
        inputs: Input tensors.
        stored: Kind, name in the graph and name in the state_dict of every stored tensor.
        results: Results, in the form of arguments.
        layout: Nesting of the results, as a torch tree description.
        ranges: Smallest and largest value of every symbol.
        version: Version of torch that wrote it.
    """

    root: Segment
    kinds: dict[str, str]
    inputs: list[ProgramInput]
    stored: list[tuple[str, str, str]]
    results: list[dict[str, Any]]
    layout: Any
    ranges: dict[str, tuple[int | None, int | None]]
    version: str


def names_in(arg: Any) -> Iterator[str]:
    """Names of the values in an argument or result."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if kind in ("name", "as_name"):
            yield str(value)
        elif kind.startswith(("as_tensor", "as_optional_tensors", "as_sym_")):
            for element in value if isinstance(value, list) else (value,):
                yield from names_in(element)


def _segments(nodes: Sequence[GraphNode], results: Sequence[str]) -> tuple[Segment, dict[str, str]]:
    """The nodes in their module calls, and the class of each module."""
    root = Segment("", "")
    kinds: dict[str, str] = {}
    open_calls = [root]
    for node in nodes:
        stack = node.stack
        kinds.update((path, kind) for _, path, kind in stack)
        inner = [(key, path) for key, path, _ in stack if path]
        if not stack:
            # a node without a module (a query of a size) stays in the last call
            inner = [(s.key, s.path) for s in open_calls[1:]]
        depth = 1
        while depth < len(open_calls) and depth <= len(inner):
            if open_calls[depth].key != inner[depth - 1][0]:
                break
            depth += 1
        del open_calls[depth:]
        for key, path in inner[depth - 1 :]:
            segment = Segment(path, key)
            open_calls[-1].items.append(segment)
            open_calls.append(segment)
        open_calls[-1].items.append(node)
    _set_call_values(root, set(results))
    _note_last_uses(nodes, set(results))
    return root, kinds


def _set_call_values(root: Segment, results: set[str]) -> None:
    """Sets the inputs and outputs of every call."""
    uses: dict[str, int] = {}

    def count(segment: Segment) -> tuple[dict[str, int], list[str]]:
        used: dict[str, int] = {}
        produced: list[str] = []
        for child in segment.items:
            if isinstance(child, Segment):
                inner_used, inner_made = count(child)
                produced += inner_made
                for name, times in inner_used.items():
                    used[name] = used.get(name, 0) + times
            else:
                for argument in child.inputs:
                    for name in names_in(argument["arg"]):
                        used[name] = used.get(name, 0) + 1
                produced += child.made()
        segment.given = [n for n in used if n not in set(produced)]
        inside[id(segment)] = used, produced
        return used, produced

    inside: dict[int, tuple[dict[str, int], list[str]]] = {}
    uses, _ = count(root)

    def settle(segment: Segment) -> None:
        used, produced = inside[id(segment)]
        segment.result = [n for n in produced if n in results or uses.get(n, 0) > used.get(n, 0)]
        for child in segment.items:
            if isinstance(child, Segment):
                settle(child)

    settle(root)


def _note_last_uses(nodes: Sequence[GraphNode], results: set[str]) -> None:
    """Sets, for every node, the values that it uses last."""
    used_later = set(results)
    for node in reversed(nodes):
        used = {n for argument in node.inputs for n in names_in(argument["arg"])} | set(node.made())
        node.spent = [n for n in used if n not in used_later]
        used_later |= used


def read(archive: ZipArchive) -> Program:
    """Reads the program in an archive.

    Raises:
        BadModel: There is none, or its graph cannot be read.
    """
    hint = "export it again with the torch that is installed here"
    return read_graph(archive, partial(_program, archive.path), hint)


def _program(path: str, described: dict[str, Any]) -> Program:
    module = described["graph_module"]
    graph, signature = module["graph"], module["signature"]
    state, user = [], []
    for spec in signature["input_specs"]:
        ((kind, value),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            state.append((kind, str(value["arg"]["name"]), str(value[f"{kind}_name"])))
        elif kind == "user_input":
            user.append(value["arg"])
        else:
            raise BadModel(f"it takes a '{printable(kind)}', which is not supported", where=path)
    inputs = [_input(graph, str(a["as_tensor"]["name"])) for a in user if "as_tensor" in a]
    results = [s["user_output"]["arg"] for s in signature["output_specs"] if "user_output" in s]
    nodes = [
        GraphNode(
            str(n["target"]),
            list(n["inputs"]),
            list(n["outputs"]),
            module_stack(str((n.get("metadata") or {}).get("nn_module_stack", ""))),
        )
        for n in graph["nodes"]
    ]
    root, kinds = _segments(nodes, [n for r in results for n in names_in(r)])
    calls = module.get("module_call_graph") or []
    outer = next((c["signature"] for c in calls if c["fqn"] == "" and c["signature"]), None)
    ranges = {
        symbol_of(str(s)): (_limit(r.get("min_val")), _limit(r.get("max_val")))
        for s, r in (described.get("range_constraints") or {}).items()
    }
    return Program(
        root,
        kinds,
        inputs,
        state,
        results,
        json.loads(outer["out_spec"])[1] if outer else None,
        ranges,
        str(described.get("torch_version", "")),
    )


def _limit(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("a size is limited by what is no number")
    return value


def _input(graph: dict[str, Any], name: str) -> ProgramInput:
    meta = graph["tensor_values"][name]
    sizes: list[int | tuple[str, int]] = []
    for size in meta["sizes"]:
        if "as_int" in size:
            sizes.append(int(size["as_int"]))
        else:
            expression = size["as_expr"]
            sizes.append((str(expression["expr_str"]), int((expression.get("hint") or {}).get("as_int", 1))))
    exported_sizes = [s if isinstance(s, int) else s[1] for s in sizes]
    if any(s < 0 for s in exported_sizes) or math.prod(exported_sizes) >= LARGEST:
        raise ValueError(f"the input {name} has sizes that no tensor has")
    return ProgramInput(name, DTYPES[meta["dtype"]], tuple(sizes))
