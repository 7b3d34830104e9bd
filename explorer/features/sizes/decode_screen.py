"""Decode screen: compares a decode step with the prefill pass, and the KV cache with the weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import ExplorerError
from explorer.features.sizes.decode_words import decode_blocks
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import cut_line, escape_name
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.sizes.decode import Decode
    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext


# fmt: off
DECODE_KEYS = key_group(
    "Decoding",
    ("tokens(2)", ("right", "l"), "→ l", "Twice the tokens", "A longer text, and the decode step after it"),
    ("tokens(-2)", ("left", "h"), "← h", "Half the tokens", "A shorter text, and the decode step after it"),
    ("exact", ("e",), "e", "Exact or rounded numbers", "16,114,000,000 or 16.11 G"),
)
# fmt: on


class DecodeView(SubScreen[None]):
    """Show a decode step and the prefill pass over the text before it.

    Args:
        fact: Figures to show first.
        ask: Async function that counts the decode step after another number of tokens.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(DECODE_KEYS)
    FOOTER = (("↑ ↓", "scroll"), ("← →", "half, twice the tokens"), ("e", "exact"), ("q", "back"))

    def __init__(self, fact: Decode, ask: Callable[[int], Awaitable[Decode]], *, exact: bool = False) -> None:
        super().__init__()
        self.fact, self._ask, self._exact = fact, ask, exact

    def compose(self) -> ComposeResult:
        """Yield the title bar, the page and two status lines."""
        yield TitleBar()
        yield LineView(id="decode-page")
        yield Status(id="decode-note")
        yield Status(id="decode-keys")

    def on_mount(self) -> None:
        """Show the first step."""
        self.show_keys()
        self._show("")

    def _show(self, note: str) -> None:
        fact, exact = self.fact, self._exact
        title = f"  {fact.tokens:,} tokens, and the decode step after them"
        self.query_one(TitleBar).show(
            lambda width: (cut_line(((" Decoding", "strong"), (title, "dim")), width),)
        )
        self.query_one("#decode-note", Status).show(
            lambda width: (cut_line(((f" {escape_name(note)}", "warn"),), width),)
        )
        self.query_one("#decode-page", LineView).show(
            lambda width: draw(decode_blocks(fact), width - 1, exact)
        )

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer decode` prints."""
        return decode_blocks(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that counts the same step."""
        return ["decode", source, "--past", str(self.fact.tokens)]

    def action_tokens(self, factor: int) -> None:
        """Multiply the number of tokens by `factor`, or divide it by a negative factor."""
        tokens = self.fact.tokens * factor if factor > 0 else max(1, self.fact.tokens // -factor)
        if tokens != self.fact.tokens:
            self._show(f"counting {tokens:,} tokens …")
            self.run_worker(self._fetch(tokens), exclusive=True, exit_on_error=False)

    def action_exact(self) -> None:
        """Switch between exact and rounded figures."""
        self._exact = not self._exact
        self._show("")

    async def _fetch(self, tokens: int) -> None:
        try:
            self.fact = await self._ask(tokens)
        except ExplorerError as error:
            self._show(str(error))
            return
        self._show("")


def decode(context: CommandContext) -> None:
    """Count a decode step of the current model and show it with the prefill pass."""
    context.open_view("Decoding", _decode(context))


async def _decode(context: CommandContext) -> None:
    fact: Decode = await context.jobs.run("counting a decode step", "decode")
    view = DecodeView(fact, partial(context.jobs.ask, "decode"), exact=context.store.exact)
    context.ask(view)
