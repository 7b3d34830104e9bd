"""Exports an nn.Module to ONNX with torch's exporters, and keeps the module's own names in the file.

torch has two exporters. The TorchScript exporter is tried first. Its node names contain the module tree
(`/features/features.0/Conv`), and weights keep their state_dict names. It exports detection models, and
AlexNet takes 2 s, while the newer exporter takes several times as long. The newer exporter (torch.export) is
tried if the first fails, or if its file branches on values.

The newer exporter writes module paths only into metadata. Its nodes get the names that the TorchScript
exporter would give, so that a plan, a proof and a map name the module's layers.

Parameters can be compared with the module's, because three changes by the exporters are prevented or undone.
Parameters with equal values (such as new biases of zeros) are not merged into one parameter. Batch norms are
not folded. A transposed weight that the exporter named `onnx::MatMul_2064` gets its state_dict name back.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch
from msgspec import Struct
from msgspec.structs import replace
from onnx import numpy_helper
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.tested_versions import iterate_causes
from explorer.base.units import many_text
from explorer.engine.compat.torch import find_export_cause, prevent_merging
from explorer.engine.costs.onnx.scopes import NAMES, find_module_path
from explorer.engine.costs.torch.signature import find_outputs
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.torch_module.arguments import BoundInputs, move_to_device
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_replay.operators import NotTraceable
from explorer.engine.graph.model import Model, Node
from explorer.engine.progress import OnProgress
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.runtime.torch_fastpath import disable_fastpath
from explorer.facts import Progress
from explorer.host.optional_packages import format_error, silence_output

_INVENTED_PREFIXES = ("onnx::", "val_")
"""Prefixes of the names that the two exporters invent."""

OPSET = 17
"""Lowest opset with LayerNormalization as one operator; every current runtime supports it."""
_MIN_OPSET = 7
"""Lowest opset of the TorchScript exporter."""
_MAX_OPSET = 20
"""Highest opset of the TorchScript exporter, for operators that opset 17 lacks, such as affine_grid."""
_DYNAMO_OPSET = 18
"""Opset that the torch.export exporter writes without conversion."""


EXPORTERS = {"torchscript": "the TorchScript exporter", "dynamo": "the torch.export exporter"}
"""torch's two exporters, by their names in the options."""

_ATTEMPTS = (("torchscript", OPSET), ("torchscript", _MAX_OPSET), ("dynamo", _DYNAMO_OPSET))
"""Exporter and opset of each attempt, in order, if the request leaves them open."""

_EXTERNAL_BYTES = 1 << 30
"""Bytes of weights above which the torch.export exporter writes a separate file (protobuf allows 2 GiB)."""


class ExportRequest(Struct, frozen=True):
    """Options of an export.

    Attributes:
        exporter: One of `EXPORTERS`, or None for the first that succeeds.
        opset: Version of the ONNX operator set, or None for the exporter's best.
        inputs: Name in the file of each input; empty for the model's own names.
        outputs: Name in the file of each output; empty for the model's own names.
        weights: New names of the first stored tensors, in the order of the file; empty keeps all names.
        axes: For each input, the names of its dynamic axes by axis; empty if all sizes are fixed. Only the
            TorchScript exporter reads it.
        output_axes: The same for each output.
        shapes: The `dynamic_shapes` argument of torch.export, for the torch.export exporter.
    """

    exporter: str | None = None
    opset: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
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
    """Writes the model to `path`. Weights above 1 GiB may be written to files next to it.

    Args:
        loaded: The model. Its weights are created if they do not exist yet.
        bound_inputs: The inputs. The file has their shapes, except for the dynamic axes in the request.
        path: Path of the file, which is overwritten.
        on_progress: Function called with the phase.
        request: Options of the export.

    Raises:
        BadModel: No requested exporter can write this model. The message has the reason of the first failure
            other than a failed trace, or else of the first failure.
        Misuse: No requested exporter supports the opset, or the new names of weights do not fit the file.
        OSError: The disk is full.
    """
    report, request = on_progress or (lambda progress: None), request or ExportRequest()
    attempts = _list_attempts(request)
    report(Progress("making the weights"))
    model = loaded.materialize()
    device = next((parameter.device for parameter in model.parameters()), None)
    args, kwargs = move_to_device(bound_inputs.build_arguments(device="cpu"), device)
    request = _fill_names(request, loaded, bound_inputs)
    errors: list[BaseException] = []
    result: ExportResult | None = None
    for attempt_index, (exporter, opset) in enumerate(attempts):
        # a file that branches is replaced only by the other exporter's file
        if result is not None and exporter == result.exporter:
            continue
        report(Progress(f"exporting to ONNX ({EXPORTERS[exporter]})", attempt_index, len(attempts)))
        target = f"{path}.part" if result is not None else path
        try:
            with loaded.quiet(), silence_output():
                _EXPORT[exporter](model, args, kwargs, target, replace(request, opset=opset))
        except ExplorerError:
            raise
        except Exception as error:
            if isinstance(disk_error := find_export_cause(error), OSError) and disk_error.errno in (
                errno.ENOSPC,
                errno.EDQUOT,
            ):
                raise disk_error from None
            errors.append(find_export_cause(error))
            with contextlib.suppress(OSError):
                os.unlink(target)
            continue
        replaces_first, result = result is not None, ExportResult(exporter, opset)
        if replaces_first:
            os.replace(target, path)
            break
        if bound_inputs.has_image_list or not _has_branches(path):
            break
    if result is None:
        # a failed trace says nothing about the other exporter, so its reason is not reported first
        reported_error = next((error for error in errors if not _is_untraceable(error)), errors[0])
        raise BadModel(f"it cannot be exported to ONNX ({format_error(reported_error)})", where=loaded.source)
    report(Progress("naming the weights"))
    _restore_names(path, model, has_module_names=result.exporter == "torchscript")
    if request.weights:
        _name_weights(path, request.weights)
    return result


