"""Fast forms: number formats and form in which int8 runs fastest, by operator, processor and onnxruntime.

The choice comes from rows that a benchmark measured (`fast_form_rows`), never from a stopwatch of the moment:
the same command on the same kind of processor writes the same file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.quantize.speed.fast_form_rows import ROWS
from explorer.facts.quantize import QuantizeForm, QuantizeSpec

FAST = "int8"
"""The format that has fast forms."""


class FastForm(Struct, frozen=True):
    """A row of the table.

    Attributes:
        operator: Operator of the layers.
        instructions: Instruction set, as `host.processor.instructions` names it.
        onnxruntime: Version, as '1.32'.
        weight, input, form, unsaturated, bias_correction: As in `QuantizeSpec`.
        time: Time of a run, as a share of the original's.
        snr_db: At the output of the benchmark's network.
    """

    operator: str
    instructions: str
    onnxruntime: str
    weight: str
    input: str
    form: QuantizeForm
    unsaturated: bool
    bias_correction: bool
    time: float
    snr_db: float


class Resolution(Struct, frozen=True):
    """The specification that replaces one with the form 'fast'.

    Attributes:
        spec: With explicit formats and an explicit form.
        notes: The table row of the choice, and why, if no row is for this processor and version.
    """

    spec: QuantizeSpec
    notes: tuple[str, ...] = ()


@cache
def rows(text: str = ROWS) -> tuple[FastForm, ...]:
    """All rows of the table."""
    import msgspec

    header, *lines = (line.split() for line in text.split("\n") if line.strip())
    return tuple(
        msgspec.convert(dict(zip(header, line, strict=True)), FastForm, strict=False) for line in lines
    )


def resolved(
    spec: QuantizeSpec,
    operators: Collection[str],
    instructions: str,
    version: str,
    table: Sequence[FastForm] | None = None,
) -> Resolution:
    """The specification with a fast form filled in; a specification without 'fast' is unchanged.

    Args:
        spec: The user's specification.
        operators: Operators of the selected layers; the operator with the largest gain decides.
        instructions: Instruction set of the target processor.
        version: Full version of onnxruntime.
        table: Rows; by default the program's own table.
    """
    if spec.form != "fast":
        return Resolution(spec)
    plain = replace(spec, form="auto")
    if (
        (spec.weight, spec.input, spec.bias) != (FAST, FAST, "auto")
        or spec.block
        or spec.symmetric is not None
    ):
        return Resolution(plain)
    forms = rows() if table is None else tuple(table)
    here = instructions, short(version)
    nearest = {op: _nearest([row for row in forms if row.operator == op], *here) for op in {*operators}}
    known_here = [row for row in nearest.values() if row is not None]
    row = min(known_here, key=lambda row: (row.time, row.operator), default=None)  # the largest gain decides
    if row is None:
        return Resolution(plain, ("no fast form of int8 is known for these operators: QDQ is written",))
    changed = {
        name: getattr(row, name) for name in ("weight", "input", "form", "unsaturated", "bias_correction")
    }
    fast_spec = replace(spec, **changed)
    return Resolution(fast_spec, (_note(row, *here),))


def short(version: str) -> str:
    """A version by its first two numbers."""
    return ".".join(version.split(".")[:2])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _nearest(rows: Sequence[FastForm], instructions: str, version: str) -> FastForm | None:
    """The row for this processor, else for one of the same make, else any; of these, the nearest version."""
    make = instructions[:3]

    def distance(row: FastForm) -> tuple[bool, bool, tuple[int, ...], tuple[int, ...]]:
        mine, its = _number(version), _number(row.onnxruntime)
        gap = tuple(abs(a - b) for a, b in zip(mine, its, strict=False))
        return row.instructions != instructions, row.instructions[:3] != make, gap, its

    return min(rows, key=distance, default=None)


def _note(row: FastForm, instructions: str, version: str) -> str:
    """A note on the table row of a choice."""
    form_text = f"int8 as {row.form} of {row.weight} weights and {row.input} inputs"
    measured_on, here = (row.instructions, row.onnxruntime), (instructions, version)
    taken = f"fast for {row.operator} on {row.instructions} with onnxruntime {row.onnxruntime}"
    if measured_on == here:
        return f"{form_text}: {taken}"
    missing = f"{instructions or 'this processor'} with onnxruntime {version}"
    return f"{form_text}: {taken}, the nearest that was measured; nothing was measured on {missing}"
