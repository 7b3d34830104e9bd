"""Describes the nodes of a torch.fx graph: kind, target, type, shapes, and statistics of their outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.compat.torch import OpOverload
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import describe_tensors, walk_tensors
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.torch.fx.trace import TracedGraph, trace_module
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import read_input
from explorer.engine.values.statistics import measure
from explorer.engine.values.torch_activations import draw_inputs, read_inputs
from explorer.engine.values.torch_tensors import build_numbers, build_with_weights
from explorer.facts import Progress, TensorInfo
from explorer.facts.graph.fx import FxGraph, FxNode
from explorer.host.optional_packages import format_error
from explorer.settings.statistics import Choice

_KINDS = ("placeholder", "get_attr", "call_function", "call_module", "call_method", "output")


def build_fx_graph(
    loaded: LoadedModule,
    options: OpenOptions,
    *,
    choices: Sequence[Choice] = (),
    input: str | None = None,
    seed: int = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FxGraph:
    """Returns the graph of a module.

    Args:
        loaded: The module.
        options: Options that the module was opened with.
        choices: Statistics of every node's output. If there are any, the module runs on values.
        input: Path of an .npy or .npz file with the inputs for the statistics, or None to draw them.
        seed: Seed of the drawn inputs.
        on_progress: Function called with the number of nodes that have run.
        cancel: Function called at every node; True cancels.

    Raises:
        Misuse: The inputs do not fit, or are required.
        BadModel: Neither torch.fx nor torch.export supports the module, or it fails.
        Cancelled: `cancel` returned True.
    """
    notes: Sequence[str] = ()
    if not choices:
        bound_inputs = bind(loaded, options.input_shapes, options.dims)
        args, kwargs = bound_inputs.build_arguments(device="meta")
    elif input is None:
        bound_inputs = bind(loaded, options.input_shapes, options.dims)
        values, notes = draw_inputs(loaded, bound_inputs, seed)
    else:
        bound_inputs, values, notes, _ = read_inputs(
            loaded, read_input(input), options.input_shapes, options.dims
        )
    if choices:
        build_with_weights(
            loaded, lambda: bound_inputs
        )  # raises if there are no values, or not enough memory
        args, kwargs = bound_inputs.pack_arguments(values)
    graph = trace_module(loaded, bound_inputs, args, kwargs, real=bool(choices))
    run = _Run(graph.module, choices, on_progress, cancel)
    run.run_all(graph, loaded)
    nodes = tuple(_build_node(node, graph, run) for node in graph.module.graph.nodes)
    kinds = Counter(node.kind for node in nodes)
    modules = Counter(node.type for node in nodes if node.kind == "call_module")
    return FxGraph(
        graph.tracer,
        graph.reason,
        {kind: kinds[kind] for kind in _KINDS},
        tuple(sorted(modules.items(), key=lambda type_count: (-type_count[1], type_count[0]))),
        nodes,
        tuple(notes),
    )


class _Run(fx.Interpreter):
    """Runs a graph node by node, stores shapes, and computes statistics before a value is freed."""

    def __init__(
        self, module: fx.GraphModule, choices: Sequence[Choice], on_progress: OnProgress, cancel: Cancel
    ) -> None:
        super().__init__(module)
        self.choices, self.on_progress, self.cancel = choices, on_progress, cancel
        self.infos_by_node: dict[str, tuple[TensorInfo, ...]] = {}
        self.statistics: dict[
            str, Mapping[str, float | None]
        ] = {}  # of the first tensor of each node's output
        self.current_node = ""  # the name of the node that runs or ran last

    def run_all(self, graph: TracedGraph, loaded: LoadedModule) -> None:
        """Runs all nodes. A failure raises BadModel, or without statistics leaves later shapes unknown."""
        try:
            with loaded.quiet(), torch.no_grad():
                self.run(*graph.values, enable_io_processing=False)
        except ExplorerError:
            raise
        except Exception as error:
            if self.choices:
                reason = f"the model failed at {self.current_node}: {format_error(error)}"
                raise BadModel(reason, where=loaded.source) from error

    def run_node(self, n: fx.Node) -> Any:
        """Runs one node, as `fx.Interpreter` does, and stores the facts about its output."""
        stop_if(self.cancel)
        self.current_node = n.name
        if self.on_progress is not None:
            total = len(self.module.graph.nodes)  # type: ignore[union-attr,arg-type]
            self.on_progress(Progress("running the graph", len(self.infos_by_node), total))
        result = super().run_node(n)
        self.infos_by_node[n.name] = describe_tensors(result, n.name)
        first = next((tensor for _, tensor in walk_tensors(result)), None)
        if self.choices and first is not None and n.op != "output":
            measured = measure(build_numbers(first, n.name), choices=self.choices, cancel=self.cancel)
            self.statistics[n.name] = {label: values[0] for label, values in measured.chosen.items()}
        return result


def _build_node(node: fx.Node, graph: TracedGraph, run: _Run) -> FxNode:
    outputs = run.infos_by_node.get(node.name) or describe_tensors(node.meta.get("val"), node.name)
    target, kind = _describe_target(node, graph.module)
    inputs = [run.infos_by_node.get(producer.name, ()) for producer in node.all_input_nodes]
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    return FxNode(
        node.name,
        node.op,
        target,
        kind,
        paths[-1].removeprefix("L['self'].") if paths else "",
        next((info.dtype for info in outputs), None),
        tuple(info.shape for infos in inputs for info in infos[:1]),
        outputs,
        run.statistics.get(node.name, {}),
    )


def _describe_target(node: fx.Node, module: fx.GraphModule) -> tuple[str, str]:
    """Returns the name and the type of the object that a node calls or gets."""
    target = node.target
    if node.op == "call_module":
        return str(target), type(module.get_submodule(str(target))).__name__
    if node.op == "get_attr":
        holder, _, name = str(target).rpartition(".")
        tensor = getattr(module.get_submodule(holder), name, None)
        return str(target), "Parameter" if isinstance(tensor, nn.Parameter) else "Buffer"
    if node.op == "call_function":
        if isinstance(target, OpOverload):
            return str(target), str(node.target.namespace)  # type: ignore[union-attr]
        name = getattr(target, "__name__", str(target))
        return name, str(getattr(target, "__module__", "") or "torch").lstrip("_")
    return str(target), "Tensor" if node.op == "call_method" else ""
