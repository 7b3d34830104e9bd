"""Part of an nn.Module as a module of its own: calls of its exported program (torch.export), in their order.

The program is made functional first, so that nothing changes in place what the part is given. What the part
reads and does not make are its inputs; parameters and buffers keep the names that they have in the whole.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import fx, nn
from torch.fx.node import Node

from explorer.base.errors import BadModel, Misuse
from explorer.engine.compat.torch import leaves, operator_name
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.torch_arrays import as_array
from explorer.engine.runtime.torch_fastpath import without_fastpath
from explorer.engine.split.extract import UnitEdges, chosen_units
from explorer.engine.split.torch.sequence import draws, module_of, random_calls, rows_of
from explorer.facts import Layer
from explorer.facts.split.part import PartSpec
from explorer.host import input_files
from explorer.host.optional_packages import error_line

_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

Tensors = Mapping[str, torch.Tensor]


class ExtractedModule(Struct, frozen=True):
    """A part of a module.

    Attributes:
        module: Takes its inputs by position, and gives a tensor, or a tuple of several.
        reads, makes: Names of what it takes and gives.
        rows: Of its calls, in their order, those that have any; of a module that is called twice twice.
        calls: How many it has, and how many the whole has.
        stored: Its parameters and buffers, by the names that they have in the whole.
        given, made: What the whole had there on one input.
        faithful: Whether the program of the whole gave the module's own outputs, bit for bit.
        drawn: Those of `makes` that depend on random numbers which the part draws.
        attends: Whether torch has kernels for modules of the whole that run in inference alone.
    """

    module: nn.Module
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    rows: tuple[int, ...]
    calls: tuple[int, int]
    stored: Tensors
    given: tuple[torch.Tensor, ...]
    made: tuple[torch.Tensor, ...]
    faithful: bool
    drawn: tuple[str, ...]
    attends: bool


def module_part(
    loaded: LoadedModule, bound: BoundInputs, layers: Sequence[Layer], spec: PartSpec, seed: int
) -> ExtractedModule:
    """A part of a module, and what the whole had there.

    Args:
        loaded: The whole.
        bound: Its inputs.
        layers: Its rows.
        spec: Which part.
        seed: Of its random inputs.

    Raises:
        BadModel: torch.export cannot take the module.
        Misuse: There is no such layer, nothing lies between, or no tensors but other values go in or out.
    """
    model = loaded.materialise()
    args, kwargs = bound.arguments(device="cpu", seed=seed)
    called, program = _exported(loaded, model, args, kwargs)
    found = _units(called, program)
    # of each unit the row of its module, or, called as a function in a module's code, of its operator
    places = rows_of(((first, operator) for operator, (first, *_) in found), layers)
    rows = [group if own is None else own for own, group in places]
    units = [nodes for _, nodes in found]
    made = [tuple([node.name for node in unit]) for unit in units]
    chosen = chosen_units(layers, spec, UnitEdges(rows, made, [tuple(_read(unit)) for unit in units]))
    if not chosen:
        raise Misuse("nothing of the module is called there", where="extract", hint="name other layers")
    calls = [node for at in sorted(chosen) for node in units[at]]
    calls = _with_constants(program, calls)
    paths = [None if row is None or layers[row].group else layers[row].path for row in rows]
    known = {node: path for path, unit in zip(paths, units, strict=True) for node in unit}
    part, given, handed, names = _module(program, calls, known)
    with loaded.quiet(), torch.no_grad(), without_fastpath(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # both draw alike, for they are one program
        seen, ends = _values(program, args, kwargs, {node.name for node in (*given, *handed)})
        torch.manual_seed(seed)
        own_ends = [one for one in leaves(model(*args, **kwargs)) if isinstance(one, torch.Tensor)]
    random = random_calls(calls)
    return ExtractedModule(
        module=part,
        reads=tuple([names[node] for node in given]),
        makes=tuple([names[node] for node in handed]),
        rows=tuple([row for at in sorted(chosen) if (row := rows[at]) is not None]),
        calls=(len(chosen), len(units)),
        stored=_kept(model, program, calls),
        given=tuple([seen[node.name] for node in given]),
        made=tuple([seen[node.name] for node in handed]),
        faithful=len(ends) == len(own_ends) and all(map(identical, ends, own_ends)),
        drawn=tuple([names[node] for node in handed if node in random]),
        attends=any(isinstance(one, _ATTENTION) for one in model.modules()),
    )


def _exported(
    loaded: LoadedModule, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The program of a module, and the same made functional."""
    try:
        with loaded.quiet(), torch.no_grad(), without_fastpath(), torch.random.fork_rng(devices=[]):
            called = torch.export.export(model, tuple(args), dict(kwargs), strict=False)
            return called, called.run_decompositions({})
    except Exception as error:
        raise BadModel(f"torch.export cannot take it ({error_line(error)})", where=loaded.source) from error


def _stored(program: Any) -> dict[str, str]:
    """Parameters, buffers and constants by the inputs of the graph that they are."""
    signature = program.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def _held(program: Any, name: str) -> Any:
    """What is stored under a name."""
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def _kept(model: nn.Module, program: Any, calls: Sequence[Node]) -> Tensors:
    """What the modules of the calls store, and what else is read: what a state_dict of the part has."""
    stored = _stored(program)
    modules = {module_of(node) for node in calls} - {""}
    used = {stored[one.name] for node in calls for one in node.all_input_nodes if one.name in stored}
    own = model.state_dict()
    return {name: one for name, one in own.items() if name in used or name.rpartition(".")[0] in modules}


