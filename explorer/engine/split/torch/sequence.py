"""Builds the units of an exported program (torch.export).

A unit is an operator call. Its row in the layer tree is the row of its module. If the module's code calls
functions directly, it is the row of the function with the operator's name.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.node import Node, map_arg

from explorer.base.errors import BadModel, Misuse
from explorer.engine.compat.torch import OpOverload, get_operator_name, is_higher_order, schema_of
from explorer.engine.costs.aten import dispatch
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import describe_tensors
from explorer.engine.split.costs import assign_module_seconds
from explorer.engine.split.partition import Array
from explorer.engine.split.search import CutSequence, get_measured_seconds
from explorer.engine.split.units import CrossingValue, GraphUnits
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.profile import Profile
from explorer.host.optional_packages import format_error
from explorer.settings.columns import sum_tensor_bytes

_PROBABILITY_ARGUMENTS = ("p", "dropout_p", "dropout", "train", "training")
"""Arguments of random operators. An operator draws no random numbers if one of these is 0 or False."""
_CHANGED_IN_PLACE = "it uses a value that a later stage changes in place"


def export_module(loaded: LoadedModule, bound_inputs: BoundInputs) -> Any:
    """Exports a module with gradients enabled, because inference-only kernels have no gradients.

    Raises:
        BadModel: torch.export fails for the module.
    """
    # the meta device first, because it needs no weights; code that reads tensor values fails there
    for device, module in (("meta", loaded.meta), ("cpu", loaded.materialize)):
        args, kwargs = bound_inputs.build_arguments(device=device)
        try:
            with loaded.quiet(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
                return torch.export.export(module(), tuple(args), kwargs)
        except Exception as error:
            failure = error
    raise BadModel(f"torch.export cannot take it ({format_error(failure)})", where=loaded.source) from failure


def check(program: Any) -> None:
    """Checks that torch can cut a program.

    Raises:
        Misuse: The program contains a higher-order operator, or changes its own parameters or buffers.
    """
    signature = program.graph_signature
    state_names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if is_higher_order(node.target):
            target = str(node.target)
            reason = (
                "turns gradients off or on" if "set_grad_enabled" in target else f"holds a graph ({target})"
            )
            message = f"a part of its forward {reason}, which torch.distributed.pipelining cannot cut"
            raise Misuse(message, where="--to torch", hint="leave it out: the stages are ONNX models then")
        updated = next(
            (
                state_names[changed.name]
                for changed in _list_written_nodes(node)
                if changed.name in state_names
            ),
            None,
        )
        if updated is not None:
            raise Misuse(
                f"it changes its own '{updated}' as it runs",
                where="--to torch",
                hint="if the program was exported in training mode, export it again after module.eval()",
            )


def _list_written_nodes(node: Node) -> Iterator[Node]:
    """Yields the nodes that a call writes into. In training, batch normalization writes its running mean."""
    yield from _list_written_arguments(node)
    arguments = {argument.name: value for argument, value in _list_named_arguments(node)}
    if arguments.get("training") and isinstance(arguments.get("running_mean"), Node):
        yield arguments["running_mean"]


def find_random_calls(calls: Iterable[Any]) -> set[Any]:
    """Returns the calls whose results depend on random numbers that a call in `calls` draws.

    Args:
        calls: The calls, in execution order.
    """
    random_nodes: set[Any] = set()
    for node in calls:
        if draws_random_numbers(node) or not random_nodes.isdisjoint(node.all_input_nodes):
            random_nodes.add(node)
    return random_nodes


def draws_random_numbers(node: Any) -> bool:
    """Whether a call draws random numbers, by torch's operator tag. Dropout with probability 0 does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = schema_of(node.target).arguments
    values = {argument.name: argument.default_value for argument in arguments}
    values |= dict(zip([argument.name for argument in arguments], node.args, strict=False)) | dict(
        node.kwargs
    )
    return all(values[name] for name in _PROBABILITY_ARGUMENTS if name in values)


