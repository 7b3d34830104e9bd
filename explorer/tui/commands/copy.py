"""Copying and pictures: what is on show as text, as Markdown, as the command that prints it, as SVG."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from explorer.base.errors import ExplorerError
from explorer.host import output_files
from explorer.settings.parse import path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import MenuItem, NoteDialog, PickDialog, SubScreen, ask_path
from explorer.tui.text.lines import line_text, safe
from explorer.tui.widgets.line_view import LineList, LineView

if TYPE_CHECKING:
    from textual.widget import Widget

_MOST = 2_000
"""Rows that are copied: a terminal's clipboard holds little."""


def text_of(widget: Widget) -> str:
    """What a pane holds, also where it is scrolled away."""
    if isinstance(widget, LineList):
        width, count = max(20, widget.size.width), min(widget.row_count, _MOST)
        lines = [line_text(widget.row_line(at, width)).rstrip() for at in range(count)]
        if widget.row_count > count:
            lines.append(f"({count:,} of {widget.row_count:,} rows)")
    elif isinstance(widget, LineView):
        lines = [line_text(line).rstrip() for line in widget.lines]
    else:
        lines = []
    return "\n".join(lines).strip("\n")


class CopyAsCommand(ScreenCommand):
    """Asks what is to be copied, and as what, and sends it to the terminal."""

    def run(self) -> None:
        """Ask."""
        items = (
            MenuItem("row", "r", "The row", "of the tree, as it stands there"),
            MenuItem("tree", "t", "The tree", "all rows that are open, as text"),
            MenuItem("page", "p", "The page", "of the tab, as text"),
            MenuItem(
                "markdown", "m", "The page as Markdown", "of the layer with its tables; of a list as code"
            ),
            MenuItem("command", "c", "The command", "that does or prints it"),
        )
        self.context.ask(PickDialog("Copy", items, heads=("key", "what", "as what")), self._copy)

    def _copy(self, chosen: str | None) -> None:
        made: Mapping[str, Callable[[], str]] = {
            "row": self._row,
            "tree": lambda: text_of(self.tree),
            "page": self._page,
            "markdown": self._markdown,
            "command": self._command,
        }
        if chosen is None:
            return
        text = made[chosen]()
        if text:
            self.context.app.copy_to_clipboard(text)
            many = text.count("\n") + 1
            said = safe(text.strip()) if many == 1 else f"{many:,} lines"
            self.store.say(f"sent to terminal: {said}")
        else:
            self.store.say("there is nothing to copy")

    def _row(self) -> str:
        tree = self.tree
        if not tree.row_count:
            return ""
        return line_text(tree.row_line(tree.cursor, max(20, tree.size.width))).strip()

    def _page(self) -> str:
        return text_of(self.panes.tabs.widget(self.store.tab))

    def _markdown(self) -> str:
        layer, info = self.tree.current_layer, self.store.analysis
        if self.store.tab != "layer" or layer is None or info is None:
            page = self._page()
            return f"```text\n{page}\n```\n" if page else ""
        from explorer.report.html.draw import markdown_text  # jinja2, when somebody wants it
        from explorer.report.present.look.layers import layer_blocks

        return f"## {layer.path}\n\n" + markdown_text(layer_blocks(layer, info.info.totals))

    def _command(self) -> str:
        if self.store.last_command:
            return self.store.last_command
        layer, source = self.tree.current_layer, path_word(self.store.source)
        words = ["explorer", "layers", source, *(["--layer", layer.path] if layer is not None else [])]
        return shlex.join(words)


class PictureCommand(ScreenCommand):
    """Saves what the terminal shows as an SVG file."""

    def run(self) -> None:
        """Take it, then ask where it goes: the question is not in it."""
        app = self.context.app
        other = app.screen if isinstance(app.screen, SubScreen) else None
        picture = app.export_screenshot(title=f"explorer {self.store.source}")

        def write(path: str, overwrite: bool, again: Callable[[], None]) -> None:
            try:
                with output_files.atomic_write(path, overwrite=overwrite) as temporary:
                    with open(temporary, "w", encoding="utf-8") as file:
                        file.write(picture)
            except ExplorerError as error:
                self.context.fail("Picture", error, again)
            else:
                self.store.say(f"written to {safe(path)}")
                if other is not None:
                    app.push_screen(NoteDialog("Picture", f"written to {path}"))

        said = "What the terminal shows, as SVG, written to"
        name = f"{self.store.stem}_{other.noun if other is not None else self.store.tab}.svg"
        ask_path(app, "Picture of the screen", name, said, write, blink=not self.store.remote)
