"""The values in tensors: of a layer's weights, and of what it puts out when the model runs."""

from __future__ import annotations

import glob
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from explorer.tui.commands.context import AT_ONCE, ScreenCommand
from explorer.tui.values.view import HeatMapView, MapRequest

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.values import Activations, HeatMap, Weights

MOST = 12
"""Tensors or layers of a group whose values are read at a time."""
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators that are groups, and yet put something out."""


class _Values(ScreenCommand):
    """Shows values on the layer's page."""

    title: str

    @property
    def path(self) -> str:
        """The layer under the cursor."""
        layer = self.tree.current_layer
        return layer.path if layer is not None else ""

    def inside(self) -> tuple[int, int]:
        """The chosen layer and what is behind the last in it; of identical blocks the first."""
        first, stop = self.tree.cursor_range
        return (first, self.tree.model.end[first]) if stop else (0, 0)

    def show(self, path: str) -> None:
        """Show what was found, unless the user has gone to another layer meanwhile."""
        if path != self.path:
            self.store.say(f"{self.title} of {path} are on its page")
            return
        self.store.asked_path = path
        if self.store.tab != "layer":
            self.panes.tabs.open("layer", focus=False)
        self.store.notify("found")
        self.panes.tabs.reveal(self.title)


class WeightsCommand(_Values):
    """Statistics of the chosen layer's weights."""

    title = "Values of the weights"

    def run(self) -> None:
        """Read them, unless they were read."""
        if not self.context.ready():
            return
        path = self.path
        if path in self.store.on_demand.weights:
            self.show(path)
            return

        def go(having: list[Layer]) -> None:
            if having:
                self.context.start("Weights", self._read(path, having))
            else:
                self.store.say("no weights in this layer")

        self.context.with_layers(*self.inside(), go, lambda layer: layer.weights)

    async def _read(self, path: str, having: Sequence[Layer]) -> None:
        seen = self.store.on_demand
        if self.store.by_value:
            # an initializer has one name, however many layers use it
            names = list(dict.fromkeys(weight.name for layer in having for weight in layer.weights))
            total, names = len(names), _globs(names)
        else:
            total, names = sum(len(layer.weights) for layer in having), _globs(x.path for x in having)
        found: Weights = await self.jobs.run("reading weights", "weights", names)
        seen.weights[path] = (found, total)
        self.show(path)


class ActivationsCommand(_Values):
    """Runs the model and tells what the chosen layer puts out."""

    title = "Values of the activations"

    def run(self) -> None:
        """Run the model, unless it was run for this layer."""
        if not self.context.ready():
            return
        path = self.path
        if path in self.store.on_demand.activations:
            self.show(path)
            return

        def go(leaves: list[Layer]) -> None:
            if leaves:
                self.context.start("Activations", self._read(path, leaves))
            else:
                self.store.say("nothing runs in this layer")

        # a constant is stored, not computed
        self.context.with_layers(
            *self.inside(), go, lambda layer: not layer.group and layer.kind != "Constant"
        )

    async def _read(self, path: str, leaves: Sequence[Layer]) -> None:
        seen, chosen = self.store.on_demand, self.tree.current_layer
        # what the bodies put out stays inside; what the operator around them does is a value like any other
        own = [path] if chosen is not None and chosen.path == path and chosen.kind in _WITH_BODIES else []
        paths = [*own, *(layer.path for layer in leaves)]
        found: Activations = await self.jobs.run("running the model", "activations", _globs(paths))
        seen.activations[path] = (found, len(paths))
        self.show(path)


class MapCommand(ScreenCommand):
    """The numbers of the chosen layer's tensors, or of those of a group, as a map."""

    def run(self) -> None:
        """Open the map of its first weight, or of what it puts out."""
        layer = self.tree.current_layer
        if layer is None or not self.context.ready():
            return
        first, stop = self.tree.cursor_range
        if not layer.group:
            # what rounds its weights stands beside it
            layers, above = self.tree.model.layers, layer.parent
            first = above or 0
            stop = self.tree.model.end[above] if above is not None else len(layers)
            first, stop = (first, stop) if stop - first <= AT_ONCE else (layer.id, layer.id + 1)
        self.context.with_layers(
            first,
            stop,
            lambda found: self._show(layer, found),
            lambda one: one.weights or self._is_rounded(one),
        )

    def _is_rounded(self, layer: Layer) -> bool:
        """Whether it is a function of what is stored alone, as what gives a weight a number format."""
        body = layer.kind in _WITH_BODIES  # within another body nobody outside reads what it gives
        return layer.group and self.store.by_value and layer.params > 0 and not layer.inputs and not body

    def _names(self, layer: Layer, having: Sequence[Layer]) -> Iterator[str]:
        reads, inside = {tensor.name for tensor in layer.inputs}, ""
        for one in having:
            if inside and one.path.startswith(inside):
                continue
            if self._is_rounded(one):
                inside = f"{one.path}/"
                made = (tensor.name for tensor in one.outputs)
                yield from (name for name in made if layer.group or name in reads)
            elif layer.group or one.id == layer.id:
                yield from (w.name if self.store.by_value else f"{one.path}.{w.name}" for w in one.weights)
        if not layer.group and layer.kind != "Constant":
            yield layer.path

    def _show(self, layer: Layer, having: Sequence[Layer]) -> None:
        every = list(dict.fromkeys(self._names(layer, having)))
        names = every[:MOST]
        if not names:
            self.store.say("nothing is stored in this group: choose a layer, for what it puts out")
            return
        place = self.store.history_place
        entries = self.store.history.entries if self.store.history is not None else ()
        earlier = entries[place].parent if place < len(entries) else None

        def ask(request: MapRequest) -> Awaitable[HeatMap]:
            return self.jobs.ask("heat_map", **request._asdict())

        self.context.ask(HeatMapView(names, ask, earlier), lambda _: None)


def _globs(names: Iterable[str]) -> list[str]:
    """The first names, as patterns that match no others."""
    return [glob.escape(name) for name in islice(names, MOST)]
