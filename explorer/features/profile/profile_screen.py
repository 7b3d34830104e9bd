"""Profile screens: the dialog, the profile of one model, and two profiles side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from explorer.base.units import seconds_text
from explorer.facts.profile.profile import OptimizeLevel, ProfileSpec, StepOptimizer, ordered
from explorer.facts.training import OPTIMIZERS
from explorer.features.profile.profile_comparison_words import (
    change_table,
    comparison,
    largest_first,
    notes,
    walls,
)
from explorer.features.profile.profile_words import beside_layers, figures, layer_table, profile_blocks
from explorer.report.blocks import Line as Row
from explorer.report.present.shell.history_words import state_name
from explorer.settings.parse import parse_count, path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.state.hardware import known_machine
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.tree.overlay_rows import in_front
from explorer.tui.tree.rows import MEASURED, columns_of
from explorer.tui.tree.table import SHOWN
from explorer.tui.widgets.link_view import Link, LinkView
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.facts.profile.profile import Profile
    from explorer.report.blocks import Block
    from explorer.tui.tree.model import TreeModel


_LEVELS = ("usual", "none", "basic", "extended", "all")
_STEPS = ("no", *OPTIMIZERS)
_ALONE = "alone"


class ProfileRequest(NamedTuple):
    """The typed fields; an empty one means the default.

    Attributes:
        level: Level of optimization, for a graph.
        training: The optimizer of a training step, for a module.
        batch, threads, steps: Numbers.
        seconds: Time limit for the runs.
        device: 'cpu', 'cuda'.
        input: A file with inputs.
        beside: Number of another state of the history, timed in turn with this one.
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
            Misuse: A field is not a number, or too small.
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
        """The fields as options of `explorer profile`."""
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
"""Text fields, two a line: id, label, and the placeholder for the default."""


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
        label, words, current = (
            ("optimize", _LEVELS, self._last.level)
            if self._graph
            else ("training", _STEPS, self._last.training)
        )
        yield OptionField(label, words, current, id="choice")
        for row in _ROWS:
            with Horizontal(classes="form-row"):
                for at, (id, label, usual) in enumerate(row):
                    shown_label = f" {label}" if at else label
                    yield from self.pair_entry(shown_label, getattr(self._last, id), usual, id)
        if len(self._states) > 1:
            beside = self._states.get(self._last.beside, _ALONE)
            yield OptionField("timed", tuple(self._states.values()), beside, id="beside")

    def meaning(self) -> list[tuple[str, str]]:
        """What Enter will do, and how long it takes."""
        request = self._typed()
        spec = request.spec
        runs = f"{spec.steps:,} runs" if spec.steps else "Runs until the median is sure within 5 %"
        turn = ", both in turn" if request.beside else ""
        step = "A training step: forward, backward, optimizer. " if spec.train else ""
        return [
            (f"{step}{runs}, or {spec.time_limit:g} s have passed{turn}.", "dim"),
            ("The screen rests meanwhile; Esc stops.", "dim"),
        ]

    def _typed(self) -> ProfileRequest:
        choice = self.query_one("#choice", OptionField)
        picked = choice.value if choice.index else ""
        typed = {id: self.text_of(id).strip() for row in _ROWS for id, _, _ in row}
        state_indexes = [field.index for field in self.query("#beside").results(OptionField)]
        return ProfileRequest(
            level=picked if self._graph else "",
            training="" if self._graph else picked,
            beside=[*self._states][state_indexes[0]] if state_indexes else "",
            **typed,
        )

    def answer(self) -> ProfileRequest:
        """What the fields say."""
        found = self._typed()
        _ = found.spec, found.size
        return found


