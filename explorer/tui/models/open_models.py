"""Open models: each has a screen, a session and an engine's process of its own, and one is on show.

Their engines may take a bounded memory together: beyond it those that were on show longest ago and have
nothing to do rest, and begin again when they are asked for something. What the screen shows of a model stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.host import memory_limit

if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import Opening, ScreenState
    from explorer.process.screen_choices import ScreenChoices
    from explorer.tui.state.store import ScreenStore

MOST = 12
"""Models that are open at once."""


class ModelChoice(Struct, frozen=True):
    """A model to open.

    Attributes:
        source: As for `session.Session`.
        opening: How; None for plainly.
        kept: Folder of a session to resume; empty for a new one.
    """

    source: str
    opening: Opening | None = None
    kept: str = ""


class SessionKeeper(Protocol):
    """What a model on the screen needs of `resumable_session.ResumableSession`."""

    def keep(self, view: ScreenState | None) -> None:
        """Write down where the user is; any thread may."""

    def notice(self) -> str:
        """What its user has to know of the session, in a line; '' for nothing. Reads files."""

    def choices(self) -> ScreenChoices:
        """How its user wants the screen; reads a small file."""

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Write down how its user wants it; any thread may."""

    def remember(self, info: Info) -> None:
        """The model is open: it is a recent one."""

    def keep_on_hangup(self, view: ScreenState | None) -> bool:
        """The line is gone: keep what there is and end the engine at once; whether anything is kept."""

    def close(self, *, properly: bool) -> None:
        """End the engine; the session goes too if its user quit."""


class ModelScreen(Protocol):
    """What is needed of the screen of a model."""

    store: ScreenStore

    def view(self) -> ScreenState | None:
        """What is on show, to be resumed; None while nothing is."""


class OpenModel:
    """A model that is open.

    Args:
        source: As for `session.Session`.
        engine: Answers.
        keeper: Its session; None for one that nobody keeps.
        view: What a session showed that is resumed.

    Attributes:
        mode: The stack of screens that shows it.
        main: Its screen, once there is one.
        overlays: Files of figures from outside.
        beside: Another model, which is set beside it once it is open.
    """

    def __init__(
        self,
        source: str,
        engine: EngineProcess,
        keeper: SessionKeeper | None = None,
        view: ScreenState | None = None,
    ) -> None:
        self.source, self.engine, self.keeper, self.resumed = source, engine, keeper, view
        self.mode = ""
        self.beside: str | None = None
        self.main: ModelScreen | None = None
        self.overlays: tuple[str, ...] = ()

    def question(self, action: str) -> str:
        """Whether it may be lost what would be, on the way to `action`; empty if nothing would."""
        if self.main is None:
            return ""
        store = self.main.store
        running = store.jobs.current
        if running is not None and store.analysis is not None:
            return f"{running.title} is not done. Stop it and {action}?"
        if store.history is not None and (lost := store.history.unsaved):
            from explorer.facts import states_text  # with the answer, after the first paint

            return f"{states_text(lost)} not saved. {action.capitalize()} without?"
        return ""

    @property
    def state(self) -> str:
        """What it is doing, in a word or two."""
        store = self.main.store if self.main is not None else None
        if store is None:
            return ""
        if store.jobs.current is not None:
            return store.jobs.current.title
        return store.note or store.state_note or ("" if self.engine.pid is not None else "at rest")

    def keep_on_hangup(self) -> bool:
        """The line is gone: keep what there is and end the engine at once; whether anything is kept."""
        if self.main is not None and self.main.store.failure and self.resumed is None:
            self.engine.kill()
            self.close(properly=True)  # it could not be opened: there is nothing to go on with
            return False
        view = None
        try:
            view = self.main.view() if self.main is not None else None
        except Exception:  # whatever the screen is in the middle of
            pass
        if self.keeper is None:
            self.engine.kill()
            return False
        return self.keeper.keep_on_hangup(view)

    def close(self, *, properly: bool) -> None:
        """Ends its engine and its session; may take two seconds."""
        if self.keeper is None:
            self.engine.close()
        else:
            self.keeper.close(properly=properly)


Begin = Callable[[ModelChoice], OpenModel]
"""Begins a session; raises `ExplorerError` if there is none."""


class OpenModels:
    """The models that are open.

    Args:
        begin: Begins a session.
        memory: Most bytes that all engines may hold before those that are not on show rest; None for half of
            what the machine has.
    """

    def __init__(self, begin: Begin, memory: int | None = None) -> None:
        self._begin = begin
        self._numbers = count(1)
        machine = memory_limit.machine()
        self.memory = memory if memory is not None else machine // 2 if machine is not None else None
        self.open: list[OpenModel] = []
        self._shown: list[OpenModel] = []

    def add(self, model: OpenModel) -> OpenModel:
        """One more."""
        model.mode = f"model-{next(self._numbers)}"
        self.open.append(model)
        return model

    def begin(self, choice: ModelChoice) -> OpenModel:
        """Begins another, or gives the one that is open already.

        Raises:
            ExplorerError: There are too many, or the session to resume is gone.
        """
        if not choice.kept and (there := self.find(choice.source)) is not None:
            return there
        if len(self.open) >= MOST:
            raise Misuse(f"{MOST} models are open", hint="close one first: L, then x")
        return self.add(self._begin(choice))

    def find(self, source: str) -> OpenModel | None:
        """The one that is open from a source."""
        wanted = _identity(source)
        return next((model for model in self.open if _identity(model.source) == wanted), None)

    def remove(self, model: OpenModel) -> OpenModel | None:
        """Takes one away; returns the one that was on show before it, if any is left."""
        self.open.remove(model)
        self._shown = [one for one in self._shown if one is not model]
        return self._shown[-1] if self._shown else (self.open[-1] if self.open else None)

    def show(self, model: OpenModel) -> None:
        """One is on show now; of the others as many rest as have to."""
        self._shown = [*(model_shown for model_shown in self._shown if model_shown is not model), model]
        others = self._shown[:-1]
        resident = self.held if others else 0
        for model_at_rest in others:
            if self.memory is None or resident <= self.memory:
                break
            size = model_at_rest.engine.resident
            if model_at_rest.engine.rest():
                resident -= size

    @property
    def current(self) -> OpenModel | None:
        """The one on show; None while none is open."""
        return self._shown[-1] if self._shown else None

    @property
    def held(self) -> int:
        """Bytes of memory that all engines hold now."""
        return sum(model.engine.resident for model in self.open)


class ModelHost(Protocol):
    """What commands need of the program: it shows models."""

    models: OpenModels

    def begin_model(self, choice: ModelChoice) -> OpenModel:
        """Another model, or the same one if it is open; raises `ExplorerError`."""

    def show_model(self, model: OpenModel) -> None:
        """Show an open model."""

    def close_model(self, model: OpenModel) -> None:
        """Close one, whatever is not saved."""


def _identity(source: str) -> str:
    return os.path.realpath(source) if os.path.exists(source) else source
