"""Program that a visitor sees: the screen on a model of the folder that is served, its driver the browser's.

`explorer.web.server` starts it with the driver named in the environment (TEXTUAL_DRIVER), in the folder.
"""

from __future__ import annotations

import os
import sys

import msgspec

from explorer.base.errors import ExplorerError
from explorer.base.exit_codes import BAD_INPUT
from explorer.host import child, confinement
from explorer.process.saved_sessions import Opening
from explorer.session import headers
from explorer.tui.app import run


def command(source: str, opening: Opening) -> list[str]:
    """The command that opens `source`, a model or a folder to choose one from, as an argument list."""
    return child.command(__name__, source, msgspec.json.encode(opening).decode())


def main() -> None:
    """Shows it until its user leaves; says why, in one line, if it cannot."""
    try:
        sys.exit(_show(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Opening)))
    except ExplorerError as error:
        sys.stderr.write(f"explorer: {error}\n")
        sys.exit(BAD_INPUT)


def _show(source: str, opening: Opening) -> int:
    if os.path.exists(source):
        confinement.check(source)
    models = headers.choices(source) if os.path.isdir(source) else None
    options = msgspec.structs.asdict(opening)
    return run(source, options) if models is None else run("", options, folder=source)
