"""Sizes screen: a slider over a size with curves, and a dialog that binds open sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input

from explorer.base import units
from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts import list_dimension_sizes
from explorer.features.sizes.serving_screen import AskMachine, serving
from explorer.features.sizes.sizes_page import draw_reason, sizes_page
from explorer.features.sizes.sizes_words import sizes_blocks
from explorer.settings.parse import parse_count
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import has_command
from explorer.tui.commands.look.machine_action import ask_machine
from explorer.tui.dialogs.dialogs import FormDialog, SubScreen
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, cut_line, cut_middle, escape_name
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.sizes.curves import SizeCurves
    from explorer.report.blocks import Block


AskCurves = Callable[[str, "Machine | None"], Awaitable["SizeCurves"]]
"""Async function that counts the curves over a size, with times on a machine."""

# fmt: off
SIZES_KEYS = key_group(
    "Over open sizes",
    ("size_step(1)", ("right", "l"), "→ l", "A little more", "About 3 % more, at least one"),
    ("size_step(-1)", ("left", "h"), "← h", "A little less", "About 3 % less, at least one"),
    ("size_power(1)", ("up", "k", "pageup"), "↑ k", "The next power of two", "Twice as many"),
    ("size_power(-1)", ("down", "j", "pagedown"), "↓ j", "Previous power of two", "Half as many"),
    ("size_edge(0)", ("home", "g"), "Home g", "The least", "Where the range begins"),
    ("size_edge(1)", ("end", "G"), "End G", "The most", "Where it ends"),
    ("size_crossing(1)", ("n",), "n", "The next crossing", "Where another figure becomes the largest"),
    ("size_crossing(-1)", ("N",), "N", "The previous crossing", "Where another figure becomes the largest"),
    ("size_other", ("tab",), "Tab", "Another size", "Batch, sequence, ..."),
    ("size_machine", ("m",), "m", "Machine…", "The machine for the least times"),
    ("size_bind", ("enter",), "Enter", "Take this size", "Set the open sizes to the values shown"),
    ("size_type", ("t",), "t 1-9", "Type sizes", "Fields for all sizes that the model leaves open"),
    ("size_serving", ("at",), "@", "Serving…", "Memory and time by context, batch, devices"),
)
# fmt: on


_TEXT_SIZE = "sequence"
"""Name of the size that is the length of a text, if the model is a module that reads text."""


class SizeChoice(NamedTuple):
    """The user's choice on the sizes screen.

    Attributes:
        sizes: Sizes to bind, or None to open the dialog for all sizes, or the serving screen.
        serving: Whether to open the serving screen.
        name: Size to enter first; '' for any.
        typed: First digits that the user typed for this size.
    """

    sizes: dict[str, int] | None
    serving: bool = False
    name: str = ""
    typed: str = ""


class SizesView(SubScreen[SizeChoice]):
    """Show curves over a size; the result is the size to bind.

    Args:
        fact: Curves to show first.
        bindable: Names of the open sizes, which can be bound.
        ask: Async function that counts other curves.
        ask_machine: Function that asks the user for a machine.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(SIZES_KEYS),
        *(Binding(digit, f"size_type('{digit}')", show=False) for digit in "123456789"),
    ]
    AUTO_FOCUS = ""

    def __init__(
        self, fact: SizeCurves, bindable: frozenset[str], ask: AskCurves, ask_machine: AskMachine
    ) -> None:
        super().__init__()
        self._ask, self._bindable, self._ask_machine = ask, bindable, ask_machine
        self._note = ""
        self._set_curves(fact)

    def _set_curves(self, fact: SizeCurves) -> None:
        self.fact = fact
        self.at = fact.sizes.index(fact.at) if fact.at in fact.sizes else 0

    def compose(self) -> ComposeResult:
        """Yield the title bar, the plots and two status lines."""
        yield TitleBar()
        yield PanelView(self._draw_page, id="sizes-plot")
        yield Status(id="sizes-note")
        yield Status(id="sizes-keys")

    def on_mount(self) -> None:
        """Show the first curves."""
        self._show()

    def _show(self) -> None:
        self.query_one(TitleBar).show(lambda width: (_build_title(self.fact, width),))
        typed = ["t types another size"] if self.fact.others and self._bindable else []
        note = self._note or "; ".join([*self.fact.notes[:1], *typed, *self.fact.notes[1:]])
        self.query_one("#sizes-note", Status).show(
            lambda width: (cut_line(((f" {escape_name(note)}", "warn"),), width),)
        )
        self.query_one("#sizes-keys", Status).show(lambda width: (keys_line(self._list_keys(), width),))
        self.query_one("#sizes-plot", PanelView).redraw()

    def _list_keys(self) -> list[tuple[str, str]]:
        """Return the keys that have an effect now, the most used first."""
        fact, bindable = self.fact, self._bindable
        return [
            *(("← →", "step"), ("↑ ↓", "x2")),
            *([("n", "crossing")] if fact.crossings else []),
            *([("Tab", "size")] if len(fact.names) > 1 else []),
            *([("@", "serving")] if _TEXT_SIZE in fact.names else []),
            ("m", "machine"),
            *([("Enter", "take")] if fact.name in bindable else []),
            *([("1-9", "type")] if bindable else []),
            ("q", "back"),
        ]

    def _draw_page(self, width: int, height: int) -> list[Line]:
        if width < 16 or height < 4:
            return draw_reason("the terminal is too small", width)
        return sizes_page(self.fact, self.at, width, height)

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer sizes` prints."""
        return sizes_blocks(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that counts the same range on the same machine."""
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

    def _move(self, index: int) -> None:
        self.at = max(0, min(index, len(self.fact.sizes) - 1))
        self._show()

    # keys

    def action_size_step(self, step: int) -> None:
        """Move the slider by `step` sizes."""
        self._move(self.at + step)

    def action_size_power(self, direction: int) -> None:
        """Move the slider to the next (`direction` 1) or previous (-1) power of two."""
        current_size = self.fact.sizes[self.at]
        powers = [n for n in self.fact.sizes if not n & (n - 1) and (n - current_size) * direction > 0]
        ends = (self.fact.low, self.fact.high)
        self._move(
            self.fact.sizes.index(
                min(powers, key=lambda n: abs(n - current_size)) if powers else ends[direction > 0]
            )
        )

    def action_size_edge(self, end: int) -> None:
        """Move the slider to the first (`end` 0) or last (`end` 1) size."""
        self._move(end * len(self.fact.sizes))

    def action_size_crossing(self, direction: int) -> None:
        """Move the slider to the next (`direction` 1) or previous (-1) crossing, with wraparound."""
        current_size = self.fact.sizes[self.at]
        sizes = sorted({crossing.size for crossing in self.fact.crossings})[::direction]
        if sizes:
            self._move(
                self.fact.sizes.index(
                    next((n for n in sizes if (n - current_size) * direction > 0), sizes[0])
                )
            )

    def action_size_other(self) -> None:
        """Show the curves over the next size that can vary."""
        names = list(self.fact.names)
        next_name = names[(names.index(self.fact.name) + 1) % len(names)]
        if next_name != self.fact.name:
            self._count_again(next_name, self.fact.machine)

    def action_size_machine(self) -> None:
        """Ask for a machine, and show its times."""
        self._ask_machine(lambda machine: self._count_again(self.fact.name, machine))

    def action_size_bind(self) -> None:
        """Bind the slider's size if the model leaves it open."""
        fact, bindable = self.fact, self._bindable
        if fact.name not in bindable:
            self._say(f"{fact.name} is fixed in this model and cannot be changed")
            return
        # the visible figures rest on all of these sizes
        others = {name: size for name, size in fact.others.items() if name in bindable}
        self.dismiss(SizeChoice({**others, fact.name: fact.sizes[self.at]}))

    def action_size_type(self, digit: str = "") -> None:
        """Open a form for all open sizes. `digit` is entered in the field of the size under the slider."""
        if self._bindable:
            self.dismiss(SizeChoice(None, name=self.fact.name, typed=digit))
        else:
            self._say("this model leaves no dimension open")

    def action_size_serving(self) -> None:
        """Open the serving screen."""
        if _TEXT_SIZE in self.fact.names:
            self.dismiss(SizeChoice(None, serving=True))
        else:
            self._say("this model reads no text")

    def _say(self, note: str) -> None:
        self._note, self.has_message = note, bool(note)
        self._show()
        self._note = ""

    def _count_again(self, name: str, machine: Machine | None) -> None:
        self._say(f"counting over {name} …")
        self.run_worker(self._fetch(name, machine), exclusive=True, exit_on_error=False)

    async def _fetch(self, name: str, machine: Machine | None) -> None:
        try:
            fact = await self._ask(name, machine)
        except ExplorerError as error:
            self._say(str(error))
            return
        size = self.fact.sizes[self.at] if name == self.fact.name else None
        self._set_curves(fact)
        if size in fact.sizes:
            self.at = fact.sizes.index(size)
        self._show()


def _build_title(fact: SizeCurves, width: int) -> Line:
    """Build the title: the size, how its figures were counted, and the machine."""
    origin = (
        f"closed forms, counted at {len(fact.counted):,} sizes" if fact.closed else "counted at each size"
    )
    machine = f" · {escape_name(fact.machine.name or 'machine')}" if fact.machine is not None else ""
    return cut_line(((f" Over {escape_name(fact.name)}", "strong"), (f"  {origin}{machine}", "dim")), width)


_MAX_FIELDS = 64
"""Maximum number of fields. Further sizes can only be bound when the model is opened."""
_LABEL_CELLS = 11
"""Maximum length of the label of a field, in cells."""


class SizesDialog(FormDialog[dict[str, int]]):
    """Ask for sizes; the result has the bound sizes.

    Args:
        sizes: Current value of each size, by name; None for an open size.
        name: Name of the size that is focused first; '' for the first one.
        typed: Digits that this size begins with.
    """

    TITLE_TEXT = "Open sizes"
    HINT = "↑↓ choose · Enter apply · Esc cancel"

    def __init__(self, sizes: Mapping[str, int | None], name: str = "", typed: str = "") -> None:
        super().__init__()
        self._sizes = sizes
        self._fields = list(sizes)[:_MAX_FIELDS]
        self._first, self._typed = self._fields.index(name) if name in self._fields else 0, typed

    def on_mount(self) -> None:
        """Insert the typed digits. The base class focuses the field."""
        if self._typed:
            entry = self.query_one(f"#size-{self._first}", Input)
            entry.select_on_focus = False
            entry.value, entry.cursor_position = self._typed, len(self._typed)

    def find_first_field(self) -> Widget:
        """Return the field of the size to focus first."""
        return self.query_one(f"#size-{self._first}", Input)

    def compose_fields(self) -> ComposeResult:
        """Yield a field for each size."""
        with Vertical(id="sizes") as fields:  # a scrolling container would take the arrow keys
            fields.styles.overflow_y = "auto"
            fields.styles.height = min(len(self._fields), max(3, self.app.size.height - 9))
            for index, name in enumerate(self._fields):
                size = "" if self._sizes[name] is None else str(self._sizes[name])
                yield from self.compose_row(
                    cut_middle(escape_name(name), _LABEL_CELLS), size, "open", f"size-{index}", max_length=20
                )

    def describe(self) -> list[tuple[str, str]]:
        """List the open sizes, or describe the error in a field."""
        try:
            bound_sizes, role = self.read_answer(), "dim"
            open_names = [name for name in self._sizes if name not in bound_sizes]
            text = (
                f"Open: {', '.join(open_names)}. Figures that depend on them are unknown."
                if open_names
                else ""
            )
        except ExplorerError as error:
            text, role = str(error), "bad"
        hidden_count = len(self._sizes) - len(self._fields)
        note = (
            f"{hidden_count:,} more have no field: they are bound when the model is opened"
            if hidden_count
            else ""
        )
        return [(text, role), (note, "dim")]

    def read_answer(self) -> dict[str, int]:
        """Return the sizes of the fields; an empty field leaves its size open."""
        typed = {name: self.get_text(f"size-{index}") for index, name in enumerate(self._fields)}
        sizes = {
            name: parse_count(text, escape_name(name), 1) for name, text in typed.items() if text.strip()
        }
        without_field = {
            name: size for name, size in self._sizes.items() if name not in typed and size is not None
        }
        return {**without_field, **sizes}


class SizesCommand(ScreenCommand):
    """Command that shows figures over a size, or asks for open sizes if the figures cannot be counted."""

    def run(self) -> None:
        """Count the figures, then show them."""
        self.context.open_view("Open sizes", self._count())

    def _list_open_sizes(self) -> dict[str, int | None]:
        return {} if self.store.analysis is None else list_dimension_sizes(self.store.analysis.info)

    async def _count(self) -> None:
        try:
            fact = await self.jobs.run("counting over sizes", "sizes", machine=find_machine(self.store))
        except Cancelled:
            raise
        except ExplorerError as error:
            # a model that cannot be counted at several sizes can still be bound to one
            hint = " · * sets another batch size" * has_command("rebatch")
            self.store.say(str(error) if self._list_open_sizes() else f"this model leaves no size open{hint}")
            if self._list_open_sizes():
                self._open_dialog()
            return
        view = SizesView(
            fact,
            frozenset(self._list_open_sizes()),
            lambda name, machine: self.jobs.ask("sizes", name, machine=machine),
            partial(ask_machine, self.context),
        )
        self.context.ask(view, self._handle_choice)

    def _handle_choice(self, choice: SizeChoice | None) -> None:
        if choice is not None and choice.serving:
            serving(self.context)
        elif choice is not None and choice.sizes is None:
            self._open_dialog(choice.name, choice.typed)
        elif choice is not None and choice.sizes is not None:
            bound_sizes = {name: size for name, size in self._list_open_sizes().items() if size is not None}
            self._start_binding({**bound_sizes, **choice.sizes})

    def _open_dialog(self, name: str = "", typed: str = "") -> None:
        self.context.ask(SizesDialog(self._list_open_sizes(), name, typed), self._start_binding)

    def _start_binding(self, dims: dict[str, int] | None) -> None:
        if dims is not None:
            previous_dims = {name: size for name, size in self._list_open_sizes().items() if size is not None}
            self.context.start("Open sizes", self._bind(dims, previous_dims))

    async def _bind(self, dims: dict[str, int], previous_dims: dict[str, int]) -> None:
        self.store.history = await self.jobs.run("binding sizes", "bind", dims)
        await self.context.show_current("bind", previous_dims)
        self.store.say(f"bound: {units.dims_text(dims)}" if dims else "all sizes are open")
