"""Change: the transaction that applies a change to a model and adds the results to the history.

A change is a generator of steps. Each step holds a model to write. `do` checks the target, selects
the state to change, and writes every step to a temporary file, which is read back and judged. An accepted
step is renamed to its target and becomes the current state. The first rejected step ends the change. After an
error or a cancellation the history is as before, and no file remains.
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
from explorer.engine.graph.model import Model, rename_file
from explorer.engine.shapes.declarations import declare_inferred
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
    """Evidence about the result of a step."""

    @property
    def passed(self) -> bool:
        """Whether the result is accepted."""
        ...


class Written(Struct, frozen=True):
    """A step after its file was written.

    Attributes:
        path: Path of the file. No file exists there if the step was rejected.
        evidence: Result of the step's judge, or None without a judge.
    """

    path: str
    evidence: Any = None

    @property
    def kept(self) -> bool:
        """Whether the step was accepted, so that its file exists."""
        return self.evidence is None or bool(self.evidence.passed)

    @property
    def output(self) -> str:
        """Path of the file, or '' if the step was rejected."""
        return self.path if self.kept else ""

    @property
    def proof(self) -> Verification | None:
        """Evidence of the step if it is a `Verification`."""
        return self.evidence if isinstance(self.evidence, Verification) else None


class StateText(Struct, frozen=True):
    """Texts and record of a new state of the history.

    Attributes:
        label: Short description of the change.
        record: Record that the change keeps for the state.
        command: Command that makes the state without the screen, or '' if no command can.
    """

    label: str
    record: ChangeRecord
    command: str


class ChangeStep(Struct, frozen=True):
    """A step of a change: a model to write, and the state that it becomes.

    Attributes:
        model: Model to write.
        state: Texts of the state, or a function that returns them once the file is written. None if the file
            is not a state.
        judge: Function that judges the model read back from the file. It takes the model and the target path.
            With None the file is not read back.
        examine: Function that returns the judge's analysis of the model read back, or None if it made none.
        is_last: Whether the step is written to the output that the user named, not to the session's folder.
    """

    model: Model
    state: StateText | Callable[[Written], StateText] | None
    judge: Callable[[Model, str], Evidence | None] | None = None
    examine: Callable[[], AnalysisResult | None] | None = None
    is_last: bool = True


class Work(Struct, frozen=True):
    """Context of a change.

    Attributes:
        parts: Parts of the session, whose current state is changed.
        proof: Settings of the proof.
        output: Path of the file for the last step, or None for the session's folder.
        overwrite: Whether to replace an existing `output`.
        on_progress: Callback with the progress of the job.
        cancel: Callback. If it returns True, the job stops and leaves nothing behind.
    """

    parts: SessionParts
    proof: ProofRequest = ProofRequest()
    output: str | None = None
    overwrite: bool = False
    on_progress: OnProgress = None
    cancel: Cancel = None

    @property
    def models(self) -> Models:
        """Models of the session."""
        return self.parts.models


Steps = Generator[ChangeStep, Written, Any]
"""Generator that yields steps, receives the outcome of each, and returns the answer of the change."""


class Change(Struct, Generic[Options], frozen=True):
    """Definition of a change: a verb that makes states of the history.

    Attributes:
        verb: Name of the change.
        options: Type of its options record.
        steps: Function that makes the steps.
        words: Function that returns the command-line options that make a state again. If options cannot
            express it, they start with `--config` and the function's second argument, and it also returns the
            text of that file.
        reads: Function that returns the files that the options name. The output must not replace them.
        again: Function that builds the module of a state a second time. It takes the state's entry, the
            model from which the state was made, and that model's analysis. None if all states are files.
    """

    verb: str
    options: type[Options]
    steps: Callable[[Options, Work], Steps]
    words: Callable[[HistoryEntry, str], tuple[list[str], str]]
    reads: Callable[[Options], Sequence[str | None]] = lambda _: ()
    again: Callable[[HistoryEntry, Any, Analysis], Any] | None = None


def do(change: Change[Options], options: Options, work: Work, *, state: int | None = None) -> Any:
    """Applies a change.

    Args:
        change: Definition of the change.
        options: Options record.
        work: Context of the change.
        state: Index of the state to change, or None for the current one.

    Returns:
        The answer of the change. Its last step may have been rejected.

    Raises:
        Misuse: The options belong to another change, or the output cannot be written.
        ExplorerError: A step cannot be made, written, or judged.
        Cancelled: `work.cancel` returned True.
    """
    if not isinstance(options, change.options):
        message = f"{type(options).__name__} are not options of it"
        raise Misuse(message, where=change.verb, hint=f"give a {change.options.__name__}")
    models, output = work.models, work.output
    if output is not None:
        models.check_onnx(output, work.overwrite, *change.reads(options))
    with make_current(models, state):
        steps = change.steps(options, work)
        try:
            step = next(steps)
            while True:
                named_output = output if step.is_last else None
                target = named_output or models.create_unused_path()
                outcome = _write(change.verb, step, target, named_output is not None, work)
                step = steps.send(outcome)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()


def _write(verb: str, step: ChangeStep, target: str, is_named: bool, work: Work) -> Written:
    """Writes a step, lets its judge read the file back, and appends the accepted state to the history.

    Args:
        verb: Name of the change.
        step: Step to write.
        target: Path of the file.
        is_named: Whether the user named `target`.
        work: Context of the change.
    """
    models = work.models
    read_back: Model | None = None
    text: StateText | None = None
    outcome = Written(target)
    with output_files.write_atomically(target, overwrite=work.overwrite or not is_named) as temporary:
        model = declare_inferred(step.model) if models.options["shapes"] else step.model
        writer.write(model, temporary, on_progress=work.on_progress, cancel=work.cancel)
        if step.judge is not None:
            read_back = validate(reader.read(temporary))
            outcome = Written(target, _add_labels(models, step.judge(read_back, target), target))
            if not outcome.kept:
                raise output_files.Discard  # ends the block without an error, and removes the file
        if step.state is not None:
            text = step.state if isinstance(step.state, StateText) else step.state(outcome)
    if text is not None:
        entry = HistoryEntry(
            text.label,
            target,
            text.command,
            verification=outcome.proof,
            saved=target if is_named else "",
            change=verb,
            record=text.record,
        )
        models.append(
            entry,
            graph=None if read_back is None else rename_file(read_back, target),
            examined=None if step.examine is None else step.examine(),
        )
    return outcome


def _add_labels(models: Models, evidence: Evidence | None, target: str) -> Evidence | None:
    """Adds the names of the two models to a proof: the current state, and the path `target`."""
    if isinstance(evidence, Verification):
        return replace(evidence, before=models.label(models.current), after=target)
    return evidence


@contextmanager
def make_current(models: Models, state: int | None) -> Iterator[None]:
    """Makes a state the current one for the duration of the block.

    If the block raises an error or makes no state, the history is as before.
    """
    former_history = models.history
    target = models.resolve_index(state)
    if target != former_history.current:
        models.history = states.go(former_history, target)
    try:
        yield
    except BaseException:
        models.rewind(former_history)
        raise
    if len(models.history.entries) == len(former_history.entries):
        models.history = former_history
