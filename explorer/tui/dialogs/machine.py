"""The machine dialog: what a machine can do at best, typed or taken from the configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from explorer.base import units
from explorer.base.errors import ExplorerError, Misuse
from explorer.facts.roofline import Machine
from explorer.settings import machines
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import Line, safe, wrap
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.options import OptionField
from explorer.tui.widgets.text_input import text_input

__all__ = ["MachineDialog"]

_TYPED = "as typed"


class MachineDialog(Dialog[Machine]):
    """Asks for a machine.

    Args:
        machine: The one in use, if there is one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]
    TITLE_TEXT = "The machine"
    HINT = "↑↓←→ choose · Enter apply · Esc cancel"

    def __init__(self, machine: Machine | None, *, blink: bool = False) -> None:
        super().__init__()
        self._machine, self._blink = machine, blink
        self._profiles: dict[str, Machine] = {}
        self._complaint = ""
        try:
            self._profiles = machines.profiles()
        except ExplorerError as error:
            self._complaint = str(error)
        self._names = (_TYPED, *self._profiles)

    def body(self) -> ComposeResult:
        """What is in the box."""
        first = self._machine or next(iter(self._profiles.values()), None)
        options = OptionField("profile", [safe(name) for name in self._names], id="profile")
        if first is not None and self._profiles.get(first.name) == first:
            options.index = self._names.index(first.name)
        yield options
        for name, value in (
            ("peak MACs/s", first.peak_macs if first else None),
            ("bytes/s", first.bandwidth if first else None),
        ):
            with Horizontal(classes="form-row"):
                yield Static(name, classes="form-label", markup=False)
                yield text_input(
                    "" if value is None else f"{value:.15g}",
                    placeholder="4T, 4e12, 8 TFLOPS" if name != "bytes/s" else "100 GB/s, 51.2 GiB/s",
                    blink=self._blink,
                    id=name.split()[0].replace("/", "-"),
                )
        yield LineView(id="said")

    def on_mount(self) -> None:
        """Go to the first field in which something is to be done."""
        self.query_one("#said", LineView).can_focus = False
        (self.query_one(OptionField) if self._profiles else self.query_one("#peak", Input)).focus()
        self._tell()

    @on(OptionField.OptionChanged)
    def _take_profile(self) -> None:
        """Write the profile's rates into the fields."""
        chosen = self._profile()
        if chosen is not None:
            self.query_one("#peak", Input).value = f"{chosen.peak_macs:.15g}"
            self.query_one("#bytes-s", Input).value = f"{chosen.bandwidth:.15g}"
        self._tell()

    @on(Input.Changed)
    def _typed(self) -> None:
        """Rates that differ from the profile's are no longer that profile."""
        try:
            same = self.machine() == self._profile()
        except ExplorerError:
            same = False
        if not same:
            self.query_one(OptionField).index = 0
            self.query_one(OptionField).refresh()
        self._tell()

    def _rates(self) -> tuple[float, float]:
        peak, width = self.query_one("#peak", Input).value, self.query_one("#bytes-s", Input).value
        if not peak.strip() or not width.strip():
            raise Misuse("both rates are needed", hint="what the machine does at best in a second")
        return machines.parse_rate(peak, "peak", "macs"), machines.parse_rate(width, "bandwidth", "bytes")

    def machine(self) -> Machine:
        """What the fields say.

        Raises:
            ExplorerError: They do not say it.
        """
        chosen, rates = self._profile(), self._rates()
        if chosen is not None and rates == (chosen.peak_macs, chosen.bandwidth):
            return chosen
        return Machine("", *rates, origin="screen")

    def _profile(self) -> Machine | None:
        return self._profiles.get(self._names[self.query_one(OptionField).index])

    def _tell(self) -> None:
        lines: list[tuple[str, str]] = []
        try:
            machine = self.machine()
            ridge = 2 * machine.peak_macs / machine.bandwidth
            rates = (
                f"{units.rate_text(machine.peak_macs, 'MAC/s')}, {units.rate_text(machine.bandwidth, 'B/s')}"
            )
            lines.append((f"{rates}: computing and moving meet at {ridge:,.3g} FLOPs a byte.", "dim"))
        except ExplorerError as error:
            empty = not any(entry.value.strip() for entry in self.query(Input))
            lines.append((str(error), "dim" if empty else "bad"))
        if self._complaint:
            lines.append((self._complaint, "warn"))
        elif not self._profiles:
            lines.append((f"Machines with a name are read from {machines.config_path()}.", "dim"))
        self.query_one("#said", LineView).show(lambda width: _page(lines, width))

    def action_apply(self) -> None:
        """Use it."""
        try:
            self.dismiss(self.machine())
        except ExplorerError:
            self.app.bell()


def _page(lines: Sequence[tuple[str, str]], width: int) -> list[Line]:
    return [line for said, role in lines for line in wrap(((safe(said), role),), width)]
