"""Extracts a part of an nn.Module as a module.

The part consists of the selected operator calls of the module's exported program (torch.export), in order.
The program is made functional first, so that no call changes the part's inputs in place. Values that the
part reads but does not compute become its inputs. Parameters and buffers keep their names.
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
from explorer.engine.compat.torch import get_operator_name, leaves
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.runtime.torch_fastpath import disable_fastpath
from explorer.engine.split.extract import UnitEdges, find_chosen_units
from explorer.engine.split.torch.sequence import (
    draws_random_numbers,
    find_random_calls,
    get_module_path,
    list_rows_of_calls,
)
from explorer.facts import Layer
from explorer.facts.split.part import PartSpec
from explorer.host import input_files
from explorer.host.optional_packages import format_error

_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Attention modules for which torch has inference-only kernels."""

Tensors = Mapping[str, torch.Tensor]


class ExtractedModule(Struct, frozen=True):
    """A part of a module.

    Attributes:
        module: The part. It takes its inputs as positional arguments and returns a tensor or a tuple of
            tensors.
        input_names, output_names: Names of the part's inputs and outputs.
        rows: Row ids of the part's calls, in order; a module that is called twice appears twice.
        call_counts: Number of calls in the part and in the original module.
        state: The part's parameters and buffers, by their names in the original module.
        input_values, output_values: Values of the part's inputs and outputs in a run of the original module.
        is_reproduced: Whether the exported program reproduced the module's outputs bit for bit.
        random_outputs: Names of the outputs that depend on random numbers drawn in the part.
        has_attention: Whether the original module has attention modules, for which torch has inference-only
            kernels.
    """

    module: nn.Module
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    rows: tuple[int, ...]
    call_counts: tuple[int, int]
    state: Tensors
    input_values: tuple[torch.Tensor, ...]
    output_values: tuple[torch.Tensor, ...]
    is_reproduced: bool
    random_outputs: tuple[str, ...]
    has_attention: bool


