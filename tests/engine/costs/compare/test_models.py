"""Models side by side: what differs is explained to the last number, or said to be open."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import Misuse
from explorer.facts import TileSpec
from explorer.facts.comparison import Comparison, Difference
from explorer.facts.quantize import QuantizeSpec
from explorer.session import Session, compare_files

Floats = tuple[int, ...]


def written(
    path: Path,
    nodes: list[Any],
    weights: dict[str, Floats | np.ndarray[Any, Any]],
    given: Floats,
    out: str = "y",
) -> str:
    """An ONNX file of nodes and float weights (by shape, or the array itself), input x."""
    stored = [
        numpy_helper.from_array(w if isinstance(w, np.ndarray) else np.ones(w, np.float32), name)
        for name, w in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}", **attributes)


def of(found: Comparison, figure: str, model: int = 1) -> list[Difference]:
    return [d for d in found.differences if d.figure == figure and d.model == model]


def settled(found: Comparison, figure: str, delta: int) -> str:
    """Why a figure differs by `delta`, when all of it is explained."""
    parts = of(found, figure)
    assert sum(d.delta or 0 for d in parts) == delta
    assert all(d.delta == d.explained for d in parts)
    return "; ".join(d.why for d in parts)


NORM = {"scale": (4,), "shift": (4,), "mean": (4,), "var": (4,)}


def normed(path: Path, batch: int = 1) -> str:
    """A convolution 3 -> 4 without bias, its batch norm, a ReLU."""
    nodes = [
        node("Conv", "x w", "c", kernel_shape=[3, 3]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "y"),
    ]
    return written(path, nodes, {"w": (4, 3, 3, 3), **NORM}, (batch, 3, 6, 6))


def folded(path: Path) -> str:
    nodes = [node("Conv", "x w b", "c", kernel_shape=[3, 3]), node("Relu", "c", "y")]
    return written(path, nodes, {"w": (4, 3, 3, 3), "b": (4,)}, (1, 3, 6, 6))


# -- what is explained


def test_the_same_model_twice_differs_in_nothing(tmp_path: Path) -> None:
    found = compare_files(normed(tmp_path / "a.onnx"), normed(tmp_path / "b.onnx"))
    assert found.agree
    assert found.differences == ()
    assert ("Conv", (1, 1)) in found.operators


def test_a_folded_batch_norm_is_counted_exactly(tmp_path: Path) -> None:
    found = compare_files(normed(tmp_path / "a.onnx"), folded(tmp_path / "b.onnx"))
    # scale, shift, mean and variance of 4 channels go, a bias of 4 comes
    assert sorted(d.delta or 0 for d in of(found, "params")) == [-16, 4]
    why = settled(found, "params", -12)
    assert "1 batch normalization folded" in why
    assert "1 bias that the folding adds" in why
    settled(found, "weight_bytes", -48)
    # 4 x 4x4 outputs: two operations of the norm each, one addition of the bias
    assert sorted(d.delta or 0 for d in of(found, "elementwise_ops")) == [-128, 64]
    settled(found, "elementwise_ops", -64)
    assert any(d.delta == -1 and "folded" in d.why for d in of(found, "operators"))
    assert not of(found, "macs")
    assert found.agree


def test_it_is_explained_the_other_way_round_too(tmp_path: Path) -> None:
    found = compare_files(folded(tmp_path / "a.onnx"), normed(tmp_path / "b.onnx"))
    assert sorted(d.delta or 0 for d in of(found, "params")) == [-4, 16]
    assert found.agree


def test_another_batch_is_named_and_multiplies_the_work(tmp_path: Path) -> None:
    found = compare_files(normed(tmp_path / "a.onnx"), normed(tmp_path / "b.onnx", batch=5))
    assert settled(found, "macs", 4 * 4 * 16 * 27) == "batch 5 instead of 1"
    assert found.agree


def _classifier(path: Path, *, dropout: bool, twice: bool = False) -> str:
    """A table whose rows are multiplied by the table again: tied, or stored a second time."""
    nodes = [node("Gather", "table ids", "e")]
    if dropout:
        nodes.append(node("Dropout", "e", "d"))
    nodes.append(node("MatMul", f"{'d' if dropout else 'e'} {'again' if twice else 'turned'}", "m"))
    if not twice:
        nodes.insert(0, node("Transpose", "table", "turned", perm=[1, 0]))
    nodes.append(node("Add", "m x", "y"))
    weights: dict[str, Any] = {"table": (10, 4), "ids": np.array([1, 2], np.int64)}
    if twice:
        weights["again"] = (4, 10)
    return written(path, nodes, weights, (2, 10))


def test_a_dropped_dropout_is_named(tmp_path: Path) -> None:
    a = _classifier(tmp_path / "a.onnx", dropout=True)
    found = compare_files(a, _classifier(tmp_path / "b.onnx", dropout=False))
    assert [(d.delta, d.explained) for d in of(found, "operators")] == [(-1, -1)]
    assert "evaluation mode" in of(found, "operators")[0].why
    assert found.agree


def test_a_tied_weight_that_is_stored_twice_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch
    from torch import nn

    from tests.engine.formats.torch_replay.torch_nets import saved_program

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    path = saved_program(Tied(), (torch.zeros(2, 3, dtype=torch.int64),), tmp_path / "tied.pt2")
    with Session(path) as session:
        exported = session.save(str(tmp_path / "tied.onnx"))
    found = compare_files(path, exported)
    assert "of the first model share" in settled(found, "params", 40)
    assert found.agree


def test_other_types_of_the_same_weights_are_named(tmp_path: Path) -> None:
    a = written(tmp_path / "a.onnx", [node("MatMul", "x w", "y")], {"w": (8, 4)}, (2, 8))
    nodes = [node("DequantizeLinear", "w scale zero", "f"), node("MatMul", "x f", "y")]
    weights: dict[str, Any] = {
        "w": np.ones((8, 4), np.int8),
        "scale": np.array(0.5, np.float32),
        "zero": np.array(0, np.int8),
    }
    b = written(tmp_path / "b.onnx", nodes, weights, (2, 8))
    found = compare_files(a, b)
    assert "2 scales and zero points" in settled(found, "params", 2)
    # 32 elements of 1 byte instead of 4, a scale of 4 bytes and a zero point of 1
    assert "stored as int8 instead of float32" in settled(found, "weight_bytes", -3 * 32 + 5)
    assert found.agree


# -- what is not


def test_a_missing_layer_stays_open_and_is_named(tmp_path: Path) -> None:
    a = written(
        tmp_path / "a.onnx",
        [node("MatMul", "x w", "h"), node("MatMul", "h v", "y")],
        {"w": (8, 4), "v": (4, 3)},
        (2, 8),
    )
    b = written(tmp_path / "b.onnx", [node("MatMul", "x w", "y")], {"w": (8, 4)}, (2, 8))
    found = compare_files(a, b)
    (params,) = of(found, "params")
    assert (params.delta, params.explained) == (-12, 0)
    assert "v [4, 3]" in params.why
    (macs,) = of(found, "macs")
    assert (macs.delta, macs.explained) == (-24, 0)
    assert not found.agree


def test_two_models_with_other_weights_are_no_folding(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w b", "c", kernel_shape=[3, 3]), node("Relu", "c", "y")]
    other = written(tmp_path / "b.onnx", nodes, {"w": (5, 3, 3, 3), "b": (5,)}, (1, 3, 6, 6))
    found = compare_files(normed(tmp_path / "a.onnx"), other)
    assert not any("fold" in d.why for d in found.differences)
    assert not found.agree


def test_other_sizes_are_named_and_the_work_stays_open(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c", kernel_shape=[3, 3]), node("Relu", "c", "y")]
    a = written(tmp_path / "a.onnx", nodes, {"w": (4, 3, 3, 3)}, (1, 3, 6, 6))
    b = written(tmp_path / "b.onnx", nodes, {"w": (4, 3, 3, 3)}, (1, 3, 8, 6))
    found = compare_files(a, b)
    (macs,) = of(found, "macs")
    assert (macs.delta, macs.explained) == (4 * 8 * 27, None)
    assert "[1, 3, 8, 6] instead of [1, 3, 6, 6]" in macs.why
    assert not found.agree


def test_work_that_is_not_known_is_not_taken_for_agreement(tmp_path: Path) -> None:
    nodes = [helper.make_node("Odd", ["x"], ["h"], domain="custom.ops"), node("MatMul", "x w", "y")]
    path = written(tmp_path / "a.onnx", nodes, {"w": (8, 4)}, (2, 8))
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("custom.ops", 1))
    onnx.save(model, path)
    found = compare_files(path, path)
    assert found.models[0].totals.coverage < 1
    assert not found.agree
    assert "no known cost" in of(found, "macs")[0].why


def test_one_model_alone_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="nothing to compare"):
        compare_files(normed(tmp_path / "a.onnx"))


# -- the ways to one model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "recurrent", "transformer"])
def test_the_ways_to_a_model_agree(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.engine.formats.torch_replay.torch_nets import (
        Recurrent,
        Small,
        Transformer,
        by_module,
        saved_program,
        saved_script,
    )

    made: dict[str, tuple[Any, Any]] = {
        "small": (Small, torch.zeros(2, 1, 8, 8)),
        "recurrent": (Recurrent, torch.zeros(2, 7, dtype=torch.int64)),
        "transformer": (Transformer, torch.zeros(2, 7, dtype=torch.int64)),
    }
    make, x = made[name]
    module = make().eval()
    script = saved_script(module, (x,), tmp_path / "net.pt")
    program = saved_program(module, (x,), tmp_path / "net.pt2")
    with Session(program) as session:
        exported = session.save(str(tmp_path / "net.onnx"))
    found = compare_files(script, program, exported)
    assert found.agree, [d for d in found.differences if d.delta != d.explained]
    macs = {info.totals.macs for info in found.models}
    assert macs == {by_module(module, x).info.totals.macs}
    assert not [d for d in found.differences if d.figure == "macs"]


def test_torchs_own_export_with_folded_norms_is_explained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.engine.formats.torch_replay.torch_nets import Small, saved_program

    module, x = Small().eval(), torch.zeros(2, 1, 8, 8)
    program = saved_program(module, (x,), tmp_path / "net.pt2")
    path = str(tmp_path / "net.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, dynamo=False, opset_version=17)
    found = compare_files(program, path)
    # the module's 4 scales and 4 shifts go, 4 biases come
    assert sorted(d.delta or 0 for d in of(found, "params")) == [-8, 4]
    assert found.agree


def test_activations_that_are_several_operators_are_counted_exactly(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from tests.engine.formats.torch_replay.torch_nets import saved_program

    module = nn.Sequential(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 4), nn.GELU()).eval()
    program = saved_program(module, (torch.zeros(3, 6),), tmp_path / "net.pt2")
    with Session(program) as session:
        exported = session.save(str(tmp_path / "net.onnx"))
    found = compare_files(program, exported)
    totals = [info.totals.elementwise_ops or 0 for info in found.models]
    why = settled(found, "elementwise_ops", totals[1] - totals[0])
    assert totals[1] != totals[0]
    assert "SiLU written as Sigmoid, Mul" in why
    assert "GELU written as" in why
    assert found.agree


# -- what an export writes otherwise, and what a tiling does

NETS = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.kv = nn.Linear(8, 16, bias=False)
        self.v_bias = nn.Parameter(torch.rand(8))
        self.pooler = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
    def forward(self, x):
        bias = torch.cat((torch.zeros_like(self.v_bias), self.v_bias))
        k, v = F.linear(x, self.kv.weight, bias).chunk(2, -1)
        heads = [y.view(1, 5, 2, 4).transpose(1, 2) for y in (self.q(x), self.k(k), v)]
        y = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(1, 5, 8)
        self.pooler(y[:, 0])
        return self.out(y)

class Zeros(nn.Module):
    # as transformers starts its models: every bias is zero, which an exporter stores once
    def __init__(self, kind=0.0):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for layer in self.layers:
            nn.init.constant_(layer.bias, kind)
    def forward(self, x):
        return self.layers(x)

class Both(Net):
    def forward(self, x):
        y = super().forward(x)
        return y, self.pooler(y[:, 0])

class Deeper(Net):
    def __init__(self):
        super().__init__()
        self.needed = nn.Linear(8, 8)
    def forward(self, x):
        return self.needed(super().forward(x))

class Square(nn.Module):
    # a pooler of the shape of what is needed, before it
    def __init__(self):
        super().__init__()
        self.pooler, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        self.pooler(x[:, 0])
        return self.out(x)

class Sliced(nn.Module):
    # positions in the shape of the keys' and values' part of the attention's weight
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.rand(1, 16, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, x, memory):
        return self.attention(x + self.positions[:, :5], memory, memory)[0]

def sliced(): return Sliced(), (torch.rand(1, 5, 8), torch.rand(1, 3, 8))
def square(): return Square(), torch.rand(1, 5, 8)
def zeros(): return Zeros(), torch.rand(1, 5, 8)
def ones(): return Zeros(1.0), torch.rand(1, 5, 8)
def net(): return Net(), torch.rand(1, 5, 8)
def both(): return Both(), torch.rand(1, 5, 8)
def deeper(): return Deeper(), torch.rand(1, 5, 8)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A file of modules, and the export of one."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(NETS)
    source = str(folder / "nets.py")
    with Session(f"{source}:net") as session:
        return source, str(session.save(str(folder / "net.onnx")))


def open_differences(found: Comparison) -> list[Difference]:
    return [d for d in found.differences if d.delta is None or d.delta != d.explained]


@pytest.mark.parametrize("name", ["net", "both"])
def test_attention_a_pooler_and_joined_biases_of_an_export_are_named(
    name: str, exported: tuple[str, str]
) -> None:
    source, path = exported
    found = compare_files(f"{source}:{name}", path)
    assert found.agree
    assert not open_differences(found)
    told = "; ".join(d.why for d in found.differences)
    assert "scaled_dot_product_attention written as" in told
    assert "MatMul" in told
    assert "pooler.0, pooler.1: no output of the graph needs it" in told
    assert "with other biases and zeros as one constant" in told
    assert sum(d.delta or 0 for d in of(found, "macs")) in (-6 * 8, -2 * 6 * 8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_no_output_needs_takes_no_weight_of_its_shape_that_is_needed(
    exported: tuple[str, str], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    source, _ = exported
    names: dict[str, Any] = {}
    exec(NETS, names)
    net, x = names["square"]()
    path = str(tmp_path / "square.onnx")
    # this exporter gives weights of products names of its own
    torch.onnx.export(net.eval(), (x,), path, dynamo=False, opset_version=17)
    found = compare_files(f"{source}:square", path)
    assert not open_differences(found)
    assert "2 parameters of layers that no output of the graph needs" in {d.why for d in found.differences}


def test_a_sliced_parameter_takes_no_part_of_a_split_weight_of_its_shape(
    exported: tuple[str, str], tmp_path: Path
) -> None:
    source = f"{exported[0]}:sliced"
    with Session(source) as session:
        path = str(session.save(str(tmp_path / "sliced.onnx")))
    found = compare_files(source, path)
    assert found.agree
    assert not [d for d in open_differences(found) if d.figure in ("params", "weight_bytes")]
    delta_by_reason = {d.why: d.delta for d in of(found, "params")}
    assert delta_by_reason["1 slice of a parameter, stored as a constant"] == 5 * 8
    stored = "1 parameter of which the other model stores only the slice that it reads"
    assert delta_by_reason[stored] == -16 * 8


def test_a_layer_that_an_output_needs_is_not_left_out_without_a_word(exported: tuple[str, str]) -> None:
    source, path = exported
    found = compare_files(f"{source}:deeper", path)
    assert not found.agree
    assert {d.figure for d in open_differences(found)} >= {"params", "macs"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("edges", ["ragged", "padded"])
def test_the_sums_of_tiles_are_the_products_own(
    edges: Any, exported: tuple[str, str], tmp_path: Path
) -> None:
    source, path = exported
    with Session(path) as session:
        session.tile(TileSpec((2, 3, 4), edges=edges), verify=False)
        tiled = str(session.save(str(tmp_path / "tiled.onnx")))
    for first, second in ((path, tiled), (tiled, path), (f"{source}:net", tiled)):
        found = compare_files(first, second)
        assert found.agree
        assert not open_differences(found)
        assert any("on tiles: sums of tiles" in d.why for d in of(found, "elementwise_ops"))


@pytest.mark.parametrize(("name", "agree"), [("zeros", True), ("ones", False)])
def test_biases_of_zeros_may_be_one_or_left_out_and_others_may_not(
    name: str, agree: bool, exported: tuple[str, str], tmp_path: Path
) -> None:
    source, _ = exported
    weights = {f"layers.{i}.weight": (8, 8) for i in range(4)}
    steps = [node("MatMul", f"{'x' if not i else f'v{i}'} layers.{i}.weight", f"p{i}") for i in range(4)]
    # one bias for three layers, none for the last
    steps += [node("Add", f"p{i} layers.0.bias", f"v{i + 1}") for i in range(3)]
    steps = [step for pair in zip(steps[:4], [*steps[4:], None], strict=True) for step in pair if step]
    path = written(tmp_path / "z.onnx", steps, {**weights, "layers.0.bias": (8,)}, (1, 5, 8), out="p3")
    found = compare_files(f"{source}:{name}", path)
    assert found.agree == agree
    assert any("biases of zeros" in d.why for d in of(found, "params")) == agree


_PARTS = """
import torch
from torch.nn import functional

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(12, 10)

    def forward(self, x):
        return torch.relu(self.fc(x))

