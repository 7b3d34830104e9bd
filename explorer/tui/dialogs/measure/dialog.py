"""The profile dialog: how the model is to be timed."""

from __future__ import annotations

from typing import NamedTuple

from textual.app import ComposeResult

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import ProfileSpec
from explorer.settings.parse import parse_count
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.options import OptionField

_LEVELS = ("usual", "none", "basic", "extended", "all")


class ProfileRequest(NamedTuple):
    """What was typed: the level of optimisation, batch, threads and seconds; empty for the usual."""

    level: str = ""
    batch: str = ""
    threads: str = ""
    seconds: str = ""

    @property
    def size(self) -> int | None:
        """The batch."""
        return parse_count(self.batch, "batch", 1) if self.batch else None

    @property
    def spec(self) -> ProfileSpec:
        """How the model is timed.

        Raises:
            Misuse: Something is no number, or too small.
        """
        usual = ProfileSpec()
        return ProfileSpec(
            optimize=self.level or None,
            threads=parse_count(self.threads, "threads", 1) if self.threads else None,
            time_limit=_seconds(self.seconds) if self.seconds else usual.time_limit,
        )

    def words(self) -> list[str]:
        """The same as options of `explorer profile`."""
        flags = ("--optimize", "--batch", "--threads", "--time-limit")
        return [word for flag, typed in zip(flags, self, strict=True) if typed for word in (flag, typed)]


def _seconds(text: str) -> float:
    return float(parse_count(text, "time limit", 1))


class ProfileDialog(FormDialog[ProfileRequest]):
    """Asks how the model is to be timed.

    Args:
        last: What was typed last.
    """

    TITLE_TEXT = "Profile on this machine"
    HINT = "↑↓←→ choose · Enter start · Esc cancel"

    def __init__(self, last: ProfileRequest, *, blink: bool = False) -> None:
        super().__init__(blink=blink)
        self._last = last

    def fields(self) -> ComposeResult:
        """The fields."""
        levels = OptionField("optimize", _LEVELS, id="level")
        levels.index = _LEVELS.index(self._last.level or _LEVELS[0])
        yield levels
        yield from self.entry("batch", self._last.batch, "as opened", "batch")
        yield from self.entry("threads", self._last.threads, "as the runtime likes", "threads")
        yield from self.entry("time limit", self._last.seconds, "10 s", "seconds")

    def meaning(self) -> list[tuple[str, str]]:
        """What will happen, or what cannot be read."""
        try:
            limit = self._typed().spec.time_limit
        except Misuse as error:
            return [(str(error), "bad")]
        return [
            (f"Runs until the median is sure within 5 %, or {limit:g} s have passed.", "dim"),
            ("The screen rests meanwhile; Esc stops.", "dim"),
        ]

    def _typed(self) -> ProfileRequest:
        level = self.query_one("#level", OptionField).value
        texts = [self.text_of(name).strip() for name in ("batch", "threads", "seconds")]
        return ProfileRequest("" if level == _LEVELS[0] else level, *texts)

    def answer(self) -> ProfileRequest:
        """What the fields say."""
        found = self._typed()
        _ = found.spec, found.size
        return found
