"""What `explorer quantize` answers: figures of layers and outputs, calibrated on files of the user's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session
from explorer.base.errors import Misuse
from explorer.cli import main
from explorer.engine.tiling.rules import make_name_matcher
from explorer.facts.quantize import QuantizeSpec
from explorer.facts.quantize.result import RunTimes
from explorer.features.quantize.quantize_words import run_times
from explorer.settings.quantize import add_layer_choice

Sample = Callable[[str], Path]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def made(*words: object, code: int = 0) -> str:
        assert main.main([*map(str, words), "--quiet"]) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    return made


def pictures(path: Path, count: int, scale: float = 1.0) -> Path:
    values = np.random.default_rng(5).standard_normal((count, 1, 1, 28, 28)) * scale
    np.savez(path, values.astype(np.float32))
    return path


def test_json_has_the_figures_of_the_issue(sample: Sample, tmp_path: Path, run: Callable[..., str]) -> None:
    """By operator, by layer, in total and of the outputs; they are those of the files, run by onnxruntime."""
    source, target, calib = sample("lenet"), tmp_path / "q.onnx", pictures(tmp_path / "calib.npz", 6)
    found = json.loads(run("quantize", source, "-o", target, "--calibrate", calib, "--json"))
    assert found["by_op"] == [
        {"op": "Conv", "total": 2, "changed": 2, "unchanged": 0},
        {"op": "Gemm", "total": 3, "changed": 3, "unchanged": 0},
    ]
    assert found["totals"]["bitops"]["before"] == 16 * found["totals"]["bitops"]["after"]
    assert found["calibration"] == "calib.npz, 6 samples"
    keys = {"name", "op", "weight", "input", "bias", "weight_snr_db", "output_snr_db", "saturated", "bits"}
    assert keys <= found["layers"][0].keys()
    assert found["worst"] == min(found["layers"], key=lambda layer: layer["output_snr_db"])["name"]
    sessions = [
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in (source, target)
    ]
    with np.load(calib) as file:
        old, new = (
            np.concatenate([s.run(None, {"input": x})[0] for x in file["arr_0"]]).astype(np.float64)
            for s in sessions
        )
    (said,) = found["outputs"]
    seen = 10 * np.log10((old**2).sum() / ((new - old) ** 2).sum())
    # a stock session's sums of bytes saturate where there is no VNNI, and the answer says so
    assert said["snr_db"] == pytest.approx(seen, abs=0.2) or any("no VNNI" in note for note in found["notes"])
    assert (said["samples"], said["top1"]) == (6, (old.argmax(1) == new.argmax(1)).mean())


def test_calibration_decides_what_is_saturated(
    sample: Sample, tmp_path: Path, run: Callable[..., str]
) -> None:
    """Ranges seen on small pictures, and a percentile, leave larger values outside."""
    words = ("quantize", sample("lenet"), "--json", "--calibrate", pictures(tmp_path / "c.npz", 4))
    shares = {}
    for name in ("minmax", "percentile", "entropy", "mse"):
        more = ("--calibrator", name, "--percentile", 98)
        layers = json.loads(run(*words, "-o", tmp_path / f"{name}.onnx", *more))["layers"]
        shares[name] = [layer["saturated"] for layer in layers]
        assert all(layer["output_snr_db"] > 12 for layer in layers)
    assert not any(shares["minmax"])
    assert 0.005 < shares["percentile"][0] <= 0.02
    assert any(shares["mse"])
    assert any(shares["entropy"])
    alone = json.loads(run(*words, "-o", tmp_path / "alone.onnx", "--percentile", 98))["layers"]
    assert [layer["saturated"] for layer in alone] == shares["percentile"]


def test_a_folder_of_samples_calibrates(sample: Sample, tmp_path: Path, run: Callable[..., str]) -> None:
    folder = tmp_path / "calib"
    folder.mkdir()
    for at in range(2):
        pictures(folder / f"{at}.npz", 3, 1.0 + at)
    text = run("quantize", sample("lenet"), "-o", tmp_path / "q.onnx", "--calibrate", folder)
    assert "ranges and errors from calib, 6 samples" in text
    assert "worst" in text


def test_a_file_with_labels_calibrates(sample: Sample, tmp_path: Path, run: Callable[..., str]) -> None:
    """What trains and evaluates a model gives its ranges, too: labels are no input."""
    inputs = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    np.savez(tmp_path / "both.npz", x=inputs, y=np.arange(5))
    np.savez(tmp_path / "alone.npz", x=inputs)
    found = [
        json.loads(run("quantize", sample("jsc_tiny"), "-o", tmp_path / f"{name}.onnx", "--calibrate",
                       tmp_path / f"{name}.npz", "--json"))["layers"]
        for name in ("both", "alone")
    ]  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((2, 1, 1, 28, 27), np.float32), r"[2, 1, 1, 28, 27] there and [1, 1, 28, 28]"),
        (np.full((2, 1, 1, 28, 28), np.nan, np.float32), "NaN or Inf in sample 1"),
        (np.zeros((2, 1, 1, 28, 28)), "float64 there and float32 in the model"),
    ],
)
def test_a_bad_calibration_file_writes_nothing(
    sample: Sample, tmp_path: Path, run: Callable[..., str], values: Any, said: str
) -> None:
    np.savez(tmp_path / "c.npz", values)
    words = ("quantize", sample("lenet"), "-o", tmp_path / "q.onnx", "--calibrate", tmp_path / "c.npz")
    text = run(*words, code=2)
    assert said in text
    assert text.count("\n") == 1
    assert not (tmp_path / "q.onnx").exists()


def test_the_table_says_what_is_lost_and_what_was_left(
    sample: Sample, tmp_path: Path, run: Callable[..., str]
) -> None:
    """Work is known although the model leaves its sizes open: it is that of the samples."""
    text = run("quantize", sample("bert_tiny"), "-o", tmp_path / "q.onnx")
    assert "unchanged unless you select it: --op Gather" in text
    assert "output dB" in text
    assert "?" not in text
    only = run("quantize", sample("bert_tiny"))
    assert "This is a plan: nothing ran, and no file was written" in only
    assert " dB" not in only
    assert "RMS" not in only


def test_verify_takes_a_quantized_model_within_a_ratio(
    sample: Sample, tmp_path: Path, run: Callable[..., str]
) -> None:
    """It takes one that loses less, and refuses one that loses more, by the figure that both tell."""
    source, target = sample("lenet"), tmp_path / "q.onnx"
    made = json.loads(run("quantize", source, "-o", target, "--draws", 1, "--json"))
    snr = made["outputs"][0]["snr_db"]
    assert "within the tolerance" in run("verify", source, target, "--snr", snr - 1)
    refused = json.loads(run("verify", source, target, "--snr", snr + 1, "--json", code=1))
    assert refused["passed"] is False
    assert f"signal to noise {snr:.1f} dB" in refused["outputs"][0]["reason"]


@pytest.mark.slow
def test_diff_and_blame_say_one_row_for_each_layer(
    sample: Sample, tmp_path: Path, run: Callable[..., str]
) -> None:
    """In every form that is written: codes with scales, functions, casts; weights alone in blocks."""
    source = sample("lenet")
    cases = {
        "weight=int8,input=int8,bias=auto": "int8, per channel",
        "fixed12.6": "fixed12.6",
        "mxfp8": "mxfp8",
        "weight=float16,input=float32": "weight float16",
        "weight=int4,input=float32": "weight int4, per channel",
    }
    for at, (formats, said) in enumerate(cases.items()):
        target = tmp_path / f"{at}.onnx"
        run("quantize", source, "-o", target, "--to", formats)
        rows = [
            row
            for row in json.loads(run("diff", source, target, "--json", code=1))["nodes"]
            if "Opset" not in (row["op_before"], row["op_after"])
        ]
        assert [row["status"] for row in rows] == ["quantized"] * 5, formats
        assert all(row["what"].startswith(f"{row['op_before']} -> {said}") for row in rows)
        probes = json.loads(run("blame", source, target, "--json", "--draws", 1, code=1))["probes"]
        assert {probe["op"] for probe in probes if probe["formats"].startswith(said)} == {"Conv", "Gemm"}
        assert not any(probe["state"] == "introduced" for probe in probes)


def test_a_layer_that_loses_most_is_given_another_format(sample: Sample) -> None:
    """Excluded, or of more bits: the model is made again beside the one that it came from."""
    with Session(sample("lenet")) as session:
        first = session.quantize(QuantizeSpec(weight="int4", input="int8"))
        worst = first.worst
        better = session.requantize(worst, weight="int8")
        left = session.requantize(worst, on=False)
        history = session.history()
        with pytest.raises(Misuse, match="no layer is called '/conv9/Conv'; did you mean"):
            session.requantize("/conv9/Conv", on=False)
        assert session.history() == history
        session.go(0)
        with pytest.raises(Misuse, match="was not quantized here"):
            session.requantize(worst, on=False)
    layers = [{layer.name: layer for layer in fact.layers} for fact in (first, better, left)]
    assert [some[worst].weight for some in layers] == ["int4", "int8", "float32"]
    assert [some[worst].reason for some in layers] == ["", "", "switched off by hand"]
    others = [
        {n: (layer.weight, layer.output_snr_db) for n, layer in some.items() if n != worst} for some in layers
    ]
    assert others[0] == others[1] == others[2]
    assert (layers[1][worst].output_snr_db or 0) > (layers[0][worst].output_snr_db or 0) + 10
    assert [entry.parent for entry in history.entries] == [None, 0, 0, 0]
    assert history.current == 3


def test_a_name_with_brackets_is_a_name() -> None:
    """A rule by hand means the one layer, whatever is in its name; a later choice replaces it."""
    spec = add_layer_choice(QuantizeSpec(), "/layers[0]/fc*", weight="int4")
    (rule,) = spec.rules
    matches = make_name_matcher(rule.site, "")
    assert matches("/layers[0]/fc*")
    assert not matches("/layers0/fc*")
    assert not matches("/layers[0]/fc1")
    again = add_layer_choice(spec, "/layers[0]/fc*", on=False)
    assert [(one.weight, one.on) for one in again.rules] == [(None, False)]
    assert add_layer_choice(again, "/layers[0]/fc*").rules == ()


def test_a_weight_that_two_layers_read_in_two_formats_counts_twice(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    """A tied table: the Gather keeps its rows in float32, the product reads codes; the file has both."""
    table = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="embedding"),
            helper.make_node("Gemm", ["rows", "table"], ["y"], name="head", transB=1),
        ],
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 64])],
        [numpy_helper.from_array(table, "table")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        tmp_path / "m.onnx",
    )
    words = ("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--to", "int8", "--json")
    found = json.loads(run(*words))["totals"]["weight_bytes"]
    assert found == {"before": table.nbytes, "after": table.nbytes + table.size + 4 * 64}
    both = json.loads(run(*words, "--op", "G*", "--force"))["totals"]["weight_bytes"]
    assert both["after"] < table.nbytes


def test_a_weight_in_blocks_of_four_bits_is_one_row(
    sample: Sample, tmp_path: Path, run: Callable[..., str]
) -> None:
    target = tmp_path / "q.onnx"
    run("quantize", sample("bert_tiny"), "-o", target, "--to", "int4", "--block", 32, "--op", "MatMul")
    document = json.loads(run("diff", sample("bert_tiny"), target, "--json", code=1))
    rows = [row for row in document["nodes"] if row["op_before"] and row["op_before"] != "Opset"]
    assert {(row["op_before"], row["op_after"], row["status"]) for row in rows} == {
        ("MatMul", "MatMulNBits", "quantized")
    }
    said = [re.fullmatch(r"MatMul -> weight int4, block 32, (\d\d\.\d) dB", row["what"]) for row in rows]
    assert all(found is not None and 18 < float(found[1]) < 28 for found in said)


@pytest.mark.parametrize(("after", "text"), [(1.07, "1.07 x"), (0.9, "0.90 x"), (0.4, "0.40 x"), (0, "?")])
def test_the_time_of_a_quantized_model_is_a_multiple_of_the_original(after: float, text: str) -> None:
    table = run_times(RunTimes(1.0, after, 1.0, after, 5))
    assert list(table.rows)[1][-1] == text
