"""Change: a thing done to a model, and the one way in which it becomes files and states of the history.

A change says what it does as steps, a generator of models; `do` is the only transaction. It checks the
target, goes to the state that is changed, and writes every step beside its target, where it is read back and
judged. A step that is kept gets its name and becomes the current state; behind one that is not kept nothing
follows. After an error or a cancellation the history is as it was, and no file is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, renamed
from explorer.facts import Analysis, HistoryEntry, Verification
from explorer.facts.change import ChangeRecord, ProofRequest
from explorer.host import output_files
from explorer.session.parts import history as states
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.session_parts import SessionParts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.costs.memory.liveness import AnalysisResult

Options = TypeVar("Options")


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

    @property
    def proof(self) -> Verification | None:
        """The evidence, where it is a proof."""
        return self.evidence if isinstance(self.evidence, Verification) else None


class StateText(Struct, frozen=True):
    """What the history says of a state.

    Attributes:
        label: What was done, in a few words.
        record: What the change keeps of it.
        command: What does the same headless; '' where no command can.
    """

    label: str
    record: ChangeRecord
    command: str


class ChangeStep(Struct, frozen=True):
    """A step of a change: a model to write, and the state that it becomes.

    Attributes:
        model: The model.
        state: What the history says of it, or a function that says so once it is written; None where the file
            is no state.
        judge: Looks at the model as it was read back from the file, which is called as it is told; None reads
            nothing back.
        examine: Returns the analysis of the model that was read back, where the judge made one meanwhile.
        last: Whether it is the step that gets the name that the user chose.
    """

    model: Model
    state: StateText | Callable[[Written], StateText] | None
    judge: Callable[[Model, str], Evidence | None] | None = None
    examine: Callable[[], AnalysisResult | None] | None = None
    last: bool = True


class Work(Struct, frozen=True):
    """What a change works on.

    Attributes:
        parts: Of the session, whose current state is the one that is changed.
        proof: How results are proved.
        output: Where the last step is written; None keeps it in the session's folder.
        overwrite: Whether an existing `output` may be replaced.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.
    """

    parts: SessionParts
    proof: ProofRequest = ProofRequest()
    output: str | None = None
    overwrite: bool = False
    on_progress: OnProgress = None
    cancel: Cancel = None

    @property
    def models(self) -> Models:
        """The session's models."""
        return self.parts.models


Steps = Generator[ChangeStep, Written, Any]
"""Yields steps, is sent what became of each, and returns what the change answers."""


class Change(Struct, Generic[Options], frozen=True):
    """A thing that can be done to a model, and makes states of the history.

    Attributes:
        verb: What it is called.
        options: The record that it takes.
        steps: Does it.
        words: Of a state that it made the options of its verb, and the text of the file that `--config` names
            where options cannot say it; told the path that such a file will have.
        reads: Files that its options name, which no output may replace.
        again: Makes the module of a state that is in no file, of the model before and its analysis.
    """

    verb: str
    options: type[Options]
    steps: Callable[[Options, Work], Steps]
    words: Callable[[HistoryEntry, str], tuple[list[str], str]]
    reads: Callable[[Options], Sequence[str | None]] = lambda _: ()
    again: Callable[[HistoryEntry, Any, Analysis], Any] | None = None


def do(change: Change[Options], options: Options, work: Work, *, state: int | None = None) -> Any:
    """Does a change.

    Args:
        change: It.
        options: Its record.
        work: What it works on.
        state: The state that is changed; None for the current one.

    Returns:
        What the change answers. The last of its steps may be one that was not kept.

    Raises:
        Misuse: The options are of another change, or the output cannot be written.
        ExplorerError: A step cannot be made, written, or judged.
        Cancelled: `work.cancel` said so.
    """
    if not isinstance(options, change.options):
        message = f"{type(options).__name__} are no options of it"
        raise Misuse(message, where=change.verb, hint=f"give a {change.options.__name__}")
    models, output = work.models, work.output
    if output is not None:
        models.check_onnx(output, work.overwrite, *change.reads(options))
    with changing(models, state):
        steps = change.steps(options, work)
        try:
            step = next(steps)
            while True:
                named = output if step.last else None
                written = _write(change.verb, step, named or models.unused_name(), named is not None, work)
                step = steps.send(written)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()


def _write(verb: str, step: ChangeStep, target: str, is_named: bool, work: Work) -> Written:
    models = work.models
    read_back: Model | None = None
    text: StateText | None = None
    written = Written(target)
    with output_files.atomic_write(target, overwrite=work.overwrite or not is_named) as temporary:
        writer.write(step.model, temporary, on_progress=work.on_progress, cancel=work.cancel)
        if step.judge is not None:
            read_back = validate(reader.read(temporary))
            written = Written(target, _labelled(models, step.judge(read_back, target), target))
            if not written.kept:
                raise output_files.Discard
        if step.state is not None:
            text = step.state if isinstance(step.state, StateText) else step.state(written)
    if text is not None:
        entry = HistoryEntry(
            text.label,
            target,
            text.command,
            verification=written.proof,
            saved=target if is_named else "",
            change=verb,
            record=text.record,
        )
        models.append(
            entry,
            graph=None if read_back is None else renamed(read_back, target),
            examined=None if step.examine is None else step.examine(),
        )
    return written


def _labelled(models: Models, evidence: Evidence | None, target: str) -> Evidence | None:
    """A proof, with what the user calls its two models."""
    if isinstance(evidence, Verification):
        return replace(evidence, before=models.label(models.current), after=target)
    return evidence


@contextmanager
def changing(models: Models, state: int | None) -> Iterator[None]:
    """A state is the current one meanwhile; where nothing was made of it or work failed, all is as it was."""
    before = models.history
    at = models.at(state)
    if at != before.current:
        models.history = states.go(before, at)
    try:
        yield
    except BaseException:
        models.rewind(before)
        raise
    if len(models.history.entries) == len(before.entries):
        models.history = before
