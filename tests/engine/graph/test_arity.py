"""A node that lacks an input or attribute of its operator is refused as its model is read, in one line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from explorer import BadModel, Session
from explorer.cli.main import main
from explorer.engine.graph.arity import ATTRIBUTE_TYPES, MIN_INPUTS, NO_REQUIRED_INPUTS, REQUIRED_ATTRIBUTES

SINGLE = defs.OpSchema.FormalParameterOption.Single


def test_the_table_is_that_of_the_schemas() -> None:
    least: dict[tuple[str, str], int] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            options = [given.option == SINGLE for given in schema.inputs]
            count = next((at for at, single in enumerate(options) if not single), len(options))
            key = "", schema.name
            least[key] = min(least.get(key, count), count)
    ours = {key: count for key, count in MIN_INPUTS.items() if not key[0] and key in least}
    assert {key: least[key] for key in ours} == ours
    assert len(ours) > 150
    there = {(s.domain, s.name) for s in get_all_operator_schema()}
    assert {key for key in MIN_INPUTS if key[0] == "com.microsoft"} & there


def test_required_attributes_are_those_of_all_versions_of_the_schemas() -> None:
    names: dict[str, frozenset[str]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            required = frozenset(name for name, attribute in schema.attributes.items() if attribute.required)
            names[schema.name] = names.get(schema.name, required) & required
    assert {op: attributes for op, attributes in names.items() if attributes} == REQUIRED_ATTRIBUTES


WORDS = {
    "INT": "an integer",
    "FLOAT": "a float",
    "STRING": "a text",
    "INTS": "a list of integers",
    "FLOATS": "a list of floats",
    "STRINGS": "a list of texts",
}


def test_the_types_of_attributes_are_those_of_all_versions_of_the_schemas() -> None:
    types: dict[str, set[str]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            for name, attribute in schema.attributes.items():
                types.setdefault(name, set()).add(attribute.type.name)
    single = {name: kinds.pop() for name, kinds in types.items() if len(kinds) == 1}
    assert {name: WORDS[kind] for name, kind in single.items() if kind in WORDS} == ATTRIBUTE_TYPES


def test_every_standard_operator_is_known_whether_it_requires_an_input_or_none() -> None:
    names = {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
    assert names - {op for domain, op in MIN_INPUTS if not domain} == NO_REQUIRED_INPUTS


def test_an_operator_that_onnx_does_not_define_may_have_any_attributes(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Whittle", ["x"], ["y"], axis=[1, 2], group="both")
    graph = helper.make_graph([node], "g", [value("x", 1, [2, 2])], [value("y", 1, [2, 2])])
    onnx.save(helper.make_model(graph), str(tmp_path / "own.onnx"))
    with Session(str(tmp_path / "own.onnx")) as session:
        assert session.info().totals.nodes == 1


MISTYPED = {
    "a number for a list": ("strides", 2, "'strides' of node 'odd' (Conv) is not a list of integers"),
    "a text for a list": ("pads", "none", "'pads' of node 'odd' (Conv) is not a list of integers"),
    "a float for an integer": ("group", 1.5, "'group' of node 'odd' (Conv) is not an integer"),
    "a list for a text": ("auto_pad", [1], "'auto_pad' of node 'odd' (Conv) is not a text"),
}
UNFIT = {
    "too few pads": ("pads", [1, 1]),
    "too many strides": ("strides", [1, 1, 1]),
    "no stride": ("strides", [0, 1]),
    "a dilation backwards": ("dilations", [1, -2]),
    "no group": ("group", 0),
}


def convolution(path: Path, name: str, value: object) -> str:
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 2, 6, 6]), ("y", [1, 3, 4, 4]))]
    kernel = helper.make_tensor("w", 1, [3, 2, 3, 3], [0.5] * 54)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "odd", **{name: value})]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [kernel])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)


@pytest.mark.parametrize("case", MISTYPED)
def test_an_attribute_of_a_wrong_type_is_refused(case: str, tmp_path: Path) -> None:
    name, value, words = MISTYPED[case]
    with pytest.raises(BadModel) as caught, Session(convolution(tmp_path / "m.onnx", name, value)) as session:
        session.info()
    assert words in str(caught.value)


@pytest.mark.parametrize("case", UNFIT)
def test_a_convolution_whose_attributes_do_not_fit_is_not_tiled(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", convolution(tmp_path / "m.onnx", *UNFIT[case])]) == 2
    assert "internal error" not in capsys.readouterr().err


def model(path: Path, op: str, inputs: list[str], domain: str = "") -> str:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], "odd", domain=domain)],
        "g",
        [value(name, TensorProto.FLOAT, [2, 2]) for name in inputs if name] or [value("x", 1, [2, 2])],
        [value("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))
    return str(path)


SHORT = {
    "one of two": ("QuantizeLinear", ["x"], "", "lacks its input 2: QuantizeLinear takes 2 inputs"),
    "none": ("Relu", [], "", "lacks its input 1: Relu takes 1 input at least"),
    "left out": ("Where", ["x", "", "w"], "", "lacks its input 2: Where takes 3 inputs"),
    "of another domain": ("QGemm", ["x", "w"], "com.microsoft", "lacks its input 3: QGemm takes 6 inputs"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_node_that_lacks_an_input_is_named(name: str, tmp_path: Path) -> None:
    op, inputs, domain, said = SHORT[name]
    path = model(tmp_path / "m.onnx", op, inputs, domain)
    with pytest.raises(BadModel, match=f"node 'odd' {said}"):
        Session(path).info()


@pytest.mark.parametrize(
    ("op", "inputs", "attribute"),
    [("Einsum", ["x"], "equation"), ("Cast", ["x"], "to"), ("If", ["x"], "else_branch")],
)
def test_a_node_that_lacks_an_attribute_is_named(
    op: str, inputs: list[str], attribute: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "m.onnx", op, inputs)
    for words in (["info", path], ["quantize", path], ["verify", path, path]):
        assert main(words) == 2
        assert f"node 'odd' lacks the attribute '{attribute}' of {op}" in capsys.readouterr().err


def test_a_node_that_makes_nothing_is_named(tmp_path: Path) -> None:
    edited = onnx.load(model(tmp_path / "m.onnx", "Relu", ["x"]))
    edited.graph.node.append(helper.make_node("Abs", ["x"], [""], name="idle"))
    onnx.save(edited, str(tmp_path / "m.onnx"))
    with pytest.raises(BadModel, match="node 'idle' makes no output: Abs makes 1 at least"):
        Session(str(tmp_path / "m.onnx")).info()


def test_an_einsum_needs_as_many_inputs_as_its_equation_has_terms(tmp_path: Path) -> None:
    edited = onnx.load(model(tmp_path / "m.onnx", "Einsum", ["x"]))
    edited.graph.node[0].attribute.append(helper.make_attribute("equation", "ij,jk,kl"))
    onnx.save(edited, str(tmp_path / "m.onnx"))
    with pytest.raises(BadModel, match="node 'odd' lacks its input 2: Einsum takes 3 inputs"):
        Session(str(tmp_path / "m.onnx")).info()


@pytest.mark.parametrize(
    "op", ["DequantizeLinear", "Conv", "Gemm", "BatchNormalization", "Gather", "Reshape"]
)
@pytest.mark.parametrize(
    "verb", ["verify {} {}", "tile {} -o t.onnx", "quantize {} -o t.onnx", "fold {} -o t.onnx"]
)
def test_every_verb_says_so_in_one_line(
    op: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = model(tmp_path / "m.onnx", op, ["x"])
    code = main(verb.format(path, path).split())
    text = capsys.readouterr()
    assert "internal error" not in text.out + text.err
    if op != "Reshape":  # one input is what its first version takes
        assert code == 2
        assert len(text.err.strip().splitlines()) == 1


def test_what_an_operator_may_leave_out_may_be_left_out(tmp_path: Path) -> None:
    with Session(model(tmp_path / "m.onnx", "Clip", ["x"])) as session:
        assert session.info().totals.nodes == 1
