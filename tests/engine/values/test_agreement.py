"""Agreement of two outputs, batch by batch, against the definitions written out over the whole."""

import math

import ml_dtypes
import numpy as np
import pytest

from explorer.engine.values.agreement import Agreement, compute_cosine, compute_snr_db


def _both(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    before = draw.standard_normal(shape).astype(np.float32)
    return before, before + draw.standard_normal(shape).astype(np.float32) * np.float32(0.4)


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_batches_of_any_size_give_the_figures_of_the_whole(kind):
    before, after = (side.astype(kind) for side in _both(1, (211, 300)))
    found = Agreement()
    for first, last in ((0, 1), (1, 100), (100, 100), (100, 211)):
        found.add(before[first:last], after[first:last])
    a, b = before.astype(np.float64), after.astype(np.float64)
    assert found.snr_db == pytest.approx(10 * np.log10((a**2).sum() / ((b - a) ** 2).sum()), rel=1e-12)
    assert found.cosine == pytest.approx(
        (a * b).sum() / np.linalg.norm(a.ravel()) / np.linalg.norm(b.ravel()), rel=1e-12
    )
    assert found.rms == pytest.approx(np.sqrt(((a - b) ** 2).mean()), rel=1e-12)
    assert found.max_abs == np.abs(a - b).max()
    best = a.argmax(axis=1)
    five = np.argsort(-b, axis=1, kind="stable")[:, :5]
    assert found.top1 == (five[:, 0] == best).mean()
    assert found.top5 == (five == best[:, None]).any(axis=1).mean()
    assert 0 < found.top1 < found.top5 < 1


def test_the_same_outputs_have_no_noise():
    before, _ = _both(2, (5, 9))
    found = Agreement()
    found.add(before, before)
    assert (found.snr_db, found.cosine, found.top1, found.top5) == (math.inf, pytest.approx(1), 1, 1)


def test_an_output_of_one_score_throughout_agrees_with_one_class_only():
    before = np.eye(8, dtype=np.float32)
    found = Agreement()
    found.add(before, np.zeros((8, 8), np.float32))
    assert found.top1 == 1 / 8
    assert found.top5 == 5 / 8
    assert found.cosine is None


def test_a_nan_agrees_with_nothing_and_leaves_no_signal():
    before, after = _both(3, (6, 7))
    after[2, 3] = np.nan
    before[4, 1] = np.nan
    found = Agreement()
    found.add(before, after)
    assert found.nonfinite == 2
    assert (found.largest_error, found.rms, found.cosine) == (math.inf, math.inf, None)
    assert found.snr_db == -math.inf
    assert found.top5 <= 4 / 6


def test_what_has_no_choice_has_no_top():
    few, scalar, mixed = Agreement(), Agreement(), Agreement()
    few.add(*_both(4, (10, 5)))
    scalar.add(*_both(5, (10, 1)))
    mixed.add(*_both(6, (4, 7)))
    mixed.add(*_both(6, (4, 8)))
    assert few.top1 is not None
    assert few.top5 is None
    assert (scalar.top1, mixed.top1) == (None, None)
    assert Agreement().snr_db is None
    with pytest.raises(ValueError):
        few.add(np.zeros((2, 5)), np.zeros((5, 2)))


def test_sums_without_end_are_no_perfect_signal():
    found = Agreement()
    found.add(np.full((1, 2), 1e200), np.full((1, 2), 2e200))
    assert found.snr_db is None
    assert compute_snr_db(0.0, 1.0) == -math.inf
    assert compute_snr_db(1.0, 0.0) == math.inf
    assert compute_snr_db(100.0, 1.0) == pytest.approx(20)
    assert compute_cosine(0.0, 0.0, 1.0) is None


def test_integers_are_compared_as_numbers():
    found = Agreement()
    found.add(np.array([[0, 255]], np.uint8), np.array([[255, 0]], np.uint8))
    assert found.max_abs == 255
    assert found.top1 == 0
