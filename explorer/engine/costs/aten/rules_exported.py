"""Cost of an operator of an exported program, from the shapes in its file: without torch.

`rules` counts the calls of a module that runs; here nothing runs, and a program is written in the operators
that its author called (`aten.conv2d`, `aten.linear`), not in those that torch runs in the end. The formulas
are those of `formulas`, and a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost
from explorer.facts import Shape

__all__ = ["cost"]

_Rule = Callable[["_Call"], Cost]


class _Call:
    """One operator: shapes of its tensors by argument, its other arguments, and what comes out."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, str | None, Shape | None]],
        outputs: Sequence[tuple[str, str | None, Shape | None]],
        settings: Mapping[str, Any],
    ) -> None:
        self.shapes: dict[str, Shape] = {}
        self.order: list[Shape] = []
        for name, _, shape in inputs:
            if shape is not None:
                self.shapes.setdefault(name, shape)
                self.order.append(shape)
        self.settings = settings
        self.out: Shape | None = outputs[0][2] if outputs else None

    def result(self) -> Shape:
        """The shape of the first result.

        Raises:
            KeyError: The file does not say.
        """
        if self.out is None:
            raise KeyError("out")
        return self.out


def _conv(call: _Call) -> Cost:
    return formulas.conv(call.result(), call.shapes["weight"], bias="bias" in call.shapes)


def _convolution(call: _Call) -> Cost:
    return _conv_transpose(call) if call.settings.get("transposed") else _conv(call)


def _conv_transpose(call: _Call) -> Cost:
    source = call.shapes["input"]
    return formulas.conv_transpose(source, call.shapes["weight"], call.result(), bias="bias" in call.shapes)


def _linear(call: _Call) -> Cost:
    return formulas.linear(call.shapes["input"], call.shapes["weight"][0], bias="bias" in call.shapes)


def _matmul(call: _Call) -> Cost:
    return formulas.matmul(call.order[0], call.order[1])


def _added(call: _Call) -> Cost:
    """Addmm and baddbmm: a product, and the first argument added; factors multiply unless they are 1."""
    made = formulas.matmul(call.order[1], call.order[2])
    for name in ("alpha", "beta"):
        if call.settings.get(name, 1) != 1:
            made = formulas.adding(made, name, call.result())
    return formulas.adding(made, "bias", call.result())


def _attention(call: _Call) -> Cost:
    query, key, value = (call.shapes[name] for name in ("query", "key", "value"))
    heads = query[-3] if len(query) > 2 else 1
    return formulas.attention(
        call.result()[:-3],
        heads,
        query[-2],
        key[-2],
        query[-1],
        value[-1],
        causal=bool(call.settings.get("is_causal")),
        mask="attn_mask" in call.shapes,
    )


def _recurrent(kind: str) -> _Rule:
    def rule(call: _Call) -> Cost:
        source = call.shapes["input"]
        first, second = source[:2] if len(source) == 3 else (source[0], 1)
        if call.settings.get("batch_first"):
            first, second = second, first
        width = call.order[1][-1]
        hidden = call.order[2 if kind != "LSTM" else 3][0]
        gates = formulas.RECURRENT[kind][0]
        if not isinstance(hidden, int) or len(source) != 3:
            return formulas.unknown("its sizes are not written in the file")
        projection = width if kind == "LSTM" and isinstance(width, int) and width != hidden // gates else 0
        return formulas.recurrent(
            kind,
            first,
            second,
            source[-1],
            hidden // gates,
            directions=2 if call.settings.get("bidirectional") else 1,
            layers=int(call.settings.get("num_layers", 1)),
            projection=projection,
            bias=bool(call.settings.get("has_biases", True)),
        )

    return rule


def _norm(kind: str) -> _Rule:
    return lambda call: formulas.elementwise(
        kind.replace("_", " "), call.result(), formulas.ELEMENTWISE[kind][0]
    )


def _batch_norm(call: _Call) -> Cost:
    return _norm("layer_norm" if call.settings.get("training") else "batch_norm")(call)


def _pool(rank: int) -> _Rule:
    def rule(call: _Call) -> Cost:
        kernel = call.settings["kernel_size"]
        dims = tuple(kernel) if len(kernel) == rank else tuple(kernel) * rank
        return formulas.pooling(f"pooling of {rank} dimensions", call.result(), dims)

    return rule


