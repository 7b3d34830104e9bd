"""Tiling: how it is to be done, and the proof that follows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.base.verdicts import VERDICTS
from explorer.facts import TileSpec
from explorer.features.tiling.tile_dialog import TileDialog, TilingResultDialog
from explorer.features.tiling.tile_words import plan_matmuls
from explorer.tui.commands.context import AT_ONCE, ScreenCommand
from explorer.tui.commands.key_table import command_of, has_command
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import TO_BLAME, verdict_lines, verdict_title, verdict_tone
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import Layer, TileResult


class TileCommand(ScreenCommand):
    """Splits matrix products into tiles."""

    def run(self) -> None:
        """Ask how, then do it."""
        if self.context.ready():
            self.context.with_layers(*self.tree.cursor_range, self._ask)

    def _ask(self, chosen: list[Layer]) -> None:
        store = self.store
        assert store.analysis is not None
        layers = store.analysis.layers
        dialog = TileDialog(
            partial(self.jobs.run, "planning", "plan"),
            partial(self.jobs.run, "costing", "cost"),
            chosen,
            by_value=store.by_value,
            layers=layers if len(layers) <= AT_ONCE else chosen,
            spec=store.tile_spec,
            hardware=store.hardware,
            ask_steps=partial(self.jobs.ask, "tile_steps"),
        )

        def answered(spec: TileSpec | None) -> None:
            use_hardware(store, dialog.hardware)
            self.begin(spec)

        self.context.ask(dialog, answered)

    def begin(self, spec: TileSpec | None) -> None:
        """Tile; None stops what was planned."""
        if self.jobs.current is not None:
            self.jobs.stop()
        if spec is None:
            return
        self.store.tile_spec = spec
        self.context.start_next("Tile", self._tile(spec))

    async def _tile(self, spec: TileSpec) -> None:
        result: TileResult = await self.jobs.run("tiling", "tile", spec)
        await self.context.take_history()
        proof = result.verification

        def page(width: int) -> list[Line]:
            lines: list[Line] = []
            if proof is not None:
                lines += verdict_lines(proof, width)
            lines += [BLANK, *wrap((("$ ", "accent"), (safe(result.command), "text")), width - 1, 2)]
            return [*lines, BLANK, *draw(plan_matmuls(result.plan), width - 1)]

        if not result.output:
            kind = proof.verdict_kind if proof is not None else "different"
            refused = PageDialog(
                f"Tiling refused: {VERDICTS[kind]}", page, hint=TO_BLAME, tone=verdict_tone(kind)
            )
            self.context.ask(refused, partial(self._blame, spec))
            return
        await self.context.show_made("undo", command=result.command)
        dialog = TilingResultDialog(
            "Tiled, not verified" if proof is None else verdict_title(proof),
            page,
            result.plan,
            partial(self.jobs.ask, "tile_steps"),
            hint="Enter diff · i tiles · y copy command · Esc close",
            tone="good" if proof is None else verdict_tone(proof.verdict_kind),
            copy=result.command,
        )
        self.context.ask(dialog, self._after_verdict)

    def _blame(self, spec: TileSpec, more: bool | None) -> None:
        if more and has_command("blame"):
            command_of("blame")(self.context).begin(spec=spec)

    def _after_verdict(self, more: bool | None) -> None:
        if more is not None:
            self.panes.tabs.open("diff")
