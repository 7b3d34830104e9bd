"""SECURITY.md says what is true: which code runs without `--trust`, and which does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import ROOT

MODEL = str(ROOT / "sample_models" / "lenet.onnx")
CODE = 'import torch\nopen("ran", "w").close()\n\n\ndef build():\n    return torch.nn.Linear(3, 4)\n'


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (("net:build",), True),
        (("net.py:build",), True),
        ((MODEL, "--rules", "net.py"), False),
        (("net.pt",), False),
    ],
)
def test_code_runs_where_it_is_named_and_not_where_it_is_found(
    tmp_path: Path, words: tuple[str, ...], runs: bool
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(CODE)

    class Opens:
        def __reduce__(self) -> tuple[object, ...]:
            return open, ("ran", "w")

    torch.save({"w": torch.ones(2), "x": Opens()}, tmp_path / "net.pt")
    done = subprocess.run(
        [sys.executable, "-m", "explorer", "info", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (tmp_path / "ran").exists() == runs, done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_says_so() -> None:
    page = " ".join((ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8").split())
    assert "naming a callable asks for it to run" in page
    assert "`--rules FILE` needs `--trust` too" in page
