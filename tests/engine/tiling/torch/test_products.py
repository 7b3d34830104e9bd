"""Tiled layers of torch: the same numbers, really by tiles, and readable by whatever follows."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from explorer.engine.tiling.torch.modules import TiledConv1d, TiledConv2d, TiledConv3d, TiledLinear  # noqa: E402
from explorer.engine.tiling.torch.products import compute_tiled_product  # noqa: E402
from tests.pairs import pairs  # noqa: E402

CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


class Seen(TorchDispatchMode):
    """The operators that multiply, with the shapes of what they multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[int, int, int]] = []
        self.others: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "bmm":
            batch, rows, depth = args[0].shape
            self.products += [(rows, depth, args[1].shape[2])] * batch
        elif name in ("mm", "addmm", "convolution"):
            self.others.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("edges", ["ragged", "padded"])
@pytest.mark.parametrize("sizes", [(1, 7, 5), (8, 16, 12), (9, 17, 13), (40, 3, 2), (3, 50, 60)])
@pytest.mark.parametrize("dtype", list(CLOSE))
def test_a_tiled_linear_computes_what_linear_computes(
    edges: Any, sizes: tuple[int, int, int], dtype: Any
) -> None:
    torch.manual_seed(0)
    rows, depth, columns = sizes
    layer = TiledLinear(depth, columns, tile=(8, 4, 6), edges=edges, dtype=dtype)
    x = torch.randn(rows, depth, dtype=dtype)
    true = functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    got = layer(x)
    assert got.dtype == dtype
    assert float((got.double() - true).detach().abs().max()) < CLOSE[dtype]


