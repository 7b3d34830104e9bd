"""Fourier transforms count by their definition and are bounds; determinants and inverses alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Shape

Count = Callable[..., Cost]

BOUNDS = [
    # operator, domain, inputs, output, attributes, MACs, elementwise
    ("DFT", "", [(3, 8, 1)], (3, 8, 2), {"opset": 20}, 3 * 8 * 8 * 2, 0),
    ("DFT", "", [(3, 8, 2)], (3, 8, 2), {"opset": 20}, 3 * 8 * 8 * 4, 0),
    ("DFT", "", [(3, 8, 1)], (3, 5, 2), {"onesided": 1, "opset": 20}, 3 * 5 * 8 * 2, 0),
    ("DFT", "", [(3, 8, 1), np.array(6)], (3, 6, 2), {"opset": 20}, 3 * 6 * 6 * 2, 0),
    # the last axis of the signal by default in opset 20, the first in opset 17
    ("DFT", "", [(3, 4, 8, 1)], (3, 4, 8, 2), {"opset": 20}, 12 * 64 * 2, 0),
    ("DFT", "", [(3, 4, 8, 1)], (3, 4, 8, 2), {"opset": 17}, 24 * 16 * 2, 0),
    ("DFT", "", [(3, 4, 8, 1)], (3, 4, 8, 2), {"opset": 17, "axis": 2}, 12 * 64 * 2, 0),
    ("DFT", "", [(3, 4, 8, 1), None, np.array(1)], (3, 4, 8, 2), {"opset": 20}, 24 * 16 * 2, 0),
    # an axis that comes with the data: the longest, or the one whose size changed
    ("DFT", "", [(3, 4, 8, 1), None, ()], (3, 4, 8, 2), {"opset": 20}, 12 * 64 * 2, 0),
    ("DFT", "", [(3, 4, 8, 1), None, ()], (3, 3, 8, 2), {"opset": 20, "onesided": 1}, 24 * 4 * 3 * 2, 0),
    # back to real values: 5 frequencies, 8 samples, two products each
    ("DFT", "", [(3, 5, 2)], (3, 8, 1), {"opset": 20, "inverse": 1, "onesided": 1}, 3 * 8 * 5 * 2, 0),
    # 10 frames of 16 samples, 9 frequencies of a real signal, each frame weighed by a window
    ("STFT", "", [(2, 100, 1), (), (16,)], (2, 10, 9, 2), {}, 2 * 10 * 9 * 16 * 2, 2 * 10 * 16),
    (
        "STFT",
        "",
        [(2, 100, 2), (), (16,)],
        (2, 10, 16, 2),
        {"onesided": 0},
        2 * 10 * 16 * 16 * 4,
        2 * 10 * 32,
    ),
    ("STFT", "", [(2, 100, 1), (), None, np.array(16)], (2, 10, 9, 2), {}, 2 * 10 * 9 * 16 * 2, 0),
    # 9 frequencies on one side come of 17 samples at most
    ("STFT", "", [(2, 100, 1), (), None, ()], (2, 10, 9, 2), {}, 2 * 10 * 9 * 17 * 2, 0),
    ("Rfft", MS, [(3, 8)], (3, 5, 2), {}, 3 * 5 * 8 * 2, 0),
    ("Irfft", MS, [(3, 5, 2)], (3, 8), {}, 3 * 8 * 5 * 2, 0),
    ("MelWeightMatrix", "", [(), (), (), (), ()], (9, 4), {}, 0, 6 * 36),
]


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "attributes", "products", "rest"), BOUNDS)
def test_a_transform_is_a_bound_counted_by_its_definition(
    count: Count, op: str, domain: str, inputs: Any, output: Any, attributes: Any, products: int, rest: int
) -> None:
    cost = count(op, inputs, output, domain, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, rest, "bound")
    assert cost.reason


def test_a_short_time_transform_costs_what_its_convolution_costs(count: Count) -> None:
    """Exporters write one as the other: sines and cosines as filters over the signal."""
    frames, samples, frequencies = 10, 16, 9
    as_conv = count("Conv", [(1, 1, 160), (2 * frequencies, 1, samples)], (1, 2 * frequencies, frames))
    own = count("STFT", [(1, 160, 1), (), (samples,)], (1, frames, frequencies, 2))
    assert own.macs == as_conv.macs


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.booleans(), st.booleans())
def test_the_definition_of_the_transform_is_what_is_counted(
    count: Any, length: int, is_complex: bool, onesided: bool
) -> None:
    """X[k] = sum over n of x[n] (cos - i sin): a real product for each pair of parts."""
    if is_complex and onesided:
        return
    signal = np.arange(1, length + 1) * (1 + 1j if is_complex else 1)
    frequencies = length // 2 + 1 if onesided else length
    products, result = 0, np.zeros(frequencies, complex)
    for k, n in itertools.product(range(frequencies), range(length)):
        result[k] += signal[n] * np.exp(-2j * np.pi * k * n / length)
        products += 4 if is_complex else 2
    assert np.allclose(result, np.fft.fft(signal)[:frequencies])
    shape = (1, length, 2 if is_complex else 1)
    cost = count("DFT", [shape], (1, frequencies, 2), opset=20, onesided=int(onesided))
    assert cost.macs == products


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7))
def test_a_determinant_counts_the_elimination(count: Any, side: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(side, side)) + np.eye(side) * 9
    rest = matrix.copy()
    steps = 0
    for pivot in range(side):
        for row in range(pivot + 1, side):
            factor = rest[row, pivot] / rest[pivot, pivot]
            steps += 1
            for column in range(pivot + 1, side):
                rest[row, column] -= factor * rest[pivot, column]
                steps += 2
    found = rest[0, 0]
    for pivot in range(1, side):
        found *= rest[pivot, pivot]
        steps += 1
    assert np.isclose(found, np.linalg.det(matrix))
    cost = count("Det", [(3, side, side)], (3,))
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, 3 * steps, "bound")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6))
def test_an_inverse_counts_gauss_and_jordan(count: Any, side: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(side, side)) + np.eye(side) * 9
    rest = np.concatenate([matrix, np.eye(side)], 1)
    steps = 0
    for pivot in range(side):
        rest[pivot] /= rest[pivot, pivot].copy()
        steps += 2 * side
        for row in range(side):
            if row != pivot:
                rest[row] -= rest[row, pivot].copy() * rest[pivot]
                steps += 2 * 2 * side
    assert np.allclose(rest[:, side:], np.linalg.inv(matrix))
    cost = count("Inverse", [(side, side)], (side, side), MS)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, steps, "bound")


def test_what_is_no_square_has_no_determinant(count: Count) -> None:
    assert count("Det", [(2, 3)], ()).status == "unknown"


EXACT: list[tuple[str, str, list[Shape], Shape, int]] = [
    ("HannWindow", "", [()], (8,), 32),
    ("HammingWindow", "", [()], (8,), 32),
    ("BlackmanWindow", "", [()], (8,), 64),
    ("DynamicTimeWarping", MS, [(4, 5)], (2, 7), 60),
]


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "rest"), EXACT)
def test_windows_and_warping_by_hand(
    count: Count, op: str, domain: str, inputs: list[Shape], output: Shape, rest: int
) -> None:
    cost = count(op, inputs, output, domain)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, rest, "exact")
