"""Program that a visitor sees: the screen on a model of the folder that is served, its driver the browser's.

`explorer.web.server` starts it with the driver named in the environment (TEXTUAL_DRIVER), in the folder.
"""

from __future__ import annotations

import os
import sys

import msgspec

from explorer.base.errors import ExplorerError
from explorer.base.exit_codes import BAD_INPUT, DONE
from explorer.host import child, confinement
from explorer.process.saved_sessions import Opening
from explorer.session import headers


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
    if models is None:
        from explorer.tui.app import run

        return run(source, msgspec.structs.asdict(opening))
    from explorer.tui.model_picker import pick_model

    chosen = pick_model(models)
    if chosen is None:
        return DONE
    # a second application in this process would find the first one's thread at its input
    words = command(os.path.normpath(os.path.join(source, chosen)), opening)
    os.execv(words[0], words)