class Parts(Whole):
    extra = 0

    def forward(self, x):
        columns = []
        for rows in (slice(0, 6), slice(6, 10)):
            w = self.fc.weight[rows]
            parts = [functional.linear(x[:, at : at + 4], w[:, at : at + 4]) for at in (0, 4, 8)]
            columns.append(parts[0] + parts[1] + parts[2])
        y = torch.relu(torch.cat(columns, 1) + self.fc.bias)
        return y + 1 if self.extra else y

class More(Parts):
    extra = 1

def whole(): return Whole(), torch.zeros(3, 12)
def parts(): return Parts(), torch.zeros(3, 12)
def more(): return More(), torch.zeros(3, 12)
"""


@pytest.mark.parametrize(("first", "second", "sign"), [("whole", "parts", 1), ("parts", "whole", -1)])
def test_the_sums_of_a_product_in_parts_are_explained(
    first: str, second: str, sign: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "product_parts.py").write_text(_PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    comparison = compare_files(f"product_parts:{first}", f"product_parts:{second}")
    assert comparison.agree
    # three products make each of the 30 outputs, so that two sums are needed
    why = settled(comparison, "elementwise_ops", sign * 2 * 30)
    assert why == "1 product in parts: sums of the parts, which a whole product counts as part of its MACs"


_ON_A_PARAMETER = """
import torch
from torch import nn

class Nodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes = nn.Parameter(torch.randn(7, 12))
        self.first, self.second = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)

    def forward(self, edges):
        nodes = self.nodes.expand(len(edges), -1, -1)
        return self.second(torch.relu(torch.bmm(edges, self.first(nodes))))

def net(): return Nodes(), torch.zeros(1, 7, 7)
"""


def test_layers_behind_a_product_of_constants_are_not_called_omitted_or_in_parts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "nodes.py").write_text(_ON_A_PARAMETER)
    source = f"{tmp_path / 'nodes.py'}:net"
    with Session(source) as session:
        path = str(session.save(str(tmp_path / "nodes.onnx")))
    told = "; ".join(d.why for d in compare_files(source, path).differences)
    assert "no output of the graph needs it" not in told
    assert "in parts" not in told


def test_other_additions_than_the_sums_of_a_product_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "product_parts.py").write_text(_PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    comparison = compare_files("product_parts:whole", "product_parts:more")
    open_parts = [d for d in of(comparison, "elementwise_ops") if d.explained != d.delta]
    assert [d.delta for d in open_parts] == [30]


COMPLEX = """
import torch
from torch import nn

class Rotated(nn.Module):
    def __init__(self, joined):
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat))
        self.side = nn.Parameter(torch.randn(4, 3))
        self.joined = joined

    def forward(self, x):
        if self.joined:
            return (x[..., None] * torch.view_as_real(self.turn)).sum(-1) + self.side
        return x * self.turn.real + self.turn.imag + self.side

