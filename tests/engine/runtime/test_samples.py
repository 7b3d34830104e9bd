"""Samples for calibration: a file, several, a folder or drawn ones, each read when its turn comes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.base.errors import Misuse
from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.runtime.samples import random_samples, read_samples


def model(**inputs: Any) -> Model:
    values = tuple(Value(name, "float32", shape) for name, shape in inputs.items())
    graph = Graph("g", [Node("Identity", ["x"], ["y"])], values, (Value("y", "float32", None),), {})
    return Model(graph, {"": 21}, 10)


X = np.arange(48, dtype=np.float32).reshape(4, 3, 4)


@pytest.mark.parametrize(
    ("shape", "array", "each"),
    [
        ((3, 4), X, X),  # an axis more: samples
        ((1, 3, 4), X, X[:, None]),  # one row of several
        ((2, 3, 4), X, X.reshape(2, 2, 3, 4)),
        (("batch", 3, 4), X, X[:, None]),
        ((4, 3, 4), X, X[None]),  # what the model takes, once
        ((1, 3, 4), np.asfortranarray(X), X[:, None]),
        (None, X, X[None]),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz", "packed"])
def test_a_file_is_cut_into_samples(tmp_path: Path, shape: Any, array: Any, each: Any, kind: str) -> None:
    path = str(tmp_path / "calib.npy") if kind == "npy" else str(tmp_path / "calib.npz")
    {"npy": np.save, "npz": np.savez, "packed": np.savez_compressed}[kind](path, array)
    samples = read_samples(model(x=shape), path)
    for _ in range(2):  # they can be gone through again
        assert np.array_equal([feeds["x"] for feeds in samples], each)
    assert samples.count == len(each)
    plural = "" if len(each) == 1 else "s"
    assert samples.text == f"{os.path.basename(path)}, {len(each)} sample{plural}"


def test_rows_of_a_sample_are_those_of_the_open_size(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    samples = read_samples(model(x=("batch", 3, "n")), str(tmp_path / "x.npy"), {"batch": 2})
    assert [feeds["x"].shape for feeds in samples] == [(2, 3, 4)] * 2
    with pytest.raises(Misuse, match=r"\[4, 3, 4\] there and \[3, 3, n\]"):
        read_samples(model(x=("batch", 3, "n")), str(tmp_path / "x.npy"), {"batch": 3})


def test_a_folder_holds_samples_of_several_inputs(tmp_path: Path) -> None:
    """What is there once goes with every sample; files come by name; others are no samples."""
    for at in range(3):
        np.savez(tmp_path / f"{2 - at}.npz", x=X[:2] + 100 * at, state=np.full((5,), at, np.float32))
    (tmp_path / "readme.txt").write_text("pictures")
    samples = read_samples(model(x=(1, 3, 4), state=(5,)), str(tmp_path))
    assert (samples.count, samples.text) == (6, f"{tmp_path.name}, 6 samples")
    assert [(feeds["x"][0, 0, 0], feeds["state"][0]) for feeds in samples] == [
        (200, 2), (212, 2), (100, 1), (112, 1), (0, 0), (12, 0),
    ]  # fmt: skip


def test_random_samples_are_those_of_their_seeds() -> None:
    samples = random_samples(model(x=(2, 2)), 3, seed=5)
    assert samples.text == "random inputs, seeds 5 to 7"
    made = [feeds["x"] for feeds in samples]
    assert np.array_equal(made[1], np.random.default_rng(6).standard_normal((2, 2)).astype(np.float32))
    assert len(made) == 3


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X[:, :2], "state": X[0, 0, :1]}, r"\[4, 2, 4\] there and \[1, 3, 4\]"),
        ({"x": X.astype(np.float64)}, "float64 there and float32 in the model"),
        ({"x": X, "z": X}, "no input 'z'"),
        ({"z": X, "state": X}, "no input 'z'"),
        ({"x": X}, "no values for the input 'state'"),
        ({"x": X, "state": X[:3, 0, :1]}, "4 samples of 'x' and 3 of 'state'"),
        ({"x": X[:0], "state": np.zeros(1, np.float32)}, "no sample in it"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, arrays: Any, said: str
) -> None:
    np.savez(tmp_path / "c.npz", **arrays)
    with pytest.raises(Misuse, match=said) as refused:
        read_samples(model(x=(1, 3, 4), state=(1,)), str(tmp_path / "c.npz"))
    assert str(tmp_path / "c.npz") in str(refused.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_is_named_with_its_sample(tmp_path: Path, bad: float) -> None:
    spoilt = X.copy()
    spoilt[2, 1, 1] = bad
    np.save(tmp_path / "x.npy", spoilt)
    with pytest.raises(Misuse, match="'x' has NaN or Inf in sample 3"):
        list(read_samples(model(x=(1, 3, 4)), str(tmp_path / "x.npy")))


def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    text, empty, objects = tmp_path / "a.npz", tmp_path / "empty", tmp_path / "o.npy"
    text.write_text("no archive")
    empty.mkdir()
    np.save(objects, np.array([{}], object), allow_pickle=True)
    whole = tmp_path / "x.npy"
    np.save(whole, X)
    backwards = tmp_path / "backwards.npy"
    backwards.write_bytes(whole.read_bytes().replace(f"({len(X)}, ".encode(), b"(-1, ", 1))
    short = tmp_path / "short.npy"
    short.write_bytes(whole.read_bytes()[:-4])
    for path, said in (
        (text, "not a .npy or .npz"),
        (empty, "has no .npy or .npz"),
        (objects, "plain arrays"),
        (tmp_path / "none.npz", "cannot be read"),
        (short, "cut short"),
        (backwards, "plain arrays"),
    ):
        with pytest.raises(Misuse, match=said):
            list(read_samples(model(x=(1, 3, 4)), str(path)))
