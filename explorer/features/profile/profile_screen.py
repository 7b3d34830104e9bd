"""Profile screens: the settings dialog, the profile of one model, and the comparison of two profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from explorer.base.units import many_text, seconds_text
from explorer.facts.profile.profile import OptimizeLevel, ProfileSpec, StepOptimizer, sort_times
from explorer.facts.training import OPTIMIZERS
from explorer.features.profile.profile_comparison_words import (
    build_change_table,
    build_wall_table,
    comparison,
    notes,
    sort_largest_first,
)
from explorer.features.profile.profile_words import (
    build_layer_table,
    build_other_blocks,
    build_profile_fields,
    profile_blocks,
)
from explorer.report.blocks import Line as Row
from explorer.report.present.shell.history_words import state_name
from explorer.settings.parse import parse_count, write_path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, escape_name
from explorer.tui.tree.overlay_rows import insert_in_front
from explorer.tui.tree.rows import MEASURED, list_columns
from explorer.tui.tree.table import DEFAULT_COLUMNS
from explorer.tui.widgets.link_view import Link, LinkView
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.facts.profile.profile import Profile
    from explorer.report.blocks import Block
    from explorer.tui.tree.model import TreeModel


_OPTIMIZE_WORDS = ("usual", "none", "basic", "extended", "all")
_OPTIMIZER_WORDS = ("no", *OPTIMIZERS)
"""Words of the first field, for a graph and for a module. The first word of both means the default."""
_NOT_COMPARED = "alone"
"""Word of the field `timed` if no other state is timed."""


class ProfileRequest(NamedTuple):
    """Text of the dialog fields; an empty field means the default.

    Attributes:
        level: Optimization level of the runtime, for a graph.
        training: Optimizer of a training step, for a module.
        batch, threads, steps: Positive whole numbers.
        seconds: Time limit of the runs, in seconds.
        device: Name of the device, 'cpu' or 'cuda'.
        input: Path of a file with inputs.
        beside: Index of another state of the history that is timed in turn with the current one.
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
        """The batch size, or None for the default."""
        return parse_count(self.batch, "batch", 1) if self.batch else None

    @property
    def state(self) -> int | None:
        """The index of the other state, or None to time one state."""
        return int(self.beside) if self.beside else None

    @property
    def spec(self) -> ProfileSpec:
        """The request as a `ProfileSpec`.

        Raises:
            Misuse: A field is not a number, or its number is too small.
        """
        defaults = ProfileSpec()
        seconds = parse_count(self.seconds, "time limit", 1) if self.seconds else defaults.time_limit
        return ProfileSpec(
            optimize=cast("OptimizeLevel | None", self.level or None),
            threads=parse_count(self.threads, "threads", 1) if self.threads else None,
            device=self.device or defaults.device,
            steps=parse_count(self.steps, "steps", 1) if self.steps else None,
            time_limit=float(seconds),
            input=self.input or None,
            train=bool(self.training),
            optimizer=cast("StepOptimizer", self.training or defaults.optimizer),
        )

    def words(self) -> list[str]:
        """Return the fields except `beside` as options of `explorer profile`, which times one state."""
        train = ["--train", "--optimizer", self.training] if self.training else []
        typed = [(flag, getattr(self, name)) for name, flag in _FLAGS.items()]
        return [*train, *(word for flag, text in typed if text for word in (flag, write_path_word(text)))]


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
"""Text fields, two per line: id, label, and placeholder for the default."""


