"""Defines the protocol of an opened model of any format, and the options to open it.

The module of each format returns an `OpenedModel`. No other part of the program depends on the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.formats.onnx.containers import read_declared_shape
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import Layer

if TYPE_CHECKING:
    import numpy as np

    from explorer.engine.costs.memory.liveness import AnalysisResult
    from explorer.engine.costs.training.step import StepGradients
    from explorer.engine.graph.model import Model
    from explorer.engine.operators.call import Rules
    from explorer.engine.values.activations import ActivationRequest, ActivationRun
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Info
    from explorer.facts.training import Optimizer, StepMemory
    from explorer.host.file_reads import FileRead

    Arrays = Sequence[np.ndarray]

_T = TypeVar("_T")


class OpenOptions(Struct, frozen=True):
    """Options to open a model.

    Attributes:
        weights: torchvision's name of trained weights, or None for random weights.
        weights_file: Path of a file of weights for a module: state_dict, safetensors, or a trainer's
            checkpoint; or None.
        seed: Seed of the random weights.
        dims: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None) and shape of inputs by name, which replace the model's own.
        trust: Whether code in the model file may run.
        rules: Path of a Python file with rules for the user's operators, or None. The file runs only with
            `trust`.
        observe: Whether shapes that inference cannot find are observed in a run on random inputs.
        past: Number of tokens in the KV cache for a decode step of one new token, or None for a full pass.
        shapes: Whether the ONNX files that the session writes declare the type and shape of every value.
        prefill: Whether the pass over a text of `past` tokens with an empty cache is analyzed instead of the
            step.
        loaded_rules: Rules that the file of `rules` registered, set by `load_rules`.
    """

    weights: str | None = None
    weights_file: str | None = None
    seed: int = 0
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)
    trust: bool = False
    rules: str | None = None
    observe: bool = False
    past: int | None = None
    shapes: bool = False
    prefill: bool = False
    loaded_rules: Rules | None = None


class OpenedModel(Protocol):
    """An opened model of any format."""

    format: str
    source: str
    takes_weights: bool
    """Whether `--weights` and `--weights-file` apply: the model comes from code, not from a file."""
    is_graph: bool
    """Whether the model already is an ONNX graph, so that `graph` exports nothing."""
    options: OpenOptions

    def names(self) -> tuple[list[str], list[str]] | None:
        """Returns the symbolic dimensions and inputs that the user may name, or None if still unknown."""
        ...

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """Returns the full analysis at the sizes of the options, with the execution order."""
        ...

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """Returns the model as an ONNX graph. Other formats are exported to a file in `folder`."""
        ...

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """Returns a function that runs an nn.Module on numpy arrays, or None for models of other kinds."""
        ...

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """Returns every stored tensor, whose values are read on demand, and notes about the values."""
        ...

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """Runs the model and passes the outputs of its layers to `request`. `layers` are its rows."""
        ...

    def training(self, batch: int | None) -> StepGradients:
        """Returns the costs of a training step at a batch size, or for None at the sizes of the options."""
        ...

    def step_memory(
        self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]
    ) -> tuple[StepMemory, tuple[str, ...], tuple[str, ...]] | str:
        """Measures the memory of a training step that torch runs on the meta device.

        See `training.simulation`.

        Returns:
            The memory, the modules that the patterns in `checkpoint` match, and notes; or the reason why no
            such step can run.
        """
        ...

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """Returns the parts of files that determine the analysis `info`.

        The result is None if this is unknown, if the analysis may differ next time, or if it is fast anyway.
        """
        ...


class StaticModel:
    """A model that is never run.

    Attributes:
        no_graph, no_run, no_training: Reasons to refuse requests for a graph, a run or a training.
    """

    takes_weights = False
    is_graph = False
    no_graph: str
    no_run: str
    no_training: str

    def refuse(self, why: str) -> NoReturn:
        """Refuses a request.

        Raises:
            Misuse: Always.
        """
        raise NotImplementedError

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """Refuses the request. See `OpenedModel`."""
        self.refuse(self.no_graph)

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `OpenedModel`."""
        return None

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """Refuses the request. See `OpenedModel`."""
        self.refuse(self.no_run)

    def training(self, batch: int | None) -> StepGradients:
        """Refuses the request. See `OpenedModel`."""
        self.refuse(self.no_training)

    def step_memory(self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]) -> NoReturn:
        """Refuses the request. See `OpenedModel`."""
        self.refuse(self.no_training)

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """Returns None, because reading a description again is fast. See `OpenedModel`."""
        return None


def select_dims(model: Model, dims: Mapping[str, _T]) -> dict[str, _T]:
    """Returns the entries of `dims` that `model` has.

    The second model of a command, or an earlier state of a session, may have a fixed size for a dimension
    that the model leaves open.
    """
    values = (*model.graph.inputs, *model.graph.values, *model.graph.outputs)
    symbols = {dim for value in values for dim in read_declared_shape(value) or () if isinstance(dim, str)}
    return {name: size for name, size in dims.items() if name in symbols}


def check_names(opened: Sequence[OpenedModel], options: OpenOptions) -> None:
    """Checks that every dimension and input from the user exists in a model, if all models know their names.

    Raises:
        Misuse: A name does not exist (the hint is the nearest name), or `--weights` or `--weights-file` is
            passed although all models come from files.
    """
    for option, path in (("--weights", options.weights), ("--weights-file", options.weights_file)):
        if path is not None and not any(model.takes_weights for model in opened):
            raise Misuse("a file brings its own weights", where=option, hint="leave it out")
    names_by_model = [model.names() for model in opened]
    if None in names_by_model:
        return
    symbols = [name for names in names_by_model if names for name in names[0]]
    inputs = [name for names in names_by_model if names for name in names[1]]
    for name in options.dims:
        if name not in symbols:
            no_open = "all sizes are fixed; explorer rebatch MODEL BATCH -o FILE changes the batch"
            hint = suggest_name(name, symbols) or no_open
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=hint)
    for name in options.input_shapes:
        if name not in inputs:
            raise Misuse(
                f"no input is called '{name}'", where="--input-shape", hint=suggest_name(name, inputs)
            )


def name_only_input(
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]], names: Sequence[str]
) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Gives the shape that was typed without a name ('') the name of the model's only input.

    Args:
        input_shapes: Type (or None) and shape by input name.
        names: Inputs of the model that need a value.

    Raises:
        Misuse: The model has several inputs or none.
    """
    if "" not in input_shapes:
        return dict(input_shapes)
    if len(names) != 1:
        raise Misuse(
            f"the shape has no name, and the model has {len(names)} inputs",
            where="--input-shape",
            hint=f"write the name before the shape: {names[0]}:1,3,224,224" if names else "leave it out",
        )
    return {name or names[0]: shape for name, shape in input_shapes.items()}


def load_rules(options: OpenOptions) -> OpenOptions:
    """Runs the file of `rules` and returns the options with the rules that it registered.

    Raises:
        Misuse: The file may not run, or fails.
    """
    if options.rules is None or options.loaded_rules is not None:
        return options
    from explorer.engine.operators import user  # the import takes 11 ms, and few users have own rules

    return replace(options, loaded_rules=user.load(options.rules, trust=options.trust))
