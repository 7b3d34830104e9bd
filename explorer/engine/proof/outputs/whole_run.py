"""Runs whole models and judges the outputs that the user sees.

If all parts are proved, one run of each model shows how far rounding errors grow. The outputs must have equal
shapes and no new NaN. Outputs that jump when a rounding error crosses a threshold, such as an index or a
quantized number, are then not judged.

Otherwise the outputs are judged, with more runs only if needed. First the original runs in float64: its
difference from the original is the noise floor. Then the original runs on inputs that are changed by one
rounding.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Cancelled, Misuse
from explorer.base.units import exact_text
from explorer.base.verdicts import NOT_NEEDED
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import find_random_outputs
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.outputs.independence import count_independent
from explorer.engine.proof.outputs.run import ModelOutputs, Noise
from explorer.engine.proof.outputs.scan_variant import build_scan_variant
from explorer.engine.proof.sites.proof import LARGE_SITE_BYTES, estimate_matrix_bytes
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import (
    ThreadShare,
    count_processors,
    limit_bytes,
    run_in_parallel,
    start_in_background,
    wait_for,
)
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.facts import OutputEvidence, Plan, TensorInfo
from explorer.facts.verification import Tolerance
from explorer.host import scratch

ReportProgress = Callable[[str, int, int], None]
TorchRun = Callable[[Sequence[Array]], Sequence[Array]]
Evidence = tuple[OutputEvidence, ...]
BackgroundRun = Future[ModelOutputs]

_MAX_WEIGHT_BYTES = 1 << 30
"""Bytes of weights up to which whole models run in parallel. Each session has its own copy of the weights."""

_MAX_UNROLLED = 2048
"""Number of products with a node of their own above which loading the whole model takes too long."""

_ORIGINAL, _TILED = "the original", "the tiled model"


class Pairing(Struct, frozen=True):
    """Two models and the inputs to run them on.

    Attributes:
        before: Original model.
        decomposed: Original model with the operators decomposed that the plan names.
        after: Model to compare with it.
        names: Name of the input of `after` by the name of the original's input.
        feeds: Input arrays for each draw, by the original's names.
        drawn: Random inputs that the first draw was made from.
        plan: Tile plan of `after`, or None.
        originals: Planned products in the original, by site key (see `make_site_key`).
        shapes: Types and shapes of the inputs and outputs of the products.
        outputs: Outputs of the original for the first draw, or None if it did not run yet.
        growth: Factor by which the other model may round more, because of longer sums.
    """

    before: Model
    decomposed: Model
    after: Model
    names: Mapping[str, str]
    feeds: Sequence[Mapping[str, Array]]
    drawn: Sequence[RandomInput]
    plan: Plan | None
    originals: Mapping[str, Original]
    shapes: Mapping[str, TensorInfo]
    outputs: Mapping[str, Array] | None
    growth: float


def run_in_background(
    after: Model, plan: Plan | None, feeds: Mapping[str, Array]
) -> contextlib.AbstractContextManager[BackgroundRun | None]:
    """Starts to load and run a tiled model in the background. Loading is slow and uses one processor.

    The context value is None if the run would take too much memory or time while the proof runs.
    """
    weights = sum(t.nbytes for t in after.graph.initializers.values())
    if plan is None or _count_unrolled(plan) > _MAX_UNROLLED or 2 * weights > limit_bytes(_MAX_WEIGHT_BYTES):
        return start_in_background(None)
    threads = max(1, count_processors() // 2)
    sparing = max(map(estimate_matrix_bytes, plan.sites), default=0) > LARGE_SITE_BYTES
    run = partial(outputs.run_all, after, [feeds], _TILED, lambda: None, threads=threads, sparing=sparing)
    return start_in_background(run)


class Runs:
    """Runs of both models, each made when it is first requested.

    Args:
        pairing: Models and inputs.
        report_progress: Callback for progress, with the phase, the completed count and the total count.
        cancel: Function that returns True to cancel, or None.
        background_run: Run of the other model that has already started, or None.
    """

    def __init__(
        self,
        pairing: Pairing,
        report_progress: ReportProgress,
        cancel: Cancel,
        background_run: BackgroundRun | None = None,
    ) -> None:
        self.pairing, self._background_run = pairing, background_run
        self.report_progress, self.cancel = report_progress, cancel
        self._other_result: tuple[ModelOutputs, str] | None = None
        self._steps: list[None] = []
        self._total = 2 * len(pairing.feeds)

    def step(self, share: ThreadShare | None = None) -> None:
        """Counts a run, and raises Cancelled if the user canceled."""
        if share is not None and share.stopped():
            raise Cancelled
        self._steps.append(None)

    def run_original(
        self, share: ThreadShare, *, measure_sensitivity: bool = False, feeds: int | None = None
    ) -> ModelOutputs:
        """Runs the original on all inputs or the first `feeds` of them."""
        first_feeds = self.pairing.feeds[:feeds]
        step = partial(self.step, share)
        return outputs.run_all(
            self.pairing.before,
            first_feeds,
            _ORIGINAL,
            step,
            measure_sensitivity=measure_sensitivity,
            threads=share.threads,
        )

    def run_other(self, share: ThreadShare) -> tuple[ModelOutputs, str]:
        """Returns the outputs of the other model for all inputs, and a note on how it ran.

        The model runs at the first call only.
        """
        if self._other_result is None and self._background_run is not None:
            self._other_result = wait_for(self._background_run, share.stopped), ""
            self.step()
        elif self._other_result is None:
            self._other_result = self._run_other_model(share)
        return self._other_result

    def repeat_original(self, share: ThreadShare) -> ModelOutputs:
        """Runs the original again on the first inputs, in a new session."""
        return self.run_original(share, feeds=1)

    def repeat_other(self, share: ThreadShare) -> ModelOutputs:
        """Runs the other model again on the first inputs, in a new session."""
        return self._run_other_model(share, feeds=1)[0]

    @property
    def other_label(self) -> str:
        """Name of the other model in messages."""
        return "the other model" if self.pairing.plan is None else _TILED

    def _run_other_model(self, share: ThreadShare, feeds: int | None = None) -> tuple[ModelOutputs, str]:
        pair = self.pairing
        renamed = [{pair.names[k]: v for k, v in inputs.items()} for inputs in pair.feeds[:feeds]]
        with _make_runnable(pair, share) as (model, note):
            step = partial(self.step, share)
            return outputs.run_all(model, renamed, self.other_label, step, threads=share.threads), note

    def run_float64(self, index: int, share: ThreadShare) -> tuple[list[dict[str, Array]], str]:
        """Runs the original in float64 on one input. Returns no results and the reason if that fails."""
        return outputs.run_in_float64(
            self.pairing.decomposed, [self.pairing.feeds[index]], share.stopped, partial(self.step, share)
        )

    def run_in_parallel(self, *jobs: Callable[[ThreadShare], Any]) -> list[Any]:
        """Does several runs, in parallel if memory allows, and returns their results."""
        self._total = max(self._total, len(self._steps) + len(jobs))
        weights = sum(t.nbytes for t in self.pairing.before.graph.initializers.values())
        phase = "running the whole model"
        results = run_in_parallel(
            jobs,
            [weights] * len(jobs),
            _MAX_WEIGHT_BYTES,
            tick=lambda done: self.report_progress(
                phase if self._steps else "", min(len(self._steps), self._total), self._total
            ),
            cancel=self.cancel,
        )
        self.report_progress(phase, self._total, self._total)
        return results


def compare_whole(runs: Runs, *, is_proved: bool) -> tuple[Evidence, tuple[str, ...]]:
    """Compares every output of the two models.

    Args:
        runs: Runs of the models.
        is_proved: Whether all parts that the outputs depend on are already proved.

    Returns:
        Evidence for every output, and remarks on how the models ran.

    Raises:
        BadModel: onnxruntime cannot load or run one of the models.
        Cancelled: The user canceled.
    """
    pairing = runs.pairing
    # onnxruntime takes minutes to load a graph of many small operators, without any progress report
    runs.report_progress("loading the models", 0, 2 * len(pairing.feeds))
    measure_sensitivity = not is_proved and outputs.is_quantized(pairing.before)
    if is_proved and pairing.outputs is not None and len(pairing.feeds) == 1:
        before = ModelOutputs(tuple(pairing.outputs), (tuple(pairing.outputs.values()),))
        ((after, note),) = runs.run_in_parallel(runs.run_other)
    else:
        before, (after, note) = runs.run_in_parallel(
            partial(runs.run_original, measure_sensitivity=measure_sensitivity), runs.run_other
        )
    noise = replace(_collect_known_noise(pairing), is_proved=is_proved)
    remarks = tuple(
        f"{label} loads in onnxruntime only with its optimization at '{run.level}'"
        for label, run in (("the original", before), ("the other model", after))
        if run.level
    )
    return _judge_outputs(before, after, noise, note, runs), remarks


def judge_by_stored_numbers(evidence: Evidence, pairing: Pairing) -> Evidence:
    """Passes failed outputs whose difference is explained by stored numbers that differ by a rounding each.

    The other model then rounds other numbers than the original, so the original's float64 error is not a
    limit. The limit is the effect of the roundings on a path through the model.
    """
    depth = outputs.estimate_depth(pairing.decomposed)
    return tuple(
        output if output.passed else outputs.relax_evidence(output, depth, pairing.growth)
        for output in evidence
    )


def compare_within(runs: Runs, tolerance: Tolerance) -> Evidence:
    """Compares the outputs of the two models by a tolerance, without a float64 run."""
    runs.report_progress("loading the models", 0, 2 * len(runs.pairing.feeds))
    before, (after, note) = runs.run_in_parallel(runs.run_original, runs.run_other)
    noise = Noise(NOT_NEEDED, 1, tolerance=tolerance, is_proved=True)
    return outputs.compare(before, after, [], noise, note)


def compare_torch(runs: Runs, torch_run: TorchRun, inputs: Sequence[str]) -> Evidence:
    """Compares the outputs of the other model with the outputs of the torch model.

    Args:
        runs: Runs of the models.
        torch_run: Function that runs the torch model, with inputs and outputs in the order of the graph.
        inputs: Names of the inputs in the order that `torch_run` takes.

    Raises:
        Misuse: The torch model returns another number of outputs than the graph.
    """
    pairing = runs.pairing
    ((after, note),) = runs.run_in_parallel(runs.run_other)
    names = tuple(v.name for v in pairing.before.graph.outputs)
    torch_results: list[tuple[Array, ...]] = []
    for draw in pairing.feeds:
        runs.report_progress("running the torch model", len(torch_results), len(pairing.feeds))
        torch_outputs = torch_run([draw[name] for name in inputs])
        if len(torch_outputs) != len(names):
            raise Misuse(
                f"the torch model returns {len(torch_outputs)} outputs, but its graph has {len(names)}"
            )
        torch_results.append(tuple(np.asarray(v) for v in torch_outputs))
    noise = replace(_collect_known_noise(pairing), both=True)
    return _judge_outputs(ModelOutputs(names, tuple(torch_results)), after, noise, note, runs)


def _collect_known_noise(pairing: Pairing) -> Noise:
    """Collects the facts about rounding errors that are known before the models run."""
    return Noise(
        NOT_NEEDED,
        outputs.estimate_depth(pairing.decomposed),
        pairing.growth,
        drawn=(find_random_outputs(pairing.before), find_random_outputs(pairing.after)),
        has_steps=outputs.has_steps(pairing.before),
    )


def _judge_outputs(
    before: ModelOutputs, after: ModelOutputs, noise: Noise, note: str, runs: Runs
) -> Evidence:
    """Judges the outputs, and fails those that change when a model runs again."""
    evidence = _judge_differences(before, after, noise, note, runs)
    return _fail_irreproducible(evidence, noise, runs)


def _judge_differences(
    before: ModelOutputs, after: ModelOutputs, noise: Noise, note: str, runs: Runs
) -> Evidence:
    """Judges the differences between the outputs with as few runs as possible.

    Further runs follow only if they could change the result.
    """
    evidence = outputs.compare(before, after, [], noise, note)
    if all(output.equal or output.drawn or (noise.is_proved and output.passed) for output in evidence):
        return evidence
    references: list[dict[str, Array]] = []
    for indices in () if noise.is_proved else (range(1), range(1, len(runs.pairing.feeds))):
        float64_runs = (
            runs.run_in_parallel(*(partial(runs.run_float64, index) for index in indices)) if indices else []
        )
        references += [values[0] for values, _ in float64_runs if values]
        text = float64_runs[0][1] if float64_runs else noise.reference
        noise = replace(noise, reference=text if not references else "float64")
        evidence = outputs.compare(before, after, references, noise, note)
        if all(
            output.equal or output.drawn or (output.passed and output.rms_after is not None)
            for output in evidence
        ):
            return evidence  # more runs would not change it
        if not references:
            break
    if not before.sensitivity:
        # measure how much the outputs change if the inputs change by one rounding
        (perturbed,) = runs.run_in_parallel(partial(runs.run_original, measure_sensitivity=True, feeds=1))
        before = replace(before, sensitivity=perturbed.sensitivity)
    evidence = outputs.compare(before, after, references, noise, note)
    if all(output.passed for output in evidence):
        return evidence
    # if many elements depend on few numbers, the original's error may be small by chance
    pairing = runs.pairing
    noise = replace(noise, independent=count_independent(pairing.before, pairing.drawn))
    return outputs.compare(before, after, references, noise, note)


def _fail_irreproducible(evidence: Evidence, noise: Noise, runs: Runs) -> Evidence:
    """Fails outputs that differ between two runs of one model on the same inputs, each in a new session.

    onnxruntime 1.32 reads beyond some tensors of 2-bit numbers, for example. Such outputs are evidence
    neither for nor against equality. Outputs that differ only by rounding need no further runs.
    """
    if all(
        output.equal
        or output.drawn
        or (noise.is_proved and output.passed)
        or outputs.is_within_rounding(output, noise)
        for output in evidence
    ):
        return evidence
    # the outputs of torch come from torch
    models = (runs.repeat_other,) if noise.both else (runs.repeat_other, runs.repeat_original)
    labels = (runs.other_label, _ORIGINAL)
    results = runs.run_in_parallel(*(model for model in models for _ in range(2)))
    for label, first, second in zip(labels, results[::2], results[1::2], strict=False):
        evidence = outputs.fail_irreproducible(evidence, first, second, label, noise)
    return evidence


@contextlib.contextmanager
def _make_runnable(pair: Pairing, share: ThreadShare) -> Iterator[tuple[Model, str]]:
    """Yields the other model or, if it has too many nodes for a session, its scan variant; and a note.

    The note is '' unless the model is the scan variant.
    """
    model: Model | None = None
    plan = pair.plan
    if plan is not None and _count_unrolled(plan) > _MAX_UNROLLED and pair.decomposed.opset >= 9:
        model = build_scan_variant(pair.decomposed, pair.after, plan, pair.originals, pair.shapes)
    if model is None or plan is None:
        yield pair.after, ""
        return
    with scratch.create_folder() as folder:
        path = os.path.join(folder, "scan.onnx")
        writer.write(model, path, cancel=share.stopped)
        product_count = exact_text(plan.products)
        note = f"in scan form (a runtime takes minutes to load {product_count} separate products): "
        yield reader.read(path), note


def _count_unrolled(plan: Plan) -> int:
    """Counts the products of a plan that are nodes of their own."""
    return sum(s.products for s in plan.sites if s.form in ("unrolled", "lab"))
