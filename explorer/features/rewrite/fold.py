"""Folding of a session's models: each kind of rewrite makes a state, with a proof."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.fold.fold import fold as apply_fold
from explorer.engine.progress import stop_if
from explorer.facts.change import ProofRequest
from explorer.facts.split.fold import FOLDS, Fold, FoldKind, FoldSpec, FoldStep, NodeLeft
from explorer.features.rewrite.records import FoldRecord
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.parts.proofs import Prover

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.facts import HistoryEntry, Verification
    from explorer.session.parts.models import Models


Folded = tuple["Model", FoldStep]
"""A model, and the record of the fold that made it."""


def _steps(options: FoldSpec, work: Work) -> Steps:
    """Make a state for every kind with something to fold; write the last one.

    Where there is nothing to fold, the output is a copy of the model, and a note says so.
    """
    started = time.perf_counter()
    models = work.models
    command = _command(models, options.kinds, work.output)
    if work.proof.input is not None:  # without anything to fold, no proof would read the file
        work.parts.of(Prover).check_input(work.proof.input, work.on_progress)
    folded, remaining = _folded(models, options.kinds, work.on_progress, work.cancel)
    if not folded and work.output is not None:
        yield ChangeStep(models.graph(models.current, work.on_progress), None)
        note = "there is nothing to fold: the file is a copy of the model"
        return Fold((), remaining, work.output, command, (note,), time.perf_counter() - started)
    if not folded:
        why = f"{remaining[0].op} '{remaining[0].name}': {remaining[0].reason}" if remaining else ""
        raise Misuse("there is nothing to fold", where=models.label(models.current), hint=why)
    steps: list[FoldStep] = []
    done = ""
    for model, step in folded:
        last = step is folded[-1][1]
        before = models.graph(models.current, work.on_progress)
        command_of_step = _command(models, (step.kind,), work.output if last else None)
        text = StateText(step.what, FoldRecord(step.kind), command_of_step)
        judge = partial(_proved, work, before) if work.proof.verify else None
        written = yield ChangeStep(model, text, judge, last=last)
        steps.append(replace(step, verification=written.proof, output=written.output))
        if not written.kept:
            break
        done = written.output if last else ""
    notes = models.random_weights()
    return Fold(tuple(steps), remaining, done, command, notes, time.perf_counter() - started)


def _proved(work: Work, before: Model, after: Model, path: str) -> Verification:
    return work.parts.of(Prover).verify(
        before,
        after,
        plan=None,
        input=work.proof.input,
        draws=work.proof.draws,
        seed=work.proof.seed,
        on_progress=work.on_progress,
        cancel=work.cancel,
    )


def _folded(
    models: Models, kinds: Sequence[FoldKind], on_progress: OnProgress, cancel: Cancel
) -> tuple[list[Folded], tuple[NodeLeft, ...]]:
    """The model after each kind with something to fold, and the nodes that the other kinds leave."""
    if models.is_module(models.current):
        raise Misuse(
            "a quantized nn.Module is not folded",
            where=models.label(models.current),
            hint="fold the original, and quantize that",
        )
    model = models.graph(models.current, on_progress)
    folded: list[Folded] = []
    remaining: list[NodeLeft] = []
    for kind in (kind for kind in FOLDS if kind in kinds):
        stop_if(cancel)
        model, step = apply_fold(model, kind)
        if step.folded:
            folded.append((model, step))
        else:
            remaining += step.left
    return folded, tuple(remaining)


def _command(models: Models, kinds: Sequence[FoldKind], output: str | None) -> str:
    """The command line that folds the same; '' where there is none."""
    if models.current:
        return ""
    only = [] if {*kinds} >= {*FOLDS} else ["--only", ",".join(kinds)]
    return scripts.headless(models, "fold", output, "_folded.onnx", *only)


def _words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    return ["--only", entry.record.fold, *scripts.proof_words(entry.verification)], ""


CHANGE = Change("fold", FoldSpec, _steps, _words)


def fold_choice(
    session: Facade,
    kinds: Sequence[FoldKind] = FOLDS,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Fold:
    """What `fold` would do to the current model, without doing it; and what would stay, and why.

    Raises:
        BadModel: The model cannot be made a graph.
        Cancelled: `cancel` said so.
    """
    models = session.parts.models
    folded, remaining = _folded(models, kinds, on_progress, cancel)
    return Fold(tuple([step for _, step in folded]), remaining, command=_command(models, kinds, None))


def fold(
    session: Facade,
    kinds: FoldSpec | Sequence[FoldKind] = FOLDS,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Fold:
    """Folds the current model; every kind of rewrite that finds something makes a state of its own.

    Weights are computed in float64 and rounded once to their type.

    Args:
        kinds: 'identity' (Identity, and Dropout in inference), 'constants', 'batchnorm'; done in this
            order, whatever the order here; or the record that says so.
        output: Where to write the last state; None keeps it in the session's folder until `save`.
        overwrite: Whether an existing `output` may be replaced.
        verify: Prove every state against the one before. One that fails is not kept, nor what would
            follow: then `Fold.output` is empty.
        draws: Random inputs for each proof.
        seed: Of the first draw.
        input: An .npy or .npz file with the inputs for the proofs, in place of random ones.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: There is nothing to fold, and no `output` to copy the model to; or `output` cannot be written
            or exists.
        BadModel: onnxruntime cannot run the model for the proof.
        Cancelled: `cancel` said so.
    """
    options = kinds if isinstance(kinds, FoldSpec) else FoldSpec(tuple(kinds))
    fact: Fold = session.do(
        "fold",
        options,
        proof=ProofRequest(verify, draws, seed, input),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
