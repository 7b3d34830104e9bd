"""Maps a model to many machines with memories: stores a row for each machine and size of its first memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError, MemoryTooSmall, MissingExtra, Misuse
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import Subject, check_count, cluster
from explorer.engine.sweep.fingerprint import compute_digest, compute_fingerprint
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.processes import count_file_bytes, suggest_processes
from explorer.engine.sweep.store import Store
from explorer.facts import to_json
from explorer.facts.mapping import MemoryMachine, Objective
from explorer.facts.mapping_sweep import MappingRow, MappingSweep, mark_mapping_front

_LONG_SECONDS = 3600.0
"""Assumed seconds of work if the duration of a row is not known. It is long enough for several processes."""


class MappingTask(Task, frozen=True, kw_only=True):
    """A row that a worker computes.

    Attributes:
        row: Row without figures.
        machine: Machine with the size of the row.
        globs: Globs of the names of the mapped matrix products.
    """

    row: MappingRow
    machine: MemoryMachine
    globs: tuple[str, ...]

    def compute_rows(self, session: SweepSession) -> Iterator[Struct]:
        """Yields the row with its figures, or with the error."""
        row = self.row
        try:
            mapping = session.map(self.machine, objective=row.objective, sites=self.globs)
        except (Cancelled, MissingExtra):
            raise
        except ExplorerError as error:
            fits = False if isinstance(error, MemoryTooSmall) else None
            yield replace(row, fits=fits, error=str(error))
            return
        figures = {
            name: getattr(mapping, name)
            for name in ("macs", "traffic", "compulsory", "cycles", "seconds", "pj")
        }
        exact = all(site.search is not None and site.search.exact for site in mapping.sites)
        fits = all(site.cost.fits for site in mapping.sites)
        yield replace(row, sites=len(mapping.sites), fits=fits, exact=exact, error="", **figures)


def sweep_mappings(
    subject: Subject,
    machines: Sequence[MemoryMachine],
    *,
    objective: Objective = "cycles",
    globs: tuple[str, ...] = (),
    keep_in_process: bool = False,
    output: str | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MappingSweep:
    """Maps a model to each machine.

    Args:
        subject: The model.
        machines: Machines with memories on the chip.
        objective: Figure that the searches minimize.
        globs: Globs of the names of the mapped matrix products. Empty maps all.
        keep_in_process: Whether the model is an object of this process, which no other process can open.
        output: Path of a file of results, or None. Only rows that it lacks are computed, and added to it.
        scheduler: Address of a Dask cluster, or None.
        workers: Number of processes on this machine. None means several only if that saves time.
        on_progress: Function called with the number of finished rows.
        cancel: Function called at intervals; True stops the sweep, and finished rows stay in `output`.

    Raises:
        Misuse: There are too many machines, or no row has figures.
        MissingExtra: A package is not installed.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    check_count(len(machines))
    if keep_in_process and (scheduler or (workers or 1) > 1):
        raise Misuse("an nn.Module object stays in its process", hint="name it as package.module:callable")
    with Store(MappingRow, output) as store:
        run = _Run(subject, machines, objective, globs, store, on_progress, cancel)
        computed_count = len(run.open)
        if scheduler is None:
            run.compute_in_process(1 if keep_in_process else workers)
        worker_count = run.compute_in_workers(scheduler, workers) if run.open else 0
    if all(row.fits is None for row in run.rows):
        raise Misuse(run.rows[0].error)
    rows, front = mark_mapping_front(run.rows)
    return MappingSweep(
        rows=rows,
        front=front,
        made=computed_count,
        kept=len(rows) - computed_count,
        output=output or "",
        workers=worker_count,
        seconds=time.perf_counter() - started,
    )


