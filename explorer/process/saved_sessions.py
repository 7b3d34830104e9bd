"""Saved sessions: the state of the screen on disk, so that `explorer --resume` can continue after a crash.

A lost connection, a closed window or a kill ends the screen without warning. The screen therefore saves its
state at every change, in the folder with the models of the session. It removes the folder only when the user
quits. After any other end, `explorer --resume` finds the folder.

The screen that owns a session holds a lock on its folder. The operating system releases the lock when the
process ends, so no list of process ids can become outdated.

The stored data is not trusted. It is decoded into typed records, and its models must be files in the
session's folder. Code in a model runs only when the user allows it in the new session, too.

The file is MessagePack, because the evidence of a verification can contain infinity or NaN, which JSON lacks.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.base.errors import BadModel, Misuse
from explorer.base.features import list_offers, load
from explorer.facts import History, HistoryEntry
from explorer.facts.cost import Hardware
from explorer.facts.models.listing import KeptSession
from explorer.facts.roofline import Machine
from explorer.host import own_files, scratch
from explorer.host.locks import try_lock
from explorer.process.screen_choices import find_state_folder
from explorer.settings import machines

VERSION = 3
_OLD_VERSIONS = (1, 2)
"""Older versions that can be read.

Their states store changes in separate fields; version 1 has a linear history.
"""
_FILE, _LOCK = "session.msgpack", "lock"
_MAX_BYTES = 64 << 20
"""Largest state file in bytes; a plan of 20,000 sites takes 4 MB."""
_MAX_OPEN_ROWS = 10_000
_MAX_LISTED = 100
"""Most sessions that a list shows, because each one has to be read."""
_LOCK_TRIES, _LOCK_DELAY = 6, 0.002
"""Attempts to take a lock, and the seconds between them.

A process that only checks a lock holds it briefly.
"""
_SECONDS_KEPT = 7 * 86_400.0
"""Age in seconds at which a session that was not resumed is removed: one week."""

_Count = Annotated[int, Meta(ge=0)]


class SavedSplit(Struct, frozen=True):
    """Split of one state of the history.

    Attributes:
        state: Index of the state in the history.
        request: Values of the split request, in the order of its fields.
        places: Number of operators before each cut if the user moved cuts; empty for the best cuts.
    """

    state: _Count
    request: tuple[str, ...]
    places: tuple[_Count, ...] = ()


class ScreenState(Struct, frozen=True):
    """Contents and layout of the screen.

    Attributes:
        tab: Open tab.
        exact: Whether numbers are shown in full.
        metric: Id of the column by which the tree is sorted.
        by_cost: Whether the tree is sorted by `metric`, and not in execution order.
        query: Filter text that the user typed.
        cursor: Path of the layer at the cursor.
        opened: Open rows of the tree as (path of a layer, whether the row represents a run of equal layers
            that begins with this layer).
        zoom: Enlarged pane, or empty.
        light: Whether the light theme is in use.
        machine: Machine of the Roofline tab.
        hardware: Machine with all its known figures.
        turned: Whether the sort order is reversed, so that the smallest layer comes first.
        columns: Columns of the tree as a table; empty for the default columns.
        flat: Whether the tree shows layers without groups.
        constants: Whether the tree shows constants and shape arithmetic as rows.
        bookmarks: Paths of layers.
        in_tabs: Whether the right pane has the focus.
        overlays: Files with figures from other tools.
        beside: Model shown for comparison; empty for none.
        splits: Splits of the states that the user split.
    """

    tab: str = "layer"
    exact: bool = False
    metric: str = ""
    by_cost: bool = False
    query: str = ""
    cursor: str = ""
    opened: tuple[tuple[str, bool], ...] = ()
    zoom: Literal["", "zoom-left", "zoom-right"] = ""
    light: bool = False
    machine: Machine | None = None
    turned: bool = False
    columns: tuple[str, ...] = ()
    flat: bool = False
    constants: bool = False
    bookmarks: tuple[str, ...] = ()
    in_tabs: bool = False
    hardware: Hardware | None = None
    overlays: tuple[str, ...] = ()
    beside: str = ""
    splits: tuple[SavedSplit, ...] = ()


class Opening(Struct, frozen=True):
    """Options with which a model is opened: the arguments of `Session` that the command line offers."""

    weights: str | None = None
    weights_file: str | None = None
    dims: dict[str, Annotated[int, Meta(ge=1)]] = field(default_factory=dict)
    input_shapes: dict[str, tuple[str | None, tuple[_Count, ...]]] = field(default_factory=dict)
    trust: bool = False
    rules: str | None = None
    observe: bool = False
    past: _Count | None = None
    shapes: bool = False


class SavedSession(Struct, frozen=True):
    """A session on disk.

    Attributes:
        source: Path or name that the user typed, relative to the folder `cwd`.
        cwd: Current folder at that time.
        opening: Options with which the model was opened.
        history: History of the session, or None until the model is open. Files of the session have no folder
            in their names.
        view: Contents and layout of the screen.
        memory: Memory limit of the engine in bytes, or None for no limit.
        version: Version of the file format.
    """

    source: str
    cwd: str
    opening: Opening
    history: History | None = None
    view: ScreenState = ScreenState()
    memory: Annotated[int, Meta(ge=1 << 26)] | None = None
    version: int = VERSION


class SessionStore:
    """The locked folder of the session on the screen.

    Args:
        folder: Path of the folder.
        lock: Descriptor of the lock, held until `release` or the end of the process.
    """

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def save(self, saved: SavedSession) -> bool:
        """Replaces the state on disk atomically.

        It raises no error, because a full disk must not end the screen.

        Returns:
            Whether the state could be written.
        """
        view = replace(saved.view, opened=saved.view.opened[:_MAX_OPEN_ROWS])
        history = saved.history and _make_paths_relative(saved.history, self.folder)
        path = os.path.join(self.folder, _FILE)
        try:
            own_files.write(path, msgspec.msgpack.encode(replace(saved, view=view, history=history)))
        except (OSError, OverflowError, TypeError, ValueError):
            return False
        return True

    def save_screen(
        self,
        source: str,
        cwd: str,
        options: Mapping[str, Any],
        history: History | None,
        view: ScreenState | None,
        memory: int | None,
    ) -> None:
        """Saves a session whose model was opened with `options`.

        For the other arguments see `SavedSession`.
        """
        self.save(SavedSession(source, cwd, Opening(**options), history, view or ScreenState(), memory))

    def has_other_waiting(self, source: str, environment: Mapping[str, str], cwd: str) -> bool:
        """Whether another session of the model waits to be resumed; see `has_waiting_session`."""
        return has_waiting_session(source, environment, cwd)

    def remove(self) -> None:
        """Removes the session after the user has quit."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Releases the lock, so that the session can be resumed."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def find_home(environment: Mapping[str, str]) -> str:
    """Returns the folder of all sessions, in the state folder of the XDG base directories."""
    return os.path.join(find_state_folder(environment), "sessions")


