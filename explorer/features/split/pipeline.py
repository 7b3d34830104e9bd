"""Running a folder of stages as a pipeline of processes."""

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
from explorer.engine.models.opened_model import dims_of
from explorer.engine.profile.load import check_threads
from explorer.engine.runtime.input_files import InputSpec, read_input
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.random_inputs import draw, given_inputs, plan_inputs
from explorer.engine.split import manifest
from explorer.engine.split.manifest import Manifest, ManifestTensor
from explorer.engine.split.run import pipeline
from explorer.engine.split.stage_models import joined
from explorer.facts.split.run import PipelineRun
from explorer.host import output_files
from explorer.session.parts.models import Cancel, OnProgress

_MOST = 100_000
_DRAWN = 16
"""Different random micro-batches; further ones repeat them."""


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
    """Runs the stages that `Session.split` wrote, a process each, with micro-batches through them.

    Args:
        folder: With stages.json.
        input: A .npz or .npy file, cut along the first axis into micro-batches; None: random inputs.
        batch: Samples of a micro-batch, where the first size is open.
        micro_batches: How many random ones, sixteen of them different; None: as many as a second takes, from
            16 to 512.
        dims: Sizes of open dimensions.
        threads: Of each stage's operators.
        seed: Of the first micro-batch.
        output: A .npz file for what comes out, micro-batches one behind the other.
        overwrite: Whether it may be replaced.
        scheduler: Of a Dask cluster, 'tcp://host:port', whose workers run the stages instead: all of it is
            trusted, and the stages lie at the same paths there.
        on_progress: Told how many came out.
        cancel: Asked many times a second; True stops, and no process is left.

    Raises:
        Misuse: There is no such folder, an input does not fit, or a number is out of range.
        BadModel: A stage's file is missing or changed, or a stage cannot run; which is said.
        EngineDied: A stage's process or worker ended; the others are stopped.
        Cancelled: `cancel` said so.
    """
    _check(_DRAWN if micro_batches is None else micro_batches, threads)
    if output is not None:
        _check_output(output, overwrite, input)
    stage_list = manifest.read(folder)
    feeds, texts = _feeds(folder, stage_list, input, batch, micro_batches, dict(dims or {}), seed)
    fact, outputs = pipeline.run(
        folder,
        stage_list,
        feeds,
        len(feeds) if input is not None else micro_batches,
        keep=output is not None,
        threads=threads,
        texts=texts,
        scheduler=scheduler,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact if output is None else replace(fact, output=_saved(stage_list, outputs, output, overwrite))


def _check_output(output: str, overwrite: bool, input: PathText | None) -> None:
    """Refuses the output file before any work is done."""
    if not output.endswith(".npz"):
        raise Misuse("the ending says the format", where=output, hint="use .npz")
    read = [input] if input is not None else []
    output_files.check_target(output, overwrite=overwrite, models=[], weights=(), inputs=read)


def _saved(stage_list: Manifest, outputs: Sequence[Mapping[str, Array]], output: str, overwrite: bool) -> str:
    arrays: dict[str, Any] = {
        tensor.name: _stacked([values[tensor.name] for values in outputs]) for tensor in stage_list.outputs
    }
    with output_files.atomic_write(output, overwrite=overwrite) as temporary:
        np.savez(temporary, **arrays)
    return output


def _check(micro_batches: int, threads: int) -> None:
    if not 1 <= micro_batches <= _MOST:
        raise Misuse(f"'{micro_batches}' is out of range", where="--micro-batches", hint=f"1 to {_MOST:,}")
    if threads < 1:
        raise Misuse(f"'{threads}' is too few", where="--threads", hint="1 at least")
    check_threads(threads)


def _feeds(
    folder: str,
    stage_list: Manifest,
    input: PathText | None,
    batch: Count | None,
    micro_batches: Count | None,
    dims: dict[str, int],
    seed: int,
) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """Inputs of each micro-batch, and a line of text about each."""
    whole = _whole(folder, stage_list)
    sizes = dims_of(whole, dims)
    if unknown := [name for name in dims if name not in sizes]:
        raise Misuse(f"the stages have no dimension '{unknown[0]}'", where="--dim")
    if input is None:
        first = {value.shape[0] for value in whole.graph.feeds if value.shape}
        named = [name for name in first if isinstance(name, str)]
        if batch is not None and not named and batch not in first:
            raise Misuse("the first size of no input is open", where="--batch", hint="leave it out")
        sizes |= {} if batch is None else dict.fromkeys(named, batch)
        drawn = plan_inputs(whole, sizes)
        feeds = [draw(drawn, seed + at) for at in range(min(micro_batches or _DRAWN, _DRAWN))]
        return feeds, tuple([plan.text() for plan in drawn])
    specs = [InputSpec(value.name, value.dtype, value.shape) for value in whole.graph.feeds]
    parts = read_input(input).samples(specs, batch)
    each = [given_inputs(whole, part) for part in parts]
    return [draw(plan, seed) for plan in each], tuple([plan.text() for plan in each[0]])


def _whole(folder: str, stage_list: Manifest) -> Model:
    """The stages joined to one graph; of torch's stages only the inputs and outputs."""

    def values(tensors: Sequence[ManifestTensor]) -> tuple[Value, ...]:
        return tuple([Value(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors])

    if stage_list.stages[0].file.endswith(".pt2"):
        ends = values(stage_list.inputs), values(stage_list.outputs)
        return Model(Graph("stages", (), *ends, {}), {}, ir_version=8)
    stages = [validate(reader.read(os.path.join(folder, stage.file))) for stage in stage_list.stages]
    graph = replace(stages[0].graph, inputs=values(stage_list.inputs), outputs=values(stage_list.outputs))
    return joined(replace(stages[0], graph=graph), stages)


def _stacked(parts: Sequence[Array]) -> Array:
    """A result of all micro-batches, concatenated; stacked where it has no axis."""
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)
