"""A model that cannot run is refused with the name of what is wrong; one out of order is put in order."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import MAX_CALL_DEPTH, validate
from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, build_int64_tensor


def value(name: str) -> Value:
    return Value(name, "float32", (2,))


def model(
    *nodes: Node, outputs: Sequence[str] = ("y",), functions: Sequence[Function] = (), path: str = "m.onnx"
) -> Model:
    graph = Graph("g", nodes, (value("x"),), tuple(map(value, outputs)), {})
    opsets = {"": 17, "local": 1} if functions else {"": 17}
    return Model(graph, opsets, 8, {f.key: f for f in functions}, path=path)


def relu(source: str, target: str, name: str = "") -> Node:
    return Node("Relu", [source], [target], name=name or f"make_{target}")


def function(name: str, *nodes: Node) -> Function:
    return Function("local", name, ("x",), ("y",), nodes, {"": 17, "local": 1})


def call(name: str, source: str = "x", target: str = "y") -> Node:
    return Node(name, [source], [target], domain="local", name=f"call_{name}_{target}")


def branch(*nodes: Node, output: str = "t") -> Graph:
    return Graph("branch", nodes, (), (value(output),), {})


def branches(then_branch: Graph) -> dict[str, Graph]:
    """Attributes of an If: a branch, and another one that reads `x`."""
    return {"then_branch": then_branch, "else_branch": branch(relu("x", "t"))}


def test_a_model_in_order_comes_back_as_it_is() -> None:
    good = model(relu("x", "a"), relu("a", "y"))
    assert validate(good) is good


@pytest.mark.parametrize("seed", range(5))
def test_nodes_in_the_wrong_order_are_sorted(seed: int) -> None:
    chain = [relu("x", "v0"), *(relu(f"v{i}", f"v{i + 1}") for i in range(20)), relu("v20", "y")]
    shuffled = random.Random(seed).sample(chain, len(chain))
    assert [n.name for n in validate(model(*shuffled)).graph.nodes] == [n.name for n in chain]


def test_sorting_moves_only_what_has_to_move() -> None:
    nodes = (relu("x", "a"), relu("late", "y"), relu("x", "b"), relu("a", "late"))
    sorted_ = validate(model(*nodes)).graph.nodes
    assert [n.outputs[0] for n in sorted_] == ["a", "b", "late", "y"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((relu("x", "y", "p"), relu("x", "y", "q")), "defines 'y' twice: by node 'p' and by 'q'"),
        ((relu("x", "x"), relu("x", "y")), "node 'make_x' defines 'x', which is an input already"),
        ((relu("ghost", "y"),), "node 'make_y' (Relu) takes 'ghost', which nothing defines"),
        ((relu("x", "a"),), "nothing defines its output 'y'"),
        ((Node("", ["x"], ["y"], name="blank"),), "node 'blank' has no operator"),
        (
            (relu("x", "a"), Node("Add", ["a", "c"], ["b"], name="B"), relu("b", "c", "C"), relu("c", "y")),
            "the graph has a cycle: 'B' -> 'C' -> 'B'",
        ),
        ((relu("y", "y", "self"),), "the graph has a cycle: 'self' -> 'self'"),
        (
            (Node("Fused", ["x"], ["y"], domain="com.acme", name="f"),),
            "node 'f' is a Fused of the operator domain 'com.acme', which the model does not import",
        ),
    ],
)
def test_what_is_wrong_is_named(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(BadModel, match=re.escape(message)) as caught:
        validate(model(*nodes))
    assert caught.value.where == "m.onnx"


def test_an_output_listed_twice_is_refused() -> None:
    with pytest.raises(BadModel, match="has two outputs named 'y'"):
        validate(model(relu("x", "y"), outputs=("y", "y")))


def test_absent_optional_inputs_and_outputs_are_no_values() -> None:
    good = model(
        Node("Clip", ["x", "", ""], ["a"]), Node("Dropout", ["a"], ["b", ""]), Node("Clip", ["b", ""], ["y"])
    )
    assert validate(good) is good


def test_an_initializer_may_be_the_default_of_an_input() -> None:
    base = model(Node("Add", ["x", "w"], ["y"]))
    graph = replace(
        base.graph, inputs=(value("x"), value("w")), initializers={"w": build_int64_tensor("w", [1, 2])}
    )
    good = replace(base, graph=graph)
    assert validate(good) is good


def test_a_branch_sees_the_values_around_it() -> None:
    flow = Node("If", ["x"], ["y"], attributes=branches(branch(relu("a", "t"))))
    good = model(relu("x", "a"), flow)
    assert validate(good) is good
    # the branch needs `a`, so the If must come after it
    assert [n.op for n in validate(model(flow, relu("x", "a"))).graph.nodes] == ["Relu", "If"]


def test_a_branch_out_of_order_is_sorted_too() -> None:
    body = branch(relu("s", "t"), relu("x", "s"))
    fixed = validate(model(Node("If", ["x"], ["y"], name="flow", attributes=branches(body))))
    inner = fixed.graph.nodes[0].attributes["then_branch"]
    assert [n.outputs[0] for n in inner.nodes] == ["s", "t"]
    assert fixed.graph.nodes[0].name == "flow"


def test_a_branch_that_takes_the_output_of_its_own_node_is_a_cycle() -> None:
    flow = Node("If", ["x"], ["y"], name="flow", attributes=branches(branch(relu("y", "t"))))
    with pytest.raises(BadModel, match="cycle: 'flow' -> 'flow'"):
        validate(model(flow))


def test_a_fault_inside_a_branch_says_where() -> None:
    flow = Node("If", ["x"], ["y"], name="flow", attributes=branches(branch(relu("ghost", "t"))))
    with pytest.raises(BadModel, match=r"node 'flow', then_branch: node 'make_t' .* takes 'ghost'"):
        validate(model(flow))


def test_functions_are_checked_and_sorted() -> None:
    with pytest.raises(BadModel, match=r"function 'F': node 'make_y' .* takes 'ghost'"):
        validate(model(call("F"), functions=[function("F", relu("ghost", "y"))]))
    swapped = function("F", relu("a", "y"), relu("x", "a"))
    fixed = validate(model(call("F"), functions=[swapped])).functions[swapped.key]
    assert [n.outputs[0] for n in fixed.nodes] == ["a", "y"]


def test_functions_that_call_themselves_are_refused() -> None:
    direct = function("F", call("F"))
    with pytest.raises(BadModel, match="call themselves: 'F' -> 'F'"):
        validate(model(call("F"), functions=[direct]))
    ring = [function("A", call("B")), function("B", call("C")), function("C", call("A"))]
    with pytest.raises(BadModel, match="call themselves: 'A' -> 'B' -> 'C' -> 'A'"):
        validate(model(call("A"), functions=ring))


def test_recursion_through_a_branch_is_found() -> None:
    flow = Node("If", ["x"], ["y"], attributes=branches(branch(call("F", "x", "t"))))
    with pytest.raises(BadModel, match="call themselves"):
        validate(model(call("F"), functions=[function("F", flow)]))


def test_two_paths_to_one_function_are_no_recursion() -> None:
    leaf = function("leaf", relu("x", "y"))
    left = function("left", call("leaf"))
    top = function("top", call("left", "x", "a"), call("leaf", "a", "y"))
    good = model(call("top"), functions=[top, left, leaf])
    assert validate(good) is good


def test_an_expansion_bomb_is_refused_before_it_expands() -> None:
    def level(i: int) -> Function:
        calls = [call(f"F{i - 1}", f"v{j}", f"v{j + 1}") for j in range(10)]
        first, last = relu("x", "v0"), relu("v10", "y")
        return function(f"F{i}", first, *calls, last)

    bomb = [function("F0", relu("x", "y")), *(level(i) for i in range(1, 9))]
    with pytest.raises(BadModel, match="expands to more than 10,000,000 operators"):
        validate(model(call("F8"), functions=bomb))


def test_a_long_chain_of_functions_is_refused() -> None:
    count = 4_000
    chain = [function(f"F{i}", call(f"F{i + 1}")) for i in range(count)]
    chain.append(function(f"F{count}", relu("x", "y")))
    with pytest.raises(BadModel, match=f"nested more than {MAX_CALL_DEPTH} deep"):
        validate(model(call("F0"), functions=chain))
    with pytest.raises(BadModel, match=f"nested more than {MAX_CALL_DEPTH} deep"):
        validate(model(call("F0"), functions=chain[::-1]))


def test_sparse_initializers_are_values_too(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    dense = helper.make_tensor("w", 1, [1], [3.0])
    sparse = helper.make_sparse_tensor(dense, helper.make_tensor("i", 7, [1], [1]), [2])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    info = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", info[:1], info[1:], sparse_initializer=[sparse])
    path = tmp_path / "sparse.onnx"
    onnx.save(helper.make_model(graph), str(path))
    loaded = read(str(path))
    assert validate(loaded) is loaded


def test_the_sorted_model_can_be_written_and_read_back(tmp_path: Path) -> None:
    swapped = function("F", relu("a", "y"), relu("x", "a"))
    path = tmp_path / "m.onnx"
    path.write_bytes(encode(model(relu("b", "y"), call("F", "x", "b"), functions=[swapped])))
    fixed = validate(read(str(path)))
    path.write_bytes(encode(fixed))
    again = read(str(path))
    assert validate(again) is again
