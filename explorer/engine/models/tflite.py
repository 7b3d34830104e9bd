"""Opens a TensorFlow Lite file. Its structure is read, and weights are read on demand.

Modules that import numpy are imported when values are needed.
"""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.units import many_text
from explorer.engine.costs.onnx import analyse
from explorer.engine.formats.tflite import graph as tflite_graph
from explorer.engine.models.opened_model import StaticModel
from explorer.engine.shapes.tflite import FileShapes
from explorer.host.file_reads import record_full_read
from explorer.host.gc_pause import pause_garbage_collector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from explorer.engine.costs.memory.liveness import AnalysisResult
    from explorer.engine.models.opened_model import OpenOptions
    from explorer.engine.progress import Cancel, OnProgress
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Info
    from explorer.host.file_reads import FileRead


class TfliteModel(StaticModel):
    """A TensorFlow Lite file."""

    format = "tflite"
    no_graph = "only ONNX graphs are tiled, verified, saved and compared node by node"
    no_run = "Explorer cannot run it"
    no_training = "the file format has no training step"

    def __init__(self, source: str, options: OpenOptions) -> None:
        self.source = source
        self.options = options
        with pause_garbage_collector():
            self.file = tflite_graph.read(source)

    def names(self) -> tuple[list[str], list[str]]:
        """See `OpenedModel`."""
        return list(self.file.sizes), [value.name for value in self.file.model.graph.required_inputs]

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        if self.options.observe:
            self.refuse("a run cannot observe sizes, because Explorer cannot run it")
        dims = {name: size for name, size in self.options.dims.items() if name in self.file.sizes}
        inputs = {value.name for value in self.file.model.graph.required_inputs}
        input_shapes = {name: shape for name, shape in self.options.input_shapes.items() if name in inputs}
        return analyse.examine(
            self.file.model,
            shapes=FileShapes(self.file, dims, input_shapes, self._list_notes()),
            format=self.format,
            rules=self.options.loaded_rules,
            on_progress=on_progress,
            cancel=cancel,
        )

    def _list_notes(self) -> list[str]:
        """Returns notes on the figures."""
        file = self.file
        notes = []
        if file.quantized:
            kinds = "; ".join(f"{count:,} of {kind}" for kind, count in sorted(file.quantized.items()))
            notes.append(f"quantized tensors: {kinds}; weight bytes hold their scales and zero points")
        if file.states:
            size = sum(file.states.values())
            notes.append(
                f"{many_text(len(file.states), 'tensor')} of {size:,} bytes: values kept between runs;"
                " they are not activations and not counted"
            )
        if len(file.signatures) > 1:
            notes.append(f"{len(file.signatures):,} signatures; the figures are those of the first subgraph")
        return notes

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        from explorer.engine.values import tflite_tensors  # numpy

        return tflite_tensors.list_stored(self.file), ()

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """Returns the whole file, because its tables may be anywhere in it. See `OpenedModel`."""
        return (record_full_read(self.source),)

    def refuse(self, why: str) -> NoReturn:
        """See `StaticModel`."""
        raise Misuse(
            f"this is a TensorFlow Lite model: {why}",
            where=self.source,
            hint="explorer convert MODEL -o OUT.onnx makes it an ONNX file, by tf2onnx (extra [tensorflow])",
        )
