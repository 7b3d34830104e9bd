"""The shape of what an operator makes, from the shapes of what it gets: one table from operator to rule.

onnx's own inference loses what exporters compute (`N+3` becomes an unknown), knows no operator of
onnxruntime's domain, and takes a whole model at a time. These rules keep expressions, and each is asked
once per distinct (operator, attributes, types). A rule that meets something it does not understand
answers None; the node then goes to onnx (`onnx_pass`).

Formulas are those of the ONNX operator specification (opsets 1 to 26).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.engine.graph.model import DTYPES, Tensor
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

__all__ = [
    "UNKNOWN",
    "ShapeCall",
    "Misfit",
    "Rule",
    "Type",
    "axis_of",
    "broadcast",
    "int_attributes",
    "skip_norm",
]

Type = tuple[str | None, Shape | None]
"""Element type and shape, each None if unknown."""

UNKNOWN: Type = (None, None)


class ShapeCall(Struct):
    """One operator, as far as its shapes are concerned.

    Attributes:
        op: Its type.
        attributes: By name.
        types: Of its inputs; None for one that is left out or of which nothing is known.
        contents: Of its inputs, flat, as ints, floats and expressions (None: an unknown element); None
            for an input whose contents are not known.
        count: How many outputs it has.
        opset: Version of its operator set.
        fresh: Makes a name for a size that depends on data, from the most that it can be.
    """

    op: str
    attributes: Mapping[str, Any]
    types: Sequence[Type | None]
    contents: Mapping[int, Sequence[Any] | None]
    count: int
    opset: int
    fresh: Callable[[Dim], Dim]

    def shape(self, index: int) -> Shape | None:
        """Shape of an input; None if unknown."""
        kind = self.types[index] if index < len(self.types) else None
        return None if kind is None else kind[1]

    def dtype(self, index: int) -> str | None:
        """Element type of an input; None if unknown."""
        kind = self.types[index] if index < len(self.types) else None
        return None if kind is None else kind[0]

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.types) and self.types[index] is not None

    def whole(self, name: str, default: int) -> int:
        """A whole-number attribute.

        Raises:
            TypeError: It is something else.
        """
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise TypeError(name)
        return value

    def ints(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of whole numbers; None if it is not given."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, int):
            return (value,)
        return tuple(int(v) for v in value)


class Misfit(Exception):
    """The operator cannot run on the shapes that it is given: in words, why.

    onnx's own inference does not see it, or goes on with a shape that no run can have.
    """


Answer = Sequence[Type] | None
Handler = Callable[[ShapeCall], Answer]


class Rule(Struct, frozen=True):
    """How an operator's shapes follow.

    Attributes:
        handler: Types of the outputs for a call, None if it cannot say; raises Misfit if there are none.
        contents: Inputs whose contents matter, not only their types.
        fresh: Whether it makes names; such an answer holds for one node only.
    """

    handler: Handler
    contents: tuple[int, ...] = ()
    fresh: bool = False


def int_attributes(call: ShapeCall, name: str, index: int) -> list[Any] | None:
    """What older opsets give as an attribute and newer ones as an input; None if it is not known.

    Raises:
        LookupError: It is not given at all.
    """
    given = call.ints(name)
    if given is not None:
        return list(given)
    if call.has(index):
        found = call.contents.get(index)
        return None if found is None else list(found)
    raise LookupError(name)


def axis_of(axis: Any, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        IndexError: There is no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise IndexError(axis)
    return axis % rank


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that all broadcast to; None if the rank of one is unknown.

    Raises:
        ValueError: They do not fit together.
    """
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        # an unknown dimension may be 1 here and not there
        return shapes[0]
    if any(s is None for s in shapes):
        return None
    rank = max(len(s) for s in shapes if s is not None)
    result: list[Dim] = []
    for at in range(-rank, 0):
        size: Dim = 1
        for shape in shapes:
            assert shape is not None
            if -at > len(shape) or shape[at] == 1 or shape[at] == size:
                continue
            other = shape[at]
            if size == 1:
                size = other
            elif isinstance(size, int) and isinstance(other, int):
                raise ValueError(f"{size} against {other}")
            elif isinstance(size, int) or isinstance(other, int):
                # a number above 1 wins over a name, which is then that number or 1
                size = size if isinstance(size, int) else other
            else:
                size = dims.greatest(size, other)
        result.append(size)
    return tuple(result)


# -- elementwise ----------------------------------------------------------------------------------


def _same(call: ShapeCall) -> Answer:
    return (call.types[0] or UNKNOWN,)


def _first(call: ShapeCall) -> Answer:
    """The first output like the first input; others are not known here."""
    return (call.types[0] or UNKNOWN,) if call.count == 1 else None


