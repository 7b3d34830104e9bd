"""The machine dialog: all that is known of a machine, typed or taken from one that has a name, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input

from explorer.base.errors import ExplorerError
from explorer.base.units import rate_text
from explorer.facts.cost import Hardware
from explorer.report.present.look.roofline_words import ridge_field
from explorer.settings import machines
from explorer.settings.machine_file import SETTINGS, machine_of, save_machine, settings_text
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.machine_field import TYPED, MachineField
from explorer.tui.widgets.option_field import OptionField

_ENTRIES: Mapping[str, tuple[str, str, str]] = {
    "peak_macs": ("peak", "peak MACs/s", "4T, 8 TFLOPS, or a name: h100"),
    "bandwidth": ("bytes-s", "bytes/s", "100 GB/s"),
    "macs_per_cycle": ("macs-cycle", "MACs/cycle", "4096"),
    "bytes_per_cycle": ("bytes-cycle", "bytes/cycle", "64"),
    "clock": ("clock", "clock", "1 GHz"),
    "buffer": ("buffer", "buffer", "512 KiB"),
    "array": ("array", "array", "64x64"),
}
"""Settings that are typed: the entry's id, its label, and what may stand in it."""
_PAIRS = (("peak_macs", "bandwidth"), ("macs_per_cycle", "bytes_per_cycle"), ("clock", "buffer"))
_MOVING = ("behind", "after")
"""When the next tiles arrive: while these are worked on, or when they are done."""


