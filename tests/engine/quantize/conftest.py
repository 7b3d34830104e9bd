"""QONNX in a folder of its own, put before the program's packages: it needs an older onnx than they have."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

REQUIREMENTS = ("qonnx==1.0.0", "onnx==1.19.1", "toposort>=1.7")
"""QONNX and what it imports to execute a file besides the program's own packages."""

Command = tuple[str, dict[str, str]]
"""An interpreter, and the environment in which it has QONNX."""

Executed = tuple[dict[str, np.ndarray], dict[str, str]]
"""Outputs by their names, and the types that QONNX finds in them."""


def _said(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or "nothing was said")[-2000:])


@pytest.fixture(scope="session")
def qonnx_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """An interpreter that has QONNX: the one that QONNX_PYTHON names, or ours with a folder made for it.

    That is kept with what pytest keeps, and made once, whichever process of the tests is first.
    """
    if named := os.environ.get("QONNX_PYTHON"):
        return named, dict(os.environ)
    kept = getattr(request.config, "cache", None)
    folder = kept.mkdir("qonnx") if kept else tmp_path_factory.mktemp("qonnx")
    packages, whole = folder / "packages", folder / "installed"
    command = sys.executable, {**os.environ, "PYTHONPATH": str(packages)}
    wanted = f"{sys.version} {REQUIREMENTS}"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole.exists() and whole.read_text() == wanted:
            return command
        shutil.rmtree(packages, ignore_errors=True)
        options = ("--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check")
        try:
            _said(
                [sys.executable, "-m", "pip", "install", *options, "--target", str(packages), *REQUIREMENTS]
            )
        except RuntimeError as problem:
            pytest.skip(f"QONNX cannot be installed: {str(problem).splitlines()[-1]}")
        whole.write_text(wanted)
    return command


@pytest.fixture(scope="session")
def in_qonnx(
    qonnx_python: Command,
) -> Callable[[Path, dict[str, dict[str, np.ndarray]]], dict[str, Executed]]:
    """Executes the files of a folder, each on its inputs, both by the files' names without '.onnx'."""

    def execute(folder: Path, feeds: dict[str, dict[str, np.ndarray]]) -> dict[str, Executed]:
        for name, arrays in feeds.items():
            np.savez(folder / f"{name}.npz", **arrays)
        python, environment = qonnx_python
        _said([python, str(Path(__file__).with_name("qonnx_runs.py")), str(folder)], environment)
        out = {}
        for name in feeds:
            types = (folder / f"{name}.types").read_text().splitlines()
            with np.load(folder / f"{name}.out.npz") as arrays:
                out[name] = dict(arrays), dict(line.split() for line in types)
        return out

    return execute