def _is_untraceable(error: BaseException) -> bool:
    """Whether the error, or an error that caused it, says that the trace could not follow the model."""
    return any(isinstance(cause, NotTraceable) for cause in iterate_causes(error))


def _fill_names(request: ExportRequest, loaded: LoadedModule, bound_inputs: BoundInputs) -> ExportRequest:
    """Returns the request with the model's own names for all names that it leaves open."""
    if not request.inputs:
        request = replace(request, inputs=tuple(info.name for info in bound_inputs.inputs))
    if not request.outputs:
        outputs = find_outputs(loaded, bound_inputs)
        request = replace(request, outputs=tuple(info.name for info in outputs or ()))
    return request


def export_graph(
    loaded: LoadedModule, bound_inputs: BoundInputs, path: str, on_progress: OnProgress = None
) -> Model:
    """Returns the model as an ONNX graph, which is written to `path`. See `export`."""
    export(loaded, bound_inputs, path, on_progress)
    return validate(reader.read(path))


def _list_attempts(request: ExportRequest) -> tuple[tuple[str, int], ...]:
    """Returns the exporter and opset of each attempt, in order.

    Raises:
        Misuse: No requested exporter supports the opset.
    """
    if request.opset is None:
        return tuple(attempt for attempt in _ATTEMPTS if request.exporter in (None, attempt[0]))
    names = [request.exporter] if request.exporter else list(EXPORTERS)
    attempts = tuple((name, request.opset) for name in names if request.opset in _list_opsets(name))
    if not attempts:
        ranges = [span for span in map(_list_opsets, names) if span]
        first, last = min(span[0] for span in ranges), max(span[-1] for span in ranges)
        exporter_text = EXPORTERS[request.exporter] if request.exporter else "torch"
        hint = "--exporter dynamo writes later ones" if request.exporter == "torchscript" else ""
        message = f"{exporter_text} writes opset {first} to {last}"
        raise Misuse(message, where=f"--opset {request.opset}", hint=hint if request.opset > last else "")
    return attempts


def _list_opsets(exporter: str) -> range:
    """Returns the opsets that an exporter of the installed torch writes."""
    if exporter == "torchscript":
        return range(_MIN_OPSET, _MAX_OPSET + 1)
    return range(_DYNAMO_OPSET, onnx.defs.onnx_opset_version() + 1)


def _has_branches(path: str) -> bool:
    """Whether the file branches or loops on values.

    A trace with fixed shapes needs no branch. If the TorchScript exporter lost a shape, it writes both
    branches, and the runtime may refuse the branch that never runs (seen with MViT). Detection models are the
    exception, because they do depend on values.
    """
    graph = onnx.load(path, load_external_data=False).graph
    return any(node.op_type in ("If", "Loop") for node in graph.node)


def _export_torchscript(
    model: nn.Module, args: list[Any], kwargs: dict[str, Any], path: str, request: ExportRequest
) -> None:
    axes = {
        **dict(zip(request.inputs, request.axes, strict=False)),
        **dict(zip(request.outputs, request.output_axes, strict=False)),
    }
    with torch.no_grad(), prevent_merging(), disable_fastpath(), torch.random.fork_rng(devices=[]):
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


