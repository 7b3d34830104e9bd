"""Creation: tensors that are constants, counts, drawn at random, or tell another one's shape."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import DTYPES, Tensor
from explorer.engine.operators.call import Answer, Call
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import sizes_of
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim


def _constant(call: Call) -> Answer:
    for name, value in call.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return ((value.dtype, value.shape),)
        kind = {"value_int": "int64", "value_float": "float32", "value_string": "string"}.get(
            name.removesuffix("s") if name != "value_s" else name
        )
        if kind is not None:
            return ((kind, (len(value),) if name.endswith("s") else ()),)
    return None


def _shape_of(call: Call) -> Answer:
    shape = call.known(0)
    if shape is None:
        return (("int64", (None,)),)
    rank = len(shape)
    return (
        ("int64", (len(range(rank)[call.attributes.get("start", 0) : call.attributes.get("end", rank)]),)),
    )


def _constant_of_shape(call: Call) -> Answer:
    value = call.attributes.get("value")
    dtype = value.dtype if isinstance(value, Tensor) else "float32"
    return ((dtype, sizes_of(call, 0)),)


def _range(call: Call) -> Answer:
    limits = [call.elements(i) for i in range(3)]
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


def _eye_like(call: Call) -> Answer:
    code = call.attributes.get("dtype", 0)
    return ((DTYPES[code].name if code else call.dtype(0), call.known(0)),)


def _drawn(call: Call) -> Answer:
    """Random tensors of a shape given as attribute."""
    shape = call.ints("shape")
    return None if shape is None else ((DTYPES[call.whole("dtype", 1)].name, shape),)


OPERATORS = (
    Operator("Constant", free, shape=_constant, position="move", unread=True),
    Operator("Shape", free, shape=_shape_of, position="move", unread=True),
    Operator("Size", free, shape=lambda _: (("int64", ()),), position="move", unread=True),
    Operator(
        "ConstantOfShape",
        free,
        shape=_constant_of_shape,
        reads=(0,),
        gradient=blocked,
        position="move",
        settings=(0,),
    ),
    Operator("Range", free, ("", MS), _range, reads=(0, 1, 2), position="move", settings=(0, 1, 2)),
    Operator("Bernoulli EyeLike RandomNormalLike RandomUniformLike", free, shape=_eye_like, gradient=blocked),
    Operator("RandomNormal RandomUniform", free, shape=_drawn),
    Operator("Multinomial", free, gradient=blocked),
    Operator("GivenTensorFill", free),
)
