"""The values in tensors: of a layer's weights, and of what it puts out when the model runs."""

from __future__ import annotations

import glob
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from explorer.features.values.map_view import HeatMapView, MapRequest
from explorer.tui.commands.context import AT_ONCE, ScreenCommand

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.values import HeatMap

MOST = 12
"""Tensors or layers of a group whose values are read at a time."""
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators that are groups, and yet put something out."""


class _Values(ScreenCommand):
    """Shows values on the layer's page."""

    of: str
    """What the engine is asked for, and where the answers are kept."""
    doing: str
    nothing: str

    @property
    def path(self) -> str:
        """The layer under the cursor."""
        layer = self.tree.current_layer
        return layer.path if layer is not None else ""

    def run(self) -> None:
        """Find them out, unless that was done."""
        if not self.context.ready():
            return
        path = self.path
        if path in getattr(self.store.on_demand, self.of):
            self._show(path)
            return

        def go(layers: list[Layer]) -> None:
            if layers:
                self.context.start(self.of.capitalize(), self._find(path, layers))
            else:
                self.store.say(self.nothing)

        first, stop = self.tree.cursor_range
        # of identical blocks the first
        inside = (first, self.tree.model.end[first]) if stop else (0, 0)
        self.context.with_layers(*inside, go, self.wanted)

    async def _find(self, path: str, layers: Sequence[Layer]) -> None:
        kept: dict[str, tuple[Any, int]] = getattr(self.store.on_demand, self.of)
        many, names = self.named(path, layers)
        # the first names, as patterns that match no others
        globs = [glob.escape(name) for name in islice(names, MOST)]
        kept[path] = await self.jobs.run(self.doing, self.of, globs), many
        self._show(path)

    def _show(self, path: str) -> None:
        """Show what was found, unless the user has gone to another layer meanwhile."""
        title = f"Values of the {self.of}"
        if path != self.path:
            self.store.say(f"{title} of {path} are on its page")
            return
        self.store.asked_path = path
        if self.store.tab != "layer":
            self.panes.tabs.open("layer", focus=False)
        self.store.notify("found")
        self.panes.tabs.reveal(title)

    def wanted(self, layer: Layer) -> object:
        """Whether a layer has any."""
        raise NotImplementedError

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """How many there are in the layers of the chosen one, and what the engine knows them by."""
        raise NotImplementedError


class WeightsCommand(_Values):
    """Statistics of the chosen layer's weights."""

    of, doing, nothing = "weights", "reading weights", "no weights in this layer"

    def wanted(self, layer: Layer) -> object:
        """Whether it has weights."""
        return layer.weights

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """An initializer has one name, however many layers use it."""
        if not self.store.by_value:
            return sum(len(layer.weights) for layer in layers), (layer.path for layer in layers)
        names = list(dict.fromkeys(weight.name for layer in layers for weight in layer.weights))
        return len(names), names


class ActivationsCommand(_Values):
    """Runs the model and tells what the chosen layer puts out."""

    of, doing, nothing = "activations", "running the model", "nothing runs in this layer"

    def wanted(self, layer: Layer) -> object:
        """Whether it puts something out; a constant is stored, not computed."""
        return not layer.group and layer.kind != "Constant"

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """What bodies put out stays inside; what the operator around them puts out is a value like others."""
        chosen = self.tree.current_layer
        own = [path] if chosen is not None and chosen.path == path and chosen.kind in _WITH_BODIES else []
        paths = [*own, *(layer.path for layer in layers)]
        return len(paths), paths


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
