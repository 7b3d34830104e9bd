"""The profile dialog: how the model is to be timed, and beside which other state of the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from textual.app import ComposeResult
from textual.containers import Horizontal

from explorer.facts.profile.profile import OptimizeLevel, ProfileSpec, StepOptimizer
from explorer.facts.training import OPTIMIZERS
from explorer.settings.parse import parse_count, path_word
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.options import OptionField

_LEVELS = ("usual", "none", "basic", "extended", "all")
_STEPS = ("no", *OPTIMIZERS)
_ALONE = "alone"


class ProfileRequest(NamedTuple):
    """What was typed; empty for the usual.

    Attributes:
        level: Of optimisation, of a graph.
        training: The optimizer of a training step, of a module.
        batch, threads, steps: Numbers.
        seconds: After which no more runs are made.
        device: 'cpu', 'cuda'.
        input: A file that it is run on.
        beside: Number of the state of the history that is timed in turn with this one.
    """

    level: str = ""
    training: str = ""
    batch: str = ""
    threads: str = ""
    steps: str = ""
    seconds: str = ""
    device: str = ""
    input: str = ""
    beside: str = ""

    @property
    def size(self) -> int | None:
        """The batch."""
        return parse_count(self.batch, "batch", 1) if self.batch else None

    @property
    def state(self) -> int | None:
        """The other state."""
        return int(self.beside) if self.beside else None

    @property
    def spec(self) -> ProfileSpec:
        """How the model is timed.

        Raises:
            Misuse: Something is no number, or too small.
        """
        usual = ProfileSpec()
        seconds = parse_count(self.seconds, "time limit", 1) if self.seconds else usual.time_limit
        return ProfileSpec(
            optimize=cast("OptimizeLevel | None", self.level or None),
            threads=parse_count(self.threads, "threads", 1) if self.threads else None,
            device=self.device or usual.device,
            steps=parse_count(self.steps, "steps", 1) if self.steps else None,
            time_limit=float(seconds),
            input=self.input or None,
            train=bool(self.training),
            optimizer=cast("StepOptimizer", self.training or usual.optimizer),
        )

    def words(self) -> list[str]:
        """The same as options of `explorer profile`."""
        train = ["--train", "--optimizer", self.training] if self.training else []
        typed = [(flag, getattr(self, name)) for name, flag in _FLAGS.items()]
        return [*train, *(word for flag, said in typed if said for word in (flag, path_word(said)))]


_FLAGS: Mapping[str, str] = {
    "level": "--optimize",
    "batch": "--batch",
    "threads": "--threads",
    "steps": "--steps",
    "seconds": "--time-limit",
    "device": "--device",
    "input": "--input",
}
_ROWS = (
    (("batch", "batch", "as opened"), ("threads", "threads", "usual")),
    (("steps", "steps", "until sure"), ("seconds", "time limit", "10 s")),
    (("device", "device", "cpu"), ("input", "input", "random")),
)
"""Fields that are typed into, two a line: their ids, labels, and what stands in them for the usual."""


class ProfileDialog(FormDialog[ProfileRequest]):
    """Asks how the model is to be timed.

    Args:
        last: What was typed last.
        graph: Whether it is an ONNX graph, which has levels of optimisation; a module can be trained.
        states: What the other states of the history are called, by their numbers.
    """

    TITLE_TEXT = "Profile on this machine"
    HINT = "↑↓←→ choose · Enter start · Esc cancel"

    def __init__(self, last: ProfileRequest, *, graph: bool = True, states: Mapping[int, str]) -> None:
        super().__init__()
        self._last, self._graph = last, graph
        self._states = {"": _ALONE, **{str(at): f"beside {name}" for at, name in states.items()}}

    def fields(self) -> ComposeResult:
        """The fields."""
        label, words, chosen = (
            ("optimize", _LEVELS, self._last.level)
            if self._graph
            else ("training", _STEPS, self._last.training)
        )
        yield OptionField(label, words, chosen, id="choice")
        for row in _ROWS:
            with Horizontal(classes="form-row"):
                for at, (id, label, usual) in enumerate(row):
                    said = f" {label}" if at else label
                    yield from self.pair_entry(said, getattr(self._last, id), usual, id)
        if len(self._states) > 1:
            beside = self._states.get(self._last.beside, _ALONE)
            yield OptionField("timed", tuple(self._states.values()), beside, id="beside")

    def meaning(self) -> list[tuple[str, str]]:
        """What will happen."""
        asked = self._typed()
        spec = asked.spec
        runs = f"{spec.steps:,} runs" if spec.steps else "Runs until the median is sure within 5 %"
        turn = ", both in turn" if asked.beside else ""
        what = "A training step: forward, backward, optimizer. " if spec.train else ""
        return [
            (f"{what}{runs}, or {spec.time_limit:g} s have passed{turn}.", "dim"),
            ("The screen rests meanwhile; Esc stops.", "dim"),
        ]

    def _typed(self) -> ProfileRequest:
        choice = self.query_one("#choice", OptionField)
        picked = choice.value if choice.index else ""
        typed = {id: self.text_of(id).strip() for row in _ROWS for id, _, _ in row}
        other = [field.index for field in self.query("#beside").results(OptionField)]
        return ProfileRequest(
            level=picked if self._graph else "",
            training="" if self._graph else picked,
            beside=[*self._states][other[0]] if other else "",
            **typed,
        )

    def answer(self) -> ProfileRequest:
        """What the fields say."""
        found = self._typed()
        _ = found.spec, found.size
        return found
