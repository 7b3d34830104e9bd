"""Families of layers: what sort of work a kind does, and one colour and one letter for each.

Graph, tree, plots and tables share them. A kind is an operator of ONNX or TensorFlow Lite, a module's class,
or a function of torch: they are told by what their names hold, because there is no end of classes that users
write. Standard library only.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from explorer.facts import Layer

__all__ = ["FAMILIES", "Family", "family", "family_of_kind"]


class Family(NamedTuple):
    """A family: its name, a colour (an exact entry of the xterm palette, for 256 colours and more), its
    nearest among the 16 by rich's name, and the letter that stands for it where there is no colour.
    """

    name: str
    color: str
    ansi: str
    letter: str


FAMILIES: dict[str, Family] = {
    name: Family(name, color, ansi, letter)
    for name, color, ansi, letter in (
        ("conv", "#5f87d7", "blue", "C"),
        ("matmul", "#d7875f", "bright_red", "M"),
        ("attention", "#af5faf", "magenta", "Q"),
        ("norm", "#87af5f", "green", "N"),
        ("activation", "#d7af00", "yellow", "A"),
        ("movement", "#949494", "white", "V"),
        ("tile", "#00afaf", "cyan", "T"),
        ("other", "#bcbcbc", "bright_black", "O"),
    )
}
"""Every family by its name, in the order in which legends list them."""

_FRAGMENTS = (
    ("attention", ("attention", "attn", "rotaryembedding", "sdpa")),
    ("conv", ("conv",)),
    ("norm", ("norm", "lrn")),
    ("activation", ("relu", "gelu", "softmax", "softmin", "sigmoid", "tanh", "swish", "silu", "softplus")),
    ("activation", ("softsign", "shrink", "celu", "selu", "logistic")),
    ("matmul", ("matmul", "gemm", "linear", "einsum", "fullyconnected", "lstm", "gru", "addmm", "baddbmm")),
    ("movement", ("reshape", "flatten", "transpose", "permute", "concat", "split", "slice", "gather")),
    ("movement", ("squeeze", "scatter", "depthtospace", "spacetodepth", "pixelshuffle", "embedding")),
)
"""Families by a part of the name, the first that fits; signs and cases are left out."""
_WORDS = {
    "activation": "elu mish glu clip hardtanh erf threshold activation",
    "matmul": "mm bmm mv dot vdot inner outer tensordot rnn dense batchmatmulv2 product",
    "movement": (
        "cat stack hstack vstack dstack pad padv2 mirrorpad expand tile repeat cast castlike identity copy"
        " clone contiguous view viewas t movedim moveaxis swapaxes chunk unbind select narrow getitem roll"
        " flip reversesequence unfold fold stridedslice broadcastto to onehot indexselect channelshuffle"
        " pack unpack trilu tril triu"
    ),
}
_NO_PRODUCT = re.compile("bilinear|nonlinear|^qlinear|(?<=quantize)linear")
"""What speaks of lines and not of a layer: ResizeBilinear, QLinearAdd, DequantizeLinear."""
_BY_WORD = {word: name for name, words in _WORDS.items() for word in words.split()}


@cache
def family_of_kind(kind: str) -> str:
    """The family of an operator, a class or a function; 'other' for what is in none.

    >>> [family_of_kind(kind) for kind in ("Conv2d", "LayerNormalization", "DEPTHWISE_CONV_2D", "Add")]
    ['conv', 'norm', 'conv', 'other']
    """
    plain = re.sub(r"[^a-z0-9]", "", kind[:200].lower())
    word = plain if plain == "bilinear" else _NO_PRODUCT.sub("", plain)
    if word in _BY_WORD:
        return _BY_WORD[word]
    return next((name for name, parts in _FRAGMENTS if any(part in word for part in parts)), "other")


def family(layer: Layer) -> str:
    """The family of a row: 'tile' for what is made of tiles."""
    return "tile" if layer.tiled else family_of_kind(layer.kind)
