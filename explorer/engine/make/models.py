"""Creates models from texts such as 'linear:128x128x128:bias' or 'mlp:bn16-relu-16x5'."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import numpy_helper

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import bytes_text
from explorer.engine.make.builder import SeededGraph, Shape

_MAX_BYTES = 1 << 31
"""Maximum bytes of weights; protobuf parsers reject larger messages."""
_LAYER = re.compile(r"(?!0)(\d+)x(?!0)(\d+)|bn(?!0)(\d+)|(relu|sigmoid|tanh|softmax)")
"""A layer of an mlp. Groups: inputs and outputs of a product, features of a batch norm, activation."""
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softmax": "Softmax"}

EXAMPLES = (
    "linear:128x128x128:bias",
    "conv:3x32x32:16x3x3:stride=2,pad=1,bias",
    "attention:1x16x64:heads=4",
    "mlp:bn16-relu-16x40-relu-40x5-softmax",
)


def create_model(
    text: str, *, name: str | None = None, seed: int = 0, batch: int | str = 1, store_weights: bool = True
) -> SeededGraph:
    """Creates the model that a line of text describes.

    Args:
        text: Kind, sizes and options, separated by colons; see `EXAMPLES`.
        name: Name of the graph, or None for the kind. Name and seed determine the weights.
        seed: Seed of the weights.
        batch: Number of rows of an mlp or images of a convolution; a string makes the size symbolic.
        store_weights: Whether to store the weights; otherwise they are inputs.

    Raises:
        Misuse: The text is invalid, or the model is too large for a file.
    """
    kind, _, arguments = text.partition(":")
    if kind not in _KINDS:
        hint = suggest_name(kind, list(_KINDS)) or f"such as {EXAMPLES[0]}"
        raise Misuse(f"'{kind}' is not a model that can be made", where="make", hint=hint)
    sizes, _, options = arguments.partition(":")
    if batch != 1 and kind in _SIZED:
        raise Misuse(f"the sizes of '{kind}' set the number of rows", where="--batch", hint="leave it out")
    net = SeededGraph(name or kind, seed, store_weights=store_weights)
    _KINDS[kind](net, sizes, options, batch)
    return net


def _make_linear(net: SeededGraph, sizes: str, options: str, _: int | str) -> None:
    rows, depth, columns = _parse_sizes(sizes, 3, "linear:MxKxN")
    option_values = _parse_options(options, {"bias": 0})
    _check_size(net, depth * columns)
    x = net.add_input("x", [rows, depth])
    if option_values["bias"]:
        x = net.add_linear("/fc", "fc", x, depth, columns)
    else:
        x = net.add_node("MatMul", "/fc", x, net.add_weight("fc.weight", (depth, columns), depth))
    net.add_output(x, "y", [rows, columns])


def _make_conv(net: SeededGraph, sizes: str, options: str, batch: int | str) -> None:
    """Adds one convolution with random weights, as `sizes` and `options` describe it."""
    image, _, kernel_text = (f"{sizes}:{options}").partition(":")
    kernel, _, options = kernel_text.partition(":")
    usage = "conv:CxHxW:OxKxK:stride=1,pad=0,groups=1,bias"
    channels, height, width = _parse_sizes(image, 3, usage)
    out_channels, kernel_height, kernel_width = _parse_sizes(kernel, 3, usage)
    values = _parse_options(options, {"stride": 1, "pad": 0, "groups": 1, "bias": 0})
    groups, stride, pad = values["groups"], values["stride"], values["pad"]
    if kernel_height != kernel_width:
        raise Misuse("kernels are square", where="make", hint=usage)
    if not groups or channels % groups or out_channels % groups or not stride:
        message = f"{groups:,} groups do not divide {channels:,} and {out_channels:,} channels"
        raise Misuse(message, where="make", hint=usage)
    out_height, out_width = ((size + 2 * pad - kernel_height) // stride + 1 for size in (height, width))
    if out_height < 1 or out_width < 1:
        raise Misuse("the kernel is larger than the image", where="make", hint="pad=1 or a smaller kernel")
    _check_size(net, out_channels * channels // groups * kernel_height**2)
    x = net.add_input("x", [batch, channels, height, width])
    settings = {"stride": stride, "padding": pad, "groups": groups}
    x = net.add_conv(
        "/conv", "conv", x, channels, out_channels, kernel_height, bias=bool(values["bias"]), **settings
    )
    net.add_output(x, "y", [batch, out_channels, out_height, out_width])


def _make_attention(net: SeededGraph, sizes: str, options: str, _: int | str) -> None:
    """Adds self-attention with random weights; the batch is the first of the sizes."""
    usage = "attention:BxSxD:heads=4,causal"
    batch, length, width = _parse_sizes(sizes, 3, usage)
    option_values = _parse_options(options, {"heads": 1, "causal": 0})
    heads = option_values["heads"]
    if not heads or width % heads:
        raise Misuse(f"{heads:,} heads do not divide a width of {width:,}", where="make", hint=usage)
    _check_size(net, 4 * width * width)
    x = net.add_input("x", [batch, length, width])

    def add_dense(name: str, value: str) -> str:
        weight = net.add_weight(f"{name}.weight", (width, width), width)
        return net.add_node(
            "Add",
            f"/{name}",
            net.add_node("MatMul", f"/{name}", value, weight),
            net.add_weight(f"{name}.bias", (width,), width),
        )

    split = [batch, length, heads, width // heads]

    def add_heads(name: str, perm: Sequence[int]) -> str:
        value = net.add_node(
            "Reshape", f"/{name}", add_dense(name, x), net.add_constant(f"/{name}", split, np.int64)
        )
        return net.add_node("Transpose", f"/{name}", value, perm=perm)

    query = add_heads("query", [0, 2, 1, 3])
    scores = net.add_node("MatMul", "", query, add_heads("key", [0, 2, 3, 1]))
    scores = net.add_node("Div", "", scores, net.add_constant("", math.sqrt(width // heads), np.float32))
    if option_values["causal"]:
        fill = numpy_helper.from_array(np.array([-np.inf], np.float32))
        square = net.add_node(
            "ConstantOfShape", "", net.add_constant("", [length, length], np.int64), value=fill
        )
        mask = net.add_node(
            "Trilu", "", square, net.add_constant("", 1, np.int64), upper=1
        )  # computed: no weight
        scores = net.add_node("Add", "", scores, mask)
    weights = net.add_node("Softmax", "", scores, axis=-1)
    context = net.add_node(
        "Transpose",
        "",
        net.add_node("MatMul", "", weights, add_heads("value", [0, 2, 1, 3])),
        perm=[0, 2, 1, 3],
    )
    context = net.add_node("Reshape", "", context, net.add_constant("", [batch, length, width], np.int64))
    net.add_output(add_dense("out", context), "y", [batch, length, width])


def _make_mlp(net: SeededGraph, sizes: str, options: str, batch: int | str) -> None:
    """Adds the layers that `sizes` lists, with random weights."""
    usage = "mlp:bn16-relu-16x40-relu-40x5"
    _parse_options(options, {})
    width: int | None = None
    parameters = 0
    first = x = ""
    steps = sizes.split("-")
    matches = [_LAYER.fullmatch(step) for step in steps]
    for index, (step, layer) in enumerate(zip(steps, matches, strict=True)):
        if layer is None:
            raise Misuse(f"'{step}' is not a layer", where="make", hint=f"{usage}; sigmoid, tanh, softmax")
        input_width = layer[1] or layer[3]
        if input_width and width is not None and int(input_width) != width:
            raise Misuse(
                f"'{step}' takes {int(input_width):,} features, and gets {width:,}", where="make", hint=usage
            )
        if not first:
            features = next(
                (match[1] or match[3] for match in matches if match and (match[1] or match[3])), None
            )
            if features is None:
                raise Misuse("no layer sets the number of features", where="make", hint=usage)
            width = int(features)
            first = x = net.add_input("x", [batch, width])
        scope, path = f"/layers/layers.{index}", f"layers.{index}"
        if layer[1]:
            cin, cout = int(layer[1]), int(layer[2])
            _check_size(net, parameters := parameters + cin * cout)
            x, width = net.add_linear(scope, path, x, cin, cout), cout
        elif layer[3]:
            x = net.add_batch_norm(scope, path, x, int(layer[3]))
        else:
            x = net.add_node(_ACTIVATIONS[step], scope, x)
    shape: Shape = [batch, width or 0]
    net.add_output(x, "y", shape)


_KINDS: Mapping[str, Callable[[SeededGraph, str, str, int | str], None]] = {
    "linear": _make_linear,
    "conv": _make_conv,
    "attention": _make_attention,
    "mlp": _make_mlp,
}
"""Functions that add the layers of a model, by its kind."""

_SIZED = frozenset(("linear", "attention"))
"""Kinds whose sizes include the batch."""


def _parse_sizes(text: str, count: int, usage: str) -> list[int]:
    parts = text.split("x")
    if len(parts) != count or not all(part.isdecimal() and 0 < int(part) < 1 << 31 for part in parts):
        raise Misuse(f"'{text}' is not {count} sizes of 1 or more", where="make", hint=f"write {usage}")
    return [int(part) for part in parts]


def _parse_options(text: str, defaults: Mapping[str, int]) -> dict[str, int]:
    """Parses options such as 'stride=2,bias'; an option without a value is 1."""
    values = dict(defaults)
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if name not in defaults:
            hint = suggest_name(name, list(defaults)) or "leave it out"
            raise Misuse(f"there is no option '{name}'", where="make", hint=hint)
        if equals and not (value.isdecimal() and int(value) < 1 << 31):
            raise Misuse(f"'{value}' is not a size", where=name, hint=f"{name}=1")
        values[name] = int(value) if equals else 1
    return values


def _check_size(net: SeededGraph, elements: int) -> None:
    if net.stored and 4 * elements >= _MAX_BYTES:
        message = f"its weights would take {bytes_text(4 * elements)}"
        raise Misuse(message, where="make", hint="no ONNX file holds 2 GiB; --weight-inputs stores none")
