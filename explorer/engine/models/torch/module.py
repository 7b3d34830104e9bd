"""Opens a PyTorch module: a torchvision model, the result of a callable, or an nn.Module object.

Few methods need onnx and onnxruntime. They import these packages themselves, because such an import takes
longer than the analysis of a small model.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from torch import nn

from explorer.base.errors import Misuse
from explorer.engine.costs.decode.module_step import analyze_prefill, analyze_step
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.torch import analyse, training
from explorer.engine.costs.torch.signature import bind
from explorer.engine.costs.training import simulation
from explorer.engine.costs.training.step import StepGradients
from explorer.engine.formats.torch_module import loaded_module as torch_module
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.stored_form import list_stored_forms
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.torch.program_nodes import compute_node_figures
from explorer.engine.models.torch.run import run
from explorer.engine.models.torch.weights_file import use_weights_file
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.values import torch_tensors
from explorer.engine.values.numbers import Numbers
from explorer.facts import Info, Layer

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened_model import Arrays
    from explorer.engine.values.activations import ActivationRequest, ActivationRun
    from explorer.facts.training import MeasuredMemory, Optimizer, StepMemory
    from explorer.host.file_reads import FileRead


class TorchModel:
    """A torchvision model, or the module that `package.module:callable` returns.

    Methods without a description implement `OpenedModel`, which describes them.

    Args:
        source: Name of the torchvision model, or `package.module:callable`.
        options: Options of the user.

    Attributes:
        loaded: The module, and the ways to build it with and without weights.
    """

    format = "torch"
    takes_weights = True
    is_graph = False
    planned_as_traced = False
    """Whether the sites of a tiling always come from a run on the meta device, however small the model is.

    The module is then not exported, so the exporter does not have to support its operators.
    """

    def __init__(self, source: str, options: OpenOptions) -> None:
        self.source = source
        self.options = options
        loaded = torch_module.load(source, weights=options.weights, seed=options.seed)
        self.loaded = _apply_weights_file(loaded, options)
        self._graph: Model | None = None

    def names(self) -> tuple[list[str], list[str]] | None:
        """Returns None, because the names are checked when the inputs are bound. See `OpenedModel`."""
        return None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        dims, shapes = self.options.dims, self.options.input_shapes
        examine = partial(analyse.examine, self.loaded)
        if self.options.past is not None:
            analyze = analyze_prefill if self.options.prefill else analyze_step
            examine = partial(analyze, self.loaded, self.options.past)
        return examine(dims=dims, input_shapes=shapes, on_progress=on_progress, cancel=cancel)

    def stored(self) -> Info:
        """Returns the facts about the stored tensors, which need no input."""
        info = analyse.describe_stored(self.loaded.meta(), source=self.source)
        model_info = replace(info.model, format=self.format)
        assumptions = {**info.assumptions, "weights": self.loaded.weights_text}
        is_random = self.loaded.weights_from == "random"
        return replace(info, model=model_info, assumptions=assumptions, random_weights=is_random)

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `OpenedModel`."""
        if self._graph is None:
            # imported on demand: loads onnx
            from explorer.engine.models.torch.onnx_export import export_graph

            name = os.path.basename(self.source)
            stem = "".join(char if char.isalnum() or char in "-_" else "_" for char in name)
            path = os.path.join(folder, f"{stem}.onnx")
            self._graph = export_graph(self.loaded, self._bind_inputs(), path, on_progress)
        return self._graph

    def _bind_inputs(self) -> BoundInputs:
        """Returns the inputs of the module at the shapes and sizes of the options."""
        return bind(self.loaded, self.options.input_shapes, self.options.dims)

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `OpenedModel`."""
        return lambda arrays: run(self.loaded, self.loaded.bound or self._bind_inputs(), list(arrays))

    def bind_arrays(self, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> BoundInputs:
        """Returns the inputs of the module at the options, or else at the types and shapes of some arrays.

        Args:
            shapes: Types and shapes of the arrays by input name. The name of a single array does not matter:
                the array becomes the first argument of `forward`.
        """
        try:
            return self._bind_inputs()
        except Misuse:  # the options do not determine the inputs
            if len(shapes) == 1:
                first_name = next(iter(inspect.signature(self.loaded.meta().forward).parameters), "x")
                shapes = {first_name: next(iter(shapes.values()))}
            return bind(self.loaded, {**self.options.input_shapes, **shapes}, {})

    @property
    def weights_note(self) -> str:
        """Origin of the weights, such as 'random weights, seed 0'."""
        text = self.loaded.weights_text
        if self.loaded.weights_from == "file":
            return f"weights {text}"
        return f"random weights, seed {self.loaded.seed}" if self.loaded.weights_from == "random" else text

    @property
    def weights_notes(self) -> tuple[str, ...]:
        """The note `weights_note`, and the notes on missing or unexpected tensors of the weights file.

        Notes on the file exist only after the model was built.
        """
        file_notes = self.loaded.notes if self.options.weights_file is not None else ()
        return self.weights_note, *file_notes

    @property
    def replaced_weights(self) -> tuple[str, ...]:
        """The notes `weights_notes`, or () if the model has its own weights."""
        return () if self.loaded.weights_from == "model" else self.weights_notes

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        model = torch_tensors.build_with_weights(self.loaded, self._bind_inputs)
        return torch_tensors.list_stored(model, list_stored_forms(self.loaded.meta())), self.weights_notes

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """See `OpenedModel`."""
        from explorer.engine.values import torch_activations  # imported on demand: loads onnxruntime

        shapes, dims = self.options.input_shapes, self.options.dims
        return torch_activations.run(self.loaded, layers, request, dims=dims, input_shapes=shapes)

    def training(self, batch: int | None) -> StepGradients:
        """See `OpenedModel`."""
        return training.analyze_training_step(
            self.loaded, batch=batch, dims=self.options.dims, input_shapes=self.options.input_shapes
        )

    def step_memory(
        self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]
    ) -> tuple[StepMemory, tuple[str, ...], tuple[str, ...]] | str:
        """See `OpenedModel`."""
        paths = simulation.match_checkpoints(self.loaded, checkpoint)
        dims = self.options.dims if batch is None else {**self.options.dims, "batch": batch}
        with training.name_batch_in_error(batch):
            bound_inputs = bind(self.loaded, self.options.input_shapes, dims)
        try:
            fact, notes = simulation.measure_step_memory(self.loaded, bound_inputs, optimizer, paths)
        except simulation.SimulationError as error:
            return str(error)
        return fact, paths, notes

    def measure_step(self, optimizer: Optimizer, batch: int | None, *, train: bool) -> MeasuredMemory:
        """Runs a training step of a copy of the module on the CPU, and returns its memory.

        Raises:
            BadModel: The step fails.
        """
        from explorer.engine.costs.training.measured_step import measure_step  # imports torch's profiler

        dims = self.options.dims if batch is None else {**self.options.dims, "batch": batch}
        bound_inputs = bind(self.loaded, self.options.input_shapes, dims)
        return measure_step(self.loaded, bound_inputs, optimizer, train=train)

    def copy_with(self, loaded: LoadedModule) -> TorchModel:
        """Returns a copy of the opened model with another module and the same inputs and options."""
        model = copy.copy(self)
        model.loaded, model._graph = loaded, None
        return model

    def node_figures(self) -> Mapping[str, Mapping[str, int | None]]:
        """Returns the figures of each node in the module's torch.export program, by node name."""
        return compute_node_figures(self.loaded, self.options)

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """Returns () for a torchvision model, which no file of the user determines.

        The result is None for a user's callable, because its code may read any file, and with a weights file.
        """
        return () if self.loaded.torchvision and self.options.weights_file is None else None


