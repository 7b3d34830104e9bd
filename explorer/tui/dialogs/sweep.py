"""The dialog of a sweep: what is combined, on which machine, and where the rows are kept."""

from __future__ import annotations

import os
from typing import ClassVar

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from explorer.base.errors import ExplorerError
from explorer.facts import Edges, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.sweep import SweepSpec, combinations, tiles_of
from explorer.settings import machines
from explorer.settings.parse import parse_sizes, parse_tiles
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import safe, wrap
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.options import OptionField
from explorer.tui.widgets.text_input import text_input

__all__ = ["SweepDialog", "SweepRequest"]

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


class SweepDialog(Dialog[SweepRequest]):
    """Asks for tiles, edges, a machine, and whether each is to be proved.

    Args:
        asked: What was asked for last; None for the first time.
        base: Sites and rules that all tilings have in common.
        hardware: The machine that was chosen or typed last, wherever that was.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]
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
        super().__init__()
        self._hardware = hardware
        self._asked, self._base, self._blink = asked, base, blink

    def body(self) -> ComposeResult:
        """What is in the box."""
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
            with Horizontal(classes="form-row"):
                yield Static(label, classes="form-label", markup=False)
                yield text_input(value, placeholder=hint, blink=self._blink, id=f"sweep-{name}")
        edges = OptionField("edges", ("partial", "padded", "both"), id="sweep-edges")
        prove = OptionField("prove", ("no", "each"), id="sweep-prove")
        if self._asked is not None:
            edges.index = _EDGES.index(self._asked.spec.edges)
            prove.index = int(self._asked.verify)
        yield edges
        yield prove
        yield LineView(id="said")

    def on_mount(self) -> None:
        """Go to the tiles."""
        self.query_one("#said", LineView).can_focus = False
        self.query_one("#sweep-tiles", Input).focus()
        self._tell()

    @on(Input.Changed)
    @on(OptionField.OptionChanged)
    def _tell(self) -> None:
        """How many tilings these are, or what cannot be read."""
        try:
            count, role = len(combinations(self.asked().spec)), "dim"
            said = f"{count:,} tiling{'s' * (count != 1)}"
        except ExplorerError as error:
            said, role = str(error), "bad"
        self.query_one("#said", LineView).show(lambda width: wrap(((safe(said), role),), width))

    def asked(self) -> SweepRequest:
        """What the fields say.

        Raises:
            ExplorerError: They do not say it.
        """
        names = ("tiles", "rows", "depths", "columns", "machine", "kept")
        typed = tuple(self.query_one(f"#sweep-{name}", Input).value.strip() for name in names)
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
            return machines.completed(self._hardware)
        return machines.hardware(text, where="machine") if text else None

    def action_apply(self) -> None:
        """Begin."""
        try:
            self.dismiss(self.asked())
        except ExplorerError:
            self.app.bell()


_TYPED = "as typed"
"""The machine that was typed elsewhere, by rates or as a file."""


def _machine(used: Hardware | None) -> str:
    """What the field says of the machine in use; else that of the configuration file, if it has but one."""
    try:
        known = machines.hardware_profiles()
    except ExplorerError:
        known = {}
    if used is not None:
        return used.name if known.get(used.name) == used else _TYPED
    return next(iter(known)) if len(known) == 1 else ""
