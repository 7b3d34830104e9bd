"""`explorer quantize`: formats chosen, written, told; bad input is one line and writes nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session
from explorer.cli import main
from explorer.facts.quantize import QuantizeRule, QuantizeSpec
from explorer.settings.quantize import build_spec, read_text, write_toml

Sample = Callable[[str], Path]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the verb with --json; the document, or the complaint."""

    def run(*words: object) -> Any:
        code = main.main(["quantize", *map(str, words), "--json", "--quiet"])
        out = capsys.readouterr()
        if code:
            assert code == 2
            assert out.err.count("\n") == 1
            return out.err
        return json.loads(out.out)

    return run


def gemm(path: Path, weight: np.ndarray[Any, Any]) -> Path:
    """x (1, K) times a stored weight (K, N)."""
    k, n = weight.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, n])],
        [numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_fixed_point_is_rounded_half_to_even_and_saturates(tmp_path: Path, ask: Callable[..., Any]) -> None:
    """A unit vector reads the rounded weights off the written model."""
    weight = np.array([[-0.0923, -0.2323, 0.0019, 0.1775, 0.03125, 0.09375, 9.0, -9.0]])
    source = gemm(tmp_path / "m.onnx", weight)
    target = tmp_path / "q.onnx"
    ask(source, "-o", target, "--to", "weight=fixed8.4", "--draws", "1")
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.ones((1, 1), np.float32)})
    assert found.tolist() == [[-0.0625, -0.25, 0, 0.1875, 0, 0.125, 7.9375, -8]]


def test_layers_are_chosen_by_operator_regex_and_filter(sample: Sample, ask: Callable[..., Any]) -> None:
    """Without -o only the choice; what is left says why."""
    words = ("--to", "weight=int4", "--site", "re:fc[12]", "--site", "op:Conv K>50")
    found = ask(sample("lenet"), *words)
    left = {layer["name"]: layer["reason"] for layer in found["layers"]}
    assert [name for name, reason in left.items() if not reason] == ["/conv2/Conv", "/fc1/Gemm", "/fc2/Gemm"]
    assert left["/fc3/Gemm"] == "it is not chosen"
    assert found["by_op"][0] == {"op": "Conv", "total": 2, "changed": 1, "unchanged": 1}
    assert found["output"] == ""


