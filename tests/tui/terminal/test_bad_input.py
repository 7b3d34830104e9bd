"""Input that is neither text nor a key: other encodings, impossible sequences, escapes in a paste."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.tui.terminal.input_decoder import InputDecoder
from tests.terminal import ROOT, Terminal

_BEGIN, _END = b"\x1b[200~", b"\x1b[201~"
_MODEL = Path(ROOT, "sample_models", "jsc_tiny.onnx")


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """The program with a model."""
    with Terminal([sys.executable, "-m", "explorer", str(_MODEL)], columns=90, rows=24) as opened:
        opened.wait_for("Gemm")
        opened.settle()
        yield opened


@pytest.mark.parametrize(
    "data",
    [
        b"\xe9t\xe9",
        b"\x9b31m\xff\xfe\x00",
        b"\x1b[:200~",
        b"\x1b[99999999999999u",
        b"\x1b[99999999999999999999~x",
        b"\x1b[<99999999999999999999;1;1M",
    ],
)
def test_no_input_ends_the_program(terminal: Terminal, data: bytes) -> None:
    os.write(terminal.master, data)
    terminal.settle()
    assert terminal.process.poll() is None
    os.write(terminal.master, b"\x1b")
    terminal.settle()
    os.write(terminal.master, b"/")
    os.write(terminal.master, b"Gemm")
    terminal.wait_for(lambda: any("Gemm" in line for line in terminal.screen.display[-3:]))
    os.write(terminal.master, b"\x1b")
    terminal.settle()


def test_control_sequences_in_a_paste_are_no_keys(terminal: Terminal) -> None:
    before = terminal.screen.display[3:-2]
    os.write(terminal.master, _BEGIN + b"con\x1b[2Jv\x1b]52;c;AAAA\x07\x1b[B\x1b[Bend\x1bq\n" + _END)
    terminal.wait_for("pasted text is not run as keys")
    assert terminal.screen.display[3:-2] == before


@pytest.mark.parametrize("text", ["what is quantized here?\nyes, write it\n", "quit_resnet.onnx"])
def test_no_character_of_a_paste_without_marks_is_a_key(terminal: Terminal, text: str) -> None:
    before = terminal.screen.display[3:-2]
    for _ in range(3):
        # as on a machine that is busy: the program reads all of it at once
        terminal.process.send_signal(signal.SIGSTOP)
        os.write(terminal.master, text.encode())
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("pasted text is not run as keys")
        terminal.settle()
        assert terminal.screen.display[3:-2] == before
        os.write(terminal.master, b"\x1b[B\x1b[A")
        terminal.wait_for(lambda: "not run as keys" not in terminal.text())
    # a script opens the filter and types into it at once
    os.write(terminal.master, b"/op:Gemm exists:none\r")
    terminal.wait_for("op:Gemm exists:none")
    os.write(terminal.master, b"\x1b")
    terminal.settle()


_PIECES = st.lists(
    st.sampled_from([_BEGIN, _END, b"\x1b", b"\x1b[A", b"[20", b"a", "é".encode(), b"\xe9", b"q\n"]),
    max_size=12,
)


@given(_PIECES, st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_the_pieces_in_which_input_comes_change_nothing(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    whole, parts, decoder, at = InputDecoder().decode(data, True), "", InputDecoder(), 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        parts += decoder.decode(data[at : at + size])
        at += size
    assert parts + decoder.decode(b"", True) == whole


@given(_PIECES)
def test_only_pasted_text_loses_its_escapes(pieces: list[bytes]) -> None:
    text = InputDecoder().decode(b"".join(pieces), True)
    for paste in text.split(_BEGIN.decode())[1:]:
        assert "\x1b" not in paste.split(_END.decode())[0]
    typed = b"".join(pieces).split(_BEGIN)[0].decode(errors="replace")
    assert text.startswith(typed.removesuffix("\ufffd"))