@pytest.mark.parametrize("edges", ["ragged", "padded"])
@pytest.mark.parametrize("sizes", [(9, 17, 13), (40, 3, 2), (8, 4, 6), (3, 50, 60)])
def test_every_product_is_a_tile_and_their_number_is_the_grids(edges: str, sizes: tuple[int, ...]) -> None:
    rows, depth, columns = sizes
    tile = (8, 4, 6)
    with Seen() as seen:
        compute_tiled_product(
            torch.randn(rows, depth), torch.randn(columns, depth), tile, padded=edges == "padded"
        )
    grid = [-(-size // limit) for size, limit in zip(sizes, tile, strict=True)]
    assert len(seen.products) == grid[0] * grid[1] * grid[2]
    assert not seen.others
    if edges == "padded":
        assert set(seen.products) == {tile}
    else:
        assert all(a <= b for one in seen.products for a, b in zip(one, tile, strict=True))
        assert sum(a * b * c for a, b, c in seen.products) == rows * depth * columns


def test_sums_go_along_k_in_order() -> None:
    # 1 + 2^-30 - 1 is 0 from left to right, and something else in any other order
    x = torch.tensor([[1.0, 2.0**-30, -1.0]])
    assert float(compute_tiled_product(x, torch.ones(1, 3), (1, 1, 1), padded=False)) == 0.0
    turned = torch.tensor([[1.0, -1.0, 2.0**-30]])
    assert float(compute_tiled_product(turned, torch.ones(1, 3), (1, 1, 1), padded=False)) == 2.0**-30


def test_half_precision_is_summed_in_float32() -> None:
    x = torch.ones(1, 4096, dtype=torch.float16)
    layer = TiledLinear(4096, 1, bias=False, tile=(1, 1, 1), dtype=torch.float16)
    nn.init.constant_(layer.weight, 1.0)
    assert layer(x).item() == 4096.0  # in float16 the sum stops at 2048


def test_any_leading_dimensions_and_none() -> None:
    layer = TiledLinear(6, 5, tile=(4, 4, 4))
    for shape in ((6,), (1, 6), (2, 3, 6), (0, 6), (2, 1, 7, 6)):
        x = torch.randn(*shape)
        assert torch.allclose(layer(x), nn.Linear.forward(layer, x), atol=1e-6)


def test_a_state_dict_fits_both_ways() -> None:
    tiled, plain = TiledLinear(6, 5, tile=(4, 4, 4)), nn.Linear(6, 5)
    plain.load_state_dict(tiled.state_dict(), strict=True)
    tiled.load_state_dict(nn.Linear(6, 5).state_dict(), strict=True)
    assert isinstance(tiled, nn.Linear)


def test_gradients_are_those_of_linear() -> None:
    layer, x = TiledLinear(9, 7, tile=(2, 4, 3)), torch.randn(5, 9)
    layer(x).square().sum().backward()
    tiled = layer.weight.grad.clone()
    layer.zero_grad()
    nn.Linear.forward(layer, x).square().sum().backward()
    assert torch.allclose(tiled, layer.weight.grad, atol=1e-4)


def test_on_the_meta_device_there_are_shapes() -> None:
    assert TiledLinear(9, 7, tile=(2, 4, 3), device="meta")(torch.empty(5, 9, device="meta")).shape == (5, 7)


CONVOLUTIONS = [
    {"kernel_size": 3},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect", "bias": False},
    {"kernel_size": 2, "padding": 1, "padding_mode": "circular"},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "options", "edges"),
    pairs([TiledConv1d, TiledConv2d, TiledConv3d], CONVOLUTIONS, ["ragged", "padded"]),
)
def test_a_tiled_convolution_computes_what_the_convolution_computes(
    kind: Any, options: dict[str, Any], edges: str
) -> None:
    torch.manual_seed(0)
    base = getattr(nn, kind.__name__.removeprefix("Tiled"))
    layer = kind(5, 9, tile=(16, 8, 4), edges=edges, dtype=torch.float64, **options)
    dims = len(layer.kernel_size)
    x = torch.randn(2, 5, *(9, 8, 7)[:dims], dtype=torch.float64)
    with Seen() as seen:
        got = layer(x)
    assert not seen.others
    assert torch.allclose(got, base.forward(layer, x), atol=1e-12)
    assert torch.allclose(layer(x[0]), base.forward(layer, x[0]), atol=1e-12)


def nets() -> Any:
    return nn.Sequential(
        TiledConv2d(3, 8, 3, padding=1, tile=(16, 8, 4)),
        nn.ReLU(),
        nn.Flatten(),
        TiledLinear(128, 10, tile=(4, 32, 8)),
    ).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_holds_for_every_batch() -> None:
    net = nets()
    traced = torch.jit.trace(net, (torch.randn(1, 3, 4, 4),), check_trace=False)
    for batch in (1, 3, 4, 5, 9):
        x = torch.randn(batch, 3, 4, 4)
        assert torch.allclose(traced(x), net(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["ragged", "padded"])
@pytest.mark.parametrize("shown", [2, 4, 7])
def test_torch_export_leaves_the_batch_open(edges: Any, shown: int) -> None:
    layer = TiledLinear(24, 10, tile=(4, 8, 4), edges=edges).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (torch.randn(shown, 5, 24),), dynamic_shapes={"x": {0: batch}})
    for size in (1, 2, 4, 5, 9):
        x = torch.randn(size, 5, 24)
        assert torch.allclose(program.module()(x), layer(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamo", [True, False])
def test_both_exporters_write_it(dynamo: bool) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if dynamo:
        pytest.importorskip("onnxscript")
    net, x, file = nets(), torch.randn(2, 3, 4, 4), io.BytesIO()
    if dynamo:
        shapes = {"input": {0: torch.export.Dim("batch")}}
        torch.onnx.export(net, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False).save(file)
        name = "input"
    else:
        how = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
        torch.onnx.export(net, (x,), file, dynamo=False, **how)
        name = "x"
    session = onnxruntime.InferenceSession(file.getvalue())
    for batch in (1, 3, 5):
        x = torch.randn(batch, 3, 4, 4)
        got = session.run(None, {name: x.numpy()})[0]
        assert torch.allclose(torch.from_numpy(got), net(x), atol=1e-5)
