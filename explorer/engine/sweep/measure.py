"""Measurement of the rows of one model, by the process that has it open: this one, or a worker.

A task names the model's files and carries no weight: a worker receives a few hundred bytes.
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
from explorer.engine.sweep.fingerprint import fingerprint
from explorer.engine.tiling.cost import plan_cost
from explorer.facts import History, Plan, TileResult, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.evaluate.training_run import TrainingRun
from explorer.facts.quantize import FormatRow, Quantization, QuantizeSpec
from explorer.facts.serving.sweep import ServingRow
from explorer.facts.sweep import SweepRow
from explorer.host import scratch

Row = SweepRow | FormatRow | ServingRow


class SweepSession(Protocol):
    """The part of a session that the engine uses to open models."""

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """The plan of `tile`."""

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
        """Tile, prove, write."""

    def quantize_choice(
        self, spec: QuantizeSpec, *, as_graph: bool, on_progress: OnProgress = None
    ) -> Quantization:
        """The layers and formats of `quantize_trial`, without running it."""

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
        """Quantize and run, without a state."""

    def module_digest(self) -> str:
        """Digest of the opened module."""

    @property
    def train(self) -> Callable[..., TrainingRun]:
        """The method that trains a copy of the module."""

    def undo(self) -> History:
        """One step back."""

    def close(self) -> None:
        """Let go of the model."""


class ProofSpec(Struct, frozen=True):
    """The proof of a tiling: the number of random inputs, and the seed of the first."""

    draws: int
    seed: int


class Task(Struct, frozen=True, kw_only=True):
    """Rows that one worker computes in one go.

    Attributes:
        opener: Opens the model, whose files it names. A function of a module that the worker can import, with
            its arguments: it is pickled as their names.
        files: The model's files, to check that the worker has the same; none where `opener` checks.
        fingerprint: Digest of their content.
        opening: The options that it is opened with, as they are typed.
        version: Version of the sending program.
    """

    opener: Callable[[], SweepSession]
    files: tuple[str, ...]
    fingerprint: str
    opening: str = ""
    version: str = __version__

    def made(self, door: SweepSession) -> Iterator[Struct]:
        """The rows, one after the other."""
        raise NotImplementedError

    def __call__(self) -> tuple[Struct, ...]:
        """The rows, made in a worker's process."""
        return measure(self)


class TilingTask(Task, frozen=True, kw_only=True):
    """Rows of tilings.

    Attributes:
        rows: Without figures; `specs` are their tilings.
        proof: None for the figures alone.
    """

    rows: tuple[SweepRow, ...]
    specs: tuple[TileSpec, ...]
    hardware: Hardware
    order: str
    proof: ProofSpec | None

    def made(self, door: SweepSession) -> Iterator[SweepRow]:
        """The rows, one after the other."""
        for row, spec in zip(self.rows, self.specs, strict=True):
            # a row that waits for its proof only has its figures
            if row.products is None:
                row = plan_row(door, row, spec, self.hardware, self.order)
            yield row if self.proof is None else prove_row(door, row, spec, self.proof)


def plan_row(door: SweepSession, row: SweepRow, spec: TileSpec, hardware: Hardware, order: str) -> SweepRow:
    """The row with the figures of its plan; where there can be none, with the reason."""
    try:
        plan = door.plan(spec)
        cost = plan_cost(plan, hardware, order=order)
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
    door: SweepSession,
    row: SweepRow,
    spec: TileSpec,
    proof: ProofSpec,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> SweepRow:
    """The row with the results of tiling, writing and proving; the files are removed on return."""
    if row.error:
        return row
    row = replace(row, draws=proof.draws, seed=proof.seed)
    started = time.perf_counter()
    temporary = scratch.Folder()
    folder = temporary.path
    try:
        result = door.tile(
            spec,
            output=os.path.join(folder, "tiled.onnx"),
            draws=proof.draws,
            seed=proof.seed,
            on_progress=on_progress,
            cancel=cancel,
        )
        if result.output:
            door.undo()
        evidence = result.verification
        assert evidence is not None
        return replace(
            row,
            verified=evidence.passed,
            verdict_kind=evidence.verdict_kind,
            verdict=evidence.verdict,
            worst_error=evidence.worst_error,
            tiled_bytes=sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
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
        temporary.remove()


_ONE = threading.Lock()
"""A worker may have threads; a model takes the memory of a process."""
_open: tuple[str, SweepSession] | None = None


def measure(task: Task) -> tuple[Struct, ...]:
    """The task's rows, made in a worker's process; the model stays open for the next task.

    Raises:
        Misuse: The worker runs another version of the program.
        BadModel: The worker lacks the model, or has a different one of the same name.
        MissingExtra: The worker lacks a package that the model needs.
    """
    if task.version != __version__:
        message = f"the worker runs version {__version__}, this is {task.version}"
        raise Misuse(message, where="--scheduler", hint="install the same everywhere")
    with _ONE:
        return tuple(task.made(_opened(task)))


def _opened(task: Task) -> SweepSession:
    global _open
    mark = f"{task.fingerprint} {task.opening} {task.files}"
    if _open is None or _open[0] != mark:
        if _open is not None:
            _open[1].close()
            _open = None
        if task.files and fingerprint(task.files) != task.fingerprint:
            raise BadModel("the worker has another file of this name", where=task.files[0])
        _open = (mark, task.opener())
    return _open[1]
