"""Statistics by choice are what numpy says of the same numbers: whole, along an axis, over many samples."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.engine.values.figures import moments as accumulated
from explorer.engine.values.figures.rank_search import RankSearch
from explorer.engine.values.numbers import Numbers, make_slabs
from explorer.engine.values.statistics import measure
from explorer.session import Session
from explorer.settings.statistics import STATISTICS, parse_statistics

LENET = "sample_models/lenet.onnx"
ALL = (
    "count,nan,inf,zeros,min,max,absmax,mean,absmean,var,std,rms,low:3sigma,high:2.5sigma,quantile:0.97,"
    "quantile:0"
)


def by_numpy(values: Any, label: str) -> float | None:
    """The statistic of an array by the words of its definition."""
    wide = values.astype(np.float64).ravel()
    x = wide[np.isfinite(wide)]
    name, _, argument = label.partition(":")
    counted = {"count": x.size, "nan": int(np.isnan(wide).sum()), "inf": int(np.isinf(wide).sum())}
    if name in counted:
        return counted[name]
    if name == "zeros":
        return float((wide == 0).sum() / wide.size) if wide.size else None
    if not x.size:
        return None
    sigmas = float(argument.removesuffix("sigma") or 0) if name in ("low", "high") else 0.0
    return float(
        {
            "min": x.min,
            "max": x.max,
            "absmax": lambda: np.abs(x).max(),
            "mean": x.mean,
            "absmean": lambda: np.abs(x).mean(),
            "var": x.var,
            "std": x.std,
            "rms": lambda: np.sqrt((x * x).mean()),
            "low": lambda: x.mean() - sigmas * x.std(),
            "high": lambda: x.mean() + sigmas * x.std(),
            "quantile": lambda: np.quantile(x, float(argument)),
        }[name]()
    )


def same(found: Any, values: Any) -> None:
    for label, numbers in found.items():
        for number, part in zip(numbers, values, strict=True):
            truth = by_numpy(part, label)
            assert number == (truth if truth is None else pytest.approx(truth, rel=1e-11, abs=1e-13)), label


def numbers(array: Any) -> Numbers:
    return Numbers("t", str(array.dtype), array.shape, array.nbytes, make_slabs(array))


def odd(dtype: Any) -> Any:
    """Numbers of a type with zeros, and NaN and infinity where it has them; one channel of nothing else."""
    made = (np.random.default_rng(0).normal(1, 4, (5, 3, 7)) * 3).astype(dtype)
    made[1, :2] = 0
    if np.dtype(dtype).kind in "fV":
        made[2, 1, 3], made[3, 0, 0], made[4] = math.nan, -math.inf, math.nan
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_each_statistic_is_that_of_numpy(
    dtype: Any, axis: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.engine.values.numbers._CHUNK", 4)  # pieces that end within a channel
    array = odd(dtype)
    found = measure(numbers(array), choices=parse_statistics(ALL), axis=axis).chosen
    assert {name for label in found for name in [label.partition(":")[0]]} == set(STATISTICS)
    same(found, [array] if axis is None else np.moveaxis(array, axis, 0))


def test_numbers_whose_squares_no_float64_holds_have_a_spread() -> None:
    for scale in (1e-200, 1e200):
        array = np.random.default_rng(0).normal(size=(3, 1000)) * scale
        found = measure(numbers(array), choices=parse_statistics("std,rms,mean,absmean"), axis=0).chosen
        for label, values in found.items():
            truth = [by_numpy(part / scale, label) for part in array]
            np.testing.assert_allclose(np.array(values) / scale, truth, rtol=1e-9)


def test_what_has_no_such_axis_or_no_order_has_none_of_them() -> None:
    choices = parse_statistics("mean")
    assert measure(numbers(np.zeros(3)), choices=choices, axis=1).chosen == {}
    assert measure(numbers(np.zeros(3, np.complex64)), choices=choices).chosen == {}
    text = Numbers("t", "string", (3,), 10, lambda: iter(()))
    assert measure(text, choices=choices).chosen == {}
    sparse = Numbers("t", "float32", (2, 4), 8, make_slabs(np.array([2, -2], np.float32)), unstored_zeros=6)
    assert measure(sparse, choices=parse_statistics("rms,zeros")).chosen == {"rms": (1.0,), "zeros": (0.75,)}
    assert measure(sparse, choices=choices, axis=0).chosen == {}


def test_shorthands_are_the_statistics_that_they_stand_for() -> None:
    assert [c.label for c in parse_statistics("range, range:3sigma,sparsity,median,MIN")] == [
        *("min", "max", "low:3sigma", "high:3sigma", "zeros", "quantile:0.5"),
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("variance", "not a statistic"),
        ("mean:2", "takes no value after a colon"),
        ("quantile", "needs a share from 0 to 1"),
        ("quantile:1.5", "needs a share from 0 to 1"),
        ("quantile:nan", "needs a share from 0 to 1"),
        ("range:3", "no number of standard deviations"),
        ("", "the value is empty"),
    ],
)
def test_what_is_no_statistic_is_one_line(said: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", LENET, "--stat", said]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") <= 2


# -- the table


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main([*words, "--csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_the_table_joins_layers_types_shapes_and_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "weights", LENET, "--op", "conv", "--stat", "var,quantile:0.97")
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(LENET).graph.initializer}
    assert [row["tensor"] for row in found] == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    for row in found:
        array = stored[row["tensor"]]
        assert (row["operator"], row["role"], row["dtype"]) == ("Conv", "weight", "float32")
        assert json.loads(row["shape"]) == list(array.shape)
        same({label: [float(row[label])] for label in ("var", "quantile:0.97")}, [array])
    assert json.loads(found[2]["outputs"]) == [[1, 16, 10, 10]]
    along = rows(capsys, "weights", LENET, "--layer", "conv2.weight", "--axis", "0")
    assert [row["index"] for row in along] == [str(i) for i in range(16)]
    same({"std": [float(row["std"]) for row in along]}, stored["conv2.weight"])


@pytest.mark.parametrize("verb", ["weights", "activations"])
def test_an_axis_that_no_tensor_has_is_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for axis in ("4", "-5"):
        assert main([verb, LENET, "--stat", "var", "--axis", axis]) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert f"no tensor has an axis {axis}" in told.err
        assert "4 at most, 0 to 3" in told.err
    assert rows(capsys, verb, LENET, "--stat", "var", "--axis", "3")


def test_kinds_and_globs_must_both_hold(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "weights", LENET, "--op", "Gemm", "--layer", "*fc1*", "--stat", "mean")
    assert {row["layer"] for row in found} == {"/fc1/Gemm"}
    assert main(["weights", LENET, "--op", "Convv"]) == 2
    assert "no layer is a 'Convv'" in (told := capsys.readouterr().err)
    assert "Conv" in told.split("'Convv'")[1]


def test_text_and_json_tell_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["weights", LENET, "--layer", "conv1.weight", "--stat", "absmean,count,zeros"]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["statistics"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"{row['absmean']:.4g}" in text
    assert "150" in text
    assert "0.0 %" in text
    assert row["count"] == 150


# -- samples


def model_of(folder: Path, batch: int | str, dtype: int = TensorProto.FLOAT) -> str:
    x, y = (helper.make_tensor_value_info(n, dtype, [batch, 3, 5]) for n in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(made, folder / "m.onnx")
    return str(folder / "m.onnx")


def file_of(folder: Path, array: Any) -> str:
    np.save(folder / "x.npy", array)
    return str(folder / "x.npy")


@pytest.mark.parametrize(
    ("batch", "asked", "runs"), [(1, None, 10), (2, None, 5), ("n", 4, 3), ("n", None, 1)]
)
@pytest.mark.parametrize("kept", [1 << 28, 0])
def test_samples_of_a_file_are_one_set_of_numbers(
    batch: Any, asked: int | None, runs: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.engine.values.activations.MAX_STORED_BYTES", kept)
    array = np.random.default_rng(1).normal(size=(10, 3, 5)).astype(np.float32)
    path = file_of(tmp_path, array)
    with Session(model_of(tmp_path, batch)) as session:
        found = session.activations(input=path, batch=asked, stat=ALL)
        along = session.activations(input=path, batch=asked, stat=ALL, axis=1)
        plain = session.activations(input=path, batch=asked)
    made = np.maximum(array, 0)
    (one,) = found.tensors
    assert (one.runs, one.elements) == (runs, 150)
    each = ((len(array) // runs if isinstance(batch, int) else asked or len(array), 3, 5),)
    assert [(row.inputs, row.outputs) for row in found.statistics] == [(each, each)]
    same(one.chosen, [made])
    same(along.tensors[0].chosen, np.moveaxis(made, 1, 0))
    same({"mean": [one.mean], "std": [one.std], "max": [one.maximum], "zeros": [one.zeros]}, [made])
    assert one.histogram is not None
    assert sum(one.histogram.counts) == 150
    exact = kept > 0 or runs == 1
    for (q, value), (_, rough) in zip(one.quantiles, plain.tensors[0].quantiles, strict=True):
        assert value == pytest.approx(float(np.quantile(made.astype(np.float64), q)), rel=1e-12)
        assert rough == pytest.approx(float(np.quantile(made, q)), rel=1e-6 if exact else 4e-3, abs=1e-12)
    assert (one.quantiles_exact, plain.tensors[0].quantiles_exact) == (True, exact)
    said = [any("0.4 %" in note for note in fact.notes) for fact in (found, along, plain)]
    assert said == [not exact] * 3


def test_samples_that_come_to_other_numbers_in_a_further_run_have_rough_quantiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.engine.values.activations.MAX_STORED_BYTES", 0)
    torch = pytest.importorskip("torch")

    class Counting(torch.nn.ReLU):  # type: ignore[name-defined,misc]
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x + self.calls

    path = file_of(tmp_path, np.zeros((8, 64), np.float32))
    with Session(torch.nn.Sequential(Counting()), input_shapes={"input": (None, (1, 64))}) as session:
        whole = session.activations(["0"], input=path, batch=1, stat="quantile:0.5")
        along = session.activations(["0"], input=path, batch=1, stat="quantile:0.5", axis=1)
    assert not whole.tensors[0].quantiles_exact
    assert along.tensors[0].chosen["quantile:0.5"] == (None,) * 64
    for fact in (whole, along):
        assert "1 output changed in the second run" in " ".join(fact.notes)


def test_numbers_of_16_bits_are_exact_however_many_there_are(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("explorer.engine.values.activations.MAX_STORED_BYTES", 100)
    array = np.random.default_rng(1).normal(size=(10, 3, 5)).astype(np.float16)
    with Session(model_of(tmp_path, 1, TensorProto.FLOAT16)) as session:
        (one,) = session.activations(input=file_of(tmp_path, array), stat="quantile:0.4").tensors
    assert one.quantiles_exact
    same(one.chosen, [np.maximum(array, 0)])


def test_samples_that_make_no_whole_runs_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, np.zeros((9, 3, 5), np.float32))
    with (
        Session(model_of(tmp_path, 2)) as session,
        pytest.raises(Misuse, match=r"\[9, 3, 5\] there and \[2, 3, 5\]"),
    ):
        session.activations(input=path)


def test_values_of_every_run_are_written(tmp_path: Path) -> None:
    array = np.random.default_rng(1).normal(size=(4, 3, 5)).astype(np.float32)
    output = str(tmp_path / "o.npz")
    with Session(model_of(tmp_path, 2)) as session:
        session.activations(input=file_of(tmp_path, array), output=output)
    with np.load(output) as written:
        assert list(written) == ["relu@1", "relu@2"]
        np.testing.assert_array_equal(np.concatenate(list(written.values())), np.maximum(array, 0))


def test_runs_are_those_of_the_runtime_one_by_one(tmp_path: Path) -> None:
    array = np.random.default_rng(1).normal(size=(3, 1, 28, 28)).astype(np.float32)
    with Session(LENET) as session:
        found = session.activations(["op:Gemm"], input=file_of(tmp_path, array), stat="absmean")
    model = onnx.load(LENET)
    names = [n.output[0] for n in model.graph.node if n.op_type == "Gemm"]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    runtime = onnxruntime.InferenceSession(model.SerializeToString())
    made = [runtime.run(None, {runtime.get_inputs()[0].name: array[i : i + 1]}) for i in range(3)]
    for stats, values in zip(found.tensors, zip(*made, strict=True), strict=True):
        truth = np.abs(np.stack(values).astype(np.float64)).mean()
        assert stats.chosen["absmean"] == (pytest.approx(truth, rel=1e-4),)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    parts = [rng.normal(1e6, 1, n) for n in (1, 1000, 0, 7)]
    whole = accumulated.Moments()
    for part in parts:
        own = accumulated.Moments()
        own.add(part)
        whole.join(own)
    truth = np.concatenate(parts)
    assert whole.std[0] == pytest.approx(float(truth.std()), rel=1e-9)


def test_the_manual_has_every_definition() -> None:
    page = Path("explorer/manual/counting.md").read_text(encoding="utf-8")
    for name, one in STATISTICS.items():
        label = f"{name}:{one.argument}" if one.argument else name
        assert f"| `{label}` | {one.definition.replace('|', chr(92) + '|')} |" in page


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("groups", [1, 300])
def test_quantiles_of_numbers_that_come_by_again_are_those_of_numpy(kind: str, groups: int) -> None:
    draw = np.random.default_rng(2)
    values = (draw.normal(size=4000) * draw.choice([1e-4, 1, 300, 0], 4000)).astype(kind)
    values[:3] = [0, -1, 1]
    if kind.startswith("f"):
        values[5:8] = [np.nan, -np.inf, -0.0]
    group = draw.integers(0, groups, 4000)
    group[group == 7] = 0
    wide = values.astype(np.float64)
    totals = np.bincount(group[np.isfinite(wide)], minlength=groups)
    search = RankSearch(values.dtype, totals, (0.0, 0.031, 0.5, 1.0))
    while not search.is_done:
        search.begin_pass()
        for at in range(0, 4000, 1111):
            part = slice(at, at + 1111)
            search.add(values[part], group[part] if groups > 1 else None)
        search.end_pass()
    assert search.is_steady
    for share, found in search.compute_quantiles().items():
        for at in range(groups):
            own = wide[(group == at) & np.isfinite(wide)]
            assert found[at] == (pytest.approx(np.quantile(own, share), rel=1e-14) if own.size else None)
