"""Number formats as functions of standard operators: stock onnxruntime gives each format's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from explorer.engine.number_formats import EXAMPLES, find_format
from explorer.engine.number_formats.number_format import NumberFormat
from explorer.engine.quantize.functions import build_function, call
from tests.engine.quantize.one_call import LEVELS, model_of, run, written

SHAPE = (3, 70, 5)


def fmt(name: str) -> NumberFormat:
    found = find_format(name)
    assert found is not None
    return found


def values_of(spread: int = 10) -> np.ndarray:
    draw = np.random.default_rng(0)
    values = draw.normal(0, 3, SHAPE) * 2.0 ** draw.integers(-spread, spread, SHAPE)
    # numbers beside powers of two, where a logarithm may be one off
    values[1, :40, 0] = np.nextafter(np.ldexp(np.float32(1), np.arange(-20, 20)), np.float32(-9))
    values[1, :40, 1] = np.nextafter(np.ldexp(np.float32(1), np.arange(-20, 20)), np.float32(9e9))
    values[1, :40, 2] = np.ldexp(1.5, np.arange(-20, 20))
    return values.astype(np.float32)


def wild() -> np.ndarray:
    values = values_of()
    values[0, :4, 0] = [np.nan, 1e38, -1e-40, -0.0]
    values[0, 40, 1] = np.inf
    values[0, 40, 2] = -np.inf
    return values


# of two unsigned integers the zero point lies in the middle, and QONNX adds it before it rounds
SYMMETRIC = [name for name in EXAMPLES[1:] if not name.startswith("uint")]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("name", [*SYMMETRIC, "floatE7M1", "floatE2M14", "fixed24.12"])
def test_onnxruntime_gives_a_formats_own_numbers(tmp_path: Path, name: str, opset: int) -> None:
    one, values = fmt(name), wild()
    grid = one.fit_grid(values_of(), axis=0)
    model = model_of([(one, grid, axis) for axis in (1, -1, 0)], SHAPE, opset)
    path = written(tmp_path, model)
    onnx.checker.check_model(str(path), full_check=True)
    expected, source = [], values
    for axis in (1, -1, 0):
        source = one.round_values(source, grid, axis)
        expected.append(source)
    for level in LEVELS if opset == 17 else LEVELS[-1:]:
        for ours, theirs in zip(expected, run(path, values, level), strict=True):
            assert np.array_equal(ours, theirs, equal_nan=True), level


@pytest.mark.parametrize(
    "name", ["fixed12.6", "ternary", "floatE4M3", "float8e5m2", "binary", "mxfp8", "mxint8"]
)
def test_the_reference_of_onnx_gives_the_same_numbers(tmp_path: Path, name: str) -> None:
    one, values = fmt(name), wild()
    grid = one.fit_grid(values_of(), axis=0)
    evaluator = ReferenceEvaluator(str(written(tmp_path, model_of([(one, grid, 1)], SHAPE, 17))))
    with np.errstate(all="ignore"):
        (got,) = evaluator.run(None, {"x": values})
    assert np.array_equal(one.round_values(values, grid, 1), got, equal_nan=True)


def test_one_file_holds_formats_of_other_bits_and_signs(tmp_path: Path) -> None:
    names = (
        "int8",
        "fixed12.6",
        "ufixed10.3",
        "ternary",
        "floatE4M3",
        "float8e5m2",
        "mxfp4",
        "mxint8",
        "float16",
    )
    values = values_of(3)
    grids = [fmt(name).fit_grid(values) for name in names]
    model = model_of([(fmt(name), grid, 1) for name, grid in zip(names, grids, strict=True)], SHAPE, 17)
    assert sorted(name for _, name, _ in model.functions) == ["FloatQuant", "IntQuant", "mxfp4", "mxint8"]
    got = run(written(tmp_path, model), values, LEVELS[-1])
    for name, grid, theirs in zip(names, grids, got, strict=True):
        values = fmt(name).round_values(values, grid, 1)
        assert np.array_equal(values, theirs), name


def test_every_power_of_two_of_float32_is_a_block_of_its_own(tmp_path: Path) -> None:
    # the shared exponent, taken from a logarithm, is right at each power of two and beside it
    powers = np.ldexp(np.float64(1), np.arange(-149, 128)).astype(np.float32)
    near = [np.nextafter(powers, np.float32(end)) for end in (-np.inf, np.inf)]
    values = np.zeros((3 * len(powers), 2), np.float32)
    values[:, 0] = np.concatenate([powers, *near])
    values[:, 1] = values[:, 0] * np.float32(0.37)
    for name in ("mxint8", "mxfp8", "mxfp8e5m2", "mxfp6", "mxfp6e3m2", "mxfp4"):
        one = fmt(name)
        grid = one.fit_grid(values)
        (got,) = run(written(tmp_path, model_of([(one, grid, -1)], values.shape, 18)), values, LEVELS[-1])
        assert np.array_equal(one.round_values(values, grid), got), name


def test_integers_with_a_zero_point_are_at_most_a_step_beside_quantize_linear(tmp_path: Path) -> None:
    values = values_of(2)
    for name, symmetric in (("uint8", True), ("int8", False), ("uint16", False)):
        one = fmt(name)
        grid = one.build_grid(values.min(), values.max(), symmetric=symmetric)
        assert grid.zero.any()
        (got,) = run(written(tmp_path, model_of([(one, grid, -1)], SHAPE, 17)), values, LEVELS[-1])
        steps = np.abs(got - one.round_values(values, grid)) / grid.scale
        assert steps.max() < 1.001
        assert (steps > 0.001).mean() < 0.01


def test_weights_that_share_a_scale_in_blocks_have_it_written_out(tmp_path: Path) -> None:
    values = values_of(2)
    one = fmt("int4")
    grid = one.fit_grid(values, axis=1, block=32)
    assert grid.scale.shape == (3, 3, 5)
    (got,) = run(written(tmp_path, model_of([(one, grid, 1)], SHAPE, 17)), values, LEVELS[-1])
    assert np.array_equal(one.round_values(values, grid), got)


@pytest.mark.slow
def test_a_size_that_is_open_stays_so(tmp_path: Path) -> None:
    for name in ("fixed12.6", "floatE4M3", "mxfp6", "binary"):
        one = fmt(name)
        for length in (1, 31, 32, 33, 64):
            values = values_of(2)[:, :length]
            model = model_of([(one, one.build_grid(np.float32(-8), np.float32(8)), 1)], ("n", "k", 5), 18)
            (got,) = run(written(tmp_path, model), values, LEVELS[-1])
            grid = one.build_grid(np.float32(-8), np.float32(8))
            assert np.array_equal(one.round_values(values, grid, 1), got), (name, length)


def test_an_operator_set_that_is_too_old_is_said() -> None:
    with pytest.raises(ValueError, match="operator set 13, not 12"):
        build_function(fmt("mxfp8"), 12)
    assert build_function(fmt("bfloat16"), 13) is None
    assert len(call(fmt("bfloat16"), fmt("bfloat16").build_grid(0, 1), "x", "y", (2,)).nodes) == 2
