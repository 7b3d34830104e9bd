"""Removal of a feature: the program and the tests of the rest must stay green without it.

    python -m tests.feature_removal FEATURE     removes it from a copy of the checkout, and prints what breaks
    python -m tests.feature_removal --week      draws the feature by the number of the week
    ... --minutes N                             runs the tests of the rest for N minutes (2)
    ... --types                                 also runs mypy

The copy lies in a temporary folder. It loses the feature's folder and its name in every list of features, all
features that import it, their functions in the public API, and their tests.

A test belongs to a feature when it lies in `tests/features/FEATURE`, or when its function does one of these;
fixtures, constants and helpers that the function uses count as its own:

- it imports the feature,
- it names a verb, change, command or function of the feature in a text,
- it calls a method that the feature adds to `Session`,
- it presses a key that the feature adds to the main screen.

Pictures of the whole screen and pages that describe the whole program are goldens of every feature. The exit
code is 1 when an import, a linter or a test fails. The tests of the engine are left out: contracts of the
import linter say already that the engine knows no feature.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIST = "explorer/features/__init__.py"
PUBLIC = ("explorer/__init__.py", "explorer/session/__init__.py")
GOLDEN_PAGES = ("tests/test_manual.py", "tests/test_tasks.py", "tests/test_prose.py", "tests/test_samples.py")
GOLDEN_PICTURES = {"snap_compare", "snapshot"}
BEFORE_THE_KERNELS = (
    "tests/engine/",
    "tests/facts/",
    "tests/fuzz/",
    "tests/compat/",
    "tests/bench/",
    "tests/hunt/",
)
_LEFT_OUT = "REMOVED_TESTS"
_BUILT_IN = set(dir(str)) | set(dir(dict)) | set(dir(list)) | {"graph", "settings", "weights"}
"""Attributes of other objects, too: these count as a session's only where the object is named like one."""


class Names(NamedTuple):
    """What a test may name of the features that are removed."""

    rooms: tuple[str, ...]
    words: frozenset[str]
    methods: frozenset[str]
    keys: frozenset[str]


def features() -> tuple[str, ...]:
    """All features."""
    names: tuple[str, ...] = import_module("explorer.features").FEATURES
    return names


def with_dependents(feature: str) -> tuple[str, ...]:
    """The feature, and all that import it or another of the result."""
    imported = {name: _imported_rooms(ROOT / "explorer" / "features" / name) for name in features()}
    removed = {feature}
    while more := {name for name, rooms in imported.items() if rooms & removed} - removed:
        removed |= more
    return tuple(name for name in features() if name in removed)


def _imported_rooms(folder: Path) -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    return set(re.findall(r"(?:from|import) explorer\.features\.(\w+)", text)) - {folder.name}


def names_of(removed: tuple[str, ...]) -> Names:
    """What the features offer, by name."""
    words: set[str] = set()
    methods: set[str] = set()
    keys: set[str] = set()
    for room in removed:
        module = f"explorer.features.{room}"
        offers = import_module(module).FEATURE.offers
        words |= {
            name for kind in ("verbs", "changes", "functions", "pictures") for name in offers.get(kind, ())
        }
        methods |= set(offers.get("methods", ()))
        for home in offers.get("main_keys", {}).values():
            table, _, name = home.rpartition(".")
            for command in getattr(import_module(f"{module}.{table}"), name):
                words.add(command.id)
                keys |= {*command.keys, command.shown}
    return Names(removed, frozenset(words), frozenset(methods), frozenset(keys))


