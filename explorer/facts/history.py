"""The history of a session: a tree of states, which keeps every state.

A change makes a new state from the current one. A second change of the same state starts a new branch, and
the first branch stays. Undo and redo move along one line of the tree; `go` jumps to any state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from explorer.base.errors import Misuse
from explorer.base.fact import Fact, TableFact
from explorer.facts.profile.profile import Profile
from explorer.facts.verification import Verification


class HistoryEntry(Fact, frozen=True):
    """One state of the session: the model as opened, or the result of a change.

    Attributes:
        label: Short description of the change.
        path: Path of the ONNX file that holds the state, or None for the model as opened and for a changed
            nn.Module without a file. The record of such a module makes it again.
        command: Command that makes the state without the screen, or '' if no command can.
        verification: Proof of the change, or None without one.
        saved: Path to which the user saved the state, or ''.
        name: Name that the user gave the state, or ''.
        dims: Sizes of dimensions that were bound when the state was made, or None if they were not recorded.
        parent: Index of the state from which this state was made, see `History.parent`.
        profile: Last measured profile of the state, or None.
        change: Verb that made the state, or '' for the model as opened.
        record: Record of the change, or None if the change keeps none.
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
        """Reads fields of the record by their former names; `words` starts with the verb of the change."""
        if name == "words" and hasattr(self.record, name):
            return (self.change, *self.record.words)
        if name in _FORMER_FIELDS:
            return getattr(self.record, name, _FORMER_FIELDS[name])
        raise AttributeError(f"'HistoryEntry' object has no attribute '{name}'")


_FORMER_FIELDS = {
    "plan": None,
    "spec": None,
    "quantize": None,
    "quantization": None,
    "ranges": None,
    "fold": "",
    "words": (),
}
"""Former field names that programs may still read, with the value if the record has no such field."""


class History(TableFact, frozen=True):
    """All states in the order in which they were made, and the index of the current state.

    Attributes:
        dims: Sizes of dimensions that were bound after the model was opened.
        tip: Index of the last state of the line along which undo and redo move. None selects the newest
            descendant of the current state.
    """

    ROWS: ClassVar[str] = "entries"

    entries: tuple[HistoryEntry, ...]
    current: int
    dims: Mapping[str, int] | None = None
    tip: int | None = None

    @property
    def is_tree(self) -> bool:
        """Whether every parent precedes its child. A history from another program may violate this."""
        return bool(self.entries) and all(
            0 <= (self.parent(index) or 0) < index for index in range(1, len(self.entries))
        )

    def parent(self, index: int) -> int | None:
        """Returns the index of the state from which a state was made, or None for the model as opened.

        A history of a program version without branches has no parents. The parent is then the previous state.
        """
        written_parent = self.entries[index].parent
        return None if index == 0 else index - 1 if written_parent is None else written_parent

    def children(self) -> dict[int, list[int]]:
        """Maps the index of each state that was changed to the states made from it, oldest first."""
        children: dict[int, list[int]] = {}
        for index in range(1, len(self.entries)):
            children.setdefault(self.parent(index) or 0, []).append(index)
        return children

    def line_to(self, index: int) -> tuple[int, ...]:
        """Returns the indices of the states from the model as opened to the given state."""
        line = [index]
        while (before := self.parent(line[-1])) is not None:
            line.append(before)
        return tuple(reversed(line))

    def newest(self, index: int) -> int:
        """Returns the newest descendant of a state, or the state itself if it has no descendants."""
        reached = {index}
        for candidate in range(index + 1, len(self.entries)):
            if self.parent(candidate) in reached:
                reached.add(candidate)
        return max(reached)

    @property
    def line(self) -> tuple[int, ...]:
        """Indices of the states along which undo and redo move. The current state is one of them."""
        if self.tip is not None and self.current in (line := self.line_to(self.tip)):
            return line
        return self.line_to(self.newest(self.current))

    @property
    def redoable(self) -> tuple[int, ...]:
        """Indices of the states that redo reaches, in order."""
        line = self.line
        return line[line.index(self.current) + 1 :]

    @property
    def unsaved(self) -> tuple[HistoryEntry, ...]:
        """States that closing the session would lose.

        A state without a name also counts as saved if the user saved a state that was made from it.
        """
        behind_saved = {
            index for end, entry in enumerate(self.entries) if entry.saved for index in self.line_to(end)
        }
        states = enumerate(self.entries)
        return tuple(
            entry
            for index, entry in states
            if index and not entry.saved and (index not in behind_saved or entry.name)
        )

    def state(self, word: str) -> int:
        """Finds the index of a state by the number or the name that the user typed.

        Raises:
            Misuse: No state or more than one state has this name.
        """
        if word.isdecimal() and int(word) < len(self.entries):
            return int(word)
        named = [index for index, entry in enumerate(self.entries) if entry.name == word]
        if len(named) == 1:
            return named[0]
        problem = (
            f"the states {' and '.join(map(str, named))} have this name"
            if named
            else "there is no such state"
        )
        raise Misuse(problem, where=word, hint=f"give a number from 0 to {len(self.entries) - 1}")


def describe_states(entries: tuple[HistoryEntry, ...]) -> str:
    """Names the first state and counts the others: "'tile 64x64x64'", "'npu' and 2 more"."""
    more = f" and {len(entries) - 1:,} more" if len(entries) > 1 else ""
    return f"'{entries[0].name or entries[0].label}'{more}"
