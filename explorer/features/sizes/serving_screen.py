"""Serving screen: shows the cost of running a language model; keys change prompt, context, batch, devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import ExplorerError
from explorer.base.units import bytes_text, count_text, rate_text
from explorer.facts.serving.serving import (
    Serving,
    choose_drawn_contexts,
    count_drawn_devices,
    select_drawn_rates,
)
from explorer.facts.serving.spec import ServingSpec
from explorer.features.sizes.serving_words import serving_blocks
from explorer.report.blocks import Axis, Dot, Role, Scatter
from explorer.report.blocks import Line as TextLine
from explorer.settings.option_values import write_words
from explorer.tui.commands.look.machine_action import ask_machine
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.dialogs.record_form import RecordForm
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, cut_line, escape_name, join_columns
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving
    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext


AskServing = Callable[[ServingSpec, "Machine | None"], Awaitable["Serving"]]
"""Async function that counts the serving cost of a spec, with times on a machine."""

AskMachine = Callable[[Callable[["Machine | None"], None]], None]
"""Function that asks the user for a machine and passes it to a callback."""

# fmt: off
SERVING_KEYS = key_group(
    "Serving",
    ("context(2)", ("right", "l"), "→ l", "Twice the context", "Double all contexts shown"),
    ("context(-2)", ("left", "h"), "← h", "Half the context", "Halve all contexts shown"),
    ("prompt(2)", ("p",), "p", "Twice the prompt", "Tokens read before the first is written"),
    ("prompt(-2)", ("P",), "P", "Half the prompt", "Tokens read before the first is written"),
    ("batch(2)", ("b",), "b", "Twice the batches", "1, 8, 32 become 2, 16, 64"),
    ("batch(-2)", ("B",), "B", "Half the batches", "Halve them, down to one sequence"),
    ("devices(2)", ("d",), "d", "Twice the devices", "Show the layouts of twice as many devices"),
    ("devices(-2)", ("D",), "D", "Half the devices", "Show the layouts of half as many, down to one"),
    ("machine", ("m",), "m", "Machine…", "The machine for the least times"),
    ("type", ("t",), "t", "Type…", "All settings, with number types and device memory"),
    ("exact", ("e",), "e", "Exact or rounded numbers", "16,114,000,000 or 16.11 G"),
)
# fmt: on
_MIN_PLOTS_WIDTH, _PLOT_WIDTH = 136, 56
"""Minimum page width for plots next to the figures, and width of the plots, in cells."""
_LIMITS = {"contexts": 1 << 30, "batches": 1 << 20, "devices": 1 << 10}  # upper limits of the keys


class ServingView(SubScreen[None]):
    """Show the cost of serving a model.

    Args:
        fact: Figures to show first.
        ask: Async function that counts another spec.
        ask_machine: Function that asks the user for a machine.
        exact: Whether to show exact instead of rounded numbers.
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
        """Yield the title bar, the page and two status lines."""
        yield TitleBar()
        yield LineView(id="serving-page")
        yield Status(id="serving-note")
        yield Status(id="serving-keys")

    def on_mount(self) -> None:
        """Show the first figures."""
        self.show_keys()
        self._show("")

    def _show(self, note: str) -> None:
        fact, exact = self.fact, self._exact
        title = f"  {describe_spec(self.spec)}"
        self.query_one(TitleBar).show(
            lambda width: (cut_line(((" Serving", "strong"), (title, "dim")), width),)
        )
        self.query_one("#serving-note", Status).show(
            lambda width: (cut_line(((f" {escape_name(note)}", "warn"),), width),)
        )
        self.query_one("#serving-page", LineView).show(lambda width: serving_page(fact, width - 1, exact))

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer serving` prints."""
        return serving_blocks(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that counts the same spec."""
        spec, machine = self.spec, self.machine
        words = ["serving", source, *write_words(spec)]
        if machine is not None:
            words += ["--peak-macs", f"{machine.peak_macs:.17g}", "--bandwidth", f"{machine.bandwidth:.17g}"]
        return words

    def action_context(self, factor: int) -> None:
        """Multiply all contexts by `factor`, or divide them by a negative factor."""
        self._scale("contexts", factor)

    def action_batch(self, factor: int) -> None:
        """Multiply all batches by `factor`, or divide them by a negative factor."""
        self._scale("batches", factor)

    def action_devices(self, factor: int) -> None:
        """Multiply all device counts by `factor`, or divide them by a negative factor."""
        self._scale("devices", factor)

    def action_prompt(self, factor: int) -> None:
        """Multiply the prompt length by `factor`, or divide it by a negative factor."""
        self._change(replace(self.spec, prompt=_scale_size(self.spec.prompt, factor, _LIMITS["contexts"])))

    def _scale(self, name: str, factor: int) -> None:
        sizes = dict.fromkeys(_scale_size(size, factor, _LIMITS[name]) for size in getattr(self.spec, name))
        self._change(replace(self.spec, **{name: tuple(sizes)}))

    def action_machine(self) -> None:
        """Ask for another machine, and count its times."""

        def on_answer(machine: Machine | None) -> None:
            self.machine = machine
            # memory and links belong to the previous machine
            self._change(replace(self.spec, card=None, links=None), force=True)

        self._ask_machine(on_answer)

    def action_type(self) -> None:
        """Open a form for the whole spec."""

        def on_answer(spec: ServingSpec | None) -> None:
            if spec is not None:
                self._change(spec)

        self.app.push_screen(ServingDialog(self.spec), on_answer)

    def action_exact(self) -> None:
        """Switch between exact and rounded figures."""
        self._exact = not self._exact
        self._show("")

    def _change(self, spec: ServingSpec, *, force: bool = False) -> None:
        if spec == self.spec and not force:
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


def _scale_size(size: int, factor: int, limit: int) -> int:
    return min(size * factor, limit) if factor > 0 else max(1, size // -factor)


def describe_spec(spec: ServingSpec) -> str:
    """Describe a spec in one line."""
    contexts, batches, devices = (
        ", ".join([f"{size:,}" for size in sizes]) for sizes in (spec.contexts, spec.batches, spec.devices)
    )
    types = "".join(
        [f" · {kind} {name}" for kind, name in (("weights", spec.dtype), ("KV", spec.kv_dtype)) if name]
    )
    return f"prompt {spec.prompt:,} · context {contexts} · batch {batches} · devices {devices}{types}"


def serving_page(fact: Serving, width: int, exact: bool) -> list[Line]:
    """Draw the text of `explorer serving` with plots on its right, or below it on a narrow screen."""
    if width < _MIN_PLOTS_WIDTH:
        return draw([*serving_blocks(fact), TextLine(), *serving_plots(fact)], width, exact)
    text_lines = draw(serving_blocks(fact), width - _PLOT_WIDTH - 2, exact)
    return join_columns(text_lines, draw(serving_plots(fact), _PLOT_WIDTH), width - _PLOT_WIDTH)


class ServingDialog(RecordForm[ServingSpec]):
    """Form for a whole serving spec."""

    TITLE_TEXT = "Serving"
    HINT = "↑↓ choose · Enter count · Esc cancel"

    def describe(self) -> list[tuple[str, str]]:
        """Describe the spec that the fields state in one line."""
        spec = self.read_answer()
        memory_text = "" if spec.card is None else f", {bytes_text(spec.card)} a device"
        return [(f"{describe_spec(spec)}{memory_text}", "dim")]


def serving(context: CommandContext) -> None:
    """Open the serving screen, which counts again when a key changes a size."""
    context.open_view("Serving", _show_serving(context))


async def _show_serving(context: CommandContext) -> None:
    store, jobs = context.store, context.jobs
    machine = find_machine(store)
    fact: Serving = await jobs.run("counting prompt and steps", "serving", ServingSpec(), machine=machine)
    view = ServingView(
        fact,
        lambda spec, machine: jobs.ask("serving", spec, machine=machine),
        partial(ask_machine, context),
        exact=store.exact,
    )
    context.ask(view)


_MARKS: tuple[tuple[str, Role], ...] = (
    ("●", "good"),
    ("◆", "bar"),
    ("▲", "formula"),
    ("■", "warning"),
    ("○", "strong"),
    ("◇", "figure"),
)
_CONTEXT_COUNT = 48
"""Number of points of each memory curve."""


def serving_plots(fact: Serving) -> list[Scatter]:
    """Plot weights plus cache over the context, and tokens per second (without a machine: MACs)."""
    return [
        _build_memory_plot(fact),
        _build_rate_plot(fact) if fact.machine is not None else _build_mac_plot(fact),
    ]


def _format_tokens(value: float) -> str:
    return f"{value:,.0f}"


def _build_memory_plot(fact: Serving) -> Scatter:
    dots: list[Dot] = []
    legend: list[tuple[str, Role, str]] = []
    contexts = choose_drawn_contexts(fact, _CONTEXT_COUNT) if fact.cache.bytes.pieces else []
    if fact.spec.card is not None:
        dots += [Dot((float(size), float(fact.spec.card)), "─", "bad") for size in contexts]
        legend.append(("─", "bad", "a device"))
    for index, batch in enumerate(fact.spec.batches):
        mark, role = _MARKS[index % len(_MARKS)]
        for size in contexts:
            total = fact.weight_bytes + batch * (fact.cache.bytes.at(size) or 0)
            dots.append(Dot((float(size), float(total)), mark, role))
        legend.append((mark, role, f"batch {batch:,}"))
    context_axis = Axis("tokens in the cache", _format_tokens)
    return Scatter(
        "memory", context_axis, Axis("memory", lambda v: bytes_text(round(v))), dots, tuple(legend)
    )


def _build_rate_plot(fact: Serving) -> Scatter:
    dots: list[Dot] = []
    legend: list[tuple[str, Role, str]] = []
    all_fit = True
    for index, context in enumerate(fact.spec.contexts):
        mark, role = _MARKS[index % len(_MARKS)]
        times = select_drawn_rates(fact, context)
        all_fit &= all(time.fits is not False for time in times)
        dots += [
            Dot((time.batch, time.rate or 0.0), "×" if time.fits is False else mark, role) for time in times
        ]
        legend.append((mark, role, f"{context:,} tokens"))
    if not all_fit:
        legend.append(("×", "quiet", "does not fit"))
    devices_text = f", {devices:,} devices" if (devices := count_drawn_devices(fact)) > 1 else ""
    axes = Axis("batch", _format_tokens), Axis("tokens/s", lambda value: rate_text(value, "/s"))
    return Scatter(f"tokens a second{devices_text}", *axes, dots, tuple(legend))


def _build_mac_plot(fact: Serving) -> Scatter:
    points = [
        (size, macs)
        for size in choose_drawn_contexts(fact, _CONTEXT_COUNT)
        if (macs := fact.decode_macs.at(size)) is not None
    ]
    dots = [Dot((float(size), float(macs)), *_MARKS[0]) for size, macs in points]
    axes = (
        Axis("tokens in the cache", _format_tokens),
        Axis("MACs of a token", lambda value: count_text(round(value))),
    )
    return Scatter("MACs of a token", *axes, dots)