def joined():
    return Rotated(True), torch.zeros(4, 3)

def apart():
    return Rotated(False), torch.zeros(4, 3)
"""


@pytest.mark.parametrize("way", ["joined", "apart"])
def test_a_complex_parameter_that_is_stored_in_parts_is_explained(way: str, tmp_path: Path) -> None:
    (tmp_path / "turned.py").write_text(COMPLEX)
    module = f"{tmp_path}/turned.py:{way}"
    parts = {"parts": (4, 3, 2)} if way == "joined" else {"real": (4, 3), "imaginary": (4, 3)}
    if way == "joined":
        nodes = [
            helper.make_node("Unsqueeze", ["x", "axis"], ["u"]),
            node("Mul", "u parts", "m"),
            helper.make_node("ReduceSum", ["m", "axis"], ["r"], keepdims=0),
            node("Add", "r side", "y"),
        ]
        weights: dict[str, Any] = {**parts, "side": (4, 3), "axis": np.array([2])}
    else:
        nodes = [node("Mul", "x real", "m"), node("Add", "m imaginary", "a"), node("Add", "a side", "y")]
        weights = {**parts, "side": (4, 3)}
    file = written(tmp_path / "parts.onnx", nodes, weights, (4, 3))
    for files, delta, where in (((module, file), 12, "here"), ((file, module), -12, "by the first model")):
        found = compare_files(*files)
        found_causes = [d for d in of(found, "params") if "complex" in d.why]
        assert [d.delta for d in found_causes] == [delta]
        assert found_causes[0].why == f"1 complex tensor stored as real and imaginary parts {where}"
        assert all(d.delta == d.explained for d in (*of(found, "params"), *of(found, "weight_bytes")))


REPEATED = """
import torch
from torch import nn

