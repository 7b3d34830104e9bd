"""Resumable session: one model's engine, and the folder in which both outlive the terminal."""

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


class ResumableSession:
    """A session, its engine, and the folder in which both outlive the terminal.

    Args:
        source: As for `session.Session`.
        options: Its other arguments.
        memory: Most bytes that the engine may take.
        resumed: The session to go on with.
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
        self._kept = resumed[0] if resumed else None
        self._view = resumed[1].view if resumed else None
        self.engine = EngineProcess(
            source,
            folder=self._folder,
            history=resumed[1].history if resumed else None,
            memory=memory if memory is not None else memory_limit.machine(),
            **options,
        )

    def _folder(self) -> str:
        """A place for the session, made with the engine and hence after the first paint."""
        from explorer.process import saved_sessions  # after the first paint

        if self._kept is None:
            self._kept = saved_sessions.begin(os.environ)
            self.keep(None)
            threading.Thread(target=saved_sessions.clear_left, args=(os.environ,), daemon=True).start()
        return self._kept.folder if self._kept is not None else ""

    def keep(self, view: ScreenState | None) -> None:
        """Write down where the user is; any thread may."""
        self._view = view
        if self._kept is not None:
            history, memory = self.engine.history, self._memory
            self._kept.keep(self._source, self._cwd, self._options, history, view, memory)

    def notice(self) -> str:
        """What its user has to know of the session, in a line; '' for nothing. Reads files."""
        if self._kept is None:
            folder = screen_choices.state_folder(os.environ)
            return f"this session cannot be resumed later: {folder} cannot be written"
        waits = self._kept.others_wait(self._source, os.environ, self._cwd)
        return "cut off before: explorer --resume goes on with that session" if waits else ""

    def choices(self) -> ScreenChoices:
        """How its user wants the screen; reads a small file."""
        return screen_choices.stored_choices(os.environ).of(self._model())

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Write down how its user wants it; any thread may."""
        screen_choices.keep(replace(choices, model=self._model()), os.environ)

    def _model(self) -> str:
        source = os.path.join(self._cwd, self._source)
        return os.path.realpath(source) if os.path.exists(source) else self._source

    def remember(self, info: Info) -> None:
        """The model is open: it goes to the head of the recent ones; writes a file."""
        if self._kept is None:
            return
        from explorer.process import recent_models  # after the first paint

        recent_models.remember(self._source, self._options, info, os.environ)

    def keep_on_hangup(self, view: ScreenState | None) -> bool:
        """The line is gone: keep what there is and end the engine at once; whether anything is kept."""
        with contextlib.suppress(Exception):
            self.keep(view or self._view)
        self.engine.kill()
        return self._kept is not None

    def close(self, *, properly: bool) -> None:
        """End the engine; the session goes too if its user quit, and stays if the screen failed."""
        self.engine.close()
        if self._kept is not None:
            (self._kept.remove if properly else self._kept.release)()
