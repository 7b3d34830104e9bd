"""Every verb behaves on a file of tensors: what is known is shown, what is not is said in one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from safetensors.numpy import save_file

from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.engine.formats.tensor_index import StoredTensor, TensorIndex, list_rows, parse_part_name
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.tensor_rows import TensorRows
from explorer.engine.models.tensors import TensorFile
from explorer.session import Session, compare_files

RNG = np.random.default_rng(3)
TENSORS = {
    "block.0.weight": RNG.standard_normal((8, 8)).astype(np.float32),
    "block.0.bias": np.zeros(8, np.float32),
    "block.1.weight": RNG.standard_normal((8, 8)).astype(np.float32),
    "block.1.bias": np.zeros(8, np.float32),
    "bn.running_mean": np.zeros(8, np.float32),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_info_says_what_is_known_and_that_the_work_is_not(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = printed(capsys, "info", model)
    assert code == 0
    assert "152" in out
    assert "holds tensors and no graph" in out
    assert "1 tensor of 8 numbers in all; the file does not say" in out
    assert "each node is known" not in out
    code, out, _ = printed(capsys, "info", model, "--json")
    totals = json.loads(out)["totals"]
    assert (totals["params"], totals["macs"], totals["coverage"]) == (152, None, 0)


def test_layers_show_types_and_shapes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "layers", model)
    assert code == 0
    assert "shape" in out
    assert "[8, 8]" in out
    assert "first of 2 alike" in out
    assert out.count("no graph") == 0, "the same remark on every row says nothing"


def test_ops_count_the_types(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "ops", model)
    assert code == 0
    assert "float32" in out


@pytest.mark.parametrize(
    "words",
    [
        ["memory"],
        ["roofline", "--peak-macs", "1e12", "--bandwidth", "1e11"],
        ["training"],
        ["activations"],
        ["tile"],
        ["layers", "--style", "torchinfo"],
    ],
)
def test_what_needs_a_graph_is_refused_in_one_line_with_a_remedy(
    model: str, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, out, err = printed(capsys, words[0], model, *words[1:])
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert ";" in err


def test_diff_and_verify_say_why_not(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("diff", "verify"):
        code, _, err = printed(capsys, verb, model, model)
        assert code == 2
        assert "no graph" in err


def test_a_report_is_written_of_what_is_known(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = printed(capsys, "report", model, "-o", str(tmp_path / "r.md"))
    assert code == 0
    text = (tmp_path / "r.md").read_text()
    assert "block.0.weight" in text
    assert "no graph" in text


def test_a_file_agrees_with_itself_and_with_another_that_holds_the_same(model: str, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file(dict(reversed(TENSORS.items())), other)
    assert compare_files(model, other).agree
    assert compare_files(model, model).differences == ()


def test_a_missing_tensor_is_a_difference_that_stays_open(model: str, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({n: a for n, a in TENSORS.items() if n != "block.1.weight"}, other)
    compared = compare_files(model, other)
    assert not compared.agree
    assert any("block.1.weight" in d.why for d in compared.differences)


def test_other_types_are_counted_in_bytes_as_stored(model: str, tmp_path: Path) -> None:
    other = tmp_path / "half.safetensors"
    save_file({n: a.astype(np.float16) for n, a in TENSORS.items()}, other)
    compared = compare_files(model, other)
    assert compared.agree
    (found,) = [d for d in compared.differences if d.figure == "weight_bytes"]
    assert found.delta == found.explained == -2 * 152


def test_a_graph_agrees_with_a_file_of_its_weights_and_macs_are_left_open(tmp_path: Path) -> None:
    weight = TENSORS["block.0.weight"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "block.0.weight"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 8])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 8])],
        [numpy_helper.from_array(weight, "block.0.weight")],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "g.onnx")
    save_file({"block.0.weight": weight}, tmp_path / "w.safetensors")
    compared = compare_files(tmp_path / "g.onnx", tmp_path / "w.safetensors")
    assert compared.agree
    assert [(d.figure, d.delta) for d in compared.differences] == [("macs", None)]


def test_a_file_that_lacks_a_batch_normalisation_has_not_folded_it(tmp_path: Path) -> None:
    held = {"c.weight": np.ones((4, 3, 1, 1), np.float32)}
    held |= {f"bn.{name}": np.ones(4, np.float32) for name in ("weight", "bias", "mean", "var")}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["x", "c.weight"], ["c"]),
            onnx.helper.make_node("BatchNormalization", ["c", *list(held)[1:]], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 3, 2, 2])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 4, 2, 2])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "g.onnx")
    save_file({"c.weight": held["c.weight"]}, tmp_path / "w.safetensors")
    compared = compare_files(tmp_path / "g.onnx", tmp_path / "w.safetensors")
    assert not compared.agree
    assert not any("folded" in d.why for d in compared.differences)


def test_a_state_dict_agrees_with_its_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_model

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    save_model(module, str(tmp_path / "w.safetensors"))
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())\n"
    )
    compared = compare_files(
        f"{tmp_path / 'net.py'}:net",
        tmp_path / "w.safetensors",
        input_shapes={"input": ("float32", (1, 3, 3, 3))},
    )
    assert compared.agree
    (params,) = [d for d in compared.differences if d.figure == "params"]
    # running mean, running variance and the counter of the batch normalisation
    assert params.delta == params.explained == 4 + 4 + 1


def test_names_of_the_file_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a\x1b[2J.w\x07\u202e": np.zeros(2, np.float32)}, path, metadata={"k\x1b]0;x": "v\x9b1m"})
    for verb in ("info", "layers", "ops", "weights", "outline"):
        _, out, err = printed(capsys, verb, str(path))
        assert all(c == "\n" or c.isprintable() for c in out + err), verb


def test_names_are_cut_at_their_dots_and_numbers_are_put_in_order() -> None:
    names = ("z.10.w", "z.2.w", "a", "z.2.b", "b/0/w")
    tensors = [StoredTensor(name, "float32", (2,), 8, "f", 0) for name in names]
    found = [(row.path, row.name, row.depth, row.stored is not None) for row in list_rows(tensors)]
    assert found == [
        ("z", "z", 0, False),
        ("z.2", "2", 1, False),
        ("z.2.w", "w", 2, True),
        ("z.2.b", "b", 2, True),
        ("z.10", "10", 1, False),
        ("z.10.w", "w", 2, True),
        ("a", "a", 0, True),
        ("b", "b", 0, False),
        ("b/0", "0", 1, False),
        ("b/0/w", "w", 2, True),
    ]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model-00002-of-00030.gguf", ("model", 2, 30)),
        ("a-b-00001-of-00001.safetensors", ("a-b", 1, 1)),
        ("model.safetensors", None),
        ("model-2-of-3.gguf", None),
        ("model-0000x-of-00003.gguf", None),
        ("-00001-of-00003.gguf", None),
    ],
)
def test_parts_are_told_by_their_names(name: str, part: tuple[str, int, int] | None) -> None:
    assert parse_part_name(name) == part


PIECES = st.sampled_from(["0", "1", "2", "10", "a", "b", "", "c/d"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(PIECES, min_size=1, max_size=4).map(".".join), unique=True, max_size=40), st.randoms()
)
def test_rows_that_are_made_when_looked_at_are_those_that_are_made_at_once(
    names: list[str], random: Random
) -> None:
    sizes = [random.choice([(2,), (3, 4), ()]) for _ in names]
    tensors = [
        StoredTensor(n, random.choice(["float32", "Q4_K"]), s, 5, "f", 0)
        for n, s in zip(names, sizes, strict=True)
    ]
    contents = TensorIndex("test", "f", tensors, ["f"], 0, kinds={"a": "Net", "a.0": "Linear"})
    expected = TensorFile(contents, OpenOptions())._list_layers()
    try:
        found = TensorRows(contents)
    except ValueError:
        # two rows would have the same path: then all are made
        modules = [row.path for row in list_rows(tensors) if row.stored is None]
        assert len(set(modules)) < len(modules) or set(modules) & set(names)
        return
    assert tuple(found) == expected
    assert found == expected
    assert found[1:-1] == expected[1:-1]
    assert [found[-i] for i in range(1, len(found) + 1)] == list(reversed(expected))


@pytest.mark.slow
def test_many_tensors_take_memory_for_what_is_looked_at(tmp_path: Path) -> None:
    tensors = [
        StoredTensor(f"h.{i // 4}.w{i % 4}", "bfloat16", (64, 64), 8192, "f", i * 8192) for i in range(30_000)
    ]
    opened = TensorFile(TensorIndex("test", "f", tensors, ["f"], 0), OpenOptions())
    tracemalloc.start()
    layers = opened.examine().analysis.layers
    size, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(layers) == 37_501
    assert (layers[0].params, layers[1].repeat, layers[6].repeat) == (30_000 * 4096, 7_500, 0)
    assert size < 37_501 * 150
    assert most < 37_501 * 800


def test_tied_tensors_count_once_and_name_each_other(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    tensors = [
        StoredTensor(n, "float32", (4,), 16, str(path), 0, identity=1, trainable=True) for n in ("a.w", "b.w")
    ]
    opened = TensorFile(TensorIndex("test", str(path), tensors, [str(path)], 16), OpenOptions())
    analysis = opened.examine().analysis
    assert analysis.info.totals.params == analysis.info.totals.trainable_params == 4
    assert analysis.info.totals.weight_bytes == 16
    assert next(x.shared_with for x in analysis.layers if x.path == "a.w") == ("b.w",)
    with pytest.raises(Misuse, match="no graph"):
        opened.graph(str(tmp_path))


def test_a_file_that_was_cut_after_it_was_opened_is_one_line(model: str) -> None:
    with Session(model) as session:
        session.open()
        with open(model, "r+b") as file:
            file.truncate(400)
        with pytest.raises(Exception, match="shorter") as caught:
            session.weights()
    assert "\n" not in str(caught.value)


def test_weights_that_lie_in_the_folder_are_not_overwritten(model: str) -> None:
    with Session(model) as session, pytest.raises(Misuse):
        session.activations(output=model, overwrite=True)
