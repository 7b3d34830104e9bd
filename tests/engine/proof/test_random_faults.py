"""A fault in an attention, at open sizes, in a loop or a recurrent layer is found and named; and whatever is
changed at random in a tiled file, the proof fails where the numbers change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from explorer import Session, TileSpec, verify_files
from explorer.base.errors import ExplorerError

node = helper.make_node
Spoil = Callable[[onnx.ModelProto], None]
SMALL = (2, 3, 4)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def value(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, 1, shape)


def save(
    path: Path, nodes: list[Any], feeds: dict[str, Any], weights: dict[str, np.ndarray], out: Any
) -> str:
    stored = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    inputs = [value(n, s) for n, s in feeds.items()]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", out)], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def attention(path: Path, batch: Any, length: Any) -> str:
    nodes = [
        node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"], name="qk"),
        node("Softmax", ["s"], ["p"], axis=3),
        node("MatMul", ["p", "v"], ["y"], name="pv"),
    ]
    shape = [batch, 2, length, 4]
    return save(path, nodes, dict.fromkeys("qkv", shape), {}, shape)


def linear(path: Path, rows: Any) -> str:
    return save(
        path,
        [node("MatMul", ["x", "w"], ["y"], name="fc")],
        {"x": [rows, 7]},
        {"w": numbers(7, 9)},
        [rows, 9],
    )


def loop(path: Path) -> str:
    inner = [
        node("Identity", ["go"], ["on"]),
        node("MatMul", ["h", "w"], ["p"], name="step"),
        node("Tanh", ["p"], ["after"]),
    ]
    flag = helper.make_tensor_value_info
    ends = [flag("at", 7, []), flag("go", 9, []), value("h", [3, 7])]
    body = helper.make_graph(inner, "b", ends, [flag("on", 9, []), value("after", [3, 7])])
    weights = {"w": numbers(7, 7), "n": np.asarray(3), "yes": np.asarray(True)}
    return save(
        path, [node("Loop", ["n", "yes", "x"], ["y"], name="loop", body=body)], {"x": [3, 7]}, weights, [3, 7]
    )


def recurrent(path: Path, op: str, gates: int) -> str:
    weights = {"w": numbers(2, gates * 5, 3), "r": numbers(2, gates * 5, 5), "b": numbers(2, 2 * gates * 5)}
    layer = node(op, ["x", "w", "r", "b"], ["y"], name="layer", hidden_size=5, direction="bidirectional")
    return save(path, [layer], {"x": [4, 2, 3]}, weights, [4, 2, 2, 5])


def einsum(path: Path) -> str:
    each = node("Einsum", ["x", "w"], ["y"], name="sum", equation="bij,jk->bik")
    return save(path, [each], {"x": [2, 7, 7]}, {"w": numbers(7, 7)}, [2, 7, 7])


# hands that spoil a file


def walked(made: onnx.ModelProto) -> Iterator[Any]:
    """Every node, those in bodies and functions included."""
    pending = [*made.graph.node, *(n for f in made.functions for n in f.node)]
    while pending:
        each = pending.pop()
        yield each
        pending += [n for a in each.attribute if a.type == onnx.AttributeProto.GRAPH for n in a.g.node]


def named(made: onnx.ModelProto, end: str, op: str = "") -> Any:
    return next(n for n in walked(made) if n.name.endswith(end) and (not op or n.op_type == op))


def held(each: Any) -> np.ndarray:
    return np.array(numpy_helper.to_array(each.attribute[0].t))


def constant(end: str, change: Callable[[np.ndarray], Any]) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        each = named(made, end, "Constant")
        new = np.asarray(change(held(each))).astype(held(each).dtype)
        each.attribute[0].t.CopyFrom(numpy_helper.from_array(new))

    return spoil


def attribute(end: str, name: str, *ints: int) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        each = named(made, end)
        found = next(a for a in each.attribute if a.name == name)
        found.ints[:] = ints

    return spoil


def without(end: str, name: str) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        each = named(made, end)
        kept = [a for a in each.attribute if a.name != name]
        assert len(kept) < len(each.attribute)
        del each.attribute[:]
        each.attribute.extend(kept)

    return spoil


def wired(end: str, at: int, other: Callable[[Any], str]) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        each = named(made, end)
        each.input[at] = other(each)

    return spoil


def exchanged(end: str, one: int, other: int) -> Spoil:
    """Two outputs of what cuts change places."""

    def spoil(made: onnx.ModelProto) -> None:
        names = named(made, end).output
        names[one], names[other] = names[other], names[one]

    return spoil


def said(end: str, name: str, setting: Any) -> Spoil:
    """An attribute more."""
    return lambda made: named(made, end).attribute.append(helper.make_attribute(name, setting))


def padded_with_ones(made: onnx.ModelProto) -> None:
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(1, np.float32), "one"))
    named(made, "fc/x_padded").input.append("one")


def padded_in_front(made: onnx.ModelProto) -> None:
    pads = named(made, "fc/x_pads").input
    pads[:] = [pads[1], pads[2], pads[0]]


def stored(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        tensor = next(t for t in made.graph.initializer if t.name.startswith(name))
        new = np.ascontiguousarray(change(np.array(numpy_helper.to_array(tensor))))
        tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))

    return spoil


def body_of(function: str, *nodes: Any) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        found = next(f for f in made.functions if f.name.startswith(function))
        del found.node[:]
        found.node.extend(nodes)

    return spoil


def verdict(source: str, spec: TileSpec, spoil: Spoil) -> str:
    """What is said of the spoiled file; '' if it passes."""
    target = source.replace(".onnx", "_tiled.onnx")
    result = Session(source).tile(spec, output=target, draws=1)
    assert result.output, result.verification and result.verification.verdict
    made = onnx.load(target)
    spoil(made)
    onnx.save(made, target.replace("_tiled", "_spoiled"))
    try:
        found = verify_files(source, target.replace("_tiled", "_spoiled"), draws=1)
    except ExplorerError as error:
        return str(error)
    return "" if found.passed else found.verdict


SCALED = body_of("2DMM", node("MatMul", ["A", "B"], ["P"]), node("Add", ["P", "P"], ["C"]))
ROUNDED = body_of(
    "2DMM",
    node("MatMul", ["A", "B"], ["P"]),
    node("Cast", ["P"], ["H"], to=10),
    node("Cast", ["H"], ["C"], to=1),
)

FAULTS: dict[str, tuple[Callable[[Path], str], str, Spoil, str]] = {
    "heads of K exchanged": (lambda p: attention(p, 1, 5), "unrolled", exchanged("qk/w_split", 0, 1), "qk"),
    "a head's rows shifted": (
        lambda p: attention(p, 1, 5),
        "unrolled",
        exchanged("qk/1/Split2D_x", 0, 2),
        "qk",
    ),
    "K is not transposed": (lambda p: attention(p, 1, 4), "scan", attribute("turn", "perm", 0, 1, 2, 3), ""),
    "a body that doubles": (lambda p: attention(p, 1, 5), "lab", SCALED, "qk"),
    "a body that rounds": (lambda p: attention(p, "B", "T"), "scan", ROUNDED, "qk"),
    "open: padded in front": (lambda p: linear(p, "B"), "scan", padded_in_front, "fc"),
    "open: padded with ones": (lambda p: linear(p, "B"), "scan", padded_with_ones, "fc"),
    "open: cropped in front": (
        lambda p: linear(p, "B"),
        "scan",
        constant("cropped_starts", lambda a: [1, 0]),
        "fc",
    ),
    "open: blocks from the end": (
        lambda p: linear(p, "B"),
        "scan",
        said("fc/rows", "scan_output_directions", [1]),
        "fc",
    ),
    "open: wrong at odd lengths only": (
        lambda p: linear(p, "B"),
        "scan",
        said("fc/x_missing_0", "fmod", 1),
        "matmul 'fc'",
    ),
    "in a loop": (loop, "lab", stored("w", lambda a: a[::-1]), "loop.body/step"),
    "in a loop, unrolled": (loop, "unrolled", exchanged("step/Split2D_x", 0, 1), "loop.body/step"),
    "the other direction": (
        lambda p: recurrent(p, "GRU", 3),
        "lab",
        without("backward/steps", "scan_input_directions"),
        "",
    ),
    "gates in another order": (
        lambda p: recurrent(p, "LSTM", 4),
        "lab",
        exchanged("forward/step/gate", 0, 2),
        "",
    ),
    "the weights of another direction": (
        lambda p: recurrent(p, "RNN", 1),
        "lab",
        wired(
            "layer/backward/steps.body/step/hidden",
            1,
            lambda n: (
                n.input[1].replace("R_backward", "R_forward").replace("backward/turned_1", "forward/turned_1")
            ),
        ),
        "",
    ),
    "a bias missing": (
        lambda p: recurrent(p, "LSTM", 4),
        "lab",
        stored("layer/parts/B_forward", lambda a: a * 0),
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str, tmp_path: Path) -> None:
    make, form, spoil, site = FAULTS[fault]
    words = verdict(make(tmp_path / "m.onnx"), TileSpec(tile=SMALL, form=form), spoil)  # type: ignore[arg-type]
    assert words
    assert site in words


def test_letters_exchanged_are_found(tmp_path: Path) -> None:
    source, target = einsum(tmp_path / "m.onnx"), str(tmp_path / "t.onnx")
    Session(source).tile(TileSpec(tile=SMALL), output=target, verify=False)
    other = onnx.load(source)
    other.graph.node[0].attribute[0].s = b"bij,kj->bik"
    onnx.save(other, source)
    assert "matmul 'sum': the tile of product (0, 0, 0)" in verify_files(source, target, draws=1).verdict


# anything at all


def _mutated(made: onnx.ModelProto, chance: random.Random) -> bool:
    """Changes one thing; False where there was nothing to change."""
    each = chance.choice(list(walked(made)))
    others = [name for n in walked(made) for name in n.output if name]
    kind = chance.choice(("wire", "wires", "ends", "ints", "constant", "constant", "stored", "term"))
    if kind == "wire" and each.input:
        at = chance.randrange(len(each.input))
        each.input[at], before = chance.choice(others), each.input[at]
        return bool(each.input[at] != before)
    if kind in ("wires", "ends"):
        names = each.input if kind == "wires" else each.output
        if len(set(names)) > 1:
            one, other = chance.sample(range(len(names)), 2)
            names[one], names[other] = names[other], names[one]
            return bool(names[one] != names[other])
    if kind == "ints":
        lists = [a for a in each.attribute if a.type == onnx.AttributeProto.INTS and len(a.ints) > 1]
        if lists:
            ints = chance.choice(lists).ints
            ints[:] = list(ints)[1:] + list(ints)[:1]
            return True
    if kind == "constant":
        constants = [n for n in walked(made) if n.op_type == "Constant" and held(n).size]
        if constants:
            tensor = chance.choice(constants).attribute[0].t
            new = np.array(numpy_helper.to_array(tensor))
            new.reshape(-1)[chance.randrange(new.size)] += chance.choice((-1, 1, 2))
            tensor.CopyFrom(numpy_helper.from_array(new))
            return True
    if kind == "stored" and made.graph.initializer:
        tensor = chance.choice(made.graph.initializer)
        new = np.array(numpy_helper.to_array(tensor))
        if new.dtype == np.float32:
            new.reshape(-1)[chance.randrange(new.size)] += 1
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
            return True
    if kind == "term" and each.op_type in ("Sum", "Concat") and len(each.input) > 1:
        each.input[0] = each.input[1]
        return True
    return False


def _run(path: str, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options)
    return [session.run(None, one)[0] for one in feeds]


MODELS: dict[str, Callable[[Path], str]] = {
    "attention": lambda p: attention(p, 1, 5),
    "open attention": lambda p: attention(p, "B", "T"),
    "open rows": lambda p: linear(p, "B"),
    "loop": loop,
    "lstm": lambda p: recurrent(p, "LSTM", 4),
    "einsum": einsum,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_whatever_changes_the_numbers_fails_the_proof(name: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    source = MODELS[name](tmp_path / "m.onnx")
    form: Any = "scan" if "open" in name else chance.choice(("lab", "unrolled", "batched", "scan"))
    target, spoiled = str(tmp_path / "t.onnx"), str(tmp_path / "s.onnx")
    tile = (16, 16, 16) if "open" in name else SMALL
    plan = Session(source).tile(TileSpec(tile=tile, form=form), output=target, verify=False).plan
    assert plan.sites
    feeds = []
    for size in (1, 2, 3, 5):
        rng = np.random.default_rng(size)
        inputs = ort.InferenceSession(source).get_inputs()
        shapes = {i.name: [d if isinstance(d, int) else size for d in i.shape] for i in inputs}
        feeds.append({n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    true = _run(source, feeds)
    changed = 0
    while changed < (2 if "open" in name else 8):
        made = onnx.load(target)
        if not _mutated(made, chance):
            continue
        onnx.save(made, spoiled)
        try:
            got = _run(spoiled, feeds)
        except Exception:  # the graph is no graph any more
            continue
        if all(a.shape == b.shape and np.allclose(a, b, 1e-4, 1e-4) for a, b in zip(got, true, strict=True)):
            continue
        changed += 1
        try:
            assert not verify_files(source, spoiled, draws=1).passed
        except ExplorerError:
            continue
