"""Traces an nn.Module with torch.fx, or exports it with torch.export if torch.fx cannot trace it.

The tracer keeps a stack of the modules that it is tracing, to name the module in which it fails.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from msgspec import Struct
from torch import fx, nn

from explorer.base.errors import BadModel
from explorer.engine.compat.torch import leaves
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.host.optional_packages import format_error

_TORCH, _HERE = (os.path.join(os.path.dirname(path), "") for path in (torch.__file__, __file__))
_LAYERS = os.path.join(_TORCH, "nn", "modules", "")


class TracedGraph(Struct, frozen=True):
    """A graph that can run.

    Attributes:
        module: The graph, with the modules and tensors that it uses.
        tracer: Tracer of the graph: 'torch.fx' or 'torch.export'.
        reason: Reason why torch.fx could not trace the module, or '' if it could.
        values: Values for the placeholders, in order.
    """

    module: fx.GraphModule
    tracer: str
    reason: str
    values: Sequence[Any]


class _Tracer(fx.Tracer):
    """A tracer that records the modules that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.module_paths: list[str] = []  # of the modules that are being traced, outermost first
        self.failed_path: str | None = None  # of the innermost module in which tracing failed

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Traces a module, as `fx.Tracer` does, and records a failure."""
        self.module_paths.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed_path = self.module_paths[-1] if self.failed_path is None else self.failed_path
            raise
        finally:
            self.module_paths.pop()


def trace_module(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    real: bool,
) -> TracedGraph:
    """Returns the graph of a module, and the values to run it on.

    Args:
        loaded: The module.
        bound_inputs: Inputs of the module.
        args: Positional arguments of the module's forward, on the meta device, or with `real` on the CPU.
        kwargs: Keyword arguments.
        real: Whether the graph will run on values.

    Raises:
        BadModel: Neither torch.fx nor torch.export supports the module.
    """
    module = loaded.materialize() if real else loaded.meta()
    tracer = _Tracer()
    try:
        with loaded.quiet(), torch.no_grad():
            graph = tracer.trace(module)
            graph_module = fx.GraphModule(tracer.root, graph)
            return TracedGraph(graph_module, "torch.fx", "", _order_arguments(module, graph, args, kwargs))
    except Exception as error:
        reason = _describe_failure(error, tracer.failed_path)
    return _export_graph(loaded, bound_inputs, args, kwargs, reason, real)


def _order_arguments(
    module: nn.Module, graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Returns the arguments in the order of the placeholders, which follow forward's parameters."""
    call = signature(module.forward).bind(*args, **kwargs)
    call.apply_defaults()
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    return [call.arguments[name.lstrip("*")] for name in names]


def _export_graph(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reason: str,
    real: bool,
) -> TracedGraph:
    """Exports a module with torch.export. If this fails, BadModel also has the `reason` of torch.fx."""
    failed: Exception | None = None
    # a module that reads values can only be exported on the CPU
    for device in ("cpu",) if real else ("meta", "cpu"):
        module = loaded.meta() if device == "meta" else loaded.materialize()
        arguments = (list(args), dict(kwargs)) if real else bound_inputs.build_arguments(device=device)
        try:
            with loaded.quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                program = torch.export.export(module, tuple(arguments[0]), arguments[1], strict=False)
                graph_module = program.module(check_guards=False)
        except Exception as error:
            failed = error
            continue
        assert isinstance(graph_module, fx.GraphModule)
        return TracedGraph(graph_module, "torch.export", reason, leaves((tuple(arguments[0]), arguments[1])))
    assert failed is not None
    raise BadModel(
        f"torch.fx cannot trace it ({reason}), nor torch.export ({format_error(failed)})", where=loaded.source
    )


def _describe_failure(error: Exception, module: str | None) -> str:
    """Describes where tracing failed, and the error.

    The place is a module, and a line of the user's code or of torch's layers.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<" not in frame.filename]
    user_frames = [frame for frame in frames if not frame.filename.startswith((_TORCH, _HERE))]
    # frames in nn/modules/module.py are left out: every layer is called through them
    layers = [
        frame
        for frame in frames
        if frame.filename.startswith(_LAYERS) and not frame.filename.endswith("/module.py")
    ]
    line_text = next(
        (
            f"at {os.path.basename(frame.filename)}:{frame.lineno}"
            for frame in (*user_frames[-1:], *layers[-1:])
        ),
        "",
    )
    location = " ".join(filter(None, (f"in {module}" if module else "", line_text)))
    # the location comes first, because the end of torch's long text may be cut off
    return f"{location}: {format_error(error)}" if location else format_error(error)
