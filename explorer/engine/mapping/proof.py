"""Tests emitted code: compiles it, runs it on values, and compares its output and counters with the plan.

The output must equal the product: integers bit for bit, floats within the limit of the proof of a tiling. The
counters of bytes moved must equal the plan at every level, for every operand. Without a compiler, `walk` runs
the same nest in NumPy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from explorer.base.errors import Misuse
from explorer.engine.mapping.cost import compute_mapping_cost
from explorer.engine.mapping.emit_c import COUNTERS, DRIVER, EmittedSite
from explorer.engine.proof.compare import get_unit_roundoff
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.proof.sites.rounding import find_largest_ratio, find_smallest_number
from explorer.facts.mapping import LevelMoves, MemoryMachine, SiteMapping
from explorer.host import input_files, output_files, scratch

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

SECONDS = 300.0
"""Time limit of a compilation, and of a run."""

_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off")

_MAX_WIDE_PRODUCTS = 1 << 27
"""Maximum number of multiplications in a type wider than float64, for which NumPy has no fast product."""

_CHUNK_ELEMENTS = 1 << 22
"""Number of elements of A that are converted to float64 at a time."""


class RunInputs(NamedTuple):
    """Values on which a nest runs.

    Attributes:
        A: Left operands, of shape (batch, M, K).
        B: Right operands, of shape (batch, K, N).
        bias: Bias of each column in the accumulator's type, of shape (batch, N), or None.
        scale: Scale of each column in the float type of the epilogue, of shape (batch, N), or None.
        offset: Float that is added to each column after the scale, of shape (batch, N), or None.
        residual: Float that is added to each element, of shape (batch, M, N), or None.
        zero_a: Zero point of A.
        zero_b: Zero point of B.
    """

    A: _Array
    B: _Array
    bias: _Array | None = None
    scale: _Array | None = None
    offset: _Array | None = None
    residual: _Array | None = None
    zero_a: int = 0
    zero_b: int = 0


class RunResult(NamedTuple):
    """Output and counters of a run.

    Attributes:
        output: Output of shape (batch, M, N).
        counters: Bytes by level and counter; see `COUNTERS`.
    """

    output: _Array
    counters: dict[tuple[int, str], int]


class CompilerError(Misuse):
    """The compiler rejects a file, or takes too long. `what` quotes one line of the compiler's message."""


class CompilerTimeout(CompilerError):
    """The compiler takes longer than the time limit."""


def find_compiler() -> str | None:
    """Finds the C compiler: $CC, or cc."""
    return shutil.which(os.environ.get("CC") or "cc")


