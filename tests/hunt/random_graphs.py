"""Random graphs: each step adds an operator to a value that is there, with numbers of its own seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

node = helper.make_node


class RandomGraph:
    """A graph under construction.

    Args:
        seed: What it is follows from it.
        steps: How many operators are added; the first ones are the same for every number.

    Attributes:
        shapes: Of the float values that later steps may read, by name.
    """

    def __init__(self, seed: int, steps: int) -> None:
        self.seed = seed
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.functions: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        first = random.Random(f"{seed}/input")
        self.feeds = {"x": first.choice([(3, 8), (2, 5, 6), (1, 4, 7, 7), (2, 3, 8, 6)]), "c": ()}
        self.shapes["x"] = self.feeds["x"]
        self.last = "x"
        for at in range(steps):
            rng = random.Random(f"{seed}/{at}")
            fitting = [step for step in STEPS if step is not None]
            for _ in range(8):
                made = rng.choice(fitting)(self, rng, f"v{at}")
                if made:
                    self.last = made
                    break

    def weight(self, name: str, *shape: int, scale: float = 0.0) -> str:
        """A stored tensor; numbers keep the size of what they are multiplied with."""
        rng = np.random.default_rng([self.seed, len(self.stored)])
        depth = int(np.prod(shape[1:])) if len(shape) > 2 else (shape[0] if shape else 1)
        values = rng.standard_normal(shape) * (scale or 1 / np.sqrt(max(depth, 1)))
        self.stored.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def ints(self, name: str, *values: int) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name

    def pick(self, rng: random.Random, rank: int = 0) -> str:
        """A value, most often the last; of this rank, if one is given."""
        names = [name for name, shape in self.shapes.items() if not rank or len(shape) == rank]
        if not names:
            return ""
        return self.last if self.last in names and rng.random() < 0.7 else rng.choice(names)

    def add(self, op: str, inputs: list[str], name: str, shape: tuple[int, ...], **attributes: Any) -> str:
        label = attributes.pop("label", name if len(name) % 2 else "")
        self.nodes.append(node(op, inputs, [name], name=label, **attributes))
        self.shapes[name] = shape
        return name

    def model(self) -> onnx.ModelProto:
        """The graph with the last value as its output."""
        kinds = {"c": 9}
        info = [helper.make_tensor_value_info(n, kinds.get(n, 1), s) for n, s in self.feeds.items()]
        out = self.last
        nodes = list(self.nodes)
        if out == "x":
            nodes, out = [node("Identity", ["x"], ["out"])], "out"
        ends = [helper.make_tensor_value_info(out, 1, self.shapes.get(out, self.feeds["x"]))]
        graph = helper.make_graph(nodes, "g", info, ends, self.stored)
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("own", 1)] if self.functions else [])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=self.functions)


Step = Callable[[RandomGraph, random.Random, str], str]


def _linear(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    shape, n = g.shapes[x], rng.choice([1, 3, 5, 8])
    if not shape:
        return ""
    return g.add("MatMul", [x, g.weight(f"{name}_w", shape[-1], n)], name, (*shape[:-1], n))


def _gemm(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng, 2)
    if not x:
        return ""
    (m, k), n, turned = g.shapes[x], rng.choice([2, 4, 7]), rng.randrange(2)
    w = g.weight(f"{name}_w", n, k) if turned else g.weight(f"{name}_w", k, n)
    more = [g.weight(f"{name}_b", n)] if rng.random() < 0.6 else []
    scale = {"alpha": rng.choice([1.0, 0.5]), "beta": rng.choice([1.0, 2.0])}
    return g.add("Gemm", [x, w, *more], name, (m, n), transB=turned, **scale)


def _conv(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng, 4)
    if not x:
        return ""
    b, c, h, w = g.shapes[x]
    k, pad, stride, step = rng.choice([1, 3]), rng.randrange(2), rng.choice([1, 2]), rng.choice([1, 1, 2])
    group = rng.choice([1, 1, c]) if c > 1 else 1
    made = rng.choice([2, 4, 6]) if group == 1 else c
    size = tuple((d + 2 * pad - (k - 1) * step - 1) // stride + 1 for d in (h, w))
    if min(size) < 1:
        return ""
    inputs = [x, g.weight(f"{name}_w", made, c // group, k, k)]
    inputs += [g.weight(f"{name}_b", made)] if rng.random() < 0.5 else []
    how = {"pads": [pad] * 4, "strides": [stride] * 2, "dilations": [step] * 2, "group": group}
    return g.add("Conv", inputs, name, (b, made, *size), **how)


def _elementwise(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    return g.add(rng.choice(["Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Softplus"]), [x], name, g.shapes[x])


def _binary(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    alike = [n for n, s in g.shapes.items() if s == g.shapes[x]]
    op = rng.choice(["Add", "Mul", "Sub", "Max"])
    return g.add(op, [x, rng.choice(alike)], name, g.shapes[x])


def _turned(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    perm = list(range(len(g.shapes[x])))
    rng.shuffle(perm)
    return g.add("Transpose", [x], name, tuple(g.shapes[x][a] for a in perm), perm=perm)


def _flat(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    shape = g.shapes[x]
    if len(shape) < 2:
        return ""
    wanted = (shape[0], int(np.prod(shape[1:])))
    return g.add("Reshape", [x, g.ints(f"{name}_s", *wanted)], name, wanted)


def _softmax(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    rank = len(g.shapes[x])
    return g.add("Softmax", [x], name, g.shapes[x], axis=rng.randrange(-rank, rank))


def _attention(g: RandomGraph, rng: random.Random, name: str) -> str:
    """Two values of the graph multiplied."""
    x = g.pick(rng, 3)
    if not x:
        return ""
    b, m, k = g.shapes[x]
    turned = g.add("Transpose", [x], f"{name}_t", (b, k, m), perm=[0, 2, 1])
    scores = g.add("MatMul", [x, turned], f"{name}_s", (b, m, m))
    soft = g.add("Softmax", [scores], f"{name}_p", (b, m, m), axis=-1)
    return g.add("MatMul", [soft, x], name, (b, m, k))


def _branches(g: RandomGraph, rng: random.Random, name: str) -> str:
    """An If whose branches each have a weight `w` of their own."""
    x = g.pick(rng)
    shape = g.shapes[x]
    if not shape:
        return ""
    n = rng.choice([2, 5])
    bodies = []
    for at in range(2):
        values = np.random.default_rng([g.seed, len(g.nodes), at]).standard_normal((shape[-1], n))
        w = numpy_helper.from_array((values / np.sqrt(shape[-1])).astype(np.float32), "w")
        constant = node("Constant", [], ["w"], value=w)
        out = helper.make_tensor_value_info("o", 1, None)
        inner = [constant, node("MatMul", [x, "w"], ["o"], name="mm")]
        bodies.append(helper.make_graph(inner, "b", [], [out]))
    return g.add(
        "If", ["c"], name, (*shape[:-1], n), then_branch=bodies[0], else_branch=bodies[1], label="if"
    )


def _scan(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng, 3)
    if not x:
        return ""
    t, m, k = g.shapes[x]
    state = g.weight(f"{name}_h", m, k, scale=0.1)
    w = g.weight(f"{name}_w", k, k)
    info = [helper.make_tensor_value_info(n, 1, [m, k]) for n in ("s", "xi", "so", "o")]
    inner = [
        *(node("Add", ["s", "xi"], ["a"]), node("MatMul", ["a", w], ["p"], name="mm")),
        *(node("Tanh", ["p"], ["so"]), node("Identity", ["so"], ["o"])),
    ]
    body = helper.make_graph(inner, "b", info[:2], info[2:])
    g.nodes.append(node("Scan", [state, x], [f"{name}_last", name], name=name, body=body, num_scan_inputs=1))
    g.shapes[name] = (t, m, k)
    return name


def _recurrent(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng, 3)
    if not x:
        return ""
    t, b, k = g.shapes[x]
    op, gates = rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    h = 3
    inputs = [x, g.weight(f"{name}_w", 1, gates * h, k), g.weight(f"{name}_r", 1, gates * h, h)]
    return g.add(op, inputs, name, (t, 1, b, h), hidden_size=h)


def _einsum(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng, 3)
    if not x:
        return ""
    b, m, k = g.shapes[x]
    return g.add("Einsum", [x, g.weight(f"{name}_w", 4, k)], name, (b, 4, m), equation="bmk,nk->bnm")


def _mean(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    shape = g.shapes[x]
    if len(shape) < 2:
        return ""
    axis = rng.randrange(-len(shape), len(shape))
    kept = tuple(1 if at == axis % len(shape) else d for at, d in enumerate(shape))
    return g.add("ReduceMean", [x], name, kept, axes=[axis])


def _slice(g: RandomGraph, rng: random.Random, name: str) -> str:
    x = g.pick(rng)
    shape = g.shapes[x]
    long = [a for a, d in enumerate(shape) if d > 2]
    if not long:
        return ""
    axis = rng.choice(long)
    inputs = [x, g.ints(f"{name}_b", 1), g.ints(f"{name}_e", shape[axis]), g.ints(f"{name}_a", axis)]
    return g.add("Slice", inputs, name, tuple(d - (a == axis) for a, d in enumerate(shape)))


STEPS: tuple[Step, ...] = (
    *(_linear, _linear, _gemm, _conv, _conv, _elementwise, _elementwise, _binary, _turned, _flat, _softmax),
    *(_attention, _branches, _scan, _recurrent, _einsum, _mean, _slice),
)