class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 9), nn.Mish(), nn.Linear(9, 6))
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True)

    def forward(self, x):
        x = self.shared(self.shared(x))
        return self.attention(x, x, x)[0]

def net():
    return Repeated(), torch.zeros(2, 5, 6)
"""


def test_modules_that_are_called_twice_and_attention_on_tiles_are_explained_apart(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "repeated.py").write_text(REPEATED)
    source = f"{tmp_path}/repeated.py:net"
    with Session(source) as session:
        exported = str(tmp_path / "net.onnx")
        session.convert(exported, verify=False)
        session.tile(TileSpec((4, 4, 4)), verify=False)
        tiled = str(session.save(str(tmp_path / "tiled.onnx")))
    plain, on_tiles = compare_files(source, exported), compare_files(source, tiled)
    assert not [d for d in open_differences(plain) if d.figure == "elementwise_ops"]
    assert not [d for d in open_differences(on_tiles) if d.figure == "elementwise_ops"]
    amounts = [
        {d.why.partition(" ")[2].split(":")[0][:32]: d.delta for d in of(found, "elementwise_ops")}
        for found in (plain, on_tiles)
    ]
    written_as = "MultiheadAttention written as "
    first, second = (
        next(delta for why, delta in one.items() if why.startswith(written_as)) for one in amounts
    )
    assert first == second, "the sums of tiles are no part of the export"
    assert (amounts[1]["MultiheadAttention on tiles"] or 0) > 0


TABLED = """
import torch
from torch import nn

