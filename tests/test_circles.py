"""Circles of imports, between files and between folders, and public class names with two meanings: none.

Contracts of the import linter name layers of one folder at a time, so a file beside the folders can close a
circle that each of them allows. Imports inside functions and for types alone count too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "explorer"


def circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of a graph of imports; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return []


@cache
def imports_of_files() -> dict[str, set[str]]:
    graph = grimp.build_graph("explorer", cache_dir=None)
    return {
        module: {
            other
            for other in graph.find_modules_directly_imported_by(module)
            if not module.startswith(f"{other}.")  # a package is imported before its parts in any case
        }
        for module in graph.modules
    }


def room(module: str) -> str:
    """The folder that a module is in, at most two levels below the package."""
    folder = ROOT.joinpath(*module.split("."))
    parts = folder.relative_to(ROOT).parts if folder.is_dir() else folder.relative_to(ROOT).parts[:-1]
    return "/".join(parts[:3])


def test_no_files_and_no_folders_import_each_other_in_a_circle() -> None:
    files = imports_of_files()
    assert circle(files) == []
    folders: dict[str, set[str]] = defaultdict(set)
    for module, others in files.items():
        folders[room(module)] |= {room(other) for other in others} - {room(module)}
    assert circle(folders) == []


def test_a_circle_through_a_file_beside_the_folders_is_found() -> None:
    files = {"tui.start": {"tui.dialogs.open"}, "tui.dialogs.open": {"tui.assumed"}, "tui.assumed": set()}
    assert circle(files) == []
    folders = {"tui": {"tui/dialogs"}, "tui/dialogs": {"tui"}}
    assert {*circle(folders)} == {"tui", "tui/dialogs"}


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^ *class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
