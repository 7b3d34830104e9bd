"""Sets of versions: what each asks of the resolver."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.resolver import ROOT

__all__ = ["SETS", "VersionSet", "bounds", "name_of", "test_tools"]


@dataclass(frozen=True, slots=True)
class VersionSet:
    """A row of the table."""

    name: str
    about: str
    options: tuple[str, ...] = ()
    """Options of `uv pip compile`."""
    requirements: tuple[str, ...] = ()
    """Requirements beside the project's own."""
    without: tuple[str, ...] = ()
    """Extras that do not go with these versions."""

    @property
    def extras(self) -> list[str]:
        """The extras that are installed."""
        return [name for name in _users_extras() if name not in self.without]


def _of(package: str, *releases: str) -> Iterator[VersionSet]:
    """A set for each release of one package, all others the newest."""
    for release in releases:
        asked = (*PAIRED.get(f"{package} {release}", ()), f"{package}=={release}")
        shown = release.removesuffix(".*")
        about, without = f"{package} {shown}, otherwise the newest", WITHOUT.get(f"{package} {release}", ())
        yield VersionSet(f"{package}-{shown}", about, requirements=asked, without=without)
    yield VersionSet(f"{package}-newest", f"the newest {package}", requirements=(package,))


PAIRED = {"torch 2.9.*": ("torchvision==0.24.*",)}
"""What the resolver would try for long before it finds that nothing newer fits."""

TORCHAO = ("torchao",)
"""It needs torch 2.10, and transformers fails to import where it is installed beside an older one."""
WITHOUT = {"torch 2.9.*": TORCHAO}

SETS = {
    one.name: one
    for one in (
        VersionSet(
            "lowest", "the lower bounds of pyproject.toml", ("--resolution", "lowest-direct"), without=TORCHAO
        ),
        VersionSet("tested", "tests/constraints.txt", ("--constraint", "tests/constraints.txt")),
        VersionSet("newest", "the newest release of everything"),
        VersionSet("pre", "the newest of everything, pre-releases too", ("--prerelease", "allow")),
        *_of("torch", "2.9.*", "2.14.1"),
        *_of("transformers", "5.0.*", "5.12.*"),
        *_of("onnx", "1.19.*"),
        *_of("onnxruntime", "1.23.*"),
        *_of("numpy", "2.0.*"),
    )
}
"""In the order in which they run."""

DEVELOPERS_EXTRAS = {"bench", "compat", "docs", "fuzz", "tensorflow", "test"}
"""Extras that the tests of this folder do not need: tools, and a framework that caps numpy."""

TOOLS = {
    "huggingface-hub",
    "hypothesis",
    "psutil",
    "pyte",
    "pytest",
    "pytest-asyncio",
    "safetensors",
    "tensorboard",
}
"""Packages of the extra `test` that the tests of this folder need."""


def name_of(requirement: str) -> str:
    """The name of a requirement, as the package index spells it: `ml_dtypes>=0.5` is `ml-dtypes`."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def _project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def _users_extras() -> list[str]:
    """The extras that a user installs, and that go together in one environment."""
    optional = _project()["optional-dependencies"]
    assert isinstance(optional, dict)
    return [name for name in optional if name not in DEVELOPERS_EXTRAS]


def test_tools() -> list[str]:
    """Requirements of pytest and the like, with the bounds of the extra `test`."""
    optional = _project()["optional-dependencies"]
    assert isinstance(optional, dict)
    return [line for line in optional["test"] if name_of(line) in TOOLS]


def bounds(asked: VersionSet) -> dict[str, str]:
    """The lower bound of every direct dependency of a set's environment, by the name of the package."""
    project = _project()
    optional, lines = project["optional-dependencies"], project["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(lines, list)
    found = {}
    for line in [*lines, *(line for extra in asked.extras for line in optional[extra]), *test_tools()]:
        if name_of(line) == "explorer-nn":  # an extra that takes others of the project
            continue
        lowest = re.search(r">=\s*([\w.]+)", line)
        assert lowest is not None, f"{line}: no lower bound"
        found[name_of(line)] = lowest[1]
    return found
