"""Tiled layers in an nn.Module (`explorer tile --to torch`): tiling, proof, and writing a file.

The converters for modules write the file (`engine.convert`). The proof compares the tiled module with its
original as for any conversion: both run on the same inputs, and the original also runs in float64.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel
from explorer.engine.convert import axes, comparison
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.module_twin import choose_writer, make_twin, require_layers, write_twin
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.models.opened_model import OpenedModel
from explorer.engine.proof.torch_layers import compare_sites
from explorer.engine.proof.verdict import Grounds, decide_verdict
from explorer.engine.tiling.torch.replace import Calls, record_rows_of_calls, tile_module
from explorer.facts import Plan, TileResult, TileSpec, Verification
from explorer.host import output_files
from explorer.host.optional_packages import format_error, silence

_AS_ONNX = "tile it as ONNX, without --to torch"


def plan_module(
    opened: OpenedModel, spec: TileSpec, job: ConversionJob, macs_total: int | None = None
) -> Plan:
    """Returns the plan that `to_torch` would carry out.

    Raises:
        Misuse: See `replace.tile_module`; or the model is not an nn.Module.
        BadModel: The module cannot be run.
    """
    loaded = require_layers(opened, _AS_ONNX)
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    # on the meta device a copy costs nothing
    return tile_module(
        loaded.meta(), spec, _count_rows_of_calls(loaded, bound_inputs), share=True, macs_total=macs_total
    )[1]


def to_torch(
    opened: OpenedModel,
    module: nn.Module | None,
    spec: TileSpec,
    job: ConversionJob,
    *,
    output: str | None = None,
    overwrite: bool = False,
    macs_total: int | None = None,
) -> tuple[nn.Module, TileResult]:
    """Replaces the layers of a module by tiled layers.

    Args:
        opened: Source model.
        module: Object that `opened` was opened from, so that the result copies its weights; None to share
            weights.
        spec: Tile size, layers, edges.
        job: Inputs, open axes of the file, draws of the proof, and progress callback; its `path` is ignored.
        output: File to write: .pt2, or TorchScript for any other ending. None writes no file.
        overwrite: Whether an existing file may be replaced.
        macs_total: MACs of the whole model.

    Returns:
        The module and the result. If the proof fails, `output` is empty and no file is kept.

    Raises:
        Misuse: The model is not an nn.Module, no layer can be tiled, or `output` cannot be written.
        BadModel: The module cannot be run or written.
        Cancelled: The user canceled (`job.cancel`).
    """
    started = time.perf_counter()
    loaded = require_layers(opened, _AS_ONNX)
    if output is not None:
        files = getattr(opened, "files", ())
        output_files.check_target(output, overwrite=overwrite, models=[opened.source, *files], weights=files)
        choose_writer(output, job.options)
    job.report_progress("settling the inputs")
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    calls = _count_rows_of_calls(loaded, bound_inputs)
    job.report_progress("tiling the layers")
    original = module if module is not None else loaded.materialize()
    tiled, plan = tile_module(original, spec, calls, share=module is None, macs_total=macs_total)
    twin = make_twin(loaded, tiled)
    if output is None:
        evidence = _prove(job, loaded, twin, plan, bound_inputs) if job.verify else None
        return tiled, TileResult(
            plan=plan, output="", verification=evidence, seconds=time.perf_counter() - started, command=""
        )
    evidence = None
    with output_files.write_atomically(output, overwrite=overwrite) as temporary:
        load = write_twin(twin, opened.format, replace(job, path=temporary, target=output))
        if job.verify:
            evidence = _prove(job, loaded, twin, plan, bound_inputs, lambda: load(temporary))
            evidence = replace(evidence, before=opened.source, after=output)
            if not evidence.passed:
                raise output_files.Discard
    written_path = output if evidence is None or evidence.passed else ""
    return tiled, TileResult(
        plan=plan,
        output=written_path,
        verification=evidence,
        seconds=time.perf_counter() - started,
        command="",
    )


def _count_rows_of_calls(loaded: LoadedModule, bound_inputs: BoundInputs) -> Calls:
    """Counts the rows of each call of a layer in a run on the meta device, or if that fails, the CPU.

    Raises:
        BadModel: The module fails on both devices.
    """
    failure: Exception | None = None
    for device, model in (("meta", loaded.meta), ("cpu", loaded.materialize)):
        try:
            args, kwargs = bound_inputs.build_arguments(device=device)
            with silence(), torch.random.fork_rng(devices=[]):
                return record_rows_of_calls(model(), args, kwargs)
        except Exception as error:
            failure = error
    assert failure is not None
    raise BadModel(f"the model failed: {format_error(failure)}", where=loaded.source)


def _prove(
    job: ConversionJob,
    loaded: LoadedModule,
    twin: LoadedModule,
    plan: Plan,
    bound_inputs: BoundInputs,
    reload: Callable[[], Any] | None = None,
) -> Verification:
    """Compares each tiled layer with its original, then the whole module or the module read back."""
    started = time.perf_counter()
    names = [info.name for info in bound_inputs.inputs]
    open_axes = axes.resolve(loaded, bound_inputs, job.options.dynamic, names)
    tiled = twin.materialize()
    step = job.make_step_counter("comparing layers", len(plan.sites))
    feeds = comparison.draw_inputs(loaded, bound_inputs, job.seed)

    def run(model: Any) -> None:
        comparison.make_module_runner(model, bound_inputs, loaded.source)(feeds)

    with silence():
        sites = compare_sites(loaded.materialize(), tiled, plan, run, job.seed, step)
    result = tiled
    if reload is not None:
        job.report_progress("reading the written file")
        with silence():
            result = reload()
    make_result_runner = partial(comparison.make_module_runner, result, label="the tiled module")
    depth = comparison.estimate_module_depth(tiled)
    evidence = comparison.prove(
        job, loaded, open_axes.export_inputs, open_axes.other_inputs, make_result_runner, depth=depth
    )
    return replace(
        evidence,
        **decide_verdict(Grounds(sites=sites, model_outputs=evidence.outputs, draws=job.draws)),
        before=loaded.source,
        after=os.fspath(job.target) or "the tiled module",
        sites=sites,
        seconds=time.perf_counter() - started,
    )