AGAIN = -1
"""Answer in place of a layer: time the model again."""
MOST, _GROUPS = 500, 20
"""Most layers and groups in the list."""
NAME = 22
"""Least width of a name, in cells."""
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
    ("profile_sort", ("s",), "s", "Sort", "By time, as they run, by MACs or bytes a second, by the roof"),
    ("profile_again", ("r",), "r", "Time again", "Ask how, and time the model once more"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileScreen(ReportScreen[int]):
    """Shows a profile; answers with the id of a layer to go to, or `AGAIN`.

    Args:
        fact: It.
        name: What the model is called.
        words: Options with which the verb measures the same.
        exact: Exact or rounded numbers.
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
        known = [*_ORDERS] if fact.machine is not None else [*_ORDERS][:-1]
        self._orders, self._by = known, known[0]

    def head(self) -> tuple[Line, Line]:
        """The time of a run, and how the layers are ordered."""
        fact = self._fact
        batch = "" if fact.batch is None else f", batch {fact.batch:,}"
        said = f" {seconds_text(fact.wall_seconds)} a run{batch}; layers: {_ORDERS[self._by]}"
        return ((" Profile", "strong"), (f"   {safe(self._model)}", "dim")), ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """The figures, a row for each layer, and time outside of layers."""
        fact, exact = self._fact, self._exact
        layers = [layer for layer in ordered(fact.layers, self._by) if layer.seconds is not None]
        table, least = layer_table(fact, layers[:MOST]), max(NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([figures(fact)], width - 1, exact)]
        if layers:
            lines += [BLANK, title_line(table, width - 1, exact, least)]
        lines += [
            Link.to(layer.layer, row_line(table, at, width - 1, exact, narrowest=least))
            for at, layer in enumerate(layers[:MOST])
        ]
        if len(layers) > MOST:
            lines += draw([Row(f"{MOST:,} of {len(layers):,} layers")], width - 1)
        return [*lines, *draw(beside_layers(fact, _GROUPS), width - 1, exact)]

    @on(LinkView.LinkFollowed)
    def _followed(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """The whole profile, in the shown order."""
        layers = ordered(self._fact.layers, self._by)
        return profile_blocks(replace(self._fact, layers=layers), len(layers))

    def verb_words(self, source: str) -> Sequence[str]:
        """The command that prints this profile."""
        return ["profile", source, *self._words]

    def action_profile_sort(self) -> None:
        """The next order."""
        self._by = self._orders[(self._orders.index(self._by) + 1) % len(self._orders)]
        self.show_report()

    def action_profile_again(self) -> None:
        """Leave for the dialog."""
        self.dismiss(AGAIN)


# fmt: off
COMPARISON_KEYS = key_group(
    "In two profiles side by side",
    ("times_again", ("r",), "r", "Time again", "Ask how, and time the model once more"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileComparisonScreen(ReportScreen[int]):
    """Shows two profiles side by side; answers with an index into `largest_first(fact)`, or `AGAIN`.

    Args:
        fact: What was measured.
        exact: Exact or rounded numbers.
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
        self._changes = largest_first(fact)[:MOST]
        self._table = change_table(self._changes)

    def head(self) -> tuple[Line, Line]:
        """The title: the names of the two states."""
        before, after = map(safe, self._fact.names)
        names = ((" Profile  ", "strong"), (before, "text"), (" → ", "dim"), (after, "text"))
        said = " timed in turn; layers: those that differ most first"
        return names, ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """The wall times, and a row for each layer."""
        fact, exact, least = self._fact, self._exact, max(NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([walls(fact)], width - 1, exact), BLANK]
        lines.append(title_line(self._table, width - 1, exact, least))
        lines += [
            Link.to(at, row_line(self._table, at, width - 1, exact, narrowest=least))
            for at in range(len(self._changes))
        ]
        rest = len(fact.layers) - len(self._changes)
        more = [Row(f"{len(self._changes):,} of {len(fact.layers):,} rows")] if rest else []
        return [*lines, *draw([*more, *notes(fact)], width - 1)]

    @on(LinkView.LinkFollowed)
    def _followed(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """All of it."""
        return comparison(self._fact, None)

    def action_times_again(self) -> None:
        """Leave for the dialog."""
        self.dismiss(AGAIN)


_BESIDE = "compare_profiles"
"""Key of the last comparison of the shown model, kept until that model is timed alone."""


class ProfileCommand(ScreenCommand):
    """Shows the profile of the current model, or asks how to time the model."""

    def run(self) -> None:
        """Show the profile, or ask how to time the model."""
        if not self.context.ready():
            return
        profile = self.store.profile
        if profile is None:
            self._ask()
        elif (beside := self.store.on_demand.answers.get(_BESIDE)) is not None:
            self._show_both(beside)
        else:
            self._show(profile)

    def _ask(self) -> None:
        history, last = self.store.history, ProfileRequest(*self.store.profiled)
        states: dict[int, str] = {}
        if history is not None:
            others = (at for at in range(len(history.entries)) if at != history.current)
            states = {at: safe(self._name(at)) for at in others}
            before = history.parent(history.current)
            if self.store.profile is None and before is not None and history.entries[before].profile:
                last = last._replace(
                    beside=str(before)
                )  # after a change, offer to compare with the state before it
        dialog = ProfileDialog(last, graph=self.store.by_value, states=states)
        self.context.ask(dialog, self._start)

    def _name(self, at: int) -> str:
        """What a state is called: '0 as opened'."""
        assert self.store.history is not None
        return f"{at} {state_name(self.store.history.entries[at], at)}"

    def _start(self, request: ProfileRequest | None) -> None:
        if request is not None:
            self.store.profiled = tuple(request)
            self.context.start("Profile", self._time(request))

    async def _time(self, request: ProfileRequest) -> None:
        options = {"spec": request.spec, "machine": known_machine(self.store)}
        answers, other_state = self.store.on_demand.answers, request.state
        if other_state is None:
            await self.jobs.run("profiling", "profile", batch=request.size, **options)
            answers.pop(_BESIDE, None)
        else:
            states = sorted((other_state, self.store.history_place))
            sizes, names = (request.size, request.size), (self._name(states[0]), self._name(states[1]))
            fact = await self.jobs.run("profiling", "compare_profiles", *states, batches=sizes, **options)
            answers[_BESIDE] = replace(fact, names=names)
        await self.context.take_history()
        profile = self.store.profile
        assert profile is not None, "the session keeps what it measured"
        fresh = MEASURED if profile.machine is not None else MEASURED[:2]
        self.panes.rearrange(lambda model: _show_columns(model, fresh))
        self.store.notify("history", "found")
        self.store.say(f"{seconds_text(profile.wall_seconds)} a run; % shows where it goes")
        self.run()

    def _show(self, fact: Profile) -> None:
        words = ProfileRequest(*self.store.profiled).words()
        page = ProfileScreen(fact, self.store.stem, words, exact=self.store.exact)
        self.context.ask(page, self._follow)

    def _follow(self, layer: int | None) -> None:
        if layer == AGAIN:
            self._ask()
        elif layer is not None:
            self.panes.to_layer(layer)

    def _show_both(self, fact: ProfileComparison) -> None:
        def then(at: int | None) -> None:
            if at == AGAIN:
                self._ask()
            elif at is not None:
                change = largest_first(fact)[at]
                path = change.after_path if fact.after == self.store.profile else change.before_path
                self.context.go_to_layer(path or change.path)

        self.context.ask(ProfileComparisonScreen(fact, exact=self.store.exact), then)


def _show_columns(model: TreeModel, fresh: tuple[str, ...]) -> None:
    """Puts the columns of a profile in front of the other figures."""
    known = columns_of(model)
    model.set_columns(in_front(model, [name for name in model.columns if name in known] or SHOWN, fresh))