class ProfileDialog(FormDialog[ProfileRequest]):
    """Ask for the settings of a profile.

    Args:
        last: Initial content of the fields.
        is_graph: Whether the model is an ONNX graph, which has optimization levels. A module can be trained
            instead.
        states: Names of the other states of the history, by index.
    """

    TITLE_TEXT = "Profile on this machine"
    HINT = "↑↓←→ choose · Enter start · Esc cancel"

    def __init__(self, last: ProfileRequest, *, is_graph: bool = True, states: Mapping[int, str]) -> None:
        super().__init__()
        self._last, self._is_graph = last, is_graph
        self._states = {"": _NOT_COMPARED, **{str(index): f"beside {name}" for index, name in states.items()}}

    def compose_fields(self) -> ComposeResult:
        """Yield the option fields and the text fields."""
        label, words, current = (
            ("optimize", _OPTIMIZE_WORDS, self._last.level)
            if self._is_graph
            else ("training", _OPTIMIZER_WORDS, self._last.training)
        )
        yield OptionField(label, words, current, id="choice")
        for row in _ROWS:
            with Horizontal(classes="form-row"):
                for position, (id, label, placeholder) in enumerate(row):
                    shown_label = f" {label}" if position else label
                    yield from self.compose_pair(shown_label, getattr(self._last, id), placeholder, id)
        if len(self._states) > 1:
            compared_state = self._states.get(self._last.beside, _NOT_COMPARED)
            yield OptionField("timed", tuple(self._states.values()), compared_state, id="beside")

    def describe(self) -> list[tuple[str, str]]:
        """Describe the work and the duration of the profile."""
        request = self._read_fields()
        spec = request.spec
        runs = many_text(spec.steps, "run") if spec.steps else "Runs until the median is sure within 5 %"
        turn_text = ", both in turn" if request.beside else ""
        step = "A training step: forward, backward, optimizer. " if spec.train else ""
        return [
            (f"{step}{runs}, or {spec.time_limit:g} s have passed{turn_text}.", "dim"),
            ("The screen does not change until then; Esc stops the run.", "dim"),
        ]

    def _read_fields(self) -> ProfileRequest:
        choice = self.query_one("#choice", OptionField)
        chosen_word = choice.value if choice.index else ""
        typed = {id: self.get_text(id).strip() for row in _ROWS for id, _, _ in row}
        state_indexes = [field.index for field in self.query("#beside").results(OptionField)]
        return ProfileRequest(
            level=chosen_word if self._is_graph else "",
            training="" if self._is_graph else chosen_word,
            beside=[*self._states][state_indexes[0]] if state_indexes else "",
            **typed,
        )

    def read_answer(self) -> ProfileRequest:
        """Return the content of the fields; check that they can be parsed."""
        request = self._read_fields()
        _ = request.spec, request.size
        return request


TIME_AGAIN = -1
"""Result of a screen instead of the id of a layer: time the model again."""
MAX_LAYERS, _MAX_GROUPS = 500, 20
"""Maximum numbers of layers and of groups in the list."""
MIN_NAME = 22
"""Minimum width of a name, in cells."""
_ORDERS = {
    "time": "most time first",
    "order": "as they run",
    "mac-rate": "most MACs a second first",
    "byte-rate": "most bytes a second first",
    "roof": "nearest to the roof first",
}

# fmt: off
PROFILE_KEYS = key_group(
    "In a profile",
    ("profile_sort", ("s",), "s", "Sort", "Sort by time, execution order, MACs/s, bytes/s or limit"),
    ("profile_again", ("r",), "r", "Profile again", "Choose the options, then time the model again"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "0.0012345 or 1.23 ms"),
    ("figures_copy", ("y",), "y", "Copy", "Copy the whole page as Markdown to the clipboard"),
)
# fmt: on


