"""The store: all state of the main screen, which commands set and widgets watch.

A widget draws from it and never from another widget's fields; who sets a field says so, and those that
watch draw again. No terminal is needed to read or to set it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from explorer.tui.state.jobs import Jobs, RunningJob
from explorer.tui.state.jumps import Jumps
from explorer.tui.text.lines import safe

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
    "model", "history", "found", "numbers", "layer", "query", "tab", "focus", "jobs", "said", "rail",
    "machine",
]  # fmt: skip
"""What can change: the model on show, the history, what was computed on demand, the form of the numbers,
the layer under the cursor or the tree's rows, the filter, the tab, the focus or the size, the job, a word,
whether a rail is wanted, the machine."""


class OnDemandCache(Struct):
    """What was computed on demand for the model on show; another model has another one.

    Attributes:
        answers: What tabs and screens asked the engine for, by their ids.
        refused: Tab to the reason why it shows nothing; asked for again when its key is pressed.
        asking: Tabs whose answer is on its way.
        last: Answers that hold no more; they stay, dimmed, until the next are there.
        training: A training step.
        weights, activations: By path of the layer asked for: the answer, and how many tensors or layers
            there are in all.
        found: Layers that were searched for, in the order of the tree.
        connections: By id of the layer; `connecting` is the one that is asked for, -1 for none.
        edges: Those of the model while they are on their way and nobody waits for them.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    asking: set[str] = field(default_factory=set)
    last: dict[str, Any] = field(default_factory=dict)
    training: Training | None = None
    weights: dict[str, tuple[Weights, int]] = field(default_factory=dict)
    activations: dict[str, tuple[Activations, int]] = field(default_factory=dict)
    found: list[int] = field(default_factory=list)
    connections: dict[int, Connections] = field(default_factory=dict)
    connecting: int = -1
    edges: Awaitable[RowEdges] | None = None


class ScreenStore:
    """What is known and what is on show.

    Args:
        source: What the user asked for.
        engine: Answers.
        remote: Over SSH.

    Attributes:
        note: Why there is no model on show.
        failure: Why it could not be opened, in full; empty if it was not tried or could be.
        asked_path: The layer whose values were asked for last, until the cursor moves.
        bookmarks: Paths of layers.
        said, last_command: A word about what was done last, or the command that does it again.
        refused_job: The job that ran when another was asked for.
        hardware, machine: That was chosen last, for all that needs one, and as a roofline sees it; set by
            `state.hardware`.
        overlays: Files of figures from outside.
        beside: The model that is set beside this one; empty for none.
        sensitivity: What was tried on a state of the history, and how it was shown.
        splits: How a state of the history was cut into stages.
        evaluated, profiled: What was typed last for an evaluation and a profile.
        training_asked: The training step that was asked for last.
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
        self.training_asked: TrainingStepSpec | None = None
        self.evaluated = "", "", ""
        self.profiled: tuple[str, ...] = ()
        self.asked_statistics: tuple[str, ...] = ()
        self.tab = "layer"
        self.exact = False
        self.rail = True
        self.query = ""
        self.asked_path = ""
        self.note = "opening…"
        self.failure = ""
        self.message = self.last_command = ""
        self.refused_job: RunningJob | None = None
        self._watchers: dict[Topic, list[Callable[[], object]]] = {}

    def watch(self, call: Callable[[], object], *topics: Topic) -> None:
        """Call `call` whenever one of `topics` has changed."""
        for topic in topics:
            self._watchers.setdefault(topic, []).append(call)

    def notify(self, *topics: Topic) -> None:
        """Tell those who watch `topics`, each once, in the order in which they began to watch."""
        for call in dict.fromkeys(call for topic in topics for call in self._watchers.get(topic, ())):
            call()

    def say(self, said: str, command: str = "") -> None:
        """A word in the status line, or the command that does again what was done."""
        self.message, self.last_command = said, command
        self.notify("said")

    # the model

    @property
    def can_compare(self) -> bool:
        """Whether the current model is another one than was opened."""
        return self.history is not None and self.history.current > 0

    @property
    def entry(self) -> HistoryEntry | None:
        """The state of the history that is on show."""
        return self.history.entries[self.history.current] if self.history is not None else None

    @property
    def history_place(self) -> int:
        """Which state of the history is on show."""
        return self.history.current if self.history is not None else 0

    @property
    def profile(self) -> Profile | None:
        """How long the model on show ran when it was last timed."""
        return self.entry.profile if self.entry is not None else None

    @property
    def by_value(self) -> bool:
        """Whether tensors have names of their own, by which products are found."""
        return self.analysis is not None and self.analysis.info.model.is_graph

    @property
    def state_note(self) -> str:
        """Which state of the history is shown, and whether it is saved."""
        entry = self.entry
        if entry is None or not self.can_compare:
            return ""
        saved = f"saved as {os.path.basename(entry.saved)}" if entry.saved else "not saved"
        return f"{safe(entry.label)} · {safe(saved)}"

    @property
    def stem(self) -> str:
        """What files made of the model are called."""
        return os.path.basename(self.source.rstrip(os.sep)).removesuffix(".onnx").replace(":", "_")

    def use_machine(self, machine: Machine | None) -> None:
        """What was found for another machine holds no more."""
        self.machine = machine
        cache = self.on_demand
        if "roofline" in cache.answers:
            cache.last["roofline"] = cache.answers.pop("roofline")
        self.on_demand.refused.pop("roofline", None)
        self.notify("machine")
