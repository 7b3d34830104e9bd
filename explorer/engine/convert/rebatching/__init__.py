"""Rebatching: writes a model with a fixed batch for another batch, and compares the rows of both.

The original runs on slices of the inputs of its own batch size; the result runs once on all inputs. A model
that mixes examples (by batch statistics, for example) then gives different rows, and is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.verdicts import weakest
from explorer.engine.convert.comparison import ROUNDING, Feeds, compare_runs
from explorer.engine.convert.job import ConversionJob, ConversionResult, tensor_infos
from explorer.engine.convert.rebatching.batch_axis import Array, BatchAxis
from explorer.engine.convert.rebatching.rewrite import RebatchedModel, rebatched
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

_OPEN = 8, 1, 3
"""Batch sizes at which an open batch is tested."""


def rebatching(
    model: Model, batch: int | str, job: ConversionJob, axes: Mapping[str, int]
) -> Callable[[ConversionJob], ConversionResult]:
    """A function that writes the model for another batch and compares it; see `engine.convert.rebatch`."""
    job.tell("rewriting the batch")
    if isinstance(batch, int) and batch < 1:
        raise Misuse(f"a batch cannot be {batch}", where="rebatch")
    if job.draws < 1:
        raise Misuse(f"{job.draws} draws prove nothing", where="--draws", hint="give 1 or more")
    if job.dims:
        model = bind_dims(model, infer(model, job.dims).values)
    # the batch is traced node by node, into functions as well
    plain = calls.inline_calls(model, ())
    rewritten = rebatched(plain, batch, axes)

    def convert(job: ConversionJob) -> ConversionResult:
        writer.write(rewritten.model, job.path, on_progress=job.on_progress, cancel=job.cancel)
        evidence = None
        if job.verify:
            evidence = _prove(model, rewritten, validate(reader.read(job.path)), batch, job)
        return ConversionResult(
            how=f"rewriting its batch from {rewritten.old} to {batch}",
            opset=model.opset,
            inputs=tensor_infos(rewritten.model.graph.feeds),
            outputs=tensor_infos(rewritten.model.graph.outputs),
            verification=evidence,
            notes=tuple(_notes(rewritten.changed, plain is not model)),
        )

    return convert


def _notes(changed: Sequence[str], opened: bool) -> Iterator[str]:
    """Notes: what else was rewritten, and whether function calls were inlined."""
    if changed:
        more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
        yield f"rewritten: {', '.join(changed[:_NAMED])}{more}"
    if opened:
        yield "calls of functions were opened into their nodes"


_NAMED = 4
"""Rewritten nodes that a note lists."""


def _prove(
    model: Model, rewritten: RebatchedModel, written: Model, batch: int | str, job: ConversionJob
) -> Verification:
    """Compares the rows of the result with those of the original, at every tested size."""
    sizes = (batch,) if isinstance(batch, int) else _OPEN
    proofs = []
    for size in sizes:
        dims = {} if isinstance(batch, int) else {batch: size}
        proofs.append(_prove_at_size(model, rewritten, written, size, dims, job))
    if len(proofs) == 1:
        return proofs[0]
    outputs = [
        replace(output, name=f"{output.name} with {batch}={size}")
        for proof, size in zip(proofs, sizes, strict=True)
        for output in proof.outputs
    ]
    worst = weakest([proof.verdict_kind for proof in proofs])
    first = next(proof for proof in proofs if proof.verdict_kind == worst)
    return replace(first, outputs=tuple(outputs), seconds=sum(proof.seconds for proof in proofs))


def _prove_at_size(
    model: Model,
    rewritten: RebatchedModel,
    written: Model,
    size: int,
    dims: Mapping[str, int],
    job: ConversionJob,
) -> Verification:
    whole = RuntimeSession(written, what="the file that was written")
    single = RuntimeSession(model, what="the original")
    names = [value.name for value in model.graph.outputs]

    def after(feeds: Feeds) -> list[Array]:
        results = whole.run(feeds)
        return [results[name] for name in names]

    def before(feeds: Feeds) -> list[Array]:
        parts = [single.run(part) for part in _slices(feeds, others, rewritten, size)]
        return [
            _stack([part[name] for part in parts], rewritten.batched.get(name), rewritten.old, size)
            for name in names
        ]

    layers = sum(n.op in ROUNDING for n in model.graph.nodes) if run.quantises(model) else None
    drawn = plan_inputs(written, dims)
    others = draw(drawn, job.seed + job.draws)
    evidence = compare_runs(job, written, before, after, drawn, layers)
    again = draw(drawn, job.seed)
    if all(run.identical(a, b) for a, b in zip(before(again), before(again), strict=True)):
        return evidence
    # a model that draws random numbers, or keeps state between runs, has no comparable rows
    kind = weakest(["unproven", evidence.verdict_kind])
    if kind == evidence.verdict_kind:
        return evidence
    verdict = "not proved: the original gives other rows each time it is run on the same inputs"
    return replace(evidence, passed=False, verdict_kind=kind, verdict=verdict)


def _slices(feeds: Feeds, others: Feeds, rewritten: RebatchedModel, size: int) -> Sequence[Feeds]:
    """The inputs in slices of the original's batch; the last slice is filled up with rows of `others`.

    Repeating its own rows would hide a mean over the batch, which does not change if rows are repeated.
    """
    places = [np.arange(at, at + rewritten.old) % (2 * size) for at in range(0, size, rewritten.old)]
    lanes = {name: rewritten.batched[name].axis for name in feeds if name in rewritten.batched}
    more = {name: np.concatenate((feeds[name], others[name]), axis) for name, axis in lanes.items()}
    return [
        {
            name: np.ascontiguousarray(more[name].take(rows, lanes[name])) if name in lanes else value
            for name, value in feeds.items()
        }
        for rows in places
    ]


def _stack(parts: Sequence[Any], lane: BatchAxis | None, old: int, size: int) -> Any:
    """The original's outputs joined to one with the whole batch."""
    if lane is None:
        return parts[0]
    if any(
        part.ndim <= lane.axis or part.shape[lane.axis] != lane.outer * old * lane.inner for part in parts
    ):
        raise BadModel("an output of the original has not the shape that was inferred", where="rebatch")
    front, behind = parts[0].shape[: lane.axis], parts[0].shape[lane.axis + 1 :]
    apart = [part.reshape(*front, lane.outer, old, lane.inner, *behind) for part in parts]
    rows = np.concatenate(apart, axis=lane.axis + 1).take(np.arange(size), lane.axis + 1)
    return rows.reshape(*front, lane.outer * size * lane.inner, *behind)
