"""Graph of an exported program: reads the JSON and groups the nodes into module calls.

Each node names the module calls that contain it. Consecutive nodes of one module call form a segment, and
segments nest like the modules. The inputs and outputs of a segment follow from the uses of the values.
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
from explorer.engine.formats.torch_files.exported_program import (
    DTYPES,
    ModuleCall,
    extract_symbol,
    parse_module_stack,
    read_graph,
)
from explorer.engine.formats.torch_files.zip_archive import ZipArchive

MAX_ELEMENTS = 1 << 56
"""Upper bound of the elements of a tensor; above it, the number of bytes would overflow."""


class GraphNode(Struct):
    """An operator of the graph.

    Attributes:
        target: Qualified name of the operator.
        inputs: Arguments, as in the JSON of the file.
        outputs: Results, as in the JSON of the file.
        stack: Module calls that contain the node, outermost first.
        spent: Names of its inputs and outputs that no later node uses and that are no results of the program.
    """

    target: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    stack: tuple[ModuleCall, ...]
    spent: list[str] = field(default_factory=list)

    def list_output_names(self) -> Iterator[str]:
        """Yields the names of the result values."""
        for output in self.outputs:
            yield from list_value_names(output)


class Segment(Struct):
    """The nodes of one module call, and the segments of the calls inside it.

    Attributes:
        path: Path of the module; '' is the model.
        key: Key of the call, which differs between two calls of one module.
        items: Nodes and inner segments in execution order.
        input_names: Names of the input values, which the segment uses but does not compute.
        output_names: Names of the output values, which are used outside the segment.
    """

    path: str
    key: str
    items: list[GraphNode | Segment] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)


class ProgramInput(Struct):
    """An input of the program.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        sizes: Sizes. A dynamic size is a pair of its expression and its value at export.
    """

    name: str
    dtype: str
    sizes: tuple[int | tuple[str, int], ...]


class Program(Struct):
    """An exported program.

    Attributes:
        root: Segment of the model, which contains all nodes.
        kinds: Class of each module, by path.
        inputs: Input tensors.
        stored: (kind, name in the graph, name in the state_dict) of each stored tensor. The kind is
            'parameter', 'buffer' or 'tensor_constant'.
        results: Results, in the same form as the arguments of a node.
        layout: Nesting of the results, in the form of torch's tree specification.
        ranges: Minimum and maximum of each symbol; None for an open end.
        version: Version of torch that wrote the file.
    """

    root: Segment
    kinds: dict[str, str]
    inputs: list[ProgramInput]
    stored: list[tuple[str, str, str]]
    results: list[dict[str, Any]]
    layout: Any
    ranges: dict[str, tuple[int | None, int | None]]
    version: str


def list_value_names(arg: Any) -> Iterator[str]:
    """Yields the names of the values in an argument or result."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if kind in ("name", "as_name"):
            yield str(value)
        elif kind.startswith(("as_tensor", "as_optional_tensors", "as_sym_")):
            for element in value if isinstance(value, list) else (value,):
                yield from list_value_names(element)


def _group_segments(nodes: Sequence[GraphNode], results: Sequence[str]) -> tuple[Segment, dict[str, str]]:
    """Groups nodes into segments.

    Args:
        nodes: Nodes in execution order.
        results: Names of the program's results.

    Returns:
        The segment of the model, and the class of each module by path.
    """
    root = Segment("", "")
    kinds: dict[str, str] = {}
    open_calls = [root]
    for node in nodes:
        stack = node.stack
        kinds.update((module_call.path, module_call.kind) for module_call in stack)
        inner = [(module_call.key, module_call.path) for module_call in stack if module_call.path]
        if not stack:
            # a node without a module, such as one that reads a size, belongs to the previous module call
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
    """Sets `input_names` and `output_names` of every segment."""
    uses: dict[str, int] = {}

    def count(segment: Segment) -> tuple[dict[str, int], list[str]]:
        """Returns the number of uses of each value in a segment, and the values that the segment produces."""
        use_counts: dict[str, int] = {}
        produced: list[str] = []
        for child in segment.items:
            if isinstance(child, Segment):
                inner_uses, inner_produced = count(child)
                produced += inner_produced
                for name, use_count in inner_uses.items():
                    use_counts[name] = use_counts.get(name, 0) + use_count
            else:
                for argument in child.inputs:
                    for name in list_value_names(argument["arg"]):
                        use_counts[name] = use_counts.get(name, 0) + 1
                produced += child.list_output_names()
        segment.input_names = [n for n in use_counts if n not in set(produced)]
        counts[id(segment)] = use_counts, produced
        return use_counts, produced

    counts: dict[int, tuple[dict[str, int], list[str]]] = {}
    uses, _ = count(root)

    def set_results(segment: Segment) -> None:
        use_counts, produced = counts[id(segment)]
        segment.output_names = [n for n in produced if n in results or uses.get(n, 0) > use_counts.get(n, 0)]
        for child in segment.items:
            if isinstance(child, Segment):
                set_results(child)

    set_results(root)


