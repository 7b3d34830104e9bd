"""PyTorch module as an opened model, given by its name, from a file, or as an object of a Python program.

Modules that only some questions need (onnx, values) are imported on first use, because the import takes
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
from explorer.engine.costs.decode.module_step import prefill_of_module, step_of_module
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.torch import analyse, training
from explorer.engine.costs.torch.signature import bind
from explorer.engine.costs.training import simulation
from explorer.engine.costs.training.step import StepGradients
from explorer.engine.formats.torch_module import loaded_module as torch_module
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.torch.program_nodes import program_nodes
from explorer.engine.models.torch.run import run
from explorer.engine.models.torch.weights_file import with_file
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.values import torch_tensors
from explorer.engine.values.numbers import Numbers
from explorer.facts import Info, Layer

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened_model import Arrays
    from explorer.engine.values.activations import ActivationRequest, ActivationRun
    from explorer.facts.training import Optimizer, StepMemory
    from explorer.host.file_reads import FileRead


class TorchModel:
    """A torchvision model by name, or the return value of `package.module:callable`."""

    format = "torch"
    takes_weights = True
    is_graph = False
    planned_as_traced = False
    """Whether tilings are planned in a run on the meta device for any size.

    No exporter then has to support the operators.
    """

    def __init__(self, source: str, options: OpenOptions) -> None:
        self.source = source
        self.options = options
        loaded = torch_module.load(source, weights=options.weights, seed=options.seed)
        self.loaded = _with_file(loaded, options)
        self._graph: Model | None = None

    def names(self) -> tuple[list[str], list[str]] | None:
        """Returns None, because a module checks names when its inputs are bound. See `OpenedModel`."""
        return None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        dims, shapes = self.options.dims, self.options.input_shapes
        examine = partial(analyse.examine, self.loaded)
        if self.options.past is not None:
            step = prefill_of_module if self.options.prefill else step_of_module
            examine = partial(step, self.loaded, self.options.past)
        return examine(dims=dims, input_shapes=shapes, on_progress=on_progress, cancel=cancel)

    def stored(self) -> Info:
        """Returns facts about the stored tensors only, which need no input."""
        info = analyse.stored(self.loaded.meta(), source=self.source)
        model_info = replace(info.model, format=self.format)
        assumptions = {**info.assumptions, "weights": self.loaded.weights_text}
        is_random = self.loaded.weights_from == "random"
        return replace(info, model=model_info, assumptions=assumptions, random_weights=is_random)

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `OpenedModel`."""
        if self._graph is None:
            from explorer.engine.models.torch.onnx_export import exported_graph  # onnx

            name = os.path.basename(self.source)
            stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
            self._graph = exported_graph(
                self.loaded, self._bound(), os.path.join(folder, f"{stem}.onnx"), on_progress
            )
        return self._graph

    def _bound(self) -> BoundInputs:
        return bind(self.loaded, self.options.input_shapes, self.options.dims)

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `OpenedModel`."""
        return lambda arrays: run(self.loaded, self.loaded.bound or self._bound(), list(arrays))

    def bind_arrays(self, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> BoundInputs:
        """Binds the inputs. If the module declares none, the types and shapes of the arrays are used.

        Args:
            shapes: Types and shapes of the arrays by name. The name of a single array does not matter.
        """
        try:
            return self._bound()
        except Misuse:
            if len(shapes) == 1:
                first = next(iter(inspect.signature(self.loaded.meta().forward).parameters), "x")
                shapes = {first: next(iter(shapes.values()))}
            return bind(self.loaded, {**self.options.input_shapes, **shapes}, {})

    @property
    def weights_note(self) -> str:
        """Origin of the weights: 'random weights, seed 0'."""
        text = self.loaded.weights_text
        if self.loaded.weights_from == "file":
            return f"weights {text}"
        return f"random weights, seed {self.loaded.seed}" if self.loaded.weights_from == "random" else text

    @property
    def weights_notes(self) -> tuple[str, ...]:
        """The note `weights_note`, and notes on missing or unexpected tensors once the model is built."""
        of_file = self.loaded.notes if self.options.weights_file is not None else ()
        return self.weights_note, *of_file

    @property
    def replaced_weights(self) -> tuple[str, ...]:
        """The notes `weights_notes` for random weights or weights from a file, and () for the model's own."""
        return () if self.loaded.weights_from == "model" else self.weights_notes

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        model = torch_tensors.materialised(self.loaded, self._bound)
        return torch_tensors.stored(model), self.weights_notes

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """See `OpenedModel`."""
        from explorer.engine.values import torch_activations  # onnxruntime

        shapes, dims = self.options.input_shapes, self.options.dims
        return torch_activations.run(self.loaded, layers, request, dims=dims, input_shapes=shapes)

    def training(self, batch: int | None) -> StepGradients:
        """See `OpenedModel`."""
        return training.step(
            self.loaded, batch=batch, dims=self.options.dims, input_shapes=self.options.input_shapes
        )

    def step_memory(
        self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]
    ) -> tuple[StepMemory, tuple[str, ...], tuple[str, ...]] | str:
        """See `OpenedModel`."""
        paths = simulation.checkpointed(self.loaded, checkpoint)
        dims = self.options.dims if batch is None else {**self.options.dims, "batch": batch}
        with training.batch_may_be_fixed(batch):
            bound_inputs = bind(self.loaded, self.options.input_shapes, dims)
        try:
            fact, notes = simulation.step_memory(self.loaded, bound_inputs, optimizer, paths)
        except simulation.SimulationError as error:
            return str(error)
        return fact, paths, notes

    def holding(self, loaded: LoadedModule) -> TorchModel:
        """Returns the opened model with a changed module and the same inputs and options."""
        copied_model = copy.copy(self)
        copied_model.loaded, copied_model._graph = loaded, None
        return copied_model

    def node_figures(self) -> Mapping[str, Mapping[str, int | None]]:
        """Returns figures of the nodes of the module's torch.export program, by their names."""
        return program_nodes(self.loaded, self.options)

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """Returns () for torchvision models, and None for a user's callable, which may do anything."""
        return () if self.loaded.torchvision and self.options.weights_file is None else None


class ModuleObject(TorchModel):
    """An nn.Module object of a Python program. It is not changed."""

    def __init__(self, module: nn.Module, inputs: Any, options: OpenOptions) -> None:
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise Misuse(f"a {kind} is neither a path, a name nor an nn.Module", where="source")
        if options.weights is not None:
            raise Misuse("an nn.Module object brings its own weights", where="weights", hint="leave it out")
        self.options = options
        self.loaded = _with_file(torch_module.of(module, inputs), options)
        self.source = self.loaded.source
        self._graph = None


def _with_file(loaded: LoadedModule, options: OpenOptions) -> LoadedModule:
    """Returns the model with the weights of the user's file, if there is one."""
    if options.weights_file is None:
        return loaded
    if options.weights is not None:
        raise Misuse(
            "both say what the weights are", where="--weights, --weights-file", hint="give one of them"
        )
    return with_file(loaded, options.weights_file)
