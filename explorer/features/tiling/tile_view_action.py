"""Tile view command: how the chosen matmul is cut, from the tree and from the diff."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.facts import TileSpec
from explorer.features.tiling.tile_view import TileView
from explorer.tui.commands.context import AT_ONCE, ScreenCommand
from explorer.tui.tree.sites import operands_of, sites_of, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import Layer, Plan, SitePlan

_MOST = 1 << 48
"""No product has more rows, columns or depth than this."""


class TileViewCommand(ScreenCommand):
    """The tiles of the chosen layer, or of the row of the diff."""

    def run(self) -> None:
        """Show them."""
        if not self.context.ready():
            return
        named = self.panes.tabs.tab().node if self.store.tab == "diff" else ""
        if named:
            self.context.start("Tiles", self._show((), named))
        else:
            begin = self.context.start
            self.context.with_layers(
                *self.tree.cursor_range, lambda chosen: begin("Tiles", self._show(chosen, ""))
            )

    async def _show(self, chosen: Sequence[Layer], named: str) -> None:
        sites, plan = await self._tiled_sites()
        found = (
            [site for site in sites if named in (site.name, site.output) or within(site, named)]
            if named
            else sites_of(chosen, sites, by_value=self.store.by_value)
        )
        if found:
            # where that takes no time the operands of all sites get their names, for who goes on to others
            layers = self.tree.model.layers
            given = operands_of(layers if len(layers) <= AT_ONCE else chosen)
            ask = partial(self.jobs.ask, "tile_steps")
            view = TileView(sites, sites.index(found[0]), given=given, ask=ask, planned=plan is not None)
            self.context.app.push_screen(view)
            return
        names = {named} if named else {layer.path for layer in chosen}
        skipped = () if plan is None else plan.skipped
        why = next((f"{skip.name}: {skip.reason}" for skip in skipped if skip.name in names), "")
        self.store.say(why or "no matmul here that can be tiled; t, then i shows all that can")

    async def _tiled_sites(self) -> tuple[list[SitePlan], Plan | None]:
        """The sites as they are tiled; those of a model that is not, as a plan would have them."""
        assert self.store.analysis is not None
        if self.store.analysis.info.tiled is not None:
            said: Plan | None = await self.jobs.run("reading the plan", "tiling")
            # a file that was tiled before says how; its numbers are whatever somebody wrote into it
            made = [site for site in said.sites if _sane(site)] if said is not None else []
            if made:
                return made, None
        plan: Plan = await self.jobs.run("planning", "plan", self.store.tile_spec or TileSpec())
        return list(plan.sites), plan


def _sane(site: SitePlan) -> bool:
    """Whether a site that a file describes can be one."""
    return all(0 < size < _MOST for size in (site.M, site.K, site.N, site.batch, *site.tile))
