"""Saved sessions outlive their terminal: what the screen knew, in a folder of its own, until it is closed.

A dropped line, a closed window or a kill ends the screen without a word. So the screen keeps its state
on disk as it changes, beside the models that were made in the session, and takes the folder away only
when its user leaves it properly: whatever else ends it, `explorer --resume` finds the folder.

The screen that owns a session holds a lock on its folder, which the system lets go when the process
ends, however it ends: no list of process ids goes stale. What is read back is data that anybody may have
written: it is decoded into typed records, and names no file outside its own folder as one of its models.
Trust is not kept: code in a model runs when the user says so, each time.

MessagePack and not JSON, because evidence of a verification may hold an infinity or a NaN.
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

from explorer.base.errors import BadModel, Misuse
from explorer.base.features import load, offered
from explorer.facts import History, HistoryEntry
from explorer.facts.cost import Hardware
from explorer.facts.models.listing import KeptSession
from explorer.facts.roofline import Machine
from explorer.host import own_files, scratch
from explorer.host.locks import try_lock
from explorer.process.screen_choices import state_folder
from explorer.settings import machines

VERSION = 3
_WITH_FIELDS = (1, 2)
"""Versions before: what changes keep stood in fields of the states; in the first a history was a line."""
_FILE, _LOCK = "session.msgpack", "lock"
_MOST_BYTES = 64 << 20
"""Of a state file: a plan of 20,000 sites takes 4 MB."""
_MOST_OPENED = 10_000
_MOST_LISTED = 100
"""Sessions that a list shows: each is read."""
_LOOKS, _LOOKING = 6, 0.002
"""How often, and seconds between, a lock is tried by who only looks: another who looks holds it for less."""
_WEEK = 7 * 86_400.0
"""Seconds after which a session that nobody resumed is cleared away."""

_Count = Annotated[int, Meta(ge=0)]


class SavedSplit(Struct, frozen=True):
    """Where a state of the history was cut.

    Attributes:
        state: Its place.
        request: What was asked for, in the order of its fields.
        places: Number of units before each cut, where cuts were moved; empty for the best.
    """

    state: _Count
    request: tuple[str, ...]
    places: tuple[_Count, ...] = ()


class ScreenState(Struct, frozen=True):
    """What the screen showed.

    Attributes:
        metric: Id of the tree's column.
        query: The filter as it was typed.
        cursor: Path of the layer under the cursor.
        opened: Open rows of the tree: the path of a layer, and whether the row is the run that it begins.
        machine: Of the Roofline tab.
        hardware: The machine with all that is known of it.
        turned: The tree is sorted from the smallest.
        columns: Of the tree as a table; empty for those that are shown first.
        flat: The tree shows layers without groups.
        constants: The tree shows constants and shape arithmetic among the others.
        bookmarks: Paths of layers.
        in_tabs: The pane in use is the right one.
        overlays: Files of figures from outside.
        beside: The model that stood beside this one; empty for none.
        splits: Of the states that were cut.
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
    """How a model is opened: the arguments of `session.Session` that the command line can give."""

    weights: str | None = None
    weights_file: str | None = None
    dims: dict[str, Annotated[int, Meta(ge=1)]] = field(default_factory=dict)
    input_shapes: dict[str, tuple[str | None, tuple[_Count, ...]]] = field(default_factory=dict)
    trust: bool = False
    rules: str | None = None
    observe: bool = False
    past: _Count | None = None


class SavedSession(Struct, frozen=True):
    """A session on disk.

    Attributes:
        source: As it was typed, in the folder `cwd`.
        history: None until the model is open; its files are named without their folder.
        memory: Limit of the engine's memory in bytes.
    """

    source: str
    cwd: str
    opening: Opening
    history: History | None = None
    view: ScreenState = ScreenState()
    memory: Annotated[int, Meta(ge=1 << 26)] | None = None
    version: int = VERSION


