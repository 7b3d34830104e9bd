"""The dialog of a sweep: what is combined, on which machine, and where the rows are kept."""

from __future__ import annotations

import os

from msgspec import Struct
from textual.app import ComposeResult

from explorer.base.errors import ExplorerError
from explorer.facts import Edges, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.sweep import SweepSpec, combinations, tiles_of
from explorer.settings import machines
from explorer.settings.parse import parse_sizes, parse_tiles
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.options import OptionField

_EDGES: tuple[tuple[Edges, ...], ...] = (("ragged",), ("padded",), ("ragged", "padded"))


class SweepRequest(Struct, frozen=True):
    """What is to be swept, as it was typed, and as it was read.

    Attributes:
        output: A file that keeps the rows; '' for none.
        typed: What stood in the fields, for the next time.
    """

    spec: SweepSpec
    hardware: Hardware | None = None
    verify: bool = False
    output: str = ""
    typed: tuple[str, ...] = ()


class SweepDialog(FormDialog[SweepRequest]):
    """Asks for tiles, edges, a machine, and whether each is to be proved.

    Args:
        asked: What was asked for last; None for the first time.
        base: Sites and rules that all tilings have in common.
        hardware: The machine that was chosen or typed last, wherever that was.
    """

    TITLE_TEXT = "Sweep over tilings"
    HINT = "↑↓←→ choose · Enter begins · Esc cancel"

    def __init__(
        self,
        asked: SweepRequest | None,
        base: TileSpec,
        *,
        hardware: Hardware | None = None,
        blink: bool = False,
    ) -> None:
        super().__init__(blink=blink)
        self._asked, self._base, self._hardware = asked, base, hardware

    def fields(self) -> ComposeResult:
        """The fields."""
        typed = self._asked.typed if self._asked is not None else ("16,32,64,128", "", "", "", "", "")
        if self._asked is None or self._asked.hardware != self._hardware:
            typed = (*typed[:4], _machine(self._hardware), *typed[5:])
        for name, label, value, hint in zip(
            ("tiles", "rows", "depths", "columns", "machine", "kept"),
            ("tiles", "M", "K", "N", "machine", "keep in"),
            typed,
            (
                "16,32,64x64x16",
                "in place of the tiles': 16,64",
                "in place of the tiles'",
                "in place of the tiles'",
                "a name, or npu.toml",
                "results.db",
            ),
            strict=True,
        ):
            yield from self.entry(label, value, hint, f"sweep-{name}")
        edges = OptionField("edges", ("partial (ragged)", "padded", "both"), id="sweep-edges")
        prove = OptionField("prove", ("no", "each"), id="sweep-prove")
        if self._asked is not None:
            edges.index = _EDGES.index(self._asked.spec.edges)
            prove.index = int(self._asked.verify)
        yield edges
        yield prove

    def meaning(self) -> list[tuple[str, str]]:
        """How many tilings these are, or what cannot be read."""
        try:
            count = len(combinations(self.answer().spec))
        except ExplorerError as error:
            return [(str(error), "bad")]
        return [(f"{count:,} tiling{'s' * (count != 1)}", "dim")]

    def answer(self) -> SweepRequest:
        """What the fields say."""
        names = ("tiles", "rows", "depths", "columns", "machine", "kept")
        typed = tuple(self.text_of(f"sweep-{name}").strip() for name in names)
        whole, *sides, machine, kept = typed
        sizes = [parse_sizes(text, axis) if text else None for text, axis in zip(sides, "MKN", strict=True)]
        tiles = tiles_of(parse_tiles(whole, "tiles") if whole else None, *sizes)
        edges = _EDGES[self.query_one("#sweep-edges", OptionField).index]
        return SweepRequest(
            spec=SweepSpec(tiles, edges, base=self._base),
            hardware=self._machine(machine),
            verify=self.query_one("#sweep-prove", OptionField).index == 1,
            output=os.path.expanduser(kept),
            typed=typed,
        )

    def _machine(self, text: str) -> Hardware | None:
        if text == _TYPED and self._hardware is not None:
            return machines.complete(self._hardware)
        return machines.hardware(text, where="machine") if text else None


_TYPED = "as typed"
"""The machine that was typed elsewhere, by rates or as a file."""


def _machine(used: Hardware | None) -> str:
    """What the field says of the machine in use; else that of the configuration file, if it has but one."""
    try:
        known, own = machines.known_hardware(), machines.hardware_profiles()
    except ExplorerError:
        known, own = {}, {}
    if used is not None:
        return used.name if known.get(used.name) == used else _TYPED
    return next(iter(own)) if len(own) == 1 else ""
