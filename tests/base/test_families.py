"""Families: a layer of any format is told by what it does."""

from __future__ import annotations

import pytest
from rich.color import Color, ColorSystem
from rich.terminal_theme import TerminalTheme

from explorer.base.families import FAMILIES, find_family, find_kind_family

_DIM, _BRIGHT = (0, 170), (85, 255)
_BASE = [(r, g, b) for b in (0, 1) for g in (0, 1) for r in (0, 1)]
CONSOLE = TerminalTheme(
    (0, 0, 0),
    (255, 255, 255),
    [(170, 85, 0) if rgb == (1, 1, 0) else tuple(_DIM[part] for part in rgb) for rgb in _BASE],
    [tuple(_BRIGHT[part] for part in rgb) for rgb in _BASE],
)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("conv", "Conv ConvTranspose Conv2d CONV_2D DEPTHWISE_CONV_2D conv2d QLinearConv ConvInteger"),
        ("matmul", "MatMul Gemm Linear linear addmm FULLY_CONNECTED Einsum LSTM GRU RNN bmm mm Bilinear"),
        ("matmul", "MatMulNBits QLinearMatMul"),
        ("norm", "BatchNormalization LayerNorm RMSNorm GroupNorm L2_NORMALIZATION SkipLayerNormalization"),
        ("activation", "Relu ReLU6 gelu Softmax LOGISTIC HardSwish PRelu Tanh Clip Erf LogSoftmax ELU SiLU"),
        ("attention", "MultiheadAttention Attention scaled_dot_product_attention GroupQueryAttention"),
        ("movement", "Reshape Flatten flatten Transpose Concat CONCATENATION cat Gather Embedding Pad Cast"),
        ("tile", "2DMM_64x64x64 2DMM_16x16x16_int8"),
        ("other", "Add MaxPool2d GlobalAveragePool Resize RESIZE_BILINEAR UpsamplingBilinear2d Sequential"),
        ("other", "DequantizeLinear QuantizeLinear DynamicQuantizeLinear QLinearAdd QLinearAveragePool"),
    ],
)
def test_a_kind_of_any_format_is_in_the_family_of_its_work(name, kinds):
    assert {kind: find_kind_family(kind) for kind in kinds.split()} == dict.fromkeys(kinds.split(), name)


def test_what_is_made_of_tiles_is_a_tile_whatever_it_was():
    assert find_family("Conv", tiled=True) == "tile"


def test_colours_and_letters_tell_families_apart_on_every_terminal():
    steps = {0, 95, 135, 175, 215, 255}
    for one in FAMILIES.values():
        for color in (one.color, one.light):
            parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
            grey = len(set(parts)) == 1 and (parts[0] - 8) % 10 == 0
            assert grey or set(parts) <= steps, one
        for color in (one.few, one.few_light):
            assert Color.parse(color).downgrade(ColorSystem.STANDARD).get_truecolor(CONSOLE).hex == color
    for field in ("color", "light", "few", "few_light", "letter"):
        assert len({getattr(one, field) for one in FAMILIES.values()}) == len(FAMILIES)