def build_program_sequence(
    program: Any, layers: Sequence[Layer], *, profile: Profile | None, by_time: bool, **facts: Any
) -> CutSequence:
    """Builds the units of a program, with their analysis.

    Args:
        program: The exported program; see `export_module`.
        layers: Rows of the module's layer tree.
        profile: A profile of the rows, or None.
        by_time: Whether to forbid cuts inside modules that the profile measured as one.
        facts: `machines` and `training` of the `CutSequence`.
    """
    signature = program.graph_signature
    state_names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    tensors = {
        state_names[node.name]: node.meta["val"] for node in program.graph.nodes if node.name in state_names
    }
    parameters = set(signature.inputs_to_parameters.values())
    values = _list_live_values(program, calls)
    unit_seconds, closed_units = None, dict[int, str]()
    if profile is not None:
        places = [(_get_call_path(node), _get_operator(node)) for node in calls]
        unit_seconds, closed_units = assign_module_seconds(places, layers, get_measured_seconds(profile))
    closed_units = closed_units if by_time else {}
    units = GraphUnits(
        positions=tuple(range(len(calls))),
        rows=tuple(
            row for row, _ in list_rows_of_calls(((node, _get_operator(node)) for node in calls), layers)
        ),
        stored=tuple(
            [
                tuple([state_names[read.name] for read in node.all_input_nodes if read.name in state_names])
                for node in calls
            ]
        ),
        constants=((),) * len(calls),
        values=tuple(values),
    )
    return CutSequence(
        units=units,
        types={value.name: value.info for value in values},
        sizes={name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()},
        elements={name: tensor.numel() for name, tensor in tensors.items() if name in parameters},
        labels=[".".join(filter(None, (get_module_path(node), node.name))) for node in calls],
        layers=layers,
        macs=_count_macs(calls, units, layers),
        unit_seconds=unit_seconds,
        closed=closed_units | dict.fromkeys(_find_closed_units(calls), _CHANGED_IN_PLACE),
        profile=profile,
        **facts,
    )


def list_unit_names(program: Any) -> list[str]:
    """Returns the names of the units."""
    return [node.name for node in program.graph.nodes if node.op == "call_function"]


def get_module_path(node: Node) -> str:
    """Returns the path of the module whose code makes a call, or '' for the outermost module."""
    return ".".join(path_part.partition("@")[0] for path_part in _get_call_path(node).split("."))


def _get_call_path(node: Node) -> str:
    """Returns the module's path with the number of its call; 'block.relu@1' is the second call."""
    stack = node.meta.get("nn_module_stack") or {}
    return list(stack.values())[-1][0] if stack else ""


def _list_live_values(program: Any, calls: Sequence[Node]) -> list[CrossingValue]:
    """Returns the values that are live over more than one unit. Outputs stay live until the last unit."""
    unit_by_node = {node: unit for unit, node in enumerate(calls)}
    input_names = set(program.graph_signature.user_inputs)
    output_names = set(program.graph_signature.user_outputs)
    values = []
    for node in program.graph.nodes:
        if node not in unit_by_node and not (node.op == "placeholder" and node.name in input_names):
            continue
        reads = [unit_by_node[user] for user in node.users if user in unit_by_node]
        dies = len(calls) - 1 if node.name in output_names else max(reads, default=-1)
        info, size = _get_type_and_bytes(node)
        values.append(CrossingValue(node.name, unit_by_node.get(node, -1), dies, info, size))
    return [value for value in values if value.dies > value.born]