class Programs:
    """Compiled sites in a temporary folder. Equal sources are compiled once.

    Args:
        program: Path of the compiler.
        driver: Source of the driver.
        seconds: Time limit of a compilation and of a run, each, or None for `SECONDS`.
    """

    def __init__(self, program: str, driver: str = DRIVER, seconds: float | None = None) -> None:
        self._program, self._driver = program, driver
        self._seconds = SECONDS if seconds is None else seconds
        self._folder = scratch.Folder()
        self._paths: dict[str, str] = {}

    def close(self) -> None:
        """Removes the folder."""
        self._folder.remove()

    def run(self, source: str, mapping: SiteMapping, inputs: RunInputs, file: str = "site.c") -> RunResult:
        """Runs the code of a site on values.

        Args:
            source: Text of the C file.
            mapping: Mapping of the site.
            inputs: Values of the operands.
            file: Name of the C file for the messages of the compiler.

        Raises:
            CompilerError: The compiler rejects the code.
            Misuse: The code ends with an error, or takes longer than the limit.
        """
        if source not in self._paths:
            self._paths[source] = self._compile(source, file)
        words = []
        operands = inputs.A, inputs.B, inputs.bias, inputs.scale, inputs.offset, inputs.residual
        for name, values in zip(("a", "b", "bias", "scale", "offset", "residual"), operands, strict=True):
            words.append("-" if values is None else name)
            if values is not None:
                with output_files.open_binary(self._join_path(name)) as target:
                    target.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        numbers = [str(len(inputs.A)), str(inputs.zero_a), str(inputs.zero_b)]
        for name in ("output", "counters"):  # remove files of an earlier run
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._join_path(name))
        self._call(
            [self._paths[source], *numbers, *words, "output", "counters"], f"the program of {file}", Misuse
        )
        dtype = np.dtype(mapping.epilogue.output or mapping.accumulator)
        content, counts = self._read_result("output", file), self._read_result("counters", file).split()
        shape = len(inputs.A), inputs.A.shape[1], inputs.B.shape[2]
        places = [(level, name) for level in range(len(mapping.levels)) for name in COUNTERS]
        if len(content) != np.prod(shape) * dtype.itemsize or len(counts) != len(places):
            raise Misuse("its output has another size than the mapping", where=file)
        if not all(count.isdigit() for count in counts):
            raise Misuse("its counters are not whole numbers", where=file)
        output = np.frombuffer(content, dtype=dtype)
        return RunResult(output.reshape(shape), dict(zip(places, map(int, counts), strict=True)))

    def _read_result(self, name: str, file: str) -> bytes:
        """Reads a file that a program writes."""
        try:
            return input_files.read_content(self._join_path(name), internal=True)
        except FileNotFoundError:
            raise Misuse(f"its program ended without writing its {name}", where=file) from None

    def _join_path(self, name: str) -> str:
        return os.path.join(self._folder.path, name)

    def _compile(self, source: str, file: str) -> str:
        """Compiles a site with the driver, and returns the path of the program."""
        for name, code in ((file, source), ("driver.c", self._driver)):
            with output_files.open_text(self._join_path(name)) as target:
                target.write(code)
        program = self._join_path(f"site{len(self._paths)}")
        words = [self._program, *_FLAGS, "-o", program, file, "driver.c", "-lm"]
        try:
            self._call([*words, "-march=native"], "the C compiler", CompilerError)
        except CompilerTimeout:
            raise
        except CompilerError:  # a compiler may not know the processor
            self._call(words, "the C compiler", CompilerError)
        if not os.path.isfile(program):
            raise CompilerError("the C compiler wrote no program", where=os.path.basename(self._program))
        return program

    def _call(self, command: list[str], what: str, kind: type[Misuse]) -> None:
        """Runs a command in the folder; raises `kind`, about `what`, if it fails or takes too long."""
        name = os.path.basename(command[0])
        try:
            result = _run_process(command, self._seconds, self._folder.path)
        except subprocess.TimeoutExpired:
            kind = CompilerTimeout if kind is CompilerError else kind
            raise kind(f"{what} took longer than {self._seconds:g} s", where=name) from None
        except OSError as error:
            raise kind(f"{what} could not be started: {error.strerror}", where=name) from None
        if result.returncode:
            lines = (result.stderr or result.stdout or f"exit code {result.returncode}").strip().splitlines()
            first = next((line for line in lines if "error" in line), lines[0])
            raise kind(f"{what} failed: {first}", where=name)


def _run_process(command: list[str], seconds: float, folder: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder. After the time limit, ends it and all processes that it started.

    Raises:
        TimeoutExpired: The command takes longer than the limit.
        OSError: The command cannot be started.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        start_new_session=True,  # a compiler is often a script that starts others
    ) as process:
        try:
            output, messages = process.communicate(timeout=seconds)
        except BaseException:
            if hasattr(os, "killpg"):  # Windows has no process groups
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, messages)


def run_emitted(
    site: EmittedSite, mapping: SiteMapping, inputs: RunInputs, seconds: float = SECONDS
) -> RunResult:
    """Compiles the code of a site and runs it on values, in a temporary folder.

    Args:
        site: Code of the site.
        mapping: Its mapping.
        inputs: Values of the operands.
        seconds: Time limit of the compilation and of the run, each.

    Raises:
        Misuse: There is no compiler, it fails, or the program takes longer than the limit.
    """
    program = find_compiler()
    if program is None:
        hint = "install one, such as gcc or clang, or set CC"
        raise Misuse("no C compiler was found", where="cc", hint=hint)
    programs = Programs(program, seconds=seconds)
    try:
        return programs.run(site.source, mapping, inputs)
    finally:
        programs.close()


# -- counters


