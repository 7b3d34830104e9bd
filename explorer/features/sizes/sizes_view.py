"""Open sizes, live: a slider over a size, with curves that follow it, and the crossings told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import ExplorerError
from explorer.features.sizes.sizes_page import sizes_page, told_why
from explorer.features.sizes.sizes_words import sizes_blocks
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, cut, safe
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.sizes.curves import SizeCurves
    from explorer.report.blocks import Block

AskCurves = Callable[[str, "Machine | None"], Awaitable["SizeCurves"]]
"""Asks for the curves over a size, with the times of a machine."""

AskMachine = Callable[[Callable[["Machine | None"], None]], None]
"""Asks for a machine, and hands it on once there is one."""

# fmt: off
SIZES_KEYS = key_group(
    "Over open sizes",
    ("size_step(1)", ("right", "l"), "→ l", "A little more", "Some 3 %, or one"),
    ("size_step(-1)", ("left", "h"), "← h", "A little less", "Some 3 %, or one"),
    ("size_power(1)", ("up", "k", "pageup"), "↑ k", "The next power of two", "Twice as many"),
    ("size_power(-1)", ("down", "j", "pagedown"), "↓ j", "The power of two before", "Half as many"),
    ("size_edge(0)", ("home", "g"), "Home g", "The least", "Where the range begins"),
    ("size_edge(1)", ("end", "G"), "End G", "The most", "Where it ends"),
    ("size_crossing(1)", ("n",), "n", "The next crossing", "Where one figure passes another"),
    ("size_crossing(-1)", ("N",), "N", "The crossing before", "The same, the other way round"),
    ("size_other", ("tab",), "Tab", "Another size", "Batch, sequence, ..."),
    ("size_machine", ("m",), "m", "Machine…", "Whose least time is drawn"),
    ("size_bind", ("enter",), "Enter", "Take this size", "Binds what the model leaves open to it"),
    ("size_type", ("t",), "t", "Type sizes", "Fields for all sizes that the model leaves open"),
    ("size_serving", ("at",), "@", "Serving…", "Of a text: prompt, context, batch, devices"),
)
# fmt: on


_TEXT = "sequence"
"""What the length of a module's text is called."""


class SizeChoice(NamedTuple):
    """What was chosen: a size to bind, or None to type all of them; or to look at serving instead."""

    name: str
    size: int | None
    serving: bool = False


