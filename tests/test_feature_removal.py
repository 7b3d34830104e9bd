"""Which tests go with a feature, and which features go with another."""

from __future__ import annotations

from pathlib import Path

from explorer.base.features import list_offers
from tests import feature_removal
from tests.feature_removal import Names

SPLIT = Names(
    ("split",), frozenset({"split", "run_pipeline"}), frozenset({"split"}), frozenset({"vertical_line"})
)

TESTS = """
from explorer import Session
STAGES = ("split model.onnx", "info model.onnx")
def helper(session):
    return session.split(2)
def test_words(): main(["split", "a.onnx"])
def test_method(): helper(Session("a.onnx"))
def test_constant(): main(STAGES[0].split())
async def test_key(hands): await hands.press("vertical_line")
def test_inside():
    from explorer.features.split import stages
def test_text(): assert "a b".split() == ["a", "b"]
def test_looked_up(document): assert document["split"] == 1
"""


def test_a_test_belongs_to_the_feature_whose_verb_method_key_or_module_it_uses(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(TESTS)
    (tmp_path / "tests" / "test_b.py").write_text("from explorer import run_pipeline\n")
    lost, tests = feature_removal.tests_of(tmp_path, SPLIT)
    assert lost == ["tests/test_b.py"]
    names = {test.partition("::test_")[2] for test in tests}
    assert names == {"words", "method", "constant", "key", "inside"}


def test_features_that_import_a_feature_go_with_it() -> None:
    assert feature_removal.with_dependents("split") == ("split",)
    assert {"quantize", "sweep"} <= {*feature_removal.with_dependents("quantize")}
    for feature in feature_removal.features():
        names = feature_removal.names_of(feature_removal.with_dependents(feature))
        assert names.words
        rooms = {home.split(".")[2] for home in list_offers("methods").values()}
        assert names.methods or feature not in rooms
