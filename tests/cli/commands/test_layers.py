"""`explorer layers`: the tree as a table."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import onnx
import pytest

import explorer
from explorer.cli.main import main

torch = pytest.importorskip("torch")


def test_a_layer_says_how_many_of_its_parameters_are_trained() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 8)))
    net[1].add_module("tied", torch.nn.Linear(8, 8))
    net[1].tied.weight = net[1][0].weight
    net[0].weight.requires_grad_(False)
    with explorer.Session(net, inputs=torch.zeros(1, 4)) as session:
        rows = {row.path: (row.params, row.trainable_params) for row in session.analysis().layers}
        assert session.info().totals.trainable_params == 8 + 64 + 8 + 8
    assert rows == {"0": (40, 8), "1": (80, 80), "1.0": (72, 72), "1.tied": (72, 72)}


def test_a_file_that_does_not_say_what_is_trained_leaves_it_open() -> None:
    with explorer.Session("sample_models/lenet.onnx") as session:
        assert {row.trainable_params for row in session.analysis().layers} == {None}


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["layers", *words]) == 0
    return capsys.readouterr().out


def table(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(asked(capsys, *words, "--csv"))))


LENET = "sample_models/lenet.onnx"


def test_columns_come_in_the_order_asked_with_what_the_tree_has(capsys: pytest.CaptureFixture[str]) -> None:
    names = "input,output,kernel,macs,read,written,intensity,bits"
    text = asked(capsys, LENET, "--columns", names)
    heads = ["layer", "input", "output", "kernel", "MACs", "read", "written", "FLOPs/byte", "bits"]
    assert text.splitlines()[2].split() == heads
    answer = json.loads(asked(capsys, LENET, "--columns", names, "--json"))
    whole = json.loads(asked(capsys, LENET, "--json"))
    assert answer["columns"] == names.split(",")
    assert answer["layers"] == whole["layers"]
    for row, layer in zip(answer["table"], whole["layers"], strict=True):
        assert (row["macs"], row["read"]) == (layer["macs"], layer["bytes_read"])
        assert row["input"] == [tensor["shape"] for tensor in layer["inputs"]]
        moved = layer["bytes_read"] + layer["bytes_written"]
        assert row["intensity"] == pytest.approx(2 * layer["macs"] / moved)
    assert answer["table_total"]["macs"] == whole["totals"]["macs"]
    assert [row["kernel"] for row in answer["table"][:5]] == ["5x5", "", "", "2x2", "2x2"]


def test_siblings_are_sorted_within_their_group_either_way_and_leaves_flat(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def paths(*words: str) -> list[str]:
        return [row["path"] for row in table(capsys, LENET, "--columns", "read", *words)]

    down = paths("--sort", "read")
    assert down[:5] == ["/fc1/Gemm", "/fc2/Gemm", "pool", "/pool/MaxPool", "/pool/MaxPool_1"]
    up = paths("--sort", "-read")
    assert up[:2] == ["/Relu_3", "/Relu_2"]
    assert up[up.index("pool") + 1 :][:2] == ["/pool/MaxPool_1", "/pool/MaxPool"]
    flat = paths("--flat", "--sort", "read")
    assert "pool" not in flat
    assert flat[:3] == ["/fc1/Gemm", "/fc2/Gemm", "/conv2/Conv"] or flat[2] in ("/Relu", "/pool/MaxPool")
    assert paths("--depth", "1") == [path for path in paths() if not path.startswith("/pool/")]
    assert paths("--sort", "kernel")[0] in ("/Relu", "pool")


def test_what_is_not_known_comes_last_whichever_way(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sample_models/bert_tiny.onnx", "--columns", "macs", "--flat")
    for sort in ("macs", "-macs"):
        known = [bool(row["macs"]) for row in table(capsys, *words, "--sort", sort)]
        assert known == sorted(known, reverse=True)
        assert False in known


def test_groups_and_the_total_sum_what_a_filter_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(asked(capsys, LENET, "--filter", "in:[*,16,...] OR op:Gemm", "--json"))
    rows = {row["path"]: row for row in answer["layers"]}
    assert list(rows) == [
        *("pool", "/pool/MaxPool_1", "/Relu_1", "/Flatten", "/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm")
    ]
    assert rows["pool"]["bytes_read"] == rows["/pool/MaxPool_1"]["bytes_read"] == 6400
    leaves = [row for row in answer["layers"] if not row["group"]]
    assert answer["found"] == len(leaves) == 6
    assert answer["table_total"]["macs"] == sum(row["macs"] for row in leaves)
    whole = json.loads(asked(capsys, LENET, "--json"))["layers"]
    kept = json.loads(asked(capsys, LENET, "--filter", "pool", "--json"))["layers"]
    assert kept == [row for row in whole if "pool" in row["path"]], "what is left whole is as it was"
    groups = json.loads(asked(capsys, LENET, "--filter", "is:group", "--json"))
    assert groups["layers"] == [row for row in whole if row["group"]]
    assert groups["found"] == 1


def test_time_and_utilization_add_up_over_groups(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ("--peak-macs", "1G", "--bandwidth", "1GB/s")
    rows = table(capsys, LENET, "--columns", "time,macs", *machine)
    times = {row["path"]: float(row["time"]) for row in rows}
    assert times["pool"] == pytest.approx(times["/pool/MaxPool"] + times["/pool/MaxPool_1"])
    assert times["/conv2/Conv"] == pytest.approx(240_000 / 1e9)
    found = table(capsys, LENET, "--columns", "path", "--filter", "time>=0.24ms", *machine)
    assert [row["path"] for row in found] == ["/conv2/Conv"]
    plan = {row["path"]: row["utilization"] for row in table(capsys, LENET, "--tile", "8")}
    assert not plan["/Relu"]
    assert float(plan["/conv2/Conv"]) == pytest.approx(100 * 150 * 16 / (13 * 19 * 2 * 512))


def tile_lenet(target: str) -> None:
    with explorer.Session(LENET) as session:
        session.tile(explorer.TileSpec(tile=(8, 8, 8)))
        session.save(target)


def test_of_a_model_that_is_tiled_utilization_is_that_of_its_own_tiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planned = {row["path"]: row["utilization"] for row in table(capsys, LENET, "--tile", "8")}
    tiled = str(tmp_path / "tiled.onnx")
    tile_lenet(tiled)
    own = {row["path"]: row["utilization"] for row in table(capsys, tiled, "--columns", "utilization")}
    assert own["/conv2/Conv"] == planned["/conv2/Conv"] != ""
    assert "utilization" not in table(capsys, tiled)[0], "only where somebody asks"
    found = table(capsys, tiled, "--columns", "kind", "--filter", f"utilization={own['/conv2/Conv']}")
    assert "Conv, tiled" in {row["kind"] for row in found}


@pytest.mark.slow
def test_what_a_file_claims_of_its_tiles_and_cannot_be_is_no_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiled = tmp_path / "tiled.onnx"
    tile_lenet(str(tiled))
    model = onnx.load(tiled)
    (said,) = [prop for prop in model.metadata_props if "utilisation" in prop.value]
    plan = json.loads(said.value)
    for site, claim in zip(plan["sites"], (-1.0, 1e300), strict=False):
        site["utilisation"] = claim
    said.value = json.dumps(plan)
    onnx.save(model, tiled)
    shares = [row["utilization"] for row in table(capsys, str(tiled), "--columns", "utilization")]
    assert all(0 <= float(share) <= 1 for share in shares if share)


def test_without_a_machine_the_least_time_is_unknown_and_the_reason_stands_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--columns", "input,output,kernel,params,trainable,macs,read,written,time", "--sort", "read")
    assert {row["time"] for row in table(capsys, LENET, *words)} == {""}
    assert main(["layers", LENET, *words]) == 0
    assert "Least time: ?, because it needs a machine: name one with --machine" in capsys.readouterr().out
    assert main(["layers", LENET, *words, "--machine", "a100"]) == 0
    assert "needs a machine" not in capsys.readouterr().out
    # no machine would help: the sizes are open
    assert (
        main(["layers", "sample_models/bert_tiny.onnx", *words, "--filter", "op:MatMul", "--machine", "a100"])
        == 0
    )
    assert "needs a machine" not in capsys.readouterr().out


def test_of_a_size_that_is_open_nobody_says_how_full_a_tile_is(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sample_models/bert_tiny.onnx", "--columns", "utilization", "--tile", "32", "--flat")
    assert not any(row["utilization"] for row in table(capsys, *words))
    bound = table(capsys, *words, "--dim", "batch=1", "--dim", "sequence=16")
    assert {row["utilization"] for row in bound if "query/MatMul" in row["path"]} == {"0.5"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sort", "time"), "needs a machine"),
        (("--filter", "time>1"), "needs a machine"),
        (("--columns", "utilization"), "needs a tile"),
        (("--columns", "mac"), "did you mean 'macs'"),
        (("--columns", "macs,,params"), "empty name"),
        (("--sort", "sise"), "there is no column 'sise'"),
        (("--filter", "op:Conv mac>1"), "filter, character 9: a filter cannot compare 'mac'"),
        (("--filter", "a " * 1_500), "at most 1,000 characters"),
        (("--depth", "0"), "whole number of 1 or more"),
        (("--style", "kears"), "did you mean 'keras'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layers", LENET, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert said in err


def test_the_sums_below_a_style_are_those_of_torchinfo() -> None:
    torchinfo = pytest.importorskip("torchinfo")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5))
    net[0].bias.requires_grad_(False)
    x = torch.zeros(2, 3, 8, 8)
    theirs = torchinfo.summary(net, input_data=x, verbose=0)
    with explorer.Session(net, inputs=x) as session:
        sizes = session.layers(style="sizes")
        ours = session.layers(columns=["params", "trainable"])
    assert ours.totals == (theirs.total_params, theirs.trainable_params)
    given, passes, params, total = sizes.totals[2:]
    assert given == x.nbytes
    assert params == theirs.total_param_bytes
    # torchinfo leaves a layer without parameters out of what forward keeps
    assert passes == theirs.total_output_bytes + 2 * 4 * 2 * 8 * 36
    assert total == given + passes + params


class _Gated(torch.nn.Module):
    """Half of what it makes is made by functions, in a block and beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x)) * torch.sigmoid(x)


