"""One environment: versions resolved, installed, tried, deleted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

from tests.compat.version_sets import VersionSet, name_of, test_tools
from tests.resolver import ROOT, compile_pins, run_uv

__all__ = ["Outcome", "Unresolved", "counted", "resolve", "run_tests"]

SUITE = ("tests/compat", "tests/engine/costs/aten")
BAD = ("failure", "error")
"""How pytest's report tags what did not pass."""
LIMIT = 1800
"""Seconds for the tests of one environment: ten times what they take."""


class Unresolved(Exception):
    """No versions fit together, or none can be installed; the message is uv's own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests of one set came to."""

    name: str
    versions: dict[str, str]
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()
    """Test and message of each failure; what kept the tests from starting is one, too."""
    same_as: str = ""
    """The set whose versions are the same, and which was run."""

    @property
    def is_good(self) -> bool:
        return not self.failures and self.passed > 0


def resolve(asked: VersionSet) -> dict[str, str]:
    """Versions by package, for this Python on this machine.

    Raises:
        Unresolved: Nothing fits.
    """
    with tempfile.TemporaryDirectory() as folder:
        more = Path(folder) / "tools.txt"
        more.write_text("\n".join([*test_tools(), *asked.requirements]))
        done = compile_pins(asked.extras, more, "--python", sys.executable, *asked.options)
    if done.returncode:
        raise Unresolved(done.stderr.strip())
    lines = (line.partition("==") for line in done.stdout.splitlines() if "==" in line)
    return {name_of(name): version for name, _, version in lines}


def run_tests(asked: VersionSet, versions: dict[str, str], folder: Path) -> Outcome:
    """Installs these versions into an environment in `folder`, and runs the tests there.

    Raises:
        Unresolved: A package cannot be installed here.
    """
    began = time.monotonic()
    python = _install(versions, folder)
    report = folder / "report.xml"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        "--continue-on-collection-errors",
        f"--junit-xml={report}",
        "--basetemp",
        folder / "tests",
    ]
    command = [python, "-m", "pytest", *SUITE, *options]
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
        )
        ending = (done.stdout + done.stderr).strip()
    except subprocess.TimeoutExpired:
        ending = f"the tests were not done after {LIMIT} s"
    outcome = replace(counted(report), name=asked.name, versions=versions, seconds=time.monotonic() - began)
    if not outcome.passed and not outcome.failures:  # pytest itself did not start
        return replace(outcome, failed=1, failures=(_last_line(ending),))
    return outcome


def _install(versions: dict[str, str], folder: Path) -> Path:
    environment, pins = folder / "environment", folder / "pins.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    for words in (
        ("venv", "--quiet", "--python", sys.executable, environment),
        ("pip", "install", "--quiet", "--no-deps", "--python", python, "--requirement", pins),
        ("pip", "install", "--quiet", "--no-deps", "--python", python, "--editable", "."),
    ):
        done = run_uv(*words, seconds=3600)
        if done.returncode:
            raise Unresolved(done.stderr.strip())
    return python


def counted(report: Path) -> Outcome:
    """The numbers of pytest's report; nothing where there is none."""
    if not report.exists():
        return Outcome("", {})
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failures = [f"{case.get('name')}: {_message(part)}" for case in cases for part in case if part.tag in BAD]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - skipped - sum(any(part.tag in BAD for part in case) for case in cases)
    return Outcome("", {}, passed, len(failures), skipped, failures=tuple(failures))


def _message(failure: ET.Element) -> str:
    message = failure.get("message") or ""
    if message == "collection failure":  # what happened stands at the end of its text
        return _last_line(failure.text or "")
    return next(iter(message.strip().splitlines()), "no message")


def _last_line(text: str) -> str:
    """The last line of a program that says something, or that it said nothing."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else "no output"
