"""Copying to the clipboard of a terminal that may be far away: OSC 52, and multiplexers that stand before it.

A terminal takes `ESC ] 52`. tmux, by default (`set-clipboard external`), ignores it from a program in it, but
sends it itself when told to load a buffer; it hands a wrapped sequence through where `allow-passthrough` is
on. GNU screen knows neither: it hands through what a device control string holds, 768 bytes at most.
Nothing ever confirms that a text arrived.
"""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Callable, Mapping

_PIECE = 240
"""Characters in a device control string of GNU screen; old versions hold 256."""
_PATIENCE = 5.0


def send(text: str, environment: Mapping[str, str], write: Callable[[str], object]) -> None:
    """Send `text` to the clipboard.

    Args:
        text: What to copy.
        environment: Tells of the multiplexer.
        write: Writes to the terminal; any thread may call it.
    """
    if not environment.get("TMUX"):
        write(sequence(text, environment))
        return

    def load() -> None:
        # since tmux 3.2; before, any wrapped sequence was handed through
        if not _told(["tmux", "load-buffer", "-w", "-"], text, environment):
            write(sequence(text, environment))

    threading.Thread(target=load, name="clipboard", daemon=True).start()


def _told(words: list[str], text: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            words, input=text.encode(), env=dict(environment), capture_output=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def sequence(text: str, environment: Mapping[str, str]) -> str:
    """What makes the terminal copy `text`, wrapped for the multiplexer around this program.

    Behind an SSH connection a multiplexer is known by TERM alone. 'screen' may be either, and what is
    wrapped for tmux would be printed by GNU screen's terminal: there the bare sequence has to do.
    """
    code = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    bare = f"\x1b]52;c;{code}\x07"
    if environment.get("TMUX") or environment.get("TERM", "").startswith("tmux"):
        return f"{bare}\x1bPtmux;\x1b{bare}\x1b\\"
    if environment.get("STY"):
        pieces = (bare[at : at + _PIECE] for at in range(0, len(bare), _PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return bare
