"""What can be opened: a path or a name in, an opened model out.

A format says how it recognises a source and how it opens it; it is one row of `FORMATS`, and nothing
else in the program asks what format a model has. Modules behind a format are imported when a model of
that format is opened: who looks at an ONNX file does not wait for torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.errors import BadModel, Misuse, nearest
from explorer.facts import Layer, Progress

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from explorer.engine.analysis.memory import Examined
    from explorer.engine.analysis.rules import Rules
    from explorer.engine.analysis.training import Step as TrainingStep
    from explorer.engine.formats.torch_inputs import Bound
    from explorer.engine.formats.torch_module import LoadedModule
    from explorer.engine.graph import Model
    from explorer.engine.values.activations import Asked, Ran
    from explorer.engine.values.numbers import Numbers

    Arrays = Sequence[np.ndarray]

__all__ = [
    "FORMATS",
    "Format",
    "ModuleObject",
    "OnnxModel",
    "OpenOptions",
    "Opened",
    "TorchModel",
    "check_names",
    "dims_of",
    "open_model",
    "with_rules",
]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None


class OpenOptions(Struct, frozen=True):
    """How a model is to be opened.

    Attributes:
        weights: torchvision's name of trained weights; None for random ones.
        seed: Of the random weights.
        dims: Sizes of symbolic dimensions.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        trust: Code in the model file may run.
        rules: A Python file with rules for operators of the user's own; it runs only with `trust`.
        observe: Shapes that inference cannot find are taken from a run on random inputs.
        past: Decode mode: one new token behind this many in the key-value cache; None for a whole pass.
        own: What the file of `rules` registered; `with_rules` fills it in.
    """

    weights: str | None = None
    seed: int = 0
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)
    trust: bool = False
    rules: str | None = None
    observe: bool = False
    past: int | None = None
    own: Rules | None = None


class Opened(Protocol):
    """A model that has been opened, whatever it was written in."""

    format: str
    source: str

    def names(self) -> tuple[list[str], list[str]] | None:
        """Symbolic dimensions and inputs, which the user may name; None if they are not known yet."""
        ...

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """Everything known of the model, at the sizes it was opened with, and its execution order."""
        ...

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """The model as an ONNX graph; exported to a file in `folder` if it is not one already."""
        ...

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """Runs the model in its own framework on numpy arrays; None if it is ONNX itself."""
        ...

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """Every tensor that the model stores, its values unread; and what to know about the values."""
        ...

    def activations(self, asked: Asked, layers: Sequence[Layer]) -> Ran:
        """Runs the model and hands what its layers put out to `asked`; `layers` are its rows."""
        ...

    def training(
        self, batch: int | None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> TrainingStep:
        """The model as it is trained, at a batch size or (None) at the sizes it was opened with."""
        ...


class OnnxModel:
    """An ONNX file."""

    format = "onnx"

    def __init__(self, source: str, options: OpenOptions) -> None:
        from explorer.engine.collecting import uncollected
        from explorer.engine.formats import onnx_reader
        from explorer.engine.validate import validate

        self.source = source
        self.options = options
        with uncollected():
            self.model = validate(onnx_reader.read(source))

    def names(self) -> tuple[list[str], list[str]]:
        """See `Opened`."""
        graph = self.model.graph
        symbols = [d for v in graph.inputs for d in v.shape or () if isinstance(d, str)]
        return symbols, [v.name for v in graph.feeds]

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        from explorer.engine.analysis import onnx_model

        analysed = partial(
            onnx_model.examine,
            self.model,
            rules=self.options.own,
            observe=self.options.observe,
            on_progress=on_progress,
            cancel=cancel,
        )
        dims = dims_of(self.model, self.options.dims)
        shapes = {n: s for n, s in self.options.input_shapes.items() if n in self.names()[1]}
        if self.options.past is not None:
            from explorer.engine.analysis.decode import step_of_graph

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

    def activations(self, asked: Asked, layers: Sequence[Layer]) -> Ran:
        """See `Opened`."""
        from explorer.engine.values import onnx_activations

        shapes = {n: s for n, s in self.options.input_shapes.items() if n in self.names()[1]}
        dims = dims_of(self.model, self.options.dims)
        return onnx_activations.run(self.model, layers, asked, dims=dims, input_shapes=shapes)

    def training(
        self, batch: int | None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> TrainingStep:
        """See `Opened`."""
        from explorer.engine.analysis import training_onnx

        return training_onnx.step(
            self.model,
            batch=batch,
            dims=dims_of(self.model, self.options.dims),
            input_shapes={n: s for n, s in self.options.input_shapes.items() if n in self.names()[1]},
            own=self.options.own,
            on_progress=on_progress,
            cancel=cancel,
        )


class TorchModel:
    """A torchvision model by name, or what `package.module:callable` returns."""

    format = "torch"

    def __init__(self, source: str, options: OpenOptions) -> None:
        from explorer.engine.formats import torch_module

        self.source = source
        self.options = options
        self.loaded: LoadedModule = torch_module.load(source, weights=options.weights, seed=options.seed)
        self._graph: Model | None = None

    def names(self) -> tuple[list[str], list[str]] | None:
        """See `Opened`; a module checks the names itself when it is given its inputs."""
        return None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        from explorer.engine.analysis import module

        dims, shapes = self.options.dims, self.options.input_shapes
        if self.options.past is not None:
            from explorer.engine.analysis.decode import step_of_module

            return step_of_module(
                self.loaded, self.options.past, dims, shapes, on_progress=on_progress, cancel=cancel
            )
        return module.examine(
            self.loaded, input_shapes=shapes, dims=dims, on_progress=on_progress, cancel=cancel
        )

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """See `Opened`."""
        from explorer.engine.formats import onnx_reader, torch_module
        from explorer.engine.validate import validate

        if self._graph is None:
            name = os.path.basename(self.source)
            stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
            path = os.path.join(folder, f"{stem}.onnx")
            torch_module.export_onnx(
                self.loaded, self.options.input_shapes, path, on_progress, dims=self.options.dims
            )
            self._graph = validate(onnx_reader.read(path))
        return self._graph

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `Opened`."""
        from explorer.engine.formats import torch_module

        return lambda arrays: torch_module.run(self.loaded, list(arrays))

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `Opened`."""
        from explorer.engine.values import torch_tensors

        text = self.loaded.weights_text
        note = f"random weights{text.removeprefix('random')}" if text.startswith("random") else text

        def bind() -> Bound:
            return self.loaded.bind(self.options.input_shapes, self.options.dims)

        return torch_tensors.stored(torch_tensors.materialised(self.loaded, bind)), (note,)

    def activations(self, asked: Asked, layers: Sequence[Layer]) -> Ran:
        """See `Opened`."""
        from explorer.engine.values import torch_activations

        shapes, dims = self.options.input_shapes, self.options.dims
        return torch_activations.run(self.loaded, layers, asked, dims=dims, input_shapes=shapes)

    def training(
        self, batch: int | None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> TrainingStep:
        """See `Opened`."""
        from explorer.engine.analysis import training_torch

        return training_torch.step(
            self.loaded,
            batch=batch,
            dims=self.options.dims,
            input_shapes=self.options.input_shapes,
            on_progress=on_progress,
            cancel=cancel,
        )


class ModuleObject(TorchModel):
    """An nn.Module that a Python program holds; it stays as it is."""

    def __init__(self, module: nn.Module, inputs: Any, options: OpenOptions) -> None:
        from torch import nn

        from explorer.engine.formats import torch_module

        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise Misuse(f"a {kind} is neither a path, a name nor an nn.Module", where="source")
        if options.weights is not None:
            raise Misuse("an nn.Module object brings its own weights", where="weights", hint="leave it out")
        self.options = options
        self.loaded = torch_module.of(module, inputs)
        self.source = self.loaded.source
        self._graph = None


class Format(Struct, frozen=True):
    """How a kind of model is recognised and opened.

    Attributes:
        name: What `ModelInfo.format` says.
        about: For a person.
        recognise: Whether a source is of this kind; must be cheap and import nothing heavy.
        open: Opens it.
    """

    name: str
    about: str
    recognise: Callable[[str], bool]
    open: Callable[[str, OpenOptions], Opened]


def _is_file(source: str) -> bool:
    if os.path.exists(source) or source.endswith(".onnx"):
        return True
    return os.sep in source and not _is_code(source)


def _is_name(source: str) -> bool:
    module, _, attribute = source.partition(":")
    if _is_code(source):
        return True
    return all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")) if part)


def _is_code(source: str) -> bool:
    """Whether it names something in a file of Python: path/file.py:callable."""
    path, _, attribute = source.rpartition(":")
    return path.endswith(".py") and all(part.isidentifier() for part in attribute.split("."))


def _is_torch_file(source: str) -> bool:
    """Recognises files of torch's by their content, before their name."""
    from explorer.engine.formats.torch_files import kind_of

    return kind_of(source) != ""