def _get_type_and_bytes(node: Node) -> tuple[TensorInfo, int | None]:
    """Returns the type and the bytes of a node's result; unknown unless it is one tensor of known size."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return TensorInfo(node.name, None, None, "unknown"), None
    (info,) = describe_tensors(torch.empty(value.shape, dtype=value.dtype, device="meta"), node.name)
    return info, sum_tensor_bytes((info,))


def list_rows_of_calls(
    calls: Iterable[tuple[Node, str]], layers: Sequence[Layer]
) -> Iterator[tuple[int | None, int | None]]:
    """Yields, for each operator call, the ids of its own row and of its module's row, or None if missing.

    Calls of the same operator in a module are matched to the module's rows of that kind in order.
    """
    by_path = {layer.path: layer for layer in layers}
    unused_rows: dict[tuple[int | None, str], deque[int]] = defaultdict(deque)
    for layer in layers:
        if not layer.group:
            unused_rows[layer.parent, layer.kind].append(layer.id)
    for node, operator in calls:
        path = get_module_path(node)
        while path and path not in by_path:
            path = path.rpartition(".")[0]
        module = by_path.get(path)
        group = None if module is None else module.id
        if module is not None and not module.group:
            yield group, group
            continue
        candidates = unused_rows[group, operator]
        yield candidates.popleft() if candidates else None, group


def _get_operator(node: Node) -> str:
    return get_operator_name(node.target).strip("_")


def _count_macs(calls: Sequence[Node], units: GraphUnits, layers: Sequence[Layer]) -> Array | None:
    """Counts the MACs of each call by the rules of ATen, or by the layer rows if a call has no rule."""
    macs_per_call = []
    for node in calls:
        if not isinstance(node.target, OpOverload):
            if getattr(node.target, "__name__", "") != "getitem":
                return _assign_macs_of_rows(units, layers)
            macs_per_call.append(0)
            continue
        args: Any = map_arg(node.args, lambda node_argument: node_argument.meta.get("val"))
        kwargs: Any = map_arg(node.kwargs, lambda node_argument: node_argument.meta.get("val"))
        macs = dispatch.compute_cost(node.target, args, kwargs, node.meta.get("val")).macs
        if macs is None:
            return _assign_macs_of_rows(units, layers)
        macs_per_call.append(macs)
    return np.array(macs_per_call, dtype=np.float64)


def _assign_macs_of_rows(units: GraphUnits, layers: Sequence[Layer]) -> Array | None:
    """Assigns the MACs of the rows to units, or returns None if a row's MACs are unknown.

    The MACs of a row without a call go to the unit of the row before it.
    """
    unit_by_row = {row: unit for unit, row in reversed(list(enumerate(units.rows))) if row is not None}
    macs, unit = np.zeros(len(units.rows)), 0
    for layer in layers:
        if layer.group or not layer.counted:
            continue
        if layer.macs is None:
            return None
        unit = unit_by_row.get(layer.id, unit)
        macs[unit] += layer.macs
    return macs


def _find_closed_units(calls: Sequence[Node]) -> Iterator[int]:
    """Yields the units before which a cut would separate a value from a call that changes it in place.

    Another process receives the tensor as a copy, and autograd forbids changing that copy in place.
    """
    unit_by_node = {node: unit for unit, node in enumerate(calls)}
    for node, unit in unit_by_node.items():
        for argument in _list_written_arguments(node):
            root = argument
            while (base := _find_viewed_argument(root)) is not None:
                root = base
            yield from range(unit_by_node.get(root, -1) + 1, unit + 1)


def _list_written_arguments(node: Node) -> Iterator[Node]:
    """Yields the arguments that a call writes into."""
    for argument, value in _list_named_arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
            yield value


def _find_viewed_argument(node: Node) -> Node | None:
    """Returns the argument that a call returns or returns a view of, or None."""
    for argument, value in _list_named_arguments(node):
        if argument.alias_info is not None and isinstance(value, Node):
            return value
    return None


def _list_named_arguments(node: Node) -> Iterator[tuple[Any, Any]]:
    """Yields the schema entry and the value of each argument that an operator call passes."""
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        arguments = schema_of(node.target).arguments
        keyword_values: Mapping[str, Any] = node.kwargs
        yield from zip(arguments, node.args, strict=False)
        yield from (
            (argument, keyword_values[argument.name])
            for argument in arguments
            if argument.name in keyword_values
        )
