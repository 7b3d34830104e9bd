"""A user without a plan: random keys, texts, clicks, sizes and pauses on the screen of a real engine.

What is done follows from a seed; what it meets depends on the time that the engine takes. A case fails where
the program ends with an error, stands still, keeps something on the screen that is no longer so, or shows a
figure that the session does not give.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import re
import shutil
import string
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from textual import events
from textual.geometry import Size
from textual.keys import _character_to_key
from textual.widgets import Input

from explorer.tui.commands.help_action import KEYS
from explorer.tui.models.open_list import OpenListScreen
from explorer.tui.models.opening import begin_session
from explorer.tui.models.resumable_session import ResumableSession
from explorer.tui.program import ExplorerApp
from explorer.tui.screen.main import MainScreen
from explorer.tui.widgets.line_view import RoleLines
from explorer.tui.widgets.status_line import JobLine
from explorer.tui.widgets.strips import TitleBar

MODELS = ("lenet", "mlp_128", "mobilenet_small", "lstm_tiny", "bert_tiny", "three_inputs", "jsc_tiny")
SIZES = ((5, 3), (20, 6), (40, 10), (60, 15), (80, 24), (100, 30), (140, 40), (200, 50), (300, 80))
ACTIONS = 50
"""In a case."""

HANG = 2.0
"""Seconds of the processor that a key may wait for."""
_WALL = 15.0
"""Seconds on the wall that it may, where others have the processor."""
_REST = 20.0
"""Seconds in which a program that is left alone comes to rest."""
_LONGEST = 240.0
"""Seconds after which a case is ended with a traceback."""
_CLOSES = 15
"""Times that Esc is pressed, at most, to come back to the model."""

_CHARACTERS = {_character_to_key(letter): letter for letter in string.printable}
_PRESSED = sorted({key for entry in KEYS for key in entry.keys} - {"q", "ctrl+z", "slash", "asciitilde"})
"""Keys of all screens. A path that begins with / or ~ would lead out of the folder."""
_OFTEN = ("enter", "escape", "tab", "up", "down", "left", "right", "pagedown", "end", "home", "space")
_DEEP = (
    *(("t", "enter"), ("S", "enter"), ("Q", "enter"), ("ampersand", "enter")),
    *(
        ("t", "1", "6", "enter", "escape"),
        ("u",),
        ("r",),
        ("H", "enter"),
        ("d",),
        ("v", "escape"),
        ("I", "escape"),
    ),
    *(("G", "escape"), ("D", "enter"), ("vertical_line", "enter"), ("equals_sign", "enter"), ("V",), ("f",)),
    *(
        ("colon", "c", "o", "enter"),
        ("question_mark", "escape"),
        ("m", "enter"),
        ("exclamation_mark", "escape"),
        ("Z", "enter"),
    ),
)
_TEXTS = (
    "conv",
    "16",
    "8x4x8",
    "op:Gemm",
    "macs>1e3",
    "batch",
    "int8",
    "fixed8.4",
    "-1",
    "no such thing",
    "\u4e2d\U0001f600",
)
_PASTES = (*_TEXTS, "a" * 5000, "two\nlines\n", "\x1b[2J", "")
_IN_FIELDS = [*string.ascii_lowercase, *string.digits, *"x:=><*,-", "backspace", "delete", "ctrl+u", *_OFTEN]


class Case(Struct):
    """A case, and what was done in it so far."""

    seed: int
    model: str
    done: list[str] = field(default_factory=list)
    longest: float = 0.0


@contextlib.contextmanager
def playground(folder: Path) -> Iterator[None]:
    """Lets the program see the folder alone: models in it, and all that it keeps."""
    source = Path(__file__).parents[2] / "sample_models"
    for name in MODELS:
        shutil.copy(source / f"{name}.onnx", folder)
    kept, cwd = dict(os.environ), os.getcwd()
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        (folder / name.lower()).mkdir(exist_ok=True)
        os.environ[name] = str(folder / name.lower())
    os.environ |= {"EXPLORER_TRACEBACK": "1", "EXPLORER_NO_CACHE": "1", "OMP_WAIT_POLICY": "passive"}
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ |= kept


def hunt(seed: int) -> tuple[str, Case]:
    """Plays the case of a seed, in the current folder; what is wrong, '' if nothing is."""
    case = Case(seed, random.Random(f"{seed}/model").choice(MODELS))
    lost: list[str] = []

    def note_unraisable(unraisable: Any) -> None:
        lost.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")

    hook, sys.unraisablehook = sys.unraisablehook, note_unraisable
    faulthandler.dump_traceback_later(_LONGEST, exit=True)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", RuntimeWarning)
            try:
                what = asyncio.run(_play(case, lost))
            except Exception as error:  # the program's own faults are what is hunted for
                what = f"{type(error).__name__}: {error}"
                case.done.append(traceback.format_exc())
            gc.collect()
        lost += [str(one.message) for one in warned if "never awaited" in str(one.message)]
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.unraisablehook = hook
    return what or "; ".join(lost), case


async def _play(case: Case, lost: list[str]) -> str:
    rng = random.Random(f"{case.seed}/hands")
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: lost.append(str(context.get("exception", context["message"])))
    )
    source = f"{case.model}.onnx"
    session = ResumableSession(source, {})
    app = ExplorerApp(
        source, session.engine, keeper=session, begin=lambda choice: begin_session(choice, {}, None)
    )
    watch = asyncio.create_task(_watch(case))
    what = ""
    try:
        async with app.run_test(size=rng.choice(SIZES[2:])):
            what = await _actions(app, case, rng) or await _end(app, case)
            if app.is_running:
                app.exit(0)
    finally:
        watch.cancel()
        for model in app.models.open:
            model.close(properly=True)
    if not what and app.failure is not None:
        what = repr(app.failure)
    if not what and case.longest > HANG:
        what = f"the screen stood still for {case.longest:.1f} s"
    return what


async def _watch(case: Case) -> None:
    """Notes the longest time for which the loop did one thing alone."""
    while True:
        began, used = time.monotonic(), time.thread_time()
        await asyncio.sleep(0.02)
        case.longest = max(case.longest, time.thread_time() - used)
        if time.monotonic() - began > _WALL:
            case.longest = max(case.longest, time.monotonic() - began)


# what is done


async def _actions(app: ExplorerApp, case: Case, rng: random.Random) -> str:
    for _ in range(ACTIONS):
        if _is_over(app):
            return ""
        if rng.random() < 0.005:
            _press(app, case, ["q", "n"])
        action = rng.choice(
            (
                *["key"] * 8,
                *["deep"] * 4,
                "burst",
                "click",
                "click",
                "wheel",
                "text",
                "paste",
                "size",
                "filter",
            )
        )
        _ACT[action](app, case, rng)
        # from 10 ms to 1 s, the short ones more often
        await asyncio.sleep(0.01 * 100 ** (rng.random() ** 2.5))
        if what := await _answers(app) or (rng.random() < 0.2 and shown_fault(app)):
            return what
    return ""


def _key(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    keys = _IN_FIELDS if isinstance(app.focused, Input) else _PRESSED
    _press(app, case, [rng.choice(_OFTEN) if rng.random() < 0.4 else rng.choice(keys)])


def _deep(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    keys = rng.choice(_DEEP)
    if not isinstance(app.focused, Input):
        _press(app, case, keys)


def _burst(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    """Keys that arrive together."""
    keys = _IN_FIELDS if isinstance(app.focused, Input) else _PRESSED
    _press(app, case, [rng.choice((*keys, *_OFTEN, *_OFTEN)) for _ in range(rng.randrange(2, 12))])


def _filter(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    if isinstance(app.screen, MainScreen):
        case.done.append("filter")
        app.screen.call_later(app.screen.action_command, "filter")


def _text(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    text = rng.choice(_TEXTS)
    if isinstance(app.focused, Input):
        _press(app, case, [_character_to_key(letter) for letter in text], list(text))


def _paste(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    text = rng.choice(_PASTES)
    case.done.append(f"paste {text[:20]!r}")
    app.post_message(events.Paste(text))


def _click(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    x, y = rng.randrange(app.size.width), rng.randrange(app.size.height)
    case.done.append(f"click {x},{y}")
    for kind in (events.MouseMove, events.MouseDown, events.MouseUp) * rng.choice((1, 1, 2)):
        app.post_message(kind(None, x, y, 0, 0, 1, False, False, False, x, y))


def _wheel(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    x, y = rng.randrange(app.size.width), rng.randrange(app.size.height)
    case.done.append(f"wheel {x},{y}")
    kind = rng.choice((events.MouseScrollDown, events.MouseScrollUp))
    for _ in range(rng.randrange(1, 6)):
        app.post_message(kind(None, x, y, 0, 0, 0, False, False, False, x, y))


def _size(app: ExplorerApp, case: Case, rng: random.Random) -> None:
    width, height = rng.choice(SIZES) if rng.random() < 0.7 else (rng.randrange(5, 301), rng.randrange(3, 81))
    case.done.append(f"size {width}x{height}")
    size = Size(width, height)
    app._driver._size = size  # type: ignore[union-attr]
    app.post_message(events.Resize(size, size))


_ACT = {
    "key": _key,
    "deep": _deep,
    "burst": _burst,
    "click": _click,
    "wheel": _wheel,
    "text": _text,
    "paste": _paste,
    "size": _size,
    "filter": _filter,
}


def _press(app: ExplorerApp, case: Case, keys: Sequence[str], letters: Sequence[str] = ()) -> None:
    case.done.append(" ".join(keys))
    for index, key in enumerate(keys):
        letter = letters[index] if letters else key if len(key) == 1 else _CHARACTERS.get(key)
        app.post_message(events.Key(key, letter))


# what must hold


def _is_over(app: ExplorerApp) -> bool:
    return not app.is_running or app.is_leaving or app.failure is not None or not app.screen_stack


async def _answers(app: ExplorerApp) -> str:
    """Whether the screen on top handles what it is sent, while the engine works."""
    if _is_over(app):
        return ""
    handled, top = asyncio.Event(), app.screen
    if not top.call_later(handled.set):
        return ""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(handled.wait(), _WALL)
    if handled.is_set() or _is_over(app) or not top.is_running:
        return ""
    return f"{type(top).__name__} has handled nothing for {_WALL:g} s"


async def _end(app: ExplorerApp, case: Case) -> str:
    """Leads back to the model, and holds what is shown there against the session."""
    for _ in range(_CLOSES):
        if _is_over(app):
            return ""
        if isinstance(app.screen, MainScreen) and app.screen.store.jobs.current is None:
            if not await _rests(app):
                busy = [worker.name for worker in app.workers if not worker.is_finished]
                return "" if _is_over(app) else f"the program never rests: {', '.join(busy)}"
            main = app.screen if not _is_over(app) else None
            if isinstance(main, MainScreen):
                return await fault_of_main(app, main)
            continue  # the last key opens a dialog late
        if app.main is None:
            return ""
        _press(app, case, ["escape"])
        await asyncio.sleep(0.05)
        if what := await _answers(app):
            return what
    return "" if _is_over(app) else f"Esc, {_CLOSES} times, does not close {type(app.screen).__name__}"


async def _rests(app: ExplorerApp) -> bool:
    """Waits until no work is left."""
    end, calm = time.monotonic() + _REST, 0
    while time.monotonic() < end and not _is_over(app):
        main = app.main
        busy = any(not worker.is_finished for worker in app.workers)
        busy = busy or (main is not None and main.store.jobs.current is not None)
        calm = 0 if busy else calm + 1
        if calm > 5:
            return True
        await asyncio.sleep(0.05)
    return False


def _text_shown(app: ExplorerApp) -> list[str]:
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def shown_fault(app: ExplorerApp) -> str:
    """What of the screen on top is drawn no more as it would be now."""
    if _is_over(app) or not app.screen.is_mounted or isinstance(app.screen, OpenListScreen):
        return ""  # the list of open models says how much memory they take now
    if any(line.is_ticking for line in app.screen.query(JobLine)):
        return ""
    before, again = _text_shown(app), _text_shown(app)
    for widget in app.screen.query(RoleLines):
        widget.refresh()
    after = _text_shown(app)
    fault = _fault(app, before, after)
    return f"{fault}; a second drawing showed the new lines" if fault and again == after else fault


def _fault(app: ExplorerApp, before: Sequence[str], after: Sequence[str]) -> str:
    internal = next((line for line in after if "internal error" in line), "")
    if internal:
        return internal.strip()
    if len(before) != len(after):
        return ""  # the size has changed meanwhile
    apart = [f"{old!r} is shown for {new!r}" for old, new in zip(before, after, strict=True) if old != new]
    name = type(app.screen).__name__
    return f"{name}, {len(apart)} lines out of date: {'; '.join(apart[:3])}" if apart else ""


async def fault_of_main(app: ExplorerApp, main: MainScreen) -> str:
    """What the main screen shows or knows that the session does not say."""
    store, jobs = main.store, main.store.jobs
    if store.analysis is None:
        return ""
    analysis, history, ops = await asyncio.gather(
        *(jobs.ask(name) for name in ("analysis", "history", "ops"))
    )
    if store.history is not None and store.history != history:
        return f"the history on show is {store.history}, and the session's is {history}"
    if store.analysis.info != analysis.info:
        return f"the header is of {store.analysis.info}, and the session's model is {analysis.info}"
    if list(store.analysis.layers) != list(analysis.layers):
        return "the layers on show are not the session's"
    if store.ops is not None and tuple(store.ops) != tuple(ops):
        return "the operators on show are not the session's"
    cache = store.on_demand
    if (memory := cache.answers.get("memory")) is not None and memory != await jobs.ask("memory"):
        return "the memory on show is not the session's"
    for layer, connections in list(cache.connections.items())[:5]:
        if connections != await jobs.ask("connections", layer):
            return f"the connections of layer {layer} are not the session's"
    if not await _rests(app) or app.screen is not main:
        return ""
    before = _text_shown(app)
    store.notify("model", "history", "answers", "numbers", "query", "tab", "focus", "message", "rail")
    for widget in main.query(RoleLines):
        widget.refresh()
    return _fault(app, before, _text_shown(app)) or _header_fault(main, analysis.info.totals)


_FIGURE = re.compile(r"(params|MACs) +(>= |<= |≥ ?|≤ ?|≈ ?)?([\d.,]+)(?: ?([kMGT]))?(?: |$)")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _header_fault(main: MainScreen, totals: Any) -> str:
    """What the header's figures say otherwise than the totals; the words around them are not looked at."""
    text = "".join(part for line in main.query_one(TitleBar).lines for part, *_ in line)
    known = {"params": totals.params, "MACs": totals.macs}
    for name, _, digits, unit in _FIGURE.findall(text):
        shown = float(digits.replace(",", "")) * _FACTORS[unit]
        if known[name] is None or abs(shown - known[name]) > 0.006 * known[name]:
            return f"the header says {name} {digits} {unit}, the session {known[name]}"
    return ""
