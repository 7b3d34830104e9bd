"""Folds operators of a session's model. Each kind of fold makes a state, with a proof."""

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
from explorer.settings.option_values import write_words

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.facts import HistoryEntry, Verification
    from explorer.session.parts.models import Models


Folded = tuple["Model", FoldStep]
"""A model, and the record of the fold that made it."""


def _make_steps(options: FoldSpec, work: Work) -> Steps:
    """Make a state for every kind of fold that changes the model, and write the last state.

    If nothing can be folded, the output is a copy of the model, with a note.

    Raises:
        Misuse: Nothing can be folded, and there is no output.
    """
    started = time.perf_counter()
    models = work.models
    command = _build_command(models, options.kinds, work.output)
    if work.proof.input is not None:  # if nothing can be folded, no proof would read the file
        work.parts.get_part(Prover).check_input(work.proof.input, work.on_progress)
    folded, remaining = _fold_all(models, options.kinds, work.on_progress, work.cancel)
    if not folded and work.output is not None:
        yield ChangeStep(models.load_graph(models.current, work.on_progress), None)
        note = "there is nothing to fold: the file is a copy of the model"
        return Fold((), remaining, work.output, command, (note,), time.perf_counter() - started)
    if not folded:
        reason = f"{remaining[0].op} '{remaining[0].name}': {remaining[0].reason}" if remaining else ""
        raise Misuse("there is nothing to fold", where=models.label(models.current), hint=reason)
    steps: list[FoldStep] = []
    output_path = ""
    for model, step in folded:
        is_last = step is folded[-1][1]
        original = models.load_graph(models.current, work.on_progress)
        command_of_step = _build_command(models, (step.kind,), work.output if is_last else None)
        text = StateText(step.what, FoldRecord(step.kind), command_of_step)
        check = partial(_verify, work, original) if work.proof.verify else None
        result = yield ChangeStep(model, text, check, is_last=is_last)
        steps.append(replace(step, verification=result.proof, output=result.output))
        if not result.kept:
            break
        output_path = result.output if is_last else ""
    notes = models.list_weight_notes()
    return Fold(tuple(steps), remaining, output_path, command, notes, time.perf_counter() - started)


def _verify(work: Work, before: Model, after: Model, path: str) -> Verification:
    return work.parts.get_part(Prover).verify(
        before,
        after,
        plan=None,
        input=work.proof.input,
        draws=work.proof.draws,
        seed=work.proof.seed,
        on_progress=work.on_progress,
        cancel=work.cancel,
    )


def _fold_all(
    models: Models, kinds: Sequence[FoldKind], on_progress: OnProgress, cancel: Cancel
) -> tuple[list[Folded], tuple[NodeLeft, ...]]:
    """Return the model after each kind of fold that changes it, and the nodes left by the other kinds.

    Raises:
        Misuse: The current state is a quantized nn.Module.
    """
    if models.is_module(models.current):
        raise Misuse(
            "a quantized nn.Module is not folded",
            where=models.label(models.current),
            hint="fold the original, and quantize that",
        )
    model = models.load_graph(models.current, on_progress)
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


def _build_command(models: Models, kinds: Sequence[FoldKind], output: str | None) -> str:
    """Return the shell command that makes the same folds, or '' if no command can."""
    if models.current:
        return ""
    option_words = write_words(FoldSpec(tuple(kind for kind in FOLDS if kind in kinds)))
    return scripts.write_command(models, "fold", output, "_folded.onnx", *option_words)


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `fold` that make the state again; see `Change.words`."""
    return [*write_words(FoldSpec((entry.record.fold,))), *scripts.write_proof_words(entry.verification)], ""


CHANGE = Change("fold", FoldSpec, _make_steps, _write_words)


def fold_choice(
    session: Facade,
    kinds: Sequence[FoldKind] = FOLDS,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Fold:
    """Predict the result of `fold` on the current model, and the reasons why nodes stay.

    Raises:
        BadModel: The model cannot be converted to a graph.
        Cancelled: `cancel` returned True.
    """
    models = session.parts.models
    folded, remaining = _fold_all(models, kinds, on_progress, cancel)
    return Fold(tuple([step for _, step in folded]), remaining, command=_build_command(models, kinds, None))


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
    """Fold operators of the current model; every kind of fold that changes it makes a state.

    Weights are computed in float64 and rounded once to their type.

    Args:
        kinds: Kinds of folds: 'identity' (Identity, and Dropout in inference), 'constants', 'batchnorm', or a
            spec that contains them. They are always applied in this order.
        output: Path of the file for the last state, or None to keep it in the session's folder until `save`.
        overwrite: Whether to replace an existing `output`.
        verify: Whether to verify every state against the previous one. A state that fails is discarded, the
            following kinds are skipped, and `Fold.output` is empty.
        draws: Number of random inputs for each proof.
        seed: Seed of the first random input.
        input: Path of an .npy or .npz file with inputs for the proofs, or None for random inputs.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: Nothing can be folded and `output` is None; also, `output` exists or cannot be
            written.
        BadModel: onnxruntime cannot run the model for the proof.
        Cancelled: `cancel` returned True.
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