def test_the_total_is_what_the_rows_add_up_to_functions_too() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), _Gated())
    with explorer.Session(net, inputs=torch.zeros(4, 8)) as session:
        every = session.layers(columns=["activations", "pass_size"])
        left = session.layers("NOT op:nothing", columns=["activations", "pass_size"])
        info = session.info().totals
    leaves = sum(row.activation_bytes or 0 for row in every.layers if not row.group)
    tops = sum(row.activation_bytes or 0 for row in every.layers if row.depth == 0)
    one = 4 * 8 * 4  # two Linear, and three functions
    assert every.totals == left.totals == (5 * one, 10 * one)
    assert leaves == tops == 5 * one
    assert (info.activation_bytes_sum, info.activation_bytes_functional) == (2 * one, 3 * one)


@pytest.mark.parametrize("style", [(), ("--style", "keras")])
def test_that_functions_count_is_said_of_the_whole_table_alone(
    style: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("alexnet", *style, "--quiet")
    assert "the outputs of functions (" in asked(capsys, *words)
    assert "functional operators" not in asked(capsys, *words, "--filter", "op:Conv2d")


@pytest.mark.parametrize(
    ("style", "heads"),
    [
        ("torchinfo", ["Layer", "(type)", "Input Shape", "Output Shape", "Kernel Shape", "Param #"]),
        ("torchsummary", ["Layer", "(type)", "Output Shape", "Param #"]),
        ("keras", ["Layer", "(type)", "Output Shape", "Param #", "Trainable #"]),
        (
            "sizes",
            ["layer", "kind", "output", "input MiB", "forward+backward MiB", "params MiB", "total MiB"],
        ),
    ],
)
def test_a_style_has_the_heads_of_its_tool(
    style: str, heads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = asked(capsys, LENET, "--style", style).splitlines()
    assert re.split(r"\s{2,}", lines[2].strip())[: len(heads)] == heads
    assert ("Non-trainable params" in "".join(lines)) == (style != "sizes")


SUMMARY = """\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Linear-1                    [-1, 3]              15
              ReLU-2                    [-1, 3]               0
             Block-3                    [-1, 3]               0
            Linear-4                    [-1, 3]              12
================================================================
Total params: 27
Trainable params: 12
Non-trainable params: 15
----------------------------------------------------------------
Input size (MB): 0.00
Forward/backward pass size (MB): 0.00
Params size (MB): 0.00
Estimated Total Size (MB): 0.00
----------------------------------------------------------------
"""
"""What torchsummary 1.5.1 prints for `summed` below, with inputs (4,) and (3,)."""


def test_the_table_of_torchsummary_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "summed.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.ReLU())\n"
        "    def forward(self, x):\n"
        "        return torch.tanh(self.body(x))\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.block, self.last = Block(), nn.Linear(3, 3)\n"
        "    def forward(self, x, y):\n"
        "        return self.last(self.block(x) + y)\n"
        "def net():\n"
        "    return Net(), (torch.zeros(5, 4), torch.zeros(5, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert asked(capsys, "summed:net", "--style", "torchsummary").endswith(SUMMARY)
    assert "Mult-Adds" not in asked(capsys, LENET, "--style", "torchsummary"), "a graph has our figures"
    batch = asked(capsys, "summed:net", "--style", "torchsummary", "--batch-size", "500")
    assert re.findall(r"Linear-\d+ +(.*?])", batch) == ["[500, 3]"] * 2
    # 4 x 3 x 500 numbers of 4 bytes: torchsummary multiplies the sizes of all inputs
    assert "Input size (MB): 0.02\n" in batch
    for words in ([LENET, "--style", "torchsummary"], [LENET], ["summed:net", "--style", "torchinfo"]):
        assert main(["layers", *words, "--batch-size", "3"]) == 2
        assert "only torchsummary's own table" in capsys.readouterr().err
    answer = json.loads(asked(capsys, "summed:net", "--style", "torchsummary", "--json"))
    assert [layer["kind"] for layer in answer["layers"]][:2] == ["Linear", "ReLU"], "our rows, as before"


def test_constants_are_one_row_in_each_group_if_asked() -> None:
    with explorer.Session("sample_models/bert_tiny.onnx") as session:
        whole, folded = session.layers(), session.layers(fold_constants=True)
        hidden = {*session.edges().constants}
        flat = session.layers(fold_constants=True, flat=True, sort="params")
    made = [row for row in folded.layers if row.id < 0]
    assert {row.id for row in whole.layers} - {row.id for row in folded.layers} == hidden
    assert sum(int(row.name.split()[0]) for row in made) == sum(not whole.layers[at].group for at in hidden)
    assert made[0].name == "+9 constants"
    assert made[0].parent == 0
    assert sum(row.activation_bytes or 0 for row in made) == sum(
        whole.layers[at].activation_bytes or 0 for at in hidden if not whole.layers[at].group
    )
    assert folded.totals == whole.totals
    assert {row.name for row in made} <= {row.name for row in flat.layers}


def test_figures_from_outside_stand_on_the_page_of_one_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "p.csv"
    figures.write_text("layer,latency (us),load (%),drift\nconv1,12.5,50,-2\nconv2,37.5,25,8\n")
    words = ["layers", "sample_models/lenet.onnx", "--quiet", "--overlay", str(figures), "--layer"]
    assert main([*words, "conv1"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "latency 12.5 µs 25.0 %" in page
    # only what adds up has a share, and nothing negative has one
    assert "load 50.0 % drift -2 -2 " in page
    assert main([*words, "conv1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outside"] == {"latency": 1.25e-05, "load": 0.5, "drift": -2}
    assert answer["overlay"]["matched"] == 2
    # a layer of which the file says nothing has its page without
    assert main([*words, "Flatten"]) == 0
    assert "latency  " not in capsys.readouterr().out


def test_a_group_says_over_how_many_of_its_layers_it_sums(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()) for _ in range(2)]
    net = torch.nn.Sequential(torch.nn.Sequential(*blocks[:1], torch.nn.Linear(8, 16)), blocks[1])
    with explorer.Session(net, inputs=torch.zeros(1, 16)) as session:
        session.tile(explorer.TileSpec((16, 16, 16)))

        def said(query: str) -> dict[str, str]:
            return {row.path: row.reason for row in session.layers(query).layers if row.group}

        # a layer that is tiled is one, however many tiles it is made of
        found = said("utilization<100%")
        assert found["0"] == "the sum over 2 of 3 layers in it"
        assert found["0.0"] == found["1"] == "the sum over 1 of 2 layers in it"
    with explorer.Session(net, inputs=torch.zeros(1, 16)) as session:
        # a group that was found stands for all layers in it
        assert said("name:0.0 is:group")["0"] == "the sum over 2 of 3 layers in it"
        assert said("op:Linear")["0"] == "the sum over 2 of 3 layers in it"
        assert not any("sum over" in reason for reason in said("is:group").values())


def test_a_node_without_a_name_is_told_by_what_it_makes_and_by_its_number_in_the_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "<ir_version: 8, opset_import: ['' : 17]> g (float[3] x) => (float[3] y) { a = Relu(x) y = Relu(a) }"
    )
    onnx.save(onnx.parser.parse_model(text.replace("'", '"')), tmp_path / "m.onnx")
    for name in ("Relu_1", "y"):
        assert main(["layers", str(tmp_path / "m.onnx"), "--layer", name, "--quiet"]) == 0
        assert capsys.readouterr().out.splitlines()[2:4] == ["y", "Relu · Relu_1 in the tree"]


@pytest.mark.parametrize("verb", ["info", "layers", "ops", "plan"])
def test_every_answer_says_once_that_an_input_shape_is_guessed(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 4, 3)\n")
    assert main([verb, f"{tmp_path / 'net.py'}:net"]) == 0
    note = "input input: 1x3x224x224 guessed from the first layer (Conv2d); --input-shape sets it"
    assert capsys.readouterr().out.count(note) == 1
    assert main([verb, f"{tmp_path / 'net.py'}:net", "--input-shape", "input:1,3,32,32"]) == 0
    assert "guessed" not in capsys.readouterr().out


def test_a_layer_without_macs_has_its_formula_beside_its_elementwise_operations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [" ".join(line.split()) for line in asked(capsys, LENET, "--layer", "/Relu").splitlines()]
    assert next(line for line in lines if line.startswith("MACs")) == "MACs 0 0"
    row = next(line for line in lines if line.startswith("Elementwise operations"))
    assert row.endswith("4,704 elementwise")
    assert "1x6x28x28" in row
