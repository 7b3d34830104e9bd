"""Answers that newcomers hesitated at: figures without a bar, columns of a proof, sums, names, legends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import explorer
from explorer import verify_files
from explorer.cli.main import main
from explorer.facts import Layer
from explorer.facts.training import Holding
from explorer.tui.tree.sites import select_sites

Sample = Callable[[str], Path]
Asked = Callable[..., str]

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.relu(self.a(x)) + 1

def net():
    return Net(), torch.zeros(1, 4)
"""


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Runs a command in a folder with `own.py`, and returns its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(NET)

    def ask(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    return ask


def test_a_share_that_prints_as_zero_has_no_bar(asked: Asked, sample: Sample) -> None:
    for words in (
        ("roofline", str(sample("mobilenet_small")), "--machine", "h100"),
        ("ops", str(sample("mobilenet_small"))),
    ):
        rows = [line for line in asked(*words).splitlines() if re.search(r"\b0\.0 %", line)]
        assert not [line for line in rows if "▌" in line or "█" in line]


def test_the_columns_and_the_verdict_of_a_proof_are_the_same_words_everywhere(
    asked: Asked, tmp_path: Path
) -> None:
    asked("make", "linear:3x4x4", "-o", "a.onnx")
    asked("tile", "a.onnx", "--tile", "2", "-o", "b.onnx")
    text = asked("verify", "a.onnx", "b.onnx", "--draws", "2")
    fact = verify_files("a.onnx", "b.onnx", draws=2)
    claim, _, grounds = fact.verdict.partition(": ")
    printed = " ".join(text.split())
    assert claim in printed
    assert [ground for ground in grounds.split("; ") if ground not in printed] == []
    assert re.search(r"1 matmul, 8 tile matmuls checked bit for bit", grounds)
    assert re.search(r"worst rounding \S+ u, limit \S+ u", grounds)
    assert "1 output in 2 runs: " in grounds
    for column in ("rows compared", "relative RMS", "max difference", "rounding vs exact"):
        assert column in text
        assert f"| {column} |" in asked("help", "proof")
    (output,) = fact.outputs
    assert output.equal or f"{output.relative_rms:.1e}" in text


def test_a_step_explains_the_letters_of_its_bar_and_repeats_no_label(asked: Asked, sample: Sample) -> None:
    text = asked("training", str(sample("mlp_128")))
    for kind in get_args(Holding):
        assert f"{kind[0]} {kind}" in text
    labels = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  Elementwise")]
    assert labels == ["Elementwise operations, forward", "Elementwise operations, backward"]


def test_a_module_has_two_sums_of_outputs_with_what_each_counts(asked: Asked) -> None:
    pytest.importorskip("torch")
    text = asked("info", "own:net")
    sums = json.loads(asked("info", "own:net", "--json"))["totals"]
    module = next(line for line in text.splitlines() if "Activations, sum" in line)
    function = next(line for line in text.splitlines() if "Activations, functions" in line)
    assert f"{sums['activation_bytes_sum']} " in module
    assert "outputs of modules without submodules" in module
    assert f"{sums['activation_bytes_functional']} " in function
    assert "outputs of functions" in function


def test_a_plan_of_a_module_says_whose_names_it_prints(asked: Asked, sample: Sample) -> None:
    pytest.importorskip("torch")
    assert "Names of matmuls are those of the ONNX graph" in asked("plan", "own:net")
    sites = json.loads(asked("plan", "own:net", "--json"))["sites"]
    assert [site["name"] for site in sites] == ["/a/Gemm"]
    assert "Names of matmuls" not in asked("plan", str(sample("mlp_128")))


def test_the_totals_of_a_wrong_input_shape_say_the_reason(asked: Asked, sample: Sample) -> None:
    text = asked("info", str(sample("lenet")), "--input-shape", "input:1,3,28,28", "--partial")
    assert "3 channels" in text
    assert "channels" not in asked("info", str(sample("lenet")))


def test_the_totals_of_a_file_of_tensors_say_once_that_it_has_no_graph(asked: Asked, tmp_path: Path) -> None:
    save_file({"encoder.block.weight": np.zeros((2, 3), np.float32)}, tmp_path / "weights.safetensors")
    assert asked("info", str(tmp_path / "weights.safetensors")).count("holds tensors and no graph") == 1


def test_the_costs_before_the_tiling_of_a_module_are_those_of_its_onnx_export(
    asked: Asked, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    text = asked("tile", "own:net", "-o", str(tmp_path / "tiled.onnx"))
    assert "before: own:net as ONNX" in text


def test_a_diff_says_what_the_export_of_a_batch_normalization_stores(
    sample: Sample, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    net = "torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.ReLU()), torch.zeros(2, 5)"
    (tmp_path / "scaled.py").write_text(f"import torch\n\ndef net():\n    return {net}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["diff", "scaled.py:net", str(sample("lenet"))]) == 1
    note = " ".join(capsys.readouterr().out.split())
    assert "statistics of batch normalization count as parameters" in note


def test_a_module_in_a_diff_is_named_as_its_onnx_export(
    asked: Asked, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    lenet = str(sample("lenet"))
    assert main(["diff", "own:net", lenet]) == 1
    note = " ".join(capsys.readouterr().out.split())
    assert "own:net is compared as its ONNX export" in note
    assert "batch normalization" not in note
    assert main(["diff", lenet, str(sample("mlp_128"))]) == 1
    assert "ONNX export" not in capsys.readouterr().out


RECURRENT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h0", torch.zeros(1, 2, 8))
        self.rnn = torch.nn.GRU(4, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rnn(x, self.h0)[0][:, -1])

def net():
    return Net()
"""


def test_an_own_recurrent_module_is_tiled_and_every_parameter_is_explained(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    words = ("recurrent.py:net", "--trust", "--input-shape", "2,5,4")
    asked("convert", *words, "-o", "net.onnx")
    told = asked("compare", "recurrent.py:net", "net.onnx", "--trust", "--input-shape", "2,5,4")
    assert re.search(r"params +\+16 +explained\s+1 buffer of the module", told)
    told = asked("tile", *words, "--tile", "4", "-o", "tiled.onnx")
    assert "/head/Gemm" in told
    told = asked("compare", "net.onnx", "tiled.onnx")
    assert not re.search(r"params +\S+ +unexplained", told), told
    assert "bias of a recurrent layer that its tiled form stores" in told


def test_a_matmul_of_torch_export_is_named_by_its_layer(asked: Asked, tmp_path: Path) -> None:
    scopes = "pkg.torch.onnx.name_scopes"
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="node_MatMul_7"),
        helper.make_node("MatMul", ["h", "w1"], ["y"], name="node_MatMul_9"),
    ]
    for node, path in zip(
        nodes, ("['', 'body', 'body.0', 'linear']", "['', 'head', 'linear_1']"), strict=True
    ):
        node.metadata_props.append(onnx.StringStringEntryProto(key=scopes, value=path))
    weights = [numpy_helper.from_array(np.ones((6, 6), np.float32), name) for name in ("w0", "w1")]
    x, y = (helper.make_tensor_value_info(name, 1, [2, 6]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 10
    onnx.save(model, tmp_path / "export.onnx")
    for words in (
        ("plan", "--tile", "4"),
        ("tile", "--tile", "4", "-o", "tiled.onnx"),
        ("map", "--machine", "gemmini"),
    ):
        told = asked(words[0], "export.onnx", "--site", "body", *words[1:])
        assert "node_MatMul_7 in body.0" in told
        assert "node_MatMul_9" not in told.split("What changed")[0]
    assert "node_MatMul_7 in body.0" in asked("verify", "export.onnx", "tiled.onnx")
    plan = explorer.Session(str(tmp_path / "export.onnx")).plan(explorer.TileSpec(tile=(4, 4, 4)))
    assert [site.layer for site in plan.sites] == ["body.0", "head"]
    head = Layer(0, None, "head", "head", "Linear", 0, True)
    assert [site.name for site in select_sites([head], plan.sites, is_graph=False)] == ["node_MatMul_9"]


def test_a_hint_lists_the_choices_in_one_way(
    asked: Asked, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, choices in (
        (("tile", "--form", "q"), "auto, lab"),
        (("layers", "--sort", "q"), ""),
        (("graph", "-o", "graph.svg", "--color", "q"), ""),
        (("activations", "--backward", "--loss", "q"), ""),
    ):
        assert main([words[0], str(sample("lenet")), *words[1:]]) == 2
        told = capsys.readouterr().err
        assert f"choose from: {choices}" in told
        assert not re.search(r"there is: |one of |' is no ", told), told


def test_a_node_without_a_telling_name_is_named_with_its_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    for path, factor in zip(paths, (1, 2), strict=True):
        node = helper.make_node("MatMul", ["x", "w"], ["y"], name="node_MatMul_7")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'neck', 'neck.proj', 'matmul']")
        w = numpy_helper.from_array(factor * np.ones((4, 3), np.float32), "w")
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size])
            for name, size in (("x", 4), ("y", 3))
        )
        graph = helper.make_graph([node], "g", [x], [y], [w])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    for verb in ("diff", "blame"):
        assert main([verb, *paths]) == 1
        assert "node_MatMul_7 in neck.proj" in capsys.readouterr().out.replace("'", "")


SLICED = """
import torch

class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, 16, 6))
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x + self.table[:, : x.shape[1]])

def net():
    return Positions(), torch.zeros(2, 5, 6)
"""


def test_a_position_table_that_the_export_slices_is_explained(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "positions.py").write_text(SLICED)
    asked("convert", "positions.py:net", "-o", "positions.onnx")
    told = asked("compare", "positions.py:net", "positions.onnx")
    assert re.search(
        r"params +-96 +explained\s+1 parameter of which the other model stores only the slice", told
    )
    assert re.search(r"params +\+30 +explained\s+1 slice of a parameter", told)
    assert "unexplained" not in told


def test_a_table_names_the_other_outputs_and_the_calls_in_words(asked: Asked, sample: Sample) -> None:
    asked("make", "linear:128x64x128", "-o", "product.onnx")
    asked("tile", "product.onnx", "--tile", "64", "-o", "tiled.onnx")
    told = asked("layers", "tiled.onnx")
    assert re.search(r"Split2D_64x128_by_64x64 +\[64, 64\] and 1 more ", told)
    assert " +1" not in told


def test_a_filter_without_a_match_names_the_next_step(asked: Asked, sample: Sample) -> None:
    told = asked("layers", str(sample("lenet")), "--filter", "op:Gemn")
    assert "no layer matches; explorer ops MODEL lists operators" in told
    assert "no layer matches" not in asked("layers", str(sample("lenet")), "--filter", "op:Gemm")


def test_a_few_steps_of_the_memory_hold_the_peak(asked: Asked, sample: Sample) -> None:
    told = asked("memory", str(sample("lenet")), "--top", "3")
    assert len(re.findall(r"(?m)^ +\d+  /", told)) <= 3
    assert re.search(r"(?m)^ +\d+ .* peak$", told), told


def test_a_missing_file_of_code_has_a_near_name(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "onw.py:net"]) == 2
    assert "onw.py: there is no such file; did you mean 'own.py'?" in capsys.readouterr().err


def turned_weights(path: Path, count: int) -> str:
    """A row of products, each with a weight that a Transpose turns first."""
    nodes, weights, last = [], [], "x"
    for index in range(count):
        weights.append(numpy_helper.from_array(np.full((4, 4), 0.25, np.float32), f"w{index}"))
        nodes.append(helper.make_node("Transpose", [f"w{index}"], [f"t{index}"], name=f"turn{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"t{index}"], [f"y{index}"], name=f"fc{index}"))
        last = f"y{index}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "row", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_nodes_that_go_for_one_reason_share_a_row(asked: Asked, tmp_path: Path) -> None:
    path = turned_weights(tmp_path / "turned.onnx", 30)
    text = asked("tile", path, "--tile", "2", "--form", "unrolled", "-o", str(tmp_path / "tiled.onnx"))
    (row,) = (line for line in text.splitlines() if line.strip().startswith("removed"))
    assert "turn0 and 29 more" in row


def test_a_row_of_equal_matmuls_has_their_tile_matmuls_together(asked: Asked, tmp_path: Path) -> None:
    path = turned_weights(tmp_path / "turned.onnx", 30)
    text = asked("tile", path, "--tile", "2", "-o", str(tmp_path / "tiled.onnx"), "--no-verify")
    assert (
        "30 matmuls: equal matmuls share a row, which counts the tile matmuls of all; --json lists each"
        in text
    )
    assert re.search(r"fc0 and 29 more .* 1 x 2 x 2 +120 ", text)


def test_several_batches_say_of_which_one_the_peak_is(asked: Asked) -> None:
    several = asked("training", "own:net", "--batch", "2,3")
    assert "live at the peak   of batch 2, as the phases below" in several
    assert "of batch" not in asked("training", "own:net", "--batch", "2")


def test_an_accumulator_of_a_float_model_has_no_effect_and_the_answer_says_so(
    asked: Asked, sample: Sample, tmp_path: Path
) -> None:
    text = asked(
        "tile", str(sample("lenet")), "--accumulator", "16", "-o", str(tmp_path / "t.onnx"), "--no-verify"
    )
    assert (
        "accumulator of 16 bits: no effect: no matmul here sums stored integers, as in a quantized model"
        in text
    )


TIED = """
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(70, 12)
        self.gru = torch.nn.GRU(12, 12, batch_first=True)
        self.head = torch.nn.Linear(12, 70, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.gru(self.embed(tokens))[0])

def tied():
    return Tied(), torch.randint(0, 70, (1, 9))
"""


@pytest.fixture
def tiled(asked: Asked) -> Asked:
    """`asked` in a folder with a recurrent module with a tied weight, its ONNX form, and the tiled form."""
    Path("tied.py").write_text(TIED)
    asked("convert", "tied.py:tied", "-o", "tied.onnx", "--no-verify")
    asked("tile", "tied.onnx", "-o", "tiled.onnx", "--no-verify", "--tile", "16")
    return asked


def test_a_loop_counts_with_all_its_runs_in_each_answer_about_a_tiled_file(tiled: Asked) -> None:
    plan = json.loads(tiled("plan", "tied.onnx", "--tile", "16", "--json"))["cost"]
    table = tiled("compare", "tied.onnx", "tiled.onnx")
    shown = {
        line[2:20].strip(): line.split()[-1] for line in table.splitlines() if line.startswith("  Tile ")
    }
    assert shown["Tile matmuls"] == str(plan["products"])


def test_the_number_of_tile_matmuls_in_a_diff_is_the_sum_of_its_list(
    tiled: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "tied.onnx", "tiled.onnx"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    row = re.search(r"GRU -> (\d+) tile matmuls .*? (\d+) 2DMM_16x16x16", text)
    assert row is not None
    assert row[1] == row[2]
    assert int(row[1]) > 9 * 2  # each of nine steps runs the loop's tiles


def test_a_tied_weight_of_a_tiled_file_is_explained(tiled: Asked) -> None:
    answer = tiled("compare", "tied.py:tied", "tied.onnx", "tiled.onnx")
    assert "unexplained" not in answer
    assert answer.count("1 weight that layers of the first model share") == 4


def test_a_tiling_says_that_the_module_has_other_parameters_than_its_file(tiled: Asked) -> None:
    answer = tiled("tile", "tied.py:tied", "-o", "again.onnx", "--tile", "16")
    assert "The module has 1,776 parameters; its ONNX form stores 2,6" in answer
    assert "`explorer compare tied.py:tied again.onnx` explains why." in " ".join(answer.split())


def test_a_step_points_to_the_row_that_has_a_shared_weight(tiled: Asked) -> None:
    [row] = (line for line in tiled("training", "tied.py:tied").splitlines() if line.startswith("  head "))
    assert row.endswith("its parameters are shared: see an earlier row")


def test_a_plan_says_of_which_runs_its_rows_are(tiled: Asked, sample: Sample) -> None:
    assert "has the figures of one run" in tiled("plan", "tied.onnx")
    assert "one run" not in tiled("plan", str(sample("lenet")))


def test_a_card_is_told_apart_from_a_cpu(asked: Asked) -> None:
    answer = asked("training", "own.py:net", "--card", "1G", "--optimizer", "adam")
    assert "counted as on a CPU: CUDA needs more, see the notes below" in answer
    assert "at the optimizer's step" in answer
    assert "Adam and AdamW keep 2 numbers a parameter" in answer


def test_a_peak_of_another_number_type_is_named(asked: Asked) -> None:
    line = next(
        x for x in asked("roofline", "own.py:net", "--machine", "h100").splitlines() if "number type" in x
    )
    assert line.split(maxsplit=3)[3].startswith("bfloat16, not float32  the model multiplies float32")
    assert "number type" not in asked("roofline", "own.py:net", "--machine", "m1")
    assert "number type" not in asked("roofline", "own.py:net", "--peak-macs", "4T", "--bandwidth", "1GB/s")
    answer = asked("compare", "own.py:net", "own.py:net", "--machine", "a100")
    note = "The peak rate of a100 is of bfloat16, but the model multiplies float32."
    assert note in answer
    assert note in asked("layers", "own.py:net", "--machine", "a100")
    assert "peak rate" not in asked("layers", "own.py:net", "--machine", "m2")
    assert note in asked("check", "own.py:net", "--machine", "a100", "--max-seconds", "1s")


def test_help_explains_a_term(asked: Asked) -> None:
    assert "The share of nodes whose figures are all known." in asked("help", "coverage")
    assert asked("help", "worst rounding").startswith("# rounding vs exact (worst rounding)")
    assert asked("help", "tutorial").startswith("# Tutorial")
