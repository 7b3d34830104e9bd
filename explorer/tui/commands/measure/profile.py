"""Profile: how long the current model runs on this machine, and its columns in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.units import seconds_text
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.measure.dialog import ProfileDialog, ProfileRequest
from explorer.tui.dialogs.measure.screen import AGAIN, ProfileScreen
from explorer.tui.state.hardware import known_machine
from explorer.tui.tree.overlay import in_front
from explorer.tui.tree.rows import MEASURED, columns_of
from explorer.tui.tree.table import SHOWN

if TYPE_CHECKING:
    from explorer.facts.profile.profile import Profile
    from explorer.tui.tree.model import TreeModel


class ProfileCommand(ScreenCommand):
    """Shows what was measured of the current model, or asks how it is to be timed."""

    def run(self) -> None:
        """Show it, or ask."""
        if not self.context.ready():
            return
        found = self.store.profile
        if found is None:
            self._ask()
        else:
            self._show(found)

    def _ask(self) -> None:
        dialog = ProfileDialog(ProfileRequest(*self.store.profiled), blink=not self.store.remote)
        self.context.ask(dialog, self._take)

    def _take(self, request: ProfileRequest | None) -> None:
        if request is not None:
            self.store.profiled = tuple(request)
            self.context.start("Profile", self._time(request))

    async def _time(self, request: ProfileRequest) -> None:
        machine = known_machine(self.store)
        fact: Profile = await self.jobs.run(
            "profiling", "profile", request.spec, batch=request.size, machine=machine
        )
        await self.context.take_history()
        fresh = MEASURED if fact.machine is not None else MEASURED[:2]
        self.panes.rearrange(lambda model: _show_columns(model, fresh))
        self.store.notify("history")
        self.store.say(f"{seconds_text(fact.wall_seconds)} a run; % shows where it goes")
        self._show(fact)

    def _show(self, fact: Profile) -> None:
        words = ProfileRequest(*self.store.profiled).words()
        page = ProfileScreen(fact, self.store.stem, words, exact=self.store.exact)
        self.context.ask(page, self._then)

    def _then(self, layer: int | None) -> None:
        if layer == AGAIN:
            self._ask()
        elif layer is not None:
            self.panes.to_layer(layer)


def _show_columns(model: TreeModel, fresh: tuple[str, ...]) -> None:
    """The columns of a profile in front of the other figures."""
    known = columns_of(model)
    model.set_columns(in_front(model, [name for name in model.columns if name in known] or SHOWN, fresh))
