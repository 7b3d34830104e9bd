"""Imports of a whole command, as a fresh process sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import explorer

DRAWS_OR_COMPUTES = {
    *("argparse", "dataclasses", "flatbuffers", "hashlib", "inspect", "logging", "msgspec", "numpy", "onnx"),
    *("pathlib", "rich", "textual", "tflite", "torch", "filelock", "platformdirs", "psutil"),
}
"""What takes longer to import than the header of a model takes to read."""


def loaded(*words: object) -> set[str]:
    """Modules that `explorer WORDS` imports."""
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        f"sys.path.insert(0, {str(Path(explorer.__file__).parents[1])!r})\n"
        "from explorer.cli.main import main\n"
        f"code = main({[str(word) for word in words]!r})\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\nraise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}