def list_planned_counters(mapping: SiteMapping, machine: MemoryMachine) -> dict[tuple[int, str], int]:
    """Lists the bytes that each counter of emitted code must have, from the plan."""
    counters: dict[tuple[int, str], int] = {}
    for move in compute_mapping_cost(mapping, machine).moves:
        counters.update(_list_planned(move))
    return counters


def _list_planned(move: LevelMoves) -> dict[tuple[int, str], int]:
    if move.operand in ("bias", "residual"):
        return {(move.level, f"{move.operand} reads"): move.outside_reads}
    planned = {
        (move.level, f"{move.operand} loads"): move.loads,
        (move.level, f"{move.operand} reads"): move.outside_reads,
    }
    if move.operand == "C":
        planned |= {(move.level, "C stores"): move.stores, (move.level, "C writes"): move.outside_writes}
    return planned


# -- numbers


def compute_exact_sums(inputs: RunInputs, accumulator: str) -> _Array:
    """Computes integer sums of shape (batch, M, N), which wrap around as in the accumulator's type.

    Sums of products of bytes and 16-bit integers are exact in float64, which uses BLAS. Small sums are exact
    in float32, which takes half the time.
    """
    zero_a, zero_b = float(inputs.zero_a), float(inputs.zero_b)
    batch, rows, depth = inputs.A.shape
    sums = np.empty((batch, rows, inputs.B.shape[2]), np.int64)
    step = max(1, _CHUNK_ELEMENTS // max(depth, 1))
    largest = depth * _find_largest(inputs.A, zero_a) * _find_largest(inputs.B, zero_b)
    dtype = np.dtype(np.float32 if largest <= 1 << 24 else np.float64)

    def subtract_zero(values: _Array, zero: float) -> _Array:
        numbers: _Array = values.astype(dtype)
        numbers -= dtype.type(zero)
        return numbers

    for index in range(batch):
        right = subtract_zero(inputs.B[index], zero_b)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            sums[index, part] = subtract_zero(inputs.A[index, part], zero_a) @ right
    return sums.astype(accumulator)


def _find_largest(values: _Array, zero: float) -> float:
    """Returns the largest absolute value after the subtraction of a zero point."""
    return max(abs(float(values.min(initial=0)) - zero), abs(float(values.max(initial=0)) - zero))


def compute_reference(inputs: RunInputs) -> Reference:
    """Computes the product of floats in a wider type, and the sums of the absolute values of its terms."""
    batch, rows, depth = inputs.A.shape
    # a type wider than float64 has no BLAS; for large products, float64 errors are within the limit, too
    is_small = inputs.A.size * inputs.B.shape[2] <= _MAX_WIDE_PRODUCTS
    wide = np.dtype(np.longdouble if inputs.A.dtype == np.float64 and is_small else np.float64)
    exact, bound = (np.empty((batch, rows, inputs.B.shape[2]), wide) for _ in range(2))
    step = max(1, _CHUNK_ELEMENTS // max(depth, 1))
    with np.errstate(all="ignore"):
        for index in range(batch):
            right = inputs.B[index].astype(wide)
            for first in range(0, rows, step):
                part = slice(first, first + step)
                left = inputs.A[index, part].astype(wide)
                exact[index, part] = left @ right
                bound[index, part] = np.abs(left) @ np.abs(right)
    return Reference(exact, bound, exact)


def find_error_ratio(
    outputs: Sequence[_Array], references: Sequence[Reference], depth: int
) -> tuple[float, float]:
    """Finds the error of float sums that is closest to its limit, and the limit, in u |A| |B|.

    The limit is that of the proof of a tiling; see `rounding`. The sums of emitted code are one chain of
    `depth` additions.
    """
    dtype = outputs[0].dtype
    return find_largest_ratio(
        outputs, references, get_unit_roundoff(str(dtype)), depth, find_smallest_number(dtype)
    )


def find_worst_error(output: _Array, inputs: RunInputs) -> float:
    """Computes the largest error of float sums, as a share of the limit for rounding."""
    ratio, limit = find_error_ratio([output], [compute_reference(inputs)], inputs.A.shape[2])
    return ratio / limit
