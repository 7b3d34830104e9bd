"""What is computed only when asked for: memory over time, the roofline, training, the values in tensors.

Each is a job that Esc stops. A tab that needs one asks for it when it is opened; if another job runs, it
waits its turn and comes when that one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from explorer.base import units
from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.main_screen.filtering import Filtering
from explorer.tui.tree.widget import LayerTree

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Activations, Weights
    from explorer.tui.actions.jobs import Door
    from explorer.tui.dialogs.sweep_table import Found
    from explorer.tui.tabs.roofline import Ranked

__all__ = ["ON_DEMAND", "Examining", "Seen"]

ON_DEMAND = ("memory", "roofline")
"""Tabs that ask the engine when they are opened."""
_MOST = 12
"""Tensors or layers of a group whose values are read at a time."""


class Seen(Struct):
    """What was computed for the model on show; another model has another one.

    Attributes:
        weights, activations: By path of the layer asked for: the answer, and how many tensors or layers
            there are in all.
        sweep: What the Sweep screen found.
        refused: Tab to the reason why it shows nothing; asked for again when its key is pressed.
        asking: Tabs whose answer is on its way.
    """

    memory: Memory | None = None
    roofline: Ranked | None = None
    training: Training | None = None
    weights: dict[str, tuple[Weights, int]] = field(default_factory=dict)
    activations: dict[str, tuple[Activations, int]] = field(default_factory=dict)
    sweep: Found | None = None
    refused: dict[str, str] = field(default_factory=dict)
    asking: set[str] = field(default_factory=set)


class Examining(Filtering):
    """The part of the main screen that asks for more than is known of every model.

    Args:
        source: What the user asked for.
        door: The engine.
        remote: Over SSH.
    """

    tab: str

    def __init__(self, source: str, door: Door, *, remote: bool = False) -> None:
        super().__init__(source, door, remote=remote)
        self.seen = Seen()
        self.asked_path = ""
        self._batch = ""
        self._optimizer: Optimizer = "sgd"

    def paint_tab(self) -> None:
        """Draw the tab on show."""
        raise NotImplementedError

    def reveal(self, title: str) -> None:
        """Bring the part of the page with this heading into view."""
        raise NotImplementedError

    def span_of(self, chosen: Sequence[Layer]) -> tuple[int, int]:
        """The first and the last id of layers and of what lies in them."""
        return chosen[0].id, self.query_one(LayerTree).model.end[chosen[-1].id] - 1

    # the tabs that need a job

    def jobs_changed(self) -> None:
        """A job began or ended: a tab may have waited for that."""
        super().jobs_changed()
        self.call_later(self.demand)

    def demand(self) -> None:
        """Ask for what the tab on show lacks, if it was not refused and nothing else runs."""
        tab, seen = self.tab, self.seen
        if tab not in ON_DEMAND or getattr(seen, tab) is not None:
            return
        if tab in seen.refused or tab in seen.asking:
            return
        if self.analysis is None or self.jobs.current is not None:
            return
        if tab == "memory":
            work = self._get_memory(seen)
        else:
            self.machine = self.machine or _only_machine()
            if self.machine is None:
                return
            work = self._get_roofline(seen, self.machine)
        seen.asking.add(tab)
        self.run_worker(work, group="job", exit_on_error=False)

    async def _get_memory(self, seen: Seen) -> None:
        seen.memory = await self._fetch("memory", seen, "following the tensors", "memory")
        self.paint_tab()

    async def _get_roofline(self, seen: Seen, machine: Machine) -> None:
        from explorer.tui.tabs.roofline import ranked

        found = await self._fetch("roofline", seen, "placing the layers", "roofline", machine)
        if found is not None:
            seen.roofline = ranked(found)
        self.paint_tab()

    async def _fetch(self, tab: str, seen: Seen, title: str, method: str, *args: Any) -> Any:
        """The answer, or None and the reason in `seen.refused`."""
        try:
            return await self.jobs.run(title, method, *args)
        except Cancelled:
            seen.refused[tab] = "stopped"
        except ExplorerError as error:
            seen.refused[tab] = str(error)
        finally:
            seen.asking.discard(tab)
        return None

    # the machine

    def action_machine(self) -> None:
        """Ask for a machine."""
        from explorer.tui.dialogs.machine import MachineDialog

        self.app.push_screen(MachineDialog(self.machine, blink=not self.remote), self._take_machine)

    def _take_machine(self, machine: Machine | None) -> None:
        if machine is None:
            return
        self.machine, self.hardware = machine, None
        self.machine_changed()
        self.open_tab("roofline")

    def machine_changed(self) -> None:
        """What was found for another machine holds no more."""
        self.seen.roofline = None
        self.seen.refused.pop("roofline", None)

    # sizes

    def action_sizes(self) -> None:
        """Ask for the sizes that the model leaves open."""
        from explorer.tui.dialogs.sizes import SizesDialog
        from explorer.tui.tabs.model import sizes_of

        if not self._ready():
            return
        assert self.analysis is not None
        sizes = sizes_of(self.analysis.info)
        if not sizes:
            self.say("this model leaves no size open")
            return

        def answered(dims: dict[str, int] | None) -> None:
            if dims is not None:
                before = {name: size for name, size in sizes.items() if size is not None}
                self._start("Open sizes", self._bind(dims, before))

        self.app.push_screen(SizesDialog(sizes, blink=not self.remote), answered)

    async def _bind(self, dims: dict[str, int], before: dict[str, int]) -> None:
        self.history = await self.jobs.run("binding sizes", "bind", dims)
        await self._show_current("bind", before)
        self.say(f"bound: {units.dims_text(dims)}" if dims else "no size is bound")
        self.paint_tab()

    # training

    def action_training(self) -> None:
        """Ask for batch size and optimizer, and tell what a step costs."""
        from explorer.tui.dialogs.training import TrainingDialog

        if self._ready():
            dialog = TrainingDialog(self._batch, self._optimizer, blink=not self.remote)
            self.app.push_screen(dialog, self._take_training)

    def _take_training(self, asked: tuple[str, int | None, Optimizer] | None) -> None:
        if asked is not None:
            self._batch, batch, self._optimizer = asked
            self._start("Training", self._do_training(batch, self._optimizer))

    async def _do_training(self, batch: int | None, optimizer: Optimizer) -> None:
        seen = self.seen
        seen.training = await self.jobs.run(
            "counting a training step", "training", batch=batch, optimizer=optimizer
        )
        if self.tab not in ("layer", "model"):
            self.open_tab("model")
        self.paint_tab()
        self.reveal("Training")

    # the values in tensors

    def _inside(self) -> tuple[int, int]:
        """The chosen layer and what is behind the last in it; of identical blocks the first."""
        first, stop = self.chosen_span()
        return (first, self.query_one(LayerTree).model.end[first]) if stop else (0, 0)

    def _chosen_path(self) -> str:
        layer = self.query_one(LayerTree).current_layer
        return layer.path if layer is not None else ""

    def action_weights(self) -> None:
        """Statistics of the chosen layer's weights."""
        if not self._ready():
            return
        path = self._chosen_path()
        if path in self.seen.weights:
            self._show_values("Values of the weights", path)
            return

        def go(having: list[Layer]) -> None:
            if having:
                self._start("Weights", self._do_weights(path, having))
            else:
                self.say("no weights in this layer")

        self.with_layers(*self._inside(), lambda layer: layer.weights, go)

    async def _do_weights(self, path: str, having: Sequence[Layer]) -> None:
        seen = self.seen
        if self.analysis is not None and self.analysis.info.model.format == "onnx":
            # an initializer has one name, however many layers use it
            names = list(dict.fromkeys(weight.name for layer in having for weight in layer.weights))
            total, names = len(names), _globs(names)
        else:
            total, names = sum(len(layer.weights) for layer in having), _globs(x.path for x in having)
        found: Weights = await self.jobs.run("reading weights", "weights", names)
        seen.weights[path] = (found, total)
        self._show_values("Values of the weights", path)

    def action_activations(self) -> None:
        """Run the model and tell what the chosen layer puts out."""
        if not self._ready():
            return
        path = self._chosen_path()
        if path in self.seen.activations:
            self._show_values("Values of the activations", path)
            return

        def go(leaves: list[Layer]) -> None:
            if leaves:
                self._start("Activations", self._do_activations(path, leaves))
            else:
                self.say("nothing runs in this layer")

        # a constant is stored, not computed
        self.with_layers(*self._inside(), lambda layer: not layer.group and layer.kind != "Constant", go)

    async def _do_activations(self, path: str, leaves: Sequence[Layer]) -> None:
        seen = self.seen
        chosen = self.query_one(LayerTree).current_layer
        # what the bodies put out stays inside; what the operator around them does is a value like any other
        own = [path] if chosen is not None and chosen.path == path and chosen.kind in _WITH_BODIES else []
        paths = [*own, *(layer.path for layer in leaves)]
        names = _globs(paths)
        found: Activations = await self.jobs.run("running the model", "activations", names)
        seen.activations[path] = (found, len(paths))
        self._show_values("Values of the activations", path)

    def _show_values(self, title: str, path: str) -> None:
        """Show what was found, unless the user has gone to another layer meanwhile."""
        if path != self._chosen_path():
            self.say(f"{title} of {path} are on its page")
            return
        self.asked_path = path
        if self.tab != "layer":
            self.open_tab("layer", focus=False)
        self.paint_tab()
        self.reveal(title)


_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators that are groups, and yet put something out."""


def _only_machine() -> Machine | None:
    """The machine of the configuration file, if it has one and no other; the dialog tells what is wrong."""
    from explorer.settings import machines

    try:
        known = list(machines.profiles().values())
    except ExplorerError:
        return None
    return known[0] if len(known) == 1 else None


def _globs(names: Iterable[str]) -> list[str]:
    """The first names, as patterns that match no others."""
    import glob

    return [glob.escape(name) for name in islice(names, _MOST)]