def _names(paths: Mapping[Node, str | None], *groups: Sequence[Node]) -> dict[Node, str]:
    """Names for what goes in and out: those of the layers that make it, else of the calls; Python's all."""
    found: dict[Node, str] = {}
    for node in (one for group in groups for one in group):
        base = re.sub(r"\W", "_", paths.get(node) or node.name)
        if not base.isidentifier() or keyword.iskeyword(base) or base == "self":
            base = f"_{base}"  # as torch.fx names the layers of a Sequential
        name, count = base, 0
        while name in found.values():
            count += 1
            name = f"{base}_{count}"
        found[node] = name
    return found


def _units(program: Any, functional: Any) -> list[tuple[str, list[Node]]]:
    """The calls of a functional program by those of the module's that they are made of, with its operator."""
    operators = {node.name: operator_name(node.target) for node in program.graph.nodes}
    found: dict[str, list[Node]] = {}
    for node in functional.graph.nodes:
        if node.op == "call_function":
            sources = node.meta.get("from_node") or ()
            name = next((one.name for one in sources if one.name in operators), node.name)
            found.setdefault(name, []).append(node)
    return [(operators.get(name, "").rstrip("_"), nodes) for name, nodes in found.items()]


def _read(unit: Sequence[Node]) -> Iterator[str]:
    return (one.name for node in unit for one in node.all_input_nodes if one not in unit)


def _with_constants(program: Any, calls: Sequence[Node]) -> list[Node]:
    """The calls with those that they read and that depend on no input of the whole."""
    inputs = set(program.graph_signature.user_inputs)
    live: set[Node] = set()
    for node in program.graph.nodes:
        if node.name in inputs or draws(node) or not live.isdisjoint(node.all_input_nodes):
            live.add(node)
    wanted, todo = set(calls), list(calls)
    while todo:
        for one in todo.pop().all_input_nodes:
            if one.op == "call_function" and one not in live and one not in wanted:
                wanted.add(one)
                todo.append(one)
    return [node for node in program.graph.nodes if node in wanted]


def _module(
    program: Any, calls: Sequence[Node], paths: Mapping[Node, str | None]
) -> tuple[nn.Module, list[Node], list[Node], dict[Node, str]]:
    """Calls as a module, with what goes in and what comes out, and their names."""
    mine, stored = set(calls), _stored(program)
    outputs = set(program.graph_signature.user_outputs)
    reads = (one for node in calls for one in node.all_input_nodes)
    given = list(dict.fromkeys(one for one in reads if one not in mine and one.name not in stored))
    handed = [node for node in calls if node.name in outputs or not set(node.users) <= mine]
    handed = handed or [node for node in calls if not node.users]
    for node in (*given, *handed):
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise Misuse(f"'{node.name}', which goes in or out, is no tensor", where="extract")
    names = _names(paths, given, handed)
    graph = fx.Graph()
    known: dict[Node, Node] = {node: graph.placeholder(names[node]) for node in given}
    for node in calls:
        for one in node.all_input_nodes:
            if one not in known:
                known[one] = graph.get_attr(stored[one.name])
        known[node] = graph.node_copy(node, known.__getitem__)
    ends = [known[node] for node in handed]
    graph.output(ends[0] if len(ends) == 1 else tuple(ends))
    targets = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return fx.GraphModule({name: _held(program, name) for name in targets}, graph), given, handed, names


def _values(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], wanted: set[str]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """What the whole has at some places on one input, and its outputs."""
    seen: dict[str, torch.Tensor] = {}

    class Watching(fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            found = super().run_node(n)
            if n.name in wanted:
                seen[n.name] = found
            return found

    inputs, stored = iter(leaves((tuple(args), dict(kwargs)))), _stored(program)
    feeds = [
        _held(program, stored[node.name]) if node.name in stored else next(inputs)
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    ends = Watching(program.graph_module).run(*feeds)
    own = ends[len(ends) - len(program.graph_signature.user_outputs) :]
    return seen, [one for one in leaves(own) if isinstance(one, torch.Tensor)]


def identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    return one.dtype == other.dtype and run.identical(as_array(one), as_array(other))


def save(part: ExtractedModule, path: str) -> None:
    """Writes a part: .pt2 as a program, without the inputs that it was exported with, which torch would
    pickle; else its state_dict.
    """
    if not path.lower().endswith(".pt2"):
        torch.save({name: one.detach().clone() for name, one in part.stored.items()}, path)
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        program = torch.export.export(part.module, part.given, strict=False)
    program.example_inputs = None
    torch.export.save(program, path)


def read_back(part: ExtractedModule, path: str) -> tuple[torch.Tensor, ...]:
    """What the part gives on the whole's own values, with what a written file holds."""
    with torch.no_grad():
        if path.lower().endswith(".pt2"):
            with input_files.binary(path) as file:
                program = torch.export.load(file)
            return tuple(leaves(program.module()(*part.given)))
        with input_files.binary(path) as file:
            stored = torch.load(file, weights_only=True)
        own = dict(part.module.named_parameters()) | dict(part.module.named_buffers())
        # torch takes other kernels for weights that do not train, which round otherwise
        call = {
            name: stored[name].requires_grad_(one.requires_grad)
            for name, one in own.items()
            if name in stored
        }
        return tuple(leaves(torch.func.functional_call(part.module, call, part.given)))