def _typed(dtype: str) -> Handler:
    return lambda call: ((dtype, call.shape(0)),)


def _dropout(call: ShapeCall) -> Answer:
    kind = call.types[0] or UNKNOWN
    # before opset 10 the mask was of the input's type
    return (kind, ("bool" if call.opset >= 10 else kind[0], kind[1]))


def _cast(call: ShapeCall) -> Answer:
    code = call.attributes["to"]
    return ((DTYPES[code].name, call.shape(0)),) if code in DTYPES else None


def _like(index: int, attribute: str) -> Handler:
    """Shape of the first input; the type is given by another, or by an attribute."""

    def rule(call: ShapeCall) -> Answer:
        code = call.attributes.get(attribute, 0)
        if code:
            return ((DTYPES[code].name, call.shape(0)),)
        return ((call.dtype(index), call.shape(0)),)

    return rule


def _quantize(call: ShapeCall) -> Answer:
    code = call.attributes.get("output_dtype", 0)
    dtype = DTYPES[code].name if code else call.dtype(2) if call.has(2) else "uint8"
    return ((dtype, call.shape(0)),)


def _dequantize(call: ShapeCall) -> Answer:
    code = call.attributes.get("output_dtype", 0)
    # before opset 19 the answer was always float
    return ((DTYPES[code].name if code else call.dtype(1) if call.opset >= 19 else "float32", call.shape(0)),)


def _dynamic_quantize(call: ShapeCall) -> Answer:
    return (("uint8", call.shape(0)), ("float32", ()), ("uint8", ()))


def _together(dtype: str | int = 0) -> Handler:
    """All inputs broadcast; `dtype` is a type or the input that gives it."""

    def rule(call: ShapeCall) -> Answer:
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        if call.opset < 7 or "axis" in call.attributes or "broadcast" in call.attributes:
            # the second operand was fitted to the first
            return ((kind, call.shape(0)),)
        return ((kind, broadcast(*(call.shape(i) for i in range(len(call.types))))),)

    return rule


def _variadic(call: ShapeCall) -> Answer:
    if call.opset < 8:
        return ((call.dtype(0), call.shape(0)),)
    return ((call.dtype(0), broadcast(*(call.shape(i) for i in range(len(call.types))))),)


def _where(call: ShapeCall) -> Answer:
    return ((call.dtype(1), broadcast(call.shape(0), call.shape(1), call.shape(2))),)


def _layer_norm(call: ShapeCall) -> Answer:
    kind = call.types[0] or UNKNOWN
    shape = kind[1]
    statistics: Shape | None = None
    if shape is not None:
        axis = axis_of(call.whole("axis", -1), len(shape))
        statistics = shape[:axis] + (1,) * (len(shape) - axis)
    code = call.attributes.get("stash_type", 1)
    dtype = DTYPES[code].name if code in DTYPES else None
    return (kind, *((dtype, statistics),) * (call.count - 1))


def skip_norm(call: ShapeCall) -> Answer:
    """Like its input; statistics are not given for inference, the sum is like the input again."""
    kind = call.types[0] or UNKNOWN
    return (kind, UNKNOWN, UNKNOWN, kind)[: call.count]


def _batch_norm(call: ShapeCall) -> Answer:
    kind = call.types[0] or UNKNOWN
    if call.count == 1:
        return (kind,)
    statistics = call.types[3] if len(call.types) > 3 else None
    return (kind, *((statistics or UNKNOWN),) * (call.count - 1))


# -- reductions -----------------------------------------------------------------------------------


def _reduce(call: ShapeCall) -> Answer:
    shape, dtype = call.shape(0), call.dtype(0)
    keep = call.whole("keepdims", 1)
    try:
        axes = int_attributes(call, "axes", 1)
    except LookupError:
        axes = []
    if shape is None:
        return ((dtype, None),)
    if axes is None:
        # how many axes go is known by the length of their list
        return ((dtype, (None,) * len(shape) if keep else None),)
    if not axes:
        if call.whole("noop_with_empty_axes", 0):
            return ((dtype, shape),)
        axes = list(range(len(shape)))
    gone = {axis_of(a, len(shape)) for a in axes}
    if keep:
        return ((dtype, tuple(1 if i in gone else d for i, d in enumerate(shape))),)
    return ((dtype, tuple(d for i, d in enumerate(shape) if i not in gone)),)


def _arg(call: ShapeCall) -> Answer:
    shape = call.shape(0)
    if shape is None:
        return (("int64", None),)
    axis = axis_of(call.whole("axis", 0), len(shape))
    middle: Shape = (1,) if call.whole("keepdims", 1) else ()
    return (("int64", shape[:axis] + middle + shape[axis + 1 :]),)


