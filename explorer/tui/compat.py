"""Assumptions about undocumented behavior of Textual, one function or class each.

Each docstring has three parts. `Assumes:` states the undocumented fact, `Seen:` the versions in which it was
verified, and `Otherwise:` what happens if it does not hold.
"""

from __future__ import annotations

import inspect
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.dom import DOMNode
from textual.driver import Driver
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

    _CACHE_CLASS: Any = StylesCache
    _CACHE_IS_KNOWN = {"_cache", "_dirty_lines", "_width"} <= vars(StylesCache()).keys()
except ImportError:
    _CACHE_CLASS, _CACHE_IS_KNOWN = object, False

try:
    from textual.renderables.background_screen import BackgroundScreen
except ImportError:
    BackgroundScreen = object  # type: ignore[assignment, misc]

R = TypeVar("R")


class ReportingApp(App[R]):
    """An application whose caller reports its failures, instead of Textual's traceback page.

    Assumes: Textual stores its error in `_exception`, passes it to `_handle_exception`, prints it in
    `_fatal_error` and ends with `_close_messages_no_wait`. It has `_exit`, `_clipboard` and `_driver`. A
    terminal driver stores the previous terminal settings in `attrs_before`.
    Seen: textual 8.2.8.
    Otherwise: A failure is reported in one line without its cause, or on Textual's own page. An error of a
    node that is being removed ends the program. A key after the last one is handled. A text is not sent to
    the terminal's clipboard. After a disconnect the terminal keeps the screen's settings.
    """

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the application, or None. If a background task failed, the task's error."""
        if not hasattr(self, "_exception"):
            return ExplorerError("the screen ended with an error") if self.return_code else None
        return getattr(self._exception, "error", self._exception)

    def fail_with(self, error: Exception) -> None:
        """End the application with an error."""
        # not the method below: a task has the context of its starter, which may be being removed
        handle = getattr(super(), "_handle_exception", None)
        if handle is None:
            raise error
        handle(error)

    def _handle_exception(self, error: Exception) -> None:
        """End the application with an error, unless it comes from a node that is being removed.

        Such a node handles the messages that it already has, after nodes that it needs are gone.
        """
        node = _find_message_node()
        if node is None or node is self or not is_being_removed(node):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End the application without Textual's traceback page, because the caller reports the error."""
        close = getattr(self, "_close_messages_no_wait", None)
        if close is not None:
            close()
        else:
            self.exit(return_code=1)

    @property
    def is_leaving(self) -> bool:
        """Whether the application was told to quit."""
        return bool(getattr(self, "_exit", False))

    @property
    def driver(self) -> Any:
        """The driver that writes to the terminal, or None before it exists."""
        return getattr(self, "_driver", None)

    @property
    def terminal_attributes(self) -> Any:
        """Settings of the terminal before the application started, or None if unknown."""
        return getattr(self.driver, "attrs_before", None)

    def keep_clipboard(self, text: str) -> None:
        """Set the text that pasting within the application inserts."""
        self._clipboard = text


def find_active_node() -> Any:
    """Return the node of the running worker or, outside a worker, the node that handles the current message.

    Assumes: `textual._context.active_message_pump` is the node that handles the current message.
    Seen: textual 8.2.8.
    Otherwise: None is returned. A dialog appears above the visible model, even if it belongs to another one.
    """
    worker = active_worker.get(None)
    return worker.node if worker is not None else _find_message_node()


def _find_message_node() -> Any:
    """Return the node that handles the current message; see `find_active_node`."""
    try:
        from textual._context import active_message_pump
    except ImportError:
        return None
    return active_message_pump.get(None)


# -- input