class SessionStore:
    """The folder of the session on show, locked.

    Args:
        folder: It.
        lock: Descriptor of the lock, which lives as long as the process.
    """

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def save(self, saved: SavedSession) -> bool:
        """Replaces what is on disk, all or nothing; whether that was possible.

        A disk that is full must not end a screen that lives.
        """
        view = replace(saved.view, opened=saved.view.opened[:_MOST_OPENED])
        history = saved.history and _inside(saved.history, self.folder)
        path = os.path.join(self.folder, _FILE)
        try:
            own_files.write(path, msgspec.msgpack.encode(replace(saved, view=view, history=history)))
        except (OSError, OverflowError, TypeError, ValueError):
            return False
        return True

    def keep(
        self,
        source: str,
        cwd: str,
        options: Mapping[str, Any],
        history: History | None,
        view: ScreenState | None,
        memory: int | None,
    ) -> None:
        """Saves a session whose model was opened with `options`; the rest as in `SavedSession`."""
        self.save(SavedSession(source, cwd, Opening(**options), history, view or ScreenState(), memory))

    def others_wait(self, source: str, environment: Mapping[str, str], cwd: str) -> bool:
        """See `waiting`; this one, which is locked, does not."""
        return waiting(source, environment, cwd)

    def remove(self) -> None:
        """Clears the session away: it was closed properly."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Leaves the session for somebody else to resume."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def home(environment: Mapping[str, str]) -> str:
    """The folder of all sessions: of the XDG base directories the one for state."""
    return os.path.join(state_folder(environment), "sessions")


def begin(environment: Mapping[str, str]) -> SessionStore | None:
    """A new session's folder, which only the user may read; None where none can be made."""
    base = home(environment)
    try:
        own_files.make_folder(state_folder(environment))
        own_files.make_folder(base)
        folder = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=base)
        os.chmod(folder, 0o700)
        lock = _take(folder)
    except OSError:
        return None
    return SessionStore(folder, lock) if lock is not None else None


def find(
    model: str | None, environment: Mapping[str, str], *, trust: bool = False, cwd: str = ""
) -> tuple[SessionStore, SavedSession]:
    """The newest session that nobody has on show, taken over.

    Args:
        model: The path or name that it was opened with; None for any.
        environment: Says where sessions are.
        trust: The user lets code run again that he let run in that session.
        cwd: The folder that a relative `model` is in.

    Raises:
        Misuse: There is none, or it needs `trust`.
        BadModel: Its state is broken, or of another version.
    """
    others: list[str] = []
    for folder in _newest_first(home(environment)):
        lock = _take(folder)
        if lock is None:
            continue
        session_store = SessionStore(folder, lock)
        try:
            saved = _read(folder)
            if model is not None and not _same_model(saved, model, cwd):
                others.append(saved.source)
                session_store.release()
                continue
            if saved.opening.trust and not trust:
                raise Misuse(
                    "code of this model ran in this session", where=saved.source, hint="add --trust to let it"
                )
            _clear_rest(folder)
        except BadModel:
            session_store.release()
            if model is None:
                raise
        except BaseException:
            session_store.release()
            raise
        else:
            return session_store, saved
    hint = f"explorer --resume {others[0]}" if others else "sessions that were closed properly leave nothing"
    raise Misuse("there is no session to resume", where=model or "--resume", hint=hint)


def waiting(source: str, environment: Mapping[str, str], cwd: str) -> bool:
    """Whether a session of this model waits to be resumed."""
    for folder in _newest_first(home(environment)):
        if not _waits(folder):
            continue
        with contextlib.suppress(BadModel):
            if _same_model(_read(folder), source, cwd):
                return True
    return False


