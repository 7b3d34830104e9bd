"""An nn.Module out as an ONNX file whose names are those of the module.

torch has two exporters. The TorchScript one comes first: node names carry the module tree
(`/features/features.0/Conv`), weights keep their state_dict names, detection models work, and AlexNet
takes 2 s where the newer one takes several times that. The newer one (torch.export) takes over when it
fails, or when what it wrote branches on values.

Two things that happen to names on the way are undone here: parameters that merely have the same values
(every fresh bias of zeros) are not merged into one, and a transposed weight that became
`onnx::MatMul_2064` gets its name back. Batch norms stay themselves, so that parameters can be compared.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from explorer.engine.formats.torch_inputs import moved
from explorer.engine.formats.torch_module import said
from explorer.engine.fused import without_fastpath
from explorer.errors import BadModel, ExplorerError
from explorer.facts import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from torch import nn

    from explorer.engine.formats.torch_inputs import Bound
    from explorer.engine.formats.torch_module import LoadedModule

__all__ = ["OPSET", "export"]

_INVENTED = ("onnx::", "val_")
"""How the names start that the two exporters give to values of their own."""

OPSET = 17
"""The lowest that has LayerNormalization as one operator, and that every runtime of today takes."""
_LATER_OPSET = 20
"""The TorchScript exporter's highest: operators that 17 has not, such as affine_grid."""
_NEWER_OPSET = 18
"""What the torch.export-based exporter writes without conversion."""