class Tabled(nn.Module):
    def __init__(self, learned):
        super().__init__()
        self.table = nn.Parameter(torch.randn(11, 3))
        self.register_buffer("order", torch.arange(24) % 11)
        self.layer = nn.Linear(3, 3)
        self.learned = nn.Parameter(torch.randn(learned, 3)) if learned else None

    def forward(self, x):
        x = self.layer(x) + self.table[self.order].view(4, 6, 3)
        return x if self.learned is None else x + self.learned[: 6]

def net():
    return Tabled(0), torch.zeros(4, 6, 3)

def other():
    return Tabled(7), torch.zeros(4, 6, 3)
"""


def test_a_table_that_is_read_by_index_may_be_stored_as_its_elements(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tabled.py").write_text(TABLED)
    exported = str(tmp_path / "net.onnx")
    with Session(f"{tmp_path}/tabled.py:net") as session:
        session.convert(exported, verify=False)
    found = compare_files(f"{tmp_path}/tabled.py:net", exported)
    assert {d.why.partition(" ")[2].partition(" that ")[0]: d.delta for d in of(found, "params")} == {
        "parameter of which the other model stores the elements": -33,
        "constant of the elements": 72,
    }
    assert found.agree
    # the elements of one table explain no other parameter
    found = compare_files(f"{tmp_path}/tabled.py:other", exported)
    assert any((d.delta, d.explained) == (-21, 0) for d in of(found, "params")), of(found, "params")


ZERO_BIASES = """
import torch
from torch import nn

