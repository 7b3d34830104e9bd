"""Figures of a tensor are numpy's own, whatever its type and size, and never take more than a slab."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from explorer.base.errors import Cancelled
from explorer.engine.values import numbers as slabbed
from explorer.engine.values.figures import quantiles
from explorer.engine.values.figures.intervals import QUANTILES
from explorer.engine.values.numbers import SLAB, Numbers, make_slabs
from explorer.engine.values.statistics import measure
from explorer.facts.values import TensorStats


def numbers(array: Any, **more: Any) -> Numbers:
    return Numbers("t", str(array.dtype), array.shape, array.nbytes, make_slabs(array), **more)


def agrees(found: TensorStats, array: Any) -> None:
    """The figures are those that numpy finds with the whole tensor in its hands."""
    whole = array.astype(np.float64).ravel()
    finite = whole[np.isfinite(whole)]
    assert found.elements == array.size
    assert found.zeros == (whole == 0).mean()
    assert (found.nan, found.inf) == (np.isnan(whole).sum(), np.isinf(whole).sum())
    if not finite.size:
        assert found.minimum is found.maximum is found.mean is found.std is found.histogram is None
        return
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    scale = np.abs(finite).max()
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-14 * scale)
    assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-14 * scale)
    # exact: the very numbers that lie at the ranks, interpolated as numpy does
    expected = np.quantile(finite, QUANTILES)
    np.testing.assert_allclose([v for _, v in found.quantiles], expected, rtol=1e-14, atol=1e-15 * scale)
    assert found.histogram is not None
    assert sum(found.histogram.counts) == finite.size
    edges = np.array(found.histogram.edges)
    counts, _ = np.histogram(finite, bins=edges)
    assert tuple(counts) == found.histogram.counts


TYPES = [
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz,
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("size", [1, 2, 1000, 70_001, 300_000])
def test_every_type_gives_the_figures_of_numpy(kind: Any, size: int) -> None:
    generator = np.random.default_rng(size)
    values = generator.standard_normal(size) * 40
    values[::7] = 0
    dtype = np.dtype(kind)
    array = (np.abs(values) if dtype.kind == "u" else values).astype(dtype)
    if size > 5 and dtype.kind not in "iu":
        array[3:6] = np.array([math.nan, math.inf, -math.inf]).astype(dtype)
    agrees(measure(numbers(array)), array)


def test_booleans_are_counted_as_zero_and_one() -> None:
    array = np.arange(1000) % 4 == 0
    found = measure(numbers(array))
    assert (found.minimum, found.maximum, found.mean, found.zeros) == (0.0, 1.0, 0.25, 0.75)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.integers(1, 200),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    ),
    st.booleans(),
)
def test_counting_digits_finds_the_same_as_sorting(array: Any, sorting: bool) -> None:
    """Small tensors are sorted and large ones counted: both ways must find the same."""
    before = quantiles._MAX_SORTED, slabbed._CHUNK
    quantiles._MAX_SORTED, slabbed._CHUNK = (10**6 if sorting else 0), 7
    try:
        agrees(measure(numbers(array)), array)
    finally:
        quantiles._MAX_SORTED, slabbed._CHUNK = before


def test_the_widest_numbers_do_not_overflow() -> None:
    array = np.array([1e308, -1e308, 1.5e308, 0.0])
    found = measure(numbers(array))
    assert found.mean == pytest.approx(3.75e307)
    assert found.std == pytest.approx(float(np.std(array / 1e300)) * 1e300)
    assert found.histogram is not None
    assert found.histogram.edges[0] == -1e308
    assert found.histogram.edges[-1] == 1.5e308
    assert sum(found.histogram.counts) == 4


@pytest.mark.slow
def test_the_mean_of_a_long_tensor_does_not_drift() -> None:
    """float32 sums of ten million equal numbers drift away; merged moments do not."""
    array = np.full(3_000_000, 0.1, np.float32)
    found = measure(numbers(array))
    assert found.mean == float(np.float32(0.1))
    assert found.std == 0.0


def test_a_constant_tensor_gets_an_interval_around_its_value() -> None:
    found = measure(numbers(np.full(10, 3.0, np.float32)), bins=4)
    assert found.histogram is not None
    assert found.histogram.edges == (2.5, 2.75, 3.0, 3.25, 3.5)
    assert found.histogram.counts == (0, 0, 10, 0)


def test_intervals_are_half_open_and_the_last_is_closed() -> None:
    found = measure(numbers(np.array([0, 1, 2, 3, 4], np.float32)), bins=4)
    assert found.histogram is not None
    assert found.histogram.edges == (0, 1, 2, 3, 4)
    assert found.histogram.counts == (1, 1, 1, 2)


@pytest.mark.parametrize("bins", [3, 7, 10, 32, 57, 100])
def test_a_number_on_an_edge_belongs_to_the_interval_that_begins_there(bins: int) -> None:
    """Also where dividing by the width of an interval rounds to the other side."""
    edges = np.linspace(0.1, 0.7, bins + 1)
    found = measure(numbers(edges), bins=bins)
    assert found.histogram is not None
    assert found.histogram.counts == (*[1] * (bins - 1), 2)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("sorting", [True, False])
def test_zeros_that_are_not_stored_count(kind: str, sorting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "_MAX_SORTED", 10**6 if sorting else 0)
    dense = np.zeros(500, kind)
    stored = np.array([-3, 5, 7, 0], kind)
    dense[[1, 20, 300, 499]] = stored
    sparse = Numbers("t", kind, (500,), stored.nbytes, make_slabs(stored), unstored_zeros=496)
    found, expected = measure(sparse), measure(numbers(dense))
    assert found.zeros == expected.zeros == 497 / 500
    assert found.mean == pytest.approx(expected.mean)
    assert found.std == pytest.approx(expected.std)
    assert found.quantiles == expected.quantiles
    assert found.histogram == expected.histogram


def test_what_has_no_order_has_no_extremes() -> None:
    """Complex numbers cannot be sorted and strings are no numbers: their figures are unknown, not 0."""
    found = measure(numbers(np.array([1 + 1j, 0, complex(math.nan, 0), complex(math.inf, 0)])))
    assert found.minimum is found.mean is found.histogram is None
    assert (found.zeros, found.nan, found.inf) == (0.25, 1, 1)
    text = measure(Numbers("t", "string", (3,), 10, lambda: iter(())))
    assert text.minimum is text.zeros is None
    empty = measure(numbers(np.zeros((0, 4), np.float32)))
    assert empty.elements == 0
    assert empty.zeros is empty.mean is None


def test_a_tensor_of_nothing_but_nan_says_so() -> None:
    found = measure(numbers(np.full(5, math.nan, np.float32)))
    assert (found.nan, found.minimum, found.quantiles) == (5, None, ())


@pytest.mark.slow
def test_no_more_than_a_slab_is_held() -> None:
    """64 MiB of float32, all of them candidates for a quantile: less than a slab on top of the one read."""
    slab = np.arange(SLAB // 4, dtype=np.uint32).view(np.float32)
    whole = Numbers("t", "float32", (4, SLAB // 4), 4 * SLAB, lambda: iter([slab] * 4))
    tracemalloc.start()
    try:
        found = measure(whole)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.elements == SLAB
    assert peak < SLAB


@pytest.mark.slow
def test_cancel_stops_between_slabs() -> None:
    asked = []

    def cancel() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(Cancelled):
        measure(numbers(np.zeros(3 * SLAB // 4, np.float32)), cancel=cancel)


def test_an_array_in_memory_is_cut_without_a_copy() -> None:
    array = np.zeros(SLAB // 2, np.float32)
    assert all(np.shares_memory(slab, array) and slab.nbytes <= SLAB for slab in make_slabs(array)())