def test_a_file_decides_layer_by_layer_below_what_is_typed(
    sample: Sample, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """Tables of formats stand beside those of tilings."""
    file = tmp_path / "npu.toml"
    file.write_text(
        '[tile]\ntile = 32\n[quantize]\nweight = "int4"\n[[quantize.site]]\nop = "Conv"\nweight = "int8"\n'
        '[[quantize.site]]\nshape = "N=10"\non = false\n'
    )
    found = ask(sample("lenet"), "--config", file)
    assert [layer["weight"] for layer in found["layers"]] == ["int8", "int8", "int4", "int4", "float32"]
    assert found["layers"][-1]["reason"] == "switched off by npu.toml:8"
    typed = ask(sample("lenet"), "--config", file, "--to", "weight=int16")
    assert [layer["weight"] for layer in typed["layers"]] == ["int16"] * 4 + ["float32"]
    file.write_text('[[quantize.site]]\nop = "LSTM"\nweight = "int9"\n')
    wrong = ask(sample("lenet"), "--config", file)
    assert "npu.toml:1: there is no number format 'int9'" in wrong  # though it means no layer


def test_a_quantized_model_is_a_state_that_can_be_undone(sample: Sample, tmp_path: Path) -> None:
    """The command beside it makes the same file."""
    target = tmp_path / "q.onnx"
    with Session(sample("lenet")) as session:
        spec = QuantizeSpec(weight="int4", block=32, input="float32")
        made = session.quantize(spec, output=str(target), report=False)
        assert session.history().current == 1
        assert session.info().totals.weight_bytes < 246_824 / 4
        assert session.undo().current == 0
        assert session.info().totals.weight_bytes == 246_824
        words = made.command.split()[1:]
    before = target.read_bytes()
    assert main.main([*words, "--force", "--no-report", "--quiet"]) == 0
    assert target.read_bytes() == before


def test_rules_by_hand_need_no_file(sample: Sample) -> None:
    """A choice for one layer from Python."""
    with Session(sample("lenet")) as session:
        spec = QuantizeSpec(rules=(QuantizeRule(site="/fc3/Gemm", on=False, origin="chosen by hand"),))
        reasons = [layer.reason for layer in session.quantize_choice(spec).layers]
    assert reasons == ["", "", "", "", "switched off by hand"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--to", "int9"), "--to: there is no number format 'int9'; did you mean 'int8'?"),
        (("--to", "int32"), "--to: int32 is only for a bias, whose scale is the product of"),
        (("--to", "weight=int8,wait=int8"), "--to: 'wait=int8' does not set the format of a part"),
        (("--to", "float32"), "no layer takes a number format (none of its parts is selected)"),
        (("--op", "Conf"), "--op: no layer is a 'Conf'; did you mean 'Conv'?"),
        (("--site", "re:fc[12"), "is not a regular expression"),
        (("--site", "fc9"), "--site: no layer is called 'fc9'"),
        (("--calibrate", "nowhere.npz"), "nowhere.npz: cannot be read"),
        (("--symmetric", "--asymmetric"), "it cannot be both"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: tuple[str, ...], complaint: str, sample: Sample, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """And the exit code is 2."""
    target = tmp_path / "q.onnx"
    assert complaint in ask(sample("lenet"), "-o", target, *words)
    assert not target.exists()


def test_a_weight_of_nan_is_named(tmp_path: Path, ask: Callable[..., Any]) -> None:
    """No format has a grid for it."""
    source = gemm(tmp_path / "m.onnx", np.array([[1.0, np.nan]]))
    assert "the weight 'w' holds NaN" in ask(source, "-o", tmp_path / "q.onnx", "--to", "weight=int8")
    assert not (tmp_path / "q.onnx").exists()


def test_a_weight_that_a_caller_may_replace_takes_no_format(tmp_path: Path, ask: Callable[..., Any]) -> None:
    """An input with a default is no constant, and no value that flows."""
    source = gemm(tmp_path / "m.onnx", np.ones((1, 2)))
    model = onnx.load(source)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, model.graph.initializer[0].dims))
    onnx.save(model, source)
    assert "which a caller may replace" in ask(source, "-o", tmp_path / "q.onnx", "--to", "int8")
    assert not (tmp_path / "q.onnx").exists()


def test_settings_say_who_asked_for_a_format(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Default, file and line, command line; and which rule means no layer."""
    file = tmp_path / "npu.toml"
    file.write_text(
        '[quantize]\ninput = "uint8"\n[[quantize.site]]\nsite = "re:fc[12]"\nweight = "int4"\nblock = 16\n'
        '[[quantize.site]]\nsite = "/fc4/Gemm"\non = false\n'
    )
    words = ["settings", str(sample("lenet")), "--config", str(file), "--formats", "--granularity", "tensor"]
    assert main.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert [layers[name]["weight"] for name in ("/conv1/Conv", "/fc2/Gemm")] == ["int8", "int4"]
    origins = layers["/fc2/Gemm"]["origins"]
    assert [origins[value] for value in ("input", "weight", "bias", "granularity")] == [
        "npu.toml:2",
        "npu.toml:3",
        "default",
        "command line",
    ]
    assert layers["/fc1/Gemm"]["sizes"] == [1, 400, 120]
    assert found["unused"] == [{"origin": "npu.toml:7", "says": "site /fc4/Gemm", "near": "/fc3/Gemm"}]
    assert main.main(words) == 0
    assert "int4 (npu.toml:3)" in capsys.readouterr().out
    assert main.main(["settings", str(sample("lenet")), "--to", "int8"]) == 2
    assert "--to: does not apply to tiles; add --formats" in capsys.readouterr().err


def test_blocks_meet_inputs_of_integers(sample: Sample, tmp_path: Path, ask: Callable[..., Any]) -> None:
    """A sum over blocks has no one scale: the bias stays as it is."""
    target = tmp_path / "q.onnx"
    found = ask(sample("lenet"), "-o", target, "--to", "weight=int4,input=int8", "--block", "16")
    assert {layer["bias"] for layer in found["layers"]} == {"float32"}
    assert found["outputs"][0]["snr_db"] > 10


def test_a_data_set_calibrates_with_its_labels_beside(
    sample: Sample, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """What is no input is left alone where all inputs are there; where one is missing it is named."""
    with np.load(sample("jsc_tiny").parent / "jets_train.npz") as data:
        values, labels = data["x"][:50], data["y"][:50]
    name = onnx.load(sample("jsc_tiny")).graph.input[0].name
    np.savez(tmp_path / "both.npz", **{name: values, "kinds": labels})
    np.savez(tmp_path / "other.npz", **{f"{name}s": values, "kinds": labels})
    target = tmp_path / "q.onnx"
    assert ask(sample("jsc_tiny"), "-o", target, "--calibrate", tmp_path / "both.npz")["calibration"] == (
        "both.npz, 50 samples"
    )
    said = ask(sample("jsc_tiny"), "-o", target, "--force", "--calibrate", tmp_path / "other.npz")
    assert "the model has no input" in said


def test_formats_that_are_typed_merge_with_those_of_a_file(
    sample: Sample, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """A part that is not named keeps what the file says of it, for all layers and for some."""
    file = tmp_path / "q.toml"
    file.write_text(
        '[quantize]\nweight = "int16"\ninput = "uint8"\n[[quantize.site]]\nop = "Conv"\nweight = "int4"\n'
        'bias = "float32"\n'
    )
    found = ask(sample("lenet"), "--config", file, "--to", "input=fixed8.4")
    assert {(one["op"], one["weight"], one["input"], one["bias"]) for one in found["layers"]} == {
        ("Conv", "int4", "fixed8.4", "float32"),
        ("Gemm", "int16", "fixed8.4", "int32"),
    }
    found = ask(sample("lenet"), "--config", file, "--to", "bias=fixed8.4,weight=int8")
    formats = {(one["weight"], one["input"], one["bias"]) for one in found["layers"]}
    assert formats == {("int8", "uint8", "fixed8.4")}


@pytest.mark.parametrize(
    "text",
    [
        'weight = "int17x"',
        '[[quantize.site]]\nsite = "*"\ninput = "fixed4"',
        '[[quantize.site]]\nsite = "nothing"\nweight = "inti8"',
    ],
)
def test_formats_that_the_command_line_overrides_are_checked(
    sample: Sample, tmp_path: Path, ask: Callable[..., Any], text: str
) -> None:
    file = tmp_path / "q.toml"
    file.write_text(f"[quantize]\n{text}\n")
    for typed in ([], ["--to", "weight=int8,input=int8"]):
        assert "q.toml:2: there is no number format" in ask(sample("lenet"), "--config", file, *typed)


def test_settings_say_who_asked_for_each_part(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file for what it says, the command line for what was typed."""
    file = tmp_path / "q.toml"
    file.write_text('[quantize]\nweight = "int16"\n[[quantize.site]]\nop = "Conv"\ninput = "int4"\n')
    words = ["settings", str(sample("lenet")), "--formats", "--config", str(file), "--to", "bias=fixed8.4"]
    assert main.main([*words, "--json", "--quiet"]) == 0
    first, *_, last = json.loads(capsys.readouterr().out)["layers"]
    assert first["origins"]["weight"] == last["origins"]["weight"] == "q.toml:2"
    assert (first["origins"]["input"], last["origins"]["input"]) == ("q.toml:3", "default")
    assert first["origins"]["bias"] == "command line"


@pytest.mark.parametrize(
    ("lines", "typed", "formats"),
    [
        ("block = 16", "int4", ("int4", "float32")),  # the file's blocks are of weights alone, too
        ("accumulator = 24", "weight=int4", ("int4", "float32")),  # it names no format
        ('weight = "int16"', "int4", ("int4", "int4")),
    ],
)
def test_a_format_by_itself_above_a_file(
    lines: str, typed: str, formats: tuple[str, str], sample: Sample, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """It means above a file what it means with options."""
    file = tmp_path / "q.toml"
    file.write_text(f"[quantize]\n{lines}\n")
    found = ask(sample("lenet"), "--config", file, "--to", typed)
    assert {(one["weight"], one["input"]) for one in found["layers"]} == {formats}


@pytest.mark.parametrize(
    ("lines", "typed", "words"),
    [
        ('input = "uint8"\npercentile = 99', {"bias": "fixed8.4"}, "--to bias=fixed8.4"),
        ("accumulator = 24", {"weight": "int16"}, "--to weight=int16,input=int8,bias=auto"),
        ('weight = "int16"', {"weight": "uint8"}, "--to weight=uint8,input=int8,bias=auto"),
        ('[[quantize.site]]\nop = "Conv"\nweight = "int4"', {"input": "uint8"}, "--to input=uint8"),
    ],
)
def test_a_command_above_a_file_makes_the_same_file_again(
    lines: str, typed: dict[str, str], words: str, sample: Sample, tmp_path: Path
) -> None:
    """What the file says of some layers is not overruled by the command that is saved, nor is a default."""
    config, target = tmp_path / "q.toml", tmp_path / "q.onnx"
    config.write_text(f"[quantize]\n{lines}\n")
    with Session(sample("lenet")) as session:
        command = session.quantize(build_spec(str(config), typed), output=str(target), report=False).command
    before = target.read_bytes()
    assert words in command
    assert main.main([*shlex.split(command)[1:], "--force", "--no-report", "--quiet"]) == 0
    assert target.read_bytes() == before


def test_a_percentile_in_a_file_asks_for_its_calibrator(tmp_path: Path) -> None:
    """As on the command line, and as it is written back."""
    spec = read_text("[quantize]\npercentile = 99.5\n", "q.toml")
    assert (spec.calibrator, dict(spec.origins)["calibrator"]) == ("percentile", "q.toml:2")
    assert read_text(write_toml(spec), "q.toml").calibrator == "percentile"
    assert read_text(write_toml(QuantizeSpec(percentile=99.5)), "q.toml").calibrator == "minmax"


def rows(path: Path, *shape: int, broken: bool = False) -> Path:
    """A file of samples; of a broken one the last is not finite."""
    values = np.zeros(shape, np.float32)
    values.reshape(-1)[-1] = np.inf if broken else 1
    np.save(path, values)
    return path


DRY = {
    "no file": ("quantize", "--calibrate", "absent.npz"),
    "another shape": ("quantize", "--calibrate", "odd.npy"),
    "infinity in the last sample": ("quantize", "--calibrate", "broken.npy"),
    "a text": ("quantize", "--calibrate", "text.npz"),
    "too small a percentile": ("quantize", "--percentile", "50"),
    "too large a percentile": ("quantize", "--percentile", "100.5"),
    "fold": ("fold", "--input", "absent.npz"),
    "fold, another shape": ("fold", "--input", "odd.npy"),
    "tile": ("tile", "--tile", "8", "--input", "absent.npz"),
    "tile, another shape": ("tile", "--tile", "8", "--input", "odd.npy"),
    "tile after quantize": ("tile", "--tile", "8", "--quantize", "int8", "--calibrate", "odd.npy"),
}


@pytest.mark.parametrize("what", DRY)
def test_without_a_target_what_cannot_be_done_is_refused_all_the_same(
    what: str,
    tmp_path: Path,
    sample: Sample,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line is the one of the command that writes."""
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "odd.npy", 2, 3)
    rows(tmp_path / "broken.npy", 5, *LENET, broken=True)
    (tmp_path / "text.npz").write_text("no archive")
    verb, *words = DRY[what]
    source = str(foldable(tmp_path / "m.onnx") if verb == "fold" else sample("lenet"))
    said = []
    for more in ([], ["-o", "made.onnx"]):
        assert main.main([verb, source, *words, *more, "--quiet"]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert said[0].count("\n") == 1
    assert not (tmp_path / "made.onnx").exists()


LENET = (1, 28, 28)


def foldable(path: Path) -> Path:
    """A product behind an Identity."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    stored = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_samples_that_fit_are_in_the_command_of_a_choice(
    tmp_path: Path, sample: Sample, ask: Callable[..., Any]
) -> None:
    """So that the command with a target chooses its ranges on them."""
    file = rows(tmp_path / "fine.npy", 3, *LENET)
    assert "fine.npy" in ask(sample("lenet"), "--calibrate", file)["command"]
    assert "--seed 7" in ask(sample("lenet"), "--seed", "7")["command"]
