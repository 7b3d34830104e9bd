"""Opened-model protocol: what a model can be asked, whatever it was written in, and how it is to be opened.

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
        past: Decode mode: one new token behind this many in the key-value cache; None for a whole pass.
        prefill: The pass over the text of `past` tokens instead, with nothing in the cache.
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
    """Whether torchvision's trained weights can be asked for."""
    is_graph: bool
    """Whether it is an ONNX graph as it is, so that `graph` exports nothing."""
    options: OpenOptions

    def names(self) -> tuple[list[str], list[str]] | None:
        """Symbolic dimensions and inputs, which the user may name; None if they are not known yet."""
        ...

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
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

    def activations(self, request: ActivationRequest, layers: Sequence[Layer]) -> ActivationRun:
        """Runs the model and hands what its layers put out to `request`; `layers` are its rows."""
        ...

    def training(self, batch: int | None) -> StepGradients:
        """The model as it is trained, at a batch size or (None) at the sizes it was opened with."""
        ...

    def step_memory(
        self, optimizer: Optimizer, batch: int | None, checkpoint: Sequence[str]
    ) -> tuple[StepMemory, tuple[str, ...], tuple[str, ...]] | str:
        """A training step run by torch itself on shapes (see `training.simulation`).

        Returns:
            Its memory, the modules that the patterns in `checkpoint` mean, and what to know; or why nothing
            of the kind can be run.
        """
        ...

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """What of which files an analysis that found `info` was made from, and nothing else of the user's.

        None if nobody can say, if it may not come out the same again, or if it is made in no time.
        """
        ...


class StaticModel:
    """A model that is looked at and never run; what would need that is refused, and told why."""

    takes_weights = False
    is_graph = False
    no_graph: str
    no_run: str
    no_training: str

    def refuse(self, why: str) -> NoReturn:
        """Says that this cannot be asked of it.

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
    """Those of `dims` that `model` has.

    Of two models on the command line, and of the states of a session, one may have fixed a dimension
    that the other leaves open.
    """
    values = (*model.graph.inputs, *model.graph.values, *model.graph.outputs)
    symbols = {d for value in values for d in declared_shape(value) or () if isinstance(d, str)}
    return {name: size for name, size in dims.items() if name in symbols}


def check_names(opened: Sequence[OpenedModel], options: OpenOptions) -> None:
    """Every dimension and input that the user named must exist in one of the models.

    Raises:
        Misuse: One does not, and the nearest is named; or trained weights are asked for files.
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
    """`options` with the rules of the user's file, which is run here, once.

    Raises:
        Misuse: It may not run, or it fails.
    """
    if options.rules is None or options.own is not None:
        return options
    from explorer.engine.operators import user  # 11 ms, and few have rules of their own

    return replace(options, own=user.load(options.rules, trust=options.trust))