def survive_bad_input(driver_class: type[Driver], create_decoder: Callable[[], Any]) -> type[Driver]:
    """Return a driver that uses another decoder, and continues after sequences that it cannot read.

    Textual would end the program, and the shell would get what the terminal sends next.

    Args:
        driver_class: The driver of the terminal.
        create_decoder: Creates a decoder with the method `decode(data, final=False)`.

    Assumes: `run_input_thread` of a driver reads and handles input until `exit_event` is set. Its module
    decodes input with a `getincrementaldecoder`. It raises ValueError or OverflowError for a sequence with
    an impossible number.
    Seen: textual 8.2.8.
    Otherwise: Such input ends the program with one line, and sequences in pasted text are keys.
    """
    if not hasattr(driver_class, "run_input_thread"):
        return driver_class
    for base in driver_class.__mro__:
        module = sys.modules[base.__module__]
        if getattr(module, "getincrementaldecoder", None) is getincrementaldecoder:
            module.getincrementaldecoder = lambda encoding: create_decoder  # type: ignore[attr-defined]

    class SurvivingDriver(driver_class):  # type: ignore[misc, valid-type]
        """A driver that starts to read again after input that it cannot read."""

        def run_input_thread(self) -> None:
            """Handle input until the program ends."""
            while True:
                try:
                    super().run_input_thread()
                    return
                except (ValueError, OverflowError):
                    exit_event = getattr(self, "exit_event", None)
                    if exit_event is None or exit_event.is_set():
                        return

    return SurvivingDriver


# -- workers


def watch_workers(app: App[Any], failed: Callable[[Exception], None]) -> None:
    """Replace the worker manager of an application by `ClosingWorkers`.

    Assumes: An application keeps its workers in `_workers`, and calls its `_remove_worker` for finished
    workers.
    Seen: textual 8.2.8.
    Otherwise: Textual's worker manager stays. An error of a background task ends the program with one line.
    """
    if hasattr(app, "_workers") and hasattr(WorkerManager, "_remove_worker"):
        app._workers = ClosingWorkers(app, failed)


class ClosingWorkers(WorkerManager):
    """A worker manager that closes the coroutines of finished workers, even if they never started.

    A second key in the same instant, or a closed screen, cancels a worker before its coroutine starts. Python
    would then print a warning to the terminal. An error of a worker is reported, unless it is an
    `ExplorerError`.

    Assumes: `_remove_worker` is called for each finished worker, whose coroutine is its `_work`.
    Seen: textual 8.2.8.
    Otherwise: After the screen has closed, Python warns about a coroutine that was never awaited.

    Args:
        app: The application.
        failed: Callback for an unexpected error.
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
            and not is_being_removed(worker.node)
        ):
            self._failed(error)


def is_being_removed(node: DOMNode) -> bool:
    """Whether a node or one of its ancestors is being removed, so that its work may miss other nodes.

    Assumes: `_pruning` and `_closing` of a node are set before it is removed.
    Seen: textual 8.2.8.
    Otherwise: Only a removed node counts, and an error of a node that is being removed may be reported.
    """
    nodes = node.ancestors_with_self
    if all(hasattr(ancestor, "_pruning") and hasattr(ancestor, "_closing") for ancestor in nodes):
        return any(ancestor._pruning or ancestor._closing for ancestor in nodes)
    return not node.is_attached


def _close(work: object) -> None:
    """Close a coroutine that was never started, and the coroutines among its arguments."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        arguments = [*work.cr_frame.f_locals.values()] if work.cr_frame is not None else []
        work.close()
        for child in arguments:
            _close(child)


# -- lines


_EDGE_RULES = tuple(
    f"{kind}_{side}" for kind in ("border", "outline") for side in ("top", "right", "bottom", "left")
)
_LINE_RULES = (*_EDGE_RULES, "padding", "hatch", "tint", "text_opacity")
"""Style rules that change the lines that a widget renders."""


