"""Number formats by name, each held against the list of all numbers that it has, and against ml_dtypes."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.base.errors import Misuse
from explorer.engine.number_formats import EXAMPLES, find_format
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.manual import page
from tests.engine.quantize.representable import (
    EMAX,
    MX_ELEMENTS,
    float_numbers,
    microscaled,
    nearest,
    rounded_magnitudes,
)


def fmt(name: str) -> NumberFormat:
    found = find_format(name)
    assert found is not None
    return found


def unscaled(name: str, values: np.ndarray) -> np.ndarray:
    one = fmt(name)
    return one.round_values(values, one.build_grid(values.min(), values.max()))


def trying(numbers: list[float]) -> np.ndarray:
    """Every number of a format, every tie, what is just beside those, what is beyond, and a NaN."""
    ends = np.array(numbers)
    middles = (ends[1:] + ends[:-1]) / 2
    exact = np.concatenate([ends, middles, [ends[-1] * 1.01, ends[-1] * 3, 1e38, 3e38, np.inf]])
    with np.errstate(over="ignore"):
        values = np.concatenate([exact, -exact]).astype(np.float32)
    beside = [np.nextafter(values, np.float32(end)) for end in (-np.inf, np.inf)]
    drawn = np.random.default_rng(0).normal(0, min(float(ends.max()) / 3, 1e37), 500).astype(np.float32)
    return np.concatenate([values, *beside, drawn, np.float32([np.nan, 1e-45])])


def test_the_examples_of_fixed_point_that_a_designer_knows() -> None:
    values = np.float32([-0.0923, -0.2323, 0.0019, 0.1775, 0.03125, 0.09375, 7.95, 9, -8.2])
    expected = np.float32([-0.0625, -0.25, 0, 0.1875, 0, 0.125, 7.9375, 7.9375, -8])
    assert np.array_equal(unscaled("fixed8.4", values), expected)


@pytest.mark.parametrize("name", ["fixed8.4", "ufixed8.4", "fixed12.6", "fixed4.0", "fixed5.9", "ufixed1.0"])
def test_fixed_point_is_the_nearest_of_its_numbers(name: str) -> None:
    bits, fraction = (int(n) for n in name.lstrip("ufixed").split("."))
    first = 0 if name.startswith("u") else -(1 << (bits - 1))
    numbers = [code * 2.0**-fraction for code in range(first, first + (1 << bits))]
    values = trying(numbers)
    assert np.array_equal(unscaled(name, values), nearest(values, numbers), equal_nan=True)
    one = fmt(name)
    low, high = one.find_limits(one.build_grid(values, values))
    assert (float(low), float(high)) == (numbers[0], numbers[-1])
    known = values[np.isfinite(values)]
    codes = one.encode(known, one.build_grid(values, values))
    assert np.array_equal(codes * np.float32(2.0**-fraction), nearest(known, numbers))


@pytest.mark.parametrize(
    "name", ["floatE4M3", "floatE5M2", "floatE2M1", "floatE1M2", "floatE3M4", "floatE7M1"]
)
def test_a_minifloat_is_the_nearest_of_its_numbers(name: str) -> None:
    exponent, mantissa = (int(n) for n in name[6:].split("M"))
    numbers = float_numbers(exponent, mantissa, (1 << (exponent - 1)) - 1)
    values = trying(numbers)
    assert np.array_equal(unscaled(name, values), rounded_magnitudes(values, numbers), equal_nan=True)
    one = fmt(name)
    assert float(one.find_limits(one.build_grid(values, values))[1]) == numbers[-1]
    assert one.bits == 1 + exponent + mantissa


def test_a_float_of_powers_of_two_takes_a_tie_to_the_larger() -> None:
    values = np.float32([0.75, 1.5, 3, 1.49, 0.2, 0.124, 1e9])
    assert np.array_equal(unscaled("floatE3M0", values), np.float32([1, 2, 4, 1, 0.25, 0, 16]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("floatE2M3", ml_dtypes.float6_e2m3fn),
        ("floatE3M2", ml_dtypes.float6_e3m2fn),
        ("floatE2M1", ml_dtypes.float4_e2m1fn),
        ("float8e4m3", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_a_float_that_ml_dtypes_has_is_what_ml_dtypes_makes_of_it(name: str, kind: type) -> None:
    codes = np.arange(1 << fmt(name).bits)
    numbers = codes.astype(np.uint16 if fmt(name).bits == 16 else np.uint8).view(kind).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers) & (numbers >= 0)]).astype(np.float64)
    values = trying(list(numbers))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(kind).astype(np.float32)
    if fmt(name).writing != "cast":
        # those saturate here; a Cast to 16 bits makes infinity of what is beyond them
        expected = np.clip(values, -numbers[-1], numbers[-1]).astype(kind).astype(np.float32)
    ours = fmt(name).round_values(values, Grid(np.ones((), np.float32), np.zeros((), np.int32)))
    known = ~np.isnan(values)
    assert np.array_equal(ours[known], expected[known])
    if not name.startswith(("floatE2", "floatE3")):
        assert np.isnan(ours[~known]).all()


@pytest.mark.parametrize("name", ["float8e4m3", "float8e5m2"])
def test_a_scaled_float8_reaches_the_end_of_the_range(name: str) -> None:
    values = np.random.default_rng(1).normal(0, [[0.01], [1e-12], [300], [0]], (4, 200)).astype(np.float32)
    one = fmt(name)
    grid = one.fit_grid(values, axis=0)
    largest = np.abs(values).max(1)
    assert np.allclose(one.find_limits(grid)[1][:3], largest[:3], rtol=1e-6)
    codes = one.encode(values, grid)
    assert str(codes.dtype) == one.element_type
    scale = grid.scale[:, None]
    assert np.array_equal(codes.astype(np.float32) * scale, one.round_values(values, grid))
    assert not one.round_values(values, grid)[3].any()


def by_definition(values: np.ndarray, name: str, axis: int) -> np.ndarray:
    rows = np.moveaxis(values, axis, -1)
    out = np.empty_like(rows)
    for at in np.ndindex(rows.shape[:-1]):
        for start in range(0, rows.shape[-1], 32):
            out[at][start : start + 32] = microscaled(rows[at][start : start + 32], name)
    return np.moveaxis(out, -1, axis)


@pytest.mark.parametrize("name", sorted(EMAX))
def test_a_block_format_is_the_nearest_of_its_numbers(name: str) -> None:
    one = fmt(name)
    draw = np.random.default_rng(2)
    spread = (draw.normal(0, 1, (3, 70, 4)) * 2.0 ** draw.integers(-12, 12, (3, 70, 4))).astype(np.float32)
    for axis in (0, 1, -1, -2):
        assert np.array_equal(
            one.round_values(spread, one.fit_grid(spread), axis), by_definition(spread, name, axis)
        )
    # every number of the format, every tie, at the scale 1 that its largest element sets
    numbers = MX_ELEMENTS[name]
    values = trying(numbers)
    values = values[np.abs(values) < 2.0 ** (EMAX[name] + 1)]
    rows = np.full((len(values), 2), 2.0 ** EMAX[name], np.float32)
    rows[:, 0] = values
    expected = rounded_magnitudes(values, numbers)
    assert np.array_equal(one.round_values(rows, one.fit_grid(rows))[:, 0], expected)
    assert one.stored_bits == one.bits + 0.25


@pytest.mark.parametrize("name", sorted(EMAX))
def test_a_block_format_at_its_ends(name: str) -> None:
    one = fmt(name)

    def of(*values: float) -> np.ndarray:
        row = np.float32(values)
        out = one.round_values(row, one.fit_grid(row))
        assert np.array_equal(out, microscaled(row, name), equal_nan=True)
        return out

    assert not of(*[0.0] * 32).any()
    # powers of two down to what the element has below its largest are exact, wherever the block lies
    span = {"mxint8": 7, "mxfp8": 18, "mxfp8e5m2": 32, "mxfp6": 6, "mxfp6e3m2": 9, "mxfp4": 4}[name]
    for top in (127, 3, -1, -90):
        powers = [2.0 ** (top - step) for step in range(span)]
        assert np.array_equal(of(*powers), np.float32(powers))
    # the element's own subnormals, and float32's: the shared exponent ends at -127
    least = MX_ELEMENTS[name][1]
    assert of(2.0 ** EMAX[name], least, least / 2, least * 1.5)[1:].tolist() == [least, 0, 2 * least]
    of(2.0**-126, 2.0**-130, -(2.0**-149))
    of(2.0**-149, 1e-40, -3e-42)
    of(3.4e38, -3.4e38, 1e38, 1)
    for bad in (np.nan, np.inf, -np.inf):
        assert np.isnan(of(1, bad, 2)).all()
    two = np.ones(64, np.float32)
    two[3] = np.nan
    assert np.isnan(one.round_values(two, one.fit_grid(two))).tolist() == [True] * 32 + [False] * 32


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(EMAX)),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
)
def test_any_block_is_what_the_definition_says(name: str, numbers: list[float]) -> None:
    values = np.float32(numbers)
    one = fmt(name)
    assert np.array_equal(one.round_values(values, one.fit_grid(values)), by_definition(values, name, 0))


def test_a_weight_larger_than_what_is_rounded_at_a_time_is_rounded_whole() -> None:
    values = np.random.default_rng(3).normal(0, 1, (700, 513)).astype(np.float32)
    one = fmt("mxfp6")
    for axis in (0, 1):
        picked = values[:, 500:502] if axis == 0 else values[690:692]
        whole = one.round_values(values, one.fit_grid(values), axis)
        assert np.array_equal(
            whole[:, 500:502] if axis == 0 else whole[690:692], by_definition(picked, "mxfp6", axis)
        )
    small = fmt("floatE4M3")
    assert np.array_equal(
        small.round_values(values, small.fit_grid(values)), rounded_magnitudes(values, float_numbers(4, 3, 7))
    )


def squared_error(values: np.ndarray, name: str, scale: float) -> float:
    one = fmt(name)
    near = one.round_values(values, Grid(np.asarray(scale, np.float32), np.zeros((), np.int32)))
    return float(((values - near).astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("name", ["binary", "ternary"])
def test_no_other_scale_of_binary_or_ternary_weights_has_a_smaller_error(name: str) -> None:
    values = np.random.default_rng(4).laplace(0, 0.1, (3, 60)).astype(np.float32)
    one = fmt(name)
    grid = one.fit_grid(values, axis=0)
    for row, scale in zip(values, grid.scale, strict=True):
        assert np.isclose(float(one.fit_grid(row).scale), scale)
        best = squared_error(row, name, float(scale))
        for other in np.linspace(0.001, 0.6, 800):
            assert best <= squared_error(row, name, float(other)) + 1e-9
    near = one.round_values(values, grid)
    levels = {"binary": (-1, 1), "ternary": (-1, 0, 1)}[name]
    assert set(np.unique(near / grid.scale[:, None])) <= set(levels)
    assert one.stored_bits == {"binary": 1, "ternary": 2}[name]
    zeros = np.zeros((2, 4), np.float32)
    assert np.isfinite(one.fit_grid(zeros, axis=1).scale).all()


@pytest.mark.parametrize("name", EXAMPLES[1:])
def test_what_is_a_number_of_a_format_stays_what_it_is(name: str) -> None:
    # so that rounded weights may be stored and still be read through the format
    draw = np.random.default_rng(6)
    values = (draw.normal(0, 1, (64, 80)) * 2.0 ** draw.integers(-20, 9, (64, 80))).astype(np.float32)
    one = fmt(name)
    for axis in (0, 1):
        for symmetric in (True, False):
            grid = one.fit_grid(values, axis=axis, symmetric=symmetric)
            once = one.round_values(values, grid, axis)
            assert np.array_equal(one.round_values(once, grid, axis), once)


def test_every_name_that_is_shown_is_a_format() -> None:
    for name in EXAMPLES[1:]:
        assert fmt(name).name == name
    assert find_format("float32") is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fixed30.4", "24"),
        ("fixed1.0", "2 to 24"),
        ("fixed8.200", "can follow the point"),
        ("floatE8M7", "bfloat16"),
        ("floatE0M3", "1 to 7"),
        ("floatE4M15", "14"),
        ("mxfp9", "there is no number format 'mxfp9'"),
        ("fixed8", "there is no number format 'fixed8'"),
        ("bogus", "there is no number format 'bogus'; explorer help number_formats lists them"),
    ],
)
def test_a_format_of_which_there_is_none_says_why(name: str, why: str) -> None:
    with pytest.raises(Misuse) as problem:
        find_format(name, "--to")
    assert why in f"{problem.value}"
    assert "--to" in f"{problem.value}"


def test_the_manual_names_every_format_with_its_largest_number() -> None:
    rows = [line.split("|")[1:-1] for line in page("number_formats").splitlines() if line.startswith("| `")]
    told = {name: row for row in rows for name in re.findall(r"`([\w.]+)`", row[0])}
    assert {"floatE4M3", "fixed8.4", "mxfp4"} < set(told)
    families = {re.sub(r"\d+\.\d+|E\d+M\d+", "", name) for name in told}
    for name in EXAMPLES:
        assert name in told or re.sub(r"\d+\.\d+|E\d+M\d+", "", name) in families | {"mxfp8e4m3", "mxfp6e2m3"}
    for name, row in told.items():
        one = find_format(name)
        if one is None:
            continue
        assert f"{one.stored_bits:g}" in row[1].replace(" ", "").split(","), name
        unit = Grid(np.ones((), np.float32), np.zeros((), np.int32))
        high = float(one.find_limits(unit if one.scaled else one.build_grid(0, 0))[1])
        if name.startswith("mx"):
            element = MX_ELEMENTS[name][-1]
            assert {"mxint8": "127/64"}.get(name, f"up to {element:g}") in row[2], name
        elif name in ("binary", "ternary"):
            assert (high, row[3].strip()) == (1, "scale")
        else:
            largest = f"{high:.2g}".replace("+", "") if high > 1e9 else f"{high:.10g}"
            assert largest in re.findall(r"[\d.e]+", row[3]), name
