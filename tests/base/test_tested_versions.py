"""Tested versions: a row for each dependency, patches inside their release, origins of errors."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from explorer.base import tested_versions
from explorer.base.tested_versions import TESTED, build_version_note, is_tested, list_failing_packages

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
NOT_USERS = {"bench", "compat", "docs", "fuzz", "test"}
"""Extras of whoever works on the program."""


def bounds() -> dict[str, str]:
    """The lower bound of every dependency that users install."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in extras if name not in NOT_USERS for line in extras[name]),
    ]
    lines = [line for line in lines if not line.startswith("explorer-nn")]
    found = {}
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?\s*(?:>=|==)([\w.]+)", line)
        assert match, line
        # an extra may need a newer one than the others do
        found[match[1]] = min(match[2], found.get(match[1], match[2]), key=Version)
    return found


def test_every_dependency_has_a_row_that_starts_at_its_lower_bound() -> None:
    lowest = {row.package: row.lowest for row in TESTED}
    assert {package: lowest.get(package) for package in bounds()} == bounds()
    assert lowest["python"] == PYPROJECT["project"]["requires-python"].partition(",")[0].removeprefix(">=")
    assert [row.package for row in TESTED[1:]] == sorted((row.package for row in TESTED[1:]), key=str.lower)


@pytest.mark.parametrize(
    ("package", "version", "inside"),
    [
        ("transformers", "5.0.0", True),
        ("transformers", "5.24.7", True),
        ("transformers", "5.25.0.dev0", False),
        ("transformers", "4.57.6", False),
        ("transformers", "6", False),
        ("torch", "2.14.1+cpu", True),
        ("torch", "2.8.0", False),
        ("textual", "8.2.7", False),
        ("textual", "8.2.12", True),
        ("unheard-of", "0.1", True),
        ("torch", "main", True),
    ],
)
def test_a_range_holds_the_patches_of_its_newest_release(package: str, version: str, inside: bool) -> None:
    assert is_tested(package, version) is inside


def test_the_note_names_the_range_and_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"transformers": "5.31", "gguf": "0.20", "torch": "2.14.1"}
    monkeypatch.setattr(tested_versions, "read_installed_version", lambda package: versions.get(package, ""))
    assert build_version_note("transformers") == "tested with transformers 5.0 to 5.24; 5.31 is installed"
    assert build_version_note("gguf") == "tested with gguf 0.19; 0.20 is installed"
    assert build_version_note("torch") == ""
    assert build_version_note("dask") == "", "not installed"


def test_the_origin_of_an_error_is_what_it_names_and_what_it_passed_through() -> None:
    import msgspec
    import numpy as np

    with pytest.raises(np.linalg.LinAlgError) as inner:
        np.linalg.inv(np.zeros((2, 2)))
    assert list_failing_packages(inner.value) == ["numpy"]
    with pytest.raises(AttributeError) as lacking:
        np.nothing_of_the_kind  # noqa: B018
    assert list_failing_packages(lacking.value) == ["numpy"]
    with pytest.raises(msgspec.DecodeError) as outer:
        decode_after(inner.value)
    assert list_failing_packages(outer.value) == ["msgspec", "numpy"]
    assert list_failing_packages(ValueError("of nobody")) == []


def decode_after(first: Exception) -> None:
    import msgspec

    try:
        raise first
    except type(first):
        msgspec.json.decode(b"{")
