"""The machine dialog: what a machine can do at best, typed or taken from the configuration file."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Input

from explorer.base.errors import ExplorerError, Misuse
from explorer.facts.roofline import Machine
from explorer.report.present.look.roofline import machine_text, ridge_field
from explorer.settings import machines
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import safe
from explorer.tui.widgets.options import OptionField

_TYPED = "as typed"


class MachineDialog(FormDialog[Machine]):
    """Asks for a machine.

    Args:
        machine: The one in use, if there is one.
    """

    TITLE_TEXT = "The machine"
    HINT = "↑↓←→ choose · Enter apply · Esc cancel"

    def __init__(self, machine: Machine | None, *, blink: bool = False) -> None:
        super().__init__(blink=blink)
        self._machine = machine
        self._profiles: dict[str, Machine] = {}
        self._own: dict[str, Machine] = {}
        self._complaint = ""
        try:
            self._profiles = machines.known_machines()
            self._own = machines.profiles()
        except ExplorerError as error:
            self._complaint = str(error)
        self._names = (_TYPED, *self._profiles)

    def fields(self) -> ComposeResult:
        """The fields."""
        first = self._machine or next(iter(self._own.values()), None)
        options = OptionField("profile", [safe(name) for name in self._names], id="profile")
        if first is not None and self._profiles.get(first.name) == first:
            options.index = self._names.index(first.name)
        yield options
        peak, width = (_rate(first.peak_macs), _rate(first.bandwidth)) if first else ("", "")
        yield from self.entry("peak MACs/s", peak, "4T, 4e12, 8 TFLOPS", "peak")
        yield from self.entry("bytes/s", width, "100 GB/s, 51.2 GiB/s", "bytes-s")

    def first(self) -> Widget:
        """The first field in which something is to be done."""
        return self.query_one(OptionField) if self._own else super().first()

    @on(OptionField.OptionChanged)
    def _take_profile(self) -> None:
        """Write the profile's rates into the fields."""
        chosen = self._profile()
        if chosen is not None:
            self.query_one("#peak", Input).value = _rate(chosen.peak_macs)
            self.query_one("#bytes-s", Input).value = _rate(chosen.bandwidth)

    @on(Input.Changed)
    def _typed(self) -> None:
        """Rates that differ from the profile's are no longer that profile."""
        try:
            same = self.answer() == self._profile()
        except ExplorerError:
            same = False
        if not same:
            self.query_one(OptionField).index = 0
            self.query_one(OptionField).refresh()

    def answer(self) -> Machine:
        """What the fields say."""
        peak, width = self.text_of("peak"), self.text_of("bytes-s")
        if not peak.strip() or not width.strip():
            raise Misuse("both rates are needed", hint="what the machine does at best in a second")
        rates = machines.parse_rate(peak, "peak", "macs"), machines.parse_rate(width, "bandwidth", "bytes")
        chosen = self._profile()
        if chosen is not None and rates == (chosen.peak_macs, chosen.bandwidth):
            return chosen
        return Machine("", *rates, origin="screen")

    def _profile(self) -> Machine | None:
        return self._profiles.get(self._names[self.query_one(OptionField).index])

    def meaning(self) -> list[tuple[str, str]]:
        """Where computing and moving meet, or what cannot be read."""
        lines: list[tuple[str, str]] = []
        try:
            machine = self.answer()
            ridge = ridge_field(2 * machine.peak_macs / machine.bandwidth)
            lines.append((f"{machine_text(machine)}; {ridge.short} {ridge.figure}, {ridge.remark}", "dim"))
        except ExplorerError as error:
            empty = not any(entry.value.strip() for entry in self.query(Input))
            lines.append((str(error), "dim" if empty else "bad"))
        if self._complaint:
            lines.append((self._complaint, "warn"))
        elif not self._own:
            lines.append((f"More machines with a name are read from {machines.config_path()}.", "dim"))
        return lines


def _rate(rate: float) -> str:
    return f"{rate:.15g}"