def build(value):
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(20, 7))
    for layer in (net[0], net[2]):
        nn.init.constant_(layer.bias, value)
    return net, torch.zeros(1, 3, 2, 2)

def zeros():
    return build(0.0)

def ones():
    return build(1.0)
"""


def test_the_work_of_biases_of_zeros_that_one_model_omits_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "biases.py").write_text(ZERO_BIASES)
    nodes = [
        node("Conv", "x 0.weight", "h", pads=[1, 1, 1, 1]),
        node("Flatten", "h", "f"),
        node("Gemm", "f 2.weight", "y", transB=1),
    ]
    weights: dict[str, Any] = {"0.weight": (5, 3, 3, 3), "2.weight": (7, 20)}
    without = written(tmp_path / "without.onnx", nodes, weights, (1, 3, 2, 2))
    for name, is_explained in (("zeros", True), ("ones", False)):
        module = f"{tmp_path}/biases.py:{name}"
        for files, sign in (((module, without), -1), ((without, module), 1)):
            work = of(compare_files(*files), "elementwise_ops")
            assert sum(d.delta or 0 for d in work) == sign * (5 * 2 * 2 + 7)
            assert all(bool(d.explained) == is_explained for d in work)


def test_another_product_of_the_same_name_and_macs_is_no_product_in_parts(tmp_path: Path) -> None:
    wide = [helper.make_node("MatMul", ["x", "w"], ["h"], name="m"), node("Relu", "h", "y")]
    first = written(tmp_path / "wide.onnx", wide, {"w": (4, 6)}, (3, 4))
    second = written(tmp_path / "deep.onnx", wide, {"w": (6, 4)}, (3, 6))
    for files, delta in (((first, second), -6), ((second, first), 6)):
        found = compare_files(*files)
        assert sum(d.delta or 0 for d in of(found, "elementwise_ops")) == delta
        assert not any(d.explained for d in of(found, "elementwise_ops"))


POSITIONS = """
import torch
from torch import nn

