"""Packed weights of quantized layers are parameters, whatever kind of layer holds them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from explorer import Session  # noqa: E402

warnings.filterwarnings("ignore", category=UserWarning, module="torch")

quantized = torch.ao.nn.quantized
fused = torch.ao.nn.intrinsic.quantized


def nibbles(rows: int, width: int) -> Any:
    """An embedding of four bits a number."""
    layer = quantized.Embedding(rows, width, dtype=torch.quint4x2)
    scales, zeros = torch.ones(rows), torch.zeros(rows)
    layer.set_weight(torch.quantize_per_channel(torch.rand(rows, width), scales, zeros, 0, torch.quint4x2))
    return layer


@pytest.mark.parametrize(
    ("layer", "shape", "parameters", "size"),
    [
        (lambda: quantized.Conv1d(4, 6, 3), (6, 4, 3), 72 + 6, 72 + 24),
        (lambda: fused.ConvReLU2d(4, 6, 3, groups=2), (6, 2, 3, 3), 108 + 6, 108 + 24),
        (lambda: fused.ConvReLU3d(2, 3, 2, bias=False), (3, 2, 2, 2, 2), 48, 48),
        (lambda: quantized.ConvTranspose1d(4, 6, 3), (4, 6, 3), 72 + 6, 72 + 24),
        (lambda: quantized.ConvTranspose2d(4, 6, (3, 1)), (4, 6, 3, 1), 72 + 6, 72 + 24),
        (lambda: fused.LinearReLU(5, 7), (7, 5), 35 + 7, 35 + 28),
        (lambda: quantized.Embedding(10, 8), (10, 8), 80, 80),
        (lambda: nibbles(10, 8), (10, 8), 80, 40),
        (lambda: quantized.EmbeddingBag(9, 8), (9, 8), 72, 72),
        (lambda: quantized.PReLU(0.1, 0, 4), (4,), 4, 4),
    ],
)
def test_packed_weights_are_parameters(
    layer: Any, shape: tuple[int, ...], parameters: int, size: int
) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), layer())
    with Session(model, inputs=(torch.rand(1, 4, 9),), cache=False, partial=True) as session:
        totals = session.info().totals
        row = next(row for row in session.analysis().layers if row.path == "1")
    assert (totals.params, totals.weight_bytes) == (parameters, size)
    assert (row.params, row.weight_bytes) == (parameters, size)
    assert shape in [weight.shape for weight in row.weights]


def test_a_quantized_network_has_the_parameters_of_its_convolutions() -> None:
    models = pytest.importorskip("torchvision").models.quantization
    model = models.mobilenet_v2(weights=None, quantize=True)
    # batch normalization is folded into a bias for each channel of a convolution
    plain = models.mobilenet_v2(weights=None)
    convolutions = [m for m in plain.modules() if isinstance(m, torch.nn.Conv2d)]
    wanted = sum(m.weight.numel() + m.out_channels for m in convolutions)
    wanted += sum(p.numel() for p in plain.classifier.parameters())
    with Session(model, inputs=(torch.rand(1, 3, 64, 64),), cache=False) as session:
        assert session.info().totals.params == wanted


def test_a_packed_layer_under_two_names_counts_once() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = quantized.dynamic.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    with Session(Twice(), inputs=(torch.rand(3, 8),), cache=False) as session:
        totals = session.info().totals
    assert (totals.params, totals.weight_bytes, totals.macs) == (64 + 8, 64 + 32, 2 * 3 * 64)


@pytest.mark.parametrize("has_relu", [False, True])
def test_a_relu_in_a_dynamically_quantized_layer_is_counted(has_relu: bool) -> None:
    from torch.ao.nn import intrinsic, quantized

    kind = intrinsic.quantized.dynamic.LinearReLU if has_relu else quantized.dynamic.Linear
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.Sequential(kind(7, 9)).eval()
    with Session(model, inputs=torch.zeros(4, 7), cache=False) as session:
        layer = next(layer for layer in session.analysis().layers if not layer.group)
    # 5 steps for each input; rescaling, bias and perhaps relu for each output
    assert layer.elementwise_ops == 5 * 4 * 7 + (2 + has_relu) * 4 * 9
