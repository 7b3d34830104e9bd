"""Process of the script that trains stages, which ends with the process that started it, whatever comes."""

from __future__ import annotations

import runpy
import sys

from explorer.host import child


def main() -> None:
    """Runs a script; its words are behind the end of a pipe that can be read, and its path."""
    alive, *sys.argv = sys.argv[1:]
    child.end_with(int(alive))
    runpy.run_path(sys.argv[0], run_name="__main__")
