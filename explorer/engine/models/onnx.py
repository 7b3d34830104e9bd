"""Opens an ONNX file, or a file of another format whose reader builds a graph. Weights are read on demand.

Modules that import numpy or onnxruntime, or that only some commands need, are imported on first use.
"""

from __future__ import annotations

from explorer.engine.costs.onnx import analyse
from explorer.engine.costs.training import onnx as training
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.containers import read_declared_shape
from explorer.engine.formats.onnx.file_reads import list_model_reads
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.models.opened_model import select_dims
from explorer.engine.progress import Cancel, OnProgress
from explorer.host.file_reads import record_full_read
from explorer.host.gc_pause import pause_garbage_collector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from explorer.engine.costs.memory.liveness import AnalysisResult
    from explorer.engine.costs.onnx.analyse import Look
    from explorer.engine.costs.training.step import StepGradients
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened_model import Arrays, OpenOptions
    from explorer.engine.values.activations import ActivationRequest, ActivationRun
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Info, Layer
    from explorer.facts.training import Optimizer
    from explorer.host.file_reads import FileRead


class OnnxModel:
    """A model that is a graph of ONNX's operators."""

    takes_weights = False
    is_graph = True

    def __init__(self, source: str, options: OpenOptions, model: Model, format: str = "onnx") -> None:
        self.source = source
        self.options = options
        self.model = model
        self.format = format

    def names(self) -> tuple[list[str], list[str]]:
        """See `OpenedModel`."""
        graph = self.model.graph
        symbols = [
            dim for value in graph.inputs for dim in read_declared_shape(value) or () if isinstance(dim, str)
        ]
        return symbols, [value.name for value in graph.required_inputs]

    def examine(
        self, *, look: Look | None = None, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> AnalysisResult:
        """See `OpenedModel`. `look` receives the leaves of the analysis."""

        def run_analysis(**sizes: Any) -> AnalysisResult:
            return analyse.examine(
                self.model,
                format=self.format,
                rules=self.options.loaded_rules,
                observe=self.options.observe,
                look=look,
                on_progress=on_progress,
                cancel=cancel,
                **sizes,
            )

        dims, shapes = self._select_requested_sizes()
        if self.options.past is not None:
            step = (
                _load_step_module().analyze_prefill
                if self.options.prefill
                else _load_step_module().analyze_graph_step
            )
            result: AnalysisResult = step(self.model, self.options.past, dims, shapes, run_analysis)
            return result
        return run_analysis(dims=dims, input_shapes=shapes)

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `OpenedModel`."""
        return self.model

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `OpenedModel`."""
        return None

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        from explorer.engine.values import onnx_tensors  # numpy

        return onnx_tensors.list_stored(self.model), ()

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """See `OpenedModel`."""
        from explorer.engine.values import onnx_activations  # onnxruntime

        dims, shapes = self.list_sizes()
        return onnx_activations.run(self.model, layers, request, dims=dims, input_shapes=shapes)

    def training(self, batch: int | None) -> StepGradients:
        """See `OpenedModel`."""
        dims, shapes = self.list_sizes()
        return training.analyze_training_step(
            self.model, batch=batch, dims=dims, input_shapes=shapes, rules=self.options.loaded_rules
        )

    def step_memory(self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]) -> str:
        """Returns why a graph has no memory of a training step. See `OpenedModel`."""
        return "a graph has no autograd"

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """See `OpenedModel`."""
        if info.model.inference_died:  # the next analysis may find more shapes
            return None
        # without a source, the reader may have read any part of the file
        return (record_full_read(self.source),) if self.model.source is None else list_model_reads(self.model)

    def list_sizes(self) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
        """Returns the sizes of dimensions and inputs for the analysis.

        For a decode step, they are the sizes of the step.

        Raises:
            Misuse: The model has no decode step with so many cached tokens, or a size is missing.
        """
        dims, shapes = self._select_requested_sizes()
        if self.options.past is not None:
            dims, shapes = _load_step_module().list_step_sizes(self.model, self.options.past, dims, shapes)
        return dims, shapes

    def _select_requested_sizes(self) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
        """Returns the user's dimensions and input shapes that exist in this model."""
        input_names = self.names()[1]
        shapes = {name: shape for name, shape in self.options.input_shapes.items() if name in input_names}
        return select_dims(self.model, self.options.dims), shapes


def _load_step_module() -> Any:
    """Returns the module for decode steps, which is imported on first use: the import takes 5 ms."""
    from explorer.engine.costs.decode import step

    return step


def open_graph(
    source: str, options: OpenOptions, format: str = "onnx", read: Callable[[str], Model] = reader.read
) -> OnnxModel:
    """Opens a file whose graph `read` builds, and validates the graph.

    Raises:
        BadModel: The file is broken.
    """
    with pause_garbage_collector():
        return OnnxModel(source, options, validate(read(source)), format)
