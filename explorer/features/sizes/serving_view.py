"""Serving: what it costs to run a language model, with prompt, context, batch and devices changed by keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import ExplorerError
from explorer.base.units import bytes_text
from explorer.facts.serving.spec import ServingSpec
from explorer.features.sizes.serving_plots_words import serving_plots
from explorer.features.sizes.serving_words import serving_blocks
from explorer.features.sizes.sizes_view import AskMachine
from explorer.report.blocks import Line as TextLine
from explorer.settings.option_values import words_of
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.dialogs.record_form import RecordForm
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, beside, cut, safe
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving
    from explorer.report.blocks import Block

AskServing = Callable[[ServingSpec, "Machine | None"], Awaitable["Serving"]]
"""Asks for a model's serving, with the times of a machine."""

# fmt: off
SERVING_KEYS = key_group(
    "Serving",
    ("context(2)", ("right", "l"), "→ l", "Twice the context", "All contexts that are shown"),
    ("context(-2)", ("left", "h"), "← h", "Half the context", "All contexts that are shown"),
    ("prompt(2)", ("p",), "p", "Twice the prompt", "Tokens read before the first is written"),
    ("prompt(-2)", ("P",), "P", "Half the prompt", "Tokens read before the first is written"),
    ("batch(2)", ("b",), "b", "Twice the batches", "1, 8, 32 become 2, 16, 64"),
    ("batch(-2)", ("B",), "B", "Half the batches", "Down to one sequence"),
    ("devices(2)", ("d",), "d", "Twice the devices", "And the layouts over them"),
    ("devices(-2)", ("D",), "D", "Half the devices", "Down to one"),
    ("machine", ("m",), "m", "Machine…", "Whose least times are shown"),
    ("type", ("t",), "t", "Type…", "All of it, with types and the memory of a device"),
    ("exact", ("e",), "e", "Exact or rounded numbers", "16.11 G or 16,114,000,000"),
)
# fmt: on
_WIDE, _PLOT = 136, 56
"""Cells from which on plots stand beside the figures, and that they take."""
_MOST = {"contexts": 1 << 30, "batches": 1 << 20, "devices": 1 << 10}


class ServingView(SubScreen[None]):
    """Shows what it costs to run a model.

    Args:
        fact: What is shown first.
        ask: Asks for another question's answer.
        ask_machine: Asks for a machine, and hands it on.
        exact: Whether figures are written out.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(SERVING_KEYS)
    FOOTER = (
        *(("← →", "context"), ("p P", "prompt"), ("b B", "batch"), ("d D", "devices"), ("t", "type")),
        *(("m", "machine"), ("↑ ↓", "scroll"), ("q", "back")),
    )

    def __init__(
        self,
        fact: Serving,
        ask: AskServing,
        ask_machine: AskMachine,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.fact, self.spec, self.machine = fact, fact.spec, fact.machine
        self._ask, self._ask_machine, self._exact = ask, ask_machine, exact

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield LineView(id="serving-page")
        yield Status(id="serving-note")
        yield Status(id="serving-keys")

    def on_mount(self) -> None:
        """Show the first answer."""
        self.show_keys()
        self._show("")

    def _show(self, said: str) -> None:
        fact, exact = self.fact, self._exact
        title = f"  {asked_text(self.spec)}"
        self.query_one(TitleBar).show(lambda width: (cut(((" Serving", "strong"), (title, "dim")), width),))
        self.query_one("#serving-note", Status).show(
            lambda width: (cut(((f" {safe(said)}", "warn"),), width),)
        )
        self.query_one("#serving-page", LineView).show(lambda width: serving_page(fact, width - 1, exact))

    def page_blocks(self) -> list[Block]:
        """What `explorer serving` tells."""
        return serving_blocks(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """The same question."""
        spec, machine = self.spec, self.machine
        words = ["serving", source, *words_of(spec)]
        if machine is not None:
            words += ["--peak-macs", f"{machine.peak_macs:.17g}", "--bandwidth", f"{machine.bandwidth:.17g}"]
        return words

    def action_context(self, factor: int) -> None:
        """Other contexts."""
        self._scale("contexts", factor)

    def action_batch(self, factor: int) -> None:
        """Other batches."""
        self._scale("batches", factor)

    def action_devices(self, factor: int) -> None:
        """Another number of devices."""
        self._scale("devices", factor)

    def action_prompt(self, factor: int) -> None:
        """Another prompt."""
        self._change(replace(self.spec, prompt=_scaled(self.spec.prompt, factor, _MOST["contexts"])))

    def _scale(self, name: str, factor: int) -> None:
        sizes = dict.fromkeys(_scaled(size, factor, _MOST[name]) for size in getattr(self.spec, name))
        self._change(replace(self.spec, **{name: tuple(sizes)}))

    def action_machine(self) -> None:
        """Ask for a machine."""

        def answered(machine: Machine | None) -> None:
            self.machine = machine
            # the memory and links of a machine before it are not its own
            self._change(replace(self.spec, card=None, links=None), again=True)

        self._ask_machine(answered)

    def action_type(self) -> None:
        """Ask for all of it."""

        def answered(spec: ServingSpec | None) -> None:
            if spec is not None:
                self._change(spec)

        self.app.push_screen(ServingDialog(self.spec), answered)

    def action_exact(self) -> None:
        """Write figures out, or round them."""
        self._exact = not self._exact
        self._show("")

    def _change(self, spec: ServingSpec, *, again: bool = False) -> None:
        if spec == self.spec and not again:
            return
        self.spec = spec
        self._show("counting …")
        self.run_worker(self._fetch(spec), exclusive=True, exit_on_error=False)

    async def _fetch(self, spec: ServingSpec) -> None:
        try:
            fact = await self._ask(spec, self.machine)
        except ExplorerError as error:
            self.spec = self.fact.spec
            self._show(str(error))
            return
        self.fact, self.spec = fact, fact.spec
        self._show("")


def _scaled(size: int, factor: int, most: int) -> int:
    return min(size * factor, most) if factor > 0 else max(1, size // -factor)


def asked_text(spec: ServingSpec) -> str:
    """A question in a line."""
    contexts, batches, devices = (
        ", ".join([f"{size:,}" for size in sizes]) for sizes in (spec.contexts, spec.batches, spec.devices)
    )
    types = "".join(
        [f" · {what} {name}" for what, name in (("weights", spec.dtype), ("KV", spec.kv_dtype)) if name]
    )
    return f"prompt {spec.prompt:,} · context {contexts} · batch {batches} · devices {devices}{types}"


def serving_page(fact: Serving, width: int, exact: bool) -> list[Line]:
    """What `explorer serving` tells, with plots over context and batch beside it, or below it."""
    if width < _WIDE:
        return draw([*serving_blocks(fact), TextLine(), *serving_plots(fact)], width, exact)
    left = draw(serving_blocks(fact), width - _PLOT - 2, exact)
    return beside(left, draw(serving_plots(fact), _PLOT), width - _PLOT)


class ServingDialog(RecordForm[ServingSpec]):
    """Asks for all of a question about serving."""

    TITLE_TEXT = "Serving"
    HINT = "↑↓ choose · Enter count · Esc cancel"

    def meaning(self) -> list[tuple[str, str]]:
        """What is asked."""
        spec = self.answer()
        room = "" if spec.card is None else f", {bytes_text(spec.card)} a device"
        return [(f"{asked_text(spec)}{room}", "dim")]
