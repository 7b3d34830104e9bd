"""The store: the whole state of the main screen. Commands set it and widgets subscribe to it.

Widgets read the store, not each other. Code that sets a field calls `notify` with the topic of the field, and
the widgets that subscribed to this topic draw again. The store works without a terminal.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from explorer.tui.state.jobs import Jobs
from explorer.tui.state.jumps import Jumps
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.facts import Analysis, Diff, History, HistoryEntry, OpStat, TileSpec
    from explorer.facts.cost import Hardware
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.edges import RowEdges
    from explorer.facts.profile.profile import Profile
    from explorer.facts.quantize import QuantizeRequest
    from explorer.facts.roofline import Machine
    from explorer.facts.training import Training, TrainingStepSpec
    from explorer.facts.values import Activations, Weights
    from explorer.process.client import EngineProcess, TreePreview
    from explorer.process.saved_sessions import SavedSplit

Topic = Literal[
    "model", "history", "answers", "numbers", "layer", "query", "tab", "focus", "jobs", "message", "rail",
    "machine",
]  # fmt: skip
"""Parts of the state that can change:

- `model`: the visible model
- `history`: the history of states
- `answers`: data computed on demand
- `numbers`: exact or rounded numbers
- `layer`: the layer under the cursor, or the rows of the tree
- `query`: the filter
- `tab`: the visible tab
- `focus`: the focus or the size
- `jobs`: the foreground job
- `message`: the message in the status line
- `rail`: whether a rail is shown
- `machine`: the machine in use
"""


class OnDemandCache(Struct):
    """Data that was computed on demand for the visible model. Each model state has its own cache.

    Attributes:
        answers: Answers of the engine by ID of the tab or screen.
        refused: Reason why a tab shows no answer, by ID of the tab. Pressing the tab's key retries.
        waiting_tabs: IDs of the tabs that are waiting for an answer.
        outdated_answers: Earlier answers by ID of the tab, shown dimmed until new answers arrive.
        training: Answer for a training step, or None.
        weights, activations: By path of the layer: the answer, and how many tensors or layers there are.
        search_results: IDs of the layers of the last search, in tree order.
        connections: Connections by layer ID.
        connecting: ID of the layer whose connections are being requested, or -1.
        edges: Pending request for the edges of the model, or None.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    waiting_tabs: set[str] = field(default_factory=set)
    outdated_answers: dict[str, Any] = field(default_factory=dict)
    training: Training | None = None
    weights: dict[str, tuple[Weights, int]] = field(default_factory=dict)
    activations: dict[str, tuple[Activations, int]] = field(default_factory=dict)
    search_results: list[int] = field(default_factory=list)
    connections: dict[int, Connections] = field(default_factory=dict)
    connecting: int = -1
    edges: Awaitable[RowEdges] | None = None


OPENING = "opening…"
"""Note while the model is being opened."""


