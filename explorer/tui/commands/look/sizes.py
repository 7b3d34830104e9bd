"""Open sizes: what the model leaves open, bound to a size or left open."""

from __future__ import annotations

from explorer.base import units
from explorer.report.present.look.info import sizes_of
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.sizes import SizesDialog


class SizesCommand(ScreenCommand):
    """Asks for the sizes that the model leaves open."""

    def run(self) -> None:
        """Ask."""
        if not self.context.ready():
            return
        assert self.store.analysis is not None
        sizes = sizes_of(self.store.analysis.info)
        if not sizes:
            self.store.say("this model leaves no size open")
            return

        def answered(dims: dict[str, int] | None) -> None:
            if dims is not None:
                before = {name: size for name, size in sizes.items() if size is not None}
                self.context.start("Open sizes", self._bind(dims, before))

        self.context.ask(SizesDialog(sizes, blink=not self.store.remote), answered)

    async def _bind(self, dims: dict[str, int], before: dict[str, int]) -> None:
        self.store.history = await self.jobs.run("binding sizes", "bind", dims)
        await self.context.show_current("bind", before)
        self.store.say(f"bound: {units.dims_text(dims)}" if dims else "no size is bound")
