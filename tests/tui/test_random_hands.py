"""Random keys, clicks and sizes on new seeds; a failure names the seed, and how to see it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.terminal import ROOT

SECONDS = 30


def test_random_hands_break_nothing(tmp_path: Path) -> None:
    # in a process of its own: this folder's tests draw nothing until they look
    command = [
        sys.executable,
        "-m",
        "tests.hunt",
        "screen",
        "--minutes",
        str(SECONDS / 60),
        "--keep",
        str(tmp_path),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
