"""Sweeps many tilings of many models. Missing rows are computed and stored at once.

The key of a row is a digest of all inputs of its figures. A sweep that was killed therefore continues where
it stopped, and another sweep into the same file computes only new rows.
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
from explorer.engine.sweep.fingerprint import compute_fingerprint, compute_key
from explorer.engine.sweep.measure import ProofSpec, Row, SweepSession, Task, TilingTask, plan_row, prove_row
from explorer.engine.sweep.processes import count_file_bytes, suggest_processes
from explorer.engine.sweep.store import Store
from explorer.facts import TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.pareto_front import mark_front
from explorer.facts.quantize import QuantizeRequest
from explorer.facts.sweep import Sweep, SweepLayer, SweepRow, SweepSpec, count_combinations, list_combinations
from explorer.host.output_files import check_target

MAX_ROWS = 100_000
"""Maximum number of rows of one sweep."""
_WRITE_SECONDS = 0.2
"""Minimum seconds between two writes of rows without a proof. Each write waits for the disk."""
_ROWS_PER_TASK = 256
"""Maximum number of rows without a proof in one task of a worker, which opens the model once for all."""
_PROOF_SECONDS, _PROOF_BYTES_PER_SECOND, _OPENING_SECONDS = 0.15, 1.5e8, 0.3
"""Approximate seconds of a proof, bytes of a model that add a second to it, and seconds to open a model."""


class Subject(Struct, frozen=True):
    """A model of the sweep.

    Attributes:
        name: The user's name of the model.
        session: Session in which the model is open.
        list_files: Function that returns the absolute paths of the model's files, the graph first. It exports
            a model that is not ONNX.
        opener: Function that takes these paths and returns a picklable function that opens the model in
            another process.
        opening: Options that the model is opened with and that its figures depend on.
        words: The options in `opening` as the user types them.
        build_command: Function that returns the command that quantizes the model as requested, or '' if no
            command can.
        digest_content: Function that returns a digest of a model that is not read from files, or None for a
            model that is. If it is set, `list_files` returns no paths.
    """

    name: str
    session: SweepSession
    list_files: Callable[[], tuple[str, ...]]
    opener: Callable[[Sequence[str]], Callable[[], SweepSession]]
    opening: Mapping[str, Any]
    words: str = ""
    build_command: Callable[[QuantizeRequest], str] = lambda request: ""
    digest_content: Callable[[], str] | None = None


class _ModelState(Struct):
    """State of one model in the sweep.

    Attributes:
        subject: The model.
        files: Paths of the model's files.
        content: Digest of the model's content.
        rows: Rows in the order of the combinations.
        remaining: Indices of the rows to compute.
    """

    subject: Subject
    files: tuple[str, ...] = ()
    content: str = ""
    rows: list[SweepRow] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)


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
    """Computes a row for every model and every combination of `spec`.

    A model that cannot be opened gets rows with the error, and the sweep continues with the other models.

    Args:
        subjects: The models.
        spec: The combinations.
        hardware: The machine, or None for no cycles.
        order: Order of the loops, as for `cost.compute_plan_cost`.
        proof: Settings of the proof of each tiled model, or None for figures without tiling.
        output: Path of a file of results, or None. Only rows that it lacks are computed, and added to it.
        scheduler: Address of a Dask cluster that does the work, or None.
        workers: Number of processes on this machine. 1 means the present process. None means one process for
            each processor if that saves time.
        layers: Whether the answer also lists the products of the models.
        on_progress: Function called with the number of finished rows.
        cancel: Function called at intervals; True stops the sweep, and finished rows stay in `output`.

    Raises:
        Misuse: There are too many combinations, `output` holds no results, or every row fails with the same
            error.
        MissingExtra: A package is not installed that the only model, `scheduler` or `workers` needs.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    check_count(count_combinations(spec) * len(subjects))
    specs = list_combinations(spec)
    machine = hardware or Hardware()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(SweepRow, output)) if output is not None else None
        run = _Run(store, specs, machine, order, proof, on_progress, cancel)
        states = [run.prepare(subject, is_only_model=len(subjects) == 1) for subject in subjects]
        count = run.fill(states, scheduler, workers)
        rows = mark_front([row for state in states for row in state.rows])
    raise_common_error(rows)
    return Sweep(
        rows=rows,
        hardware=machine,
        layers=tuple(layer for state in states for layer in _list_layers(state, specs)) if layers else (),
        made=run.made,
        kept=run.kept,
        proved=run.proved,
        output=output or "",
        workers=count,
        seconds=time.perf_counter() - started,
    )


def check_count(count: int, where: str = "sweep", rows: str = "combinations") -> None:
    """Refuses a sweep of too many rows. Callers count the rows before they build them.

    Args:
        count: Number of rows.
        where: Command, for the message.
        rows: Plural noun for the rows, for the message.

    Raises:
        Misuse: There are more than `MAX_ROWS` rows.
    """
    if count > MAX_ROWS:
        raise Misuse(f"these are {count:,} {rows}", where=where, hint=f"{MAX_ROWS:,} are the most")