class MachineDialog(FormDialog[Hardware]):
    """Asks for a machine; a name in its last field keeps it in the configuration file.

    Args:
        used: The one in use, if there is one.
    """

    TITLE_TEXT = "The machine"
    HINT = "↑↓←→ choose · Enter use · Esc cancel"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "choose(-1)", show=False, priority=True),
        Binding("right", "choose(1)", show=False, priority=True),
    ]

    def __init__(self, used: Hardware | None) -> None:
        super().__init__()
        self._field = MachineField("start from", used, nothing=TYPED, id="profile")
        if used is None and self._field.own:
            self._field.take(self._field.own[0])
        self._used = used if used is not None else self._field.hardware
        if self._used is not None and not self._used.name:
            self._field.leave()
        self._failed = ""

    def fields(self) -> ComposeResult:
        """The fields."""
        texts = settings_text(self._used) if self._used is not None else {}
        yield self._field
        for pair in _PAIRS:
            with Horizontal(classes="form-row"):
                for key in pair:
                    yield from self._entry(key, texts)
        with Horizontal(classes="form-row"):
            yield from self._entry("array", texts)
            moving = OptionField("moving", _MOVING, id="moving")
            moving.index = int(self._used is not None and not self._used.double_buffered)
            yield moving
        with Horizontal(classes="form-row"):
            yield from self.pair_entry("from file", "", "npu.toml", "file")
            yield from self.pair_entry("save as", "", "a name", "save")

    def _entry(self, key: str, texts: Mapping[str, str]) -> ComposeResult:
        id, label, example = _ENTRIES[key]
        yield from self.pair_entry(label, texts.get(key, ""), example, id)

    def first(self) -> Widget:
        """The field to begin with: where a machine with a name is used, to choose another."""
        chosen = self._field.own or (self._used is not None and self._used.name)
        return self._field if chosen else super().first()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In a first entry that is empty the arrows have no text to walk in: they choose a machine."""
        if action == "choose":
            entry = self.focused
            return isinstance(entry, Input) and entry.id == "peak" and not entry.value
        return super().check_action(action, parameters)

    def action_choose(self, step: int) -> None:
        """Go to the machines and choose the next one."""
        self._field.focus()
        self._field.action_step(step)

    @on(OptionField.OptionChanged, "#profile")
    def _take_profile(self) -> None:
        """Write the machine's settings into the fields."""
        if self._field.hardware is not None:
            self._fill(self._field.hardware)

    @on(Input.Changed, "#file")
    def _take_file(self) -> None:
        """The same of a file, once its name is whole."""
        if ".toml" in (path := self.text_of("file").strip()):
            try:
                self._fill(machines.hardware(path, where="from file"))
            except ExplorerError as error:
                self._failed = str(error)

    def _fill(self, machine: Hardware) -> None:
        texts = settings_text(machine)
        for key, (id, _, _) in _ENTRIES.items():
            self.query_one(f"#{id}", Input).value = texts.get(key, "")
        moving = self.query_one("#moving", OptionField)
        moving.index = int(not machine.double_buffered)
        moving.refresh()

    @on(Input.Changed)
    @on(OptionField.OptionChanged, "#moving")
    def _typed(self) -> None:
        """What differs from the machine with the name is no longer that machine."""
        self._failed = ""
        try:
            same = self.answer() == self._field.hardware
        except ExplorerError:
            same = False
        if not same:
            self._field.leave()

    def answer(self) -> Hardware:
        """What the fields say."""
        texts = {key: self.text_of(id).strip() for key, (id, _, _) in _ENTRIES.items()}
        named = self._field.named(texts["peak_macs"])
        if named is not None:
            del texts["peak_macs"]
            if not any(texts.values()):
                return named
            texts = settings_text(named) | {key: text for key, text in texts.items() if text}
        if self.query_one("#moving", OptionField).index:
            texts["double_buffered"] = "no"
        typed_machine = machine_of(texts, origin="screen")
        listed = self._field.hardware
        return (
            listed
            if listed is not None and settings_text(listed) == settings_text(typed_machine)
            else typed_machine
        )

    def action_apply(self) -> None:
        """Answer, and keep the machine if it has got a name."""
        try:
            machine, name = self.answer(), self.text_of("save").strip()
            self.dismiss(save_machine(name, machine, overwrite=True) if name else machine)
        except ExplorerError as error:
            self._failed = str(error)
            self.app.bell()
            self.tell()

    def meaning(self) -> list[tuple[str, str]]:
        """Where computing and moving meet, what goes to the file, or what cannot be read."""
        lines: list[tuple[str, str]] = []
        try:
            machine = self.answer()
            self._show_derived(machine)
            lines.append((_in_words(machine), "dim"))
        except ExplorerError as error:
            empty = not any(self.text_of(id).strip() for id, _, _ in _ENTRIES.values())
            tried = self._failed == str(error)
            lines.append((str(error), "dim" if empty and not tried else "bad"))
        if failed := self._failed or self._field.complaint:
            # what Enter was refused for stands there already
            lines += [(failed, "warn")] if failed != lines[0][0] else []
        elif name := self.text_of("save").strip():
            there = any(listed.name == name for listed in self._field.own)
            effect = "replaces the machine of that name in" if there else "is written into"
            lines.append((f"{name} {effect} {machines.config_path()}.", "warn" if there else "dim"))
        elif not self._field.own:
            lines.append((f"Machines with a name of yours are kept in {machines.config_path()}.", "dim"))
        return lines

    def _show_derived(self, machine: Hardware) -> None:
        """What follows from the others stands in an empty field, dimmed."""
        texts = {
            "peak_macs": rate_text(machine.peak_macs, "MAC/s") if machine.peak_macs else "",
            "bandwidth": rate_text(machine.bandwidth, "B/s") if machine.bandwidth else "",
            "macs_per_cycle": f"{machine.macs_per_cycle:,.6g}" if machine.macs_per_cycle else "",
            "bytes_per_cycle": f"{machine.bytes_per_cycle:,.6g}" if machine.bytes_per_cycle else "",
            "clock": rate_text(machine.clock, "Hz") if machine.clock else "",
        }
        for key in SETTINGS:
            if key in _ENTRIES:
                id, _, example = _ENTRIES[key]
                self.query_one(f"#{id}", Input).placeholder = texts.get(key) or example


def _in_words(machine: Hardware) -> str:
    """'npu: 4.10 TMAC/s, 64.00 GB/s; ridge 128.0 FLOPs/byte': what follows from a machine."""
    rates = [(machine.peak_macs, "MAC/s"), (machine.bandwidth, "B/s")]
    rates_text = [rate_text(rate, unit) for rate, unit in rates if rate]
    compute = machine.peak_macs if machine.peak_macs and machine.bandwidth else machine.macs_per_cycle
    moved = machine.bandwidth if machine.peak_macs and machine.bandwidth else machine.bytes_per_cycle
    assert compute  # `machine_of` asks for one pair or the other
    assert moved
    ridge = ridge_field(2 * compute / moved)
    name = f"{machine.name}: " if machine.name else ""
    summary = ", ".join(rates_text) or f"{compute:,.6g} MACs and {moved:,.6g} B a cycle, no clock"
    return f"{name}{summary}; {ridge.short} {ridge.figure}, {ridge.remark}"
