"""Families of layers, grouped by the kind of their work, with one color and one letter each.

The graph, the tree, the plots and the tables use the same families. A kind is an ONNX or TensorFlow Lite
operator, a module class, or a torch function. The family is derived from parts of the kind's name, because
users write classes of any name. This Python module needs only the standard library.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Family(NamedTuple):
    """A family of layers.

    Attributes:
        name: Name of the family.
        color: Color on a dark screen and in drawings, an exact entry of the xterm palette.
        light: Color on a light screen.
        few: Color on a dark screen with 16 colors, for terminals with few colors.
        few_light: Color on a light screen with 16 colors.
        letter: Letter that replaces the color on a screen with few or no colors.
    """

    name: str
    color: str
    light: str
    few: str
    few_light: str
    letter: str


FAMILIES: dict[str, Family] = {
    entry.name: entry
    for entry in (
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
"""Families by name, in the order of legends."""

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
"""Families with parts of names. The first match wins. Punctuation and case are ignored."""
# complete names, which are looked up before the fragments
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
"""Parts of names that contain 'linear' but mean no matrix product: ResizeBilinear, DequantizeLinear."""
_BY_WORD = {word: name for name, words in _WORDS.items() for word in words.split()}


@cache
def find_kind_family(kind: str) -> str:
    """Finds the family of an operator, a class or a function; 'other' without a match.

    >>> [find_kind_family(kind) for kind in ("Conv2d", "LayerNormalization", "DEPTHWISE_CONV_2D", "Add")]
    ['conv', 'norm', 'conv', 'other']
    """
    plain = re.sub(r"[^a-z0-9]", "", kind[:200].lower())  # a hostile file may have very long kinds
    # torch's layer Bilinear multiplies matrices; in other names, 'bilinear' is an interpolation
    word = plain if plain == "bilinear" else _NO_PRODUCT.sub("", plain)
    if word in _BY_WORD:
        return _BY_WORD[word]
    return next((name for name, parts in _FRAGMENTS if any(part in word for part in parts)), "other")


def find_family(kind: str, *, tiled: bool = False) -> str:
    """Finds the family of a row of this kind; 'tile' for a tiled row."""
    return "tile" if tiled else find_kind_family(kind)
