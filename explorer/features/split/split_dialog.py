"""The settings of a split and the dialog that asks for them, and the split that a screen shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec import Struct, ValidationError, convert
from textual.app import ComposeResult
from textual.containers import Horizontal

from explorer.base.errors import Misuse
from explorer.facts.roofline import Machine
from explorer.facts.split.split import BALANCED, SplitBy, SplitSpec, StageForm
from explorer.facts.training import OPTIMIZERS, Optimizer
from explorer.process.saved_sessions import SavedSplit
from explorer.settings import machines
from explorer.settings.parse import parse_card, parse_count
from explorer.settings.rates import parse_rate
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import safe
from explorer.tui.tree.stages import StageRows
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.draft import CutPlaces, SplitDraft
    from explorer.tui.tree.model import TreeShape

_SCHEDULES = ("1f1b", "gpipe")
_FORMS = ("onnx", "torch")


class SplitRequest(NamedTuple):
    """What was typed; empty for the usual.

    Attributes:
        stages, micro_batches: Numbers.
        memory: Most bytes of a stage, which says how many there are where `stages` is empty.
        at: Globs of modules, between commas.
        machines: Names, one for all stages or one for each.
        links: Bytes a second between stages.
        form: What a module's stages are written as.
    """

    stages: str = "4"
    by: SplitBy = "macs"
    memory: str = ""
    at: str = ""
    machines: str = ""
    links: str = ""
    micro_batches: str = ""
    schedule: str = "1f1b"
    optimizer: Optimizer = "sgd"
    form: StageForm = "onnx"

    @property
    def spec(self) -> SplitSpec:
        """How the model is cut.

        Raises:
            Misuse: Something cannot be read, or nothing says how many stages there are.
        """
        named = len(_names(self.machines))
        if not self.stages and not self.memory and named < 2:
            raise Misuse("into how many stages is not said", hint="type a number, or the memory of a stage")
        usual = SplitSpec()
        many, unsaid = self.micro_batches, named if named > 1 else None
        return SplitSpec(
            stages=parse_count(self.stages, "stages", 2) if self.stages else unsaid,
            by=self.by,
            stage_memory=parse_card(self.memory, "memory") if self.memory else None,
            at=tuple(_names(self.at)),
            links=parse_rate(self.links, "links") if self.links else None,
            micro_batches=parse_count(many, "micro-batches", 1) if many else usual.micro_batches,
            schedule="gpipe" if self.schedule == "gpipe" else "1f1b",
            optimizer=self.optimizer,
        )

    @property
    def named_machines(self) -> tuple[Machine, ...]:
        """The machines that were typed.

        Raises:
            Misuse: There is no such machine.
        """
        return tuple([machines.find(name, None, None) for name in _names(self.machines)])

    def words(self, cuts: str = "", machine: str = "") -> list[str]:
        """The same as options of `explorer split`.

        Args:
            cuts: Layers that begin a stage, where these were moved.
            machine: The one that was chosen, where none is typed.
        """
        usual = SplitRequest()
        typed = {**self._asdict(), "machines": ",".join(_names(self.machines)) or machine}
        options = [] if cuts or not self.stages else ["-n", self.stages]
        options += [
            word
            for name, flag in _FLAGS.items()
            if typed[name] and typed[name] != getattr(usual, name)
            for word in (flag, typed[name])
        ]
        options += [word for glob in _names(self.at) for word in ("--at", glob)] * (not cuts)
        return [*options, *(["--cuts", cuts] if cuts else [])]


_FLAGS: Mapping[str, str] = {
    "by": "--by",
    "memory": "--stage-memory",
    "machines": "--machine",
    "links": "--links",
    "micro_batches": "--micro-batches",
    "schedule": "--schedule",
    "optimizer": "--optimizer",
    "form": "--to",
}
_NO_MACHINE = "none; one for all, or a100,l4"
_ROWS = (
    (("stages", "stages", "as the memory says"), ("memory", "memory", "of a stage: 2G")),
    (("machines", "machines", _NO_MACHINE), ("links", "links", "10GB/s, or no time")),
    (("micro_batches", "micro-batch", "8"), ("at", "cut at", "layer*, or anywhere")),
)
"""Fields that are typed into, two a line: their ids, labels, and what stands in them where they are empty."""


class SplitDialog(FormDialog[SplitRequest]):
    """Asks how a model is to be cut.

    Args:
        last: What was typed last.
        machine: The machine that holds where none is typed; '' for none.
        module: Whether it is a module, whose stages may be modules, too.
    """

    TITLE_TEXT = "Split into stages"
    HINT = "↑↓←→ choose · Enter search · Esc cancel"

    def __init__(self, last: SplitRequest, machine: str = "", *, module: bool = False) -> None:
        super().__init__()
        self._last, self._machine, self._module = last, machine, module

    def fields(self) -> ComposeResult:
        """The fields."""
        last = self._last
        yield OptionField("balance", BALANCED, last.by, id="by")
        for row in _ROWS:
            with Horizontal(classes="form-row"):
                for at, (id, label, usual) in enumerate(row):
                    if id == "machines" and self._machine:
                        usual = f"{safe(self._machine)}, that of m"
                    text = f" {label}" if at else label
                    yield from self.pair_entry(text, getattr(last, id), usual, id)
        yield OptionField("schedule", _SCHEDULES, last.schedule, id="schedule")
        yield OptionField("optimizer", tuple(OPTIMIZERS), last.optimizer, id="optimizer")
        if self._module:
            yield OptionField("write as", _FORMS, last.form, id="form")

    def meaning(self) -> list[tuple[str, str]]:
        """What will happen."""
        request = self.answer()
        spec, named = request.spec, request.named_machines
        many = f"{spec.stages:,} stages" if spec.stages else "As few stages as the memory allows"
        if len(named) > 1 and len(named) != spec.stages:
            return [(f"{len(named):,} machines: name one for all stages, or one for each", "warn")]
        on = ", ".join(machine.name for machine in named) or self._machine
        sentence = f"{many}, the largest as small as can be{f', on {on}' if on else ''}."
        return [(sentence, "dim"), ("The cuts are searched anew.", "dim")]

    def answer(self) -> SplitRequest:
        """What the fields say."""
        typed = {id: self.text_of(id).strip() for row in _ROWS for id, _, _ in row}
        words = {str(field.id): field.value for field in self.query(OptionField)}
        request = SplitRequest(
            by=cast("SplitBy", words["by"]),
            schedule=words["schedule"],
            optimizer=cast("Optimizer", words["optimizer"]),
            form=cast("StageForm", words.get("form", self._last.form)),
            **typed,
        )
        _ = request.spec, request.named_machines
        return request


def _names(typed: str) -> list[str]:
    return [name for piece in typed.split(",") if (name := piece.strip())]


class SplitState(Struct):
    """The split of one state of the history, as it was left.

    Attributes:
        request: The settings.
        draft: The figures that the engine computed last.
        where: Where cuts may lie.
        rows: Rows of the tree, with the places of the cuts.
        layers: Layers of the tree, where they are not the model's: of the graph that a module becomes.
        moved: Whether cuts were moved away from the best ones.
        shape: Which rows of the tree were open, and the cursor.
        folder: Where the stages were written last.
        written: Cuts and form of the stages in `folder`; None where nothing was written.
        resumes: Places of the cuts in the saved session that is resumed.
    """

    request: SplitRequest = SplitRequest()
    draft: SplitDraft | None = None
    where: CutPlaces | None = None
    rows: StageRows | None = None
    layers: tuple[Layer, ...] | None = None
    moved: bool = False
    shape: TreeShape | None = None
    folder: str = ""
    written: tuple[tuple[int, ...], str] | None = None
    resumes: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Where the cuts lie now; `draft` may still have figures of other cuts."""
        return self.resumes if self.rows is None else tuple(self.rows.places)

    @classmethod
    def resumed(cls, saved: SavedSplit) -> SplitState:
        """The split of a saved session; with default settings where its request cannot be read."""
        try:
            request = convert(list(saved.request), SplitRequest)
        except ValidationError:
            return cls()
        return cls(request, moved=bool(saved.places), resumes=saved.places)

    def saved(self, state: int) -> SavedSplit:
        """The split as a session saves it; `state` is its place in the history."""
        return SavedSplit(state, tuple(self.request), self.places if self.moved else ())

    @property
    def cut_names(self) -> str:
        """First layers of the stages, between commas; '' unless cuts were moved."""
        return ",".join(cut.before for cut in self.draft.split.cuts) if self.draft and self.moved else ""

    def next_cut(self, unit: int, step: int) -> int:
        """The number of the cut after the cursor's unit (`step` 1), or before it (-1); no unit is -1."""
        assert self.rows is not None
        places, cut = self.rows.places, self.rows.chosen
        if unit in places:
            cut = places.index(unit) + step
        elif unit >= 0:
            cut = self.rows.stage_of(unit) - (step < 0)
        return cut % len(places)

    def moved_by(self, step: int) -> list[int] | None:
        """Places of the cuts after the chosen one moved by some layers; None where it cannot move.

        It stays between the cuts beside it.
        """
        assert self.rows is not None
        assert self.where is not None
        named, places, cut = self.where.named, list(self.rows.places), self.rows.chosen
        least = places[cut - 1] + 1 if cut else 1
        most = places[cut + 1] - 1 if cut + 1 < len(places) else len(self.where.layers) - 1
        at = bisect_left(named, places[cut])
        at += step - (step > 0 and (at == len(named) or named[at] != places[cut]))
        low, high = bisect_left(named, least), bisect_left(named, most + 1) - 1
        if low > high or named[max(low, min(high, at))] == places[cut]:
            return None
        places[cut] = named[max(low, min(high, at))]
        return places