class _Run:
    """State of one run of the sweep.

    Attributes:
        content: Digest of the model's content, or '' if it is not needed yet.
        open: Indices of the rows to compute.
    """

    def __init__(
        self,
        subject: Subject,
        machines: Sequence[MemoryMachine],
        objective: Objective,
        globs: tuple[str, ...],
        store: Store[MappingRow],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.subject, self.machines, self.globs, self.store = subject, machines, globs, store
        self.on_progress, self.cancel = on_progress, cancel
        self.files = subject.list_files()
        self.content = "" if store.path is None else self._fingerprint()
        blank_rows = [self._build_blank_row(machine, objective) for machine in machines]
        stored_rows = {row.key: row for row in store.rows([row.key for row in blank_rows if row.key])}
        # the same content may have another name now
        self.rows = [
            replace(stored_rows[row.key], model=row.model) if row.key in stored_rows else row
            for row in blank_rows
        ]
        # a failed row is tried again, because packages may have been installed since
        self.open = [index for index, row in enumerate(self.rows) if row.fits is None]
        self.total = len(self.open)

    def compute_in_process(self, workers: int | None) -> None:
        """Computes the open rows in this process, or only the first if more processes save time."""
        while self.open and workers in (None, 1):
            stop_if(self.cancel)
            began = time.perf_counter()
            task = self._build_task(self.open[0])
            self._set_row(self.open[0], tuple(task.compute_rows(self.subject.session)))
            if workers is None and self.open:
                seconds = (time.perf_counter() - began) * len(self.open)
                workers = suggest_processes(seconds, len(self.open), count_file_bytes(self.files))

    def compute_in_workers(self, scheduler: str | None, workers: int | None) -> int:
        """Computes the open rows in other processes. Returns the number of workers."""
        self.content = self.content or self._fingerprint()
        tasks = [self._build_task(index) for index in self.open]
        index_by_task = {id(task): index for task, index in zip(tasks, self.open, strict=True)}
        process_count = workers or suggest_processes(_LONG_SECONDS, len(tasks), count_file_bytes(self.files))
        report(self.on_progress, None, "starting workers")

        def on_result(task: MappingTask, result: Sequence[Struct] | ExplorerError) -> None:
            self._set_row(index_by_task[id(task)], result)

        return cluster.run_tasks(tasks, on_result, scheduler, process_count, self.cancel)

    def _set_row(self, index: int, result: Sequence[Struct] | ExplorerError) -> None:
        """Sets a computed row or its error, stores it, and reports the number of finished rows."""
        if isinstance(result, ExplorerError):
            # not stored: another worker, or a later run, may succeed
            self.rows[index] = replace(self.rows[index], error=str(result))
        else:
            rows = [row for row in result if isinstance(row, MappingRow)]
            self.rows[index] = rows[0]
            self.store.add(rows if self.store.path is not None else ())
        self.open.remove(index)
        report(self.on_progress, None, "sweeping", self.total - len(self.open), self.total)

    def _build_task(self, index: int) -> MappingTask:
        """Returns the task that computes a row."""
        return MappingTask(
            opener=self.subject.opener(self.files),
            files=self.files,
            fingerprint=self.content,
            opening=self.subject.words,
            row=self.rows[index],
            machine=self.machines[index],
            globs=self.globs,
        )

    def _fingerprint(self) -> str:
        """Returns a digest of the model's content."""
        digest_content = self.subject.digest_content
        return (
            digest_content() if digest_content is not None else compute_fingerprint(self.files, self.cancel)
        )

    def _build_blank_row(self, machine: MemoryMachine, objective: Objective) -> MappingRow:
        """Builds the row of a machine without figures."""
        facts = to_json(machine)
        facts["hardware"].pop("origin", None)
        inputs = {
            "model": self.content,
            "opening": self.subject.opening,
            "machine": facts,
            "objective": objective,
            "globs": self.globs,
        }
        first_memory = machine.memories[1]
        return MappingRow(
            key=compute_digest(inputs) if self.content else "",
            model=self.subject.name,
            fingerprint=self.content,
            opening=self.subject.words,
            site=" ".join(self.globs),
            objective=objective,
            machine=machine.hardware.name,
            memory=first_memory.name,
            size=first_memory.size,
            on_chip=_sum_bytes_on_chip(machine),
        )


def _sum_bytes_on_chip(machine: MemoryMachine) -> int | None:
    """Returns the bytes of all memories but the outermost, with all instances, or None without a limit."""
    total_bytes, instances = 0, 1
    for memory in machine.memories[1:]:
        instances *= memory.cores
        if memory.size is None:
            return None
        total_bytes += memory.size * instances
    return total_bytes
