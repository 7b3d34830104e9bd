"""The history of a session: a tree of states, of which none is ever lost.

A change makes a state of the current one. Where that has been changed before it is a fork, and what was made
first stays beside what comes now: undo and redo walk along one line of the tree, `go` leads to any state.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Profile
from explorer.facts.quantize import Quantization, QuantizeRequest
from explorer.facts.tiling import Plan, TileSpec
from explorer.facts.verification import Verification


class HistoryEntry(Struct, frozen=True):
    """One state of the session: the model as opened, or the outcome of a transform.

    `path` is the ONNX file that holds it (None: the model as opened, or an nn.Module that was quantized as
    one and is in no file: `ranges` of what its layers are given make it again); `command` is what
    would make it headless; `saved` is where the user saved it; `name` is what the user calls it; `spec` is
    what was asked for, None where no transform was, or a program kept the entry that did not write it down;
    `dims` are the sizes that were bound when it was made, None where nobody wrote them down; `parent` is the
    state that it was made of: see `History.parent`; `quantize` and `quantization` are what was asked of a
    quantization, and what it answered; `profile` is how long it ran when it was last timed; `fold` is which
    kind of rewrites made it (`facts.split.fold.FOLDS`); `words` are the verb and the options that make any
    other state of the one before it.
    """

    label: str
    path: str | None
    command: str
    plan: Plan | None = None
    verification: Verification | None = None
    saved: str = ""
    name: str = ""
    spec: TileSpec | None = None
    dims: Mapping[str, int] | None = None
    parent: int | None = None
    quantize: QuantizeRequest | None = None
    quantization: Quantization | None = None
    profile: Profile | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None
    fold: str = ""
    words: tuple[str, ...] = ()


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
