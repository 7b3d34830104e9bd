"""Rebatching: rewrites a model with a fixed batch for another batch, and compares the rows of both.

The original runs on slices of the inputs, each as large as its own batch. The result runs once on all inputs.
If a model mixes examples (for example by batch statistics), the rows differ, and the result is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.verdicts import find_weakest
from explorer.engine.convert.comparison import ROUNDING_OPERATORS, Feeds, compare_runs
from explorer.engine.convert.job import ConversionJob, ConversionResult, describe_tensors
from explorer.engine.convert.rebatching.batch_axis import Array, BatchAxis
from explorer.engine.convert.rebatching.rewrite import RebatchedModel, rewrite_batch
from explorer.engine.fold import calls
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from explorer.engine.shapes import infer
from explorer.engine.tiling.tile import bind_dims
from explorer.facts import Verification

_OPEN_BATCH_SIZES = 8, 1, 3
"""Batch sizes at which an open batch is tested."""


def make_rebatching(
    model: Model, batch: int | str, job: ConversionJob, axes: Mapping[str, int]
) -> Callable[[ConversionJob], ConversionResult]:
    """Returns a function that writes the rewritten model and compares it; see `engine.convert.rebatch`.

    Raises:
        Misuse: The batch or the number of draws is below 1, or the batch cannot be rewritten safely.
    """
    job.report_progress("rewriting the batch")
    if isinstance(batch, int) and batch < 1:
        raise Misuse(f"a batch cannot be {batch}", where="rebatch")
    if job.draws < 1:
        raise Misuse(f"{job.draws} draws prove nothing", where="--draws", hint="give 1 or more")
    if job.dims:
        model = bind_dims(model, infer(model, job.dims).values)
    # the batch is traced node by node, and functions are inlined for it
    inlined_model = calls.inline_calls(model, ())
    rewritten = rewrite_batch(inlined_model, batch, axes)

    def convert(job: ConversionJob) -> ConversionResult:
        writer.write(rewritten.model, job.path, on_progress=job.on_progress, cancel=job.cancel)
        evidence = None
        if job.verify:
            evidence = _prove(model, rewritten, validate(reader.read(job.path)), batch, job)
        return ConversionResult(
            how=f"rewriting its batch from {rewritten.old_batch} to {batch}",
            opset=model.opset,
            inputs=describe_tensors(rewritten.model.graph.required_inputs),
            outputs=describe_tensors(rewritten.model.graph.outputs),
            verification=evidence,
            notes=tuple(_list_notes(rewritten.changed, inlined_model is not model)),
        )

    return convert


def _list_notes(changed: Sequence[str], is_inlined: bool) -> Iterator[str]:
    """Yields a note about the rewritten nodes and values, and a note about inlined function calls."""
    if changed:
        hidden_count = f" and {len(changed) - _MAX_LISTED:,} more" if len(changed) > _MAX_LISTED else ""
        yield f"rewritten: {', '.join(changed[:_MAX_LISTED])}{hidden_count}"
    if is_inlined:
        yield "calls of functions were opened into their nodes"


_MAX_LISTED = 4
"""Most rewritten nodes that a note lists."""


def _prove(
    model: Model, rewritten: RebatchedModel, rewritten_file: Model, batch: int | str, job: ConversionJob
) -> Verification:
    """Compares the rows of the result with those of the original at every tested batch size."""
    sizes = (batch,) if isinstance(batch, int) else _OPEN_BATCH_SIZES
    proofs = []
    for size in sizes:
        dims = {} if isinstance(batch, int) else {batch: size}
        proofs.append(_prove_at_size(model, rewritten, rewritten_file, size, dims, job))
    if len(proofs) == 1:
        return proofs[0]
    outputs = [
        replace(output, name=f"{output.name} with {batch}={size}")
        for proof, size in zip(proofs, sizes, strict=True)
        for output in proof.outputs
    ]
    worst = find_weakest([proof.verdict_kind for proof in proofs])
    first = next(proof for proof in proofs if proof.verdict_kind == worst)
    return replace(first, outputs=tuple(outputs), seconds=sum(proof.seconds for proof in proofs))


def _prove_at_size(
    model: Model,
    rewritten: RebatchedModel,
    rewritten_file: Model,
    size: int,
    dims: Mapping[str, int],
    job: ConversionJob,
) -> Verification:
    """Compares the rows at one batch size; the verdict is unproven if runs of the original differ."""
    new_session = RuntimeSession(rewritten_file, label="the written file")
    original_session = RuntimeSession(model, label="the original")
    names = [value.name for value in model.graph.outputs]

    def run_rewritten(feeds: Feeds) -> list[Array]:
        results = new_session.run(feeds)
        return [results[name] for name in names]

    def run_original(feeds: Feeds) -> list[Array]:
        parts = [original_session.run(part) for part in _slice_inputs(feeds, filler_inputs, rewritten, size)]
        return [
            _stack_outputs(
                [part[name] for part in parts], rewritten.batched.get(name), rewritten.old_batch, size
            )
            for name in names
        ]

    layers = sum(n.op in ROUNDING_OPERATORS for n in model.graph.nodes) if run.is_quantized(model) else None
    input_plans = plan_inputs(rewritten_file, dims)
    filler_inputs = draw(input_plans, job.seed + job.draws)
    evidence = compare_runs(job, rewritten_file, run_original, run_rewritten, input_plans, layers)
    repeated_inputs = draw(input_plans, job.seed)
    if all(
        run.is_identical(a, b)
        for a, b in zip(run_original(repeated_inputs), run_original(repeated_inputs), strict=True)
    ):
        return evidence
    # rows cannot be compared if a model draws random numbers or keeps state between runs
    kind = find_weakest(["unproven", evidence.verdict_kind])
    if kind == evidence.verdict_kind:
        return evidence
    verdict = "not proved: the rows of the original differ between runs on the same inputs"
    return replace(evidence, passed=False, verdict_kind=kind, verdict=verdict)


def _slice_inputs(
    feeds: Feeds, filler_inputs: Feeds, rewritten: RebatchedModel, size: int
) -> Sequence[Feeds]:
    """Cuts the inputs into slices of the original's batch size, and fills the last with `filler_inputs`.

    If the filler rows do not suffice, the rows of the inputs follow again, then the filler rows, and so on.
    Repeating rows of the slice itself would hide a mean over the batch, which repeated rows do not change.
    """
    row_indices = [
        np.arange(start, start + rewritten.old_batch) % (2 * size)
        for start in range(0, size, rewritten.old_batch)
    ]
    axes = {name: rewritten.batched[name].axis for name in feeds if name in rewritten.batched}
    padded_inputs = {
        name: np.concatenate((feeds[name], filler_inputs[name]), axis) for name, axis in axes.items()
    }
    return [
        {
            name: np.ascontiguousarray(padded_inputs[name].take(rows, axes[name])) if name in axes else value
            for name, value in feeds.items()
        }
        for rows in row_indices
    ]


def _stack_outputs(parts: Sequence[Any], batch: BatchAxis | None, old_batch: int, size: int) -> Any:
    """Joins the original's outputs for all slices into one output with `size` examples.

    Args:
        parts: Output for each slice.
        batch: Batch axis of the output, or None for an output without a batch: the first part is returned.
        old_batch: Batch size of each part.
        size: Batch size of the result. Further rows are filler.

    Raises:
        BadModel: A part does not have the batch axis.
    """
    if batch is None:
        return parts[0]
    axis, outer, inner = batch
    if any(part.ndim <= axis or part.shape[axis] != outer * old_batch * inner for part in parts):
        raise BadModel("an output of the original does not have the inferred shape", where="rebatch")
    leading, trailing = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    split_parts = [part.reshape(*leading, outer, old_batch, inner, *trailing) for part in parts]
    rows = np.concatenate(split_parts, axis=axis + 1).take(np.arange(size), axis + 1)
    return rows.reshape(*leading, outer * size * inner, *trailing)
