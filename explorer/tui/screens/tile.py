"""The tile dialog: size, edges, form and sites, with the plan's counts live before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from explorer.arguments import parse_tile
from explorer.errors import Cancelled, ExplorerError
from explorer.facts import Layer, Plan, SitePlan, TileSpec
from explorer.tui.lines import BLANK, Line, fit, safe, wrap
from explorer.tui.pages.plan import plan_lines
from explorer.tui.screens.dialogs import Dialog, text_input
from explorer.tui.widgets.line_view import LineView, RoleLines

__all__ = ["Options", "TileDialog", "sites_of"]

_LABEL = 12
"""Cells before what a field says; a word has one of them for its own highlight."""
_PAUSE = 0.15
"""Seconds without a key before the plan is asked for again."""


def sites_of(layers: Sequence[Layer], sites: Sequence[SitePlan], *, by_value: bool = True) -> list[SitePlan]:
    """The sites that lie in `layers` (leaves or groups).

    A site of an ONNX model is known by the value that it makes. One of an nn.Module, whose tensors have
    no names of their own (`by_value` is False), is known by the scope that the exporter wrote into its
    node's name: /classifier/classifier.1/Gemm is classifier.1.
    """
    leaves = [layer for layer in layers if by_value and not layer.group]
    made = {tensor.name for layer in leaves for tensor in layer.outputs if tensor.name}
    paths = [layer.path for layer in layers if layer.path]
    found = []
    for site in sites:
        scope = _scope(site.name)
        if site.output in made or any(
            scope == p or scope.startswith(p + ".") or site.name == p for p in paths
        ):
            found.append(site)
    return found


def _scope(name: str) -> str:
    scope = ""
    for piece in name.strip("/").split("/"):
        nested = not scope or piece == scope or piece.startswith(scope + ".")
        scope = piece if nested else f"{scope}.{piece}"
    return scope


class Options(RoleLines, can_focus=True):
    """One of a few words; left and right change it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l,space", "step(1)", show=False),
    ]
    DEFAULT_CSS = "Options { height: 1; width: 1fr; }"

    class Changed(Message):
        """Another word was chosen."""

    def __init__(self, label: str, words: Sequence[str], *, id: str) -> None:
        super().__init__(id=id)
        self.label, self.words, self.index = fit(label, _LABEL - 1), tuple(words), 0

    @property
    def value(self) -> str:
        """The word chosen."""
        return self.words[self.index]

    def set_words(self, words: Sequence[str]) -> None:
        """Other words, in the same places."""
        self.words = tuple(words)
        self.refresh()

    def line_at(self, y: int) -> Line:
        """The line in row `y`."""
        spans: list[tuple[str, str]] = [(self.label, "dim")]
        start = self._start()
        for i, word in enumerate(self.words[start:], start):
            chosen = "mark" if self.has_focus else "head"  # bold: without colours it must differ too
            spans += [(f" {word} ", chosen if i == self.index else "dim"), (" ", "text")]
        return tuple(spans)

    def _start(self) -> int:
        """The first word on show: of many, those before the chosen one that would push it out are not."""
        room, start = self.size.width - _LABEL, self.index
        while start and sum(len(w) + 3 for w in self.words[start - 1 : self.index + 1]) <= room:
            start -= 1
        return start

    def action_step(self, step: int) -> None:
        """The word beside."""
        self.index = (self.index + step) % len(self.words)
        self.refresh()
        self.post_message(self.Changed())

    async def _on_click(self, event: events.Click) -> None:
        x, start = _LABEL - 1, self._start()
        for i, word in enumerate(self.words[start:], start):
            if x <= event.x < x + len(word) + 2:
                self.index = i
                self.refresh()
                self.post_message(self.Changed())
                return
            x += len(word) + 3


