"""What is asked of one site: the first rule that speaks of a value decides it, else the specification."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.base.errors import Misuse
from explorer.engine.tiling.rules import choose_settings, make_name_matcher
from explorer.facts import TileRule, TileSpec

SITE = ("/encoder/fc1/Gemm", "Gemm", (64, 400, 120))


def chosen(*rules: TileRule, **spec: Any) -> Any:
    return choose_settings(TileSpec(rules=rules, **spec), *SITE)


def test_without_rules_the_specification_holds_and_says_who_asked() -> None:
    choice = chosen(tile=(8, 8, 8), edges="padded", origins=(("tile", "command line"),))
    assert (choice.tile, choice.edges, choice.form, choice.on) == ((8, 8, 8), "padded", "auto", True)
    assert choice.origins == {"tile": "command line", "edges": "", "form": "", "on": ""}


def test_each_value_is_decided_by_the_first_rule_that_speaks_of_it() -> None:
    choice = chosen(
        TileRule(site="*fc2*", tile=(1, 1, 1), on=False, origin="f:1"),
        TileRule(op="Gemm", form="lab", origin="f:2"),
        TileRule(site="*fc1*", tile=(2, 2, 2), form="scan", origin="f:3"),
        TileRule(tile=(3, 3, 3), edges="padded", origin="f:4"),
    )
    assert (choice.tile, choice.edges, choice.form, choice.on) == ((2, 2, 2), "padded", "lab", True)
    assert choice.origins == {"tile": "f:3", "edges": "f:4", "form": "f:2", "on": ""}


@pytest.mark.parametrize(
    ("rule", "means"),
    [
        ({}, True),
        ({"site": "/encoder/fc1/Gemm"}, True),
        ({"site": "*fc1*"}, True),
        ({"site": "*FC1*"}, False),
        ({"site": "fc1"}, False),
        ({"op": "G*"}, True),
        ({"op": "MatMul"}, False),
        ({"shape": "M>=64"}, True),
        ({"shape": "M>64"}, False),
        ({"shape": "M<64"}, False),
        ({"shape": "M<=64 K=400 N!=121"}, True),
        ({"shape": "M == 64, K > 399"}, True),
        ({"shape": "M>=64 N>120"}, False),
        ({"shape": "K>=1_000"}, False),
        ({"site": "*fc1*", "op": "Gemm", "shape": "N<=120"}, True),
        ({"site": "*fc1*", "op": "Conv", "shape": "N<=120"}, False),
    ],
)
def test_a_rule_means_a_site_when_every_condition_holds(rule: dict[str, str], means: bool) -> None:
    assert chosen(TileRule(**rule, on=False)).on is not means


def test_a_name_that_is_written_out_means_itself_whatever_signs_it_holds() -> None:
    spec = TileSpec(rules=(TileRule(site="layers[0]*", on=False),))
    assert not choose_settings(spec, "layers[0]*", "Gemm", (1, 1, 1)).on
    assert choose_settings(spec, "layers[0]x", "Gemm", (1, 1, 1)).on, (
        "as a glob it means layers0 and what follows"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"form": "skan"}, "TileRule.form: 'skan' cannot be taken"),
        ({"edges": "raged"}, "TileRule.edges: 'raged' cannot be taken"),
        ({"tile": (8, 0, 8)}, "TileRule.tile: (8, 0, 8) cannot be taken; give 3 values, each a whole"),
        ({"tile": (8, 8)}, "TileRule.tile: (8, 8) cannot be taken; give 3 values"),
        (
            {"tile": (8, 8, 70_000)},
            "mine: a tile of 8x8x70000 is not possible; give three sizes from 1 to 65,536",
        ),
    ],
)
def test_what_a_programs_rule_cannot_ask_for_is_refused_with_its_place(
    asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(Misuse) as refused:
        chosen(TileRule(**asked, origin="mine"))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("shape", ["M", "Q>3", "M>=64 or N<3", "M>=", "64<M", "M>-1", "M>=64;N<3"])
def test_conditions_that_cannot_be_read_are_refused_with_their_place(shape: str) -> None:
    with pytest.raises(Misuse, match=r"npu\.toml:7.*is not a condition on a shape"):
        chosen(TileRule(shape=shape, on=False, origin="npu.toml:7"))


@pytest.mark.parametrize(("pattern", "name"), [("re:(x|xx)+$", "x" * 80 + "!"), ("re:(x+)+!", "x" * 5000)])
def test_a_regular_expression_that_would_never_end_is_refused(pattern: str, name: str) -> None:
    matches = make_name_matcher(pattern, "--site")
    with pytest.raises(Misuse, match="takes more than 1 s on one name") as caught:
        matches(name)
    assert "--site" in str(caught.value)


def test_other_regular_expressions_match_as_ever() -> None:
    with pytest.raises(Misuse, match="is not a regular expression"):
        make_name_matcher("re:(", "--site")
    assert make_name_matcher("re:conv[0-9]+$", "--site")("features.conv12")
    assert not make_name_matcher("re:conv[0-9]+$", "--site")("conv")
    assert not make_name_matcher("re:^(([a-z])+.)+[A-Z]([a-z])+$", "--site")("a" * 60)
