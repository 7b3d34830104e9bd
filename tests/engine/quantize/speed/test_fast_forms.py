"""What int8 is written as comes from a table of data, by operator, processor and version of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from explorer import Session
from explorer.engine.quantize.speed import fast_forms
from explorer.engine.quantize.speed.fast_forms import resolve_fast_form
from explorer.facts.quantize import QuantizeSpec
from explorer.features.quantize.quantize_words import report_integer_kernels
from explorer.host import processor

FAST = QuantizeSpec(form="fast")
TABLE = fast_forms.read_rows(
    """
operator instructions onnxruntime weight input form unsaturated bias_correction time snr_db
Conv avx2 1.32 int8 uint8 chain true true 0.40 36.0
Conv avx2 1.28 int8 uint8 qoperator false false 0.50 30.0
Conv avx512_vnni 1.32 int8 uint8 chain false true 0.20 38.0
Conv neon_dotprod 1.32 int8 int8 qdq false true 0.30 38.0
Gemm avx2 1.32 int8 uint8 qdq true true 0.90 36.0
"""
)


@pytest.mark.parametrize(
    ("operators", "instructions", "version", "form", "unsaturated", "nearest"),
    [
        (("Conv", "Gemm"), "avx2", "1.32.1", "chain", True, False),
        (("Gemm",), "avx2", "1.32.0", "qdq", True, False),
        (("Conv",), "avx2", "1.29.0", "qoperator", False, True),
        (("Conv",), "avx512_vnni", "1.32.0", "chain", False, False),
        (("Conv",), "neon_i8mm", "1.33.0", "qdq", False, True),
        (("Conv",), "", "1.32.0", "chain", True, True),
    ],
)
def test_a_row_or_the_nearest_one_decides(
    operators: tuple[str, ...], instructions: str, version: str, form: str, unsaturated: bool, nearest: bool
) -> None:
    """The operator that gains most; a row of another processor or version is named as such."""
    found = resolve_fast_form(FAST, operators, instructions, version, TABLE)
    assert (found.spec.form, found.spec.unsaturated) == (form, unsaturated)
    (note,) = found.notes
    assert ("nothing was measured on" in note) is nearest


def test_other_formats_and_operators_have_no_fast_form() -> None:
    """They are written as ever, and operators without a row say so."""
    for spec in (QuantizeSpec("int4", "int8", form="fast"), QuantizeSpec(form="fast", symmetric=False)):
        assert resolve_fast_form(spec, ["Conv"], "avx2", "1.32.0", TABLE).spec.form == "auto"
    alone = resolve_fast_form(FAST, ["LSTM"], "avx2", "1.32.0", TABLE)
    assert alone.spec.form == "auto"
    assert "no fast form" in alone.notes[0]


def test_the_table_is_sound() -> None:
    """Each row once, by operators and instructions that there are, and of forms that can be asked for."""
    rows = fast_forms.read_rows()
    keys = [(row.operator, row.instructions, row.onnxruntime) for row in rows]
    assert len({*keys}) == len(keys) > 0
    assert all(0 < row.time < 3 and row.snr_db > 20 for row in rows)


def test_a_state_says_what_was_written_in_its_script(sample: Callable[[str], str], tmp_path: Path) -> None:
    """A session that asks for 'fast' keeps the formats and the form that were chosen."""
    with Session(sample("lenet")) as session:
        fact = session.quantize(FAST, report=False)
        entry = session.history().entries[1]
        assert entry.quantize is not None
        assert entry.quantize.spec.form not in ("fast", "auto")
        assert f"--form {entry.quantize.spec.form}" in fact.command
        session.script(str(tmp_path / "again.sh"))
    assert f"--form {entry.quantize.spec.form}" in (tmp_path / "again.sh").read_text()


def test_what_onnxruntime_does_not_load_is_unknown(sample: Callable[[str], str], tmp_path: Path) -> None:
    """bfloat16 has no kernels on a processor: the count is not known, which is not 0."""
    with Session(sample("linear_32x64x128")) as session:
        fact = session.quantize(QuantizeSpec("bfloat16", "bfloat16"), output=str(tmp_path / "a.onnx"))
    assert fact.kernels is not None
    if fact.kernels.problem:
        assert fact.kernels.integer_layers is None
        assert fact.times is None
        assert fact.untimed


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("fpu sse4_2 avx avx2 fma", "avx2"),
        ("avx avx2 avx512f avx512_vnni amx_int8", "amx"),
        ("avx avx2 avx512f", "avx512"),
        ("avx avx2 avx_vnni", "avx_vnni"),
        ("fp asimd evtstrm asimddp i8mm", "neon_i8mm"),
        ("FPU AVX1.0 AVX2", "avx2"),
        ("rv64gc", ""),
    ],
)
def test_instructions_are_told_by_flags(flags: str, name: str) -> None:
    """The best of a processor for products of bytes; '' where none is known."""
    assert processor.find_instruction_set(flags) == name


def test_a_kernel_that_multiplies_floats_is_no_integer_kernel(
    sample: Callable[[str], str], tmp_path: Path
) -> None:
    """MatMulNBits reads weights of 4 bits and multiplies floats."""
    with Session(sample("linear_32x64x128")) as session:
        fact = session.quantize(QuantizeSpec("int4", "float32"), output=str(tmp_path / "a.onnx"))
    assert fact.kernels is not None
    assert [(kernel.op, kernel.layers, kernel.integer) for kernel in fact.kernels.kernels] == [
        ("MatMulNBits", 1, False)
    ]
    assert fact.kernels.integer_layers == 0
    (line,) = [str(block) for block in report_integer_kernels(fact) if "MatMulNBits" in str(block)]
    assert "0 of 1 layers run on integer kernels; 1 MatMulNBits read integer weights" in line
