"""The program of a visitor: the screen on a model in the served folder, drawn in the browser.

`explorer.web.server` starts it in the folder, with the driver in the environment variable TEXTUAL_DRIVER.
"""

from __future__ import annotations

import os
import sys

import msgspec

from explorer.base.compat import build_type
from explorer.base.errors import ExplorerError
from explorer.base.exit_codes import BAD_INPUT
from explorer.host import child, confinement
from explorer.process.saved_sessions import Opening
from explorer.session import headers
from explorer.tui.app import run


def build_command(source: str, opening: Opening) -> list[str]:
    """Return the command line that opens `source`, a model or a folder to choose one from."""
    return child.build_command(__name__, source, msgspec.json.encode(opening).decode())


def main() -> None:
    """Show the screen until the visitor quits, or report in one line why this is impossible."""
    try:
        sys.exit(_show(sys.argv[1], msgspec.json.decode(sys.argv[2], type=build_type(Opening))))
    except ExplorerError as error:
        sys.stderr.write(f"explorer: {error}\n")
        sys.exit(BAD_INPUT)


def _show(source: str, opening: Opening) -> int:
    if os.path.exists(source):
        confinement.check(source)
    models = headers.list_choices(source) if os.path.isdir(source) else None
    options = msgspec.structs.asdict(opening)
    return run(source, options) if models is None else run("", options, folder=source)
