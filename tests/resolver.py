"""`uv` for scripts and tests: where its program is, and what it resolves.

No index is named here: uv reads the user's own settings (`UV_INDEX`, `uv.toml`).
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["MISSING", "ROOT", "answers", "compile_pins", "find_uv", "run_uv"]

ROOT = Path(__file__).parent.parent
MISSING = "uv is not installed: pip install 'explorer-nn[compat]'"


def find_uv() -> str | None:
    """The path of uv's program: the one of this environment, else the one of the shell."""
    if importlib.util.find_spec("uv") is not None:
        from uv import find_uv_bin

        return find_uv_bin()
    return shutil.which("uv")


def run_uv(*words: str | Path, stdin: str = "", seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Runs uv in the project's folder. The caller reads the exit code.

    Raises:
        FileNotFoundError: uv is not installed.
    """
    program = find_uv()
    if program is None:
        raise FileNotFoundError(MISSING)
    command = [program, *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=seconds)


def compile_pins(extras: Iterable[str], *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Resolves the project with these extras; its standard output is one requirement a line."""
    named = [word for extra in extras for word in ("--extra", extra)]
    plain = ("--quiet", "--no-header", "--no-annotate")
    return run_uv("pip", "compile", *plain, "pyproject.toml", *named, *options)


def answers() -> bool:
    """Whether uv can resolve one small package: the package index answers, or uv's cache holds it."""
    try:
        return run_uv("pip", "compile", "--quiet", "-", stdin="tomlkit", seconds=60).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
