"""The way into the tiles of the chosen layer, from the tree and from the diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.main_screen.remembering import Remembering
from explorer.tui.tree.sites import operands_of, sites_of, within
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.fold_list import FoldList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import Layer, Plan, SitePlan, SkippedSite

__all__ = ["Tiles"]


class Tiles(Remembering):
    """The part of the main screen that shows how a product is cut."""

    def action_blocks(self) -> None:
        """Show the tiles of the chosen layer, or of the row of the diff."""
        if not self._ready():
            return
        named = self._diff_name()
        if named:
            self._start("Tiles", self._show_tiles((), named))
        else:
            self.with_layers(*self.chosen_span(), lambda layer: True, self._show_tiles_of)

    def _show_tiles_of(self, chosen: Sequence[Layer]) -> None:
        if self._ready():
            self._start("Tiles", self._show_tiles(chosen, ""))

    def _diff_name(self) -> str:
        """The node of the diff's row under the cursor, if that is where the user is."""
        pane = self.query_one("#diff", FoldList)
        if self.tab != "diff" or not pane.has_focus or self.changes is None:
            return ""
        # the nodes are the last of its entries
        at = pane.current_entry - (pane.entry_count - len(self.changes.nodes))
        node = self.changes.nodes[at] if at >= 0 else None
        return "" if node is None else node.before or node.after or ""

    async def _show_tiles(self, chosen: Sequence[Layer], named: str) -> None:
        from explorer.tui.dialogs.tile_view import TileView

        sites, skipped = await self._tiled_sites()
        assert self.analysis is not None
        by_value = self.analysis.info.model.format == "onnx"
        found = (
            [site for site in sites if named in (site.name, site.output) or within(site, named)]
            if named
            else sites_of(chosen, sites, by_value=by_value)
        )
        if found:
            # where that takes no time the operands of all sites get their names, for who goes on to others
            layers = self.query_one(LayerTree).model.layers
            given = operands_of(layers if len(layers) <= _AT_ONCE else chosen)
            self.app.push_screen(TileView(sites, sites.index(found[0]), given=given))
            return
        names = {named} if named else {layer.path for layer in chosen}
        why = next((f"{skip.name}: {skip.reason}" for skip in skipped if skip.name in names), "")
        self.say(why or "no matrix product here that can be tiled; t, then i shows all that can")

    async def _tiled_sites(self) -> tuple[list[SitePlan], Sequence[SkippedSite]]:
        """The sites as they are tiled; those of a model that is not, as they would become."""
        from explorer.facts import TileSpec

        assert self.analysis is not None
        if self.analysis.info.tiled is not None:
            said: Plan | None = await self.jobs.run("reading the plan", "tiling")
            # a file that was tiled before says how; its numbers are whatever somebody wrote into it
            made = [site for site in said.sites if _sane(site)] if said is not None else []
            if made:
                return made, ()
        plan: Plan = await self.jobs.run("planning", "plan", self.tile_spec or TileSpec())
        return list(plan.sites), plan.skipped


_AT_ONCE = 1_000
"""Layers that are looked through while a key waits."""
_MOST = 1 << 48
"""No product has more rows, columns or depth than this."""


def _sane(site: SitePlan) -> bool:
    """Whether a site that a file describes can be one."""
    return all(0 < size < _MOST for size in (site.M, site.K, site.N, site.batch, *site.tile))