class TileDialog(Dialog[TileSpec]):
    """Asks for a tiling.

    Args:
        ask_plan: The engine's plan for a spec.
        by_value: See `sites_of`.
        chosen: The layer or run under the cursor, with everything inside it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "focus_step(-1)", show=False),
        Binding("down", "focus_step(1)", show=False),
        Binding("pageup", "plan_page(-1)", show=False),
        Binding("pagedown", "plan_page(1)", show=False),
    ]
    TITLE_TEXT = "Tile matrix products"
    HINT = "↑↓←→ choose · PgDn plan · Enter apply · Esc cancel"

    def __init__(
        self,
        ask_plan: Callable[[TileSpec], Awaitable[Plan]],
        chosen: Sequence[Layer],
        *,
        by_value: bool = True,
        blink: bool = False,
    ) -> None:
        super().__init__()
        self._by_value = by_value
        self._ask_plan, self._chosen, self._blink = ask_plan, tuple(chosen), blink
        self._every: tuple[SitePlan, ...] | None = None
        self._spec: TileSpec | None = None
        self.plan: Plan | None = None

    def body(self) -> ComposeResult:
        """What is in the box."""
        # the rows draw their labels themselves: a dialog of half as many widgets opens in half the time
        with Horizontal(classes="form-row"):
            yield Static("tile", classes="form-label", markup=False)
            yield text_input("64x64x64", blink=self._blink, id="tile")
        yield Options("edges", ("ragged", "padded"), id="edges")
        yield Options("form", ("auto", "lab", "scan", "unrolled", "batched"), id="form")
        yield Options("sites", ("all", "this layer", "this kind"), id="sites")
        yield LineView(id="plan")

    def on_mount(self) -> None:
        """Ask for the plan of the first choices."""
        self.query_one("#plan", LineView).can_focus = False
        self.query_one("#plan").styles.height = max(6, min(16, self.app.size.height - 11))
        self.query_one("#tile", Input).focus()
        self._ask()

    @on(Input.Changed)
    @on(Options.Changed)
    def _ask(self) -> None:
        self._spec = None  # what is on show is no longer what would be done
        self.run_worker(self._refresh_plan(), group="plan", exclusive=True, exit_on_error=False)

    async def _refresh_plan(self) -> None:
        await asyncio.sleep(_PAUSE if self.plan is not None else 0)
        try:
            if self._every is None:
                self._say("asking the engine…", "dim")
                self._every = (await self._ask_plan(TileSpec())).sites
                self._name_sites(self._every)
            spec = self.spec()
            self.plan = await self._ask_plan(spec)
        except Cancelled:
            return
        except ExplorerError as error:
            self._say(str(error), "bad")
            return
        self._spec = spec
        plan = self.plan
        self.query_one("#plan", LineView).show(lambda width: plan_lines(plan, width), top=True)

    def _name_sites(self, every: Sequence[SitePlan]) -> None:
        counts = (len(every), len(self._here(every)), len(self._kind(every)))
        words = ("all", "this layer", "this kind")
        self.query_one("#sites", Options).set_words(
            [f"{w} {n:,}" for w, n in zip(words, counts, strict=True)]
        )

    def _here(self, every: Sequence[SitePlan]) -> list[SitePlan]:
        return sites_of(self._chosen, every, by_value=self._by_value)

    def _kind(self, every: Sequence[SitePlan]) -> list[SitePlan]:
        kinds = {site.op for site in self._here(every)}
        return [site for site in every if site.op in kinds]

    def _say(self, said: str, role: str) -> None:
        self.query_one("#plan", LineView).show(lambda width: wrap(((safe(said), role),), width) or [BLANK])

    def spec(self) -> TileSpec:
        """What the fields say.

        Raises:
            ExplorerError: The tile is not a tile, or no site lies in what was chosen.
        """
        tile = parse_tile(self.query_one("#tile", Input).value, "tile")
        which = self.query_one("#sites", Options).index
        sites: tuple[str, ...] = ()
        if which:
            found = self._here(self._every or ()) if which == 1 else self._kind(self._every or ())
            if not found:
                where = self._chosen[0].path if self._chosen else "no layer"
                raise ExplorerError("no matrix product here that can be tiled", where=where)
            sites = tuple(site.name for site in found)
        edges, form = self.query_one("#edges", Options).value, self.query_one("#form", Options).value
        return TileSpec(tile=tile, sites=sites, edges=edges, form=form)  # type: ignore[arg-type]

    def action_focus_step(self, step: int) -> None:
        """The field above or below."""
        (self.focus_next if step > 0 else self.focus_previous)()

    def action_plan_page(self, step: int) -> None:
        """Scroll the plan."""
        self.query_one("#plan", LineView).action_scroll_page(step)

    def action_apply(self) -> None:
        """Do it, if the plan on show is the plan of what the fields say."""
        if self._spec is not None and self.plan is not None and self.plan.sites:
            self.dismiss(self._spec)
