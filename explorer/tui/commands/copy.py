"""Copies the visible contents as text, Markdown or a command, and takes pictures as SVG."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from explorer.base.errors import ExplorerError
from explorer.host import output_files
from explorer.report.present.look.layers import layer_blocks
from explorer.settings.parse import write_opening_words, write_path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import MenuItem, NoteDialog, PickDialog, SubScreen, ask_path
from explorer.tui.text.lines import escape_name, line_text
from explorer.tui.widgets.page_text import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import App

    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext

Copies = Mapping[str, tuple[str, str, Callable[[], str]]]
"""Texts that can be copied, by key: a title, a description, and the function that returns the text."""


class CopyAsCommand(ScreenCommand):
    """Asks which text to copy, and copies it to the terminal's clipboard."""

    def run(self) -> None:
        """Offer texts of the main screen, or of the screen above it."""
        app = self.context.app
        screen = app.screen if isinstance(app.screen, SubScreen) else None
        copies = self._list_main_texts() if screen is None else self._list_screen_texts(screen)
        items = tuple(MenuItem(key, key, title, tip) for key, (title, tip, _) in copies.items())

        def copy(key: str | None) -> None:
            message = "" if key is None else _copy_text(app, copies[key][2]())
            if message and screen is not None:
                app.push_screen(NoteDialog("Copy", message))
            elif message:
                self.store.say(message)

        app.push_screen(PickDialog("Copy", items, heads=("key", "what", "form")), copy)

    def _list_main_texts(self) -> Copies:
        return {
            "r": ("The row", "of the tree, as shown", self._read_row),
            "t": ("The tree", "all rows that are open, as text", lambda: read_text(self.tree)),
            "p": ("The page", "of the tab, as text", self._read_page),
            "m": (
                "The page as Markdown",
                "of a layer as tables; of a list as a code block",
                self._write_markdown,
            ),
            "c": ("The command", "that does or prints it", self._find_command),
        }

    def _list_screen_texts(self, screen: SubScreen[Any]) -> Copies:
        copies: dict[str, tuple[str, str, Callable[[], str]]] = {
            "p": ("The page", "as text", screen.page_text),
            "m": ("The page as Markdown", "as tables, or as a code block", lambda: _format_page(screen)),
        }
        if screen.has_table:
            copies["s"] = ("The table as CSV", "every row, as --csv prints it", screen.page_csv)
        words = screen.verb_words(write_path_word(self.store.source))
        if words and not self.store.history_place:
            # only for the state as opened, because the command prints that state
            words = [*words, *self._list_options()]
            copies["c"] = ("The command", "that prints it", lambda: shlex.join(["explorer", *words]))
        return copies

    def _read_row(self) -> str:
        tree = self.tree
        if not tree.row_count:
            return ""
        return line_text(tree.row_line(tree.cursor, max(20, tree.size.width))).strip()

    def _read_page(self) -> str:
        return read_text(self.panes.tabs.widget(self.store.tab))

    def _write_markdown(self) -> str:
        layer, info = self.tree.current_layer, self.store.analysis
        if self.store.tab != "layer" or layer is None or info is None:
            return _format_as_code(self._read_page())
        return f"## {layer.path}\n\n" + _format_blocks(layer_blocks(layer, info.info.totals))

    def _find_command(self) -> str:  # the command of the last action, or the one that prints the layer
        if self.store.last_command:
            return self.store.last_command
        layer, source = self.tree.current_layer, write_path_word(self.store.source)
        words = ["explorer", "layers", source, *(["--layer", layer.path] if layer is not None else [])]
        return shlex.join([*words, *self._list_options()])

    def _list_options(self) -> list[str]:
        """Return the options that open the model as it is now, including bound dimensions."""
        options, history = self.jobs.engine.options, self.store.history
        dims = None if history is None else history.dims
        return write_opening_words(options if dims is None else {**options, "dims": dims})


def _format_page(screen: SubScreen[Any]) -> str:
    blocks = screen.page_blocks()
    return _format_blocks(blocks) if blocks else _format_as_code(screen.page_text())


def _format_blocks(blocks: Sequence[Block]) -> str:
    from explorer.report.html.draw import format_markdown  # imported on demand: it loads jinja2

    return format_markdown(blocks)


def _format_as_code(page: str) -> str:
    return f"```text\n{page}\n```\n" if page else ""


def _copy_text(app: App[Any], text: str) -> str:
    """Copy a text to the terminal's clipboard. Returns a message for the user."""
    if not text:
        return "there is nothing to copy"
    app.copy_to_clipboard(text)
    line_count = text.strip().count("\n") + 1
    return f"sent to terminal: {escape_name(text.strip()) if line_count == 1 else f'{line_count:,} lines'}"


def take_picture(context: CommandContext) -> None:
    """Take a picture of the screen. Then ask for its path, because the dialog must not be in the picture."""
    app = context.app
    screen = app.screen if isinstance(app.screen, SubScreen) else None
    svg = app.export_screenshot(title=f"explorer {context.store.source}")

    def write(path: str, overwrite: bool, ask_again: Callable[[], None]) -> None:
        try:
            with output_files.write_atomically(path, overwrite=overwrite) as temporary:
                with output_files.open_text(temporary) as file:
                    file.write(svg)
        except ExplorerError as error:
            context.fail("Picture", error, ask_again)
        else:
            context.store.say(f"written to {escape_name(path)}")
            if screen is not None:
                app.push_screen(NoteDialog("Picture", f"written to {path}"))

    title = "What the terminal shows, as SVG, written to"
    name = f"{context.store.stem}_{screen.noun if screen is not None else context.store.tab}.svg"
    ask_path(app, "Picture of the screen", name, title, write)
