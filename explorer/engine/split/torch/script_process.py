"""Process that runs the training script of the stages, and ends when its parent process ends."""

from __future__ import annotations

import runpy
import sys

from explorer.host import child


def main() -> None:
    """Runs a script.

    The command-line arguments are the read end of a pipe that closes when the parent process ends, the
    script's path, and the script's own arguments.
    """
    alive, *sys.argv = sys.argv[1:]
    child.die_with_parent(int(alive))
    runpy.run_path(sys.argv[0], run_name="__main__")
