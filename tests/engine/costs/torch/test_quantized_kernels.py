"""Static-quantized networks count as the floats that they were made of, in every form of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.facts import Totals  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ao = torch.ao.quantization
Q = torch.ops.quantized


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that has every operator: torchvision's quantized networks choose another for the process."""
    monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")


class Net(nn.Module):
    """Grouped, dilated, transposed and one-dimensional convolutions, a sum, a join, pools, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = ao.QuantStub(), ao.DeQuantStub()
        self.first, self.relu = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU()
        self.grouped = nn.Conv2d(8, 8, 3, groups=4, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(16, 6, 3, stride=2, output_padding=1)
        self.line = nn.Conv1d(6, 5, 3, padding=1)
        self.last = nn.Linear(5, 7)
        self.ways = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(self.enter(x)))
        x = self.ways.add_relu(x, self.grouped(x))
        x = nn.functional.max_pool2d(self.up(self.ways.cat([x, x], 1)), 2)
        x = self.line(x.flatten(2)).mean(2)
        return self.leave(self.last(x))


X = torch.rand(2, 3, 12, 12)


def configured() -> Any:
    model = Net().eval()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    model.up.qconfig = ao.default_qconfig
    return model


def eager() -> Any:
    model = ao.fuse_modules(configured(), [["first", "relu"]])
    ao.prepare(model, inplace=True)
    model(X)
    return ao.convert(model)


def fx() -> Any:
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    chosen = ao.get_default_qconfig_mapping("fbgemm").set_object_type(nn.ConvTranspose2d, ao.default_qconfig)
    model = prepare_fx(Net().eval(), chosen, (X,))
    model(X)
    return convert_fx(model)


def totals(model: Any, *given: Any) -> Totals:
    with Session(model, inputs=given, cache=False) as session:
        return session.info().totals


@pytest.mark.parametrize(
    "make", [eager, fx, lambda: torch.jit.trace(eager(), X), lambda: torch.jit.script(eager())]
)
def test_a_static_quantized_network_has_the_macs_of_its_floats(make: Callable[[], Any]) -> None:
    wanted, found = totals(Net().eval(), X), totals(make(), X)
    assert (found.macs, found.status, found.coverage) == (wanted.macs, "exact", 1.0)
    # the largest step holds bytes where it held floats
    assert found.activation_bytes_peak is not None
    assert found.activation_bytes_peak <= X.nbytes + X.numel()
    assert found.params == wanted.params


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.ELU(),
        nn.Sequential(nn.BatchNorm2d(4), nn.LeakyReLU(), nn.GroupNorm(2, 4)),
        nn.Upsample(scale_factor=2),
    ],
)
def test_a_quantized_layer_after_a_convolution_is_counted(layer: Any) -> None:
    model = ao.QuantWrapper(nn.Sequential(nn.Conv2d(3, 4, 3), layer)).eval()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    ao.prepare(model, inplace=True)
    model(X)
    found = totals(ao.convert(model), X)
    assert (found.macs, found.status, found.coverage) == (2 * 4 * 100 * 27, "exact", 1.0)


@pytest.mark.parametrize("made_of", [torch.ao.nn.quantized.Embedding, torch.ao.nn.quantized.EmbeddingBag])
def test_rows_of_a_quantized_embedding_reach_the_next_layer(made_of: Any) -> None:
    found = totals(nn.Sequential(made_of(20, 6), nn.Linear(6, 5)), torch.arange(8).reshape(2, 4))
    rows = 2 if made_of is torch.ao.nn.quantized.EmbeddingBag else 8
    assert (found.macs, found.status) == (rows * 30, "exact")
    assert (found.params, found.weight_bytes) == (120 + 35, 120 + 4 * 35)


class Stored(nn.Module):
    """A quantized matrix in a buffer, and again in an attribute."""

    def __init__(self, matrix: Any) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.same = matrix

    def forward(self, x: Any) -> Any:
        return x @ self.matrix.dequantize() @ self.same.dequantize()


@pytest.mark.parametrize("kind", [torch.qint8, torch.quint8, torch.quint4x2])
@pytest.mark.parametrize("zeros", [torch.float32, torch.int64])
def test_a_matrix_with_a_scale_for_each_channel_is_read(kind: Any, zeros: Any) -> None:
    if kind is torch.quint4x2 and zeros is torch.int64:
        pytest.skip("four bits have zero points in floating point only")
    matrix = torch.quantize_per_channel(torch.rand(8, 8), torch.ones(8), torch.zeros(8, dtype=zeros), 0, kind)
    assert totals(Stored(matrix), torch.rand(3, 8)).macs == 2 * 3 * 64


class Called(nn.Module):
    """An operator on quantized tensors, between a quantization of each input and its end."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(
            *(torch.quantize_per_tensor(x, 0.1, 3, torch.quint8) for x in given)
        ).dequantize()


