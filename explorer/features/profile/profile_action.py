"""Profile: how long the current model runs, alone or beside another state, and its columns of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.units import seconds_text
from explorer.features.profile.profile_comparison_view import ProfileComparisonScreen
from explorer.features.profile.profile_comparison_words import largest_first
from explorer.features.profile.profile_dialog import ProfileDialog, ProfileRequest
from explorer.features.profile.profile_view import AGAIN, ProfileScreen
from explorer.report.present.shell.history import state_name
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.state.hardware import known_machine
from explorer.tui.text.lines import safe
from explorer.tui.tree.overlay import in_front
from explorer.tui.tree.rows import MEASURED, columns_of
from explorer.tui.tree.table import SHOWN

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.facts.profile.profile import Profile
    from explorer.tui.tree.model import TreeModel

_BESIDE = "compare_profiles"
"""Where the last comparison of the model on show is kept, until it is timed alone."""


class ProfileCommand(ScreenCommand):
    """Shows what was measured of the current model, or asks how it is to be timed."""

    def run(self) -> None:
        """Show it, or ask."""
        if not self.context.ready():
            return
        found = self.store.profile
        if found is None:
            self._ask()
        elif (beside := self.store.on_demand.answers.get(_BESIDE)) is not None:
            self._show_both(beside)
        else:
            self._show(found)

    def _ask(self) -> None:
        history, last = self.store.history, ProfileRequest(*self.store.profiled)
        states: dict[int, str] = {}
        if history is not None:
            others = (at for at in range(len(history.entries)) if at != history.current)
            states = {at: safe(self._name(at)) for at in others}
            before = history.parent(history.current)
            if self.store.profile is None and before is not None and history.entries[before].profile:
                last = last._replace(beside=str(before))  # what was changed is what one wants to compare
        dialog = ProfileDialog(last, graph=self.store.by_value, states=states)
        self.context.ask(dialog, self._take)

    def _name(self, at: int) -> str:
        """What a state is called: '0 as opened'."""
        assert self.store.history is not None
        return f"{at} {state_name(self.store.history.entries[at], at)}"

    def _take(self, request: ProfileRequest | None) -> None:
        if request is not None:
            self.store.profiled = tuple(request)
            self.context.start("Profile", self._time(request))

    async def _time(self, request: ProfileRequest) -> None:
        how = {"spec": request.spec, "machine": known_machine(self.store)}
        kept, other = self.store.on_demand.answers, request.state
        if other is None:
            await self.jobs.run("profiling", "profile", batch=request.size, **how)
            kept.pop(_BESIDE, None)
        else:
            states = sorted((other, self.store.history_place))
            sizes, names = (request.size, request.size), (self._name(states[0]), self._name(states[1]))
            fact = await self.jobs.run("profiling", "compare_profiles", *states, batches=sizes, **how)
            kept[_BESIDE] = replace(fact, names=names)
        await self.context.take_history()
        found = self.store.profile
        assert found is not None, "the session keeps what it measured"
        fresh = MEASURED if found.machine is not None else MEASURED[:2]
        self.panes.rearrange(lambda model: _show_columns(model, fresh))
        self.store.notify("history", "found")
        self.store.say(f"{seconds_text(found.wall_seconds)} a run; % shows where it goes")
        self.run()

    def _show(self, fact: Profile) -> None:
        words = ProfileRequest(*self.store.profiled).words()
        page = ProfileScreen(fact, self.store.stem, words, exact=self.store.exact)
        self.context.ask(page, self._then)

    def _then(self, layer: int | None) -> None:
        if layer == AGAIN:
            self._ask()
        elif layer is not None:
            self.panes.to_layer(layer)

    def _show_both(self, fact: ProfileComparison) -> None:
        def then(at: int | None) -> None:
            if at == AGAIN:
                self._ask()
            elif at is not None:
                change = largest_first(fact)[at]
                path = change.after_path if fact.after == self.store.profile else change.before_path
                self.context.go_to_layer(path or change.path)

        self.context.ask(ProfileComparisonScreen(fact, exact=self.store.exact), then)


def _show_columns(model: TreeModel, fresh: tuple[str, ...]) -> None:
    """The columns of a profile in front of the other figures."""
    known = columns_of(model)
    model.set_columns(in_front(model, [name for name in model.columns if name in known] or SHOWN, fresh))
