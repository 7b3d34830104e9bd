"""Settings of a split, the dialog that asks for them, and the state of the Split screen.

A unit is an operator of the graph; cuts are between units. A place is the number of units before a cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec import Struct, ValidationError, convert
from textual.app import ComposeResult
from textual.containers import Horizontal

from explorer.base.compat import build_type
from explorer.base.errors import Misuse
from explorer.facts.roofline import Machine
from explorer.facts.split.split import BALANCED, SplitBy, SplitSpec, StageForm
from explorer.facts.training import OPTIMIZERS, Optimizer
from explorer.process.saved_sessions import SavedSplit
from explorer.settings import machines
from explorer.settings.parse import parse_card, parse_count
from explorer.settings.rates import parse_rate
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import escape_name
from explorer.tui.tree.stages import StageRows
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.draft import CutPlaces, SplitDraft
    from explorer.tui.tree.model import TreeShape

_SCHEDULES = ("1f1b", "gpipe")
_FORMS = ("onnx", "torch")


class SplitRequest(NamedTuple):
    """Text of the dialog fields; an empty field means the default.

    Attributes:
        stages, micro_batches: Number of stages and of micro-batches.
        memory: Memory limit of a stage in bytes. It sets the number of stages if `stages` is empty.
        at: Globs of modules, separated by commas. Cuts are searched only where a matching module begins or
            ends; '' allows any place.
        machines: Machine names, separated by commas: one for all stages, or one for each.
        links: Bandwidth between stages, in bytes per second.
        form: File format of the stages of a module.
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
        """The request as a `SplitSpec`.

        Raises:
            Misuse: A field cannot be parsed, or no field sets the number of stages.
        """
        machine_count = len(_parse_names(self.machines))
        if not self.stages and not self.memory and machine_count < 2:
            raise Misuse("the number of stages is missing", hint="type a number, or the memory of a stage")
        defaults = SplitSpec()
        micro_batches_text, default_stages = self.micro_batches, machine_count if machine_count > 1 else None
        return SplitSpec(
            stages=parse_count(self.stages, "stages", 2) if self.stages else default_stages,
            by=self.by,
            stage_memory=parse_card(self.memory, "memory") if self.memory else None,
            at=tuple(_parse_names(self.at)),
            links=parse_rate(self.links, "links") if self.links else None,
            micro_batches=parse_count(micro_batches_text, "micro-batches", 1)
            if micro_batches_text
            else defaults.micro_batches,
            schedule="gpipe" if self.schedule == "gpipe" else "1f1b",
            optimizer=self.optimizer,
        )

    @property
    def named_machines(self) -> tuple[Machine, ...]:
        """The machines that the user named.

        Raises:
            Misuse: A machine does not exist.
        """
        return tuple([machines.find(name, None, None) for name in _parse_names(self.machines)])

    def words(self, cuts: str = "", machine: str = "") -> list[str]:
        """Return the options of `explorer split` that make the same split.

        Args:
            cuts: First layers of the stages, separated by commas, if the user moved cuts; else ''.
            machine: Name of the session's machine, which is used if the request names none.
        """
        defaults = SplitRequest()
        typed = {**self._asdict(), "machines": ",".join(_parse_names(self.machines)) or machine}
        options = [] if cuts or not self.stages else ["-n", self.stages]
        options += [
            word
            for name, flag in _FLAGS.items()
            if typed[name] and typed[name] != getattr(defaults, name)
            for word in (flag, typed[name])
        ]
        options += [word for glob in _parse_names(self.at) for word in ("--at", glob)] * (not cuts)
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
"""Text fields, two per line: id, label and placeholder."""


