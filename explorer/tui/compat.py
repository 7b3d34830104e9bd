"""Assumptions about Textual, beside what it documents: one function or class each.

Its docstring has three parts: `Assumes:` the undocumented fact, `Seen:` the versions where it was tried, and
`Otherwise:` what happens when the fact does not hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from textual.app import App
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker, active_worker
from textual.worker_manager import WorkerManager

from explorer.base.errors import ExplorerError

try:
    from textual._styles_cache import StylesCache

    _STYLES: Any = StylesCache
    _KNOWN = {"_cache", "_dirty_lines", "_width"} <= vars(StylesCache()).keys()
except ImportError:
    _STYLES, _KNOWN = object, False

R = TypeVar("R")


class ReportingApp(App[R]):
    """An application whose failures are told by whoever runs it, and not by Textual's page of traceback.

    Assumes: Textual keeps what it failed with in `_exception`, hands it to `_handle_exception`, prints it in
    `_fatal_error`, ends by `_close_messages_no_wait`, and has `_exit`, `_clipboard` and `_driver`, which of a
    terminal keeps what that was set to in `attrs_before`.
    Seen: textual 8.2.8.
    Otherwise: a failure is one line without its cause, or Textual's own page; a key behind the last one is
    answered; a text is not sent to the clipboard of the terminal; a line that drops leaves a terminal as the
    screen had it.
    """

    @property
    def failure(self) -> BaseException | None:
        """What the program failed with, if it did; of work in the background what that failed with."""
        if not hasattr(self, "_exception"):
            return ExplorerError("the screen ended with an error") if self.return_code else None
        return getattr(self._exception, "error", self._exception)

    def fail_with(self, error: Exception) -> None:
        """Ends with an error."""
        handle = getattr(self, "_handle_exception", None)
        if handle is None:
            raise error
        handle(error)

    def _fatal_error(self) -> None:
        """Ends; whoever runs the program tells why, in a line and not in Textual's hundred."""
        close = getattr(self, "_close_messages_no_wait", None)
        if close is not None:
            close()
        else:
            self.exit(return_code=1)

    @property
    def is_leaving(self) -> bool:
        """Whether the program was told to end."""
        return bool(getattr(self, "_exit", False))

    @property
    def driver(self) -> Any:
        """What writes to the terminal; None before it is there."""
        return getattr(self, "_driver", None)

    @property
    def terminal_attributes(self) -> Any:
        """What the terminal was set to before the screen; None where that is not known."""
        return getattr(self.driver, "attrs_before", None)

    def keep_clipboard(self, text: str) -> None:
        """Has a text pasted that was copied inside the program."""
        self._clipboard = text


def asking_node() -> Any:
    """What asks for something: the node of the worker that runs, or the one whose message is handled.

    Assumes: `textual._context.active_message_pump` tells the latter.
    Seen: textual 8.2.8.
    Otherwise: None: a dialog goes over the model on show, whichever it is about.
    """
    worker = active_worker.get(None)
    if worker is not None:
        return worker.node
    try:
        from textual._context import active_message_pump
    except ImportError:
        return None
    return active_message_pump.get(None)


# -- workers


def watch_workers(app: App[Any], failed: Callable[[Exception], None]) -> None:
    """Has workers of an application closed as `ClosingWorkers` does.

    Assumes: an application keeps its workers in `_workers`, whose `_remove_worker` takes those that are done.
    Seen: textual 8.2.8.
    Otherwise: Textual's own stay: an error in the background ends the program, in one line.
    """
    if hasattr(app, "_workers") and hasattr(WorkerManager, "_remove_worker"):
        app._workers = ClosingWorkers(app, failed)


class ClosingWorkers(WorkerManager):
    """Workers whose coroutines are closed when they are done, begun or not.

    Textual takes a coroutine for a worker. Python would complain on the terminal of one whose worker is
    cancelled before its first step, as by a second key in the same instant, or when its screen goes. What a
    worker fails with that is no message of ours is an error of the program: it is told, and not dropped.

    Assumes: `_remove_worker` is called with each worker that is done, and `_work` of it is what it was given.
    Seen: textual 8.2.8.
    Otherwise: Python complains of a coroutine that was never awaited, when the screen is gone.

    Args:
        app: Whose they are.
        failed: Told of an error of the program.
    """

    def __init__(self, app: App[Any], failed: Callable[[Exception], None]) -> None:
        super().__init__(app)
        self._failed = failed

    def _remove_worker(self, worker: Worker[Any]) -> None:
        super()._remove_worker(worker)
        _close(getattr(worker, "_work", None))
        error = worker.error
        if (
            isinstance(error, Exception)
            and not isinstance(error, ExplorerError)
            and not is_going(worker.node)
        ):
            self._failed(error)