class TestFile:
    """A file of tests: what each of its names mentions, and which other names it uses."""

    __test__ = False

    def __init__(self, path: Path, removed: Names) -> None:
        self._removed = removed
        self.path = path
        self.at_top: set[str] = set()
        """Modules of tests that it imports, and '' for a removed feature: without them it cannot load."""
        self.uses: dict[str, set[str]] = {}
        self.sources: dict[str, tuple[str, str]] = {}
        """Names that it imports from other modules of tests."""
        self.naming: set[str] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in _defined(node):
                self._add(name, node)
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._add_import(node)

    def _add(self, name: str, node: ast.stmt) -> None:
        used = self.uses.setdefault(name, set())
        looked_up = {id(key) for part in ast.walk(node) for key in _keys_of(part)}
        for part in ast.walk(node):
            if id(part) in looked_up:
                continue
            if isinstance(part, ast.Name):
                used.add(part.id)
            elif isinstance(part, ast.arg):
                used.add(part.arg)
            if self._is_mention(part):
                self.naming.add(name)
        if used & GOLDEN_PICTURES:
            self.naming.add(name)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if self._is_mention(node):
            self.at_top.add("")
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            origin = module or alias.name
            if origin.split(".")[0] == "tests":
                self.at_top |= {origin, f"{origin}.{alias.name}"}
                self.sources[alias.asname or alias.name] = (origin, alias.name)

    def _is_mention(self, node: ast.AST) -> bool:
        rooms, words, methods, keys = self._removed
        homes_of_rooms = tuple(f"explorer.features.{room}" for room in rooms)
        if isinstance(node, ast.ImportFrom):
            homes = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            public = {alias.name for alias in node.names if node.module in ("explorer", "explorer.session")}
            return bool(public & words) or any(home.startswith(homes_of_rooms) for home in homes)
        if isinstance(node, ast.Import):
            return any(alias.name.startswith(homes_of_rooms) for alias in node.names)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            return text.split(" ")[0].strip() in words or any(
                f"explorer {word} " in text or f"features.{room}" in text or f"features/{room}" in text
                for word in words
                for room in rooms
            )
        if isinstance(node, ast.Attribute) and node.attr in words:
            return ast.unparse(node.value) == "explorer"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        owner = ast.unparse(node.func.value)
        if node.func.attr in methods:
            return (
                node.func.attr not in _BUILT_IN or "ession" in owner or "client" in owner or len(owner) == 1
            )
        texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        return node.func.attr == "press" and not keys.isdisjoint(texts)


def _keys_of(node: ast.AST) -> list[ast.expr | None]:
    """Texts that look something up, or that something is compared with: no call of a verb."""
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Dict):
        return node.keys
    return [node.left, *node.comparators] if isinstance(node, ast.Compare) else []


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


