"""What every test may ask for: the sample models, and an environment that does not depend on the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Textual reads these when it is first imported, hence before any test module is collected
for _name in list(os.environ):
    if _name.startswith("TEXTUAL_SNAPSHOT"):
        continue  # the snapshot plugin's own, handed down to the processes that share the tests
    if _name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "COLUMNS", "LINES") or _name.startswith(
        ("TEXTUAL", "SSH_", "EXPLORER_")
    ):
        del os.environ[_name]
os.environ["TERM"] = "xterm-256color"

# a shell's background job ignores Ctrl+C, and so would every program that a test starts and stops
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a change is judged by the same examples each time; who works on the code explores new ones
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

SAMPLES = Path(__file__).parent.parent / "sample_models"


@pytest.fixture(scope="session")
def sample() -> Callable[[str], Path]:
    """`sample('lenet')` is the path of sample_models/lenet.onnx."""

    def path(name: str) -> Path:
        found = SAMPLES / f"{name}.onnx"
        assert found.is_file(), f"no sample model {name}: run python sample_models/build.py"
        return found

    return path