def weight(*shape: int) -> Any:
    return torch.quantize_per_tensor(torch.rand(shape), 0.1, 0, torch.qint8)


@cache
def conv3() -> Any:
    return Q.conv3d_prepack(weight(4, 2, 3, 2, 1), torch.rand(4), [1, 2, 1], [1, 0, 0], [1, 1, 1], 1)


@cache
def turned() -> Any:
    return Q.conv_transpose1d_prepack(weight(4, 3, 3), None, [2], [1], [1], [1], 1)


@cache
def dense() -> Any:
    return Q.linear_prepack(weight(5, 4), torch.rand(5))


LINE, IMAGE = (2, 4, 9), (2, 4, 8, 7)

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "conv3d": (
        lambda x: Q.conv3d_relu(x, conv3(), 0.1, 0),
        [(1, 2, 3, 5, 4)],
        4 * 3 * 2 * 4 * 12,
    ),
    "transposed": (
        lambda x: Q.conv_transpose1d(x, turned(), 0.1, 0),
        [LINE],
        2 * 9 * 4 * 3 * 3,
    ),
    "linear": (lambda x: Q.linear_relu(x, dense(), 0.1, 0), [(3, 2, 4)], 6 * 4 * 5),
    "product": (lambda a, b: Q.matmul(a, b, 0.1, 0), [(2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
    "sum": (lambda a, b: Q.add_relu(a, b, 0.1, 0), [LINE, LINE], 0),
    "scalar": (lambda a: Q.mul_scalar(a, 0.5), [LINE], 0),
    "join": (lambda a, b: Q.cat_relu([a, b], 2, 0.1, 0), [LINE, LINE], 0),
    "pool": (lambda x: Q.max_pool2d(x, [3, 2], [2, 2], [1, 0], [1, 1], True), [IMAGE], 0),
    "activation": (lambda x: Q.leaky_relu(Q.hardswish(x, 0.1, 0), 0.1, False, 0.1, 0), [IMAGE], 0),
    "norm": (lambda x: Q.layer_norm(x, [9], torch.rand(9), torch.rand(9), 1e-5, 0.1, 0), [LINE], 0),
    "means": (lambda x: nn.functional.adaptive_avg_pool2d(x, 3).mean((2, 3)), [IMAGE], 0),
    "views": (lambda x: x.permute(0, 2, 3, 1)[:, 1:].reshape(2, -1).chunk(2, 1)[0], [IMAGE], 0),
    "sigmoid": (lambda x: torch.cat([x.sigmoid(), x]).clamp(0, 1), [LINE], 0),
    "scaled up": (lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_on_quantized_tensors_has_the_shape_that_torch_computes(case: str) -> None:
    function, shapes, macs = CASES[case]
    model, given = Called(function), [torch.rand(shape) for shape in shapes]
    wanted = model(*given)  # and the weights are packed
    with Session(model, inputs=tuple(given), cache=False) as session:
        info = session.info()
    assert info.model.notes == ()
    (made,) = info.model.outputs
    assert (made.shape, made.dtype) == (tuple(wanted.shape), "float32")
    assert (info.totals.macs, info.totals.status, info.totals.coverage) == (macs, "exact", 1.0)


def test_operators_of_quantized_programs_count(tmp_path: Path) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            how = (0.1, 3, -128, 127, torch.int8)
            q = torch.ops.quantized_decomposed.quantize_per_tensor(x, *how)
            return self.layer(torch.ops.quantized_decomposed.dequantize_per_tensor(q, *how))

    x = torch.rand(6, 4)
    torch.export.save(torch.export.export(Program(), (x,)), tmp_path / "program.pt2")
    with Session(str(tmp_path / "program.pt2"), cache=False) as session:
        of_file = session.info().totals
    of_module = totals(Program(), x)
    for found in (of_file, of_module):
        assert (found.macs, found.status, found.coverage) == (6 * 4 * 5, "exact", 1.0)
        assert found.elementwise_ops == 24 * (3 + 2) + 30


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v3_large", "shufflenet_v2_x1_0"])
def test_a_quantized_network_of_torchvision_has_the_macs_of_its_floats(name: str) -> None:
    models = pytest.importorskip("torchvision").models
    x = torch.rand(1, 3, 64, 64)
    found = totals(getattr(models.quantization, name)(weights=None, quantize=True), x)
    wanted = totals(getattr(models, name)(weights=None).eval(), x)
    assert (found.macs, found.status, found.coverage) == (wanted.macs, "exact", 1.0)
