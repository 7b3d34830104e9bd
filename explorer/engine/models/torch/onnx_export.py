"""ONNX export of an nn.Module by torch's exporters, with the module's own names in the file.

torch has two exporters. The TorchScript one comes first: node names carry the module tree
(`/features/features.0/Conv`), weights keep their state_dict names, detection models work, and AlexNet
takes 2 s where the newer one takes several times that. The newer exporter (torch.export) takes over when the
first fails, or when its file branches on values.

Two things that happen to names on the way are undone here: parameters that merely have the same values
(every fresh bias of zeros) are not merged into one, and a transposed weight that became
`onnx::MatMul_2064` gets its name back. Batch norms stay themselves, so that parameters can be compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import torch
from msgspec import Struct
from msgspec.structs import replace
from onnx import numpy_helper
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.tested_versions import error_chain
from explorer.engine.compat.torch import export_cause, no_merging_by_value
from explorer.engine.costs.torch.signature import outputs_of
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.torch_module.arguments import BoundInputs, moved
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_replay.operators import NotTraceable
from explorer.engine.graph.model import Model
from explorer.engine.progress import OnProgress
from explorer.engine.runtime.torch_arrays import as_array
from explorer.engine.runtime.torch_fastpath import without_fastpath
from explorer.facts import Progress
from explorer.host.optional_packages import error_line

_INVENTED = ("onnx::", "val_")
"""Prefixes of the names that the two exporters make up."""

OPSET = 17
"""The lowest opset with LayerNormalization as one operator, which every current runtime supports."""
_LEAST_OPSET = 7
"""The lowest opset of the TorchScript exporter."""
_LATER_OPSET = 20
"""The highest opset of the TorchScript exporter, for operators that 17 lacks, such as affine_grid."""
_NEWER_OPSET = 18
"""The opset that the torch.export-based exporter writes without conversion."""


EXPORTERS = {"torchscript": "the TorchScript exporter", "dynamo": "the torch.export exporter"}
"""torch's two exporters, by their names in torch's own option."""

_WAYS = (("torchscript", OPSET), ("torchscript", _LATER_OPSET), ("dynamo", _NEWER_OPSET))
"""Exporter and opset of each attempt, in order, if the request leaves them open."""

_MANY_BYTES = 1 << 30
"""Weights above this size go into a file beside the model: protobuf ends at 2 GiB, graph included."""


class ExportRequest(Struct, frozen=True):
    """Options of an export.

    Attributes:
        exporter: One of `EXPORTERS`; None takes the first that works.
        opset: Version of the ONNX operator set; None takes the exporter's best.
        inputs: Names in the file, one for each input; empty for the model's own.
        outputs: The same of the outputs.
        axes: Dynamic axes of each input and their names; empty if all sizes are fixed.
        output_axes: The same of the outputs.
        shapes: The `dynamic_shapes` of torch.export.
    """

    exporter: str | None = None
    opset: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    axes: tuple[Mapping[int, str], ...] = ()
    output_axes: tuple[Mapping[int, str], ...] = ()
    shapes: Any = None


class ExportResult(Struct, frozen=True):
    """The exporter that wrote a file, and the requested opset."""

    exporter: str
    opset: int


def export(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    path: str,
    on_progress: OnProgress = None,
    request: ExportRequest | None = None,
) -> ExportResult:
    """Writes the model to `path`; weights above 1 GiB may go into files beside it.

    Args:
        loaded: The model; its weights are made now if they are not there yet.
        bound_inputs: The inputs. Their shapes become the file's, except for the axes in the request.
        path: Overwritten if it exists.
        on_progress: Told the phase.
        request: Options of the export.

    Raises:
        BadModel: No requested exporter can write this model; the reason is that of the first.
        Misuse: The exporter does not know the opset.
    """
    tell, request = on_progress or (lambda progress: None), request or ExportRequest()
    ways = _attempts(request)
    tell(Progress("making the weights"))
    model = loaded.materialise()
    device = next((p.device for p in model.parameters()), None)
    args, kwargs = moved(bound_inputs.arguments(device="cpu"), device)
    request = _with_names(request, loaded, bound_inputs)
    errors: list[BaseException] = []
    made_by: ExportResult | None = None
    for number, (exporter, opset) in enumerate(ways):
        # only the other exporter can replace a file that branches
        if made_by is not None and exporter == made_by.exporter:
            continue
        tell(Progress(f"exporting to ONNX ({EXPORTERS[exporter]})", number, len(ways)))
        target = f"{path}.part" if made_by is not None else path
        try:
            with loaded.quiet(), _silence_output():
                _EXPORT[exporter](model, args, kwargs, target, replace(request, opset=opset))
        except ExplorerError:
            raise
        except Exception as error:
            if isinstance(full := export_cause(error), OSError) and full.errno in (
                errno.ENOSPC,
                errno.EDQUOT,
            ):
                raise full from None
            errors.append(export_cause(error))
            with contextlib.suppress(OSError):
                os.unlink(target)
            continue
        doubted, made_by = made_by is not None, ExportResult(exporter, opset)
        if doubted:
            os.replace(target, path)
            break
        if bound_inputs.images or not _branches(path):
            break
    if made_by is None:
        # that a trace cannot follow the model says nothing about the other exporter, which came next
        first = next((error for error in errors if not _is_untraceable(error)), errors[0])
        raise BadModel(f"it cannot be exported to ONNX ({error_line(first)})", where=loaded.source)
    tell(Progress("naming the weights"))
    _restore_names(path, model)
    return made_by


def _is_untraceable(error: BaseException) -> bool:
    """Whether a trace could not follow the model, whatever torch wrapped the error in."""
    return any(isinstance(cause, NotTraceable) for cause in error_chain(error))


def _with_names(request: ExportRequest, loaded: LoadedModule, bound_inputs: BoundInputs) -> ExportRequest:
    """The request with the model's own names where it gives none."""
    if not request.inputs:
        request = replace(request, inputs=tuple(info.name for info in bound_inputs.inputs))
    if not request.outputs:
        outputs = outputs_of(loaded, bound_inputs)
        request = replace(request, outputs=tuple(info.name for info in outputs or ()))
    return request


