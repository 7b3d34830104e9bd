"""Copying from the screen: what is sent to which terminal, and what a multiplexer needs."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest

from explorer.tui.terminal import clipboard

TEXT = "explorer tile 'größer.onnx' -o out.onnx " * 20
CODE = base64.b64encode(TEXT.encode()).decode()
BARE = f"\x1b]52;c;{CODE}\x07"


def test_a_terminal_gets_the_bare_sequence() -> None:
    assert clipboard.build_sequence(TEXT, {"TERM": "xterm-256color"}) == BARE


def test_a_multiplexer_on_the_near_side_of_ssh_is_known_by_its_terminal() -> None:
    assert clipboard.build_sequence(TEXT, {"TERM": "tmux-256color"}) == f"{BARE}\x1bPtmux;\x1b{BARE}\x1b\\"
    # GNU screen's terminal would print what is wrapped for tmux
    assert clipboard.build_sequence(TEXT, {"TERM": "screen-256color"}) == BARE


def test_gnu_screen_hands_short_pieces_through() -> None:
    sent = clipboard.build_sequence(TEXT, {"TERM": "screen", "STY": "123.pts-0.host"})
    pieces = sent.split("\x1bP")[1:]
    assert all(len(piece) <= 256 and piece.endswith("\x1b\\") for piece in pieces)
    assert "".join(piece.removesuffix("\x1b\\") for piece in pieces) == BARE


def _tmux(folder: Path, script: str) -> dict[str, str]:
    program = folder / "tmux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "TMUX": "/tmp/socket,1,0", "TERM": "screen"}


def _sent(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PATH", environment["PATH"])
    sent: list[str] = []
    clipboard.send(TEXT, environment, sent.append)
    for thread in threading.enumerate():
        if thread.name == "clipboard":
            thread.join()
    return sent


def test_tmux_is_told_to_load_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = _tmux(tmp_path, f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/text')
    assert _sent(environment, monkeypatch) == []
    assert (tmp_path / "words").read_text() == "load-buffer -w -\n"
    assert (tmp_path / "text").read_text() == TEXT


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_a_tmux_that_cannot_gets_the_wrapped_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    assert _sent(_tmux(tmp_path, script), monkeypatch) == [f"{BARE}\x1bPtmux;\x1b{BARE}\x1b\\"]