def tests_of(root: Path, removed: Names) -> tuple[list[str], list[str]]:
    """Files of tests that cannot load without the features, and tests (path::name) that are about them."""
    files = {}
    for path in sorted((root / "tests").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        files[module] = TestFile(path, removed)
    gone = {name for name, file in files.items() if "" in file.at_top}
    while more := {name for name, file in files.items() if file.at_top & gone} - gone:
        gone |= more
    naming = {(module, name) for module, file in files.items() for name in file.naming}
    size = -1
    while size != len(naming):
        size = len(naming)
        for module, file in files.items():
            for name, used in file.uses.items():
                places = {place for one in used for place in _places(files, module, one)}
                if places & naming:
                    naming.add((module, name))
    own = tuple(f"tests/features/{room}/" for room in removed.rooms)
    paths = {module: file.path.relative_to(root).as_posix() for module, file in files.items()}
    lost = [
        path
        for module, path in paths.items()
        if module in gone or path.startswith(own) or path in GOLDEN_PAGES
    ]
    tests = [f"{paths[module]}::{name}" for module, name in naming if name.startswith(("test_", "Test"))]
    return sorted(lost), sorted(tests)


def _places(files: dict[str, TestFile], module: str, name: str) -> Iterator[tuple[str, str]]:
    """Where a name that a file uses may be defined: there, where it is imported from, in a conftest above."""
    file = files[module]
    if name in file.uses:
        yield module, name
    elif name in file.sources:
        yield file.sources[name]
    else:
        parts = module.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            conftest = ".".join([*parts[:depth], "conftest"])
            if conftest in files and name in files[conftest].uses:
                yield conftest, name
                return


def copy_checkout(target: Path) -> None:
    """All files of the checkout that git knows or would take."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def remove(root: Path, removed: tuple[str, ...]) -> None:
    """Takes features out of a copy: folders, lines of lists, names of the public API."""
    functions = {
        name
        for room in removed
        for name in import_module(f"explorer.features.{room}").FEATURE.offers.get("functions", ())
    }
    for room in removed:
        shutil.rmtree(root / "explorer" / "features" / room)
    _rewrite(root / LIST, f'^ *"({"|".join(removed)})",\n')
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    start = text.index("layers = [", text.index('name = "Features: which may know which"'))
    end = text.index("\n]", start)
    layers = [
        [room for room in layer.split(" | ") if room not in removed]
        for layer in re.findall(r'^    "(.*)"', text[start:end], re.MULTILINE)
    ]
    rows = "".join(f'\n    "{" | ".join(layer)}",' for layer in layers if layer)
    (root / "pyproject.toml").write_text(f"{text[:start]}layers = [{rows}{text[end:]}", encoding="utf-8")
    for name in PUBLIC if functions else ():
        _rewrite(root / name, rf'"?(?<!\.)\b({"|".join(functions)})\b"?,? ?')


def _rewrite(path: Path, pattern: str) -> None:
    path.write_text(
        re.sub(pattern, "", path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8"
    )


IMPORTS = """
import importlib, pkgutil, sys, explorer
failed = []
for module in pkgutil.walk_packages(explorer.__path__, "explorer."):
    if module.name.endswith("__main__") or module.name.startswith("explorer.manual."):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("explorer"):
            failed.append(f"{module.name}: {error}")
    except Exception as error:
        failed.append(f"{module.name}: {error!r}")
for name in explorer.__all__:
    getattr(explorer, name)
sys.exit("\\n".join(failed) or 0)
"""


def check(root: Path, minutes: float, *, types: bool) -> list[str]:
    """What of the rest is broken; each check prints what it says as it ends."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    python = (sys.executable,)
    tests = (
        "-m",
        "pytest",
        "tests",
        "-q",
        "-m",
        "not slow",
        "-p",
        "tests.feature_removal",
        "-p",
        "no:cacheprovider",
    )
    checks: dict[str, tuple[str, ...]] = {
        "format": (str(tools / "ruff"), "format", "-q", "explorer/__init__.py", "explorer/session"),
        "public methods": (*python, "-m", "tests.public_api"),
        "imports": (*python, "-c", IMPORTS),
        "ruff": (str(tools / "ruff"), "check", "-q", "."),
        "import contracts": (str(tools / "lint-imports"), "--no-cache"),
        "types": (str(tools / "mypy"), "--strict", "explorer", "--cache-dir", str(root / ".mypy")),
        "tests": (*python, *tests, "--no-header", "--tb=short"),
    }
    broken = []
    for name, command in checks.items():
        if name == "types" and not types:
            continue
        start = time.monotonic()
        limit = {"REMOVAL_SECONDS": str(minutes * 60)}
        done = subprocess.run(command, cwd=root, env=environment | limit, capture_output=True, text=True)
        print(
            f"{name}: {'failed' if done.returncode else 'passed'} in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        if done.returncode:
            broken.append(name)
            print(done.stdout[-12_000:], done.stderr[-4_000:], flush=True)
        elif name == "tests":
            print(done.stdout.splitlines()[-1], flush=True)
    return broken


# the plugin, in the copy


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """The engine and what lies below it know no feature."""
    path = collection_path.as_posix() + "/" * collection_path.is_dir()
    return True if any(f"/{folder}" in path for folder in BEFORE_THE_KERNELS) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of what is removed; files come in a random order, another one each day."""
    left_out = set(json.loads(Path(os.environ[_LEFT_OUT]).read_text(encoding="utf-8")))
    chosen = [
        item for item in items if "::".join(item.nodeid.partition("[")[0].split("::")[:2]) not in left_out
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    files = sorted({item.nodeid.partition("::")[0] for item in chosen})
    random.Random(datetime.date.today().toordinal()).shuffle(files)
    places = {file: place for place, file in enumerate(files)}
    items[:] = sorted(chosen, key=lambda item: places[item.nodeid.partition("::")[0]])


_start = time.monotonic()
_ends: list[bool] = []
"""Whether each test failed that has run."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how a test ended."""
    if report.failed or report.when == "call":
        _ends.append(report.failed)


def pytest_runtest_logfinish() -> None:
    """Ends after the minutes that the tests of the rest may take."""
    if time.monotonic() - _start > float(os.environ["REMOVAL_SECONDS"]):
        pytest.exit(
            f"the time is over: {sum(_ends)} of {len(_ends)} tests failed", returncode=int(any(_ends))
        )


def main(words: list[str]) -> int:
    """Removes a feature from a copy, and checks the rest."""
    parser = argparse.ArgumentParser(prog="python -m tests.feature_removal")
    parser.add_argument("feature", nargs="?", choices=features())
    parser.add_argument("--week", action="store_true")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--keep", help="a folder for the copy, which stays")
    given = parser.parse_args(words)
    if given.week == (given.feature is not None):
        parser.error("name a feature, or pass --week")
    week = datetime.date.today().isocalendar().week
    feature = given.feature or features()[week % len(features())]
    removed = with_dependents(feature)
    print(f"removed: {', '.join(removed)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="removal-") as folder:
        root = Path(given.keep or folder)
        copy_checkout(root)
        lost, left_out = tests_of(root, names_of(removed))
        remove(root, removed)
        for name in lost:
            (root / name).unlink()
        listed = root.parent / f"{root.name}-tests.json" if given.keep else root / ".removed_tests.json"
        listed.write_text(json.dumps(left_out), encoding="utf-8")
        os.environ[_LEFT_OUT] = str(listed)
        print(f"left out: {len(left_out)} tests, and these files: {', '.join(lost)}", flush=True)
        broken = check(root, given.minutes, types=given.types)
    print(f"broken: {', '.join(broken)}" if broken else "nothing broke")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
