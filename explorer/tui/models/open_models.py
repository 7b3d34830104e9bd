"""The open models. Each has its own screen, session and engine process; one model is visible.

The engine processes share a memory limit. Above it, idle engines are stopped, first of the models that were
hidden the longest. Such a model is "at rest": its screen keeps its contents, and the next request restarts
its engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.host import memory_limit

if TYPE_CHECKING:
    from textual.events import Event

    from explorer.facts import Info
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import Opening, ScreenState
    from explorer.process.screen_choices import ScreenChoices
    from explorer.tui.state.store import ScreenStore

MAX_OPEN = 12
"""Maximum number of open models."""


class ModelChoice(Struct, frozen=True):
    """A model to open.

    Attributes:
        source: Source of the model, as for `session.Session`.
        opening: Options for opening the model, or None for the defaults.
        kept: Folder of the saved session to resume, or '' for a new session.
    """

    source: str
    opening: Opening | None = None
    kept: str = ""


class SessionKeeper(Protocol):
    """The part of `resumable_session.ResumableSession` that a screen uses."""

    def keep(self, view: ScreenState | None) -> None:
        """Save the state of the screen. Thread-safe."""

    def notice(self) -> str:
        """Return a warning about the session in one line, or ''. Reads files."""

    def choices(self) -> ScreenChoices:
        """Return the saved choices for the screen. Reads a small file."""

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Save the choices for the screen. Thread-safe."""

    def remember(self, info: Info) -> None:
        """Add the model to the recent models after it was opened."""

    def keep_on_hangup(self, view: ScreenState | None) -> bool:
        """Save the state and kill the engine after a disconnect. Returns whether anything was saved."""

    def close(self, *, properly: bool) -> None:
        """Stop the engine. With `properly`, the user quit, and the saved session is removed as well."""


class ModelScreen(Protocol):
    """The part of a model's screen that `OpenModel` uses."""

    store: ScreenStore

    def view(self) -> ScreenState | None:
        """Return the state of the screen, for resuming it, or None before anything is shown."""


class OpenModel:
    """A model that is open.

    Args:
        source: Source of the model, as for `session.Session`.
        engine: Engine process of the model.
        keeper: Saves the session, or None for a session that is not saved.
        view: State of the screen in the resumed session, or None.

    Attributes:
        mode: Textual mode (stack of screens) that shows the model.
        main: Main screen of the model, or None before it is created.
        overlays: Paths of files with external figures.
        beside: Source of another model to compare with once this one is open, or None.
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
        """Return the question to ask before `action` if it would discard a job or unsaved states, or ''."""
        if self.main is None:
            return ""
        store = self.main.store
        running = store.jobs.current
        if running is not None and store.analysis is not None:
            return f"{running.title} is not done. Stop it and {action}?"
        if store.history is not None and (lost := store.history.unsaved):
            from explorer.facts import describe_states  # imported late: the first paint does not need it

            question = f"{describe_states(lost)} not saved. {action.capitalize()} without saving?"
            return f"{question} To save, press n, then w." if action == "quit" else question
        return ""

    @property
    def state(self) -> str:
        """State of the model in a few words, such as the running job."""
        store = self.main.store if self.main is not None else None
        if store is None:
            return ""
        if store.jobs.current is not None:
            return store.jobs.current.title
        return store.note or store.state_note or ("" if self.engine.pid is not None else "at rest")

    def keep_on_hangup(self) -> bool:
        """Save the state and kill the engine after a disconnect. Returns whether anything was saved."""
        if self.main is not None and self.main.store.failure and self.resumed is None:
            self.engine.kill()
            self.close(properly=True)  # the model failed to open, so there is nothing to resume
            return False
        view = None
        try:
            view = self.main.view() if self.main is not None else None
        except Exception:  # the screen may be in any state
            pass
        if self.keeper is None:
            self.engine.kill()
            return False
        return self.keeper.keep_on_hangup(view)

    def close(self, *, properly: bool) -> None:
        """Stop the engine and end the session. This can take two seconds."""
        if self.keeper is None:
            self.engine.close()
        else:
            self.keeper.close(properly=properly)


Begin = Callable[[ModelChoice], OpenModel]
"""Function that begins a session. It raises `ExplorerError` if this is impossible."""


class OpenModels:
    """The open models, and the memory limit of their engines.

    Args:
        begin: Function that begins a session.
        memory: Bytes of all engines above which idle engines of hidden models are stopped; None for half of
            the machine's memory.
    """

    def __init__(self, begin: Begin, memory: int | None = None) -> None:
        self._begin = begin
        self._numbers = count(1)
        machine = memory_limit.read_machine_memory()
        self.memory = memory if memory is not None else machine // 2 if machine is not None else None
        self.open: list[OpenModel] = []
        self._shown: list[OpenModel] = []  # models that were visible, the visible model last

    def add(self, model: OpenModel) -> OpenModel:
        """Add a model and give it a mode."""
        model.mode = f"model-{next(self._numbers)}"
        self.open.append(model)
        return model

    def begin(self, choice: ModelChoice) -> OpenModel:
        """Open a model, or return the model that is already open from the same source.

        Raises:
            ExplorerError: Too many models are open, or the session to resume does not exist anymore.
        """
        if not choice.kept and (open_model := self.find(choice.source)) is not None:
            return open_model
        if len(self.open) >= MAX_OPEN:
            raise Misuse(f"{MAX_OPEN} models are open", hint="close one first: L, then x")
        return self.add(self._begin(choice))

    def find(self, source: str) -> OpenModel | None:
        """Return the open model of a source, or None."""
        identity = _identify(source)
        return next((model for model in self.open if _identify(model.source) == identity), None)

    def remove(self, model: OpenModel) -> OpenModel | None:
        """Remove a model. Returns the model to show next, or None if no model is left."""
        self.open.remove(model)
        self._shown = [open_model for open_model in self._shown if open_model is not model]
        return self._shown[-1] if self._shown else (self.open[-1] if self.open else None)

    def show(self, model: OpenModel) -> None:
        """Show a model, and stop engines of other models while the memory limit is exceeded."""
        self._shown = [*(model_shown for model_shown in self._shown if model_shown is not model), model]
        hidden_models = self._shown[:-1]
        resident = self.used_memory if hidden_models else 0
        for hidden_model in hidden_models:
            if self.memory is None or resident <= self.memory:
                break
            size = hidden_model.engine.resident
            if hidden_model.engine.stop_if_idle():
                resident -= size

    @property
    def current(self) -> OpenModel | None:
        """The visible model, or None."""
        return self._shown[-1] if self._shown else None

    @property
    def used_memory(self) -> int:
        """Memory of all engines in bytes."""
        return sum(model.engine.resident for model in self.open)


class ModelHost(Protocol):
    """The part of the program that opens, shows and closes models, as commands use it."""

    models: OpenModels

    def begin_model(self, choice: ModelChoice) -> OpenModel:
        """Open a model, or return it if it is already open. Raises `ExplorerError`."""

    def show_model(self, model: OpenModel) -> None:
        """Show an open model."""

    def close_model(self, model: OpenModel) -> None:
        """Close a model, even with unsaved states."""

    def hold_keys(self) -> Callable[[], None]:
        """Let the next keys wait for a screen that is about to open. The returned function ends the wait."""

    def put_keys_first(self, keys: Sequence[Event]) -> None:
        """Handle keys on the topmost screen, before the keys that wait."""


def _identify(source: str) -> str:
    return os.path.realpath(source) if os.path.exists(source) else source