def _open_torch_file(source: str, options: OpenOptions) -> Opened:
    from explorer.engine.formats.torch_files import open_file

    return open_file(source, options)


FORMATS: tuple[Format, ...] = (
    # one row for the kinds, so that a file's first bytes are looked at once
    Format(
        "torch file",
        "a TorchScript file (.pt); an exported program (.pt2)",
        _is_torch_file,
        _open_torch_file,
    ),
    Format("onnx", "an ONNX file", _is_file, OnnxModel),
    Format("torch", "a torchvision model's name, or package.module:callable", _is_name, TorchModel),
)
"""In the order in which they are asked: a file of a name goes before a model of that name."""


def dims_of(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """Those of `dims` that `model` has.

    Of two models on the command line, and of the states of a session, one may have fixed a dimension
    that the other leaves open.
    """
    values = (*model.graph.inputs, *model.graph.values, *model.graph.outputs)
    symbols = {d for value in values for d in value.shape or () if isinstance(d, str)}
    return {name: size for name, size in dims.items() if name in symbols}


def check_names(opened: Sequence[Opened], options: OpenOptions) -> None:
    """Every dimension and input that the user named must exist in one of the models.

    Raises:
        Misuse: One does not, and the nearest is named; or trained weights are asked for ONNX files.
    """
    if options.weights is not None and all(model.format != TorchModel.format for model in opened):
        what = "an ONNX file" if all(model.format == OnnxModel.format for model in opened) else "a file"
        raise Misuse(f"{what} brings its own weights", where="--weights", hint="leave it out")
    known = [model.names() for model in opened]
    if None in known:
        return
    symbols = [name for names in known if names for name in names[0]]
    inputs = [name for names in known if names for name in names[1]]
    for name in options.dims:
        if name not in symbols:
            hint = nearest(name, symbols) or "the model has no symbolic dimension"
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=hint)
    for name in options.input_shapes:
        if name not in inputs:
            raise Misuse(f"no input is called '{name}'", where="--input-shape", hint=nearest(name, inputs))


def with_rules(options: OpenOptions) -> OpenOptions:
    """`options` with the rules of the user's file, which is run here, once.

    Raises:
        Misuse: It may not run, or it fails.
    """
    if options.rules is None or options.own is not None:
        return options
    from explorer.engine.analysis.rules import user

    return replace(options, own=user.load(options.rules, trust=options.trust))


def open_model(source: str, options: OpenOptions) -> Opened:
    """Opens what `source` names.

    Raises:
        BadModel: It is no model, is broken, or is nothing that we know.
        Misuse: An option does not fit the model.
        MissingExtra: It needs a package that is not installed.
    """
    options = with_rules(options)
    for known in FORMATS:
        if known.recognise(source):
            return known.open(source, options)
    kinds = "; ".join(f.about for f in FORMATS)
    raise BadModel("this is neither a file nor a model's name", where=source, hint=f"a model is {kinds}")
