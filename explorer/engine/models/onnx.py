"""ONNX files: opened by their headers, weights unread."""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from explorer.engine.costs.memory.liveness import Examined
    from explorer.engine.costs.training.step import Step as TrainingStep
    from explorer.engine.formats.outline import Outline
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened import Arrays, Cancel, OnProgress, OpenOptions
    from explorer.engine.values.activations import ActivationRequest, ActivationRun
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Layer

__all__ = ["FORMAT", "OnnxModel"]


class OnnxModel:
    """An ONNX file; `model` is its graph where that was read already."""

    format = "onnx"
    takes_weights = False

    def __init__(self, source: str, options: OpenOptions, model: Model | None = None) -> None:
        from explorer.engine.formats.onnx import reader
        from explorer.engine.formats.onnx.validate import validate
        from explorer.host.gc_pause import uncollected

        self.source = source
        self.options = options
        with uncollected():
            self.model = validate(reader.read(source)) if model is None else model

    def names(self) -> tuple[list[str], list[str]]:
        """See `Opened`."""
        graph = self.model.graph
        symbols = [d for v in graph.inputs for d in v.shape or () if isinstance(d, str)]
        return symbols, [v.name for v in graph.feeds]

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        from explorer.engine.costs.onnx import analyse

        def analysed(**sizes: Any) -> Examined:
            return analyse.examine(
                self.model,
                rules=self.options.own,
                observe=self.options.observe,
                on_progress=on_progress,
                cancel=cancel,
                **sizes,
            )

        dims, shapes = self._sizes()
        if self.options.past is not None:
            from explorer.engine.costs.decode.step import step_of_graph

            return step_of_graph(self.model, self.options.past, dims, shapes, analysed)
        return analysed(dims=dims, input_shapes=shapes)

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `Opened`."""
        return self.model

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `Opened`."""
        return None

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `Opened`."""
        from explorer.engine.values import onnx_tensors

        return onnx_tensors.stored(self.model), ()

    def activations(self, asked: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """See `Opened`."""
        from explorer.engine.values import onnx_activations

        dims, shapes = self._sizes()
        return onnx_activations.run(self.model, layers, asked, dims=dims, input_shapes=shapes)

    def training(
        self, batch: int | None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> TrainingStep:
        """See `Opened`."""
        from explorer.engine.costs.training import onnx

        dims, shapes = self._sizes()
        return onnx.step(
            self.model,
            batch=batch,
            dims=dims,
            input_shapes=shapes,
            own=self.options.own,
            on_progress=on_progress,
            cancel=cancel,
        )

    def _sizes(self) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
        """Of the dimensions and input shapes that the user gave, those that this model has."""
        from explorer.engine.models.opened import dims_of

        known = self.names()[1]
        shapes = {name: shape for name, shape in self.options.input_shapes.items() if name in known}
        return dims_of(self.model, self.options.dims), shapes


_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""ModelProto's fields (onnx.proto) and their wire types: an ONNX file has no magic number."""


def _recognise(probe: SourceProbe) -> bool:
    """Whether the file begins with fields of a ModelProto, as far as its head reaches."""
    head, at, whole = probe.head, 0, 0
    while at < len(head):
        tag, at = _varint(head, at)
        wire = tag & 7
        if at < 0 or _FIELDS.get(tag >> 3) != wire:
            return False
        value, at = _varint(head, at)
        if at < 0 or (wire == 2 and at + value > probe.size):
            break  # the head ends within a number, or the file is cut off: the reader says so
        at += value if wire == 2 else 0
        whole += 1
    return whole > 0


def _varint(head: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends, -1 if the head does first."""
    value = shift = 0
    for here in range(at, min(at + 10, len(head))):
        value |= (head[here] & 127) << shift
        if head[here] < 128:
            return value, here + 1
        shift += 7
    return value, -1


def _outline(source: str) -> Outline:
    from explorer.engine.formats.onnx.outline import outline

    return outline(source)


FORMAT = Format(
    "onnx",
    "an ONNX file (.onnx)",
    label="ONNX",
    recognise=_recognise,
    open=OnnxModel,
    outline=_outline,
    endings=(".onnx",),
    recognised="the fields of a protobuf ModelProto",
    shows="graph, initializers, shapes; weights inside or in external files",
)