def _export_dynamo(
    model: nn.Module, args: list[Any], kwargs: dict[str, Any], path: str, request: ExportRequest
) -> None:
    nbytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    with torch.no_grad(), disable_fastpath(), torch.random.fork_rng(devices=[]):
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
            external_data=nbytes > _EXTERNAL_BYTES,
            verbose=False,
        )


_EXPORT = {"torchscript": _export_torchscript, "dynamo": _export_dynamo}


def _restore_names(path: str, model: nn.Module, *, has_module_names: bool) -> None:
    """Restores the state_dict names of transposed weights, and names nodes by their modules.

    If no name changes, the file is not rewritten.

    Args:
        path: Path of the file.
        model: The exported module.
        has_module_names: Whether the names of the nodes already contain the module tree.
    """
    graph = onnx.load(path, load_external_data=False)
    renamed = _map_original_names(graph, path, model)
    named_count = 0 if has_module_names else _name_nodes(graph.graph, Counter())
    if not renamed and not named_count:
        return
    for tensor in graph.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    _rename_inputs(graph.graph, renamed)
    onnx.save(graph, path)


def _name_nodes(graph: onnx.GraphProto, used: Counter[str]) -> int:
    """Names nodes by the module paths in their metadata, as the TorchScript exporter does.

    Args:
        graph: Main graph or body. A node without such metadata keeps its name.
        used: Number of nodes with each name so far.

    Returns:
        The number of nodes that were named.
    """
    count = 0
    for node in graph.node:
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get(NAMES, "")
        if scopes:
            pieces = find_module_path(Node(node.op_type, (), (), metadata={NAMES: scopes})).split(".")
            modules = [".".join(pieces[: end + 1]) for end in range(len(pieces)) if pieces[0]]
            name = "/".join(("", *modules, node.op_type))
            used[name] += 1
            node.name = f"{name}_{used[name] - 1}" if used[name] > 1 else name
            count += 1
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                count += _name_nodes(body, used)
    return count


def _name_weights(path: str, names: Sequence[str]) -> None:
    """Renames the first stored tensors of the file.

    Raises:
        Misuse: The file stores fewer tensors, or a name is repeated or is the name of another value.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    stored_names = [tensor.name for tensor in graph.initializer]
    if len(names) > len(stored_names):
        raise Misuse(
            f"{len(names):,} names for weights, and the file stores {many_text(len(stored_names), 'tensor')}",
            where="--input-names",
            hint="the names after those of the inputs are for the weights; give fewer names",
        )
    renamed = dict(zip(stored_names, names, strict=False))
    values = (output for node in graph.node for output in node.output)
    other_names = {*values, *(value.name for value in graph.input), *stored_names[len(names) :]} - {*renamed}
    used_names = [name for index, name in enumerate(names) if name in other_names or name in names[:index]]
    if used_names:
        message = f"a value of the file is called '{used_names[0]}' already"
        raise Misuse(message, where="--input-names", hint="choose another")
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    _rename_inputs(graph, renamed)
    onnx.save(model, path)


def _rename_inputs(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Renames the inputs of nodes, including nodes in the bodies of branches and loops."""
    for node in graph.node:
        for index, value in enumerate(node.input):
            if value in renamed:
                node.input[index] = renamed[value]
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _rename_inputs(body, renamed)


def _map_original_names(graph: onnx.ModelProto, path: str, model: nn.Module) -> dict[str, str]:
    """Maps names that the exporter invented to state_dict names of matrices with the transposed values."""
    used_names = {tensor.name for tensor in graph.graph.initializer}
    weights_by_shape: dict[tuple[int, ...], list[tuple[str, torch.Tensor]]] = {}
    for name, weight in model.state_dict().items():
        if name not in used_names and weight.dim() == 2:
            weights_by_shape.setdefault(tuple(weight.shape[::-1]), []).append((name, weight.t()))
    renamed: dict[str, str] = {}
    for tensor in graph.graph.initializer:
        candidates = weights_by_shape.get(tuple(tensor.dims), [])
        if not tensor.name.startswith(_INVENTED_PREFIXES) or not candidates:
            continue
        array = numpy_helper.to_array(tensor, os.path.dirname(os.path.abspath(path)))
        for index, (name, weight) in enumerate(candidates):
            values = convert_to_array(weight)
            # comparing the first row first avoids reading almost all other weights
            if (array[:1] == values[:1]).all() and (array == values).all():
                renamed[tensor.name] = name
                del candidates[index]
                break
    return renamed
