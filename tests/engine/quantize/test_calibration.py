"""Ranges of activations are those of the values that the model computes, by each calibrator's definition."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from explorer.base.errors import Misuse
from explorer.engine.formats.onnx.reader import read as read_model
from explorer.engine.number_formats import find_format
from explorer.engine.quantize.calibration import HALF_INTERVALS, RangeUse, ValueDistribution, calibrate_ranges
from explorer.engine.runtime import observer
from explorer.engine.runtime.samples import Samples, random_samples, read_samples

CALIBRATORS = ("minmax", "percentile", "entropy", "mse")


def use(name: str = "x", fmt: str = "int8", *, symmetric: bool = True) -> RangeUse:
    made = find_format(fmt)
    assert made is not None
    return RangeUse(name, made, symmetric)


def distribution(values: Any, parts: int = 1) -> ValueDistribution:
    seen = ValueDistribution()
    for part in np.array_split(values, parts):
        seen.add(part)
    return seen


def drawn(kind: str) -> Any:
    generator = np.random.default_rng(7)
    values = {
        "normal": generator.standard_normal(20000),
        "heavy": generator.standard_normal(20000) ** 3,
        "relu": np.maximum(generator.standard_normal(20000), 0),
        "shifted": generator.standard_normal(20000) + 3,
    }[kind]
    return values.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "heavy", "relu", "shifted"])
def test_a_histogram_that_grew_is_the_one_of_all_numbers_at_once(kind: str) -> None:
    """Sorted by size it grows with every part; numpy counts the same in the same intervals."""
    values = drawn(kind)
    seen = distribution(values[np.argsort(abs(values))] * np.float32(1e-3), 9)
    seen.add(values)
    both = np.concatenate([values * np.float32(1e-3), values])
    assert np.array_equal(seen.counts, np.histogram(both, seen.edges)[0])
    assert seen.top / 2 < abs(both).max() <= seen.top == 2 ** np.ceil(np.log2(abs(both).max()))
    assert (seen.low, seen.high) == (both.min(), both.max())


def test_a_first_sample_of_nothing_does_not_spoil_the_histogram() -> None:
    seen = distribution(np.zeros(10, np.float32))
    seen.add(np.array([1e-30, -1e-30, np.inf, 4e8], np.float32))
    assert (seen.low, seen.high, seen.nan) == (np.float32(-1e-30), 4e8, 0)
    assert (seen.counts.sum(), seen.counts[HALF_INTERVALS - 1], seen.counts[HALF_INTERVALS]) == (13, 1, 11)


def at_lenet(samples: Samples, path: str, **more: Any) -> dict[str, Any]:
    model = read_model(path)
    values = [n.inputs[0] for n in model.graph.nodes if n.op in ("Conv", "Gemm", "MatMul")]
    return calibrate_ranges(model, {name: use(name) for name in values}, samples, **more)


def test_min_and_max_are_those_onnxruntime_finds(sample: Any, tmp_path: Path) -> None:
    """Over all samples, of inner values and of the input."""
    path = str(sample("lenet"))
    model = read_model(path)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((3, *(d for d in model.graph.inputs[0].shape or ()))).astype(np.float32)
    x *= np.float32([1, 5, 2]).reshape(3, *[1] * (x.ndim - 1))
    np.savez(tmp_path / "x.npz", x)
    found = at_lenet(read_samples(model, str(tmp_path / "x.npz")), path)
    proto = onnx.load(path)
    del proto.graph.output[:]
    inner = [name for name in found if name != proto.graph.input[0].name]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert len(found) > 3
    for name, (low, high) in found.items():
        values = (
            [x]
            if name not in inner
            else [session.run([name], {proto.graph.input[0].name: one})[0] for one in x]
        )
        assert (low, high) == pytest.approx(
            (min(v.min() for v in values), max(v.max() for v in values)), 1e-5
        )


def test_values_that_do_not_fit_together_are_seen_one_after_the_other(
    sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(sample("lenet"))
    samples = random_samples(read_model(path), 3)
    whole = at_lenet(samples, path, calibrator="mse")
    monkeypatch.setattr(observer, "BUDGET", 4096)
    assert at_lenet(samples, path, calibrator="mse") == whole


@pytest.mark.parametrize("kind", ["normal", "heavy", "relu", "shifted"])
@pytest.mark.parametrize("share", [99.9, 99.0, 100])
def test_so_much_per_cent_of_the_numbers_lie_inside(kind: str, share: float) -> None:
    """Half of the rest on either side, as onnxruntime has it, to an interval of the histogram."""
    values = drawn(kind)
    low, high = distribution(values, 3).choose_range(use(), "percentile", share)
    assert ((values >= low) & (values <= high)).mean() >= share / 100 - 1e-9
    width = 2 ** np.ceil(np.log2(abs(values).max())) / HALF_INTERVALS
    outside = values.size * (100 - share) / 200
    assert (values < low).sum() <= outside + 1e-6 < (values < low + 1.01 * width).sum() + 1
    assert (values > high).sum() <= outside + 1e-6 < (values > high - 1.01 * width).sum() + 1
    collector = HistogramCollector("percentile", False, 2 * HALF_INTERVALS, 128, share, None)
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        theirs = collector.compute_collection_result()["x"][:2]
    assert (low, high) == pytest.approx([float(end) for end in theirs], abs=2.5 * width)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["normal", "heavy", "relu", "shifted"])
@pytest.mark.parametrize(("fmt", "symmetric"), [("int8", True), ("int4", True), ("uint8", False)])
def test_no_other_range_has_a_smaller_error(kind: str, fmt: str, symmetric: bool) -> None:
    """Ranges of a hundred sizes on the numbers themselves: none is better by more than a tenth of a dB."""
    values, wanted = drawn(kind), use("x", fmt, symmetric=symmetric)

    def error(low: float, high: float) -> float:
        grid = wanted.format.build_grid(np.float32(low), np.float32(high), symmetric=symmetric)
        return float(((wanted.format.round_values(values, grid).astype(float) - values) ** 2).sum())

    chosen = distribution(values, 3).choose_range(wanted, "mse", 99)
    tried = [error(values.min() * at, values.max() * at) for at in np.linspace(0.02, 1, 100)]
    assert error(*chosen) <= min(tried) * 1.024


def _divergences(values: Any, levels: int, widths: Iterator[int], half: int, top: float) -> dict[int, float]:
    """By the definition, a level at a time."""
    counts = np.histogram(values[values != 0], 2 * half, range=(-top, top))[0]
    found = {}
    for width in widths:
        inside = counts[half - width : half + width].astype(float)
        ends = [-(-2 * width * at // levels) for at in range(levels + 1)]
        q = np.zeros(2 * width)
        for a, b in itertools.pairwise(ends):
            filled = inside[a:b] > 0
            q[a:b][filled] = inside[a:b].sum() / max(filled.sum(), 1)
        p = inside.copy()
        p[0] += counts[: half - width].sum()
        p[-1] += counts[half + width :].sum()
        p, q = (np.where(c, c - 1e-4 * (c == 0).sum() / (c != 0).sum(), 1e-4) for c in (p, q))
        p, q = p / p.sum(), q / q.sum()
        found[width] = float((p * np.log(p / q)).sum())
    return found


@pytest.mark.parametrize(("kind", "fmt"), [("normal", "int4"), ("heavy", "int8")])
def test_the_range_of_least_divergence_is_taken(kind: str, fmt: str) -> None:
    values, wanted = drawn(kind), use("x", fmt)
    seen = distribution(values, 3)
    low, high = seen.choose_range(wanted, "entropy", 99)
    levels, half = 1 << wanted.format.bits, HALF_INTERVALS // 2
    used = int(np.ceil(abs(values).max() / seen.top * half))
    tried = _divergences(values, levels, iter(range(levels // 2, used + 1, 8)), half, seen.top)
    end = max(-low, high)
    width = round(end / seen.top * half)
    (own,) = _divergences(values, levels, iter([width]), half, seen.top).values()
    assert (low, high) == pytest.approx((max(values.min(), -end), min(values.max(), end)))
    assert own <= 1.05 * min(tried.values())
    assert own < tried[max(tried)]


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_a_value_that_is_always_the_same_has_a_range(calibrator: Any) -> None:
    for value, ends in ((0.0, (0, 0)), (2.5, (2.5, 2.5)), (-1e-38, (-1e-38, -1e-38))):
        seen = distribution(np.full(10, value, np.float32))
        low, high = seen.choose_range(use(), calibrator, 99.9)
        assert (low, high) == pytest.approx(ends, rel=0.02)
    assert ValueDistribution().choose_range(use(), calibrator, 99.9) == (0, 0)


def test_nan_inside_the_model_and_a_percentage_of_nothing_are_refused(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Log", ["x"], ["y"]), onnx.helper.make_node("Neg", ["y"], ["z"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, (4,))],
        [onnx.helper.make_tensor_value_info("z", 1, (4,))],
    )
    path = str(tmp_path / "m.onnx")
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path
    )
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, -1], np.float32))
    model = read_model(path)
    samples = read_samples(model, str(tmp_path / "x.npy"))
    with pytest.raises(Misuse, match=r"'y' has 1 NaN with x.npy, 1 sample"):
        calibrate_ranges(model, {"y": use("y")}, samples)
    with pytest.raises(Misuse, match="--percentile: no range can be computed from 10 %"):
        calibrate_ranges(model, {"y": use("y")}, samples, "percentile", 10)
