"""Features are known through one list, and what they offer is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from explorer.base import features
from explorer.features import FEATURES
from tests import public_api

ROOT = Path(__file__).parents[2] / "explorer"
KINDS = (
    "verbs",
    "methods",
    "functions",
    "main_keys",
    "keys",
    "layer_lines",
    "model_blocks",
    "pictures",
    "sections",
    "words",
    "blocks",
    "displays",
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_features_offer_is_there(kind: str) -> None:
    offered = features.list_offers(kind)
    assert offered
    for name in offered:
        assert features.load(kind, name) is not None


def test_no_feature_is_forgotten_in_the_list() -> None:
    folders = {path.parent.name for path in (ROOT / "features").glob("*/__init__.py")}
    assert folders == set(FEATURES)
    assert len(FEATURES) == len(folders)


def _names(path: Path) -> set[str]:
    """All that a file imports, and all texts in it that name a room of features."""
    found: set[str] = set()
    source = path.read_text(encoding="utf-8")
    if "explorer.features" not in source:
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value)
    return {name for name in found if name.startswith("explorer.features")}


def test_one_file_below_the_features_knows_where_they_are() -> None:
    kernels = [path for path in ROOT.rglob("*.py") if (ROOT / "features") not in path.parents]
    naming = [path.relative_to(ROOT).as_posix() for path in kernels if _names(path)]
    assert naming == ["base/features.py"]


@pytest.mark.parametrize("path", sorted((ROOT / "features").rglob("*.py")), ids=lambda path: path.name)
def test_files_of_a_feature_import_what_their_kind_may(path: Path) -> None:
    imported = {
        (node.module or "").split(".")[0]
        if not (node.module or "").startswith("explorer.")
        else (node.module or "")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    draws = {"textual"} & imported or any(name.startswith("explorer.tui") for name in imported)
    counts = any(name.startswith("explorer.engine") for name in imported)
    assert not (draws and counts), "what draws a screen asks the session, never the engine"
    if path.stem.endswith(("_words", "_methods", "_command")):
        assert not draws


def test_types_of_the_public_methods_are_as_the_source_has_them() -> None:
    assert public_api.STUB.read_text(encoding="utf-8") == public_api.stub(), "python -m tests.public_api"