def is_going(node: DOMNode) -> bool:
    """Whether a node, or what it is in, is being taken away: its work may then miss what was part of it.

    Assumes: `_pruning` and `_closing` of a node say so before it is gone.
    Seen: textual 8.2.8.
    Otherwise: only a node that is gone counts, and an error may be told of one that is going.
    """
    nodes = node.ancestors_with_self
    if all(hasattr(one, "_pruning") and hasattr(one, "_closing") for one in nodes):
        return any(one._pruning or one._closing for one in nodes)
    return not node.is_attached


def _close(work: object) -> None:
    """Closes a coroutine that was never begun, and those that it was handed."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        handed = [*work.cr_frame.f_locals.values()] if work.cr_frame is not None else []
        work.close()
        for child in handed:
            _close(child)


# -- lines


_AROUND = tuple(
    f"{kind}_{side}" for kind in ("border", "outline") for side in ("top", "right", "bottom", "left")
)
_CHANGES = (*_AROUND, "padding", "hatch", "tint", "text_opacity")
"""Rules by which a line is drawn otherwise than the widget made it."""


class _PlainLines(_STYLES):  # type: ignore[misc]
    """Lines around which nothing is drawn, kept until they change."""

    def __init__(self) -> None:
        super().__init__()
        self._width: int = 1
        self._plain: bool | None = None

    def clear(self) -> None:
        """All is to be drawn anew."""
        super().clear()
        self._plain = None

    def render_widget(self, widget: Any, crop: Region) -> list[Strip]:
        """The lines of a part of it."""
        if self._plain is None:
            changed = widget.styles.has_any_rules(*_CHANGES) or widget.opacity != 1.0
            self._plain = not changed and not widget.get_line_filters()
        width = widget.size.width
        if not self._plain or crop.column_span != (0, width):
            strips: list[Strip] = super().render_widget(widget, crop)
            return strips
        if width != self._width:
            self.clear()
            self._width = width
        widget.covered = widget.scrollbar_size_vertical
        lines, dirty, row_numbers = self._cache, self._dirty_lines, crop.line_range
        for y in row_numbers:
            if y in dirty or y not in lines:
                lines[y] = widget.strip(y, width)
        dirty.difference_update(row_numbers)
        return [lines[y] for y in row_numbers]


class _BarLines(_STYLES):  # type: ignore[misc]
    """The lines of a scroll bar, each kind of them made once: Textual's makes four objects a line."""

    def __init__(self, draw: Callable[[ScrollBar], Iterable[Strip]]) -> None:
        super().__init__()
        self._draw = draw

    def render_widget(self, widget: Any, crop: Region) -> list[Strip]:
        """The lines of a part of it."""
        lines, dirty = self._cache, self._dirty_lines
        if any(y in dirty or y not in lines for y in crop.line_range):
            dirty.clear()
            lines.update(enumerate(self._draw(widget)))
        return [lines[y].crop(*crop.column_span) for y in crop.line_range]


def keep_plain_lines(widget: Widget) -> None:
    """Has a widget draw its lines by its `strip(y, width)` where nothing is drawn around them.

    Textual asks line by line after borders, padding and tints, in as much time as the lines take.

    Assumes: a widget draws by its `_styles_cache`, a `textual._styles_cache.StylesCache` with `_cache`,
    `_dirty_lines` and `_width`.
    Seen: textual 8.2.8.
    Otherwise: Textual draws line by line, which takes longer.
    """
    if _KNOWN and hasattr(widget, "_styles_cache"):
        widget._styles_cache = _PlainLines()


def keep_bar_lines(bar: ScrollBar, draw: Callable[[ScrollBar], Iterable[Strip]]) -> None:
    """Has a scroll bar draw all its lines by `draw`.

    Assumes: as `keep_plain_lines` does.
    Seen: textual 8.2.8.
    Otherwise: Textual draws line by line, which takes longer.
    """
    if _KNOWN and not isinstance(getattr(bar, "_styles_cache", bar), (_BarLines, ScrollBar)):
        bar._styles_cache = _BarLines(draw)


def update_scroll(view: ScrollView, size: Size) -> None:
    """Has a view look at its scroll bar again, whose content is now of another size.

    Textual looks at it only when the widget's own size changes, and does not scroll what has no scroll bar.

    Assumes: `_scroll_update` of the view does so.
    Seen: textual 8.2.8.
    Otherwise: the whole screen is laid out anew, which takes longer.
    """
    update = getattr(view, "_scroll_update", None)
    if update is None:
        view.refresh(layout=True)
    else:
        update(size)
