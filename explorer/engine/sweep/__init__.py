"""Sweep: many tilings of many models. Rows that are not stored yet are computed, and stored at once.

The key of a row is a digest of everything that its figures depend on. So the same sweep resumes after a kill,
and another sweep into the same file computes new rows only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.base.units import bytes_text, rate_text, sizes_text
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import cluster
from explorer.engine.sweep.fingerprint import fingerprint, key_of
from explorer.engine.sweep.measure import ProofSpec, Row, SweepSession, Task, TilingTask, plan_row, prove_row
from explorer.engine.sweep.processes import size_of, suggested
from explorer.engine.sweep.store import Store
from explorer.facts import TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.pareto_front import with_front
from explorer.facts.quantize import QuantizeRequest
from explorer.facts.sweep import Sweep, SweepLayer, SweepRow, SweepSpec, combinations
from explorer.host.output_files import check_target

MOST = 100_000
"""Rows of one sweep."""
_SLICE = 0.2
"""Seconds between two writes of cheap rows: each write waits for the disk."""
_TOGETHER = 256
"""Rows without a proof in one task of a worker: opening the model takes longer than a row."""
_PROOF, _PROVED, _OPENING = 0.15, 1.5e8, 0.3
"""Approximate costs: a proof takes this many seconds, plus one per this many bytes of the model; opening."""


class Subject(Struct, frozen=True):
    """A model of the sweep.

    Attributes:
        name: The user's name for it.
        door: The session that has it open.
        files: Returns the absolute paths of its files, the graph first; exports a model that is not ONNX yet.
        content: Returns a digest of a model that is not read from files; `files` then returns none.
        opener: For those files, a function without arguments that opens them again: importable by name, so
            that another process can call it.
        opening: The options that it is opened with, as far as figures depend on them.
        words: Those options as they are typed.
        command: The command that quantizes the model; '' where no command can.
    """

    name: str
    door: SweepSession
    files: Callable[[], tuple[str, ...]]
    opener: Callable[[Sequence[str]], Callable[[], SweepSession]]
    opening: Mapping[str, Any]
    words: str = ""
    command: Callable[[QuantizeRequest], str] = lambda request: ""
    content: Callable[[], str] | None = None


class _Work(Struct):
    """The work for one model: its rows in the order of the combinations, and the indices of open rows."""

    subject: Subject
    files: tuple[str, ...] = ()
    content: str = ""
    rows: list[SweepRow] = field(default_factory=list)
    open: list[int] = field(default_factory=list)


def sweep(
    subjects: Sequence[Subject],
    spec: SweepSpec,
    *,
    hardware: Hardware | None = None,
    order: str = "best",
    proof: ProofSpec | None = None,
    output: str | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    layers: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Sweep:
    """A row for every model and every combination of `spec`.

    A model that cannot be opened has rows with the error; the other models are computed.

    Args:
        subjects: The models.
        spec: The combinations.
        hardware: The machine; without one there are no cycles.
        order: Order of the loops, as for `cost.plan_cost`.
        proof: Tile, write and prove each; None for the figures alone.
        output: A file of results: its rows are not computed again, new rows are added.
        scheduler: The address of a Dask cluster that does the work.
        workers: Processes on this machine; 1 means the present process, None one per processor where that
            saves time.
        layers: Whether the answer lists the products of the models, too.
        on_progress: Called with the number of finished rows.
        cancel: Called now and then; True stops. Finished rows stay in `output`.

    Raises:
        Misuse: There are too many combinations, or `output` is no file of results; or every row fails with
            the same error, for example because the only model cannot be opened.
        MissingExtra: A package is not installed that the only model, or `scheduler` or `workers`, needs.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    specs = combinations(spec)
    _check_count(len(specs), len(subjects))
    machine = hardware or Hardware()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(SweepRow, output)) if output is not None else None
        run = _Run(store, specs, machine, order, proof, on_progress, cancel)
        works = [run.prepare(subject, alone=len(subjects) == 1) for subject in subjects]
        count = run.spread(works, scheduler, workers)
        rows = with_front([row for work in works for row in work.rows])
    complain(rows)
    return Sweep(
        rows=rows,
        hardware=machine,
        layers=tuple(layer for work in works for layer in _layers(work, specs)) if layers else (),
        made=run.made,
        kept=run.kept,
        proved=run.proved,
        output=output or "",
        workers=count,
        seconds=time.perf_counter() - started,
    )


