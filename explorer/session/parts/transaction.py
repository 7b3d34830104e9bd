"""Transaction: the one way in which a change to a model becomes a file and a state of the history.

Every step of a change is written beside its target, read back and judged there. A step that is kept gets its
name and becomes the current state; after a step that is not kept nothing follows. After an error or a
cancellation the history is as it was, and no file is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, renamed
from explorer.facts import HistoryEntry, Verification
from explorer.host import output_files
from explorer.session.parts import history as states
from explorer.session.parts.models import Cancel, Models, OnProgress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from explorer.engine.costs.memory.liveness import AnalysisResult


class Evidence(Protocol):
    """What was found out about a result."""

    @property
    def passed(self) -> bool:
        """Whether the result may be kept."""
        ...


class Written(Struct, frozen=True):
    """The outcome of a step.

    Attributes:
        path: The file; its name is free again where the step was not kept.
        evidence: What the step's judge found; None without a judge.
    """

    path: str
    evidence: Any = None

    @property
    def kept(self) -> bool:
        """Whether the file is there."""
        return self.evidence is None or bool(self.evidence.passed)

    @property
    def output(self) -> str:
        """The file, or '' where the step was not kept."""
        return self.path if self.kept else ""


class ChangeStep(Struct, frozen=True):
    """A step of a change: a model to write, and the state that it becomes.

    Attributes:
        model: The model.
        entry: Makes the state's entry of the history; None where the file is no state.
        judge: Looks at the model as it was read back from the file; None reads nothing back.
        examine: Returns the analysis of the model that was read back, where the judge made one meanwhile.
        parent: The state that the step was made of; None for the current one.
    """

    model: Model
    entry: Callable[[Written], HistoryEntry] | None
    judge: Callable[[Model], Evidence | None] | None = None
    examine: Callable[[], AnalysisResult | None] | None = None
    parent: int | None = None


MakeStep = Callable[[str], ChangeStep]
"""Makes a step, told the path that its file will have."""


def do(
    models: Models,
    steps: Sequence[MakeStep],
    *,
    output: str | None,
    overwrite: bool,
    on_progress: OnProgress,
    cancel: Cancel,
) -> list[Written]:
    """Does a change, step by step; the last step that is returned may be one that was not kept.

    Args:
        models: The session's models.
        steps: At least one; each is made when the steps before it are states.
        output: Where the last step is written; None keeps it in the session's folder. Check it before the
            change is computed (`Models.check_onnx`).
        overwrite: Whether an existing `output` may be replaced.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        ExplorerError: A step cannot be made, written, or judged.
        Cancelled: `cancel` said so.
    """
    outcomes: list[Written] = []
    with all_or_nothing(models):
        for at, make in enumerate(steps):
            named = output if at + 1 == len(steps) else None
            target = named or models.unused_name()
            step = make(target)
            outcomes.append(_write(models, step, target, overwrite or named is None, on_progress, cancel))
            if not outcomes[-1].kept:
                break
    return outcomes


def _write(
    models: Models, step: ChangeStep, target: str, overwrite: bool, on_progress: OnProgress, cancel: Cancel
) -> Written:
    read_back: Model | None = None
    entry: HistoryEntry | None = None
    outcome = Written(target)
    with output_files.atomic_write(target, overwrite=overwrite) as temporary:
        writer.write(step.model, temporary, on_progress=on_progress, cancel=cancel)
        if step.judge is not None:
            read_back = validate(reader.read(temporary))
            outcome = Written(target, _labelled(models, step.judge(read_back), target))
            if not outcome.kept:
                raise output_files.Discard
        if step.entry is not None:
            entry = step.entry(outcome)
    if entry is not None:
        if step.parent is not None and step.parent != models.current:
            models.history = states.go(models.history, step.parent)
        models.append(
            entry,
            made=None if read_back is None else renamed(read_back, target),
            examined=None if step.examine is None else step.examine(),
        )
    return outcome


def _labelled(models: Models, evidence: Evidence | None, target: str) -> Evidence | None:
    """A proof, with what the user calls its two models."""
    if isinstance(evidence, Verification):
        return replace(evidence, before=models.label(models.current), after=target)
    return evidence


@contextmanager
def all_or_nothing(models: Models) -> Iterator[None]:
    """Takes up the history as it was where something fails inside."""
    kept = models.history
    try:
        yield
    except BaseException:
        models.rewind(kept)
        raise
