"""The dialog of a sweep: what is combined, on which machine, and where the rows are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from explorer.facts import Edges, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.sweep import SweepSpec, combinations, tiles_of
from explorer.settings.machines import with_buffer
from explorer.settings.parse import parse_sizes, parse_tiles
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.machine import MachineDialog
from explorer.tui.widgets.machine_field import MachineField
from explorer.tui.widgets.options import OptionField

_NAMES = ("tiles", "rows", "depths", "columns", "kept")
_EDGES: Mapping[str, tuple[Edges, ...]] = {
    "partial (ragged)": ("ragged",),
    "padded": ("padded",),
    "both": ("ragged", "padded"),
}
_FIELDS = (
    ("tiles", "16,32,64x64x16"),
    ("M", "in place of the tiles': 16,64"),
    ("K", "in place of the tiles'"),
    ("N", "in place of the tiles'"),
    ("keep in", "results.db"),
)


class SweepRequest(Struct, frozen=True):
    """What is to be swept, as it was typed, and as it was read.

    Attributes:
        machine: The one that was chosen; `hardware` has the buffer that was typed.
        buffer: As it was typed; '' for the machine's own.
        output: A file that keeps the rows; '' for none.
        typed: What stood in the fields, for the next time.
    """

    spec: SweepSpec
    hardware: Hardware | None = None
    verify: bool = False
    output: str = ""
    typed: tuple[str, ...] = ()
    machine: Hardware | None = None
    buffer: str = ""


class SweepDialog(FormDialog[SweepRequest]):
    """Asks for tiles, edges, a machine, and whether each is to be proved.

    Args:
        asked: What was asked for last; None for the first time.
        base: Sites and rules that all tilings have in common.
        hardware: The machine that was chosen or typed last, wherever that was.
    """

    # a letter in an entry is typed; on any other field it is a key
    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "machine", show=False)]
    TITLE_TEXT = "Sweep over tilings"
    HINT = "↑↓←→ choose · m other machine · Enter begins · Esc"

    def __init__(
        self,
        asked: SweepRequest | None,
        base: TileSpec,
        *,
        hardware: Hardware | None = None,
    ) -> None:
        super().__init__()
        self._asked, self._base = asked, base
        self._machines = MachineField("machine", hardware, id="sweep-machine")

    def fields(self) -> ComposeResult:
        """The fields."""
        asked = self._asked
        typed = asked.typed if asked is not None else ("16,32,64,128", "", "", "", "")
        for name, (label, hint), value in zip(_NAMES, _FIELDS, typed, strict=True):
            yield from self.entry(label, value, hint, f"sweep-{name}")
        yield self._machines
        buffer = asked.buffer if asked is not None else ""
        yield from self.entry(
            "buffer", buffer, "512KiB, in place of the machine's or without one", "sweep-buffer"
        )
        edges = next((word for word, of in _EDGES.items() if asked and of == asked.spec.edges), "")
        yield OptionField("edges", tuple(_EDGES), edges, id="sweep-edges")
        yield OptionField("prove", ("no", "each"), "each" if asked and asked.verify else "", id="sweep-prove")

    def meaning(self) -> list[tuple[str, str]]:
        """How many tilings these are."""
        count = len(combinations(self.answer().spec))
        return [(f"{count:,} tiling{'s' * (count != 1)}", "dim"), (self._machines.complaint, "warn")]

    def answer(self) -> SweepRequest:
        """What the fields say."""
        typed = tuple(self.text_of(f"sweep-{name}").strip() for name in _NAMES)
        whole, *sides, kept = typed
        sizes = [parse_sizes(text, axis) if text else None for text, axis in zip(sides, "MKN", strict=True)]
        tiles = tiles_of(parse_tiles(whole, "tiles") if whole else None, *sizes)
        edges = _EDGES[self.query_one("#sweep-edges", OptionField).value]
        machine, buffer = self._machines.hardware, self.text_of("sweep-buffer").strip()
        return SweepRequest(
            spec=SweepSpec(tiles, edges, base=self._base),
            hardware=with_buffer(machine, buffer, "buffer") if buffer else machine,
            verify=self.query_one("#sweep-prove", OptionField).index == 1,
            output=os.path.expanduser(kept),
            typed=typed,
            machine=machine,
            buffer=buffer,
        )

    def action_machine(self) -> None:
        """Ask for another machine; it holds wherever one is needed."""

        def answered(machine: Hardware | None) -> None:
            if machine is not None:
                self._machines.take(machine)

        self.app.push_screen(MachineDialog(self._machines.hardware), answered)