def check_output(path: str, models: Sequence[str]) -> None:
    """Refuses a path of results that would overwrite another file, before any work is done.

    Raises:
        Misuse: The file is a model, or another file without results.
    """
    check_target(path, overwrite=True, models=models, weights=())
    if os.path.exists(path):
        Store(SweepRow, path).close()


def read_sweep(path: str) -> Sweep:
    """Reads all rows of tilings in a file of results.

    Raises:
        Misuse: The file holds no results.
    """
    with Store(SweepRow, path, changed=False) as store:
        rows = mark_front(list(store.rows()))
    return Sweep(rows=rows, hardware=Hardware(), kept=len(rows), output=path)


class _Run:
    """State of one run of the sweep. `made`, `kept` and `proved` count computed, stored and proved rows."""

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

    def prepare(self, subject: Subject, *, is_only_model: bool) -> _ModelState:
        """Fingerprints a model, and collects its stored rows and blank rows.

        Args:
            subject: The model.
            is_only_model: Whether the sweep has no other model.
        """
        state = _ModelState(subject)
        try:
            state.files = subject.list_files()
            if self.store is not None:
                report(self.on_progress, None, "reading the model")
                self._fingerprint(state)
        except Cancelled:
            raise
        except ExplorerError as error:
            if is_only_model and isinstance(error, MissingExtra):
                raise
            state.rows = [
                replace(self._build_blank_row(state, spec, ""), error=str(error)) for spec in self.specs
            ]
            return state
        opening = {**subject.opening, "order": self.order}
        keys = [
            compute_key(state.content, opening, spec, self.hardware) if self.store is not None else ""
            for spec in self.specs
        ]
        rows_by_key = {} if self.store is None else {row.key: row for row in self.store.rows(keys)}
        for index, (key, spec) in enumerate(zip(keys, self.specs, strict=True)):
            row = rows_by_key.get(key)
            # the same content may have another name now
            current_row = (
                self._build_blank_row(state, spec, key) if row is None else replace(row, model=subject.name)
            )
            state.rows.append(current_row)
            # a failed row is tried again, because packages may have been installed since
            if row is None or row.error or self._needs_proof(row):
                state.remaining.append(index)
        self.total += len(state.remaining)
        self.kept += sum(row.products is not None for row in state.rows)
        return state

    def _fingerprint(self, state: _ModelState) -> None:
        """Sets the digest of the model's content, if it is not known yet."""
        digest_content = state.subject.digest_content
        state.content = state.content or (
            digest_content() if digest_content is not None else compute_fingerprint(state.files, self.cancel)
        )

    def _build_blank_row(self, state: _ModelState, spec: TileSpec, key: str) -> SweepRow:
        """Builds a row of a tiling without figures."""
        return SweepRow(
            key=key,
            model=state.subject.name,
            fingerprint=state.content,
            opening=state.subject.words,
            tile=spec.tile,
            edges=spec.edges,
            form=spec.form,
            grouped=spec.grouped,
            hardware=_describe_hardware(self.hardware),
        )

    def _needs_proof(self, row: SweepRow) -> bool:
        """Whether a proof is requested that differs from the proof of the row."""
        proof = self.proof
        return proof is not None and (row.draws, row.seed) != (proof.draws, proof.seed)

    def fill(self, states: Sequence[_ModelState], scheduler: str | None, workers: int | None) -> int:
        """Computes the remaining rows of all models. Returns the number of workers, or 0 for this process."""
        open_states = [state for state in states if state.remaining]
        if not open_states:
            return 0
        if scheduler is None:
            workers = workers or self._choose_worker_count(open_states)
            if workers == 1:
                for state in open_states:
                    self._compute_in_process(state)
                return 0
        tasks, rows_by_task = self._list_tasks(open_states)

        def on_result(task: Task, outcome: tuple[Struct, ...] | ExplorerError) -> None:
            state, indices = rows_by_task[id(task)]
            if isinstance(outcome, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                for index in indices:
                    state.rows[index] = replace(state.rows[index], error=str(outcome))
            else:
                self._add_rows(state, indices, [row for row in outcome if isinstance(row, SweepRow)])
            self._report_rows(len(indices))

        report(self.on_progress, None, "starting workers")
        return cluster.run_tasks(tasks, on_result, scheduler, workers or 1, self.cancel)

    def _choose_worker_count(self, states: Sequence[_ModelState]) -> int:
        """Returns the number of processes on this machine that save time."""
        proof_count = sum(len(state.remaining) for state in states) if self.proof is not None else 0
        seconds = _OPENING_SECONDS * len(states)
        if proof_count:
            seconds += sum(
                len(state.remaining)
                * (_PROOF_SECONDS + count_file_bytes(state.files) / _PROOF_BYTES_PER_SECOND)
                for state in states
            )
        return suggest_processes(
            seconds, max(proof_count, len(states)), max(count_file_bytes(state.files) for state in states)
        )

    def _compute_in_process(self, state: _ModelState) -> None:
        """Computes the rows of a model in this process. Its proofs run in a second session of the model."""
        with contextlib.ExitStack() as stack:
            prover: SweepSession | None = None
            finished: list[int] = []
            last_write = time.perf_counter()
            try:
                for index in state.remaining:
                    stop_if(self.cancel)
                    row, spec = state.rows[index], self.specs[index]
                    if row.products is None:
                        row = plan_row(state.subject.session, row, spec, self.hardware, self.order)
                        self.made += 1
                    if self.proof is not None and not row.error:
                        if prover is None:
                            prover = stack.enter_context(
                                contextlib.closing(state.subject.opener(state.files)())
                            )
                        row = prove_row(prover, row, spec, self.proof, self.on_progress, self.cancel)
                        self.proved += 1
                    state.rows[index] = row
                    finished.append(index)
                    self._report_rows(1)
                    if self.proof is not None or time.perf_counter() - last_write > _WRITE_SECONDS:
                        self._store_rows(state, finished)
                        last_write = time.perf_counter()
            finally:
                self._store_rows(state, finished)

    def _store_rows(self, state: _ModelState, finished: list[int]) -> None:
        """Stores the rows at the indices in `finished`, and clears the list."""
        if finished and self.store is not None:
            self.store.add([state.rows[index] for index in finished])
        finished.clear()

    def _list_tasks(
        self, states: Sequence[_ModelState]
    ) -> tuple[list[Task], dict[int, tuple[_ModelState, list[int]]]]:
        """Builds the tasks of the remaining rows, and maps the `id` of each to its model and row indices."""
        rows_per_task = _ROWS_PER_TASK if self.proof is None else 1
        tasks: list[Task] = []
        rows_by_task: dict[int, tuple[_ModelState, list[int]]] = {}
        for state in states:
            self._fingerprint(state)
            opener = state.subject.opener(state.files)
            for start in range(0, len(state.remaining), rows_per_task):
                indices = state.remaining[start : start + rows_per_task]
                task = TilingTask(
                    opener=opener,
                    files=state.files,
                    fingerprint=state.content,
                    opening=state.subject.words,
                    rows=tuple(state.rows[index] for index in indices),
                    specs=tuple(self.specs[index] for index in indices),
                    hardware=self.hardware,
                    order=self.order,
                    proof=self.proof,
                )
                tasks.append(task)
                rows_by_task[id(task)] = state, indices
        return tasks, rows_by_task

    def _add_rows(self, state: _ModelState, indices: Sequence[int], rows: Sequence[SweepRow]) -> None:
        """Sets the rows at the given indices to rows that a worker computed, and stores them."""
        for index, row in zip(indices, rows, strict=True):
            self.made += state.rows[index].products is None
            self.proved += self.proof is not None and not row.error
            state.rows[index] = row
        if self.store is not None:
            self.store.add(rows)

    def _report_rows(self, rows: int) -> None:
        """Adds to the number of finished rows, and reports it."""
        self.done += rows
        report(self.on_progress, None, "sweeping", self.done, self.total)


def _list_layers(state: _ModelState, specs: Sequence[TileSpec]) -> Iterator[SweepLayer]:
    """Yields the matrix products of a model, or nothing if no combination can tile it."""
    for spec, row in zip(specs, state.rows, strict=True):
        if row.error:
            continue
        for site in state.subject.session.plan(spec).sites:
            yield SweepLayer(
                model=state.subject.name,
                name=site.name,
                M=site.M,
                K=site.K,
                N=site.N,
                batch=site.batch,
                calls=site.calls,
            )
        return


def raise_common_error(rows: Sequence[Row]) -> None:
    """Raises `Misuse` if every row failed with the same error."""
    errors = {row.error for row in rows}
    if len(errors) == 1 and (error := errors.pop()):
        raise Misuse(error)


def _describe_hardware(hardware: Hardware) -> str:
    """Describes a machine by its name and its figures."""
    figures_by_unit: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "MACs/cycle": (hardware.macs_per_cycle, "{:,.12g}".format),
        "B/cycle": (hardware.bytes_per_cycle, "{:,.12g}".format),
        "": (hardware.clock, lambda clock: rate_text(clock, "Hz")),
        "buffer": (hardware.buffer, bytes_text),
        "array": (hardware.array, lambda array: sizes_text(array)),
    }
    texts_by_unit = {
        unit: text(value) for unit, (value, text) in figures_by_unit.items() if value is not None
    }
    figures = [f"{text} {unit}".strip() for unit, text in texts_by_unit.items()]
    figures += [] if hardware.double_buffered or not figures else ["single-buffered"]
    return ": ".join(filter(None, (hardware.name, ", ".join(figures))))