class ModuleObject(TorchModel):
    """An nn.Module object of a Python program. Explorer never changes the object.

    Args:
        module: The module.
        inputs: Example inputs; see `loaded_module.wrap_module`.
        options: Options of the user.
        keyword_inputs: Example keyword inputs, beside `inputs`.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Any,
        options: OpenOptions,
        keyword_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            type_name = type(module).__name__
            raise Misuse(f"a {type_name} is neither a path, a name nor an nn.Module", where="source")
        if options.weights is not None:
            raise Misuse("an nn.Module object brings its own weights", where="weights", hint="leave it out")
        self.options = options
        self.loaded = _apply_weights_file(
            torch_module.wrap_module(module, inputs, keyword_inputs=keyword_inputs), options
        )
        self.source = self.loaded.source
        self._graph = None


def _apply_weights_file(loaded: LoadedModule, options: OpenOptions) -> LoadedModule:
    """Returns the module with the weights of the file in the options, or unchanged without a file.

    Raises:
        Misuse: The options name both a file and a set of weights, or the file holds no named tensors.
        BadModel: The file cannot be read.
    """
    if options.weights_file is None:
        return loaded
    if options.weights is not None:
        flags = "--weights, --weights-file"
        raise Misuse("both options set the weights", where=flags, hint="leave out one of them")
    return use_weights_file(loaded, options.weights_file)