def exported_graph(
    loaded: LoadedModule, bound_inputs: BoundInputs, path: str, on_progress: OnProgress = None
) -> Model:
    """The model as an ONNX graph, which is written to `path`; see `export`."""
    export(loaded, bound_inputs, path, on_progress)
    return validate(reader.read(path))


def _attempts(request: ExportRequest) -> tuple[tuple[str, int], ...]:
    """The attempts in order: exporter and opset.

    Raises:
        Misuse: No remaining exporter supports the opset.
    """
    if request.opset is None:
        return tuple(way for way in _WAYS if request.exporter in (None, way[0]))
    names = [request.exporter] if request.exporter else list(EXPORTERS)
    ways = tuple((name, request.opset) for name in names if request.opset in _opsets(name))
    if not ways:
        ranges = [span for span in map(_opsets, names) if span]
        first, last = min(span[0] for span in ranges), max(span[-1] for span in ranges)
        who = EXPORTERS[request.exporter] if request.exporter else "torch"
        advice = "--exporter dynamo writes later ones" if request.exporter == "torchscript" else ""
        raise Misuse(
            f"{who} writes opset {first} to {last}",
            where=f"--opset {request.opset}",
            hint=advice if request.opset > last else "",
        )
    return ways


def _opsets(exporter: str) -> range:
    """The opsets that an exporter of the installed torch writes."""
    if exporter == "torchscript":
        return range(_LEAST_OPSET, _LATER_OPSET + 1)
    return range(_NEWER_OPSET, onnx.defs.onnx_opset_version() + 1)


