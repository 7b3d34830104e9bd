"""Commands that read the weights or outputs of the chosen layer, as statistics or as heat maps."""

from __future__ import annotations

import glob
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from explorer.features.values.map_view import HeatMapView, MapRequest
from explorer.tui.commands.context import MAX_WITHOUT_PAUSE, ScreenCommand

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.values import HeatMap

MAX_READ = 12
"""Maximum number of tensors or layers of a group that are read at once."""
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators that contain other operators and also have their own outputs."""


class _Values(ScreenCommand):
    """Base of the commands that read values and show them on the page of the layer."""

    subject: str
    """Name of the method of `Session`, and of the field of `store.on_demand` with its answers."""
    progress_title: str
    empty_message: str

    @property
    def path(self) -> str:
        """The path of the layer under the cursor."""
        layer = self.tree.current_layer
        return layer.path if layer is not None else ""

    def run(self) -> None:
        """Show the values; read them first if needed."""
        if not self.context.ready():
            return
        path = self.path
        if path in getattr(self.store.on_demand, self.subject):
            self._show(path)
            return

        def on_layers(layers: list[Layer]) -> None:
            if layers:
                self.context.start(self.subject.capitalize(), self._find(path, layers))
            else:
                self.store.say(self.empty_message)

        first, stop = self.tree.cursor_range
        # a row for identical blocks stands for the first block
        span = (first, self.tree.model.end[first]) if stop else (0, 0)
        self.context.call_with_layers(*span, on_layers, self.has_values)

    async def _find(self, path: str, layers: Sequence[Layer]) -> None:
        answers: dict[str, tuple[Any, int]] = getattr(self.store.on_demand, self.subject)
        count, names = self.list_names(path, layers)
        # escape the names, so that each glob matches only one of them
        globs = [glob.escape(name) for name in islice(names, MAX_READ)]
        answers[path] = await self.jobs.run(self.progress_title, self.subject, globs), count
        self._show(path)

    def _show(self, path: str) -> None:
        """Show the values, unless the user has moved to another layer."""
        title = f"Values of the {self.subject}"
        if path != self.path:
            self.store.say(f"{title} of {path} are on its page")
            return
        self.store.values_path = path
        if self.store.tab != "layer":
            self.panes.tabs.open("layer", focus=False)
        self.store.notify("answers")
        self.panes.tabs.reveal(title)

    def has_values(self, layer: Layer) -> object:
        """Return whether a layer has values of this kind."""
        raise NotImplementedError

    def list_names(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """Return the number of tensors or layers to read, and their names in the engine."""
        raise NotImplementedError


class WeightsCommand(_Values):
    """Command that shows statistics of the chosen layer's weights."""

    subject, progress_title, empty_message = "weights", "reading weights", "no weights in this layer"

    def has_values(self, layer: Layer) -> object:
        """Return whether a layer has weights."""
        return layer.weights

    def list_names(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """Return the number of weights, and their names (graph; shared ones once) or the layers (module)."""
        if not self.store.is_graph:
            return sum(len(layer.weights) for layer in layers), (layer.path for layer in layers)
        names = list(dict.fromkeys(weight.name for layer in layers for weight in layer.weights))
        return len(names), names


class ActivationsCommand(_Values):
    """Command that runs the model and shows statistics of the chosen layer's output."""

    subject, progress_title, empty_message = "activations", "running the model", "nothing runs in this layer"

    def has_values(self, layer: Layer) -> object:
        """Return whether a layer computes an output; a constant is stored instead."""
        return not layer.group and layer.kind != "Constant"

    def list_names(self, path: str, layers: Sequence[Layer]) -> tuple[int, Iterable[str]]:
        """Return the layers to read, after the chosen operator if it has bodies: it has an output, too."""
        chosen_layer = self.tree.current_layer
        chosen_path = (
            [path]
            if chosen_layer is not None and chosen_layer.path == path and chosen_layer.kind in _WITH_BODIES
            else []
        )
        paths = [*chosen_path, *(layer.path for layer in layers)]
        return len(paths), paths


class MapCommand(ScreenCommand):
    """Command that shows the tensors of the chosen layer or group as heat maps."""

    def run(self) -> None:
        """Open the map of the first weight, or of the output."""
        layer = self.tree.current_layer
        if layer is None or not self.context.ready():
            return
        first, stop = self.tree.cursor_range
        if not layer.group:
            # operators that round the weights of the layer are its siblings
            layers, parent = self.tree.model.layers, layer.parent
            first = parent or 0
            stop = self.tree.model.end[parent] if parent is not None else len(layers)
            first, stop = (first, stop) if stop - first <= MAX_WITHOUT_PAUSE else (layer.id, layer.id + 1)
        self.context.call_with_layers(
            first,
            stop,
            lambda layers_with_values: self._show(layer, layers_with_values),
            lambda candidate: candidate.weights or self._is_rounded(candidate),
        )

    def _is_rounded(self, layer: Layer) -> bool:
        """Return whether a group depends only on stored tensors, as a group that rounds a weight does."""
        has_body = layer.kind in _WITH_BODIES  # outputs of a body are not readable from outside
        return layer.group and self.store.is_graph and layer.params > 0 and not layer.inputs and not has_body

    def _list_names(self, layer: Layer, layers: Sequence[Layer]) -> Iterator[str]:
        input_names, prefix = {tensor.name for tensor in layer.inputs}, ""
        for member in layers:
            if prefix and member.path.startswith(prefix):
                continue
            if self._is_rounded(member):
                prefix = f"{member.path}/"
                outputs = (tensor.name for tensor in member.outputs)
                yield from (name for name in outputs if layer.group or name in input_names)
            elif layer.group or member.id == layer.id:
                yield from (
                    w.name if self.store.is_graph else f"{member.path}.{w.name}" for w in member.weights
                )
        if not layer.group and layer.kind != "Constant":
            yield layer.path

    def _show(self, layer: Layer, layers: Sequence[Layer]) -> None:
        all_names = list(dict.fromkeys(self._list_names(layer, layers)))
        names = all_names[:MAX_READ]
        if not names:
            self.store.say("nothing is stored in this group: choose a layer to see its output")
            return
        state_index = self.store.history_place
        entries = self.store.history.entries if self.store.history is not None else ()
        earlier = entries[state_index].parent if state_index < len(entries) else None

        def ask(request: MapRequest) -> Awaitable[HeatMap]:
            return self.jobs.ask("heat_map", **request._asdict())

        self.context.ask(HeatMapView(names, ask, earlier))
