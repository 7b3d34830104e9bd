"""Tested versions of every dependency: `python -m tests.constraints` writes `tests/constraints.txt`.

The file holds the versions that the suite last passed with, for every Python and platform at once. The
README's test command installs with it, so that a commit passes next year with what it passes with today.
Versions in the file stay as they are while they fit `pyproject.toml`; `--upgrade` takes the newest releases.
Run the suite and `python -m tests.compat --set tested` before you commit the file.

torch and torchvision stand in it as ranges, because some machines cap them. Packages that torch pins itself
(CUDA and Triton) are left out, because each torch pins its own versions of them.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.manual import command
from tests.resolver import MISSING, ROOT, compile_pins, find_uv

__all__ = ["FILE", "RANGES", "extras", "pins", "write"]

FILE = ROOT / "tests" / "constraints.txt"
RANGES = {"torch": ">=2.14,<2.16", "torchvision": ">=0.29,<0.30"}
"""Packages that the file gives as a range: machines that cap them install the lowest version."""
TORCHS_OWN = re.compile(r"(nvidia|cuda)-|triton\b")
HEADER = """\
# Versions that the test suite last passed with. `python -m tests.constraints` writes this file.
"""


def extras() -> list[str]:
    """The extras that the README's test command installs."""
    names = re.search(r"\.\[([\w,-]+)\]", command("tests"))
    assert names is not None, "the README's test command installs no extras"
    return names[1].split(",")


def pins(text: str) -> dict[str, list[str]]:
    """Requirements by package; a package with a version for each Python has several."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = re.match(r"[\w.-]+", line)
            assert name is not None, line
            found.setdefault(name[0], []).append(line)
    return found


def write(*, upgrade: bool) -> None:
    """Resolves the project and writes the file.

    Raises:
        RuntimeError: uv finds no versions that fit together; the message is uv's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranges, output = Path(folder) / "ranges.txt", Path(folder) / "pins.txt"
        ranges.write_text("".join(f"{name}{bounds}\n" for name, bounds in RANGES.items()))
        if FILE.exists() and not upgrade:
            output.write_text(FILE.read_text())
        done = compile_pins(extras(), "--universal", "--constraint", ranges, "--output-file", output)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        resolved = pins(output.read_text())
    lines = []
    for name, requirements in resolved.items():
        if not TORCHS_OWN.match(name):
            lines += [f"{name}{RANGES[name]}"] if name in RANGES else requirements
    FILE.write_text(HEADER + "".join(f"{line}\n" for line in lines))


def main() -> int:
    """Writes the file; 2 where uv is missing, 1 where nothing fits."""
    parser = argparse.ArgumentParser(prog="python -m tests.constraints", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest release of every package")
    upgrade = parser.parse_args().upgrade
    if find_uv() is None:
        print(MISSING, file=sys.stderr)
        return 2
    try:
        write(upgrade=upgrade)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
