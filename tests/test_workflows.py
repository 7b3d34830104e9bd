"""The workflows are YAML that says what the project promises: which Pythons, which systems."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_each_job_has_a_machine_an_end_and_commands(file: Path) -> None:
    flow = yaml.safe_load(file.read_text())
    assert flow["permissions"] == {"contents": "read"}
    assert flow[True], "`on` is read as a boolean"  # YAML 1.1, which GitHub reads otherwise
    for job in flow["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job)
        assert all(set(step) & {"uses", "run"} for step in job["steps"])


def test_every_python_of_the_classifiers_is_tried_by_the_gate() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {
        found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line)) is not None
    }
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text()
    assert promised <= set(re.findall(r'"(3\.\d+)"', text))
    assert {"ubuntu-latest", "macos-latest", "windows-latest"} <= set(re.findall(r"\b\w+-latest\b", text))


def test_no_upper_bound_keeps_a_python_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "<" not in project["requires-python"]
    assert set(project["scripts"]) == {"explorer", "explorer-nn"}
    assert len(set(project["scripts"].values())) == 1
