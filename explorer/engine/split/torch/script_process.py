"""Process of the script that trains stages; it ends with the process that started it."""

from __future__ import annotations

import runpy
import sys

from explorer.host import child


def main() -> None:
    """Runs a script. Arguments: the read end of a pipe, the script's path, and the script's own arguments."""
    alive, *sys.argv = sys.argv[1:]
    child.end_with(int(alive))
    runpy.run_path(sys.argv[0], run_name="__main__")
