"""Replay of an exported program: runs the nodes of its graph through the rebuilt modules (twins)."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from explorer.engine.compat.torch import get_control_flow_operator, leaves
from explorer.engine.formats.torch_files.exported_program import DTYPES
from explorer.engine.formats.torch_replay import operators
from explorer.engine.formats.torch_replay.graph import GraphNode, Program, Segment, list_value_names
from explorer.engine.formats.torch_replay.rebuilt_module import ReplayModule

_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
"""Memory formats by number in a program."""

DECIDING: ContextVar[int] = ContextVar("DECIDING", default=0)
"""Unique number of the branch or loop of a program that is running; 0 outside branches and loops."""


class GraphReplay:
    """Replays the graph of a program through the twins of its modules.

    A call of a twin runs the nodes of its segment. The values of the graph are passed in `next`, so that the
    call of the twin has only tensors as arguments.

    Args:
        program: Exported program.
        device: Device of new tensors.

    Attributes:
        flows: Unique number of each branch or loop, by id of its first graph.
        mode: How the current run of the model proceeds.
        next: Segment of the next call of a twin, values of the graph by name, twin of the model, and ids of
            the weights; None if the next call is that of the model.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.device = device
        self.flows: dict[int, int] = {}
        self.mode = operators.RunMode(device, False)
        self.next: tuple[Segment, dict[str, Any], ReplayModule, set[int]] | None = None

    def __deepcopy__(self, memo: Any) -> GraphReplay:
        return self

    def run(self, twin: ReplayModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the `forward` of a twin: the whole model, or the segment in `next`."""
        call, self.next = self.next, None
        if call is None:
            return self._run_model(twin, args, kwargs)
        segment, values, root, weights = call
        self._run_items(segment, values, root, weights)
        results = [values[n] for n in segment.output_names]
        return results[0] if len(results) == 1 else tuple(results)

    def _run_model(self, root: ReplayModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the whole model."""
        self.mode = operators.find_mode(self.device, args, kwargs)
        values: dict[str, Any] = {}
        for _, name, fqn in self.program.stored:
            owner, _, attribute = fqn.rpartition(".")
            values[name] = getattr(root.get_submodule(owner), attribute)
        names = [program_input.name for program_input in self.program.inputs]
        values.update(zip(names, args, strict=False))
        values.update(kwargs)
        weights = {id(values[name]) for _, name, _ in self.program.stored}
        self._run_items(self.program.root, values, root, weights)
        results = [self._convert_result(self._convert_argument(r, values)) for r in self.program.results]
        return _unflatten(self.program.layout, results)

    def _convert_result(self, value: Any) -> Any:
        """Converts a Python number to a tensor, because results of exported models are tensors."""
        is_number = isinstance(value, (bool, int, float))
        return torch.tensor(value, device=self.device) if is_number else value

    def _run_items(
        self, segment: Segment, values: dict[str, Any], root: ReplayModule, weights: set[int]
    ) -> None:
        """Runs the nodes of a segment, and calls the twins of its inner segments."""
        for child in segment.items:
            if isinstance(child, GraphNode):
                self._run_node(child, values)
                continue
            tensors = [values[n] for n in child.input_names if isinstance(values.get(n), torch.Tensor)]
            self.next = child, values, root, weights
            root.get_submodule(child.path)(*(t for t in tensors if id(t) not in weights))

    def _run_node(self, node: GraphNode, values: dict[str, Any]) -> None:
        """Runs one node, and updates the values of the graph."""
        args, kwargs = [], {}
        for argument in node.inputs:
            value = self._convert_argument(argument["arg"], values)
            if argument.get("kind") == 2 and argument["name"]:
                kwargs[argument["name"]] = value
            else:
                args.append(value)
        result = self._call_target(node.target, args, kwargs)
        outputs = node.outputs
        if len(outputs) == 1 and "as_tensors" in outputs[0]:
            outputs = [{"as_tensor": t} for t in outputs[0]["as_tensors"]]
        elif len(outputs) == 1 and not isinstance(result, (tuple, list)):
            result = (result,)
        for output, value in zip(
            outputs, result if isinstance(result, (tuple, list)) else (result,), strict=False
        ):
            for name in list_value_names(output):
                values[name] = value
        for name in node.spent:
            values.pop(name, None)

    def _convert_argument(self, arg: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """Returns the value of an argument in the JSON of the file; `values` are those of the graph."""
        ((kind, value),) = arg.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return values[value["name"]]
        if kind == "as_tensors":
            return [values[element["name"]] for element in value]
        if kind == "as_optional_tensors":
            return [self._convert_argument(element, values) for element in value]
        if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            return values[value["as_name"]] if "as_name" in value else next(iter(value.values()))
        if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return [values[i["as_name"]] if "as_name" in i else next(iter(i.values())) for i in value]
        if kind == "as_scalar_type":
            return getattr(torch, DTYPES[value])
        if kind == "as_memory_format":
            return _FORMATS.get(value)
        if kind == "as_layout":
            return torch.strided if value == 7 else None
        if kind == "as_device":
            return self.device
        if kind == "as_complex":
            return complex(value["real"], value["imag"])
        if kind in ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings"):
            return value
        if kind in ("as_float", "as_floats"):
            return _convert_float(value)
        if kind == "as_graph":
            return value["graph"]
        raise operators.UnknownOperator(f"an argument of the kind {kind} is not supported")

    def _call_target(self, target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the function or operator with a qualified name, and returns its result."""
        match = _TARGET.fullmatch(target)
        if match is None:
            function = _NUMBER_FUNCTIONS.get(target)
            if function is None:
                raise operators.UnknownOperator(f"the function {target} is not allowed in a program")
            return function(*args, **kwargs)
        library, name = match.group(1), match.group(2)
        if library == "higher_order":
            return self._run_higher_order(name, args)
        if library == "aten" and name in _CHECKS:
            return None
        if library == "aten" and name in _SIZES:
            if name == "sym_size" and (torch.compiler.is_exporting() or _is_tracing()):
                # the size may be symbolic, so it must not become an int
                return args[0].shape[args[1]] if len(args) > 1 else tuple(args[0].shape)
            return _SIZES[name](*args, **kwargs)
        return operators.call_operator(library, name, args, kwargs, self.mode)

    def _run_higher_order(self, name: str, args: list[Any]) -> Any:
        """Runs a higher-order operator, whose arguments include graphs: a branch, a loop, or a wrapper.

        Wrappers set gradients or autocast, which changes no count, so only their graph runs. During
        torch.export, or with tensors on the meta device, branches and loops use torch's own operator, so that
        exported graphs contain them. A trace would follow only one path, so it is refused.
        """
        arity = _FLOW_ARITY.get(name)
        if arity == len(args):
            if _is_tracing():
                raise operators.NotTraceable(f"a trace follows only one branch of higher_order::{name}")
            if torch.compiler.is_exporting() or any(getattr(leaf, "is_meta", False) for leaf in leaves(args)):
                return self._call_torch(name, args)
        if name == "cond" and arity == len(args):
            return self._run_graph(args[1] if bool(args[0]) else args[2], args[3])
        if name == "while_loop" and arity == len(args):
            test, body, carried, constants = args
            for _ in range(operators.MAX_CREATED_ITEMS):
                if not bool(self._run_graph(test, [*carried, *constants])[0]):
                    return tuple(carried)
                carried = self._run_graph(body, [*carried, *constants])
            raise operators.UnknownOperator("its graph loops endlessly")
        if name == "scan" and arity == len(args):
            return self._scan(*args)
        graph_index = next((i for i, a in enumerate(args) if isinstance(a, dict)), None)
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast") or graph_index is None:
            raise operators.UnknownOperator(f"the operator higher_order::{name} is not supported")
        return self._run_graph(args[graph_index], args[graph_index + 1 :])

    def _call_torch(self, name: str, args: Sequence[Any]) -> Any:
        """Calls torch's own operator for a branch or a loop."""
        graph = next((id(a) for a in args if isinstance(a, Mapping)), 0)
        token = DECIDING.set(self.flows.setdefault(graph, len(self.flows) + 1))
        try:
            return get_control_flow_operator(name)(*map(self._convert_callable, args))
        finally:
            DECIDING.reset(token)

    def _scan(
        self, step: Mapping[str, Any], carried: list[Any], scanned: list[Any], constants: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Runs a loop over the first axis of tensors.

        Args:
            step: Graph of one step.
            carried: Initial values that each step passes to the next.
            scanned: Tensors of which each step gets one slice of the first axis.
            constants: Further inputs, equal in all steps.

        Returns:
            The final carried values, and the stacked outputs of the steps.
        """
        rows: list[Sequence[Any]] = []
        count = len(carried)
        for row in zip(*scanned, strict=True):
            results = self._run_graph(step, [*carried, *row, *constants])
            carried, rows = list(results[:count]), [*rows, results[count:]]
        return (*carried, *(torch.stack(list(column)) for column in zip(*rows, strict=True)))

    def _convert_callable(self, value: Any) -> Any:
        """Converts an argument for torch's own operator; a graph becomes a function."""
        if isinstance(value, Mapping) and "nodes" in value:
            return lambda *args: self._run_graph(value, args)
        return tuple(value) if isinstance(value, list) else value

    def _run_graph(self, graph: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        """Runs the graph in an argument, and returns its results as a tuple."""
        inner: dict[str, Any] = {}
        for graph_input, value in zip(graph["inputs"], arguments, strict=True):
            for name in list_value_names(graph_input):
                inner[name] = value
        for n in graph["nodes"]:
            self._run_node(GraphNode(str(n["target"]), list(n["inputs"]), list(n["outputs"]), ()), inner)
        return tuple(self._convert_argument(output, inner) for output in graph["outputs"])


def _is_tracing() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


_FLOW_ARITY = {"cond": 4, "while_loop": 4, "scan": 4}
"""Number of arguments of each operator that branches or loops."""

_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?")
"""Qualified name of an operator; the groups are its library and its name without the overload."""

_CHECKS = frozenset({
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size",
})  # fmt: skip
"""Operators that check assumptions of the export, and have no result."""

_SIZES: dict[str, Callable[..., Any]] = {
    "sym_size": lambda self, dim=None: tuple(map(int, self.shape)) if dim is None else int(self.shape[dim]),
    "sym_numel": lambda self: self.numel(),
    "sym_stride": lambda self, dim=None: self.stride() if dim is None else self.stride(dim),
    "sym_storage_offset": lambda self: self.storage_offset(),
}
"""Operators that return sizes, strides or offsets of a tensor."""

_NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "getitem"),
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "log2")},
    "torch.sym_int": int,
    "torch.sym_float": float,
    "torch.sym_not": operator.not_,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_ite": lambda test, yes, no: yes if test else no,
    "torch._sym_sqrt": math.sqrt,
}
"""Functions on plain numbers that a graph may call."""


def _convert_float(value: Any) -> Any:
    """Converts a float of the file. Infinities and NaN are text, because JSON cannot express them."""
    if isinstance(value, list):
        return [_convert_float(v) for v in value]
    return float(value) if isinstance(value, (str, int)) else value


def _unflatten(layout: Any, results: list[Any]) -> Any:
    """Nests results as the model does, in tuples, lists and dictionaries.

    If the layout does not fit, the only result or the tuple of results is returned.
    """
    try:
        return _nest(layout, iter(results))
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError):
        return results[0] if len(results) == 1 else tuple(results)


def _nest(spec: Any, remaining: Iterator[Any]) -> Any:
    """Nests the next results as one part of a layout describes."""
    # a function within `_unflatten` would refer to itself, and keep the results beyond the run
    if not isinstance(spec, dict) or not spec.get("type"):
        return next(remaining)
    children = [_nest(child, remaining) for child in spec["children_spec"]]
    if spec["type"] == "builtins.dict":
        return dict(zip(map(str, json.loads(spec["context"])), children, strict=True))
    return tuple(children) if spec["type"] == "builtins.tuple" else children