def _adaptive(call: _Call) -> Cost:
    """Windows overlap where sizes do not divide: their widths are summed, one axis at a time."""
    source, target = call.order[0], call.result()
    rank = len(call.settings["output_size"])
    taps = 1
    for size, cells in zip(source[-rank:], target[-rank:], strict=True):
        if not isinstance(size, int) or not isinstance(cells, int):
            return formulas.unknown("a dimension is not known")
        if cells > 1 << 16:
            return formulas.unknown("its windows are too many to add up")
        taps *= sum(-(-((i + 1) * size) // cells) - (i * size) // cells for i in range(cells))
    return formulas.elementwise("adaptive pooling, taps", (*target[:-rank], taps))


def _pointwise(what: str, per_element: int = 1) -> _Rule:
    def rule(call: _Call) -> Cost:
        extra = what in ("add", "sub", "rsub") and call.settings.get("alpha", 1) != 1
        return formulas.elementwise(what, call.result(), per_element + extra)

    return rule


def _reduction(what: str, per_element: int = 1) -> _Rule:
    return lambda call: formulas.elementwise(what, call.order[0], per_element)


def _free(call: _Call) -> Cost:
    return formulas.FREE


_MOVES = """
    _to_copy alias arange as_strided broadcast_to cat chunk clone constant_pad_nd contiguous copy detach
    detach_ diagonal dropout dropout_ embedding empty empty_like expand expand_as feature_dropout fill
    fill_ flatten flip full full_like gather im2col index index_select lift_fresh_copy movedim narrow
    new_empty new_full new_ones new_zeros numel ones ones_like pad permute pixel_shuffle pixel_unshuffle
    repeat repeat_interleave reshape roll scalar_tensor scatter select slice split split_with_sizes
    squeeze stack swapaxes sym_size t to topk transpose tril triu type_as unbind unflatten unfold
    unsafe_split unsqueeze upsample_nearest2d view view_as zeros zeros_like channel_shuffle numpy_T
    hstack vstack item sort argsort
""".split()  # noqa: SIM905
"""What only moves or describes data."""

_POINTWISE = """
    abs acos add asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max
    clamp_min cos cosh div elu eq erf erfc exp exp2 expm1 floor floor_divide fmod ge gelu gt hardsigmoid
    hardswish hardtanh isinf isnan le leaky_relu log log10 log1p log2 logical_and logical_not logical_or
    logical_xor log_sigmoid lt masked_fill maximum minimum mish mul ne neg pow prelu reciprocal relu relu6
    remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus sqrt square sub tan tanh threshold
    true_divide trunc where
""".split()  # noqa: SIM905
"""One operation on each element of the result."""

_SUMS = "all amax amin any argmax argmin cumprod cumsum logcumsumexp mean prod sum".split()  # noqa: SIM905
"""One operation on each element that goes in."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_MOVES, _free),
    **{name: _pointwise(name) for name in _POINTWISE},
    **{name: _reduction(name) for name in _SUMS},
    "addcmul": _pointwise("multiply, add", 2),
    "addcdiv": _pointwise("divide, add", 2),
    "glu": _pointwise("gate, multiply", 2),
    "lerp": _pointwise("subtract, multiply, add", 3),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _convolution,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "addmm": _added,
    "baddbmm": _added,
    "scaled_dot_product_attention": _attention,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "rnn_tanh": _recurrent("RNN"),
    "rnn_relu": _recurrent("RNN"),
    "batch_norm": _batch_norm,
    "layer_norm": _norm("layer_norm"),
    "group_norm": _norm("layer_norm"),
    "rms_norm": _norm("rms_norm"),
    "softmax": _norm("softmax"),
    "_softmax": _norm("softmax"),
    "log_softmax": _norm("log_softmax"),
    "var": _reduction("mean, subtract, square, sum", 4),
    "std": _reduction("mean, subtract, square, sum", 4),
    "max_pool1d": _pool(1),
    "max_pool2d": _pool(2),
    "max_pool3d": _pool(3),
    "avg_pool1d": _pool(1),
    "avg_pool2d": _pool(2),
    "avg_pool3d": _pool(3),
    "adaptive_avg_pool1d": _adaptive,
    "adaptive_avg_pool2d": _adaptive,
    "adaptive_avg_pool3d": _adaptive,
}
"""Cost of an operator of ATen by its name, without the overload."""


def cost(
    kind: str,
    inputs: Sequence[tuple[str, str | None, Shape | None]],
    outputs: Sequence[tuple[str, str | None, Shape | None]],
    settings: Mapping[str, Any],
) -> Cost:
    """What one operator costs.

    Args:
        kind: 'aten.conv2d', 'aten.add.Tensor'.
        inputs: Argument, type and shape of every tensor that goes in.
        outputs: Name, type and shape of every tensor that comes out.
        settings: Its other arguments.

    Returns:
        Its cost; unknown, with the reason, when there is no rule for it or the file lacks a shape.
    """
    library, _, rest = kind.partition(".")
    if not outputs and library in ("_operator", "operator", "math"):
        return formulas.FREE
    name = rest.partition(".")[0]
    rule = _RULES.get(name) or _RULES.get(name.removesuffix("_")) if library == "aten" else None
    if rule is None:
        if not outputs:
            return formulas.FREE
        return formulas.unknown(f"there is no rule for {kind} without torch")
    try:
        return rule(_Call(inputs, outputs, settings))
    except (KeyError, IndexError, TypeError, ValueError):
        return formulas.unknown("its sizes are not written in the file")
