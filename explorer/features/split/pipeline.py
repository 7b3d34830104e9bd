"""Runs the stages of a folder as a pipeline of processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Graph, Model, Value
from explorer.engine.models.opened_model import select_dims
from explorer.engine.profile.load import check_threads
from explorer.engine.runtime.input_files import InputSpec, read_input
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.random_inputs import draw, plan_inputs, read_given_inputs
from explorer.engine.split import manifest
from explorer.engine.split.manifest import Manifest, ManifestTensor
from explorer.engine.split.run import pipeline
from explorer.engine.split.stage_models import join_stages
from explorer.facts.split.run import PipelineRun
from explorer.host import output_files
from explorer.session.parts.models import Cancel, OnProgress

_MAX_MICRO_BATCHES = 100_000
_DISTINCT_BATCHES = 16
"""Number of different random micro-batches. Further micro-batches repeat them."""


def run_pipeline(
    folder: str,
    *,
    input: PathText | None = None,
    batch: Count | None = None,
    micro_batches: Count | None = None,
    dims: Mapping[str, int] | None = None,
    threads: Count = 1,
    seed: Natural = 0,
    output: PathText | None = None,
    overwrite: bool = False,
    scheduler: str | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> PipelineRun:
    """Run the stages that `Session.split` wrote, one process per stage, and send micro-batches through them.

    Args:
        folder: Folder with the stages and stages.json.
        input: Path of a .npz or .npy file that is cut into micro-batches along the first axis. None draws
            random inputs.
        batch: Samples per micro-batch if the first dimension is open.
        micro_batches: Number of random micro-batches, sixteen of them different. None runs as many as fit in
            one second, but 16 to 512.
        dims: Sizes of open dimensions, by name.
        threads: Number of operator threads in each stage.
        seed: Seed of the first random micro-batch.
        output: Path of a .npz file for the outputs of all micro-batches, in order.
        overwrite: Whether to replace an existing output file.
        scheduler: Address of a Dask cluster, 'tcp://host:port', whose workers run the stages. The cluster
            must be trusted, and must see the stages at the same paths.
        on_progress: Callback that receives the number of completed micro-batches.
        cancel: Callback that is polled many times per second. If it returns True, all processes end.

    Raises:
        Misuse: There is no such folder, an input does not fit, or a number is out of range.
        BadModel: A stage cannot run, or its file is missing or changed; the message names it.
        EngineDied: The process or worker of a stage ended. The remaining processes are stopped.
        Cancelled: `cancel` returned True.
    """
    _check_counts(_DISTINCT_BATCHES if micro_batches is None else micro_batches, threads)
    if output is not None:
        _check_output(output, overwrite, input)
    stage_list = manifest.read(folder)
    batches, texts = _build_inputs(folder, stage_list, input, batch, micro_batches, dict(dims or {}), seed)
    fact, outputs = pipeline.run(
        folder,
        stage_list,
        batches,
        len(batches) if input is not None else micro_batches,
        keep=output is not None,
        threads=threads,
        texts=texts,
        scheduler=scheduler,
        on_progress=on_progress,
        cancel=cancel,
    )
    return (
        fact
        if output is None
        else replace(fact, output=_save_outputs(stage_list, outputs, output, overwrite))
    )


def _check_output(output: str, overwrite: bool, input: PathText | None) -> None:
    """Check before the run that the output file can be written."""
    if not output.endswith(".npz"):
        raise Misuse("the file name's ending selects the format", where=output, hint="use .npz")
    inputs = [input] if input is not None else []
    output_files.check_target(output, overwrite=overwrite, models=[], weights=(), inputs=inputs)


def _save_outputs(
    stage_list: Manifest, outputs: Sequence[Mapping[str, Array]], output: str, overwrite: bool
) -> str:
    arrays: dict[str, Any] = {
        tensor.name: _join_batches([values[tensor.name] for values in outputs])
        for tensor in stage_list.outputs
    }
    with output_files.write_atomically(output, overwrite=overwrite) as temporary:
        np.savez(temporary, **arrays)
    return output


def _check_counts(micro_batches: int, threads: int) -> None:
    if not 1 <= micro_batches <= _MAX_MICRO_BATCHES:
        raise Misuse(
            f"'{micro_batches}' is out of range", where="--micro-batches", hint=f"1 to {_MAX_MICRO_BATCHES:,}"
        )
    if threads < 1:
        raise Misuse(f"'{threads}' is too few", where="--threads", hint="1 at least")
    check_threads(threads)


def _build_inputs(
    folder: str,
    stage_list: Manifest,
    input: PathText | None,
    batch: Count | None,
    micro_batches: Count | None,
    dims: dict[str, int],
    seed: int,
) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """Return the inputs of each micro-batch, and one line of text about each input."""
    model = _join_stages(folder, stage_list)
    sizes = select_dims(model, dims)
    if unknown := [name for name in dims if name not in sizes]:
        raise Misuse(f"the stages have no dimension '{unknown[0]}'", where="--dim")
    if input is None:
        first_sizes = {value.shape[0] for value in model.graph.required_inputs if value.shape}
        open_names = [name for name in first_sizes if isinstance(name, str)]
        if batch is not None and not open_names and batch not in first_sizes:
            raise Misuse("no input has an open first dimension", where="--batch", hint="leave it out")
        sizes |= {} if batch is None else dict.fromkeys(open_names, batch)
        input_plan = plan_inputs(model, sizes)
        batches = [
            draw(input_plan, seed + offset)
            for offset in range(min(micro_batches or _DISTINCT_BATCHES, _DISTINCT_BATCHES))
        ]
        return batches, tuple([plan.text() for plan in input_plan])
    specs = [InputSpec(value.name, value.dtype, value.shape) for value in model.graph.required_inputs]
    parts = read_input(input).samples(specs, batch)
    plans = [read_given_inputs(model, part) for part in parts]
    return [draw(plan, seed) for plan in plans], tuple([plan.text() for plan in plans[0]])


def _join_stages(folder: str, stage_list: Manifest) -> Model:
    """Join the stages into one graph. For torch stages, the graph has only inputs and outputs."""

    def values(tensors: Sequence[ManifestTensor]) -> tuple[Value, ...]:
        return tuple([Value(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors])

    if stage_list.stages[0].file.endswith(".pt2"):
        ends = values(stage_list.inputs), values(stage_list.outputs)
        return Model(Graph("stages", (), *ends, {}), {}, ir_version=8)
    stages = [validate(reader.read(os.path.join(folder, stage.file))) for stage in stage_list.stages]
    graph = replace(stages[0].graph, inputs=values(stage_list.inputs), outputs=values(stage_list.outputs))
    return join_stages(replace(stages[0], graph=graph), stages)


def _join_batches(parts: Sequence[Array]) -> Array:
    """Concatenate one output of all micro-batches along the first axis; stack scalars."""
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)
