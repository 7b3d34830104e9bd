"""End-to-end runs of whole models: what the user will see, and how rounding grows on the way there.

Where everything in between is proved, one run of each says how far roundings carry, and must not bring a
new NaN or another shape: how an output looks that a model makes of its roundings (an index, a quantiser's
step) is not for a proof to judge. Elsewhere the outputs are judged, by as many more runs as it takes to be
sure: the original in float64 first, whose distance from the original is the noise floor, then the original
on inputs that are moved by one rounding.
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
from explorer.engine.graph.random_operators import random_outputs
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.outputs.independence import independent
from explorer.engine.proof.outputs.run import ModelOutputs, Noise
from explorer.engine.proof.outputs.scan_variant import scan_stand_in
from explorer.engine.proof.sites.proof import LARGE, matrices
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import (
    ThreadShare,
    in_background,
    processors,
    side_by_side,
    wait_for,
    within_limit,
)
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.facts import OutputEvidence, Plan, TensorInfo
from explorer.facts.verification import Tolerance
from explorer.host import scratch

Tell = Callable[[str, int, int], None]
TorchRun = Callable[[Sequence[Array]], Sequence[Array]]
Evidence = tuple[OutputEvidence, ...]
Ahead = Future[ModelOutputs]

_WEIGHTS = 1 << 30
"""Bytes of weights of the whole models that are run side by side: each session holds its own."""

_MANY_NODES = 2048
"""Unrolled products above which a session of the whole model takes longer than the proof should."""

_TILED = "the tiled model"


class Pairing(Struct, frozen=True):
    """Two models and the inputs to run them on.

    Attributes:
        before: The original.
        halfway: The original with what the plan takes apart taken apart.
        after: The other model.
        names: Input of the original to input of the other.
        feeds: Inputs by the original's names, for each draw.
        drawn: How those of the first one were drawn.
        plan: What was tiled.
        found: The planned products as the original has them.
        shapes: Of what goes into and comes out of them.
        outputs: Of the original on the first of the feeds, where it was run already.
        growth: How much more the other model may round, by its longer sums.
    """

    before: Model
    halfway: Model
    after: Model
    names: Mapping[str, str]
    feeds: Sequence[Mapping[str, Array]]
    drawn: Sequence[RandomInput]
    plan: Plan | None
    found: Mapping[str, Original]
    shapes: Mapping[str, TensorInfo]
    outputs: Mapping[str, Array] | None
    growth: float


def run_ahead(
    after: Model, plan: Plan | None, feeds: Mapping[str, Array]
) -> contextlib.AbstractContextManager[Ahead | None]:
    """A run of a tiled model, loaded while something else is done: that takes one processor, for long.

    None where it would take too much memory, or time, beside what goes on meanwhile.
    """
    weights = sum(t.nbytes for t in after.graph.initializers.values())
    if plan is None or _unrolled(plan) > _MANY_NODES or 2 * weights > within_limit(_WEIGHTS):
        return in_background(None)
    threads = max(1, processors() // 2)
    sparing = max(map(matrices, plan.sites), default=0) > LARGE
    run = partial(outputs.run_all, after, [feeds], _TILED, lambda: None, threads=threads, sparing=sparing)
    return in_background(run)


class Runs:
    """Runs of both models, made when they are asked for.

    Args:
        pairing: The models.
        tell: Told how far it is.
        cancel: Asked now and then.
        ahead: The run of the other model, where it was begun already.
    """

    def __init__(self, pairing: Pairing, tell: Tell, cancel: Cancel, ahead: Ahead | None = None) -> None:
        self.pairing, self.tell, self.cancel, self._ahead = pairing, tell, cancel, ahead
        self._other: tuple[ModelOutputs, str] | None = None
        self._steps: list[None] = []
        self._total = 2 * len(pairing.feeds)

    def step(self, share: ThreadShare | None = None) -> None:
        """Counts a run; stops here if the user wants to stop."""
        if share is not None and share.stopped():
            raise Cancelled
        self._steps.append(None)

    def original(self, share: ThreadShare, *, shake: bool = False, feeds: int | None = None) -> ModelOutputs:
        """The original on every input, or the first few; `shake` as in `outputs.run_all`."""
        first_feeds = self.pairing.feeds[:feeds]
        step = partial(self.step, share)
        return outputs.run_all(
            self.pairing.before, first_feeds, "the original", step, shake=shake, threads=share.threads
        )

    def other(self, share: ThreadShare) -> tuple[ModelOutputs, str]:
        """The other model on every input, run once, and what is to be said of how it was run."""
        if self._other is None and self._ahead is not None:
            self._other = wait_for(self._ahead, share.stopped), ""
            self.step()
        elif self._other is None:
            self._other = self._made(share)
        return self._other

    def _made(self, share: ThreadShare) -> tuple[ModelOutputs, str]:
        pair = self.pairing
        label = "the other model" if pair.plan is None else _TILED
        renamed = [{pair.names[k]: v for k, v in feeds.items()} for feeds in pair.feeds]
        with _runnable(pair, share) as (model, note):
            step = partial(self.step, share)
            return outputs.run_all(model, renamed, label, step, threads=share.threads), note

    def float64(self, at: int, share: ThreadShare) -> tuple[list[dict[str, Array]], str]:
        """The original in float64 on one input; nothing and why, where it cannot be run so."""
        return outputs.reference(
            self.pairing.halfway, [self.pairing.feeds[at]], share.stopped, partial(self.step, share)
        )

    def together(self, *works: Callable[[ThreadShare], Any]) -> list[Any]:
        """Results of several runs, made side by side where memory allows."""
        self._total = max(self._total, len(self._steps) + len(works))
        weights = sum(t.nbytes for t in self.pairing.before.graph.initializers.values())
        phase = "running the whole model"
        results = side_by_side(
            works,
            [weights] * len(works),
            _WEIGHTS,
            tick=lambda done: self.tell(
                phase if self._steps else "", min(len(self._steps), self._total), self._total
            ),
            cancel=self.cancel,
        )
        self.tell(phase, self._total, self._total)
        return results


def compare_whole(runs: Runs, *, proved: bool) -> tuple[Evidence, tuple[str, ...]]:
    """Evidence of every output of the two models, and what is to be said of how they were run.

    Args:
        runs: Of the models.
        proved: Whether all that lies behind the outputs is proved already.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
        Cancelled: The user wants to stop.
    """
    pairing = runs.pairing
    # a graph of many small operators takes onnxruntime minutes to load, and it says nothing meanwhile
    runs.tell("loading the models", 0, 2 * len(pairing.feeds))
    shake = not proved and outputs.quantises(pairing.before)
    if proved and pairing.outputs is not None and len(pairing.feeds) == 1:
        before = ModelOutputs(tuple(pairing.outputs), (tuple(pairing.outputs.values()),))
        ((after, note),) = runs.together(runs.other)
    else:
        before, (after, note) = runs.together(partial(runs.original, shake=shake), runs.other)
    noise = replace(_noise(pairing), proved=proved)
    remarks = tuple(
        f"{label} loads in onnxruntime only with its optimisation at '{run.level}'"
        for label, run in (("the original", before), ("the other model", after))
        if run.level
    )
    return _judged(before, after, noise, note, runs), remarks


def by_stored_numbers(whole: Evidence, pairing: Pairing) -> Evidence:
    """Evidence of outputs where stored numbers differ by a rounding each: those of a model, no more.

    The original is not what the other model rounds then: its error against float64 is no measure.
    """
    depth = outputs.depth_of(pairing.halfway)
    return tuple(
        output if output.passed else outputs.relaxed_evidence(output, depth, pairing.growth)
        for output in whole
    )


def compare_within(runs: Runs, tolerance: Tolerance) -> Evidence:
    """Evidence that the outputs of the two models differ by no more than was asked; as `compare_whole`."""
    runs.tell("loading the models", 0, 2 * len(runs.pairing.feeds))
    before, (after, note) = runs.together(runs.original, runs.other)
    noise = Noise(NOT_NEEDED, 1, tolerance=tolerance, proved=True)
    return outputs.compare(before, after, [], noise, note)


def compare_torch(runs: Runs, torch_run: TorchRun, inputs: Sequence[str]) -> Evidence:
    """Evidence that the other model gives what the torch model gives from which the original was exported.

    Args:
        runs: Of the models.
        torch_run: Inputs to outputs, both in the order of the graph.
        inputs: Names of its inputs in their order.
    """
    pairing = runs.pairing
    ((after, note),) = runs.together(runs.other)
    names = tuple(v.name for v in pairing.before.graph.outputs)
    theirs: list[tuple[Array, ...]] = []
    for draw in pairing.feeds:
        runs.tell("running the torch model", len(theirs), len(pairing.feeds))
        torch_outputs = torch_run([draw[name] for name in inputs])
        if len(torch_outputs) != len(names):
            raise Misuse(f"the torch model gives {len(torch_outputs)} outputs, its graph {len(names)}")
        theirs.append(tuple(np.asarray(v) for v in torch_outputs))
    noise = replace(_noise(pairing), both=True)
    return _judged(ModelOutputs(names, tuple(theirs)), after, noise, note, runs)


def _noise(pairing: Pairing) -> Noise:
    """What is known of two models before they are run."""
    return Noise(
        NOT_NEEDED,
        outputs.depth_of(pairing.halfway),
        pairing.growth,
        drawn=(random_outputs(pairing.before), random_outputs(pairing.after)),
        steps=outputs.has_steps(pairing.before),
    )


def _judged(before: ModelOutputs, after: ModelOutputs, noise: Noise, note: str, runs: Runs) -> Evidence:
    """Cheapest evidence first: more is gathered only while it could change the answer."""
    evidence = outputs.compare(before, after, [], noise, note)
    if all(output.equal or output.drawn or (noise.proved and output.passed) for output in evidence):
        return evidence
    references: list[dict[str, Array]] = []
    for some in () if noise.proved else (range(1), range(1, len(runs.pairing.feeds))):
        more = runs.together(*(partial(runs.float64, at) for at in some)) if some else []
        references += [values[0] for values, _ in more if values]
        text = more[0][1] if more else noise.reference
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
        # what a rounding of its inputs makes of its outputs
        (moved,) = runs.together(partial(runs.original, shake=True, feeds=1))
        before = replace(before, sensitivity=moved.sensitivity)
    evidence = outputs.compare(before, after, references, noise, note)
    if all(output.passed for output in evidence):
        return evidence
    # few numbers may stand behind many elements: by chance the original's have hardly an error
    pairing = runs.pairing
    noise = replace(noise, independent=independent(pairing.before, pairing.drawn))
    return outputs.compare(before, after, references, noise, note)


@contextlib.contextmanager
def _runnable(pair: Pairing, share: ThreadShare) -> Iterator[tuple[Model, str]]:
    """The other model, or, where it has too many nodes for a session, its stand-in (`stand_in`)."""
    model: Model | None = None
    plan = pair.plan
    if plan is not None and _unrolled(plan) > _MANY_NODES and pair.halfway.opset >= 9:
        model = scan_stand_in(pair.halfway, pair.after, plan, pair.found, pair.shapes)
    if model is None or plan is None:
        yield pair.after, ""
        return
    with scratch.folder() as folder:
        path = os.path.join(folder, "scan.onnx")
        writer.write(model, path, cancel=share.stopped)
        many = exact_text(plan.products)
        note = f"in scan form ({many} products side by side take a runtime minutes to load): "
        yield reader.read(path), note


def _unrolled(plan: Plan) -> int:
    """How many products of a plan are nodes by themselves."""
    return sum(s.products for s in plan.sites if s.form in ("unrolled", "lab"))
