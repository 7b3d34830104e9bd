"""Over SSH fewer bytes are sent, and the terminal shows the same."""

from __future__ import annotations

import random

import pyte
import pytest

from explorer.tui.terminal.remote import Canvas

WIDTH, HEIGHT = 40, 12
STYLES = (
    "38;5;251;48;5;233",
    "1;38;5;74;48;5;233",
    "38;5;245;48;5;236",
    "7;4;38;5;9",
    "4;38;5;9",
    "1;4;38;5;9;48;5;233",
    "2;3;38;5;251;48;5;233",
    "38;2;95;175;215;48;5;233",
    "0",
    "38;2;1;2;3;48;2;9;9;9",
)
WORDS = ("Conv", "a long bit", " ", "      ", "▾ ", "██▍", "e\u0301té", "×12")


def frame(rng: random.Random) -> str:
    """Some lines of styled pieces, as Textual writes them."""
    out = ["\x1b[?2026h"]
    for _ in range(rng.randint(0, 6)):
        out.append(f"\x1b[{rng.randint(1, HEIGHT)};{rng.randint(1, 9)}H")
        for _ in range(rng.randint(1, 3)):
            out.append(f"\x1b[{rng.choice(STYLES)}m{rng.choice(WORDS)}\x1b[0m")
    out.append("\x1b[1;1H\x1b[?2026l")
    return "".join(out)


def shown(screen: pyte.Screen) -> list[list[object]]:
    """Every cell; the color of a blank is nobody's business."""
    rows = []
    for y in range(HEIGHT):
        row: list[object] = []
        for x in range(WIDTH):
            cell = screen.buffer[y][x]
            plain = cell.data == " " and not (cell.underscore or cell.reverse)
            row.append((cell.data, cell.bg) if plain else cell)
        rows.append(row)
    return rows


def terminal() -> tuple[pyte.Screen, pyte.Stream]:
    screen = pyte.Screen(WIDTH, HEIGHT)
    return screen, pyte.Stream(screen)


@pytest.mark.slow
def test_a_terminal_shows_the_same_from_fewer_bytes() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        canvas = Canvas()
        (plain, plain_stream), (saved, saved_stream) = terminal(), terminal()
        sent = full = 0
        for _ in range(30):
            data = frame(rng)
            reduced = canvas.reduce(data)
            plain_stream.feed(data)
            saved_stream.feed(reduced)
            sent, full = sent + len(reduced), full + len(data)
            assert shown(saved) == shown(plain), seed
            assert (saved.cursor.x, saved.cursor.y) == (plain.cursor.x, plain.cursor.y) or not reduced
        assert sent < full


def test_characters_of_two_cells_stay_whole() -> None:
    canvas = Canvas()
    screen, stream = terminal()
    for text in ("名前 conv", "x名前conv", "conv  名 "):
        stream.feed(canvas.reduce(f"\x1b[2;3H\x1b[38;5;74m{text}\x1b[0m"))
        assert screen.display[1].rstrip() == "  " + text.rstrip()


def test_what_is_on_the_screen_already_costs_nothing() -> None:
    canvas = Canvas()
    data = "\x1b[?2026h\x1b[3;1H\x1b[1;38;5;74mlayers\x1b[0m\x1b[1;1H\x1b[?2026l"
    assert canvas.reduce(data)
    assert canvas.reduce(data) == ""


def test_after_a_resize_everything_is_drawn_again() -> None:
    canvas = Canvas()
    data = "\x1b[3;1H\x1b[1;38;5;74mlayers\x1b[0m"
    first = canvas.reduce(data)
    canvas.forget()
    assert canvas.reduce(data) == first


def test_what_is_not_drawing_goes_through_untouched() -> None:
    canvas = Canvas()
    for passed in ("\x1b[?1049h", "\x1b]52;c;Zm9v\x07", "\x1b[?25l", "\x1b[c"):
        assert canvas.reduce(passed) == passed


def test_a_sequence_for_a_multiplexer_goes_through_untouched() -> None:
    from explorer.tui.terminal.clipboard import build_sequence

    for environment in ({"TERM": "tmux-256color"}, {"STY": "1.pts-0.host"}, {}):
        canvas = Canvas()
        canvas.reduce("\x1b[3;1H\x1b[1;38;5;74mlayers\x1b[0m")
        sent = build_sequence("a text " * 100, environment)
        assert canvas.reduce(sent) == sent
        assert canvas.reduce("\x1b[3;1H\x1b[1;38;5;74mlayers\x1b[0m") == "", (
            "and what is shown is still known"
        )


def test_a_blank_costs_no_style_of_its_own() -> None:
    words = "\x1b[38;5;251;48;5;233mone\x1b[0m\x1b[48;5;233m \x1b[0m\x1b[38;5;251;48;5;233mtwo\x1b[0m"
    assert Canvas().reduce(f"\x1b[1;1H{words}").count("m") == 2, (
        "a style before the words, a reset behind them"
    )


def test_colours_of_the_palette_are_sent_by_number() -> None:
    sent = Canvas().reduce("\x1b[1;1H\x1b[38;2;95;175;215;48;2;18;18;18mx\x1b[0m")
    assert "38;5;74;48;5;233" in sent
    assert "38;2;1;2;3" in Canvas().reduce("\x1b[1;1H\x1b[38;2;1;2;3mx\x1b[0m")


def test_a_question_and_the_end_of_a_keyboard_protocol_are_no_text() -> None:
    canvas = Canvas()
    for sequence in ("\x1b[?2026$p", "\x1b[<u", "\x1b[>25u"):
        assert canvas.reduce(f"ab{sequence}").endswith(sequence)
        assert canvas.reduce("\x1b[1;1Hab") == "", "what is on the screen is still known"