class ProfileScreen(ReportScreen[int]):
    """Show a profile; the result is the id of a layer to go to, or `TIME_AGAIN`.

    Args:
        fact: Profile to show.
        name: Name of the model.
        words: Options of `explorer profile` that repeat the measurement.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PROFILE_KEYS)
    FOOTER = (
        ("↑↓", "layer"), ("Enter", "to the layer"), ("s", "sort"), ("r", "time again"), ("e", "exact"),
        ("y", "copy as Markdown"), ("Esc", "back"),
    )  # fmt: skip
    VIEW = LinkView

    def __init__(self, fact: Profile, name: str, words: Sequence[str] = (), *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact, self._model, self._words = fact, name, words
        orders = [*_ORDERS] if fact.machine is not None else [*_ORDERS][:-1]
        self._orders, self._layer_order = orders, orders[0]

    def head(self) -> tuple[Line, Line]:
        """Build the title lines: the model, the time of a run, and the order of the layers."""
        fact = self._fact
        batch = "" if fact.batch is None else f", batch {fact.batch:,}"
        summary = f" {seconds_text(fact.wall_seconds)} a run{batch}; layers: {_ORDERS[self._layer_order]}"
        return ((" Profile", "strong"), (f"   {escape_name(self._model)}", "dim")), ((summary, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """Build the figures, a row for each layer, and the time outside of layers."""
        fact, exact = self._fact, self._exact
        layers = [layer for layer in sort_times(fact.layers, self._layer_order) if layer.seconds is not None]
        table, least = build_layer_table(fact, layers[:MAX_LAYERS]), max(MIN_NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([build_profile_fields(fact)], width - 1, exact)]
        if layers:
            lines += [BLANK, title_line(table, width - 1, exact, least)]
        lines += [
            Link.to(layer.layer, row_line(table, index, width - 1, exact, narrowest=least))
            for index, layer in enumerate(layers[:MAX_LAYERS])
        ]
        if len(layers) > MAX_LAYERS:
            lines += draw([Row(f"{MAX_LAYERS:,} of {len(layers):,} layers")], width - 1)
        return [*lines, *draw(build_other_blocks(fact, _MAX_GROUPS), width - 1, exact)]

    @on(LinkView.LinkFollowed)
    def _close_with_layer(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """Build the whole profile, in the displayed order."""
        layers = sort_times(self._fact.layers, self._layer_order)
        return profile_blocks(replace(self._fact, layers=layers), len(layers))

    def verb_words(self, source: str) -> Sequence[str]:
        """Return the command that prints this profile."""
        return ["profile", source, *self._words]

    def action_profile_sort(self) -> None:
        """Sort the layers by the next order."""
        self._layer_order = self._orders[(self._orders.index(self._layer_order) + 1) % len(self._orders)]
        self.show_report()

    def action_profile_again(self) -> None:
        """Close the screen and open the settings dialog."""
        self.dismiss(TIME_AGAIN)


# fmt: off
COMPARISON_KEYS = key_group(
    "In two profiles side by side",
    ("times_again", ("r",), "r", "Profile again", "Choose the options, then time the model again"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "0.0012345 or 1.23 ms"),
    ("figures_copy", ("y",), "y", "Copy", "Copy the whole page as Markdown to the clipboard"),
)
# fmt: on


class ProfileComparisonScreen(ReportScreen[int]):
    """Show two profiles in columns; the result is an index into `sort_largest_first(fact)`, or `TIME_AGAIN`.

    Args:
        fact: Comparison of the two profiles.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMPARISON_KEYS)
    FOOTER = (
        ("↑↓", "layer"), ("Enter", "to the layer"), ("r", "time again"), ("e", "exact"),
        ("y", "copy as Markdown"), ("Esc", "back"),
    )  # fmt: skip
    VIEW = LinkView

    def __init__(self, fact: ProfileComparison, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact = fact
        self._changes = sort_largest_first(fact)[:MAX_LAYERS]
        self._table = build_change_table(self._changes)

    def head(self) -> tuple[Line, Line]:
        """Build the title lines with the names of the two states."""
        before_name, after_name = map(escape_name, self._fact.names)
        names = ((" Profile  ", "strong"), (before_name, "text"), (" → ", "dim"), (after_name, "text"))
        summary = " timed in turn; layers: those that differ most first"
        return names, ((summary, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """Build the wall times, and a row for each layer."""
        fact, exact, least = self._fact, self._exact, max(MIN_NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([build_wall_table(fact)], width - 1, exact), BLANK]
        lines.append(title_line(self._table, width - 1, exact, least))
        lines += [
            Link.to(index, row_line(self._table, index, width - 1, exact, narrowest=least))
            for index in range(len(self._changes))
        ]
        hidden_count = len(fact.layers) - len(self._changes)
        count_note = [Row(f"{len(self._changes):,} of {len(fact.layers):,} rows")] if hidden_count else []
        return [*lines, *draw([*count_note, *notes(fact)], width - 1)]

    @on(LinkView.LinkFollowed)
    def _close_with_layer(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """Build the whole comparison."""
        return comparison(self._fact, None)

    def action_times_again(self) -> None:
        """Close the screen and open the settings dialog."""
        self.dismiss(TIME_AGAIN)


_LAST_COMPARISON = "compare_profiles"
"""Key under which the store keeps the last comparison, until the model is timed alone."""


class ProfileCommand(ScreenCommand):
    """Command that shows the profile of the current model, or asks how to measure it."""

    def run(self) -> None:
        """Show the last profile or comparison, or ask for settings if there is none."""
        if not self.context.ready():
            return
        profile = self.store.profile
        if profile is None:
            self._ask()
        elif (last_comparison := self.store.on_demand.answers.get(_LAST_COMPARISON)) is not None:
            self._show_comparison(last_comparison)
        else:
            self._show(profile)

    def _ask(self) -> None:
        history, last = self.store.history, ProfileRequest(*self.store.profiled)
        states: dict[int, str] = {}
        if history is not None:
            other_indices = (index for index in range(len(history.entries)) if index != history.current)
            states = {index: escape_name(self._name_state(index)) for index in other_indices}
            parent = history.parent(history.current)
            if self.store.profile is None and parent is not None and history.entries[parent].profile:
                # after a change, offer to compare with the state before it
                last = last._replace(beside=str(parent))
        dialog = ProfileDialog(last, is_graph=self.store.is_graph, states=states)
        self.context.ask(dialog, self._start)

    def _name_state(self, index: int) -> str:
        """Return the display name of a state: '0 as opened'."""
        assert self.store.history is not None
        return f"{index} {state_name(self.store.history.entries[index], index)}"

    def _start(self, request: ProfileRequest | None) -> None:
        if request is not None:
            self.store.profiled = tuple(request)
            self.context.start("Profile", self._time(request))

    async def _time(self, request: ProfileRequest) -> None:
        """Time the current state, alone or in turn with another state, and show the result."""
        options = {"spec": request.spec, "machine": find_machine(self.store)}
        answers, other_state = self.store.on_demand.answers, request.state
        if other_state is None:
            await self.jobs.run("profiling", "profile", batch=request.size, **options)
            answers.pop(_LAST_COMPARISON, None)
        else:
            states = sorted((other_state, self.store.history_place))
            sizes, names = (
                (request.size, request.size),
                (self._name_state(states[0]), self._name_state(states[1])),
            )
            fact = await self.jobs.run("profiling", "compare_profiles", *states, batches=sizes, **options)
            answers[_LAST_COMPARISON] = replace(fact, names=names)
        await self.context.load_history()
        profile = self.store.profile
        assert profile is not None, "the session keeps what it measured"
        new_columns = MEASURED if profile.machine is not None else MEASURED[:2]  # the last needs a machine
        self.panes.rearrange(lambda model: _show_columns(model, new_columns))
        self.store.notify("history", "answers")
        self.store.say(f"{seconds_text(profile.wall_seconds)} a run; % shows where it goes")
        self.run()

    def _show(self, fact: Profile) -> None:
        words = ProfileRequest(*self.store.profiled).words()
        page = ProfileScreen(fact, self.store.stem, words, exact=self.store.exact)
        self.context.ask(page, self._follow)

    def _follow(self, layer: int | None) -> None:
        if layer == TIME_AGAIN:
            self._ask()
        elif layer is not None:
            self.panes.move_to_layer(layer)

    def _show_comparison(self, fact: ProfileComparison) -> None:
        def on_closed(index: int | None) -> None:
            if index == TIME_AGAIN:
                self._ask()
            elif index is not None:
                change = sort_largest_first(fact)[index]
                path = change.after_path if fact.after == self.store.profile else change.before_path
                self.context.go_to_layer(path or change.path)

        self.context.ask(ProfileComparisonScreen(fact, exact=self.store.exact), on_closed)


def _show_columns(model: TreeModel, new_columns: tuple[str, ...]) -> None:
    """Put the profile columns of the layer tree before the other figures."""
    available = list_columns(model)
    model.set_columns(
        insert_in_front(
            model, [name for name in model.columns if name in available] or DEFAULT_COLUMNS, new_columns
        )
    )