def kept_sessions(environment: Mapping[str, str]) -> list[KeptSession]:
    """The sessions that wait to be resumed, the newest first; what is broken says so."""
    sessions: list[KeptSession] = []
    for folder in _newest_first(home(environment))[:_MOST_LISTED]:
        if not _waits(folder):
            continue
        changed = int(_changed(folder))
        try:
            saved = _read(folder)
        except BadModel as error:
            sessions.append(KeptSession("?", "", changed, note=error.what, kept=folder))
            continue
        states = len(saved.history.entries) if saved.history is not None else 1
        note = "code of this model ran: resume it with --trust" if saved.opening.trust else ""
        sessions.append(KeptSession(saved.source, saved.cwd, changed, states, note, folder))
    return sessions


def take_over(folder: str, environment: Mapping[str, str]) -> tuple[SessionStore, SavedSession]:
    """One of `kept_sessions`, taken over.

    Raises:
        Misuse: Somebody else has it meanwhile, or it needs trust.
        BadModel: Its state is broken.
    """
    lock = _take(folder) if folder in _newest_first(home(environment)) else None
    if lock is None:
        raise Misuse("this session does not wait any more", hint="it was resumed, or closed")
    session_store = SessionStore(folder, lock)
    try:
        saved = _read(folder)
        if saved.opening.trust:
            hint = "explorer --resume --trust lets it"
            raise Misuse("code of this model ran in this session", where=saved.source, hint=hint)
        _clear_rest(folder)
    except BaseException:
        session_store.release()
        raise
    return session_store, saved


def clear_old(environment: Mapping[str, str]) -> None:
    """Removes the sessions that nobody has resumed for a week."""
    for folder in _newest_first(home(environment), with_state=False):
        with contextlib.suppress(OSError):
            if time.time() - _changed(folder) < _WEEK:
                continue
            lock = _take(folder)
            if lock is not None:
                SessionStore(folder, lock).remove()


def clear_left(environment: Mapping[str, str]) -> None:
    """Removes what nobody resumes, and what killed processes left among the temporary files."""
    clear_old(environment)
    scratch.clear_temporary()


# inside


