"""Site command: a command that opens a view of the matmuls (sites) of the chosen layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.tree.sites import is_part_of, select_sites

if TYPE_CHECKING:
    from explorer.facts import Layer, Plan, SitePlan


class SiteCommand(ScreenCommand):
    """Base class of commands that show the matmuls of the chosen layer, or of the chosen row of the diff."""

    title = "Tiles"
    no_site_message = "found no matmul of this layer: t, then i lists those that can be tiled"

    def run(self) -> None:
        """Open the view."""
        if not self.context.ready():
            return
        node_name = self.panes.tabs.tab().node if self.store.tab == "diff" else ""
        if node_name:
            self.context.open_view(self.title, self._show((), node_name))
        else:
            open_view = self.context.open_view
            self.context.call_with_layers(
                *self.tree.cursor_range, lambda layers: open_view(self.title, self._show(layers, ""))
            )

    async def _show(self, chosen_layers: Sequence[Layer], node_name: str) -> None:
        """Open the view of the first site of the node (or else of the layers), or say why there is none."""
        sites, plan = await self.sites()
        matches = (
            [site for site in sites if node_name in (site.name, site.output) or is_part_of(site, node_name)]
            if node_name
            else select_sites(chosen_layers, sites, is_graph=self.store.is_graph)
        )
        if matches:
            self.open(sites, sites.index(matches[0]), chosen_layers, is_planned=plan is not None)
            return
        names = {node_name} if node_name else {layer.path for layer in chosen_layers}
        skipped = () if plan is None else plan.skipped
        reason = next((f"{skip.name}: {skip.reason}" for skip in skipped if skip.name in names), "")
        self.store.say(reason or self.no_site_message)

    async def sites(self) -> tuple[list[SitePlan], Plan | None]:
        """Return the sites, and their plan: None if the sites were read from the model file."""
        raise NotImplementedError

    def open(
        self, sites: Sequence[SitePlan], index: int, chosen_layers: Sequence[Layer], *, is_planned: bool
    ) -> None:
        """Open the view of the site at `index`.

        Args:
            sites: Sites to page through.
            index: Index of the first site to show.
            chosen_layers: Layers under the cursor.
            is_planned: Whether the sites come from a plan of the current model.
        """
        raise NotImplementedError
