"""Quantized layers in an nn.Module (`explorer quantize -o FILE.pt2`): calibrated, measured and written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.module_twin import replaceable, twin_of, write_twin, writer_of
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import sharing_values
from explorer.engine.formats.torch_module.modules import tensors
from explorer.engine.graph.model import Graph, Model, Value
from explorer.engine.models.opened import OpenedModel
from explorer.engine.progress import report
from explorer.engine.quantize.answer import answer
from explorer.engine.quantize.choice import choose
from explorer.engine.quantize.grids import Grids, wanted
from explorer.engine.quantize.torch.layers import module_layers
from explorer.engine.quantize.torch.modules import layer_runs, quantize_copy, ranges, run_errors
from explorer.engine.runtime.samples import Feeds, Samples, read_samples
from explorer.engine.runtime.torch_arrays import as_array, as_tensor
from explorer.engine.tiling.torch.replace import copied
from explorer.facts import Analysis, Layer, TensorInfo
from explorer.facts.quantize import Quantization, QuantizeRequest
from explorer.host import output_files
from explorer.host.optional_packages import error_line, silence


def to_quantized(
    opened: OpenedModel,
    module: nn.Module | None,
    request: QuantizeRequest,
    job: ConversionJob,
    analysis: Analysis,
    *,
    output: str | None = None,
    overwrite: bool = False,
    measured: bool = True,
) -> tuple[nn.Module, Quantization]:
    """A module whose layers round to number formats: rounded weights are stored, inputs rounded as they come.

    Args:
        opened: The model.
        module: The object that it was opened from, if it was one: then the result has tensors of its own.
        request: Formats and layers, and the samples that ranges are chosen on.
        job: Inputs, axes to leave open in the file, who is told; its `path` is not looked at.
        analysis: Of the model, for MACs and bytes.
        output: Where to write it: .pt2, or TorchScript by any other ending.
        overwrite: Whether an existing file may be replaced.
        measured: Measure errors of weights, layers and outputs.

    Raises:
        Misuse: The model is no nn.Module, no layer takes a format, the samples do not fit, or `output` cannot
            be written.
        BadModel: The module cannot be run or written, or a weight holds NaN.
        Cancelled: `job.cancel` said so.
    """
    started = time.perf_counter()
    loaded = _checked(opened, request, job, output, overwrite)
    job.tell("settling the inputs")
    bound = bind(loaded, job.input_shapes, job.dims)
    samples = _samples(loaded, bound, request)
    run = partial(_run, bound, loaded.source)
    rows = _named_by_path(analysis.layers)
    with silence():
        original = loaded.materialise()
        layers = module_layers(original, layer_runs(original, run, samples))
        choices = choose([one.layer for one in layers], request.spec, lambda: rows)
        step = partial(report, job.on_progress, job.cancel, "calibrating")
        grids = Grids(ranges(original, layers, choices, request.spec, samples, run, step))
        made = sharing_values(original) if module is None else copied(module, share=False)
        quantize_copy(made, layers, choices, grids.of)
        twin = twin_of(loaded, made)
        errors: dict[str, Any] = {}
        if measured:
            step = partial(report, job.on_progress, job.cancel, "comparing")
            parts = run_errors(original, twin.materialise(), layers, choices, grids.of, samples, run, step)
            errors = dict(zip(("layers", "outputs"), parts, strict=True))
    if output is not None:
        with output_files.atomic_write(output, overwrite=overwrite) as temporary:
            write_twin(twin, opened.format, replace(job, path=temporary, target=output))
    stored, bits = analysis.info.totals.weight_bytes, request.spec.accumulator
    fact = answer(choices, grids.of, rows, stored, **errors, weights=measured, accumulator_bits=bits)
    seen = samples.text if measured or wanted(choices) else ""
    seconds = time.perf_counter() - started
    return made, replace(fact, output=output or "", calibration=seen, seconds=seconds)


def _checked(
    opened: OpenedModel, request: QuantizeRequest, job: ConversionJob, output: str | None, overwrite: bool
) -> LoadedModule:
    """The module, after all that can be refused before anything is run."""
    if request.spec.form != "auto":
        raise Misuse("forms are ways to write ONNX", where="--form", hint="leave it out for a module")
    loaded = replaceable(opened, "quantize it as ONNX, to a file that ends in .onnx")
    if output is not None:
        files = getattr(opened, "files", ())
        output_files.check_target(output, overwrite=overwrite, models=[opened.source, *files], weights=files)
        writer_of(output, job.asked)
    return loaded


def _named_by_path(rows: Sequence[Layer]) -> tuple[Layer, ...]:
    """Rows whose output has the name of the layer: what a choice knows it by."""
    return tuple(
        row if row.group else replace(row, outputs=(TensorInfo(row.path, None, None),)) for row in rows
    )


def _samples(loaded: LoadedModule, bound: BoundInputs, request: QuantizeRequest) -> Samples:
    """Inputs of the module: those of the user's files, or drawn as for a proof."""
    if request.calibrate:
        inputs = tuple(Value(info.name, info.dtype, info.shape) for info in bound.inputs)
        return read_samples(Model(Graph("", (), inputs, (), {}), {}, 0), request.calibrate)
    seeds = range(request.seed, request.seed + request.draws)
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return Samples(
        f"random inputs, {said}",
        len(seeds),
        lambda: (comparison.one_draw(loaded, bound, seed) for seed in seeds),
    )


def _run(bound: BoundInputs, source: str, module: nn.Module, feeds: Feeds) -> list[Any]:
    """Runs a module on a sample."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    args, kwargs = bound.call([as_tensor(feeds[info.name]).to(device) for info in bound.inputs])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [as_array(tensor) for _, tensor in tensors(module(*args, **kwargs))]
    except ExplorerError:
        raise
    except Exception as error:
        raise BadModel(f"the model failed: {error_line(error)}", where=source) from error