def _newest_first(base: str, *, with_state: bool = True) -> list[str]:
    """Folders of sessions; a link is none."""
    try:
        folders = [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    if with_state:
        folders = [folder for folder in folders if os.path.lexists(os.path.join(folder, _FILE))]
    return sorted(folders, key=_changed, reverse=True)


def _changed(folder: str) -> float:
    """When a session was last written; its folder's own age while there is no state."""
    for path in (os.path.join(folder, _FILE), folder):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return 0.0


def _waits(folder: str) -> bool:
    """Whether nobody has a session; who only looks does not stand in the way of another who looks."""
    for _ in range(_LOOKS):
        if (lock := _take(folder)) is not None:
            os.close(lock)
            return True
        time.sleep(_LOOKING)
    return False


def _take(folder: str) -> int | None:
    """The lock of a session, None if somebody has it or it cannot be had."""
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


def _read(folder: str) -> SavedSession:
    """The state in a folder, checked; paths of its models are whole again."""
    path = os.path.join(folder, _FILE)

    def broken(fault: str) -> BadModel:
        hint = "remove its folder, or name the model of another session"
        return BadModel(f"the session{fault}", where=path, hint=hint)

    try:
        content = own_files.read(path, _MOST_BYTES)
    except OSError as error:
        raise broken(f" cannot be read: {error.strerror}") from None
    try:
        version = msgspec.msgpack.decode(content, type=_Version).version
    except _UNREADABLE:
        raise broken("'s state is broken") from None
    if version not in (*_WITH_FIELDS, VERSION):
        raise broken(f"'s state has version {version}, this program knows {VERSION}")
    try:
        document = msgspec.msgpack.decode(content)
        if version in _WITH_FIELDS:
            _give_records(document)
        saved = msgspec.convert(document, SavedSession)
        saved = replace(saved, history=saved.history and _with_records(saved.history))
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise broken(f"'s state is broken ({reason})") from None
    if not saved.source or "\0" in f"{saved.source}{saved.cwd}":
        raise broken("'s state names no model")
    machine = saved.view.machine
    if machine is not None and not (0 < machine.peak_macs < math.inf and 0 < machine.bandwidth < math.inf):
        raise broken("'s state has a machine that cannot be")
    if saved.view.hardware is not None:
        try:
            machines.complete(saved.view.hardware)
        except Misuse:
            raise broken("'s state has a machine that cannot be") from None
    history = saved.history
    if history is not None:
        if not history.entries or history.current < 0:
            raise broken("'s state has no history")
        if not history.is_tree:
            raise broken("'s history has a state that was made of none")
        history = _outside(history, folder)
    return replace(saved, history=history)


_UNREADABLE = (
    *(msgspec.MsgspecError, RecursionError, UnicodeDecodeError),
    *(AttributeError, TypeError, ValueError),  # of a document of another form
)


class _Version(Struct):
    version: int


def _give_records(document: Any) -> None:
    """Puts what a state of an older version has in fields of its own into a record of its change."""
    history = document.get("history") or {}
    for state in history.get("entries", ()):
        change = next((change for change, field in _FIELDS if state.get(field)), "")
        if change == "words":
            change, *words = state["words"]
            state["words"] = words
        state["record"] = dict(state) if change else None
        state["change"] = change


_FIELDS = (
    ("quantize", "quantize"),
    ("fold", "fold"),
    ("words", "words"),
    ("tile", "spec"),
    ("tile", "plan"),
)
"""Which change made a state of an older version, by the first field that it has."""


def _with_records(history: History) -> History:
    """The history, with records of the kinds that its changes keep.

    Raises:
        ValidationError: A record is broken, or of a change that this program does not know.
    """

    def typed(entry: HistoryEntry) -> HistoryEntry:
        if not entry.change:
            return replace(entry, record=None)
        if entry.change not in offered("records"):
            raise msgspec.ValidationError(f"it has a change that is not known: {entry.change[:40]!r}")
        return replace(entry, record=msgspec.convert(entry.record, load("records", entry.change)))

    return replace(history, entries=tuple(map(typed, history.entries)))


def _inside(history: History, folder: str) -> History:
    """The history with the names of its models in place of their paths; others keep their paths."""

    def named(entry: HistoryEntry) -> HistoryEntry:
        here = entry.path is not None and os.path.dirname(entry.path) == folder
        return replace(entry, path=os.path.basename(entry.path or "")) if here else entry

    return replace(history, entries=tuple(map(named, history.entries)))


def _outside(history: History, folder: str) -> History:
    """The other way round, without the models that are not there any more and all that was made of them."""
    entries = [replace(history.entries[0], path=None, parent=None)]
    places: dict[int | None, int] = {0: 0}
    for at, entry in enumerate(history.entries):
        before = places.get(history.parent(at))
        if before is None:
            continue
        if at and entry.path is None and entry.change:  # a module, made again of the original
            places[at] = len(entries)
            entries.append(replace(entry, parent=before))
            continue
        name = entry.path or ""
        file = os.path.join(folder, name)
        if not name or os.path.basename(name) != name or not os.path.isfile(file) or os.path.islink(file):
            continue
        places[at] = len(entries)
        entries.append(replace(entry, path=file, parent=before))
    current = min(history.current, len(history.entries) - 1)
    while current not in places:
        current = history.parent(current) or 0
    return replace(history, entries=tuple(entries), current=places[current], tip=places.get(history.tip))


def _clear_rest(folder: str) -> None:
    """Removes what a job that was interrupted had half written."""
    for entry in list(os.scandir(folder)):
        if entry.name.endswith(".part") and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name.endswith(".new"):
            with contextlib.suppress(OSError):
                os.remove(entry.path)


def _same_model(saved: SavedSession, model: str, cwd: str) -> bool:
    """Whether a session is about what the user calls `model`: a name, or a file by any path to it."""
    if saved.source == model:
        return True
    theirs, ours = os.path.join(saved.cwd, saved.source), os.path.join(cwd or os.getcwd(), model)
    return os.path.exists(ours) and os.path.realpath(theirs) == os.path.realpath(ours)
