"""The user's input is taken as it is or refused in one line; values go to a file or nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from explorer.base.errors import Cancelled, Misuse
from explorer.engine.runtime.input_files import InputSpec, read_input
from explorer.engine.values.activations import (
    ActivationArchive,
    ActivationRequest,
    ActivationRun,
    measure_activations,
)
from explorer.engine.values.numbers import Numbers, make_slabs


def numbers(name: str, array: Any, dtype: str = "") -> Numbers:
    return Numbers(name, dtype or str(array.dtype), array.shape, array.nbytes, make_slabs(array), name)


def saved(folder: Path, **named: Any) -> str:
    path = str(folder / "in.npz")
    np.savez(path, **named)
    return path


X = InputSpec("x", "float32", (None, 3))
Y = InputSpec("y", "int64", ("n",))
ROW = np.zeros((2, 3), np.float32)


# -- what goes in


def test_one_array_is_the_only_input_whatever_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROW)
    assert read_input(str(tmp_path / "a.npy")).fit([X])["x"].shape == (2, 3)
    assert read_input(saved(tmp_path, anything=ROW)).fit([X])["x"].shape == (2, 3)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(Misuse, match="not a regular file"):
        read_input(str(tmp_path / "a.npy"))


def test_several_inputs_are_found_by_name(tmp_path: Path) -> None:
    found = read_input(saved(tmp_path, y=np.arange(4), x=ROW)).fit([X, Y])
    assert found["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": ROW}, "no values for the input 'y'"),
        ({"x": ROW, "z": ROW}, "no input 'z'"),
        ({"x": ROW.astype(np.float64), "y": np.arange(2)}, r"'x' is float64 there and float32.*astype"),
        ({"x": ROW[0], "y": np.arange(2)}, r"'x' is \[3\] there and \[\?, 3\] in the model"),
        ({"x": np.zeros((2, 4), np.float32), "y": np.arange(2)}, r"\[2, 4\] there"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arrays: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=words) as caught:
        read_input(saved(tmp_path, **arrays)).fit([X, Y])
    assert "\n" not in str(caught.value)
    assert "in.npz" in str(caught.value)


def test_one_array_for_two_inputs_names_them(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROW)
    with pytest.raises(Misuse, match=r"takes 2 inputs and this is one array; give an \.npz with x, y"):
        read_input(str(tmp_path / "a.npy")).fit([X, Y])


class _Pickled:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_a_file_with_objects_is_refused_and_nothing_in_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.array([_Pickled()], dtype=object), allow_pickle=True)
    with pytest.raises(Misuse, match="plain arrays"):
        read_input("a.npy")
    np.savez("b.npz", x=np.array([_Pickled()], dtype=object))
    with pytest.raises(Misuse, match="plain arrays"):
        read_input("b.npz")
    assert not os.path.exists("was-run")


def test_a_file_that_is_no_array_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.npy"
    np.save(good, ROW)
    broken = {
        "empty.npy": b"",
        "text.npy": b"hello",
        "cut.npy": good.read_bytes()[:-4],
        "head.npy": good.read_bytes()[:20],
        "pickle.npy": b"\x80\x04K\x01.",
        "zip.npz": b"PK\x03\x04 nothing",
        # a header that promises more than any machine has
        "huge.npy": good.read_bytes().replace(b"(2, 3)", b"(9999999999999, 3)")[:128],
    }
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(Misuse):
            read_input(str(tmp_path / name))
    with pytest.raises(Misuse, match="No such file"):
        read_input(str(tmp_path / "absent.npy"))
    with pytest.raises(Misuse):
        read_input(str(tmp_path))


# -- what comes out


def test_an_archive_is_what_numpy_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "o.npz")
    arrays = {
        "/features/0/Conv": np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32),
        "flags": np.array([[True, False]]),
        "scalar": np.array(7, np.int64),
        "none": np.zeros((0, 2), np.float16),
    }
    with ActivationArchive(path) as archive:
        for name, array in arrays.items():
            archive.add(name, numbers(name, array))
    with np.load(path, allow_pickle=False) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_types_that_numpy_files_do_not_know_keep_their_values(tmp_path: Path) -> None:
    path = str(tmp_path / "o.npz")
    half = np.array([1.5, -2.25, 3e30], ml_dtypes.bfloat16)
    packed = np.array([-8, 7], np.int8)
    with ActivationArchive(path) as archive:
        archive.add("a", numbers("a", half))
        archive.add("b", numbers("b", packed, "int4"))
    with np.load(path) as found:
        assert found["a"].dtype == np.float32
        np.testing.assert_array_equal(found["a"], half.astype(np.float32))
        assert found["b"].dtype == np.int8


def test_two_entries_of_one_name_are_both_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "o.npz")
    with ActivationArchive(path) as archive:
        archive.add("a", numbers("a", ROW))
        archive.add("a", numbers("a", ROW + 1))
    with np.load(path) as found:
        assert found["a#2"].max() == 1


def test_the_same_values_make_the_same_file(tmp_path: Path) -> None:
    for name in ("1.npz", "2.npz"):
        with ActivationArchive(str(tmp_path / name)) as archive:
            archive.add("a", numbers("a", ROW))
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def two_layers(asked: ActivationRequest) -> ActivationRun:
    asked.step(0, 2)
    asked.take(numbers("a", ROW), 0, "a")
    asked.step(1, 2)
    asked.take(numbers("b", ROW + 1), 0, "b")
    asked.take(numbers("b", ROW + 2), 1, "b")
    return ActivationRun(("x: random",), (("c", "did not run"),))


def test_without_a_file_only_figures_are_kept() -> None:
    found = measure_activations(two_layers, source="m")
    assert [(t.tensor.name, t.call, t.mean) for t in found.tensors] == [("a", 0, 0), ("b", 0, 1), ("b", 1, 2)]
    assert (found.output, found.inputs, found.skipped) == ("", ("x: random",), (("c", "did not run"),))


def test_with_a_file_the_values_are_there_call_by_call(tmp_path: Path) -> None:
    path = str(tmp_path / "o.npz")
    assert measure_activations(two_layers, output=path).output == path
    with np.load(path) as found:
        assert found.files == ["a", "b", "b#2"]
        assert found["b#2"].mean() == 2
    assert os.listdir(tmp_path) == ["o.npz"]


@pytest.mark.parametrize("why", ["cancelled", "failed"])
def test_nothing_is_left_of_a_run_that_does_not_end(why: str, tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    path.write_text("what was there before")

    def run(asked: ActivationRequest) -> ActivationRun:
        asked.take(numbers("a", ROW), 0, "a")
        if why == "failed":
            raise RuntimeError
        asked.step(1, 2)
        raise AssertionError

    asked: list[int] = []

    def cancel() -> bool:
        asked.append(1)
        return len(asked) > 1

    with pytest.raises(Cancelled if why == "cancelled" else RuntimeError):
        measure_activations(run, output=str(path), cancel=cancel)
    assert path.read_text() == "what was there before"
    assert os.listdir(tmp_path) == ["o.npz"]


def test_values_are_written_while_the_model_runs(tmp_path: Path) -> None:
    """They do not pile up in memory: each is in the file before the next is made."""
    sizes = []

    def run(asked: ActivationRequest) -> ActivationRun:
        for index in range(3):
            asked.take(numbers(str(index), np.zeros(1 << 16, np.float32)), 0, str(index))
            (staging,) = tmp_path.glob(".*part/o.npz")
            sizes.append(staging.stat().st_size)
        return ActivationRun(())

    measure_activations(run, output=str(tmp_path / "o.npz"))
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 1 << 18
