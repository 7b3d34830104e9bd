"""Computes figures of the nodes of an nn.Module's exported program (torch.export), by their names.

Model Explorer shows a PyTorch model as this program. Its node names come from the operators that run, so the
same module and inputs always give the same names. The module is exported on the meta device if possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import map_arg

from explorer.base.errors import BadModel
from explorer.engine.compat.torch import OpOverload
from explorer.engine.costs.aten import dispatch
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import flatten_tensors
from explorer.engine.models.opened_model import OpenOptions
from explorer.host.optional_packages import format_error

Figures = Mapping[str, int | None]


def compute_node_figures(loaded: LoadedModule, options: OpenOptions) -> dict[str, Figures]:
    """Returns figures by the name of the node, with the names in `facts.graph.drawing.FIGURES`.

    Raises:
        BadModel: torch.export does not support the module.
    """
    program = _export_program(loaded, options)
    parameters = program.graph_signature.inputs_to_parameters
    return {
        node.name: _compute_figures(node, parameters)
        for node in program.graph.nodes
        if node.op == "call_function"
    }


def _export_program(loaded: LoadedModule, options: OpenOptions) -> Any:
    bound_inputs = bind(loaded, options.input_shapes, options.dims)
    # a module that reads values can only be exported on the CPU
    for device, module in (("meta", loaded.meta), ("cpu", loaded.materialize)):
        args, kwargs = bound_inputs.build_arguments(device=device)
        try:
            with loaded.quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                return torch.export.export(module(), tuple(args), kwargs, strict=False)
        except Exception as error:
            failed = error
    message = f"torch.export cannot trace it ({format_error(failed)}), but Model Explorer shows its programs"
    raise BadModel(message, where=loaded.source) from failed


def _compute_figures(node: Any, parameters: Mapping[str, str]) -> Figures:
    """Returns the costs of a node of the graph, or None for a figure without a rule."""
    output = node.meta.get("val")
    values = {parameters[x.name]: x.meta["val"] for x in node.all_input_nodes if x.name in parameters}
    figures: dict[str, int | None] = {
        "params": sum(tensor.numel() for tensor in values.values()),
        "weights": sum(tensor.numel() * tensor.element_size() for tensor in values.values()),
        "activations": None,
        "macs": None,
        "ops": None,
    }
    if isinstance(node.target, OpOverload):
        args, kwargs = (
            map_arg(arguments, lambda x: x.meta.get("val")) for arguments in (node.args, node.kwargs)
        )
        cost = dispatch.compute_cost(node.target, args, kwargs, output)
        figures |= {"macs": cost.macs, "ops": cost.elementwise_ops, "activations": _count_bytes(output)}
    elif getattr(node.target, "__name__", "") == "getitem":  # selecting one of several results has no cost
        figures |= {"macs": 0, "ops": 0, "activations": 0}
    return figures


def _count_bytes(outputs: Any) -> int | None:
    """Returns the bytes of the outputs, or None if a size depends on values."""
    total_bytes = 0
    for tensor in flatten_tensors([outputs]):
        size = tensor.numel()
        if not isinstance(size, int):
            return None
        total_bytes += size * tensor.element_size()
    return total_bytes
