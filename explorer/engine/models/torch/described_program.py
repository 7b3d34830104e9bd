"""Opens exported programs on a machine without torch: builds the layer tree from the shapes in the file.

A module without submodules is a row with the sums of its operators. Other operators have rows of their own,
as with torch. Figures that need a run of the program are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer.base.errors import MissingExtra, format_install_command
from explorer.engine.costs.aten.table import count_exported_call
from explorer.engine.costs.layer_tree import UNPLACED, LayerLeaf, Scope
from explorer.engine.formats.format import import_on_call
from explorer.engine.formats.tensor_index import StoredTensor
from explorer.engine.formats.torch_files.exported_program import (
    ProgramCall,
    ProgramDescription,
    read_description,
)
from explorer.engine.formats.torch_files.tensors import BYTES
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensors import DescribedLeaves, list_stored_pieces
from explorer.engine.models.torch.described_file import DescribedFile, build_tensor_infos, refuse_sizes
from explorer.engine.operators import cost_formulas
from explorer.facts import Layer, Shape, TensorInfo
from explorer.host.optional_packages import require

Tensor = tuple[str, str | None, Shape | None]
"""Name, element type and shape of a value."""

_REASON = "the program runs with torch, which cannot be imported here"
_COST_NOTE = (
    f"{_REASON}: MACs are counted from the shapes in the file, at the sizes that it was exported with;"
    " bytes moved, memory and the order of execution are not known"
)


def open_program(source: str, options: OpenOptions) -> OpenedModel:
    """Opens an exported program, or only reads its description if torch is not installed."""
    try:
        require("torch", source)
    except MissingExtra:
        return open_described(source, options)
    rebuilt: OpenedModel = import_on_call("models.torch.module_file:open_program")(source, options)
    return rebuilt


def open_described(source: str, options: OpenOptions) -> OpenedModel:
    """Reads the description of an exported program, without torch.

    Raises:
        BadModel: The file holds no program, or cannot be read.
        Misuse: The options request other sizes than those in the file.
    """
    refuse_sizes(options, f"type: {format_install_command()}")
    program = read_description(source, _REASON, exported=True)
    return DescribedFile(
        program.contents,
        options,
        lambda: _build_leaves(program),
        strides=program.strides,
        hint=f"type: {format_install_command()}",
        inputs=build_tensor_infos(program.inputs),
        outputs=build_tensor_infos(program.outputs),
        cost_note=_COST_NOTE,
    )


def read_node_figures(source: str) -> dict[str, dict[str, int | None]]:
    """Returns figures of the nodes of a program, by their names in its graph.

    The figures are those at the sizes that the program was exported with.

    Raises:
        BadModel: The file holds no program, or cannot be read.
    """
    program = read_description(source, _REASON, exported=True, find_offsets=False)
    parameters = {
        tensor.name: tensor for tensor in program.contents.tensors if tensor.name in program.parameters
    }
    figures: dict[str, dict[str, int | None]] = {}
    for operator in (call.operator for call in program.nodes):
        cost = count_exported_call(operator.kind, operator.inputs, operator.outputs, operator.settings)
        names = dict.fromkeys(
            program.stored_names[name] for name in operator.uses if name in program.stored_names
        )
        used_parameters = [parameters[name] for name in names if name in parameters]
        figures[operator.name] = {
            "macs": cost.macs,
            "ops": cost.elementwise_ops,
            "params": sum(math.prod(tensor.shape) for tensor in used_parameters),
            "weights": sum(tensor.nbytes for tensor in used_parameters),
            "activations": _sum_bytes(operator.outputs),
        }
        # each of several results is a node of its own, without costs
        result_names = [name for name, _, _ in operator.outputs if name != operator.name]
        figures.update((name, dict.fromkeys(figures[operator.name], 0)) for name in result_names)
    return figures


def _build_leaves(program: ProgramDescription) -> DescribedLeaves:
    """Returns leaves in the order of their first operator, then of unused parameters. No group has facts."""
    paths_with_submodules = {
        module_call.path.rpartition(".")[0]
        for call in program.nodes
        for module_call in call.stack
        if module_call.path
    }
    calls_by_row: dict[int | str, list[ProgramCall]] = {}  # by path of a module, or index of an operator
    for index, call in enumerate(program.nodes):
        path = call.stack[-1].path if call.stack else ""
        is_single = not path or path in paths_with_submodules
        calls_by_row.setdefault(index if is_single else path, []).append(call)
    parameters = {
        tensor.name: tensor for tensor in program.contents.tensors if tensor.name in program.parameters
    }
    unused_parameters = {tensor.key: tensor for tensor in parameters.values()}
    leaves: list[LayerLeaf] = []
    for key, nodes in calls_by_row.items():
        layer, used_parameters = _build_row(program, nodes, isinstance(key, str), parameters)
        for tensor in used_parameters:
            unused_parameters.pop(tensor.key, None)
        scopes = _build_scopes(nodes[0], isinstance(key, str))
        leaves.append(LayerLeaf(scopes, layer, list_stored_pieces(used_parameters), nodes=len(nodes)))
    for tensor in unused_parameters.values():
        leaves.append(LayerLeaf((), _build_unused_row(tensor), list_stored_pieces([tensor]), nodes=0))
    return leaves, {}


def _build_scopes(call: ProgramCall, is_module: bool) -> tuple[Scope, ...]:
    """Returns the modules around a row: those of the call, except the innermost if the row is a module."""
    module_calls = [module_call for module_call in call.stack if module_call.path]
    if is_module:
        module_calls = module_calls[:-1]
    return tuple(
        Scope(module_call.path, module_call.path.rpartition(".")[2], module_call.kind.rpartition(".")[2])
        for module_call in module_calls
    )


def _build_row(
    program: ProgramDescription,
    nodes: Sequence[ProgramCall],
    is_module: bool,
    parameters: Mapping[str, StoredTensor],
) -> tuple[Layer, list[StoredTensor]]:
    """Returns the row of a module with all its operators, or of one operator, and the parameters it uses."""
    costs = [
        count_exported_call(
            call.operator.kind, call.operator.inputs, call.operator.outputs, call.operator.settings
        )
        for call in nodes
    ]
    total_cost = (
        cost_formulas.total([cost for cost in costs if cost.formula != cost_formulas.FREE.formula])
        if len(costs) > 1
        else costs[0]
    )
    first = nodes[0]
    path = first.stack[-1].path if first.stack else ""
    operator_name = first.operator.name or first.operator.kind
    names = dict.fromkeys(
        program.stored_names[name]
        for call in nodes
        for name in call.operator.uses
        if name in program.stored_names
    )
    used_parameters = [parameters[name] for name in names if name in parameters]
    outputs = list(nodes[-1].operator.outputs)
    op = first.operator.kind
    op = op.split(".")[1] if op.startswith("aten.") else op
    kind = first.stack[-1].kind.rpartition(".")[2] if is_module else op
    layer = Layer(
        **UNPLACED,
        path=path if is_module else f"{path}.{operator_name}" if path else operator_name,
        name=path.rpartition(".")[2] if is_module else operator_name,
        kind=kind,
        calls=len({call.stack[-1].key for call in nodes}) if is_module else 1,
        inputs=build_tensor_infos(_find_outside_inputs(nodes, program)),
        outputs=build_tensor_infos(outputs),
        weights=tuple(
            TensorInfo(tensor.last_name_part, tensor.dtype, tensor.shape, "declared")
            for tensor in used_parameters
        ),
        macs=total_cost.macs,
        formula=total_cost.formula or next((cost.formula for cost in costs if cost.formula), ""),
        elementwise_ops=total_cost.elementwise_ops,
        bytes_read=None,
        bytes_written=None,
        activation_bytes=_sum_bytes(_collect_results(nodes) if is_module else outputs),
        weight_bytes_read=None,
        attributes=_collect_attributes(nodes),
        status=total_cost.status,
        reason=str(total_cost.reason),
        work_bound=isinstance(total_cost.reason, cost_formulas.WorkBound),
    )
    return layer, used_parameters


def _find_outside_inputs(nodes: Sequence[ProgramCall], program: ProgramDescription) -> list[Tensor]:
    """Returns the input tensors of the nodes that are not stored and come from outside these nodes."""
    inner_values = {name for call in nodes for name, _, _ in call.operator.outputs}
    outside_inputs: dict[str, Tensor] = {}
    for call in nodes:
        input_tensors = [value for value in call.operator.inputs if value[2] is not None]
        for name, value in zip(call.operator.uses, input_tensors, strict=False):
            if name not in inner_values and name not in program.stored_names:
                outside_inputs.setdefault(name, value)
    return list(outside_inputs.values())


def _collect_results(nodes: Sequence[ProgramCall]) -> list[Tensor]:
    """Returns the outputs of every call of a module: those of the last operator in each call."""
    outputs_by_call = {call.stack[-1].key: call.operator.outputs for call in nodes}
    return [value for outputs in outputs_by_call.values() for value in outputs]


def _sum_bytes(values: Sequence[Tensor]) -> int | None:
    """Returns the bytes of all values, or None if a type or size is unknown."""
    total_bytes = 0
    for _, dtype, shape in values:
        value_bytes = BYTES.get(dtype or "")
        if value_bytes is None or shape is None:
            return None
        for dim in shape:
            if not isinstance(dim, int):
                return None
            value_bytes *= dim
        total_bytes += value_bytes
    return total_bytes


def _collect_attributes(nodes: Sequence[ProgramCall]) -> dict[str, object]:
    """Returns the arguments of a single operator, or the names of the first 16; and the first source line."""
    attributes = dict(nodes[0].operator.settings) if len(nodes) == 1 else {}
    if len(nodes) > 1:
        attributes["operators"] = [call.operator.kind for call in nodes[:16]]  # enough for a page
    if nodes[0].operator.line:
        attributes["source"] = nodes[0].operator.line
    return attributes


def _build_unused_row(tensor: StoredTensor) -> Layer:
    """Returns the row of a parameter that no operator uses."""
    return Layer(
        **UNPLACED,
        path=tensor.name,
        name=tensor.name,
        kind="Parameter",
        weights=(TensorInfo(tensor.name, tensor.dtype, tensor.shape, "declared"),),
        formula="0 (no operator uses it)",
    )
