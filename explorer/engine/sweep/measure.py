"""Measures the rows of one model, in the present process or in a worker.

A task holds the names of the model's files and no weights, so a worker receives only a few hundred bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.base.version import __version__
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.sweep.fingerprint import compute_fingerprint
from explorer.engine.tiling.cost import compute_plan_cost
from explorer.facts import History, Plan, TileResult, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.evaluate.training_run import TrainingRun
from explorer.facts.mapping import ModelMapping
from explorer.facts.quantize import FormatRow, Quantization, QuantizeSpec
from explorer.facts.serving.sweep import ServingRow
from explorer.facts.sweep import SweepRow
from explorer.host import scratch

Row = SweepRow | FormatRow | ServingRow


class SweepSession(Protocol):
    """The methods of a session that sweeps call."""

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """Returns the plan of `tile`."""

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str,
        draws: int,
        seed: int,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TileResult:
        """Tiles, proves and writes the model."""

    def quantize_choice(
        self, spec: QuantizeSpec, *, as_graph: bool, on_progress: OnProgress = None
    ) -> Quantization:
        """Returns the layers and formats of `quantize_trial`, without running the model."""

    def quantize_trial(
        self,
        spec: QuantizeSpec,
        *,
        calibrate: str | None,
        draws: int,
        seed: int,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Quantization:
        """Quantizes and runs the model, without adding a state."""

    def module_digest(self) -> str:
        """Returns a digest of the opened module."""

    @property
    def map(self) -> Callable[..., ModelMapping]:
        """The method that maps the matrix products to a machine with memories."""

    @property
    def train(self) -> Callable[..., TrainingRun]:
        """The method that trains a copy of the module."""

    def undo(self) -> History:
        """Restores the state before the latest change of the model."""

    def close(self) -> None:
        """Closes the model."""


class ProofSpec(Struct, frozen=True):
    """Settings of the proof of a tiling.

    Attributes:
        draws: Number of random inputs.
        seed: Seed of the first input.
    """

    draws: int
    seed: int


class Task(Struct, frozen=True, kw_only=True):
    """Rows that one worker computes together.

    Attributes:
        opener: Picklable function that opens the model. Its module must be importable in the worker.
        files: Paths of the model's files, whose digest the worker compares with `fingerprint`. Empty if
            `opener` checks the model.
        fingerprint: Digest of the content of the files.
        opening: Options that the model is opened with, as the user types them.
        version: Version of the program that sends the task.
    """

    opener: Callable[[], SweepSession]
    files: tuple[str, ...]
    fingerprint: str
    opening: str = ""
    version: str = __version__

    def compute_rows(self, session: SweepSession) -> Iterator[Struct]:
        """Yields the rows."""
        raise NotImplementedError

    def __call__(self) -> tuple[Struct, ...]:
        """Computes the rows in the process of a worker."""
        return measure(self)


class TilingTask(Task, frozen=True, kw_only=True):
    """Rows of tilings.

    Attributes:
        rows: Rows without figures, or without a proof.
        specs: Tiling of each row.
        hardware: The machine.
        order: Order of the loops, as for `cost.compute_plan_cost`.
        proof: Settings of the proof, or None for figures without tiling.
    """

    rows: tuple[SweepRow, ...]
    specs: tuple[TileSpec, ...]
    hardware: Hardware
    order: str
    proof: ProofSpec | None

    def compute_rows(self, session: SweepSession) -> Iterator[SweepRow]:
        """Yields the rows."""
        for row, spec in zip(self.rows, self.specs, strict=True):
            # a stored row that lacks only a proof already has its figures
            if row.products is None:
                row = plan_row(session, row, spec, self.hardware, self.order)
            yield row if self.proof is None else prove_row(session, row, spec, self.proof)


def plan_row(
    session: SweepSession, row: SweepRow, spec: TileSpec, hardware: Hardware, order: str
) -> SweepRow:
    """Returns the row with the figures of its plan, or with the error that prevents them."""
    try:
        plan = session.plan(spec)
        cost = compute_plan_cost(plan, hardware, order=order)
    except (Cancelled, MissingExtra):
        raise
    except ExplorerError as error:
        return replace(row, error=str(error))
    total = cost.total
    return replace(
        row,
        sites=len(plan.sites),
        skipped=len(plan.skipped),
        products=cost.products,
        macs=plan.macs,
        macs_total=plan.macs_total,
        utilisation=cost.utilisation,
        padded_share=cost.padded_share,
        traffic=total.traffic,
        traffic_without_reuse=cost.traffic_without_reuse,
        lower_bound=cost.lower_bound,
        intensity=total.intensity,
        buffer=cost.buffer_double if cost.hardware.double_buffered else cost.buffer,
        fits=cost.fits,
        cycles=total.cycles,
        seconds=total.seconds,
        memory_bound=total.memory_bound,
        at_most=bool(cost.sign),
        error="",
    )


def prove_row(
    session: SweepSession,
    row: SweepRow,
    spec: TileSpec,
    proof: ProofSpec,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> SweepRow:
    """Tiles, writes and proves the model, and returns the row with the results.

    The written files are removed. A row with an error is returned unchanged. If the proof cannot run, the
    verdict gives the reason.
    """
    if row.error:
        return row
    row = replace(row, draws=proof.draws, seed=proof.seed)
    started = time.perf_counter()
    scratch_folder = scratch.Folder()
    folder = scratch_folder.path
    try:
        result = session.tile(
            spec,
            output=os.path.join(folder, "tiled.onnx"),
            draws=proof.draws,
            seed=proof.seed,
            on_progress=on_progress,
            cancel=cancel,
        )
        if result.output:
            session.undo()
        proof_result = result.verification
        assert proof_result is not None
        return replace(
            row,
            verified=proof_result.passed,
            verdict_kind=proof_result.verdict_kind,
            verdict=proof_result.verdict,
            worst_error=proof_result.worst_error,
            tiled_bytes=sum(file.stat().st_size for file in os.scandir(folder) if file.is_file())
            if result.output
            else None,
            proof_seconds=time.perf_counter() - started,
        )
    except (Cancelled, MissingExtra):
        raise
    except ExplorerError as error:
        return replace(
            row, verdict=f"could not be proved: {error}", proof_seconds=time.perf_counter() - started
        )
    finally:
        scratch_folder.remove()


_OPEN_LOCK = threading.Lock()
"""Lock of the open model. A worker process may have several threads, but has memory for one model only."""
_open_model: tuple[str, SweepSession] | None = None
"""Identity and session of the model that the worker process has open, or None."""


def measure(task: Task) -> tuple[Struct, ...]:
    """Computes the rows of a task in a worker's process. The model stays open for the next task.

    Raises:
        Misuse: The worker runs another version of the program.
        BadModel: The worker lacks the model, or has a different model of the same name.
        MissingExtra: The worker lacks a package that the model needs.
    """
    if task.version != __version__:
        message = f"the worker runs version {__version__}, but the sweep needs version {task.version}"
        raise Misuse(message, where="--scheduler", hint="install the same everywhere")
    with _OPEN_LOCK:
        return tuple(task.compute_rows(_open_session(task)))


def _open_session(task: Task) -> SweepSession:
    """Opens the model of a task, unless it is open from the task before, and checks its files.

    Raises:
        BadModel: The worker has different files with these names.
    """
    global _open_model
    identity = f"{task.fingerprint} {task.opening} {task.files}"
    if _open_model is None or _open_model[0] != identity:
        if _open_model is not None:
            _open_model[1].close()
            _open_model = None
        if task.files and compute_fingerprint(task.files) != task.fingerprint:
            raise BadModel("the worker has a different file with this name", where=task.files[0])
        _open_model = (identity, task.opener())
    return _open_model[1]
