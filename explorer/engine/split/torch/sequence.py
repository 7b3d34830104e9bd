"""Units of an exported program (torch.export): operator calls, stored tensors, and values that cross a cut.

The row of a call is found by its module; where module code calls functions directly, by the operator's name,
in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.node import Node, map_arg

from explorer.base.errors import BadModel, Misuse
from explorer.engine.compat.torch import OpOverload, is_higher_order, operator_name, schema_of
from explorer.engine.costs.aten import dispatch
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import described
from explorer.engine.split.costs import of_modules
from explorer.engine.split.partition import Array
from explorer.engine.split.search import CutSequence, seconds_of
from explorer.engine.split.units import CrossingValue, GraphUnits
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.profile import Profile
from explorer.host.optional_packages import error_line
from explorer.settings.columns import tensor_bytes

_DROPS = ("p", "dropout_p", "dropout", "train", "training")
"""Arguments of random operators; the operator draws nothing if one of these is 0 or False."""
_IN_PLACE = "what is made before it is changed in place behind it"


def exported(loaded: LoadedModule, bound_inputs: BoundInputs) -> Any:
    """Exports a module with gradients enabled: inference-only kernels have no gradients.

    Raises:
        BadModel: torch.export cannot take the module.
    """
    # a module whose code reads values fails on the meta device
    for device, module in (("meta", loaded.meta), ("cpu", loaded.materialise)):
        args, kwargs = bound_inputs.arguments(device=device)
        try:
            with loaded.quiet(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
                return torch.export.export(module(), tuple(args), kwargs)
        except Exception as error:
            failed = error
    raise BadModel(f"torch.export cannot take it ({error_line(failed)})", where=loaded.source) from failed


def check(program: Any) -> None:
    """Refuses a program that torch cannot cut, or that changes its own state when it runs.

    Raises:
        Misuse: The program is of that kind.
    """
    signature = program.graph_signature
    state_names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if is_higher_order(node.target):
            target = str(node.target)
            reason = (
                "turns gradients off or on" if "set_grad_enabled" in target else f"holds a graph ({target})"
            )
            raise Misuse(
                f"a part of its forward {reason}, which torch.distributed.pipelining cannot cut",
                where="--to torch",
                hint="leave it out: the stages are ONNX models then",
            )
        updated = next(
            (state_names[changed.name] for changed in _written_nodes(node) if changed.name in state_names),
            None,
        )
        if updated is not None:
            raise Misuse(
                f"it changes its own '{updated}' as it runs",
                where="--to torch",
                hint="what was exported in training mode is exported anew behind module.eval()",
            )


def _written_nodes(node: Node) -> Iterator[Node]:
    """Nodes that a call writes into, including the running statistics of a training batch normalization."""
    yield from _written_arguments(node)
    named = {argument.name: value for argument, value in _named_arguments(node)}
    if named.get("training") and isinstance(named.get("running_mean"), Node):
        yield named["running_mean"]


def random_calls(calls: Iterable[Any]) -> set[Any]:
    """The calls that depend on random numbers drawn by one of them; `calls` are in execution order."""
    random_nodes: set[Any] = set()
    for node in calls:
        if draws(node) or not random_nodes.isdisjoint(node.all_input_nodes):
            random_nodes.add(node)
    return random_nodes


def draws(node: Any) -> bool:
    """Whether a call draws random numbers, by torch's tag; dropout with probability 0 does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = schema_of(node.target).arguments
    values = {argument.name: argument.default_value for argument in arguments}
    values |= dict(zip([argument.name for argument in arguments], node.args, strict=False)) | dict(
        node.kwargs
    )
    return all(values[name] for name in _DROPS if name in values)


def program_sequence(
    program: Any, layers: Sequence[Layer], *, profile: Profile | None, by_time: bool, **facts: Any
) -> CutSequence:
    """The units of a program.

    Args:
        program: From `exported`.
        layers: Rows of the module.
        profile: A profile of the rows.
        by_time: Whether the profile limits where to cut.
        facts: Machines and a training step; see `CutSequence`.
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
    values = _values(program, calls)
    unit_seconds, closed = None, dict[int, str]()
    if profile is not None:
        places = [(_call_of(node), _operator(node)) for node in calls]
        unit_seconds, closed = of_modules(places, layers, seconds_of(profile))
    closed = closed if by_time else {}
    units = GraphUnits(
        positions=tuple(range(len(calls))),
        rows=tuple(row for row, _ in rows_of(((node, _operator(node)) for node in calls), layers)),
        stored=tuple(
            [tuple([state_names[a.name] for a in n.all_input_nodes if a.name in state_names]) for n in calls]
        ),
        constants=((),) * len(calls),
        values=tuple(values),
    )
    return CutSequence(
        units=units,
        types={value.name: value.info for value in values},
        sizes={name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()},
        elements={name: tensor.numel() for name, tensor in tensors.items() if name in parameters},
        labels=[".".join(filter(None, (module_of(node), node.name))) for node in calls],
        layers=layers,
        macs=_macs(calls, units, layers),
        took=unit_seconds,
        closed=closed | dict.fromkeys(_closed_units(calls), _IN_PLACE),
        profile=profile,
        **facts,
    )


def names(program: Any) -> list[str]:
    """Names of the units."""
    return [node.name for node in program.graph.nodes if node.op == "call_function"]


def module_of(node: Node) -> str:
    """The path of the module whose code makes a call; '' for the outermost module."""
    return ".".join(piece.partition("@")[0] for piece in _call_of(node).split("."))


def _call_of(node: Node) -> str:
    """As `module_of`, with the number of the module's call: 'block.relu@1' for the second."""
    stack = node.meta.get("nn_module_stack") or {}
    return list(stack.values())[-1][0] if stack else ""