class SizesView(SubScreen[SizeChoice]):
    """Shows curves over a size; answers with what is to be bound.

    Args:
        fact: The curves that are shown first.
        bindable: Sizes that the model leaves open and that can be bound.
        ask: Asks for others.
        ask_machine: Asks for a machine, and hands it on.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(SIZES_KEYS)
    AUTO_FOCUS = ""

    def __init__(
        self, fact: SizeCurves, bindable: frozenset[str], ask: AskCurves, ask_machine: AskMachine
    ) -> None:
        super().__init__()
        self._ask, self._bindable, self._ask_machine = ask, bindable, ask_machine
        self._said = ""
        self._take(fact)

    def _take(self, fact: SizeCurves) -> None:
        self.fact = fact
        self.at = fact.sizes.index(fact.at) if fact.at in fact.sizes else 0

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PanelView(self._page, id="sizes-plot")
        yield Status(id="sizes-note")
        yield Status(id="sizes-keys")

    def on_mount(self) -> None:
        """Show the first curves."""
        self._show()

    def _show(self) -> None:
        self.query_one(TitleBar).show(lambda width: (_title(self.fact, width),))
        typed = ["t types another size"] if self.fact.others and self._bindable else []
        said = self._said or "; ".join([*self.fact.notes[:1], *typed, *self.fact.notes[1:]])
        self.query_one("#sizes-note", Status).show(lambda width: (cut(((f" {safe(said)}", "warn"),), width),))
        self.query_one("#sizes-keys", Status).show(lambda width: (keys_line(self._footer(), width),))
        self.query_one("#sizes-plot", PanelView).again()

    def _footer(self) -> list[tuple[str, str]]:
        """The keys that do something here, those used most first."""
        fact, bindable = self.fact, self._bindable
        return [
            *(("← →", "step"), ("↑ ↓", "x2")),
            *([("n", "crossing")] if fact.crossings else []),
            *([("Tab", "size")] if len(fact.names) > 1 else []),
            *([("@", "serving")] if _TEXT in fact.names else []),
            ("m", "machine"),
            *([("Enter", "take")] if fact.name in bindable else []),
            *([("t", "type")] if bindable else []),
            ("q", "back"),
        ]

    def _page(self, width: int, height: int) -> list[Line]:
        if width < 16 or height < 4:
            return told_why("the terminal is too small", width)
        return sizes_page(self.fact, self.at, width, height)

    def page_blocks(self) -> list[Block]:
        """What `explorer sizes` tells."""
        return sizes_blocks(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """The same range, on the same machine."""
        fact, machine = self.fact, self.fact.machine
        words = ["sizes", source, "--over", f"{fact.name}={fact.low}:{fact.high}"]
        if machine is None:
            return words
        return [
            *words,
            "--peak-macs",
            f"{machine.peak_macs:.17g}",
            "--bandwidth",
            f"{machine.bandwidth:.17g}",
        ]

    def _move(self, at: int) -> None:
        self.at = max(0, min(at, len(self.fact.sizes) - 1))
        self._show()

    # keys

    def action_size_step(self, step: int) -> None:
        """One stop on."""
        self._move(self.at + step)

    def action_size_power(self, way: int) -> None:
        """To the next power of two, or the one before."""
        here = self.fact.sizes[self.at]
        powers = [n for n in self.fact.sizes if not n & (n - 1) and (n - here) * way > 0]
        ends = (self.fact.low, self.fact.high)
        self._move(
            self.fact.sizes.index(min(powers, key=lambda n: abs(n - here)) if powers else ends[way > 0])
        )

    def action_size_edge(self, end: int) -> None:
        """To the least or the most."""
        self._move(end * len(self.fact.sizes))

    def action_size_crossing(self, way: int) -> None:
        """To the next crossing, or the one before; behind the last to the first."""
        here = self.fact.sizes[self.at]
        sizes = sorted({crossing.size for crossing in self.fact.crossings})[::way]
        if sizes:
            self._move(self.fact.sizes.index(next((n for n in sizes if (n - here) * way > 0), sizes[0])))

    def action_size_other(self) -> None:
        """The curves over the next size that the model can have others of."""
        names = list(self.fact.names)
        other = names[(names.index(self.fact.name) + 1) % len(names)]
        if other != self.fact.name:
            self._again(other, self.fact.machine)

    def action_size_machine(self) -> None:
        """Ask for a machine, and draw its times."""
        self._ask_machine(lambda machine: self._again(self.fact.name, machine))

    def action_size_bind(self) -> None:
        """Take the size, where the model leaves it open."""
        if self.fact.name in self._bindable:
            self.dismiss(SizeChoice(self.fact.name, self.fact.sizes[self.at]))
        else:
            self._say(f"{self.fact.name} is fixed in this model: it can be looked at, not taken")

    def action_size_type(self) -> None:
        """Type the sizes instead."""
        if self._bindable:
            self.dismiss(SizeChoice("", None))
        else:
            self._say("this model leaves no dimension open")

    def action_size_serving(self) -> None:
        """Look at serving instead."""
        if _TEXT in self.fact.names:
            self.dismiss(SizeChoice("", None, serving=True))
        else:
            self._say("this model reads no text")

    def _say(self, said: str) -> None:
        self._said = said
        self._show()
        self._said = ""

    def _again(self, name: str, machine: Machine | None) -> None:
        self._say(f"counting over {name} …")
        self.run_worker(self._fetch(name, machine), exclusive=True, exit_on_error=False)

    async def _fetch(self, name: str, machine: Machine | None) -> None:
        try:
            fact = await self._ask(name, machine)
        except ExplorerError as error:
            self._say(str(error))
            return
        size = self.fact.sizes[self.at] if name == self.fact.name else None
        self._take(fact)
        if size in fact.sizes:
            self.at = fact.sizes.index(size)
        self._show()


def _title(fact: SizeCurves, width: int) -> Line:
    """What is shown, and what it rests on."""
    how = f"closed forms, counted at {len(fact.counted):,} sizes" if fact.closed else "counted at each size"
    machine = f" · {safe(fact.machine.name or 'machine')}" if fact.machine is not None else ""
    return cut(((f" Over {safe(fact.name)}", "strong"), (f"  {how}{machine}", "dim")), width)