def _note_last_uses(nodes: Sequence[GraphNode], results: set[str]) -> None:
    """Sets `spent` of every node."""
    used_later = set(results)
    for node in reversed(nodes):
        node_values = {n for argument in node.inputs for n in list_value_names(argument["arg"])} | set(
            node.list_output_names()
        )
        node.spent = [n for n in node_values if n not in used_later]
        used_later |= node_values


def read(archive: ZipArchive) -> Program:
    """Reads the exported program in an archive.

    Raises:
        BadModel: The archive contains no program, or its graph cannot be read.
    """
    hint = "export it again with the torch that is installed here"
    return read_graph(archive, partial(_read_program, archive.path), hint)


def _read_program(path: str, description: dict[str, Any]) -> Program:
    module = description["graph_module"]
    graph, signature = module["graph"], module["signature"]
    stored, user_inputs = [], []
    for spec in signature["input_specs"]:
        ((kind, value),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            stored.append((kind, str(value["arg"]["name"]), str(value[f"{kind}_name"])))
        elif kind == "user_input":
            user_inputs.append(value["arg"])
        elif kind != "constant_input":  # the nodes that read such a number contain it
            raise BadModel(f"it takes a '{printable(kind)}', which is not supported", where=path)
    for argument in user_inputs:
        ((kind, value),) = argument.items()
        if kind.startswith("as_sym_"):
            name = printable(str(value.get("as_name", "")))
            raise BadModel(
                f"its input '{name}' is a number that a caller may change, and only tensors are supported",
                where=path,
                hint="export it with a fixed number",
            )
    inputs = [_read_input(graph, str(a["as_tensor"]["name"])) for a in user_inputs if "as_tensor" in a]
    results = [s["user_output"]["arg"] for s in signature["output_specs"] if "user_output" in s]
    nodes = [
        GraphNode(
            str(n["target"]),
            list(n["inputs"]),
            list(n["outputs"]),
            parse_module_stack(str((n.get("metadata") or {}).get("nn_module_stack", ""))),
        )
        for n in graph["nodes"]
    ]
    root, kinds = _group_segments(nodes, [n for r in results for n in list_value_names(r)])
    calls = module.get("module_call_graph") or []
    model_signature = next((c["signature"] for c in calls if c["fqn"] == "" and c["signature"]), None)
    ranges = {
        extract_symbol(str(s)): (_parse_limit(r.get("min_val")), _parse_limit(r.get("max_val")))
        for s, r in (description.get("range_constraints") or {}).items()
    }
    return Program(
        root,
        kinds,
        inputs,
        stored,
        results,
        json.loads(model_signature["out_spec"])[1] if model_signature else None,
        ranges,
        str(description.get("torch_version", "")),
    )


def _parse_limit(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("the limit of a size is not a number")
    return value


def _read_input(graph: dict[str, Any], name: str) -> ProgramInput:
    meta = graph["tensor_values"][name]
    sizes: list[int | tuple[str, int]] = []
    for size in meta["sizes"]:
        if "as_int" in size:
            sizes.append(int(size["as_int"]))
        else:
            expression = size["as_expr"]
            sizes.append((str(expression["expr_str"]), int((expression.get("hint") or {}).get("as_int", 1))))
    exported_sizes = [s if isinstance(s, int) else s[1] for s in sizes]
    if any(s < 0 for s in exported_sizes) or math.prod(exported_sizes) >= MAX_ELEMENTS:
        raise ValueError(f"the input {name} has impossible sizes")
    return ProgramInput(name, DTYPES[meta["dtype"]], tuple(sizes))