def export(
    loaded: LoadedModule,
    bound: Bound,
    path: str,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Writes the model to `path`; weights above 2 GiB go into files beside it.

    Args:
        loaded: The model; its weights are made now if they are not there yet.
        bound: The inputs. Their shapes become the file's, nothing in it is symbolic.
        path: Overwritten if it exists.
        on_progress: Told the phase.

    Raises:
        BadModel: No exporter can write this model; the reason is the first one's.
    """
    tell = on_progress or (lambda progress: None)
    tell(Progress("making the weights"))
    model = loaded.materialise()
    device = next((p.device for p in model.parameters()), None)
    args, kwargs = moved(bound.arguments(device="cpu"), device)
    names = [info.name for info in bound.inputs]
    outputs = _output_names(loaded, bound)
    reasons: list[str] = []
    ways: tuple[tuple[str, Callable[[str], None]], ...] = (
        ("TorchScript", lambda to: _by_trace(model, args, kwargs, to, OPSET, names, outputs)),
        ("TorchScript", lambda to: _by_trace(model, args, kwargs, to, _LATER_OPSET, names, outputs)),
        ("torch.export", lambda to: _by_graph(model, args, kwargs, to, names, outputs)),
    )
    doubtful = False
    for number, (name, way) in enumerate(ways):
        # a doubtful file is replaced by the last way only
        if doubtful and number < len(ways) - 1:
            continue
        tell(Progress(f"exporting to ONNX ({name})", number, len(ways)))
        made = f"{path}.part" if doubtful else path
        try:
            with loaded.quiet(), _deaf():
                way(made)
        except ExplorerError:
            raise
        except Exception as error:
            reasons.append(said(error))
            with contextlib.suppress(OSError):
                os.unlink(made)
            continue
        if doubtful:
            os.replace(made, path)
            break
        doubtful = not bound.images and _branches(path)
        if not doubtful:
            break
    else:
        if not doubtful:
            raise BadModel(f"it cannot be exported to ONNX ({reasons[0]})", where=loaded.source)
    tell(Progress("naming the weights"))
    _restore_names(path, model)


def _branches(path: str) -> bool:
    """Whether the file branches or loops on values.

    A trace of fixed shapes has no reason to. Where the TorchScript exporter lost a shape it writes both
    ways out, and the runtime may refuse the one that never happens (seen on MViT). Detection models are
    the exception: they do depend on values.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return any(node.op_type in ("If", "Loop") for node in graph.node)


def _output_names(loaded: LoadedModule, bound: Bound) -> list[str] | None:
    """Names of the outputs as the analysis has them; None if the model does not run on shapes."""
    from explorer.engine.analysis.module_rows import described
    from explorer.engine.analysis.module_trace import trace

    args, kwargs = bound.arguments(device="meta")
    with loaded.quiet():
        seen = trace(loaded.meta(), args, kwargs)
    return None if seen.failed else [info.name for info in described(seen.result, "output")]


def _by_trace(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    path: str,
    opset: int,
    names: list[str],
    outputs: list[str] | None,
) -> None:
    import torch

    with torch.no_grad(), _no_merging_by_value(), without_fastpath(), torch.random.fork_rng(devices=[]):
        torch.onnx.export(
            model,
            (*args, kwargs) if kwargs else tuple(args),
            path,
            input_names=names,
            output_names=outputs,
            opset_version=opset,
            do_constant_folding=True,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamo=False,
        )


def _by_graph(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    path: str,
    names: list[str],
    outputs: list[str] | None,
) -> None:
    import torch

    with torch.no_grad(), without_fastpath(), torch.random.fork_rng(devices=[]):
        torch.onnx.export(
            model,
            tuple(args),
            path,
            kwargs=kwargs or None,
            input_names=names,
            output_names=outputs,
            opset_version=_NEWER_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _no_merging_by_value() -> Iterator[None]:
    """Initializers are merged where they share memory, and not where they happen to be equal.

    The exporter has this as the rule for training models only; without the switch (it is no public
    API), the names of fresh biases and batch norms would collapse into one.
    """
    import torch

    passes: Any = torch._C
    name = "_jit_pass_onnx_deduplicate_initializers"
    merge = getattr(passes, name, None)
    if merge is None:
        yield
        return
    setattr(passes, name, lambda graph, params, training: merge(graph, params, True))
    try:
        yield
    finally:
        setattr(passes, name, merge)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Nothing written to the process's standard output and error arrives.

    The exporter prints whole graphs from C++ when it fails, past everything that Python could catch.
    """
    with contextlib.ExitStack() as stack:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        for stream in (1, 2):
            try:
                saved = os.dup(stream)
            except OSError:
                # closed: there is nobody to be spared
                continue
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, stream)
            os.dup2(nowhere, stream)
        yield


def _restore_names(path: str, model: nn.Module) -> None:
    """Gives weights that constant folding transposed the names of the state_dict again.

    They are recognised by value. Nothing is rewritten when all names are right already.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False)
    renamed = _renamed(graph, path, model)
    if not renamed:
        return
    for tensor in graph.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in graph.graph.node:
        for at, value in enumerate(node.input):
            if value in renamed:
                node.input[at] = renamed[value]
    onnx.save(graph, path)


def _renamed(graph: onnx.ModelProto, path: str, model: nn.Module) -> dict[str, str]:
    """Names that the exporter made up to names in the state_dict."""
    from onnx import numpy_helper

    taken = {tensor.name for tensor in graph.graph.initializer}
    lost: dict[tuple[int, ...], list[tuple[str, np.ndarray[Any, Any]]]] = {}
    for name, weight in model.state_dict().items():
        if name not in taken and weight.dim() == 2:
            lost.setdefault(tuple(weight.shape[::-1]), []).append((name, weight.t().numpy()))
    renamed: dict[str, str] = {}
    for tensor in graph.graph.initializer:
        candidates = lost.get(tuple(tensor.dims), [])
        if not tensor.name.startswith(_INVENTED) or not candidates:
            continue
        array = numpy_helper.to_array(tensor, os.path.dirname(os.path.abspath(path)))
        for at, (name, values) in enumerate(candidates):
            # the first row tells almost all apart without reading the rest
            if (array[0] == values[0]).all() and (array == values).all():
                renamed[tensor.name] = name
                del candidates[at]
                break
    return renamed