class _PlainLines(_CACHE_CLASS):  # type: ignore[misc]
    """Cache of lines that no style rule changes."""

    def __init__(self) -> None:
        super().__init__()
        self._width: int = 1
        self._is_plain: bool | None = None

    def clear(self) -> None:
        """Clear the cache."""
        super().clear()
        self._is_plain = None

    def render_widget(self, widget: Any, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        if self._is_plain is None:
            changed = widget.styles.has_any_rules(*_LINE_RULES) or widget.opacity != 1.0
            self._is_plain = not changed and not widget.get_line_filters()
        width = widget.size.width
        if not self._is_plain or crop.column_span != (0, width):
            strips: list[Strip] = super().render_widget(widget, crop)
            return strips
        if width != self._width:
            self.clear()
            self._width = width
        widget.covered = widget.scrollbar_size_vertical
        lines, dirty, row_numbers = self._cache, self._dirty_lines, crop.line_range
        drawn: list[Strip] = []  # a line that is drawn may clear the cache
        for y in row_numbers:
            strip = None if y in dirty else lines.get(y)
            if strip is None:
                strip = lines[y] = widget.strip(y, width)
            drawn.append(strip)
        dirty.difference_update(row_numbers)
        return drawn


class _BarLines(_CACHE_CLASS):  # type: ignore[misc]
    """Cache of the lines of a scroll bar. Equal lines share one strip; Textual has four objects per line."""

    def __init__(self, draw: Callable[[ScrollBar], Iterable[Strip]]) -> None:
        super().__init__()
        self._draw = draw

    def render_widget(self, widget: Any, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        lines, dirty = self._cache, self._dirty_lines
        if any(y in dirty or y not in lines for y in crop.line_range):
            dirty.clear()
            lines.update(enumerate(self._draw(widget)))
        blank = Strip.blank(widget.size.width)  # a bar that was just hidden has no lines
        return [lines.get(y, blank).crop(*crop.column_span) for y in crop.line_range]


def keep_plain_lines(widget: Widget) -> None:
    """Let a widget render its lines with `strip(y, width)` if no style rule changes them.

    Textual checks borders, padding and tints for each line, which takes as long as rendering the lines.

    Assumes: A widget renders with `_styles_cache`, a `textual._styles_cache.StylesCache` with `_cache`,
    `_dirty_lines` and `_width`.
    Seen: textual 8.2.8.
    Otherwise: Textual renders line by line, which is slower.
    """
    if _CACHE_IS_KNOWN and hasattr(widget, "_styles_cache"):
        widget._styles_cache = _PlainLines()


def keep_bar_lines(bar: ScrollBar, draw: Callable[[ScrollBar], Iterable[Strip]]) -> None:
    """Let a scroll bar render all its lines with `draw`.

    Assumes: The same as `keep_plain_lines`.
    Seen: textual 8.2.8.
    Otherwise: Textual renders line by line, which is slower.
    """
    if _CACHE_IS_KNOWN and not isinstance(getattr(bar, "_styles_cache", bar), (_BarLines, ScrollBar)):
        bar._styles_cache = _BarLines(draw)


class _DimmedScreen(BackgroundScreen):
    """The screen below a dialog, dimmed. A screen has hundreds of pieces of text, in a few styles."""

    @classmethod
    def process_segments(cls, segments: Iterable[Segment], color: Color) -> Iterable[Segment]:
        """Dim pieces of text, each style once."""
        dimmed_styles: dict[Style | None, Style | None] = {}
        for text, style, control in segments:
            if style not in dimmed_styles:
                (dimmed,) = super().process_segments([Segment("", style)], color)
                dimmed_styles[style] = dimmed.style
            yield Segment(text, dimmed_styles[style], control)


def dim_quickly(background: RenderableType) -> RenderableType:
    """Return the background of a dialog that dims the screen below in a third of the time.

    Assumes: Textual draws such a background with `textual.renderables.background_screen.BackgroundScreen`,
    which dims pieces of text with its class method `process_segments`.
    Seen: textual 8.2.8.
    Otherwise: Textual dims each piece of text, which is slower.
    """
    if type(background) is BackgroundScreen:
        return _DimmedScreen(background.screen, background.color)
    return background


def update_scroll(view: ScrollView, size: Size) -> None:
    """Let a view update its scroll bar after the size of its contents changed.

    Textual updates the scroll bar only when the size of the widget changes, and does not scroll a widget
    without one.

    Assumes: `_scroll_update` of the view updates the scroll bar.
    Seen: textual 8.2.8.
    Otherwise: The whole screen is laid out again, which is slower.
    """
    update = getattr(view, "_scroll_update", None)
    if update is None:
        view.refresh(layout=True)
    else:
        update(size)
