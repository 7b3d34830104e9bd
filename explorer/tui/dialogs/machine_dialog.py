"""The machine dialog: edits the figures of a machine, starting from a known one, and can save them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input

from explorer.base.errors import ExplorerError
from explorer.base.units import rate_text
from explorer.facts.cost import Hardware
from explorer.report.present.look.roofline_words import build_ridge_field
from explorer.settings import machines
from explorer.settings.machine_file import (
    SETTINGS,
    find_memory_settings,
    format_settings,
    parse_machine,
    save_machine,
)
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
"""Text fields by setting: ID of the field, its label, and an example."""
_PAIRS = (("peak_macs", "bandwidth"), ("macs_per_cycle", "bytes_per_cycle"), ("clock", "buffer"))  # per row
_LOADING = ("while computing", "after")
"""When the next tiles are loaded: while the previous tiles are computed (double buffering), or afterwards."""


_automatic_names: set[tuple[str, str]] = set()
"""Machines that dialogs of this process named: paths of their configuration files, and names."""


class MachineDialog(FormDialog[Hardware]):
    """Asks for a machine. If the user enters a name, the machine is saved to the configuration file.

    Args:
        hardware: Machine in use, or None.
    """

    TITLE_TEXT = "The machine"
    HINT = "↑↓←→ choose · Enter use · Esc cancel"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "choose(-1)", show=False, priority=True),
        Binding("right", "choose(1)", show=False, priority=True),
    ]

    def __init__(self, hardware: Hardware | None) -> None:
        super().__init__()
        self._file_machine: Hardware | None = None
        self._field = MachineField("start from", hardware, nothing=TYPED, id="profile")
        if hardware is None and self._field.own:
            self._field.choose(self._field.own[0])
        self._used = self._source = hardware if hardware is not None else self._field.hardware
        if self._used is not None and not self._used.name:
            self._field.choose_nothing()
        self._error_text = ""

    def compose_fields(self) -> ComposeResult:
        """Yield the fields."""
        texts = format_settings(self._used) if self._used is not None else {}
        yield self._field
        for pair in _PAIRS:
            with Horizontal(classes="form-row"):
                for key in pair:
                    yield from self._build_entry(key, texts)
        with Horizontal(classes="form-row"):
            yield from self._build_entry("array", texts)
            loading = OptionField("load tiles", _LOADING, id="loading")
            loading.index = int(self._used is not None and not self._used.double_buffered)
            yield loading
        with Horizontal(classes="form-row"):
            yield from self.compose_pair("from file", "", "npu.toml", "file")
            yield from self.compose_pair("save as", "", "a name", "save")

    def _build_entry(self, key: str, texts: Mapping[str, str]) -> ComposeResult:
        id, label, example = _ENTRIES[key]
        yield from self.compose_pair(label, texts.get(key, ""), example, id)

    def find_first_field(self) -> Widget:
        """Return the field to focus first: the list of machines if the user has named machines."""
        is_named = self._field.own or (self._used is not None and self._used.name)
        return self._field if is_named else super().find_first_field()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let the left and right keys choose a machine while the first text field is empty."""
        if action == "choose":
            entry = self.focused
            return isinstance(entry, Input) and entry.id == "peak" and not entry.value
        return super().check_action(action, parameters)

    def action_choose(self, step: int) -> None:
        """Focus the list of machines and choose the next one."""
        self._field.focus()
        self._field.action_step(step)

    @on(OptionField.WordChosen, "#profile")
    def _take_profile(self) -> None:
        """Write the settings of the chosen machine into the fields."""
        if self._field.hardware is not None:
            self._fill(self._field.hardware)
        else:
            self._source = None  # the fields describe a new machine

    @on(Input.Changed, "#file")
    def _take_file(self) -> None:
        """Write the settings of a TOML file into the fields, once its name is complete."""
        self._file_machine = None
        if ".toml" in (path := self.get_text("file").strip()):
            try:
                self._file_machine = machines.find_hardware(path, where="from file")
                self._fill(self._file_machine)
            except ExplorerError as error:
                self._error_text = str(error)

    def _fill(self, machine: Hardware) -> None:
        self._source = machine
        texts = format_settings(machine)
        for key, (id, _, _) in _ENTRIES.items():
            self.query_one(f"#{id}", Input).value = texts.get(key, "")
        loading = self.query_one("#loading", OptionField)
        loading.index = int(not machine.double_buffered)
        loading.refresh()

    @on(Input.Changed)
    @on(OptionField.WordChosen, "#loading")
    def _handle_typing(self) -> None:
        """Set the list to no machine once the fields differ from the machine chosen there."""
        self._error_text = ""
        try:
            is_same = self.read_answer() == self._field.hardware
        except ExplorerError:
            is_same = False
        if not is_same:
            self._field.choose_nothing()

    def read_answer(self) -> Hardware:
        """Return the machine that the fields describe."""
        texts = {key: self.get_text(id).strip() for key, (id, _, _) in _ENTRIES.items()}
        from_file = self._file_machine
        if from_file is not None and {key: text for key, text in texts.items() if text} == {
            key: text for key, text in format_settings(from_file).items() if key in _ENTRIES
        }:
            return from_file  # includes its memories, for which the dialog has no fields
        named_machine = self._field.find_named(texts["peak_macs"])
        if named_machine is not None:
            del texts["peak_macs"]
            if not any(texts.values()):
                return named_machine
            texts = format_settings(named_machine) | {key: text for key, text in texts.items() if text}
        if self.query_one("#loading", OptionField).index:
            texts["double_buffered"] = "no"
        has_memories = self._source is not None and "memory" in find_memory_settings(self._source)
        typed_machine = parse_machine(texts, origin="screen", has_memories=has_memories)
        listed = self._field.hardware
        return (
            listed
            if listed is not None and format_settings(listed) == format_settings(typed_machine)
            else typed_machine
        )

    def action_apply(self) -> None:
        """Close the dialog with the machine, and save it if it has a name."""
        try:
            machine = self.read_answer()
            if name := self._name_to_save(machine):
                memories = self._find_memories(machine) or None
                machine = save_machine(name, machine, overwrite=True, memories=memories)
                if name != self.get_text("save").strip():
                    _automatic_names.add((machines.find_config_path(), name))
            self.dismiss(machine)
        except ExplorerError as error:
            self._error_text = str(error)
            self.app.bell()
            self.update_description()

    def _find_memories(self, machine: Hardware) -> dict[str, Any]:
        """Return the memories that an edited copy of a machine takes from it; {} for a listed machine."""
        if machine.name or self._source is None:
            return {}
        return find_memory_settings(self._source, machine)

    def _name_to_save(self, machine: Hardware) -> str:
        """Return the typed name, or a name that the dialog chooses if the machine has memories.

        A machine with memories must be saved, because only a file describes memories. Further edits of a
        machine that the dialog named keep its name.
        """
        typed = self.get_text("save").strip()
        if typed or self._source is None or "memory" not in self._find_memories(machine):
            return typed
        if (machines.find_config_path(), self._source.name) in _automatic_names:
            return self._source.name
        stem = re.sub(r"-\d+$", "", self._source.name)
        names = machines.load_hardware()
        return next(name for number in count(2) if (name := f"{stem}-{number}") not in names)

    def describe(self) -> list[tuple[str, str]]:
        """Describe the machine and the file in which it will be saved, or report an error."""
        lines: list[tuple[str, str]] = []
        name = self.get_text("save").strip()
        try:
            machine = self.read_answer()
            name = self._name_to_save(machine)
            self._show_derived(machine)
            lines.append((_describe(machine), "dim"))
            lines += self._describe_memories(machine)
        except ExplorerError as error:
            is_empty = not any(self.get_text(id).strip() for id, _, _ in _ENTRIES.values())
            was_submitted = self._error_text == str(error)
            lines.append((str(error), "dim" if is_empty and not was_submitted else "bad"))
        if error_text := self._error_text or self._field.complaint:
            # the first line already reports this error
            lines += [(error_text, "warn")] if error_text != lines[0][0] else []
        elif name:
            exists = any(listed.name == name for listed in self._field.own)
            effect = "replaces the machine of that name in" if exists else "is written into"
            lines.append((f"{name} {effect} {machines.find_config_path()}.", "warn" if exists else "dim"))
        elif not self._field.own:
            lines.append((f"Machines with a name of yours are kept in {machines.find_config_path()}.", "dim"))
        return lines

    def _describe_memories(self, machine: Hardware) -> list[tuple[str, str]]:
        """Describe which memories an edited copy takes from its source."""
        names = [str(memory.get("name")) for memory in self._find_memories(machine).get("memory", ())]
        if not names or self._source is None:
            return []
        return [(f"With the memories of {self._source.name}: {', '.join(names)}.", "dim")]

    def _show_derived(self, machine: Hardware) -> None:
        """Show figures that are computed from other figures as placeholders of empty fields."""
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


def _describe(machine: Hardware) -> str:
    """Describe a machine: 'npu: 4.10 TMAC/s, 64.00 GB/s; ridge 128.0 FLOPs/byte'."""
    rates = [(machine.peak_macs, "MAC/s"), (machine.bandwidth, "B/s")]
    rates_text = [rate_text(rate, unit) for rate, unit in rates if rate]
    compute = machine.peak_macs if machine.peak_macs and machine.bandwidth else machine.macs_per_cycle
    moved = machine.bandwidth if machine.peak_macs and machine.bandwidth else machine.bytes_per_cycle
    name = f"{machine.name}: " if machine.name else ""
    if not compute or not moved:  # a machine of a file: its memories have the rates
        return name + (", ".join(rates_text) or "its memories have the rates")
    ridge = build_ridge_field(2 * compute / moved)
    summary = ", ".join(rates_text) or f"{compute:,.6g} MACs and {moved:,.6g} B a cycle, no clock"
    return f"{name}{summary}; {ridge.short} {ridge.figure}, {ridge.remark}"