def begin(environment: Mapping[str, str]) -> SessionStore | None:
    """Creates the folder of a new session, readable only by the user; returns None if that fails."""
    base = find_home(environment)
    try:
        own_files.make_folder(find_state_folder(environment))
        own_files.make_folder(base)
        folder = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=base)
        os.chmod(folder, 0o700)
        lock = _try_lock_folder(folder)
    except OSError:
        return None
    return SessionStore(folder, lock) if lock is not None else None


def find(
    model: str | None, environment: Mapping[str, str], *, trust: bool = False, cwd: str = ""
) -> tuple[SessionStore, SavedSession]:
    """Locks and returns the newest session that no screen has open.

    Args:
        model: Path or name that the session's model was opened with, or None for any model.
        environment: Environment variables, which determine the folder of sessions.
        trust: Whether code may run that the user allowed in that session.
        cwd: Folder that a relative `model` is in.

    Raises:
        Misuse: No session matches, or the session needs `trust`.
        BadModel: The state of the session is broken, or has another version.
    """
    other_sources: list[str] = []
    for folder in _list_newest_first(find_home(environment)):
        lock = _try_lock_folder(folder)
        if lock is None:
            continue
        session_store = SessionStore(folder, lock)
        try:
            saved = _read_state(folder)
            if model is not None and not _is_same_model(saved, model, cwd):
                other_sources.append(saved.source)
                session_store.release()
                continue
            if saved.opening.trust and not trust:
                raise Misuse(
                    "code of this model ran in this session",
                    where=saved.source,
                    hint="add --trust to run it again",
                )
            _remove_partial_files(folder)
        except BadModel:
            session_store.release()
            if model is None:
                raise
        except BaseException:
            session_store.release()
            raise
        else:
            return session_store, saved
    hint = (
        f"explorer --resume {other_sources[0]}"
        if other_sources
        else "sessions that were closed properly leave nothing"
    )
    raise Misuse("there is no session to resume", where=model or "--resume", hint=hint)


def has_waiting_session(source: str, environment: Mapping[str, str], cwd: str) -> bool:
    """Whether a session of this model waits to be resumed.

    Args:
        source: Path or name of the model, as the user typed it.
        environment: Environment variables, which determine the folder of sessions.
        cwd: Folder that a relative `source` is in.
    """
    for folder in _list_newest_first(find_home(environment)):
        if not _is_waiting(folder):
            continue
        with contextlib.suppress(BadModel):
            if _is_same_model(_read_state(folder), source, cwd):
                return True
    return False


