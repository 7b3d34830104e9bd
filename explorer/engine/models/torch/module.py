"""A PyTorch module as an opened model: by its name, from a file, or as an object that a program holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Misuse

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.costs.memory.liveness import Examined
    from explorer.engine.costs.training.step import Step as TrainingStep
    from explorer.engine.formats.torch_module.inputs import Bound
    from explorer.engine.formats.torch_module.loaded import LoadedModule
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened import Arrays, Cancel, OnProgress, OpenOptions
    from explorer.engine.values.activations import Asked, Ran
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Info, Layer

__all__ = ["ModuleObject", "RebuiltModule", "TorchModel"]


class TorchModel:
    """A torchvision model by name, or what `package.module:callable` returns."""

    format = "torch"
    takes_weights = True

    def __init__(self, source: str, options: OpenOptions) -> None:
        from explorer.engine.formats.torch_module import loaded as torch_module

        self.source = source
        self.options = options
        self.loaded: LoadedModule = torch_module.load(source, weights=options.weights, seed=options.seed)
        self._graph: Model | None = None

    def names(self) -> tuple[list[str], list[str]] | None:
        """See `Opened`; a module checks the names itself when it is given its inputs."""
        return None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        from explorer.engine.costs.torch import analyse as module

        dims, shapes = self.options.dims, self.options.input_shapes
        if self.options.past is not None:
            from explorer.engine.costs.decode.step import step_of_module

            return step_of_module(
                self.loaded, self.options.past, dims, shapes, on_progress=on_progress, cancel=cancel
            )
        return module.examine(
            self.loaded, input_shapes=shapes, dims=dims, on_progress=on_progress, cancel=cancel
        )

    def stored(self) -> Info:
        """What the module stores, and nothing of its work: it needs no input."""
        from explorer.engine.costs.torch import analyse as module

        found = module.stored(self.loaded.meta(), source=self.source)
        about = replace(found.model, format=self.format)
        assumptions = {**found.assumptions, "weights": self.loaded.weights_text}
        return replace(found, model=about, assumptions=assumptions)

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `Opened`."""
        from explorer.engine.formats.onnx import reader
        from explorer.engine.formats.onnx.validate import validate
        from explorer.engine.formats.torch_module import loaded as torch_module

        if self._graph is None:
            name = os.path.basename(self.source)
            stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
            path = os.path.join(folder, f"{stem}.onnx")
            torch_module.export_onnx(
                self.loaded, self.options.input_shapes, path, on_progress, dims=self.options.dims
            )
            self._graph = validate(reader.read(path))
        return self._graph

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `Opened`."""
        from explorer.engine.formats.torch_module import loaded as torch_module

        return lambda arrays: torch_module.run(self.loaded, list(arrays))

    @property
    def weights_note(self) -> str:
        """Where the weights come from: 'random weights, seed 0'."""
        text = self.loaded.weights_text
        return f"random weights{text.removeprefix('random')}" if text.startswith("random") else text

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `Opened`."""
        from explorer.engine.values import torch_tensors

        def bind() -> Bound:
            return self.loaded.bind(self.options.input_shapes, self.options.dims)

        return torch_tensors.stored(torch_tensors.materialised(self.loaded, bind)), (self.weights_note,)

    def activations(self, asked: Asked, layers: Sequence[Layer]) -> Ran:
        """See `Opened`."""
        from explorer.engine.values import torch_activations

        shapes, dims = self.options.input_shapes, self.options.dims
        return torch_activations.run(self.loaded, layers, asked, dims=dims, input_shapes=shapes)

    def training(
        self, batch: int | None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> TrainingStep:
        """See `Opened`."""
        from explorer.engine.costs.training import torch

        return torch.step(
            self.loaded,
            batch=batch,
            dims=self.options.dims,
            input_shapes=self.options.input_shapes,
            on_progress=on_progress,
            cancel=cancel,
        )


class RebuiltModule(TorchModel):
    """A module that was rebuilt from a file of torch's.

    Args:
        format: What kind of file.
        source: Its path.
        options: How it was opened.
        loaded: What was made of it.
    """

    takes_weights = False

    def __init__(self, format: str, source: str, options: OpenOptions, loaded: LoadedModule) -> None:
        self.format = format
        self.source = source
        self.options = options
        self.loaded = loaded
        self._graph = None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)
        info = examined.info
        model = replace(info.model, format=self.format, file_bytes=os.path.getsize(self.source))
        return examined.with_info(replace(info, model=model))


class ModuleObject(TorchModel):
    """An nn.Module that a Python program holds; it stays as it is."""

    def __init__(self, module: nn.Module, inputs: Any, options: OpenOptions) -> None:
        from torch import nn

        from explorer.engine.formats.torch_module import loaded as torch_module

        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise Misuse(f"a {kind} is neither a path, a name nor an nn.Module", where="source")
        if options.weights is not None:
            raise Misuse("an nn.Module object brings its own weights", where="weights", hint="leave it out")
        self.options = options
        self.loaded = torch_module.of(module, inputs)
        self.source = self.loaded.source
        self._graph = None
