"""The history of a session: a tree of states, of which none is ever lost.

A change makes a state of the current one. Where that has been changed before it is a fork, and what was made
first stays beside what comes now: undo and redo walk along one line of the tree, `go` leads to any state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Profile
from explorer.facts.verification import Verification


class HistoryEntry(Struct, frozen=True):
    """One state of the session: the model as opened, or the outcome of a change.

    Attributes:
        label: What was done, in a few words.
        path: The ONNX file that holds it; None for the model as opened, and for an nn.Module that was made of
            it and is in no file: its record makes it again.
        command: What would make it headless; '' where no command can.
        verification: The proof; None where there was none.
        saved: Where the user saved it.
        name: What the user calls it.
        dims: Sizes that were bound when it was made; None where nobody wrote them down.
        parent: The state that it was made of: see `History.parent`.
        profile: How long it ran when it was last timed.
        change: The verb that made it; '' for the model as opened.
        record: What the change says of itself; None where it kept nothing.
    """

    label: str
    path: str | None
    command: str
    verification: Verification | None = None
    saved: str = ""
    name: str = ""
    dims: Mapping[str, int] | None = None
    parent: int | None = None
    profile: Profile | None = None
    change: str = ""
    record: Any = None

    def __getattr__(self, name: str) -> Any:
        """Fields of the record by the names that they had when each was a field of the entry."""
        if name == "words" and hasattr(self.record, name):
            return (self.change, *self.record.words)
        if name in _BEFORE:
            return getattr(self.record, name, _BEFORE[name])
        raise AttributeError(f"'HistoryEntry' object has no attribute '{name}'")


_BEFORE = {
    "plan": None,
    "spec": None,
    "quantize": None,
    "quantization": None,
    "ranges": None,
    "fold": "",
    "words": (),
}
"""Names that programs may still read, and what an entry has whose change knows no such thing."""


class History(Struct, frozen=True):
    """All states in the order in which they were made, and which of them is current.

    Attributes:
        dims: Sizes that were bound after the opening.
        tip: The end of the line that undo and redo walk along; None for the newest state that was made of
            the current one, or of what was made of it.
    """

    entries: tuple[HistoryEntry, ...]
    current: int
    dims: Mapping[str, int] | None = None
    tip: int | None = None

    @property
    def is_tree(self) -> bool:
        """Whether every state was made of one before it; what comes from outside may say anything."""
        return bool(self.entries) and all(
            0 <= (self.parent(at) or 0) < at for at in range(1, len(self.entries))
        )

    def parent(self, at: int) -> int | None:
        """The state that a state was made of; None of the model as opened.

        A program that knew no branches did not write it down: then it is the state before.
        """
        written_parent = self.entries[at].parent
        return None if at == 0 else at - 1 if written_parent is None else written_parent

    def children(self) -> dict[int, list[int]]:
        """The states that were made of each, oldest first; one of which nothing was made is not in it."""
        children: dict[int, list[int]] = {}
        for at in range(1, len(self.entries)):
            children.setdefault(self.parent(at) or 0, []).append(at)
        return children

    def line_to(self, at: int) -> tuple[int, ...]:
        """The states that lead to a state, from the model as opened on, and the state itself."""
        line = [at]
        while (before := self.parent(line[-1])) is not None:
            line.append(before)
        return tuple(reversed(line))

    def newest(self, at: int) -> int:
        """The state that was made last of those that come of a state; itself if there is none."""
        reached = {at}
        for later in range(at + 1, len(self.entries)):
            if self.parent(later) in reached:
                reached.add(later)
        return max(reached)

    @property
    def line(self) -> tuple[int, ...]:
        """The line that undo and redo walk along; the current state is on it."""
        if self.tip is not None and self.current in (line := self.line_to(self.tip)):
            return line
        return self.line_to(self.newest(self.current))

    @property
    def redoable(self) -> tuple[int, ...]:
        """The states that redo leads to, one after the other."""
        line = self.line
        return line[line.index(self.current) + 1 :]

    @property
    def unsaved(self) -> tuple[HistoryEntry, ...]:
        """What would go with the session: states that nobody saved, nor what was made of them, nor forgot."""
        behind_saved = {
            at for end, entry in enumerate(self.entries) if entry.saved for at in self.line_to(end)
        }
        states = enumerate(self.entries)
        return tuple(
            entry for at, entry in states if at and not entry.saved and (at not in behind_saved or entry.name)
        )

    def state(self, word: str) -> int:
        """The state that a user means by its number or its name.

        Raises:
            Misuse: There is none, or there are several of that name.
        """
        if word.isdecimal() and int(word) < len(self.entries):
            return int(word)
        named = [at for at, entry in enumerate(self.entries) if entry.name == word]
        if len(named) == 1:
            return named[0]
        many = (
            f"the states {' and '.join(map(str, named))} have this name"
            if named
            else "there is no such state"
        )
        raise Misuse(many, where=word, hint=f"give a number from 0 to {len(self.entries) - 1}")


def states_text(entries: tuple[HistoryEntry, ...]) -> str:
    """Which states these are: "'tile 64x64x64'", "'npu' and 2 more"."""
    more = f" and {len(entries) - 1:,} more" if len(entries) > 1 else ""
    return f"'{entries[0].name or entries[0].label}'{more}"
