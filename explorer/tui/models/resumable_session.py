"""Resumable session: the engine of one model, and the folder with its state, which outlives the terminal."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.host import memory_limit
from explorer.process import screen_choices
from explorer.process.client import EngineProcess

if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.process.saved_sessions import SavedSession, ScreenState, SessionStore
    from explorer.process.screen_choices import ScreenChoices


FIRST_KEYS = "first keys: ↑ ↓ move · Enter open · Tab other pane · t tile · ? all keys"
"""Status line of the first screen when a user starts the program for the first time."""


class ResumableSession:
    """A session with its engine process, saved to a folder so that it can be resumed after a disconnect.

    Args:
        source: Source of the model, as for `session.Session`.
        options: Other arguments of `session.Session`.
        memory: Maximum bytes of the engine process, or None for the machine's memory.
        resumed: Saved session to continue, with its store; None for a new session.
    """

    def __init__(
        self,
        source: str,
        options: Mapping[str, Any],
        memory: int | None = None,
        resumed: tuple[SessionStore, SavedSession] | None = None,
    ) -> None:
        self._source, self._options, self._memory = source, options, memory
        self._cwd = os.getcwd()
        self._is_first_use = not screen_choices.has_choices(os.environ)
        self._session_store = resumed[0] if resumed else None
        self._view = resumed[1].view if resumed else None
        self.engine = EngineProcess(
            source,
            folder=self._create_folder,
            history=resumed[1].history if resumed else None,
            memory=memory if memory is not None else memory_limit.read_machine_memory(),
            partial=True,  # the tree shows the failed layer and the layers that ran before it
            **options,
        )

    def _create_folder(self) -> str:
        """Create the session's folder. The engine calls this when it starts, after the first paint."""
        from explorer.process import saved_sessions  # imported after the first paint

        if self._session_store is None:
            self._session_store = saved_sessions.begin(os.environ)
            self.keep(None)
            threading.Thread(target=saved_sessions.clear_abandoned, args=(os.environ,), daemon=True).start()
        return self._session_store.folder if self._session_store is not None else ""

    def keep(self, view: ScreenState | None) -> None:
        """Save the state of the screen. Thread-safe."""
        self._view = view
        if self._session_store is not None:
            history, memory = self.engine.history, self._memory
            self._session_store.save_screen(self._source, self._cwd, self._options, history, view, memory)

    def notice(self) -> str:
        """Return a warning about the session in one line, or ''. Reads files."""
        if self._session_store is None:
            folder = screen_choices.find_state_folder(os.environ)
            return f"this session cannot be resumed later: {folder} cannot be written"
        has_waiting_session = self._session_store.has_other_waiting(self._source, os.environ, self._cwd)
        if has_waiting_session:
            return "a session was cut off: explorer --resume continues it"
        return FIRST_KEYS if self._is_first_use else ""

    def choices(self) -> ScreenChoices:
        """Return the saved choices for the screen. Reads a small file."""
        return screen_choices.load_choices(os.environ).for_model(self._identify_model())

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Save the choices for the screen. Thread-safe."""
        screen_choices.keep(replace(choices, model=self._identify_model()), os.environ)

    def _identify_model(self) -> str:
        source = os.path.join(self._cwd, self._source)
        return os.path.realpath(source) if os.path.exists(source) else self._source

    def remember(self, info: Info) -> None:
        """Add the model to the recent models. Writes a file."""
        if self._session_store is None:
            return
        from explorer.process import recent_models  # imported after the first paint

        recent_models.remember(self._source, self._options, info, os.environ)

    def keep_on_hangup(self, view: ScreenState | None) -> bool:
        """Save the state and kill the engine after a disconnect. Returns whether anything was saved."""
        with contextlib.suppress(Exception):
            self.keep(view or self._view)
        self.engine.kill()
        return self._session_store is not None

    def close(self, *, properly: bool) -> None:
        """Stop the engine. With `properly`, the user quit, and the saved session is removed as well."""
        self.engine.close()
        if self._session_store is not None:
            (self._session_store.remove if properly else self._session_store.release)()
