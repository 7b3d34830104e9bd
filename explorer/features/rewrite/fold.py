"""Folding of a session's models: each kind of rewrite becomes a state, proved before it gets its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.fold.fold import fold
from explorer.engine.formats.onnx import writer
from explorer.engine.graph.model import Model
from explorer.engine.progress import stop_if
from explorer.facts import HistoryEntry, Verification
from explorer.facts.split.fold import FOLDS, Fold, FoldKind, FoldStep, NodeLeft
from explorer.host import output_files
from explorer.session.parts import scripts
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.transaction import ChangeStep, Written, do

Prove = Callable[[Model, Model], Verification]
"""The state before, and what was made of it."""


class ModelFolding:
    """What can be folded of the current state, and the states that are made of it."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def choice(self, kinds: Sequence[FoldKind], on_progress: OnProgress, cancel: Cancel) -> Fold:
        """What `fold` would do."""
        made, left = self._folded(kinds, on_progress, cancel)
        return Fold(tuple([step for _, step in made]), left, command=self._command(kinds, None))

    def fold(
        self,
        kinds: Sequence[FoldKind],
        *,
        output: str | None,
        overwrite: bool,
        prove: Prove | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Fold:
        """Makes a state of every kind of which there is something to fold; the last one is `output`.

        Where there is nothing to fold, `output` is a copy of the model, and that is said.
        """
        started = time.perf_counter()
        models = self._models
        if output is not None:
            models.check_onnx(output, overwrite)
        command = self._command(kinds, output)
        made, left = self._folded(kinds, on_progress, cancel)
        if not made and output is not None:
            model = models.graph(models.current, on_progress)
            with output_files.atomic_write(output, overwrite=overwrite) as temporary:
                writer.write(model, temporary, on_progress=on_progress, cancel=cancel)
            said = ("there is nothing to fold: the file is a copy of the model",)
            return Fold((), left, output, command, said, time.perf_counter() - started)
        if not made:
            why = f"{left[0].op} '{left[0].name}': {left[0].reason}" if left else ""
            raise Misuse("there is nothing to fold", where=models.label(models.current), hint=why)
        outcomes = do(
            models,
            [partial(self._step, model, step, output, prove, on_progress) for model, step in made],
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        steps = [
            replace(step, verification=outcome.evidence, output=outcome.output)
            for (_, step), outcome in zip(made, outcomes, strict=False)
        ]
        done = steps[-1].output if len(steps) == len(made) else ""
        notes = models.random_weights()
        return Fold(tuple(steps), left, done, command, notes, time.perf_counter() - started)

    def _folded(
        self, kinds: Sequence[FoldKind], on_progress: OnProgress, cancel: Cancel
    ) -> tuple[list[tuple[Model, FoldStep]], tuple[NodeLeft, ...]]:
        """A model after each kind that has something to fold, and what stays of the others."""
        models = self._models
        if models.is_module(models.current):
            raise Misuse(
                "a quantized nn.Module is not folded",
                where=models.label(models.current),
                hint="fold the original, and quantize that",
            )
        model = models.graph(models.current, on_progress)
        made: list[tuple[Model, FoldStep]] = []
        left: list[NodeLeft] = []
        for kind in (kind for kind in FOLDS if kind in kinds):
            stop_if(cancel)
            model, step = fold(model, kind)
            if step.folded:
                made.append((model, step))
            else:
                left += step.left
        return made, tuple(left)

    def _step(
        self,
        model: Model,
        step: FoldStep,
        output: str | None,
        prove: Prove | None,
        on_progress: OnProgress,
        target: str,
    ) -> ChangeStep:
        """The state of one kind's model."""
        before = self._models.graph(self._models.current, on_progress)
        saved = target if target == output else ""
        command = self._command((step.kind,), saved or None)

        def entry(written: Written) -> HistoryEntry:
            return HistoryEntry(
                label=step.what,
                path=written.path,
                command=command,
                verification=written.evidence,
                saved=saved,
                fold=step.kind,
            )

        return ChangeStep(model, entry, None if prove is None else partial(prove, before))

    def _command(self, kinds: Sequence[FoldKind], output: str | None) -> str:
        """The command that does the same headless; '' where no command can."""
        if self._models.current:
            return ""
        only = [] if {*kinds} >= {*FOLDS} else ["--only", ",".join(kinds)]
        return scripts.headless(self._models, "fold", output, "_folded.onnx", *only)
