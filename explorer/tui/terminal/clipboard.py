"""Copies text to the terminal's clipboard, over SSH and through multiplexers, with the OSC 52 sequence.

A terminal accepts `ESC ] 52` itself. By default (`set-clipboard external`) tmux ignores this sequence from
programs in it, but sends it to the terminal after `load-buffer -w`, and forwards wrapped sequences if
`allow-passthrough` is on. GNU screen forwards the contents of device control strings of up to 768 bytes.
No terminal confirms that a text arrived.
"""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Callable, Mapping

_MAX_PIECE = 240
"""Maximum characters in a device control string of GNU screen. Old versions allow 256."""
_TIMEOUT_SECONDS = 5.0


def send(text: str, environment: Mapping[str, str], write: Callable[[str], object]) -> None:
    """Copy `text` to the clipboard.

    Args:
        text: Text to copy.
        environment: Environment variables, which identify the multiplexer.
        write: Thread-safe function that writes to the terminal.
    """
    if not environment.get("TMUX"):
        write(build_sequence(text, environment))
        return

    def load() -> None:
        # tmux supports this since 3.2; older versions forward wrapped sequences
        if not _run_with_input(["tmux", "load-buffer", "-w", "-"], text, environment):
            write(build_sequence(text, environment))

    threading.Thread(target=load, name="clipboard", daemon=True).start()


def _run_with_input(words: list[str], text: str, environment: Mapping[str, str]) -> bool:
    try:
        process = subprocess.run(
            words, input=text.encode(), env=dict(environment), capture_output=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return process.returncode == 0


def build_sequence(text: str, environment: Mapping[str, str]) -> str:
    """Return the sequence that copies `text`, wrapped for the multiplexer.

    Over SSH, only TERM identifies a multiplexer. TERM 'screen' can mean tmux or GNU screen, and GNU screen
    would print a sequence that is wrapped for tmux, so the unwrapped sequence is returned.
    """
    encoded_text = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    unwrapped = f"\x1b]52;c;{encoded_text}\x07"
    if environment.get("TMUX") or environment.get("TERM", "").startswith("tmux"):
        return f"{unwrapped}\x1bPtmux;\x1b{unwrapped}\x1b\\"
    if environment.get("STY"):
        pieces = (unwrapped[start : start + _MAX_PIECE] for start in range(0, len(unwrapped), _MAX_PIECE))
        return "".join(f"\x1bP{part}\x1b\\" for part in pieces)
    return unwrapped