def _values(program: Any, calls: Sequence[Node]) -> list[CrossingValue]:
    """Values that are live over more than one unit; outputs stay live until the last unit."""
    at = {node: unit for unit, node in enumerate(calls)}
    input_names = set(program.graph_signature.user_inputs)
    ends = set(program.graph_signature.user_outputs)
    values = []
    for node in program.graph.nodes:
        if node not in at and not (node.op == "placeholder" and node.name in input_names):
            continue
        reads = [at[user] for user in node.users if user in at]
        dies = len(calls) - 1 if node.name in ends else max(reads, default=-1)
        info, size = _type_and_bytes(node)
        values.append(CrossingValue(node.name, at.get(node, -1), dies, info, size))
    return [value for value in values if value.dies > value.born]


def _type_and_bytes(node: Node) -> tuple[TensorInfo, int | None]:
    """The type and bytes of a node's result; bytes only for a single tensor of known size."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return TensorInfo(node.name, None, None, "unknown"), None
    (info,) = described(torch.empty(value.shape, dtype=value.dtype, device="meta"), node.name)
    return info, tensor_bytes((info,))


def rows_of(
    calls: Iterable[tuple[Node, str]], layers: Sequence[Layer]
) -> Iterator[tuple[int | None, int | None]]:
    """For each operator call its own row and the row of its module; None if there is no such row.

    Several calls of one operator in a module match its rows in order.
    """
    by_path = {layer.path: layer for layer in layers}
    waiting: dict[tuple[int | None, str], deque[int]] = defaultdict(deque)
    for layer in layers:
        if not layer.group:
            waiting[layer.parent, layer.kind].append(layer.id)
    for node, operator in calls:
        path = module_of(node)
        while path and path not in by_path:
            path = path.rpartition(".")[0]
        around = by_path.get(path)
        group = None if around is None else around.id
        if around is not None and not around.group:
            yield group, group
            continue
        candidates = waiting[group, operator]
        yield candidates.popleft() if candidates else None, group


def _operator(node: Node) -> str:
    return operator_name(node.target).strip("_")


def _macs(calls: Sequence[Node], units: GraphUnits, layers: Sequence[Layer]) -> Array | None:
    """MACs of each call; those of the rows if a call has no rule."""
    per_call = []
    for node in calls:
        if not isinstance(node.target, OpOverload):
            if getattr(node.target, "__name__", "") != "getitem":
                return _macs_of_rows(units, layers)
            per_call.append(0)
            continue
        args: Any = map_arg(node.args, lambda at: at.meta.get("val"))
        kwargs: Any = map_arg(node.kwargs, lambda at: at.meta.get("val"))
        macs = dispatch.cost(node.target, args, kwargs, node.meta.get("val")).macs
        if macs is None:
            return _macs_of_rows(units, layers)
        per_call.append(macs)
    return np.array(per_call, dtype=np.float64)


def _macs_of_rows(units: GraphUnits, layers: Sequence[Layer]) -> Array | None:
    """MACs of the rows by unit; a row without a call counts where the row before it is."""
    place = {row: unit for unit, row in reversed(list(enumerate(units.rows))) if row is not None}
    macs, at = np.zeros(len(units.rows)), 0
    for layer in layers:
        if layer.group or not layer.counted:
            continue
        if layer.macs is None:
            return None
        at = place.get(layer.id, at)
        macs[at] += layer.macs
    return macs


def _closed_units(calls: Sequence[Node]) -> Iterator[int]:
    """Units before which no cut may lie, because a later call changes an earlier value in place.

    Another process receives a copy of the tensor, which autograd does not allow to be changed in place.
    """
    at = {node: unit for unit, node in enumerate(calls)}
    for node, unit in at.items():
        for argument in _written_arguments(node):
            root = argument
            while (base := _viewed_argument(root)) is not None:
                root = base
            yield from range(at.get(root, -1) + 1, unit + 1)


def _written_arguments(node: Node) -> Iterator[Node]:
    """Arguments that a call writes into."""
    for argument, value in _named_arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
            yield value


def _viewed_argument(node: Node) -> Node | None:
    """The argument that a call returns, or returns a view of."""
    for argument, value in _named_arguments(node):
        if argument.alias_info is not None and isinstance(value, Node):
            return value
    return None


def _named_arguments(node: Node) -> Iterator[tuple[Any, Any]]:
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        arguments = schema_of(node.target).arguments
        named: Mapping[str, Any] = node.kwargs
        yield from zip(arguments, node.args, strict=False)
        yield from ((argument, named[argument.name]) for argument in arguments if argument.name in named)
