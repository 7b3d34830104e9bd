"""Fast forms: number formats and form in which int8 runs fastest, by operator, processor and onnxruntime.

The choice comes from a table that a benchmark measured (`fast_form_rows`), not from a measurement at the time
of the choice. The same command on the same kind of processor therefore writes the same file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.engine.quantize.speed.fast_form_rows import ROWS
from explorer.facts.quantize import QuantizeForm, QuantizeSpec

FAST = "int8"
"""Name of the number format that has fast forms."""


class FastForm(Struct, frozen=True):
    """A row of the table.

    Attributes:
        operator: Operator of the layers.
        instructions: Instruction set, as named by `host.processor.find_instruction_set`.
        onnxruntime: First two numbers of the version, such as '1.32'.
        weight, input, form, unsaturated, bias_correction: Settings of the form, as in `QuantizeSpec`.
        time: Time of a run, as a fraction of the original's time.
        snr_db: Signal-to-noise ratio at the output of the benchmark's network, in dB.
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
    """The specification that replaces a specification with the form 'fast'.

    Attributes:
        spec: Specification with explicit formats and an explicit form.
        notes: Notes on the table row of the choice, and on a missing row for this processor or version.
    """

    spec: QuantizeSpec
    notes: tuple[str, ...] = ()


@cache
def read_rows(text: str = ROWS) -> tuple[FastForm, ...]:
    """Parses all rows of the table."""
    import msgspec

    header, *lines = (line.split() for line in text.split("\n") if line.strip())
    return tuple(
        msgspec.convert(dict(zip(header, line, strict=True)), build_type(FastForm), strict=False)
        for line in lines
    )


def resolve_fast_form(
    spec: QuantizeSpec,
    operators: Collection[str],
    instructions: str,
    version: str,
    table: Sequence[FastForm] | None = None,
) -> Resolution:
    """Replaces the form 'fast' by an explicit form. A specification with another form is unchanged.

    Args:
        spec: Specification of the user.
        operators: Operators of the selected layers. The operator with the largest gain decides.
        instructions: Instruction set of the target processor.
        version: Full version of onnxruntime.
        table: Rows of fast forms. The default is the program's own table.
    """
    if spec.form != "fast":
        return Resolution(spec)
    plain = replace(spec, form="auto")
    formats = spec.weight, spec.input, spec.bias
    if formats != (FAST, FAST, "auto") or spec.block or spec.symmetric is not None:
        return Resolution(plain)
    forms = read_rows() if table is None else tuple(table)
    target = instructions, shorten_version(version)
    nearest = {
        op: _find_nearest_row([row for row in forms if row.operator == op], *target) for op in {*operators}
    }
    known_here = [row for row in nearest.values() if row is not None]
    row = min(known_here, key=lambda row: (row.time, row.operator), default=None)
    if row is None:
        return Resolution(plain, ("no fast form of int8 is known for these operators: QDQ is written",))
    changed = {
        name: getattr(row, name) for name in ("weight", "input", "form", "unsaturated", "bias_correction")
    }
    fast_spec = replace(spec, **changed)
    return Resolution(fast_spec, (_describe_row(row, *target),))


def shorten_version(version: str) -> str:
    """Returns the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _find_nearest_row(rows: Sequence[FastForm], instructions: str, version: str) -> FastForm | None:
    """Returns the row for this processor, else for its architecture, else for any; None without rows.

    Ties go to the nearest version.
    """
    architecture = instructions[:3]  # 'avx2' and 'avx512' are of the architecture 'avx'

    def rank_row(row: FastForm) -> tuple[bool, bool, tuple[int, ...], tuple[int, ...]]:
        own_version, row_version = _parse_version(version), _parse_version(row.onnxruntime)
        gap = tuple(abs(a - b) for a, b in zip(own_version, row_version, strict=False))
        return row.instructions != instructions, row.instructions[:3] != architecture, gap, row_version

    return min(rows, key=rank_row, default=None)


def _describe_row(row: FastForm, instructions: str, version: str) -> str:
    """Returns a note on the table row of a choice."""
    form_text = f"int8 as {row.form} of {row.weight} weights and {row.input} inputs"
    measured_on, target = (row.instructions, row.onnxruntime), (instructions, version)
    source = f"fast for {row.operator} on {row.instructions} with onnxruntime {row.onnxruntime}"
    if measured_on == target:
        return f"{form_text}: {source}"
    missing = f"{instructions or 'this processor'} with onnxruntime {version}"
    return f"{form_text}: {source}, the nearest that was measured; nothing was measured on {missing}"
