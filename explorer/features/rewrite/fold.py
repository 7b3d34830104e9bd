"""Folding of a session's models: each kind of rewrite becomes a state, proved before it gets its name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.fold.fold import fold
from explorer.engine.progress import stop_if
from explorer.facts.split.fold import FOLDS, Fold, FoldKind, FoldSpec, FoldStep, NodeLeft
from explorer.features.rewrite.records import FoldRecord
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work, Written
from explorer.session.parts.proofs import Prover

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.facts import HistoryEntry, Verification
    from explorer.session.parts.models import Cancel, Models, OnProgress

Folded = tuple["Model", FoldStep]
"""A model, and what was folded of it."""


def choice(models: Models, kinds: Sequence[FoldKind], on_progress: OnProgress, cancel: Cancel) -> Fold:
    """What `fold` would do to the current state."""
    folded, left = _folded(models, kinds, on_progress, cancel)
    return Fold(tuple([step for _, step in folded]), left, command=_command(models, kinds, None))


def _steps(options: FoldSpec, work: Work) -> Steps:
    """A state of every kind of which there is something to fold; the last one is the output.

    Where there is nothing to fold, the output is a copy of the model, and that is said.
    """
    started = time.perf_counter()
    models = work.models
    command = _command(models, options.kinds, work.output)
    if work.proof.input is not None:  # read by no proof where there is nothing to fold
        work.parts.of(Prover).check_input(work.proof.input, work.on_progress)
    folded, left = _folded(models, options.kinds, work.on_progress, work.cancel)
    if not folded and work.output is not None:
        yield ChangeStep(models.graph(models.current, work.on_progress), None)
        note = "there is nothing to fold: the file is a copy of the model"
        return Fold((), left, work.output, command, (note,), time.perf_counter() - started)
    if not folded:
        why = f"{left[0].op} '{left[0].name}': {left[0].reason}" if left else ""
        raise Misuse("there is nothing to fold", where=models.label(models.current), hint=why)
    steps: list[FoldStep] = []
    done = ""
    for model, step in folded:
        last = step is folded[-1][1]
        before = models.graph(models.current, work.on_progress)
        own = _command(models, (step.kind,), work.output if last else None)
        text = StateText(step.what, FoldRecord(step.kind), own)
        judge = partial(_proved, work, before) if work.proof.verify else None
        written = yield ChangeStep(model, partial(_said, text), judge, last=last)
        steps.append(replace(step, verification=written.proof, output=written.output))
        if not written.kept:
            break
        done = written.output if last else ""
    notes = models.random_weights()
    return Fold(tuple(steps), left, done, command, notes, time.perf_counter() - started)


def _said(text: StateText, written: Written) -> StateText:
    return text


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
    """A model after each kind that has something to fold, and what stays of the others."""
    if models.is_module(models.current):
        raise Misuse(
            "a quantized nn.Module is not folded",
            where=models.label(models.current),
            hint="fold the original, and quantize that",
        )
    model = models.graph(models.current, on_progress)
    folded: list[Folded] = []
    left: list[NodeLeft] = []
    for kind in (kind for kind in FOLDS if kind in kinds):
        stop_if(cancel)
        model, step = fold(model, kind)
        if step.folded:
            folded.append((model, step))
        else:
            left += step.left
    return folded, tuple(left)


def _command(models: Models, kinds: Sequence[FoldKind], output: str | None) -> str:
    """The command that does the same headless; '' where no command can."""
    if models.current:
        return ""
    only = [] if {*kinds} >= {*FOLDS} else ["--only", ",".join(kinds)]
    return scripts.headless(models, "fold", output, "_folded.onnx", *only)


def _words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    return ["--only", entry.record.fold, *scripts.proof_words(entry.verification)], ""


CHANGE = Change("fold", FoldSpec, _steps, _words)