# -- making tensors -------------------------------------------------------------------------------


def _constant(call: ShapeCall) -> Answer:
    for name, value in call.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return ((value.dtype, value.shape),)
        kind = {"value_int": "int64", "value_float": "float32", "value_string": "string"}.get(
            name.removesuffix("s") if name != "value_s" else name
        )
        if kind is not None:
            return ((kind, (len(value),) if name.endswith("s") else ()),)
    return None


def _shape_of(call: ShapeCall) -> Answer:
    shape = call.shape(0)
    if shape is None:
        return (("int64", (None,)),)
    rank = len(shape)
    return (
        ("int64", (len(range(rank)[call.attributes.get("start", 0) : call.attributes.get("end", rank)]),)),
    )


def _constant_of_shape(call: ShapeCall) -> Answer:
    value = call.attributes.get("value")
    dtype = value.dtype if isinstance(value, Tensor) else "float32"
    return ((dtype, _as_shape(call, 0)),)


def _as_shape(call: ShapeCall, index: int) -> Shape | None:
    """The shape that an input's contents are; sizes that are not known are None."""
    content = call.contents.get(index)
    if content is not None:
        return tuple(_size(v) for v in content)
    kind = call.shape(index)
    if kind is not None and len(kind) == 1 and isinstance(kind[0], int) and kind[0] <= 64:
        return (None,) * kind[0]
    return None


def _size(value: Any) -> Dim:
    if value is None:
        return None
    if isinstance(value, dims.Expression):
        return dims.dim(value)
    size = int(value)
    if size < 0:
        raise ValueError("a negative size")
    return size


