"""The screen as text: `explorer MODEL` is run as it is, with a pilot in place of the terminal.

Textual's own doors only (`App.run`, the pilot, `export_screenshot`), so that it holds whatever moves.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import os
import re
import runpy
import signal
import sys
import time
from typing import IO, Any

QUIET, STUCK, LONGEST = 0.3, 8.0, 120.0
"""Seconds without a change after which the screen is at rest; although something runs; at all."""
_WIDTH = 12.2
_TEXT = re.compile(
    r'<text class="([^"]*)" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" [^>]*line-(\d+)\)">([^<]*)<'
)
_RECT = re.compile(r"<rect fill=[^>]* shape-rendering[^>]*>")


def picture(app: Any) -> tuple[str, str]:
    """The text of the screen, and a hash of its colours and weights."""
    svg = app.export_screenshot()
    width, height = app.size
    rows = [[" "] * width for _ in range(height)]
    rules = dict(re.findall(r"\.([\w-]+-r\d+) \{ ([^}]*) \}", svg))
    styles = sorted(_RECT.findall(svg))
    for kind, x, line, text in _TEXT.findall(svg):
        at, text = round(float(x) / _WIDTH), html.unescape(text).replace("\xa0", " ")
        if int(line) < height:
            rows[int(line)][at : at + len(text)] = text
            styles.append(f"{line} {at} {len(text)} {rules.get(kind)}")
    shown = "\n".join("".join(row).rstrip() for row in rows)
    return shown, hashlib.sha256("\n".join(styles).encode()).hexdigest()[:12]


async def rest(pilot: Any, quiet: float = QUIET) -> tuple[str, str]:
    """The screen when nothing on it has changed for a while, and nothing more is to come."""
    from textual.widgets import Input

    last, since, end = None, 0.0, time.monotonic() + LONGEST
    while True:
        await pilot.pause()
        for entry in pilot.app.screen.query(Input):
            entry.cursor_blink = False
        seen, now = picture(pilot.app), time.monotonic()
        if seen != last:
            last, since = seen, now
        busy = any(not worker.is_finished for worker in pilot.app.workers)
        if now - since > (STUCK if busy else quiet) or now > end:
            return seen
        await asyncio.sleep(0.05)


def play(words: list[str], out: IO[str]) -> None:
    """Runs the screen: `80x24 MODEL 'down | 2 | t enter'`, a picture where a | stands; `drop` hangs up."""
    from textual.app import App

    size, model, script = words
    width, height = map(int, size.split("x"))

    async def pilot(pilot: Any) -> None:
        for keys in ["", *script.split("|")]:
            print(f"--- {keys.strip()}", file=out)
            for key in keys.split():
                if key == "drop":
                    out.flush()
                    os.kill(os.getpid(), signal.SIGHUP)
                await pilot.press(key)
                await rest(pilot, QUIET / 3)
            text, style = await rest(pilot)
            print(f"{text}\n[style {style}]", file=out)
        pilot.app.exit(0)

    usual = App.run

    def headless(self: Any, **_: Any) -> Any:
        return usual(self, headless=True, size=(width, height), auto_pilot=pilot)

    App.run = headless  # type: ignore[method-assign]
    _, terminal = os.openpty()
    real = os.dup(1)
    os.dup2(terminal, 0)
    os.dup2(terminal, 1)
    out = os.fdopen(real, "w", encoding="utf-8")
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.argv = ["explorer", model]
    try:
        runpy.run_module("explorer", run_name="__main__", alter_sys=False)
    finally:
        out.flush()