class ScreenStore:
    """State of the main screen.

    Args:
        source: Source of the model, as typed by the user.
        engine: Engine process of the model.
        remote: Whether the terminal is connected over SSH.

    Attributes:
        analysis, ops: Analysis and operator statistics of the visible state; None until the engine answers.
        outline: Rows of the header, which are shown until there is an analysis, or None.
        changes: Differences of the visible state from the model as opened, or None before a comparison.
        history: States of the session, or None before they were requested.
        tile_spec, quantize_request: Last input of the dialogs for tiling and quantizing, or None.
        tab, query: ID of the visible tab, and text of the filter.
        exact, rail: Whether numbers are written out, and whether the user wants the rail.
        note: Reason that no model is visible, or ''.
        failure: Full error message if the model could not be opened, or ''.
        values_path: Path of the layer that values were last requested for; '' after the cursor moved.
        bookmarks: Paths of the bookmarked layers.
        message, last_command: Message about the last action, or the command that repeats it.
        hardware, machine: Machine in use, and its rates for the roofline. `state.hardware` sets both.
        overlays: Paths of files with external figures.
        beside: Source of the model to compare with, or ''.
        sensitivity: Results of format sweeps by index of the state in the history.
        splits: Splits by index of the state in the history.
        evaluated, profiled: Last input of the dialogs for evaluating and profiling.
        requested_training: Last requested training step, or None.
    """

    def __init__(self, source: str, engine: EngineProcess, *, remote: bool = False) -> None:
        self.source, self.remote = source, remote
        self.jobs = Jobs(engine, lambda: self.notify("jobs"))
        self.analysis: Analysis | None = None
        self.outline: TreePreview | None = None
        self.ops: tuple[OpStat, ...] | None = None
        self.changes: Diff | None = None
        self.history: History | None = None
        self.on_demand = OnDemandCache()
        self.jumps = Jumps()
        self.bookmarks: list[str] = []
        self.overlays: tuple[str, ...] = ()
        self.beside = ""
        self.machine: Machine | None = None
        self.hardware: Hardware | None = None
        self.tile_spec: TileSpec | None = None
        self.quantize_request: QuantizeRequest | None = None
        self.sensitivity: dict[int, Any] = {}
        self.splits: dict[int, Any] = {}
        self.saved_splits: dict[int, SavedSplit] = {}
        self.requested_training: TrainingStepSpec | None = None
        self.evaluated = "", "", ""
        self.profiled: tuple[str, ...] = ()
        self.requested_statistics: tuple[str, ...] = ()
        self.tab = "layer"
        self.exact = False
        self.rail = True
        self.query = ""
        self.values_path = ""
        self.note = OPENING
        self.failure = ""
        self.message = self.last_command = ""
        self._watchers: dict[Topic, list[Callable[[], object]]] = {}

    def watch(self, call: Callable[[], object], *topics: Topic) -> None:
        """Subscribe `call` to changes of `topics`."""
        for topic in topics:
            self._watchers.setdefault(topic, []).append(call)

    def notify(self, *topics: Topic) -> None:
        """Call the subscribers of `topics`, each once, in the order of subscription."""
        for call in dict.fromkeys(call for topic in topics for call in self._watchers.get(topic, ())):
            call()

    def say(self, message: str, command: str = "") -> None:
        """Show a message in the status line, or the command that repeats the last action."""
        self.message, self.last_command = message, command
        self.notify("message")

    def forget_message(self) -> None:
        """Remove the message from the status line. The command that repeats the last action stays."""
        if self.message:
            self.say("", self.last_command)

    # the visible model

    @property
    def is_opening(self) -> bool:
        """Whether the model is being opened."""
        return self.analysis is None and self.note == OPENING

    @property
    def can_compare(self) -> bool:
        """Whether the visible state differs from the model as opened."""
        return self.history is not None and self.history.current > 0

    @property
    def entry(self) -> HistoryEntry | None:
        """The visible state of the history, or None."""
        return self.history.entries[self.history.current] if self.history is not None else None

    @property
    def history_place(self) -> int:
        """Index of the visible state in the history."""
        return self.history.current if self.history is not None else 0

    @property
    def profile(self) -> Profile | None:
        """Last profile of the visible state, or None."""
        return self.entry.profile if self.entry is not None else None

    @property
    def is_graph(self) -> bool:
        """Whether the model is a graph: its tensors have names, so matmuls are found by their output."""
        return self.analysis is not None and self.analysis.info.model.is_graph

    @property
    def state_note(self) -> str:
        """Name of the visible state and whether it is saved; '' for the model as opened."""
        entry = self.entry
        if entry is None or not self.can_compare:
            return ""
        saved = f"saved as {os.path.basename(entry.saved)}" if entry.saved else "not saved"
        return f"{escape_name(entry.label)} · {escape_name(saved)}"

    @property
    def stem(self) -> str:
        """Base name for files that are written from the model."""
        return os.path.basename(self.source.rstrip(os.sep)).removesuffix(".onnx").replace(":", "_")

    def use_machine(self, machine: Machine | None) -> None:
        """Set the machine of the roofline, and mark answers for another machine as outdated."""
        self.machine = machine
        cache = self.on_demand
        if "roofline" in cache.answers:
            cache.outdated_answers["roofline"] = cache.answers.pop("roofline")
        self.on_demand.refused.pop("roofline", None)
        self.notify("machine")