def _range(call: ShapeCall) -> Answer:
    limits = [call.contents.get(i) for i in range(3)]
    size: Dim = None
    if all(v is not None and len(v) == 1 and v[0] is not None for v in limits):
        start, limit, delta = (v[0] for v in limits if v is not None)
        if isinstance(delta, dims.Expression):
            delta = delta.constant
        if delta is not None and delta > 0 and isinstance(start, (int, dims.Expression)):
            distance = limit - start
            size = dims.ceil_div(dims.dim(distance), delta)
            if isinstance(size, int):
                size = max(size, 0)
            elif (dims.known_least(size) or -1) < 0:
                size = dims.greatest(size, 0)
        elif not any(isinstance(v, dims.Expression) for v in (start, limit, delta)) and delta:
            steps = (limit - start) / delta
            size = max(int(-(-steps // 1)), 0)
    return ((call.dtype(0), (size,)),)


def _eye_like(call: ShapeCall) -> Answer:
    code = call.attributes.get("dtype", 0)
    return ((DTYPES[code].name if code else call.dtype(0), call.shape(0)),)


def _drawn(call: ShapeCall) -> Answer:
    """Random tensors of a shape given as attribute."""
    shape = call.ints("shape")
    return None if shape is None else ((DTYPES[call.whole("dtype", 1)].name, shape),)


def _window(call: ShapeCall) -> Answer:
    """A window as long as its argument says."""
    content = call.contents.get(0)
    size = _size(content[0]) if content and content[0] is not None else None
    return ((DTYPES[call.whole("output_datatype", 1)].name, (size,)),)


# -- sizes that depend on data --------------------------------------------------------------------


def _non_zero(call: ShapeCall) -> Answer:
    shape = call.shape(0)
    if shape is None:
        return (("int64", (None, call.fresh(None))),)
    return (("int64", (len(shape), call.fresh(dims.product(shape)))),)


def _compress(call: ShapeCall) -> Answer:
    shape, dtype = call.shape(0), call.dtype(0)
    if shape is None:
        return ((dtype, None if "axis" in call.attributes else (call.fresh(None),)),)
    if "axis" not in call.attributes:
        return ((dtype, (call.fresh(dims.product(shape)),)),)
    axis = axis_of(call.whole("axis", 0), len(shape))
    kept = call.contents.get(1)
    size: Dim = None
    if kept is not None and all(v is not None for v in kept):
        size = sum(bool(v) for v in kept)
    else:
        size = call.fresh(shape[axis])
    return ((dtype, (*shape[:axis], size, *shape[axis + 1 :])),)


def _unique(call: ShapeCall) -> Answer:
    shape, dtype = call.shape(0), call.dtype(0)
    if shape is None:
        many = call.fresh(None)
        first: Shape | None = None if "axis" in call.attributes else (many,)
        whole: Dim = None
    elif "axis" in call.attributes:
        axis = axis_of(call.whole("axis", 0), len(shape))
        whole = shape[axis]
        many = call.fresh(whole)
        first = (*shape[:axis], many, *shape[axis + 1 :])
    else:
        whole = dims.product(shape)
        many = call.fresh(whole)
        first = (many,)
    return ((dtype, first), ("int64", (many,)), ("int64", (whole,)), ("int64", (many,)))


def _non_max_suppression(call: ShapeCall) -> Answer:
    boxes, scores = call.shape(0), call.shape(1)
    most: Dim = None
    if scores is not None and boxes is not None and len(scores) == 3 and len(boxes) == 3:
        per_class: Any = 0
        if call.has(2):
            content = call.contents.get(2)
            per_class = content[0] if content else None
        spatial = scores[2] if scores[2] is not None else boxes[1]
        each: Dim = spatial
        if per_class is not None:
            limit = _size(per_class)
            each = dims.least(limit, spatial) if spatial is not None else limit
        most = dims.product((scores[0], scores[1], each))
    # with a limit of 0, which is also the default, nothing comes out
    return (("int64", (0 if most == 0 else call.fresh(most), 3)),)


def _top_k(call: ShapeCall) -> Answer:
    shape, dtype = call.shape(0), call.dtype(0)
    if shape is None:
        return ((dtype, None), ("int64", None))
    axis = axis_of(call.whole("axis", -1), len(shape))
    k: Dim
    if "k" in call.attributes:
        k = call.whole("k", 1)
    else:
        content = call.contents.get(1)
        k = _size(content[0]) if content and content[0] is not None else call.fresh(shape[axis])
    out = (*shape[:axis], k, *shape[axis + 1 :])
    return ((dtype, out), ("int64", out))


def _names(text: str) -> list[str]:
    return text.split()


_SAME = _names("""
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh CumProd CumSum Elu Erf Exp Floor
    Gelu GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization LRN LeakyRelu Log
    LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Not PRelu RMSNormalization Reciprocal Relu
    ReverseSequence RotaryEmbedding Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh
    Softmax Softplus Softsign Sqrt Swish Tan Tanh TensorScatter ThresholdedRelu Trilu
    SimplifiedLayerNormalization
""")
_ARITHMETIC = _names("Add Sub Mul Div Pow Mod BitShift BitwiseAnd BitwiseOr BitwiseXor")
_COMPARING = _names("Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor")
_REDUCING = _names("""
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare
""")

RULES: dict[tuple[str, str], Rule] = {
    **{("", op): Rule(_first) for op in _SAME},
    **{("", op): Rule(_together()) for op in _ARITHMETIC},
    **{("", op): Rule(_together("bool")) for op in _COMPARING},
    **{("", op): Rule(_variadic) for op in ("Sum", "Max", "Min", "Mean")},
    **{("", op): Rule(_typed("bool")) for op in ("IsInf", "IsNaN")},
    **{("", op): Rule(_reduce, (1,)) for op in _REDUCING},
    **{("", op): Rule(_arg) for op in ("ArgMax", "ArgMin")},
    ("", "Where"): Rule(_where),
    ("", "Dropout"): Rule(_dropout),
    ("", "Cast"): Rule(_cast),
    ("", "CastLike"): Rule(_like(1, "")),
    ("", "RandomNormalLike"): Rule(_eye_like),
    ("", "RandomUniformLike"): Rule(_eye_like),
    ("", "Bernoulli"): Rule(_eye_like),
    ("", "EyeLike"): Rule(_eye_like),
    ("", "RandomNormal"): Rule(_drawn),
    ("", "RandomUniform"): Rule(_drawn),
    ("", "QuantizeLinear"): Rule(_quantize),
    ("", "DequantizeLinear"): Rule(_dequantize),
    ("", "DynamicQuantizeLinear"): Rule(_dynamic_quantize),
    ("", "BatchNormalization"): Rule(_batch_norm),
    ("", "LayerNormalization"): Rule(_layer_norm),
    ("", "Constant"): Rule(_constant),
    ("", "Shape"): Rule(_shape_of),
    ("", "Size"): Rule(lambda call: (("int64", ()),)),
    ("", "ConstantOfShape"): Rule(_constant_of_shape, (0,)),
    ("", "Range"): Rule(_range, (0, 1, 2)),
    **{("", op): Rule(_window, (0,)) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")},
    ("", "NonZero"): Rule(_non_zero, (), True),
    ("", "Compress"): Rule(_compress, (1,), True),
    ("", "Unique"): Rule(_unique, (), True),
    ("", "NonMaxSuppression"): Rule(_non_max_suppression, (2,), True),
    ("", "TopK"): Rule(_top_k, (1,), True),
}
"""Rule by (domain, operator): what is here; `movement`, `products` and `microsoft` add theirs."""
