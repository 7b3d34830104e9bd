"""Tensor subclasses as weights: parameters of the whole, bytes of the inner tensors, values dequantized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

from explorer import QuantizeSpec, Session, SplitSpec, TileSpec  # noqa: E402
from explorer.base.errors import ExplorerError  # noqa: E402


class Scaled(torch.Tensor):
    """Integers and a scale for each row, as torchao's subclasses are built."""

    @staticmethod
    def __new__(cls, integers: Any, scale: Any, readable: bool = True) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)

    def __init__(self, integers: Any, scale: Any, readable: bool = True) -> None:
        self.integers, self.scale, self.readable = integers, scale, readable

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["integers", "scale"], None

    def dequantize(self) -> Any:
        if not self.readable:
            raise NotImplementedError
        return self.integers.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].integers, args[0].scale, args[0].readable)

        def plain(value: Any) -> Any:
            return value.dequantize() if isinstance(value, Scaled) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


def network(readable: bool = True) -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))
    integers = torch.arange(-36, 36, dtype=torch.int8).reshape(6, 12)
    weight = Scaled(integers, torch.full((6, 1), 0.5), readable)
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    return model


INPUTS = (torch.rand(2, 12),)


def test_parameters_are_those_of_the_whole_and_bytes_those_of_the_inner_tensors() -> None:
    with Session(network(), inputs=INPUTS, cache=False) as session:
        info = session.info()
        row = next(row for row in session.analysis().layers if row.path == "0")
    assert info.totals.params == 72 + 6 + 18 + 3
    assert info.totals.weight_bytes == 72 + 4 * 6 + 4 * (6 + 18 + 3)
    assert info.totals.macs == 2 * (72 + 18)
    assert (row.weights[0].dtype, row.weights[0].shape) == ("int8", (6, 12))
    assert (row.weight_bytes, row.weight_bytes_read) == (72 + 24 + 24, 72 + 24 + 24)
    assert any("1 tensor of Scaled stored as other tensors" in note for note in info.model.notes)


def test_values_are_dequantized() -> None:
    with Session(network(), inputs=INPUTS, cache=False) as session:
        found = session.values("0.weight")
        stats = {entry.tensor.name: entry for entry in session.weights().tensors}
    assert found.tensor.shape == (6, 12)
    assert (stats["0.weight"].minimum, stats["0.weight"].maximum) == (-18.0, 17.5)


def test_weights_shows_the_bytes_of_the_inner_tensors() -> None:
    model = network()
    model.shared = model[0]
    with Session(model, inputs=INPUTS, cache=False) as session:
        sizes = {entry.tensor.name: entry.bytes for entry in session.weights().tensors}
    assert (sizes["0.weight"], sizes["2.weight"], sizes["2.bias"]) == (72 + 24, 72, 12)


@pytest.mark.parametrize("makes", [False, True])
def test_quantize_subtracts_the_bytes_that_a_subclass_stores(makes: bool, tmp_path: Path) -> None:
    spec = QuantizeSpec(weight="int4")
    with Session(network(), inputs=INPUTS, cache=False) as session:
        fact = session.quantize(spec, output=str(tmp_path / "made.pt2")) if makes else session.quantize(spec)
    rows = {row.name: (row.weight_bytes_before, row.weight_bytes) for row in fact.layers}
    codes_and_scales = {"0": 72 // 2 + 4 * 6, "2": 18 // 2 + 4 * 3}
    assert rows == {"0": (72 + 24, codes_and_scales["0"]), "2": (72, codes_and_scales["2"])}
    biases = 4 * (6 + 3)
    assert fact.totals.weight_bytes.before == 72 + 24 + 72 + biases
    assert fact.totals.weight_bytes.after == sum(codes_and_scales.values()) + biases


VERBS: list[Callable[[Session, Path], Any]] = [
    lambda s, out: s.weights(),
    lambda s, out: s.values("0.weight"),
    lambda s, out: s.tile(TileSpec(tile=(4, 4, 4))),
    lambda s, out: s.split(SplitSpec(stages=2)),
    lambda s, out: s.quantize(QuantizeSpec(weight="int8")),
    lambda s, out: s.convert(str(out / "made.onnx")),
]


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_refuse_in_one_line_what_no_class_tells(verb: Any, tmp_path: Path) -> None:
    with (
        Session(network(readable=False), inputs=INPUTS, cache=False) as session,
        pytest.raises(ExplorerError, match=r"0\.weight \(Scaled\)"),
    ):
        verb(session, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_unreadable_is_still_counted() -> None:
    with Session(network(readable=False), inputs=INPUTS, cache=False) as session:
        assert session.info().totals.weight_bytes == 72 + 4 * 6 + 4 * (6 + 18 + 3)


def test_a_converted_model_holds_the_dequantized_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = network()
    with Session(model, inputs=INPUTS, cache=False) as session:
        session.convert(str(tmp_path / "made.onnx"))
    graph = onnx.load(tmp_path / "made.onnx").graph
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    wanted = model[0].weight.dequantize().numpy()
    assert any(w.shape == wanted.shape and np.array_equal(w, wanted) for w in weights)
    assert isinstance(model[0].weight, Scaled)  # the user's module stays as it was


def test_a_masked_tensor_has_the_bytes_of_its_numbers_and_its_mask() -> None:
    masked = pytest.importorskip("torch.masked")
    model = nn.Linear(10, 4, bias=False)
    weight = model.weight.data
    model.weight = nn.Parameter(masked.masked_tensor(weight, weight > 0))
    with Session(model, inputs=(torch.rand(2, 10),), cache=False) as session:
        totals = session.info().totals
        lowest = session.weights().tensors[0].minimum
    assert (totals.params, totals.weight_bytes) == (40, 160 + 40)
    assert lowest == 0


def test_bfloat16_inputs_reach_a_module_that_is_tiled() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)).to(torch.bfloat16)
    with Session(model, inputs=(torch.rand(2, 8, dtype=torch.bfloat16),), cache=False) as session:
        assert session.tile(TileSpec(tile=(4, 4, 4))).plan.sites


class Nibbles(Scaled):
    """Two numbers of 4 bits in a byte, as int4 weights are packed; read by another name than torchao's."""

    @staticmethod
    def __new__(cls, integers: Any, scale: Any, readable: bool = True) -> Any:
        rows, halves = integers.shape
        return torch.Tensor._make_wrapper_subclass(cls, (rows, 2 * halves), dtype=scale.dtype)

    def get_original_weight(self) -> Any:
        both = torch.stack([self.integers & 15, self.integers >> 4], -1).flatten(-2)
        return both.to(self.scale.dtype) * self.scale

    dequantize = None


def test_packed_weights_have_their_logical_sizes_and_their_packed_bytes() -> None:
    model = nn.Sequential(nn.Linear(12, 6, bias=False))
    packed = Nibbles(torch.full((6, 6), 0x31, dtype=torch.uint8), torch.full((6, 1), 0.5))
    model[0].weight = nn.Parameter(packed, requires_grad=False)
    with Session(model, inputs=INPUTS, cache=False) as session:
        totals = session.info().totals
        numbers = session.weights().tensors[0]
    assert (totals.params, totals.weight_bytes, totals.macs) == (72, 36 + 24, 2 * 72)
    assert (numbers.minimum, numbers.maximum) == (0.5, 1.5)
