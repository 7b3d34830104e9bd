"""Commands that read the values of weights and outputs of the chosen layer, or show them as heat maps."""

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
"""Largest number of tensors or layers of a group to read at once."""
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators that are groups and have outputs of their own."""


class _Values(ScreenCommand):
    """Reads values, and shows them on the page of the layer."""

    of: str
    """The method of `Session`, and the field of `store.on_demand` with its answers."""
    doing: str
    nothing: str

    @property
    def path(self) -> str:
        """The layer under the cursor."""
        layer = self.tree.current_layer
        return layer.path if layer is not None else ""

    def run(self) -> None:
        """Show the values; read them first, if needed."""
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
        # of identical blocks, the first one
        inside = (first, self.tree.model.end[first]) if stop else (0, 0)
        self.context.with_layers(*inside, go, self.has_values)

    async def _find(self, path: str, layers: Sequence[Layer]) -> None:
        answers: dict[str, tuple[Any, int]] = getattr(self.store.on_demand, self.of)
        many, names = self.named(path, layers)
        # the first names, as globs that match nothing else
        globs = [glob.escape(name) for name in islice(names, MOST)]
        answers[path] = await self.jobs.run(self.doing, self.of, globs), many
        self._show(path)

    def _show(self, path: str) -> None:
        """Show the values, unless the user has gone to another layer meanwhile."""
        title = f"Values of the {self.of}"
        if path != self.path:
            self.store.say(f"{title} of {path} are on its page")
            return
        self.store.asked_path = path
        if self.store.tab != "layer":
            self.panes.tabs.open("layer", focus=False)
        self.store.notify("found")
        self.panes.tabs.reveal(title)

    def has_values(self, layer: Layer) -> object:
        """Whether a layer has such values."""
        raise NotImplementedError

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """The number of tensors in the layers of the chosen one, and their names in the engine."""
        raise NotImplementedError


class WeightsCommand(_Values):
    """Statistics of the chosen layer's weights."""

    of, doing, nothing = "weights", "reading weights", "no weights in this layer"

    def has_values(self, layer: Layer) -> object:
        """Whether it has weights."""
        return layer.weights

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """The weights of the layers; layers that share an initializer share its name."""
        if not self.store.by_value:
            return sum(len(layer.weights) for layer in layers), (layer.path for layer in layers)
        names = list(dict.fromkeys(weight.name for layer in layers for weight in layer.weights))
        return len(names), names


class ActivationsCommand(_Values):
    """Runs the model, and shows the outputs of the chosen layer."""

    of, doing, nothing = "activations", "running the model", "nothing runs in this layer"

    def has_values(self, layer: Layer) -> object:
        """Whether the layer computes an output; a constant is stored."""
        return not layer.group and layer.kind != "Constant"

    def named(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """The layers, and the chosen operator itself where it has bodies: its own output is a value, too."""
        chosen_layer = self.tree.current_layer
        chosen_path = (
            [path]
            if chosen_layer is not None and chosen_layer.path == path and chosen_layer.kind in _WITH_BODIES
            else []
        )
        paths = [*chosen_path, *(layer.path for layer in layers)]
        return len(paths), paths


class MapCommand(ScreenCommand):
    """Shows the tensors of the chosen layer or group as heat maps."""

    def run(self) -> None:
        """Open the map of the first weight, or of the output."""
        layer = self.tree.current_layer
        if layer is None or not self.context.ready():
            return
        first, stop = self.tree.cursor_range
        if not layer.group:
            # the operators that round its weights stand beside it
            layers, above = self.tree.model.layers, layer.parent
            first = above or 0
            stop = self.tree.model.end[above] if above is not None else len(layers)
            first, stop = (first, stop) if stop - first <= AT_ONCE else (layer.id, layer.id + 1)
        self.context.with_layers(
            first,
            stop,
            lambda layers_with_values: self._show(layer, layers_with_values),
            lambda candidate: candidate.weights or self._is_rounded(candidate),
        )

    def _is_rounded(self, layer: Layer) -> bool:
        """Whether a group depends only on stored tensors, such as one that rounds a weight."""
        body = layer.kind in _WITH_BODIES  # nothing outside a body reads its outputs
        return layer.group and self.store.by_value and layer.params > 0 and not layer.inputs and not body

    def _names(self, layer: Layer, having: Sequence[Layer]) -> Iterator[str]:
        reads, inside = {tensor.name for tensor in layer.inputs}, ""
        for member in having:
            if inside and member.path.startswith(inside):
                continue
            if self._is_rounded(member):
                inside = f"{member.path}/"
                outputs = (tensor.name for tensor in member.outputs)
                yield from (name for name in outputs if layer.group or name in reads)
            elif layer.group or member.id == layer.id:
                yield from (
                    w.name if self.store.by_value else f"{member.path}.{w.name}" for w in member.weights
                )
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
