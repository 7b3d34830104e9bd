"""Proof of emitted code: compile it, run it on values, and compare its output and its counters with the plan.

The output must equal the product: integers bit for bit, floats within a multiple of the rounding error. The
counters of bytes moved must equal the plan at every level, for every operand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from explorer.base.errors import Misuse
from explorer.engine.mapping.cost import mapping_cost
from explorer.engine.mapping.emit_c import COUNTERS, DRIVER, EmittedSite
from explorer.facts.mapping import LevelMoves, MemoryMachine, SiteMapping
from explorer.host import input_files, output_files, scratch

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_LIMIT = 8
"""Largest error of a float sum in units of |A| |B| times the unit roundoff."""


class RunInputs(NamedTuple):
    """Values on which emitted code runs.

    Attributes:
        A: Left operands, of shape (batch, M, K).
        B: Right operands, of shape (batch, K, N).
        bias: Bias of shape (N,) in the accumulator's type, or None.
        residual: Residual of shape (batch, M, N) in the output's type, or None.
        zero_a: Zero point of A.
        zero_b: Zero point of B.
    """

    A: _Array
    B: _Array
    bias: _Array | None = None
    residual: _Array | None = None
    zero_a: int = 0
    zero_b: int = 0


class RunResult(NamedTuple):
    """Output and counters of a run of emitted code.

    Attributes:
        output: Output of shape (batch, M, N).
        counters: Bytes by level and counter; see `COUNTERS`.
    """

    output: _Array
    counters: dict[tuple[int, str], int]


def compiler() -> str | None:
    """Finds the C compiler: $CC, or cc."""
    return shutil.which(os.environ.get("CC") or "cc")


def run_emitted(site: EmittedSite, mapping: SiteMapping, inputs: RunInputs, seconds: float = 60) -> RunResult:
    """Compiles the code of a site and runs it on values, in a temporary folder.

    Args:
        site: Code of the site.
        mapping: Its mapping.
        inputs: Values of the operands.
        seconds: Time limit of the compilation and of the run, each.

    Raises:
        Misuse: There is no compiler, it fails, or the program takes longer than the limit.
    """
    program = compiler()
    if program is None:
        raise Misuse(
            "no C compiler was found", where="cc", hint="install one, such as gcc or clang, or set CC"
        )
    folder = scratch.Folder()
    try:
        output, counts = _run_in(folder.path, program, site, mapping, inputs, seconds)
    finally:
        folder.remove()
    names = [(level, name) for level in range(site.levels) for name in COUNTERS]
    return RunResult(output, dict(zip(names, counts, strict=True)))


def _run_in(
    folder: str, program: str, site: EmittedSite, mapping: SiteMapping, inputs: RunInputs, seconds: float
) -> tuple[_Array, list[int]]:
    """Compiles and runs a site in a folder, and reads its output and its counters."""

    def path(name: str) -> str:
        return os.path.join(folder, name)

    for name, code in (("site.c", site.source), ("driver.c", DRIVER)):
        with output_files.text(path(name)) as source:
            source.write(code)
    flags = ("-std=c11", "-O2", "-ffp-contract=off", "-o", path("site"))
    _call([program, *flags, path("site.c"), path("driver.c"), "-lm"], "the C compiler", seconds)
    words = []
    for name, values in zip("ABXR", (inputs.A, inputs.B, inputs.bias, inputs.residual), strict=True):
        words.append("-" if values is None else path(name))
        if values is not None:
            with output_files.binary(path(name)) as target:
                target.write(np.ascontiguousarray(values).tobytes())
    numbers = [str(len(inputs.A)), str(inputs.zero_a), str(inputs.zero_b)]
    _call([path("site"), *numbers, *words, path("out"), path("counts")], "the compiled site", seconds)
    dtype = np.dtype(mapping.epilogue.output or mapping.accumulator)
    output = np.frombuffer(input_files.content(path("out"), internal=True), dtype=dtype)
    counts = input_files.content(path("counts"), internal=True).split()
    shape = len(inputs.A), inputs.A.shape[1], inputs.B.shape[2]
    return output.reshape(shape), [int(count) for count in counts]


def _call(command: list[str], what: str, seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise Misuse(f"{what} took longer than {seconds:g} s", where=command[0]) from None
    except OSError as error:
        raise Misuse(f"{what} could not be started: {error.strerror}", where=command[0]) from None
    if done.returncode:
        lines = (done.stderr or done.stdout or f"exit code {done.returncode}").strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0])
        raise Misuse(f"{what} failed: {first}", where=command[0])


def planned_counters(mapping: SiteMapping, machine: MemoryMachine) -> dict[tuple[int, str], int]:
    """Lists the bytes that each counter of emitted code must have, from the plan."""
    counters: dict[tuple[int, str], int] = {}
    for move in mapping_cost(mapping, machine).moves:
        if move.operand in ("A", "B", "C"):
            counters.update(_planned(move))
    return counters


def _planned(move: LevelMoves) -> dict[tuple[int, str], int]:
    planned = {
        (move.level, f"{move.operand} loads"): move.loads,
        (move.level, f"{move.operand} reads"): move.outside_reads,
    }
    if move.operand == "C":
        planned |= {(move.level, "C stores"): move.stores, (move.level, "C writes"): move.outside_writes}
    return planned


def worst_error(output: _Array, inputs: RunInputs) -> float:
    """Computes the largest error of float sums, as a share of what rounding allows: 1 is the limit.

    The limit is that of the proof of a tiling: 8 units in the last place of |A| |B|, elementwise.
    """
    exact = inputs.A.astype(np.float64) @ inputs.B.astype(np.float64)
    scale = np.abs(inputs.A.astype(np.float64)) @ np.abs(inputs.B.astype(np.float64))
    limit = _LIMIT * float(np.finfo(output.dtype).eps) / 2 * scale
    error = np.abs(output.astype(np.float64) - exact)
    wrong = np.where(limit > 0, error / np.where(limit > 0, limit, 1), np.where(error > 0, np.inf, 0))
    return float(wrong.max(initial=0))
