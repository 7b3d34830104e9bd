"""Families of layers: the sort of work of a kind, with one color and one letter each.

Graph, tree, plots and tables share them. A kind is an operator of ONNX or TensorFlow Lite, a module's class,
or a function of torch. The family follows from parts of its name, because users write classes of any
name. Standard library only.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Family(NamedTuple):
    """A family of layers.

    Attributes:
        name: Its name.
        color: Its color on a dark screen and in drawings, an exact entry of the xterm palette.
        light: Its color on a light screen.
        few: Its color on a dark screen with 16 colors, by rich's name.
        few_light: The same on a light screen.
        letter: Stands for it where there are few colors, or none.
    """

    name: str
    color: str
    light: str
    few: str
    few_light: str
    letter: str


FAMILIES: dict[str, Family] = {
    one.name: one
    for one in (
        Family("conv", "#5f87d7", "#005faf", "#5555ff", "#0000aa", "C"),
        Family("matmul", "#d7875f", "#d75f00", "#ff5555", "#aa0000", "M"),
        Family("attention", "#af5faf", "#870087", "#ff55ff", "#aa00aa", "Q"),
        Family("norm", "#87af5f", "#5f8700", "#55ff55", "#00aa00", "N"),
        Family("activation", "#d7af00", "#878700", "#ffff55", "#aa5500", "A"),
        Family("movement", "#949494", "#6c6c6c", "#aa5500", "#555555", "V"),
        Family("tile", "#00afaf", "#008787", "#55ffff", "#00aaaa", "T"),
        Family("other", "#bcbcbc", "#767676", "#aaaaaa", "#000000", "O"),
    )
}
"""Every family by its name, in the order of legends."""

_FRAGMENTS = (
    ("tile", ("2dmm",)),
    ("attention", ("attention", "attn", "rotaryembedding", "sdpa")),
    ("conv", ("conv",)),
    ("norm", ("norm", "lrn")),
    ("activation", ("relu", "gelu", "softmax", "softmin", "sigmoid", "tanh", "swish", "silu", "softplus")),
    ("activation", ("softsign", "shrink", "celu", "selu", "logistic")),
    ("matmul", ("matmul", "gemm", "linear", "einsum", "fullyconnected", "lstm", "gru", "addmm", "baddbmm")),
    ("movement", ("reshape", "flatten", "transpose", "permute", "concat", "split", "slice", "gather")),
    ("movement", ("squeeze", "scatter", "depthtospace", "spacetodepth", "pixelshuffle", "embedding")),
)
"""Families by a part of the name, the first match wins; signs and cases are ignored."""
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
"""Parts of names that are not about the family: ResizeBilinear, QLinearAdd, DequantizeLinear."""
_BY_WORD = {word: name for name, words in _WORDS.items() for word in words.split()}


@cache
def family_of_kind(kind: str) -> str:
    """The family of an operator, a class or a function; 'other' without one.

    >>> [family_of_kind(kind) for kind in ("Conv2d", "LayerNormalization", "DEPTHWISE_CONV_2D", "Add")]
    ['conv', 'norm', 'conv', 'other']
    """
    plain = re.sub(r"[^a-z0-9]", "", kind[:200].lower())
    word = plain if plain == "bilinear" else _NO_PRODUCT.sub("", plain)
    if word in _BY_WORD:
        return _BY_WORD[word]
    return next((name for name, parts in _FRAGMENTS if any(part in word for part in parts)), "other")


def family(kind: str, *, tiled: bool = False) -> str:
    """The family of a row of this kind: 'tile' for a tiled row."""
    return "tile" if tiled else family_of_kind(kind)