class SplitDialog(FormDialog[SplitRequest]):
    """Ask for the settings of a split.

    Args:
        last: Initial content of the fields.
        machine: Name of the session's machine, used if the field is empty; '' if none is set.
        is_module: Whether the model is a torch module, whose stages can be modules, too.
    """

    TITLE_TEXT = "Split into stages"
    HINT = "↑↓←→ choose · Enter search · Esc cancel"

    def __init__(self, last: SplitRequest, machine: str = "", *, is_module: bool = False) -> None:
        super().__init__()
        self._last, self._machine, self._is_module = last, machine, is_module

    def compose_fields(self) -> ComposeResult:
        """Yield the option fields and the text fields."""
        last = self._last
        yield OptionField("balance", BALANCED, last.by, id="by")
        for row in _ROWS:
            with Horizontal(classes="form-row"):
                for position, (id, label, placeholder) in enumerate(row):
                    if id == "machines" and self._machine:
                        placeholder = f"{escape_name(self._machine)}, that of m"
                    text = f" {label}" if position else label
                    yield from self.compose_pair(text, getattr(last, id), placeholder, id)
        yield OptionField("schedule", _SCHEDULES, last.schedule, id="schedule")
        yield OptionField("optimizer", tuple(OPTIMIZERS), last.optimizer, id="optimizer")
        if self._is_module:
            yield OptionField("write as", _FORMS, last.form, id="form")

    def describe(self) -> list[tuple[str, str]]:
        """Describe the split that the current settings make."""
        request = self.read_answer()
        spec, machines_named = request.spec, request.named_machines
        count_text = f"{spec.stages:,} stages" if spec.stages else "As few stages as the memory allows"
        if len(machines_named) > 1 and len(machines_named) != spec.stages:
            return [(f"{len(machines_named):,} machines: name one for all stages, or one for each", "warn")]
        machine_names = ", ".join(machine.name for machine in machines_named) or self._machine
        where_text = f", on {machine_names}" if machine_names else ""
        sentence = f"{count_text}, with the largest stage as small as possible{where_text}."
        return [(sentence, "dim"), ("The best cuts are searched again.", "dim")]

    def read_answer(self) -> SplitRequest:
        """Return the content of the fields; check that they can be parsed."""
        typed = {id: self.get_text(id).strip() for row in _ROWS for id, _, _ in row}
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


def _parse_names(typed: str) -> list[str]:
    return [name for part in typed.split(",") if (name := part.strip())]


class SplitState(Struct):
    """State of the Split screen for one state of the history, kept while the screen is closed.

    Attributes:
        request: Settings of the split.
        draft: Latest figures that the engine computed.
        where: Allowed places of the cuts, and the layer row of each unit.
        rows: Rows of the layer tree with the places of the cuts.
        layers: Layers of the exported graph if the model is a module, else None.
        moved: Whether the user moved cuts away from the best places.
        shape: Saved open rows and cursor of the layer tree.
        folder: Folder of the last written stages.
        written: Places of the cuts and file format of the stages in `folder`; None if no stages were written.
        resumes: Places of the cuts read from a saved session, used until `rows` is set.
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
        """Current places of the cuts. `draft` may still have the figures of previous places."""
        return self.resumes if self.rows is None else tuple(self.rows.places)

    @classmethod
    def resumed(cls, saved: SavedSplit) -> SplitState:
        """Restore the split of a saved session. If its request cannot be read, return default settings."""
        try:
            request = convert(list(saved.request), build_type(SplitRequest))
        except ValidationError:
            return cls()
        return cls(request, moved=bool(saved.places), resumes=saved.places)

    def saved(self, state: int) -> SavedSplit:
        """Convert to the form that a session saves; `state` is the index of the state in the history."""
        return SavedSplit(state, tuple(self.request), self.places if self.moved else ())

    @property
    def cut_names(self) -> str:
        """First layers of the stages, separated by commas, or '' if no cut was moved."""
        return ",".join(cut.before for cut in self.draft.split.cuts) if self.draft and self.moved else ""

    def next_cut(self, unit: int, step: int) -> int:
        """Return the index of the cut after (`step` 1) or before (`step` -1) unit `unit`.

        If `unit` is -1, return the chosen cut.
        """
        assert self.rows is not None
        places, cut = self.rows.places, self.rows.selected_cut
        if unit in places:
            cut = places.index(unit) + step
        elif unit >= 0:
            cut = self.rows.find_stage(unit) - (step < 0)
        return cut % len(places)

    def move_cut(self, step: int) -> list[int] | None:
        """Return the places of the cuts after moving the chosen cut by `step` layers.

        The cut stays between its neighboring cuts. Return None if it cannot move.
        """
        assert self.rows is not None
        assert self.where is not None
        allowed, places, cut = self.where.named, list(self.rows.places), self.rows.selected_cut
        first_place = places[cut - 1] + 1 if cut else 1
        last_place = places[cut + 1] - 1 if cut + 1 < len(places) else len(self.where.layers) - 1
        position = bisect_left(allowed, places[cut])
        position += step - (step > 0 and (position == len(allowed) or allowed[position] != places[cut]))
        low, high = bisect_left(allowed, first_place), bisect_left(allowed, last_place + 1) - 1
        if low > high or allowed[max(low, min(high, position))] == places[cut]:
            return None
        places[cut] = allowed[max(low, min(high, position))]
        return places