def _branches(path: str) -> bool:
    """Whether the file branches or loops on values.

    A trace with fixed shapes has no reason to. If the TorchScript exporter lost a shape, it writes both
    branches, and the runtime may refuse the one that never runs (seen on MViT). Detection models are the
    exception: they do depend on values.
    """
    graph = onnx.load(path, load_external_data=False).graph
    return any(node.op_type in ("If", "Loop") for node in graph.node)


def _by_trace(
    model: nn.Module, args: list[Any], kwargs: dict[str, Any], path: str, request: ExportRequest
) -> None:
    axes = {
        **dict(zip(request.inputs, request.axes, strict=False)),
        **dict(zip(request.outputs, request.output_axes, strict=False)),
    }
    with torch.no_grad(), no_merging_by_value(), without_fastpath(), torch.random.fork_rng(devices=[]):
        torch.onnx.export(
            model,
            (*args, kwargs) if kwargs else tuple(args),
            path,
            input_names=list(request.inputs),
            output_names=list(request.outputs) or None,
            opset_version=request.opset,
            dynamic_axes={name: dict(named) for name, named in axes.items() if named} or None,
            do_constant_folding=True,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamo=False,
        )


def _by_graph(
    model: nn.Module, args: list[Any], kwargs: dict[str, Any], path: str, request: ExportRequest
) -> None:
    nbytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    with torch.no_grad(), without_fastpath(), torch.random.fork_rng(devices=[]):
        torch.onnx.export(
            model,
            tuple(args),
            path,
            kwargs=kwargs or None,
            input_names=list(request.inputs),
            output_names=list(request.outputs) or None,
            opset_version=request.opset,
            dynamic_shapes=request.shapes,
            dynamo=True,
            external_data=nbytes > _MANY_BYTES,
            verbose=False,
        )


_EXPORT = {"torchscript": _by_trace, "dynamo": _by_graph}


@contextlib.contextmanager
def _silence_output() -> Iterator[None]:
    """Discards everything that is written to the process's standard output and error.

    When it fails, the exporter prints whole graphs from C++, which Python cannot catch.
    """
    with contextlib.ExitStack() as stack:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        for stream in (1, 2):
            try:
                saved = os.dup(stream)
            except OSError:
                # standard output is closed: nothing to discard
                continue
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, stream)
            os.dup2(nowhere, stream)
        yield


def _restore_names(path: str, model: nn.Module) -> None:
    """Restores the state_dict names of weights that constant folding transposed.

    The weights are recognized by value. If all names are right, the file is not rewritten.
    """
    graph = onnx.load(path, load_external_data=False)
    renamed = _renamed(graph, path, model)
    if not renamed:
        return
    for tensor in graph.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    _rename_inputs(graph.graph, renamed)
    onnx.save(graph, path)


def _rename_inputs(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Renames the values that nodes read, also in the bodies of branches and loops."""
    for node in graph.node:
        for at, value in enumerate(node.input):
            if value in renamed:
                node.input[at] = renamed[value]
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _rename_inputs(body, renamed)


def _renamed(graph: onnx.ModelProto, path: str, model: nn.Module) -> dict[str, str]:
    """Maps names that the exporter made up to names in the state_dict."""
    taken = {tensor.name for tensor in graph.graph.initializer}
    lost: dict[tuple[int, ...], list[tuple[str, torch.Tensor]]] = {}
    for name, weight in model.state_dict().items():
        if name not in taken and weight.dim() == 2:
            lost.setdefault(tuple(weight.shape[::-1]), []).append((name, weight.t()))
    renamed: dict[str, str] = {}
    for tensor in graph.graph.initializer:
        candidates = lost.get(tuple(tensor.dims), [])
        if not tensor.name.startswith(_INVENTED) or not candidates:
            continue
        array = numpy_helper.to_array(tensor, os.path.dirname(os.path.abspath(path)))
        for at, (name, weight) in enumerate(candidates):
            values = as_array(weight)
            # the first row distinguishes almost all weights without reading the rest
            if (array[:1] == values[:1]).all() and (array == values).all():
                renamed[tensor.name] = name
                del candidates[at]
                break
    return renamed
