"""Rules of the user's own: `--rules my_rules.py --trust`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer import Misuse, Session
from explorer.rules import Call, Cost, conv, elementwise, rule

GOOD = """
from explorer.rules import Call, Cost, adding, linear, rule

@rule("Twice", domain="my.ops")
def twice(call):
    cost = linear(call.shape(0), call.attributes["units"])
    return adding(cost, "bias", (*call.shape(0)[:-1], call.attributes["units"]))

@rule("Relu")
def relu(call: Call) -> Cost:
    return Cost(macs=7, formula="seven")
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    from onnx import TensorProto, helper, save

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Twice", ["a"], ["y"], name="twice", domain="my.ops", units=5),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5))
    graph = helper.make_graph(nodes, "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def make(text: str) -> str:
        path = tmp_path / "my_rules.py"
        path.write_text(text)
        return str(path)

    return make


def rows(session: Session) -> dict[str, Any]:
    return {layer.path: layer for layer in session.analysis().layers}


def test_a_rule_counts_an_operator_that_we_do_not_know_and_overrides_one_that_we_do(
    model: str, write: Callable[[str], str]
) -> None:
    with Session(model, rules=write(GOOD), trust=True) as session:
        found = rows(session)
        assert session.info().totals.coverage == 1.0
    assert (found["twice"].macs, found["twice"].elementwise_ops) == (2 * 3 * 5, 10)
    assert (found["relu"].macs, found["relu"].formula) == (7, "seven")


def test_rules_of_one_session_are_unknown_to_the_next(model: str, write: Callable[[str], str]) -> None:
    with Session(model, rules=write(GOOD), trust=True) as session:
        session.open()
        with Session(model) as other:
            found = rows(other)
    assert found["twice"].status == "unknown"
    assert "no rule for operator Twice" in found["twice"].reason
    assert found["relu"].macs == 0


def test_without_trust_nothing_runs_and_the_message_names_what_would(
    model: str, write: Callable[[str], str], tmp_path: Path
) -> None:
    path = write(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with Session(model, rules=path) as session, pytest.raises(Misuse) as caught:
        session.open()
    assert path in str(caught.value)
    assert "--trust" in str(caught.value)
    assert not (tmp_path / "ran").exists()


TWICE = "from explorer.rules import *\n@rule('Twice', domain='my.ops')\ndef twice(call):\n    "


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = 1\ndef broken(:\n", 2, "not Python"),
        ("x = 1\ny = 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import nothing_of_this_name\n", 1, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("from explorer.rules import rule\nrule(7)\n", 2, "takes the name of an operator, not 7"),
        ("from explorer.rules import rule\nrule('A')(5)\n", 2, "is of type int, not a function"),
        (TWICE + "return call.attributes['nothing']\n", 4, "my.ops::Twice failed: KeyError: 'nothing'"),
        ("import sys\n" + TWICE + "sys.exit(0)\n", 5, "my.ops::Twice failed: SystemExit: 0"),
        (TWICE + "return 12\n", 2, "returned an object of type int, not a Cost"),
        (TWICE + "pass\n", 2, "returned an object of type NoneType, not a Cost"),
        (TWICE + "return Cost(macs=-1)\n", 2, "macs=-1, which is not a count"),
        (TWICE + "return Cost(macs=2.5)\n", 2, "macs=2.5, which is not a count"),
        (TWICE + "return Cost(macs=True)\n", 2, "macs=True, which is not a count"),
        (
            TWICE + "return Cost(elementwise_ops=float('nan'))\n",
            2,
            "elementwise_ops=nan, which is not a count",
        ),
        (TWICE + "return Cost(status='sure')\n", 2, "status='sure'"),
        (TWICE + "return Cost(macs=None)\n", 2, "no number with status='exact'"),
        (TWICE + "return Cost(status='bound')\n", 2, "without a reason"),
        (TWICE + "return Cost(formula=5)\n", 2, "not text"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(
    model: str, write: Callable[[str], str], text: str, line: int, said: str
) -> None:
    path = write(text)
    with Session(model, rules=path, trust=True) as session, pytest.raises(Misuse) as caught:
        session.open()
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"), [("x = 1\n", "registers no rule"), (None, "cannot be read: No such file")]
)
def test_a_file_that_is_missing_or_registers_nothing_is_told(
    model: str, write: Callable[[str], str], tmp_path: Path, text: str | None, said: str
) -> None:
    path = str(tmp_path / "none.py") if text is None else write(text)
    with Session(model, rules=path, trust=True) as session, pytest.raises(Misuse, match=said):
        session.open()


def test_a_rule_that_misses_a_shape_leaves_the_node_unknown(model: str, write: Callable[[str], str]) -> None:
    path = write(TWICE + "return elementwise('twice', call.shape(3))\n")
    with Session(model, rules=path, trust=True) as session:
        found = rows(session)["twice"]
    assert (found.status, found.reason) == ("unknown", "the shape of input 3 is not known")


def test_the_file_may_use_what_python_has_and_leaves_nothing_behind(
    model: str, write: Callable[[str], str]
) -> None:
    text = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from explorer.rules import Call, Cost, rule

@dataclass
class Unit:
    rate: int = 3
    known: ClassVar[int] = 1

@rule("Twice", domain="my.ops")
def twice(call: Call) -> Cost:
    return Cost(macs=Unit().rate)
"""
    before = set(sys.modules)
    with Session(model, rules=write(text), trust=True) as session:
        assert rows(session)["twice"].macs == 3
    assert not {name for name in set(sys.modules) - before if "user_rules" in name}


def test_what_the_file_prints_stays_out_of_the_output(
    model: str, write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(model, rules=write(GOOD + "\nprint('hello')\n"), trust=True) as session:
        session.open()
    assert capsys.readouterr().out == ""


def test_the_file_runs_once_for_a_session_and_counts_what_was_made_of_the_model_too(
    tmp_path: Path, write: Callable[[str], str], sample: Callable[[str], Path]
) -> None:
    log = tmp_path / "log"
    text = f"with open({str(log)!r}, 'a') as log:\n    log.write('ran;')\n" + GOOD
    with Session(sample("lenet"), rules=write(text), trust=True) as session:
        before = {x.kind: x.macs for x in session.analysis().layers}
        from explorer import TileSpec

        session.tile(TileSpec(tile=(64, 64, 64)), verify=False)
        after = {x.kind: x.macs for x in session.analysis().layers}
    assert before["Relu"] == after["Relu"] == 7
    assert log.read_text() == "ran;"


def test_a_rule_for_a_local_function_goes_before_its_body(
    tmp_path: Path, write: Callable[[str], str]
) -> None:
    from onnx import TensorProto, helper, save

    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    function = helper.make_function("my.ops", "Twice", ["a"], ["b"], body, opsets)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "xy"]
    call = helper.make_node("Twice", ["x"], ["y"], name="call", domain="my.ops")
    graph = helper.make_graph([call], "g", infos[:1], infos[1:])
    path = tmp_path / "f.onnx"
    save(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9), path)
    with Session(path, rules=write(TWICE + "return Cost(macs=9)\n"), trust=True) as session:
        found = rows(session)
    assert [(x.path, x.macs) for x in found.values()] == [("call", 9)]


def test_the_example_in_the_documentation_works(tmp_path: Path, write: Callable[[str], str]) -> None:
    import textwrap

    from onnx import TensorProto, helper, save

    from explorer import rules

    text = rules.__doc__ or ""
    lines = [line for line in text.splitlines() if line.startswith("    ") or not line]
    path = write(textwrap.dedent("\n".join(lines)))
    nodes = [
        helper.make_node("MyLinear", ["x", "w", "b"], ["t"], name="linear", domain="my.ops"),
        helper.make_node("MyHardware", ["x"], ["y"], name="hardware", domain="my.ops", N=7),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (2, 3)), ("w", (3, 4)), ("b", (4,)), ("y", (2, 7)), ("t", (2, 4)))
    ]
    graph = helper.make_graph(nodes, "g", infos[:3], infos[3:4], value_info=infos[4:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    with Session(tmp_path / "m.onnx", rules=path, trust=True) as session:
        found = rows(session)
    assert (found["linear"].macs, found["linear"].elementwise_ops) == (2 * 3 * 4, 8)
    assert (found["hardware"].macs, found["hardware"].formula) == (42, "2 x 3 x N")


def test_outside_of_a_session_a_rule_is_a_function_that_a_test_can_call() -> None:
    from explorer.facts import TensorInfo

    @rule("Mine", domain="my.ops")
    def mine(call: Call) -> Cost:
        return conv(call.output(), call.shape(1))

    infos = (TensorInfo("x", "float32", (1, 3, 8, 8)), TensorInfo("w", "float32", (4, 3, 3, 3)))
    made = Call("Mine", "my.ops", {}, infos, (TensorInfo("y", "float32", (1, 4, 6, 6)),))
    assert mine(made).macs == 4 * 36 * 27
    assert elementwise("one", (2, 3)).elementwise_ops == 6


FORMULA_PARAMETERS = {
    "adding": "cost what shape per_element",
    "attention": "batch heads lq lk dqk dv causal mask scale past",
    "bounded": "cost reason",
    "conv": "output weight bias",
    "conv_transpose": "source weight output bias",
    "einsum": "equation shapes",
    "elementwise": "what shape per_element",
    "fourier": "transforms samples frequencies complex_in complex_out",
    "gemm": "a b trans_a trans_b bias alpha beta",
    "linear": "source features bias",
    "matmul": "a b",
    "pooling": "what output kernel per_tap",
    "recurrent": "kind length batch inputs hidden directions layers projection bias",
    "rule": "op domain",
    "times": "cost trips what",
    "total": "costs",
    "unknown": "reason",
}
"""Parameters that a user's file may pass by name: they are stable."""


def test_the_parameters_of_formulas_keep_their_names() -> None:
    import inspect

    from explorer import rules

    functions = {name: getattr(rules, name) for name in rules.__all__}
    names = {
        n: " ".join(inspect.signature(f).parameters) for n, f in functions.items() if inspect.isfunction(f)
    }
    assert names == FORMULA_PARAMETERS


def test_what_rules_are_written_with_is_documented_and_light() -> None:
    import subprocess

    from explorer import rules

    assert all(getattr(rules, name).__doc__ for name in rules.__all__ if name != "Rule")
    code = "import explorer.rules, sys; sys.exit(bool({'numpy', 'onnx', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_command_line_takes_rules_with_trust_and_tells_mistakes_in_one_line(
    model: str, write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from explorer.cli.main import main

    path = write(GOOD)
    assert main(["info", model, "--rules", path, "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["coverage"] == 1.0
    assert main(["info", model, "--rules", path]) == 2
    assert "would run" in capsys.readouterr().err
    write("x = 1\ny = 1 / 0\n")
    assert main(["info", model, "--rules", path, "--trust"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert "my_rules.py:2: the rules cannot be loaded: ZeroDivisionError" in said


def test_two_rules_for_one_operator_are_refused_with_both_places(
    model: str, write: Callable[[str], str]
) -> None:
    again = '\n@rule("Relu", domain="ai.onnx")\ndef other(call):\n    return Cost(macs=9, formula="nine")\n'
    path = write(GOOD + again)
    with Session(model, rules=path, trust=True) as session, pytest.raises(Misuse) as caught:
        session.analysis()
    assert caught.value.what == "two rules are for Relu"
    assert caught.value.where == f"{path}:{(GOOD + again).count(chr(10)) - 2}"
    assert caught.value.hint == "keep one of them; the first is on line 9"


def test_a_function_may_be_the_rule_of_two_operators(model: str, write: Callable[[str], str]) -> None:
    path = write(GOOD.replace('@rule("Relu")', '@rule("Relu")\n@rule("Relu", domain="ai.onnx")'))
    with Session(model, rules=path, trust=True) as session:
        assert rows(session)["relu"].macs == 7
