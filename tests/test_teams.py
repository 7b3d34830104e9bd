"""Doors for teams: the pre-commit hook, the GitHub action, and the examples of the manual's pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from explorer import manual
from tests.manual import blocks

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a model, its budget, and a program `explorer` on the path."""
    shutil.copy(ROOT / "sample_models" / "lenet.onnx", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.explorer."lenet.onnx"]\nmax-params = 70000\n')
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "explorer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m explorer "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run_bash(project: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    environment |= {"PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(
        words, cwd=project, env={**environment, **variables}, capture_output=True, text=True
    )


def test_the_hook_checks_the_models_of_the_project(project: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    assert hook["id"] in manual.page("pyproject")
    assert run_bash(project, hook["entry"]).returncode == 0
    (project / "pyproject.toml").write_text('[tool.explorer."lenet.onnx"]\nmax-params = 60000\n')
    done = run_bash(project, hook["entry"])
    assert (done.returncode, done.stderr) == (1, "")
    assert "parameters: 61.71 k is over the limit of 60.00 k" in done.stdout


def read_action() -> dict[str, Any]:
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return action


def test_the_steps_of_the_action_check_the_models(project: Path) -> None:
    action = read_action()
    assert action["runs"]["using"] == "composite"
    install, check = (step for step in action["runs"]["steps"] if "run" in step)
    defaults = {name: entry["default"] for name, entry in action["inputs"].items()}
    (project / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    (project / "bin" / "python").chmod(0o755)
    done = run_bash(project, install["run"], GITHUB_ACTION_PATH="/action", EXTRAS="torch,train")
    assert done.stdout == "-m pip install --quiet /action[torch,train]\n"
    done = run_bash(project, install["run"], GITHUB_ACTION_PATH="/action", EXTRAS=defaults["extras"])
    assert done.stdout == "-m pip install --quiet /action\n"
    summary = project / "summary.md"
    variables = {"MODELS": defaults["models"], "GITHUB_STEP_SUMMARY": str(summary)}
    done = run_bash(project, check["run"], **variables, ARGUMENTS="--max-macs 1 --junit check.xml")
    assert done.returncode == 1
    assert "::error file=lenet.onnx,title=MACs of lenet.onnx%3A missed::" in done.stdout
    assert "Model budgets" in summary.read_text()
    assert 'failures="1"' in (project / "check.xml").read_text()


def test_values_of_the_action_are_no_commands(project: Path) -> None:
    (*_, check) = read_action()["runs"]["steps"]
    assert "${{" not in check["run"]
    done = run_bash(project, check["run"], MODELS="$(touch x) ; touch y", ARGUMENTS="--max-macs 1")
    assert done.returncode == 2
    assert not (project / "x").exists()
    assert not (project / "y").exists()


def test_the_workflow_of_the_page_gives_the_action_what_it_takes() -> None:
    flow, hooks = (
        yaml.safe_load(block["body"])
        for topic in ("github", "pyproject")
        for block in blocks(manual.page(topic))
        if block["kind"] == "yaml"
    )
    (step,) = [step for step in flow["jobs"]["budgets"]["steps"] if not step["uses"].startswith("actions/")]
    assert set(step["with"]) <= set(read_action()["inputs"])
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hooks["repos"][0]["hooks"][0]["id"] == hook["id"]


def test_the_tracking_example_of_the_page_logs_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (text,) = [block["body"] for block in blocks(manual.page("lightning")) if "mlflow" in block["body"]]
    assert len(text.splitlines()) <= 10
    logged: dict[str, float] = {}

    class Tracker:
        """Stands for mlflow, which is no dependency."""

        @staticmethod
        def start_run() -> Any:
            return __import__("contextlib").nullcontext()

        @staticmethod
        def log_metrics(figures: dict[str, float]) -> None:
            logged.update(figures)

    monkeypatch.setitem(sys.modules, "mlflow", Tracker)  # type: ignore[arg-type]
    monkeypatch.chdir(ROOT)
    exec(compile(text, "lightning.md", "exec"), {})
    assert logged["explorer/macs"] == 416_520