class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(9, 4)

    def forward(self, x):
        return x + self.positions(torch.arange(6))

def net():
    return Positions(), torch.zeros(2, 6, 4)
"""


@pytest.mark.parametrize(("name", "is_explained"), [("embedding_1", True), ("bias", False)])
def test_rows_of_an_embedding_that_the_exporter_computed_are_explained(
    name: str, is_explained: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "positions.py").write_text(POSITIONS)
    file = written(tmp_path / "p.onnx", [node("Add", f"x {name}", "y")], {name: (1, 6, 4)}, (2, 6, 4))
    found = compare_files(f"{tmp_path}/positions.py:net", file)
    params = of(found, "params")
    assert sum(d.delta or 0 for d in params) == 6 * 4 - 9 * 4
    assert all(bool(d.explained) == is_explained for d in params)


FUNCTIONS = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return F.logsigmoid(F.silu(self.conv(x))).relu() + 1

def net():
    return nn.Sequential(Block(), nn.Flatten()), torch.zeros(1, 3, 6, 6)
"""


def test_functions_of_a_forward_that_are_several_operators_are_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    source = f"{tmp_path}/functions.py:net"
    with Session(source) as session:
        path = str(session.save(str(tmp_path / "net.onnx")))
    found = compare_files(source, path)
    assert found.agree
    assert not open_differences(found)
    why = "; ".join(d.why for d in of(found, "elementwise_ops"))
    assert "2 log_sigmoid and silu written as 2 Sigmoid, 1 Mul, 1 Log" in why


def test_an_operator_that_no_function_accounts_for_is_not_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "functions.py").write_text(
        FUNCTIONS.replace("F.logsigmoid(F.silu(self.conv(x)))", "self.conv(x)")
    )
    source = f"{tmp_path}/functions.py:net"
    with Session(source) as session:
        path = str(session.save(str(tmp_path / "net.onnx")))
    model = onnx.load(path)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    twin = helper.make_node("Exp", [relu.output[0]], ["more"], f"{relu.name}_more")
    for node in model.graph.node:
        node.input[:] = ["more" if name == relu.output[0] else name for name in node.input]
    model.graph.node.insert(list(model.graph.node).index(relu) + 1, twin)
    onnx.save(model, path)
    assert [d.explained for d in of(compare_files(source, path), "elementwise_ops")] == [0]


def test_a_quantized_copy_of_a_graph_and_of_a_module_is_explained_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "functions.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net(): return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), torch.zeros(2, 6)\n"
    )
    source, plain, codes = f"{tmp_path}/functions.py:net", tmp_path / "net.onnx", tmp_path / "int8.onnx"
    with Session(source) as session:
        session.save(str(plain))
    with Session(str(plain)) as session:
        session.quantize(
            QuantizeSpec(weight="int8", input="int8", bias="int32"), output=str(codes), report=False
        )
    for original in (source, str(plain)):
        found = compare_files(original, str(codes))
        assert not open_differences(found)
        assert len(of(found, "elementwise_ops")) == 1


TOWER = """
import torch
from torch import nn

class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())

    def forward(self, a, b):
        return self.tower(a) - self.tower(b)

def net():
    return Siamese().eval(), (torch.zeros(1, 1, 5, 5), torch.zeros(1, 1, 5, 5))
"""


def test_a_tower_that_is_called_twice_is_folded_and_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tower.py").write_text(TOWER)
    source, plain, folded = (
        f"{tmp_path}/tower.py:net",
        str(tmp_path / "net.onnx"),
        str(tmp_path / "folded.onnx"),
    )
    with Session(source) as session:
        session.save(plain)
    with Session(plain) as session:
        session.fold(output=folded)
    (statistics,) = of(compare_files(source, plain), "params")
    assert "running statistics" in statistics.why
    found = compare_files(plain, folded)
    assert not open_differences(found)
    assert [d.delta for d in of(found, "params")] == [-16]
