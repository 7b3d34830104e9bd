"""pytest plug-in: its fixtures, found through the entry point, and what a run without them pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from explorer import manual
from tests.manual import blocks

ROOT = Path(__file__).parent.parent
MODEL = "sample_models/lenet.onnx"

MODULES = """
import json, sys

def test_modules(request):
    assert request.config.pluginmanager.has_plugin("explorer")
    names = [name for name in sys.modules if name.partition(".")[0] == "explorer"]
    print("names", json.dumps(sorted(names)))
"""
"""A test that asks for no fixture of the plug-in."""

FIXTURES = f"""
def test_session(explorer_model, assert_budget):
    session = explorer_model("{MODEL}")
    fact = assert_budget(session, max_macs="0.5M", min_coverage="100%")
    assert fact.models[0].budgets[0].value == session.info().totals.macs

def test_path(assert_budget):
    assert_budget("{MODEL}", max_params=10)

def test_wrong_budget(assert_budget):
    assert_budget("{MODEL}", max_macs="4X")
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run of all tests above, and of the page's test, where a package has the entry points of this one."""
    folder = tmp_path_factory.mktemp("tests")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    metadata = folder / "site" / "door-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: door\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    (folder / "sample_models").symlink_to(ROOT / "sample_models")
    (page,) = [block["body"] for block in blocks(manual.page("pytest")) if "explorer_model" in block["body"]]
    for name, text in (("modules", MODULES), ("page", page), ("session", FIXTURES)):
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-v", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_the_fixtures_open_models_and_hold_them_to_budgets(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1, done.stderr
    assert "2 failed, 3 passed" in done.stdout
    assert "test_page.py::test_size PASSED" in done.stdout
    assert "test_session.py::test_session PASSED" in done.stdout
    assert "parameters: 61.71 k is over the limit of 10" in done.stdout
    lines = done.stdout.splitlines()
    assert lines.count("--max-macs: '4X' is not a limit; write 4.1G, 4.1e9 or +5%") == 1
    assert "raise Misuse" not in done.stdout, "no traceback"


def test_a_run_imports_nothing_of_the_program_before_a_test_asks(
    done: subprocess.CompletedProcess[str],
) -> None:
    (line,) = [line for line in done.stdout.splitlines() if "names [" in line]
    assert set(json.loads(line[line.index("[") :])) == {
        "explorer",
        "explorer.base",
        "explorer.base.version",
        "explorer.pytest_plugin",
    }
