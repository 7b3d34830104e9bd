"""Opened-model protocol: what every opened model answers, whatever its format, and the options to open it.

A format's own module makes an `OpenedModel`; nothing else in the program asks what format a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.engine.formats.onnx.containers import declared_shape
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
    """How a model is to be opened.

    Attributes:
        weights: torchvision's name of trained weights; None for random ones.
        weights_file: A file of weights for a module: state_dict, safetensors, a trainer's checkpoint.
        seed: Of the random weights.
        dims: Sizes of symbolic dimensions.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        trust: Code in the model file may run.
        rules: A Python file with rules for operators of the user's own; it runs only with `trust`.
        observe: Shapes that inference cannot find are taken from a run on random inputs.
        past: Decode mode: one new token after this many tokens in the KV cache; None for a full pass.
        prefill: The pass over a text of `past` tokens instead, with an empty cache.
        own: What the file of `rules` registered; `with_rules` fills it in.
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
    prefill: bool = False
    own: Rules | None = None


class OpenedModel(Protocol):
    """A model that has been opened, whatever it was written in."""

    format: str
    source: str
    takes_weights: bool
    """Whether `--weights` applies: the model has trained weights in torchvision."""
    is_graph: bool
    """Whether the model already is an ONNX graph, so that `graph` exports nothing."""
    options: OpenOptions

    def names(self) -> tuple[list[str], list[str]] | None:
        """Symbolic dimensions and inputs, which the user may name; None if they are not known yet."""
        ...

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """The full analysis at the sizes of the options, with the execution order."""
        ...

    def graph(self, folder: str, *, on_progress: OnProgress = None) -> Model:
        """The model as an ONNX graph; exported to a file in `folder` if it is not one already."""
        ...

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """Runs the model in its own framework on numpy arrays; None if it is ONNX itself."""
        ...

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """Every stored tensor, values unread, and notes about the values."""
        ...

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """Runs the model and passes the outputs of its layers to `request`; `layers` are its rows."""
        ...

    def training(self, batch: int | None) -> StepGradients:
        """The model as it is trained, at a batch size or (None) at the sizes it was opened with."""
        ...

    def step_memory(
        self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]
    ) -> tuple[StepMemory, tuple[str, ...], tuple[str, ...]] | str:
        """Memory of a training step that torch runs on shapes (see `training.simulation`).

        Returns:
            The memory, the modules that the patterns in `checkpoint` match, and notes; or the reason why no
            such step can run.
        """
        ...

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """The parts of files that the analysis `info` rests on; nothing else of the user's affects it.

        None if this is unknown, if the analysis may differ next time, or if it takes no time anyway.
        """
        ...


class StaticModel:
    """A model that is never run; requests that need a run are refused with the reason."""

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
        """See `OpenedModel`; refused."""
        self.refuse(self.no_graph)

    def runner(self) -> Callable[[Arrays], Arrays] | None:
        """See `OpenedModel`."""
        return None

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """See `OpenedModel`; refused."""
        self.refuse(self.no_run)

    def training(self, batch: int | None) -> StepGradients:
        """See `OpenedModel`; refused."""
        self.refuse(self.no_training)

    def step_memory(self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]) -> NoReturn:
        """See `OpenedModel`; refused."""
        self.refuse(self.no_training)

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """See `OpenedModel`; what is only described is described at once."""
        return None


def dims_of(model: Model, dims: Mapping[str, _T]) -> dict[str, _T]:
    """The entries of `dims` that `model` has.

    One of two models on the command line, or of the states of a session, may have fixed a dimension that
    the other leaves open.
    """
    values = (*model.graph.inputs, *model.graph.values, *model.graph.outputs)
    symbols = {d for value in values for d in declared_shape(value) or () if isinstance(d, str)}
    return {name: size for name, size in dims.items() if name in symbols}


def check_names(opened: Sequence[OpenedModel], options: OpenOptions) -> None:
    """Checks that every dimension and input from the user exists in one of the models.

    Raises:
        Misuse: One does not exist (the nearest is named), or `--weights` is given for files.
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
            hint = nearest(name, symbols) or "the model has no symbolic dimension"
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=hint)
    for name in options.input_shapes:
        if name not in inputs:
            raise Misuse(f"no input is called '{name}'", where="--input-shape", hint=nearest(name, inputs))


def with_rules(options: OpenOptions) -> OpenOptions:
    """`options` with the rules of the user's file, which runs here, once.

    Raises:
        Misuse: It may not run, or it fails.
    """
    if options.rules is None or options.own is not None:
        return options
    from explorer.engine.operators import user  # 11 ms, and few have rules of their own

    return replace(options, own=user.load(options.rules, trust=options.trust))
