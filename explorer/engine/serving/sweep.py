"""Sweeps serving costs over types, contexts, batches and device layouts of many models, as stored rows.

A question is one combination of a type, context, batch and number of devices. A few passes over a model's
code answer all questions of one type. Each worker therefore gets the questions of one type together, for a
few contexts at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.base.units import rate_text
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.serving.serving import check_spec, resolve_types
from explorer.engine.sweep import check_count, cluster, raise_common_error
from explorer.engine.sweep.fingerprint import compute_digest
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.store import Store
from explorer.facts import to_json
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.serving.sweep import ServingRow, ServingSweep, ServingSweepSpec, mark_serving_front

_MAX_TASK_CONTEXTS = 16
"""Maximum number of contexts in one task of a worker."""


class ServingSession(Protocol):
    """The methods of a session that the sweep calls."""

    def serving(
        self,
        spec: ServingSpec,
        *,
        machine: Machine | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Serving:
        """Computes prompt, decode step, cache, times and layouts."""


class ServedModel(Struct, frozen=True):
    """A model of the sweep.

    Attributes:
        name: The user's name of the model.
        session: Session in which the model is open.
        digest_content: Function that returns a digest of everything on which the model's figures depend.
        opener: Function that takes this digest and returns a picklable function that opens the model in a
            worker.
        opening: Options that the model is opened with and that its figures depend on.
        words: The options in `opening` as the user types them.
        keep_in_process: Whether the model is an object of the present process, which no other process can
            open.
    """

    name: str
    session: ServingSession
    digest_content: Callable[[], str]
    opener: Callable[[str], Callable[[], SweepSession]]
    opening: Mapping[str, Any]
    words: str = ""
    keep_in_process: bool = False


class ServingTask(Task, frozen=True, kw_only=True):
    """Questions that one worker answers together.

    Attributes:
        blank: A row without figures for each question.
        spec: One question that covers all questions.
        machine: Machine of the times, or None for no times.
    """

    blank: tuple[ServingRow, ...]
    spec: ServingSpec
    machine: Machine | None

    def compute_rows(
        self, session: Any, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Iterator[ServingRow]:
        """Yields the rows of all questions. A question without a layout has a row with the reason."""
        try:
            # a machine without a name gives bounds only, which do not depend on the worker
            machine = None if self.machine is None else replace(self.machine, name="")
            fact = session.serving(self.spec, machine=machine, on_progress=on_progress, cancel=cancel)
        except (Cancelled, MissingExtra):
            raise
        except ExplorerError as error:
            yield from (replace(row, error=str(error)) for row in self.blank)
            return
        for row in self.blank:
            yield from _build_rows(row, fact)


_LAYOUT_FIELDS = (
    *("tensor", "pipeline", "expert", "weight_bytes", "cache_bytes", "link_bytes", "fits"),
    *("first_token", "token", "rate"),
)
"""Fields that a row copies from a layout."""


def _build_rows(blank: ServingRow, fact: Serving) -> list[ServingRow]:
    """Builds the rows of one question from an answer that covers it: a row for each layout.

    Args:
        blank: A row of the question without figures.
        fact: The answer.
    """
    context_and_batch = blank.context, blank.batch
    if blank.devices == 1:
        entry = next(row for row in fact.times if (row.context, row.batch) == context_and_batch)
        names = ("fits", "first_token", "token", "rate")
        figures: dict[str, Any] = {name: getattr(entry, name) for name in names}
        cached = entry.memory - fact.weight_bytes
        figures |= {"weight_bytes": fact.weight_bytes, "cache_bytes": cached, "bound": entry.token_limit}
        return [replace(blank, key=f"{blank.key}.0", link_bytes=0, **figures)]
    device_layouts = [
        layout
        for layout in fact.layouts
        if (layout.context, layout.batch, layout.devices) == (*context_and_batch, blank.devices)
    ]
    if not device_layouts:
        reason = "; ".join(fact.uncut)
        return [
            replace(
                blank,
                key=f"{blank.key}.0",
                error=f"no layout over {blank.devices:,} devices{': ' * bool(reason)}{reason}",
            )
        ]
    return [
        replace(
            blank,
            key=f"{blank.key}.{index}",
            layouts=len(device_layouts),
            bound=layout.limit,
            **{name: getattr(layout, name) for name in _LAYOUT_FIELDS},
        )
        for index, layout in enumerate(device_layouts)
    ]


class _ModelState(Struct):
    """State of one model in the sweep.

    Attributes:
        subject: The model.
        content: Digest of everything on which the model's figures depend, or '' if it cannot be read.
        rows: Rows by the key of their question.
        remaining: Questions without stored rows, each with a row without figures.
    """

    subject: ServedModel
    content: str = ""
    rows: dict[str, list[ServingRow]] = field(default_factory=dict)
    remaining: list[tuple[ServingSpec, ServingRow]] = field(default_factory=list)


def sweep_servings(
    subjects: Sequence[ServedModel],
    spec: ServingSweepSpec,
    machine: Machine | None,
    *,
    output: str | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> ServingSweep:
    """Computes a row for every model, combination and layout.

    Args:
        subjects: The models.
        spec: The values to combine.
        machine: Machine for which times are computed, or None for no times.
        output: Path of a file of results, or None. Only rows that it lacks are computed, and added to it.
        scheduler: Address of a Dask cluster that does the work, or None.
        workers: Number of processes on this machine. None and 1 mean the present process.
        on_progress: Function called with the number of answered questions.
        cancel: Function called at intervals; True stops the sweep, and finished rows stay in `output`.

    Raises:
        Misuse: There are too many combinations, a type or a size is impossible, `output` holds no results, or
            every row fails with the same error.
        MissingExtra: A package is not installed.
        Cancelled: `cancel` returned True.
    """
    began = time.perf_counter()
    check_count(spec.count_questions() * len(subjects), "serving")
    check_spec(spec.base)
    questions = spec.list_questions()
    for dtype, kv in {(question.dtype, question.kv_dtype) for question in questions}:
        resolve_types(replace(spec.base, dtype=dtype, kv_dtype=kv))
    if (scheduler or (workers or 1) > 1) and any(subject.keep_in_process for subject in subjects):
        message = "an nn.Module object stays in its process"
        raise Misuse(message, hint="name it as FILE.py:callable or package.module:callable")
    with Store(ServingRow, output) as store:
        run = _Run(store, questions, machine, on_progress, cancel)
        states = [run.prepare(subject, is_only_model=len(subjects) == 1) for subject in subjects]
        count = run.fill(states, scheduler, workers)
    rows = [row for state in states for rows in state.rows.values() for row in rows]
    raise_common_error(rows)
    return ServingSweep(
        rows=mark_serving_front(rows),
        made=run.made,
        kept=run.kept,
        output=output or "",
        workers=count,
        seconds=time.perf_counter() - began,
    )


class _Run:
    """State of one run of the sweep.

    Attributes:
        made, kept: Number of computed rows, and of rows that were stored before.
        done, total: Number of answered questions, and of all open questions.
    """

    def __init__(
        self,
        store: Store[ServingRow],
        questions: Sequence[ServingSpec],
        machine: Machine | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.store, self.questions, self.machine = store, questions, machine
        self.on_progress, self.cancel = on_progress, cancel
        self.made = self.kept = self.done = self.total = 0

    def prepare(self, subject: ServedModel, *, is_only_model: bool) -> _ModelState:
        """Reads the stored rows of a model and collects its open questions.

        An unreadable model gets rows with the error.
        """
        state = _ModelState(subject)
        try:
            report(self.on_progress, None, "reading the model")
            state.content = subject.digest_content()
        except Cancelled:
            raise
        except ExplorerError as error:
            if is_only_model:
                raise
            blanks = [self._build_blank_row(state, question) for question in self.questions]
            state.rows = {row.key: [replace(row, error=str(error))] for row in blanks}
            return state
        for question in self.questions:
            blank = self._build_blank_row(state, question)
            state.rows[blank.key] = self._find_stored_rows(blank)
            if not state.rows[blank.key]:
                state.remaining.append((question, blank))
        self.total += len(state.remaining)
        return state

    def _build_blank_row(self, state: _ModelState, question: ServingSpec) -> ServingRow:
        """Builds a row of a question without figures. Its key is a digest of all inputs of its figures."""
        subject, machine = state.subject, self.machine
        figures = None if machine is None else (machine.peak_macs, machine.bandwidth)
        identity = {"serving": to_json(question), "machine": figures, "opening": subject.opening}
        return ServingRow(
            key=compute_digest({"model": state.content or subject.name, **identity}),
            model=subject.name,
            fingerprint=state.content,
            opening=subject.words,
            machine=_describe_machine(machine),
            prompt=question.prompt,
            context=question.contexts[0],
            batch=question.batches[0],
            devices=question.devices[0],
            dtype=question.dtype,
            kv_dtype=question.kv_dtype,
            card=question.card,
            links=question.links,
        )

    def _find_stored_rows(self, blank: ServingRow) -> list[ServingRow]:
        """Returns the stored rows of a question under the model's present name, or [] if one is missing."""
        first = next(iter(self.store.rows([f"{blank.key}.0"])), None)
        if first is None:
            return []
        rows = list(self.store.rows([f"{blank.key}.{index}" for index in range(first.layouts)]))
        if len(rows) < first.layouts:
            return []
        self.kept += len(rows)
        return [replace(row, model=blank.model, machine=blank.machine) for row in rows]

    def fill(self, states: Sequence[_ModelState], scheduler: str | None, workers: int | None) -> int:
        """Answers the open questions in this process or in workers. Returns the number of workers."""
        in_process = scheduler is None and (workers or 1) == 1
        tasks: list[ServingTask] = []
        state_by_task: dict[int, _ModelState] = {}
        for state in states:
            for task in self._list_tasks(state, len(self.questions) if in_process else _MAX_TASK_CONTEXTS):
                tasks.append(task)
                state_by_task[id(task)] = state
        if not tasks:
            return 0
        report(self.on_progress, None, "sweeping", 0, self.total)

        def on_result(task: ServingTask, result: Sequence[Any] | ExplorerError) -> None:
            if isinstance(result, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                result = [replace(row, error=str(result)) for row in task.blank]
            self._add_rows(state_by_task[id(task)], result)
            self.done += len(task.blank)
            report(self.on_progress, None, "sweeping", self.done, self.total)

        if in_process:
            for task in tasks:
                stop_if(self.cancel)
                session = state_by_task[id(task)].subject.session
                on_result(task, list(task.compute_rows(session, self.on_progress, self.cancel)))
            return 0
        report(self.on_progress, None, "starting workers")
        return cluster.run_tasks(tasks, on_result, scheduler, workers or 1, self.cancel)

    def _list_tasks(self, state: _ModelState, max_contexts: int) -> Iterator[ServingTask]:
        """Yields tasks of open questions of the same types, with up to `max_contexts` contexts in a task."""
        if not state.remaining:
            return
        opener = state.subject.opener(state.content)
        pairs_by_types: dict[tuple[str, str], dict[int, list[tuple[ServingSpec, ServingRow]]]] = {}
        for question, blank in state.remaining:
            groups = pairs_by_types.setdefault((question.dtype, question.kv_dtype), {})
            groups.setdefault(question.contexts[0], []).append((question, blank))
        for groups in pairs_by_types.values():
            contexts = list(groups)
            for start in range(0, len(contexts), max_contexts):
                pairs = [
                    pair for context in contexts[start : start + max_contexts] for pair in groups[context]
                ]
                yield ServingTask(
                    opener=opener,
                    files=(),
                    fingerprint=state.content,
                    opening=state.subject.words,
                    blank=tuple([blank for _, blank in pairs]),
                    spec=_combine_questions([question for question, _ in pairs]),
                    machine=self.machine,
                )

    def _add_rows(self, state: _ModelState, rows: Sequence[ServingRow]) -> None:
        """Adds rows to the state of a model, and stores those that were computed.

        The rows of a question are stored together. A row whose key has no number is not stored: it has an
        error that another run may not have.
        """
        by_question: dict[str, list[ServingRow]] = {}
        for row in rows:
            by_question.setdefault(row.key.partition(".")[0], []).append(row)
        state.rows.update(by_question)
        answered_rows = [row for row in rows if "." in row.key]
        self.store.add(answered_rows)
        self.made += len(answered_rows)


def _combine_questions(questions: Sequence[ServingSpec]) -> ServingSpec:
    """Combines questions into one question that covers all of them."""

    def collect_values(name: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(getattr(question, name)[0] for question in questions))

    return replace(
        questions[0], **{name: collect_values(name) for name in ("contexts", "batches", "devices")}
    )


def _describe_machine(machine: Machine | None) -> str:
    """Describes a machine by its name and its rates."""
    if machine is None:
        return ""
    rates = f"{rate_text(machine.peak_macs, 'MAC/s')}, {rate_text(machine.bandwidth, 'B/s')}"
    return f"{machine.name}: {rates}" if machine.name else rates