def extract_module_part(
    loaded: LoadedModule, bound_inputs: BoundInputs, layers: Sequence[Layer], spec: PartSpec, seed: int
) -> ExtractedModule:
    """Extracts a part of a module, and runs the module to get the values of the part's inputs and outputs.

    Args:
        loaded: The module.
        bound_inputs: The module's inputs.
        layers: The rows of the module's layer tree.
        spec: The selection of the part.
        seed: Seed of the random inputs and of random operators.

    Raises:
        BadModel: torch.export fails for the module.
        Misuse: No layer matches, no call connects the first layer of the part with the last, or an input or
            output is not a tensor.
    """
    model = loaded.materialize()
    args, kwargs = bound_inputs.build_arguments(device="cpu", seed=seed)
    exported, functional = _export(loaded, model, args, kwargs)
    # a unit: the functional calls that one call of the exported program became
    unit_calls = _group_calls_by_source(exported, functional)
    # the row of each unit: its function call's row if the layer tree has one, else its module's row
    places = list_rows_of_calls(((first, operator) for operator, (first, *_) in unit_calls), layers)
    rows = [group if row is None else row for row, group in places]
    units = [nodes for _, nodes in unit_calls]
    output_names = [tuple([node.name for node in unit]) for unit in units]
    part_units = find_chosen_units(
        layers, spec, UnitEdges(rows, output_names, [tuple(_list_read_values(unit)) for unit in units])
    )
    if not part_units:
        raise Misuse(
            "the module calls no operator in these layers", where="extract", hint="name other layers"
        )
    calls = [node for unit_index in sorted(part_units) for node in units[unit_index]]
    calls = _add_constants(functional, calls)
    paths = [None if row is None or layers[row].group else layers[row].path for row in rows]
    path_by_node = {node: path for path, unit in zip(paths, units, strict=True) for node in unit}
    part, input_nodes, output_nodes, names = _build_module(functional, calls, path_by_node)
    with loaded.quiet(), torch.no_grad(), disable_fastpath(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the same seed before both runs, so that both draw the same numbers
        values, outputs = _run_program(
            functional, args, kwargs, {node.name for node in (*input_nodes, *output_nodes)}
        )
        torch.manual_seed(seed)
        module_outputs = [leaf for leaf in leaves(model(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    random_calls = find_random_calls(calls)
    return ExtractedModule(
        module=part,
        input_names=tuple([names[node] for node in input_nodes]),
        output_names=tuple([names[node] for node in output_nodes]),
        rows=tuple([row for unit_index in sorted(part_units) if (row := rows[unit_index]) is not None]),
        call_counts=(len(part_units), len(units)),
        state=_build_part_state(model, functional, calls),
        input_values=tuple([values[node.name] for node in input_nodes]),
        output_values=tuple([values[node.name] for node in output_nodes]),
        is_reproduced=len(outputs) == len(module_outputs) and all(map(is_identical, outputs, module_outputs)),
        random_outputs=tuple([names[node] for node in output_nodes if node in random_calls]),
        has_attention=any(isinstance(submodule, _ATTENTION) for submodule in model.modules()),
    )


def _export(
    loaded: LoadedModule, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Exports a module; returns the program as exported, and its functional form.

    Raises:
        BadModel: torch.export fails.
    """
    try:
        with loaded.quiet(), torch.no_grad(), disable_fastpath(), torch.random.fork_rng(devices=[]):
            exported = torch.export.export(model, tuple(args), dict(kwargs), strict=False)
            return exported, exported.run_decompositions({})
    except Exception as error:
        raise BadModel(f"torch.export cannot take it ({format_error(error)})", where=loaded.source) from error


def _get_state_names(functional: Any) -> dict[str, str]:
    """Returns the names of parameters, buffers and constants, by the placeholder that feeds each one."""
    signature = functional.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def _get_state_value(functional: Any, name: str) -> Any:
    """Returns the parameter, buffer or constant called `name`."""
    return functional.state_dict[name] if name in functional.state_dict else functional.constants[name]


def _build_part_state(model: nn.Module, functional: Any, calls: Sequence[Node]) -> Tensors:
    """Builds the part's state_dict: the state of the calls' modules, and the tensors that the calls read."""
    state_names = _get_state_names(functional)
    modules = {get_module_path(node) for node in calls} - {""}
    read_names = {
        state_names[input_node.name]
        for node in calls
        for input_node in node.all_input_nodes
        if input_node.name in state_names
    }
    state = model.state_dict()
    return {
        name: tensor
        for name, tensor in state.items()
        if name in read_names or name.rpartition(".")[0] in modules
    }


def _name_inputs_and_outputs(paths: Mapping[Node, str | None], *groups: Sequence[Node]) -> dict[Node, str]:
    """Gives each input and output node a unique Python identifier.

    The name is derived from the layer that produces the value, or from the call if it has no layer.
    """
    names: dict[Node, str] = {}
    for node in (node for group in groups for node in group):
        base = re.sub(r"\W", "_", paths.get(node) or node.name)
        if not base.isidentifier() or keyword.iskeyword(base) or base == "self":
            base = f"_{base}"  # as torch.fx does for the numbered layers of a Sequential
        name, count = base, 0
        while name in names.values():
            count += 1
            name = f"{base}_{count}"
        names[node] = name
    return names


def _group_calls_by_source(exported: Any, functional: Any) -> list[tuple[str, list[Node]]]:
    """Groups the functional calls by the exported call that they came from, with that call's operator."""
    operators = {node.name: get_operator_name(node.target) for node in exported.graph.nodes}
    calls_by_source: dict[str, list[Node]] = {}
    for node in functional.graph.nodes:
        if node.op == "call_function":
            sources = node.meta.get("from_node") or ()
            name = next((source.name for source in sources if source.name in operators), node.name)
            calls_by_source.setdefault(name, []).append(node)
    return [(operators.get(name, "").rstrip("_"), nodes) for name, nodes in calls_by_source.items()]


def _list_read_values(unit: Sequence[Node]) -> Iterator[str]:
    return (input_node.name for node in unit for input_node in node.all_input_nodes if input_node not in unit)


def _add_constants(functional: Any, calls: Sequence[Node]) -> list[Node]:
    """Adds the calls that `calls` depend on and that depend on no input of the program."""
    inputs = set(functional.graph_signature.user_inputs)
    dependent: set[Node] = set()
    for node in functional.graph.nodes:
        if (
            node.name in inputs
            or draws_random_numbers(node)
            or not dependent.isdisjoint(node.all_input_nodes)
        ):
            dependent.add(node)
    needed, pending = set(calls), list(calls)
    while pending:
        for input_node in pending.pop().all_input_nodes:
            if input_node.op == "call_function" and input_node not in dependent and input_node not in needed:
                needed.add(input_node)
                pending.append(input_node)
    return [node for node in functional.graph.nodes if node in needed]


def _build_module(
    functional: Any, calls: Sequence[Node], paths: Mapping[Node, str | None]
) -> tuple[nn.Module, list[Node], list[Node], dict[Node, str]]:
    """Builds a module from calls.

    Returns:
        The module; its input nodes; its output nodes; and the name of each of these nodes.

    Raises:
        Misuse: An input or output is not a tensor.
    """
    part_calls, state_names = set(calls), _get_state_names(functional)
    outputs = set(functional.graph_signature.user_outputs)
    reads = (input_node for node in calls for input_node in node.all_input_nodes)
    inputs = list(
        dict.fromkeys(node for node in reads if node not in part_calls and node.name not in state_names)
    )
    output_nodes = [node for node in calls if node.name in outputs or not set(node.users) <= part_calls]
    output_nodes = output_nodes or [node for node in calls if not node.users]
    for node in (*inputs, *output_nodes):
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise Misuse(f"'{node.name}', which goes in or out, is not a tensor", where="extract")
    names = _name_inputs_and_outputs(paths, inputs, output_nodes)
    graph = fx.Graph()
    copies: dict[Node, Node] = {node: graph.placeholder(names[node]) for node in inputs}
    for node in calls:
        for input_node in node.all_input_nodes:
            if input_node not in copies:
                copies[input_node] = graph.get_attr(state_names[input_node.name])
        copies[node] = graph.node_copy(node, copies.__getitem__)
    output_copies = [copies[node] for node in output_nodes]
    graph.output(output_copies[0] if len(output_copies) == 1 else tuple(output_copies))
    targets = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return (
        fx.GraphModule({name: _get_state_value(functional, name) for name in targets}, graph),
        inputs,
        output_nodes,
        names,
    )


def _run_program(
    functional: Any, args: Sequence[Any], kwargs: Mapping[str, Any], node_names: set[str]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Runs the functional program once; returns the values of the named nodes, and the outputs."""
    values: dict[str, torch.Tensor] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n.name in node_names:
                values[n.name] = value
            return value

    inputs, state_names = iter(leaves((tuple(args), dict(kwargs)))), _get_state_names(functional)
    feeds = [
        _get_state_value(functional, state_names[node.name]) if node.name in state_names else next(inputs)
        for node in functional.graph.nodes
        if node.op == "placeholder"
    ]
    all_outputs = Recorder(functional.graph_module).run(*feeds)
    results = all_outputs[len(all_outputs) - len(functional.graph_signature.user_outputs) :]
    return values, [leaf for leaf in leaves(results) if isinstance(leaf, torch.Tensor)]


def is_identical(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    return first.dtype == second.dtype and run.is_identical(convert_to_array(first), convert_to_array(second))


def save(part: ExtractedModule, path: str) -> None:
    """Writes a part: as an exported program to a .pt2 file, else as a state_dict.

    The program is written without its example inputs, because torch would pickle them.
    """
    if not path.lower().endswith(".pt2"):
        torch.save({name: tensor.detach().clone() for name, tensor in part.state.items()}, path)
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        program = torch.export.export(part.module, part.input_values, strict=False)
    program.example_inputs = None
    torch.export.save(program, path)


def read_back(part: ExtractedModule, path: str) -> tuple[torch.Tensor, ...]:
    """Computes the part's outputs from a written file, on the input values of the original module's run."""
    with torch.no_grad():
        if path.lower().endswith(".pt2"):
            with input_files.open_binary(path) as file:
                program = torch.export.load(file)
            return tuple(leaves(program.module()(*part.input_values)))
        with input_files.open_binary(path) as file:
            state = torch.load(file, weights_only=True)
        tensors_by_name = dict(part.module.named_parameters()) | dict(part.module.named_buffers())
        # torch chooses other kernels for weights without gradients, and these round differently
        state_by_name = {
            name: state[name].requires_grad_(tensor.requires_grad)
            for name, tensor in tensors_by_name.items()
            if name in state
        }
        return tuple(leaves(torch.func.functional_call(part.module, state_by_name, part.input_values)))
