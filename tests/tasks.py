"""Tasks of the manual: questions with the command and the keys that answer them, read from its page.

A test plays each in a real terminal, and the script of the pictures keeps what is then on the screen.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from tests import manual
from tests.terminal import ROOT, Terminal

PAGE = ROOT / "explorer" / "manual" / "tasks.md"

_NAMED = {
    "↑": "\x1b[A",
    "↓": "\x1b[B",
    "→": "\x1b[C",
    "←": "\x1b[D",
    "Enter": "\r",
    "Esc": "\x1b",
    "Tab": "\t",
    "Space": " ",
    "Backspace": "\x7f",
    "End": "\x1b[F",
    "Ctrl+P": "\x10",
    "Ctrl+U": "\x15",
}
"""What a terminal sends for a key that is no letter."""


class Task(Struct, frozen=True):
    """A question that somebody has.

    Attributes:
        title: The question.
        command: What is typed in the shell.
        keys: What is then pressed, a key each.
        waits: What stands on the screen before the first key.
        seen: What stands on it after the last.
        picture: File name of what is then seen.
    """

    title: str
    command: str
    keys: tuple[str, ...]
    waits: str
    seen: tuple[str, ...]
    picture: str


def tasks() -> list[Task]:
    """The tasks of the page, in its order."""
    return list(_read(PAGE.read_text(encoding="utf-8")))


def _read(text: str) -> Iterator[Task]:
    for part in text.replace(_FIRST, "\n").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = {
            name: re.findall(r"`([^`]+)`", said)
            for name, said in re.findall(r"^\| (\w+) \| (.*) \|$", body, re.M)
        }
        keys = tuple(key for span in rows.get("keys", []) for key in ([span] if span in _NAMED else span))
        (command,), (waits, *seen) = rows["command"], rows["shown"]
        picture = re.search(r"\(\.\./\.\./screenshots/([\w-]+\.svg)\)", body)
        yield Task(title, command, keys, waits, tuple(seen), picture.group(1) if picture else "")


def play(task: Task, folder: Path) -> Terminal:
    """The terminal after the last key of a task, at rest; whoever takes it ends it."""
    words = shlex.split(task.command)
    assert words[0] == "explorer", task.command
    own = {"EXPLORER_CONFIG": "no.toml", "XDG_CONFIG_HOME": str(folder / "config")}
    terminal = Terminal(
        [sys.executable, "-m", "explorer", *words[1:]], columns=120, rows=36, env=own, cwd=folder
    )
    try:
        terminal.wait_for(task.waits, 120)
        terminal.settle()
        for key in task.keys:
            terminal.press(_NAMED.get(key, key))
            terminal.settle()
        for said in task.seen:
            terminal.wait_for(said, 120)
        terminal.settle()
    except BaseException:
        terminal.__exit__(None, None, None)
        raise
    return terminal


def prepare(folder: Path) -> None:
    """Follow the first section of the page in a folder: write its files, run its commands."""
    section = PAGE.read_text(encoding="utf-8").partition(_FIRST)[2].partition("\n## ")[0]
    manual.played(section, folder)
    for block in manual.blocks(section):
        if block["kind"] == "sh":
            subprocess.run(["sh", "-ec", block["body"]], cwd=folder, check=True)


_FIRST = "\n## Prepare the files\n"
