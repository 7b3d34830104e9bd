"""Random changes of a graph: harmless rewritings, and faults; which is which only runs can say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Change = Callable[[onnx.ModelProto, random.Random], bool]


def _stored(model: onnx.ModelProto, least: int = 1) -> list[Any]:
    return [t for t in model.graph.initializer if t.data_type == 1 and np.prod(t.dims, dtype=int) >= least]


def _element(model: onnx.ModelProto, rng: random.Random) -> bool:
    """One number of a weight."""
    tensors = _stored(model)
    if not tensors:
        return False
    tensor = rng.choice(tensors)
    values = numpy_helper.to_array(tensor).copy().reshape(-1)
    at = rng.randrange(values.size)
    values[at] = rng.choice([0.0, values[at] * 1.5, -values[at], values[at] + 1])
    tensor.CopyFrom(numpy_helper.from_array(values.reshape(tuple(tensor.dims)), tensor.name))
    return True


def _scaled(model: onnx.ModelProto, rng: random.Random) -> bool:
    """A whole weight, by a little or by much."""
    tensors = _stored(model)
    if not tensors:
        return False
    tensor = rng.choice(tensors)
    values = numpy_helper.to_array(tensor) * np.float32(rng.choice([1 + 1e-3, 1.1, 0.5, 0]))
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return True


_OTHER = {
    "Relu": "Tanh",
    "Tanh": "Sigmoid",
    "Sigmoid": "Softplus",
    "Abs": "Relu",
    "Neg": "Abs",
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "Max": "Min",
    "Softplus": "Relu",
    "Softmax": "LogSoftmax",
}


def _operator(model: onnx.ModelProto, rng: random.Random) -> bool:
    nodes = [n for n in model.graph.node if n.op_type in _OTHER]
    if not nodes:
        return False
    chosen = rng.choice(nodes)
    chosen.op_type = _OTHER[chosen.op_type]
    return True


def _attribute(model: onnx.ModelProto, rng: random.Random) -> bool:
    found = [a for n in model.graph.node for a in n.attribute if a.type in (1, 2) and a.name != "hidden_size"]
    if not found:
        return False
    one = rng.choice(found)
    if one.type == 1:
        one.f *= rng.choice([2, -1, 1.01])
    else:
        one.i = rng.choice([one.i + 1, one.i - 1, -one.i])
    return True


def _swapped(model: onnx.ModelProto, rng: random.Random) -> bool:
    """Two operands."""
    nodes = [
        n for n in model.graph.node if len(n.input) == 2 and n.op_type in ("Sub", "Add", "Mul", "MatMul")
    ]
    if not nodes:
        return False
    chosen = rng.choice(nodes)
    chosen.input[0], chosen.input[1] = chosen.input[1], chosen.input[0]
    return True


def _branch(model: onnx.ModelProto, rng: random.Random) -> bool:
    """One number in a branch."""
    nodes = [n for n in model.graph.node if n.op_type == "If"]
    if not nodes:
        return False
    body = rng.choice(rng.choice(nodes).attribute).g
    tensor = body.node[0].attribute[0].t
    values = numpy_helper.to_array(tensor).copy()
    values.reshape(-1)[rng.randrange(values.size)] += 1
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return True


def _limit(model: onnx.ModelProto, rng: random.Random) -> bool:
    """A limit that values seldom reach, in front of the output."""
    out = model.graph.output[0].name
    for each in model.graph.node:
        for at, name in enumerate(each.output):
            if name == out:
                each.output[at] = "unlimited"
        for at, name in enumerate(each.input):
            if name == out:
                each.input[at] = "unlimited"
    limit = numpy_helper.from_array(np.float32(rng.choice([0.5, 3, 40, 1e4])), "the_limit")
    model.graph.initializer.append(limit)
    model.graph.node.append(helper.make_node("Min", ["unlimited", "the_limit"], [out]))
    return True


def _around(model: onnx.ModelProto, rng: random.Random, nodes: Callable[[str, str], list[Any]]) -> bool:
    """Nodes behind a value that compute the same of it, for all who read it."""
    inner = [name for n in model.graph.node for name in n.output[:1] if name and n.op_type != "If"]
    inner = [name for name in inner if name != model.graph.output[0].name]
    inner = [name for name in inner if any(name in n.input for n in model.graph.node)]
    if not inner:
        return False
    value = rng.choice(inner)
    at = next(i for i, n in enumerate(model.graph.node) if value in n.output)
    for each in model.graph.node:
        for place, name in enumerate(each.input):
            if name == value:
                each.input[place] = f"{value}_again"
    for more, each in enumerate(nodes(value, f"{value}_again")):
        model.graph.node.insert(at + 1 + more, each)
    return True


def _twice(op: str) -> Change:
    def change(model: onnx.ModelProto, rng: random.Random) -> bool:
        node = helper.make_node
        return _around(model, rng, lambda x, y: [node(op, [x], [f"{y}_0"]), node(op, [f"{y}_0"], [y])])

    return change


def _there_and_back(kind: int) -> Change:
    def change(model: onnx.ModelProto, rng: random.Random) -> bool:
        def casts(x: str, y: str) -> list[Any]:
            there = helper.make_node("Cast", [x], [f"{y}_0"], to=kind)
            return [there, helper.make_node("Cast", [f"{y}_0"], [y], to=1)]

        return _around(model, rng, casts)

    return change


def _spelled_out(model: onnx.ModelProto, rng: random.Random) -> bool:
    """Attributes that say what is meant without them."""
    done = False
    for each in model.graph.node:
        said = {a.name for a in each.attribute}
        more = {
            "Conv": {"auto_pad": "NOTSET", "group": 1},
            "Gemm": {"alpha": 1.0, "transA": 0},
            "GRU": {"layout": 0},
        }
        more |= {
            "LSTM": {"direction": "forward"},
            "RNN": {"activations": ["Tanh"]},
            "ReduceMean": {"keepdims": 1},
        }
        more |= {"Scan": {"scan_input_directions": [0], "scan_output_axes": [0]}, "Softmax": {"axis": -1}}
        for name, value in more.get(each.op_type, {}).items():
            if name not in said:
                each.attribute.append(helper.make_attribute(name, value))
                done = True
    return done


def _renamed(model: onnx.ModelProto, rng: random.Random) -> bool:
    """All weights under other names."""
    names = {t.name: f"w{rng.randrange(1 << 30)}" for t in model.graph.initializer}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    pending = list(model.graph.node)
    while pending:
        each = pending.pop()
        for at, name in enumerate(each.input):
            each.input[at] = names.get(name, name)
        pending += [n for a in each.attribute if a.type == onnx.AttributeProto.GRAPH for n in a.g.node]
    return bool(names)


HARMLESS: tuple[Change, ...] = (
    *(_twice("Neg"), _twice("Identity"), _there_and_back(11), _spelled_out, _renamed),
)
CHANGES: tuple[Change, ...] = (
    *(_element, _element, _scaled, _operator, _attribute, _swapped, _branch, _limit, _there_and_back(10)),
    *HARMLESS,
)