def list_kept_sessions(environment: Mapping[str, str]) -> list[KeptSession]:
    """Lists the sessions that wait to be resumed, newest first; a broken session has a note."""
    sessions: list[KeptSession] = []
    for folder in _list_newest_first(find_home(environment))[:_MAX_LISTED]:
        if not _is_waiting(folder):
            continue
        changed = int(_read_last_change(folder))
        try:
            saved = _read_state(folder)
        except BadModel as error:
            sessions.append(KeptSession("?", "", changed, note=error.what, kept=folder))
            continue
        state_count = len(saved.history.entries) if saved.history is not None else 1
        note = "code of this model ran: resume it with --trust" if saved.opening.trust else ""
        sessions.append(KeptSession(saved.source, saved.cwd, changed, state_count, note, folder))
    return sessions


def take_over(folder: str, environment: Mapping[str, str]) -> tuple[SessionStore, SavedSession]:
    """Locks and returns one of the sessions that `list_kept_sessions` lists.

    Args:
        folder: Folder of the session.
        environment: Environment variables, which determine the folder of sessions.

    Raises:
        Misuse: Another process has taken the session, or it needs trust.
        BadModel: The state of the session is broken.
    """
    lock = _try_lock_folder(folder) if folder in _list_newest_first(find_home(environment)) else None
    if lock is None:
        raise Misuse("this session can no longer be resumed", hint="it was resumed elsewhere, or closed")
    session_store = SessionStore(folder, lock)
    try:
        saved = _read_state(folder)
        if saved.opening.trust:
            hint = "explorer --resume --trust runs it again"
            raise Misuse("code of this model ran in this session", where=saved.source, hint=hint)
        _remove_partial_files(folder)
    except BaseException:
        session_store.release()
        raise
    return session_store, saved


def clear_old(environment: Mapping[str, str]) -> None:
    """Removes the sessions that were not resumed for a week."""
    for folder in _list_newest_first(find_home(environment), with_state=False):
        with contextlib.suppress(OSError):
            if time.time() - _read_last_change(folder) < _SECONDS_KEPT:
                continue
            lock = _try_lock_folder(folder)
            if lock is not None:
                SessionStore(folder, lock).remove()


def clear_abandoned(environment: Mapping[str, str]) -> None:
    """Removes old sessions, and temporary files of killed processes."""
    clear_old(environment)
    scratch.clear_temporary()


# private functions


