"""Sweep of serving: many types, contexts, batches and layouts of many models, as stored rows.

The same few passes over a model's code answer all questions in one type. So a worker gets these questions
together, a few contexts at a time.
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
from explorer.engine.serving.serving import check, stored_types
from explorer.engine.sweep import MOST, cluster, complain
from explorer.engine.sweep.fingerprint import digest
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.store import Store
from explorer.facts import to_json
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.serving.sweep import ServingRow, ServingSweep, ServingSweepSpec, with_serving_front

_TOGETHER = 16
"""Contexts in one task of a worker."""


class ServingSession(Protocol):
    """The part of a session that the sweep uses."""

    def serving(
        self,
        spec: ServingSpec,
        *,
        machine: Machine | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Serving:
        """Prompt, steps, cache, times and layouts."""


class ServedModel(Struct, frozen=True):
    """A model of the sweep.

    Attributes:
        name: The user's name for it.
        door: The session that has it open.
        content: Returns a digest of everything that its figures depend on.
        opener: For that digest, a function without arguments that opens the model again: importable by name.
        opening: The options that it is opened with, as far as figures depend on them.
        words: Those options as they are typed.
        stays: It is an object of this process.
    """

    name: str
    door: ServingSession
    content: Callable[[], str]
    opener: Callable[[str], Callable[[], SweepSession]]
    opening: Mapping[str, Any]
    words: str = ""
    stays: bool = False


class ServingTask(Task, frozen=True, kw_only=True):
    """Questions that one worker answers together.

    Attributes:
        blank: A row without figures for each.
        spec: All questions in one.
        machine: The machine of the times.
    """

    blank: tuple[ServingRow, ...]
    spec: ServingSpec
    machine: Machine | None

    def made(self, door: Any, on_progress: OnProgress = None, cancel: Cancel = None) -> Iterator[ServingRow]:
        """The rows, one after the other; a question without a layout has a row with the reason."""
        try:
            # without its name: bounds only, which do not depend on the worker
            machine = None if self.machine is None else replace(self.machine, name="")
            fact = door.serving(self.spec, machine=machine, on_progress=on_progress, cancel=cancel)
        except (Cancelled, MissingExtra):
            raise
        except ExplorerError as error:
            yield from (replace(row, error=str(error)) for row in self.blank)
            return
        for row in self.blank:
            yield from _rows(row, fact)


_OF_LAYOUT = (
    *("tensor", "pipeline", "expert", "weight_bytes", "cache_bytes", "link_bytes", "fits"),
    *("first_token", "token", "rate"),
)


def _rows(blank: ServingRow, fact: Serving) -> list[ServingRow]:
    where = blank.context, blank.batch
    if blank.devices == 1:
        time_ = next(row for row in fact.times if (row.context, row.batch) == where)
        names = ("fits", "first_token", "token", "rate")
        figures: dict[str, Any] = {name: getattr(time_, name) for name in names}
        cached = time_.memory - fact.weight_bytes
        figures |= {"weight_bytes": fact.weight_bytes, "cache_bytes": cached, "bound": time_.token_limit}
        return [replace(blank, key=f"{blank.key}.0", link_bytes=0, **figures)]
    device_layouts = [
        layout
        for layout in fact.layouts
        if (layout.context, layout.batch, layout.devices) == (*where, blank.devices)
    ]
    if not device_layouts:
        why = "; ".join(fact.uncut)
        return [
            replace(
                blank,
                key=f"{blank.key}.0",
                error=f"no layout over {blank.devices:,} devices{': ' * bool(why)}{why}",
            )
        ]
    return [
        replace(
            blank,
            key=f"{blank.key}.{at}",
            layouts=len(device_layouts),
            bound=layout.limit,
            **{name: getattr(layout, name) for name in _OF_LAYOUT},
        )
        for at, layout in enumerate(device_layouts)
    ]


class _Work(Struct):
    """A model on its way: its rows by question, and the questions that are open."""

    subject: ServedModel
    content: str = ""
    rows: dict[str, list[ServingRow]] = field(default_factory=dict)
    open: list[tuple[ServingSpec, ServingRow]] = field(default_factory=list)


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
    """A row for every model, combination and layout.

    Args:
        subjects: The models.
        spec: The values to combine.
        machine: The machine of the times; None leaves times out.
        output: A file of results: its rows are not computed again, new rows are added.
        scheduler: The address of a Dask cluster that does the work.
        workers: Processes on this machine; None and 1 mean the present process.
        on_progress: Called with the number of answered questions.
        cancel: Called now and then; True stops. Finished rows stay in `output`.

    Raises:
        Misuse: There are too many combinations, a type or a size is impossible, `output` is no file of
            results, or every row fails with the same error.
        MissingExtra: A package is not installed.
        Cancelled: `cancel` returned True.
    """
    began = time.perf_counter()
    questions = spec.questions()
    check(spec.base)
    for dtype, kv in {(question.dtype, question.kv_dtype) for question in questions}:
        stored_types(replace(spec.base, dtype=dtype, kv_dtype=kv))
    if len(questions) * len(subjects) > MOST:
        message = f"these are {len(questions) * len(subjects):,} combinations"
        raise Misuse(message, where="serving", hint=f"{MOST:,} are the most")
    if (scheduler or (workers or 1) > 1) and any(subject.stays for subject in subjects):
        raise Misuse("an nn.Module object stays in its process", hint="name it as package.module:callable")
    with Store(ServingRow, output) as store:
        run = _Run(store, questions, machine, on_progress, cancel)
        works = [run.prepare(subject, alone=len(subjects) == 1) for subject in subjects]
        count = run.fill(works, scheduler, workers)
    rows = [row for work in works for rows in work.rows.values() for row in rows]
    complain(rows)
    return ServingSweep(
        rows=with_serving_front(rows),
        made=run.made,
        kept=run.kept,
        output=output or "",
        workers=count,
        seconds=time.perf_counter() - began,
    )


class _Run:
    """One sweep on its way."""

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

    def prepare(self, subject: ServedModel, *, alone: bool) -> _Work:
        """The stored rows of a model, and its open questions; of an unreadable model, rows with the error."""
        work = _Work(subject)
        try:
            report(self.on_progress, None, "reading the model")
            work.content = subject.content()
        except Cancelled:
            raise
        except ExplorerError as error:
            if alone:
                raise
            blanks = [self._blank(work, question) for question in self.questions]
            work.rows = {row.key: [replace(row, error=str(error))] for row in blanks}
            return work
        for question in self.questions:
            blank = self._blank(work, question)
            work.rows[blank.key] = self._stored_rows(blank)
            if not work.rows[blank.key]:
                work.open.append((question, blank))
        self.total += len(work.open)
        return work

    def _blank(self, work: _Work, question: ServingSpec) -> ServingRow:
        subject, machine = work.subject, self.machine
        figures = None if machine is None else (machine.peak_macs, machine.bandwidth)
        identity = {"serving": to_json(question), "machine": figures, "opening": subject.opening}
        return ServingRow(
            key=digest({"model": work.content or subject.name, **identity}),
            model=subject.name,
            fingerprint=work.content,
            opening=subject.words,
            machine=_words(machine),
            prompt=question.prompt,
            context=question.contexts[0],
            batch=question.batches[0],
            devices=question.devices[0],
            dtype=question.dtype,
            kv_dtype=question.kv_dtype,
            card=question.card,
            links=question.links,
        )

    def _stored_rows(self, blank: ServingRow) -> list[ServingRow]:
        """The stored rows of a question, if all of them are stored, under the model's present name."""
        first = next(iter(self.store.rows([f"{blank.key}.0"])), None)
        if first is None:
            return []
        rows = list(self.store.rows([f"{blank.key}.{at}" for at in range(first.layouts)]))
        if len(rows) < first.layouts:
            return []
        self.kept += len(rows)
        return [replace(row, model=blank.model, machine=blank.machine) for row in rows]

    def fill(self, works: Sequence[_Work], scheduler: str | None, workers: int | None) -> int:
        """Answers the open questions, here or elsewhere; returns the number of processes that did."""
        here = scheduler is None and (workers or 1) == 1
        tasks: list[ServingTask] = []
        places: dict[int, _Work] = {}
        for work in works:
            for task in self._tasks(work, len(self.questions) if here else _TOGETHER):
                tasks.append(task)
                places[id(task)] = work
        if not tasks:
            return 0
        report(self.on_progress, None, "sweeping", 0, self.total)

        def done(task: ServingTask, result: Sequence[Any] | ExplorerError) -> None:
            if isinstance(result, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                result = [replace(row, error=str(result)) for row in task.blank]
            self._take(places[id(task)], result)
            self.done += len(task.blank)
            report(self.on_progress, None, "sweeping", self.done, self.total)

        if here:
            for task in tasks:
                stop_if(self.cancel)
                door = places[id(task)].subject.door
                done(task, list(task.made(door, self.on_progress, self.cancel)))
            return 0
        report(self.on_progress, None, "starting workers")
        return cluster.spread(tasks, done, scheduler, workers or 1, self.cancel)

    def _tasks(self, work: _Work, together: int) -> Iterator[ServingTask]:
        """The open questions of a model, grouped by types, `together` contexts in a task."""
        if not work.open:
            return
        opener = work.subject.opener(work.content)
        alike: dict[tuple[str, str], dict[int, list[tuple[ServingSpec, ServingRow]]]] = {}
        for question, blank in work.open:
            groups = alike.setdefault((question.dtype, question.kv_dtype), {})
            groups.setdefault(question.contexts[0], []).append((question, blank))
        for groups in alike.values():
            contexts = list(groups)
            for at in range(0, len(contexts), together):
                some = [pair for context in contexts[at : at + together] for pair in groups[context]]
                yield ServingTask(
                    opener=opener,
                    files=(),
                    fingerprint=work.content,
                    opening=work.subject.words,
                    blank=tuple([blank for _, blank in some]),
                    spec=_together([question for question, _ in some]),
                    machine=self.machine,
                )

    def _take(self, work: _Work, rows: Sequence[ServingRow]) -> None:
        """Puts rows in their places and stores the answers; the rows of a question are stored all or none."""
        by_question: dict[str, list[ServingRow]] = {}
        for row in rows:
            by_question.setdefault(row.key.partition(".")[0], []).append(row)
        work.rows.update(by_question)
        good = [row for row in rows if "." in row.key]
        self.store.add(good)
        self.made += len(good)


def _together(questions: Sequence[ServingSpec]) -> ServingSpec:
    """One question that covers all of the questions."""

    def every(name: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(getattr(question, name)[0] for question in questions))

    return replace(questions[0], **{name: every(name) for name in ("contexts", "batches", "devices")})


def _words(machine: Machine | None) -> str:
    """A machine in a few words: its name, and its rates."""
    if machine is None:
        return ""
    rates = f"{rate_text(machine.peak_macs, 'MAC/s')}, {rate_text(machine.bandwidth, 'B/s')}"
    return f"{machine.name}: {rates}" if machine.name else rates