def _check_count(specs: int, subjects: int) -> None:
    if specs * subjects > MOST:
        message = f"these are {specs * subjects:,} combinations"
        raise Misuse(message, where="sweep", hint=f"{MOST:,} are the most")
    if not specs:
        raise Misuse("there is no tile", where="--tile", hint="name some: --tile 16,32,64")


def check_output(path: str, models: Sequence[str]) -> None:
    """Refuses a file for the results that would cost the user another one, before any work is done.

    Raises:
        Misuse: The file is a model, or another file that holds no results.
    """
    check_target(path, overwrite=True, models=models, weights=())
    if os.path.exists(path):
        Store(SweepRow, path).close()


def stored_sweep(path: str) -> Sweep:
    """Everything that a file of results holds.

    Raises:
        Misuse: The file holds no results.
    """
    with Store(SweepRow, path, changed=False) as store:
        rows = with_front(list(store.rows()))
    return Sweep(rows=rows, hardware=Hardware(), kept=len(rows), output=path)


class _Run:
    """One sweep on its way."""

    def __init__(
        self,
        store: Store[SweepRow] | None,
        specs: Sequence[TileSpec],
        hardware: Hardware,
        order: str,
        proof: ProofSpec | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.store, self.specs, self.hardware, self.order = store, specs, hardware, order
        self.proof, self.on_progress, self.cancel = proof, on_progress, cancel
        self.made = self.kept = self.proved = self.done = self.total = 0

    def prepare(self, subject: Subject, *, alone: bool) -> _Work:
        """The rows of a model: stored rows, and blank ones; `alone` says that there is no other model."""
        work = _Work(subject)
        try:
            work.files = subject.files()
            if self.store is not None:
                report(self.on_progress, None, "reading the model")
                self._fingerprint(work)
        except Cancelled:
            raise
        except ExplorerError as error:
            if alone and isinstance(error, MissingExtra):
                raise
            work.rows = [replace(self._blank(work, spec, ""), error=str(error)) for spec in self.specs]
            return work
        opening = {**subject.opening, "order": self.order}
        keys = [
            key_of(work.content, opening, spec, self.hardware) if self.store is not None else ""
            for spec in self.specs
        ]
        rows_by_key = {} if self.store is None else {row.key: row for row in self.store.rows(keys)}
        for at, (key, spec) in enumerate(zip(keys, self.specs, strict=True)):
            row = rows_by_key.get(key)
            # the same content may have another name now
            named = self._blank(work, spec, key) if row is None else replace(row, model=subject.name)
            work.rows.append(named)
            # a row that failed may succeed with the packages installed now, and costs little to try again
            if row is None or row.error or self._unproved(row):
                work.open.append(at)
        self.total += len(work.open)
        self.kept += sum(row.products is not None for row in work.rows)
        return work

    def _fingerprint(self, work: _Work) -> None:
        digest_content = work.subject.content
        work.content = work.content or (
            digest_content() if digest_content is not None else fingerprint(work.files, self.cancel)
        )

    def _blank(self, work: _Work, spec: TileSpec, key: str) -> SweepRow:
        return SweepRow(
            key=key,
            model=work.subject.name,
            fingerprint=work.content,
            opening=work.subject.words,
            tile=spec.tile,
            edges=spec.edges,
            form=spec.form,
            grouped=spec.grouped,
            hardware=_words(self.hardware),
        )

    def _unproved(self, row: SweepRow) -> bool:
        proof = self.proof
        return proof is not None and (row.draws, row.seed) != (proof.draws, proof.seed)

    def spread(self, works: Sequence[_Work], scheduler: str | None, workers: int | None) -> int:
        """Computes the open rows, here or elsewhere; returns the number of processes that did."""
        busy = [work for work in works if work.open]
        if not busy:
            return 0
        if scheduler is None:
            workers = workers or self._suggested(busy)
            if workers == 1:
                for work in busy:
                    self._here(work)
                return 0
        tasks, places = self._tasks(busy)

        def done(task: Task, outcome: tuple[Struct, ...] | ExplorerError) -> None:
            work, indices = places[id(task)]
            if isinstance(outcome, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                for at in indices:
                    work.rows[at] = replace(work.rows[at], error=str(outcome))
            else:
                self._take(work, indices, [row for row in outcome if isinstance(row, SweepRow)])
            self._count(len(indices))

        report(self.on_progress, None, "starting workers")
        return cluster.spread(tasks, done, scheduler, workers or 1, self.cancel)

    def _suggested(self, works: Sequence[_Work]) -> int:
        """How many processes are worth it here."""
        proofs = sum(len(work.open) for work in works) if self.proof is not None else 0
        seconds = _OPENING * len(works)
        if proofs:
            seconds += sum(len(work.open) * (_PROOF + size_of(work.files) / _PROVED) for work in works)
        return suggested(seconds, max(proofs, len(works)), max(size_of(work.files) for work in works))

    def _here(self, work: _Work) -> None:
        """In this process: figures through the session that has the model open, proofs through another."""
        with contextlib.ExitStack() as stack:
            prover: SweepSession | None = None
            waiting: list[int] = []
            mark = time.perf_counter()
            try:
                for at in work.open:
                    stop_if(self.cancel)
                    row, spec = work.rows[at], self.specs[at]
                    if row.products is None:
                        row = plan_row(work.subject.door, row, spec, self.hardware, self.order)
                        self.made += 1
                    if self.proof is not None and not row.error:
                        if prover is None:
                            prover = stack.enter_context(
                                contextlib.closing(work.subject.opener(work.files)())
                            )
                        row = prove_row(prover, row, spec, self.proof, self.on_progress, self.cancel)
                        self.proved += 1
                    work.rows[at] = row
                    waiting.append(at)
                    self._count(1)
                    if self.proof is not None or time.perf_counter() - mark > _SLICE:
                        self._keep(work, waiting)
                        mark = time.perf_counter()
            finally:
                self._keep(work, waiting)

    def _keep(self, work: _Work, waiting: list[int]) -> None:
        """Stores the waiting rows."""
        if waiting and self.store is not None:
            self.store.add([work.rows[at] for at in waiting])
        waiting.clear()

    def _tasks(self, works: Sequence[_Work]) -> tuple[list[Task], dict[int, tuple[_Work, list[int]]]]:
        size = _TOGETHER if self.proof is None else 1
        tasks: list[Task] = []
        places: dict[int, tuple[_Work, list[int]]] = {}
        for work in works:
            self._fingerprint(work)
            opener = work.subject.opener(work.files)
            for start in range(0, len(work.open), size):
                indices = work.open[start : start + size]
                task = TilingTask(
                    opener=opener,
                    files=work.files,
                    fingerprint=work.content,
                    opening=work.subject.words,
                    rows=tuple(work.rows[at] for at in indices),
                    specs=tuple(self.specs[at] for at in indices),
                    hardware=self.hardware,
                    order=self.order,
                    proof=self.proof,
                )
                tasks.append(task)
                places[id(task)] = work, indices
        return tasks, places

    def _take(self, work: _Work, indices: Sequence[int], rows: Sequence[SweepRow]) -> None:
        for at, row in zip(indices, rows, strict=True):
            self.made += work.rows[at].products is None
            self.proved += self.proof is not None and not row.error
            work.rows[at] = row
        if self.store is not None:
            self.store.add(rows)

    def _count(self, rows: int) -> None:
        self.done += rows
        report(self.on_progress, None, "sweeping", self.done, self.total)


def _layers(work: _Work, specs: Sequence[TileSpec]) -> Iterator[SweepLayer]:
    """The products of each model, without models that cannot be tiled in any way."""
    for spec, row in zip(specs, work.rows, strict=True):
        if row.error:
            continue
        for site in work.subject.door.plan(spec).sites:
            yield SweepLayer(work.subject.name, site.name, site.M, site.K, site.N, site.batch, site.calls)
        return


def complain(rows: Sequence[Row]) -> None:
    """Raises the common error, if every row failed with the same one."""
    errors = {row.error for row in rows}
    if len(errors) == 1 and (error := errors.pop()):
        raise Misuse(error)


def _words(hardware: Hardware) -> str:
    """A machine in a few words: its name, and the numbers that count."""
    numbers: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "MACs/cycle": (hardware.macs_per_cycle, "{:,.12g}".format),
        "B/cycle": (hardware.bytes_per_cycle, "{:,.12g}".format),
        "": (hardware.clock, lambda clock: rate_text(clock, "Hz")),
        "buffer": (hardware.buffer, bytes_text),
        "array": (hardware.array, lambda array: sizes_text(array)),
    }
    texts_by_unit = {unit: text(value) for unit, (value, text) in numbers.items() if value is not None}
    figures = [f"{text} {unit}".strip() for unit, text in texts_by_unit.items()]
    figures += [] if hardware.double_buffered or not figures else ["single-buffered"]
    return ": ".join(filter(None, (hardware.name, ", ".join(figures))))