def _list_newest_first(base: str, *, with_state: bool = True) -> list[str]:
    """Returns the folders of sessions, newest first; symbolic links are ignored.

    Args:
        base: Folder of all sessions.
        with_state: Whether to omit folders without a state file.
    """
    try:
        folders = [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    if with_state:
        folders = [folder for folder in folders if os.path.lexists(os.path.join(folder, _FILE))]
    return sorted(folders, key=_read_last_change, reverse=True)


def _read_last_change(folder: str) -> float:
    """Returns the time of the last change of a session's state file, or of its folder without a state file.

    The time is in seconds since the epoch.
    """
    for path in (os.path.join(folder, _FILE), folder):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return 0.0


def _is_waiting(folder: str) -> bool:
    """Whether no process has the session open.

    It tries several times, because another check may hold the lock.
    """
    for _ in range(_LOCK_TRIES):
        if (lock := _try_lock_folder(folder)) is not None:
            os.close(lock)
            return True
        time.sleep(_LOCK_DELAY)
    return False


def _try_lock_folder(folder: str) -> int | None:
    """Takes the lock of a session, and returns its descriptor.

    Returns None if another process holds the lock, or it cannot be created.
    """
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        if try_lock(lock):
            os.fchmod(lock, 0o600)
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _read_state(folder: str) -> SavedSession:
    """Reads and checks the state in a folder, and makes the paths of its models absolute.

    Raises:
        BadModel: The state cannot be read, is broken, or has another version.
    """
    path = os.path.join(folder, _FILE)

    def build_broken_error(problem: str) -> BadModel:
        hint = "remove its folder, or name the model of another session"
        return BadModel(f"the session{problem}", where=path, hint=hint)

    try:
        content = own_files.read(path, _MAX_BYTES)
    except OSError as error:
        raise build_broken_error(f" cannot be read: {error.strerror}") from None
    try:
        version = msgspec.msgpack.decode(content, type=build_type(_Version)).version
    except _UNREADABLE:
        raise build_broken_error("'s state is broken") from None
    if version not in (*_OLD_VERSIONS, VERSION):
        raise build_broken_error(f"'s state has version {version}, this program knows {VERSION}")
    try:
        document = msgspec.msgpack.decode(content)
        if version in _OLD_VERSIONS:
            _convert_old_states(document)
        saved = msgspec.convert(document, build_type(SavedSession))
        saved = replace(saved, history=saved.history and _restore_records(saved.history))
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise build_broken_error(f"'s state is broken ({reason})") from None
    if not saved.source or "\0" in f"{saved.source}{saved.cwd}":
        raise build_broken_error("'s state names no model")
    machine = saved.view.machine
    if machine is not None and not (0 < machine.peak_macs < math.inf and 0 < machine.bandwidth < math.inf):
        raise build_broken_error("'s state has an impossible machine")
    if saved.view.hardware is not None:
        try:
            machines.complete(saved.view.hardware)
        except Misuse:
            raise build_broken_error("'s state has an impossible machine") from None
    history = saved.history
    if history is not None:
        if not history.entries or history.current < 0:
            raise build_broken_error("'s state has no history")
        if not history.is_tree:
            raise build_broken_error("'s history has a state without a parent")
        history = _make_paths_absolute(history, folder)
    return replace(saved, history=history)


_UNREADABLE = (
    *(msgspec.MsgspecError, RecursionError, UnicodeDecodeError),
    *(AttributeError, TypeError, ValueError),  # raised for a document of another structure
)
"""Errors of decoding a broken state."""


class _Version(Struct):
    version: int


def _convert_old_states(document: Any) -> None:
    """Converts an older document: moves the fields of each state's change into one record."""
    history = document.get("history") or {}
    for state in history.get("entries", ()):
        change = next((change for change, field in _CHANGE_BY_FIELD if state.get(field)), "")
        if change == "words":
            change, *words = state["words"]
            state["words"] = words
        state["record"] = dict(state) if change else None
        state["change"] = change


_CHANGE_BY_FIELD = (
    ("quantize", "quantize"),
    ("fold", "fold"),
    ("words", "words"),
    ("tile", "spec"),
    ("tile", "plan"),
)
"""(change, field that only states of this change have) in older documents. The first match counts."""


def _restore_records(history: History) -> History:
    """Returns the history with records of the types that its changes define.

    Raises:
        ValidationError: A record is broken, or has a change that this program does not support.
    """

    def restore_record(entry: HistoryEntry) -> HistoryEntry:
        if not entry.change:
            return replace(entry, record=None)
        if entry.change not in list_offers("records"):
            raise msgspec.ValidationError(f"it has a change that is not known: {entry.change[:40]!r}")
        return replace(entry, record=msgspec.convert(entry.record, build_type(load("records", entry.change))))

    return replace(history, entries=tuple(map(restore_record, history.entries)))


def _make_paths_relative(history: History, folder: str) -> History:
    """Returns the history with bare file names for models in the session's folder.

    Other paths stay absolute.
    """

    def make_relative(entry: HistoryEntry) -> HistoryEntry:
        is_in_folder = entry.path is not None and os.path.dirname(entry.path) == folder
        return replace(entry, path=os.path.basename(entry.path or "")) if is_in_folder else entry

    return replace(history, entries=tuple(map(make_relative, history.entries)))


def _make_paths_absolute(history: History, folder: str) -> History:
    """Returns the history with absolute paths.

    It omits states whose model is missing, and the states made from them.
    """
    entries = [replace(history.entries[0], path=None, parent=None)]
    new_indices: dict[int | None, int] = {0: 0}
    for index, entry in enumerate(history.entries):
        parent_index = new_indices.get(history.parent(index))
        if parent_index is None:
            continue
        if index and entry.path is None and entry.change:  # a module is rebuilt from the original model
            new_indices[index] = len(entries)
            entries.append(replace(entry, parent=parent_index))
            continue
        name = entry.path or ""
        file = os.path.join(folder, name)
        if not name or os.path.basename(name) != name or not os.path.isfile(file) or os.path.islink(file):
            continue
        new_indices[index] = len(entries)
        entries.append(replace(entry, path=file, parent=parent_index))
    current = min(history.current, len(history.entries) - 1)
    while current not in new_indices:
        current = history.parent(current) or 0
    return replace(
        history, entries=tuple(entries), current=new_indices[current], tip=new_indices.get(history.tip)
    )


def _remove_partial_files(folder: str) -> None:
    """Removes the unfinished files of an interrupted job."""
    for entry in list(os.scandir(folder)):
        if entry.name.endswith(".part") and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name.endswith(".new"):
            with contextlib.suppress(OSError):
                os.remove(entry.path)


def _is_same_model(saved: SavedSession, model: str, cwd: str) -> bool:
    """Whether a session is about the user's `model`: the same name, or any path to the same file."""
    if saved.source == model:
        return True
    saved_path, model_path = os.path.join(saved.cwd, saved.source), os.path.join(cwd or os.getcwd(), model)
    return os.path.exists(model_path) and os.path.realpath(saved_path) == os.path.realpath(model_path)
