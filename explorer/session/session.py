"""Session: the one door to the engine, for the command line, the screen and Python programs.

None of them may grow its own way to open, count, tile or compare. A session keeps a history of models; every
entry is an ONNX file, so "before" is never touched by making "after", undo is a step back in a tuple, and a
session whose process died is restored from the history alone.

What can be asked stands in `methods`, by subject, and in the features, which add methods of their own
(`base.features`); `methods.public_api` has all of them with their types.
Importing this module is cheap: onnx, numpy and torch come with the part that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from explorer.base.checked import Natural, PathText, check_methods, checked
from explorer.base.errors import BadModel, Misuse
from explorer.base.features import load, offered
from explorer.host import input_files
from explorer.session import headers, methods
from explorer.session.parts.models import InputShapes, Models
from explorer.session.parts.session_parts import SessionParts

if TYPE_CHECKING:
    from torch import nn

    from explorer.base.outline import Outline
    from explorer.session.methods.public_api import PublicMethods as _Base
else:
    _Base = object


class Session(_Base):
    """A model, what is known of it, and what was made of it.

    Args:
        source: An ONNX file, a torchvision model's name, or `package.module:callable`; or an nn.Module
            object, which is never changed. (A session in a process of its own, `process.client`, takes paths
            and names only: an object would have to be sent there.)
        inputs: What to call an nn.Module object with: a tensor or array, a tuple of them, or a dict of
            keyword inputs; tensors may lie in nested tuples, lists and dicts. None: guessed from the model.
        weights: torchvision's name of trained weights; None for random, seeded ones.
        weights_file: A file of weights for a module: a state_dict, safetensors, a trainer's checkpoint. It is
            read, and nothing in it runs.
        dims: Sizes for symbolic dimensions: {'batch': 8}.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        seed: Of random weights.
        trust: Code in the model file may run.
        rules: A Python file with rules for operators of the user's own (needs `trust`).
        observe: Shapes that inference cannot find are taken from a run on random inputs.
        past: Decode mode: one new token behind this many in the key-value cache; None for a whole pass.
        workdir: Where transformed models are kept until they are saved; a temporary folder of the
            session's own by default, which `close` removes.
        cache: Whether what was found out about the same model before may be told again, and is kept for the
            next time (`explorer.session.cache.analysis_cache` says when it is the same).
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | nn.Module,
        *,
        inputs: Any = None,
        weights: str | None = None,
        weights_file: PathText | None = None,
        dims: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        seed: Natural = 0,
        trust: bool = False,
        rules: PathText | None = None,
        observe: bool = False,
        past: Natural | None = None,
        workdir: PathText | None = None,
        cache: bool = True,
    ) -> None:
        options: dict[str, Any] = {
            "weights": weights,
            "weights_file": weights_file,
            "dims": dict(dims or {}),
            "input_shapes": dict(input_shapes or {}),
            "seed": seed,
            "trust": trust,
            "rules": rules,
            "observe": observe,
            "past": past,
        }
        self.parts = SessionParts(Models(source, inputs, options, workdir, cache))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the models and removes the session's temporary folder."""
        self.parts.forget_beside()
        self.parts.models.close()

    @property
    def source(self) -> str:
        """Path or name of the model; the class of an nn.Module object."""
        return self.parts.models.source

    @property
    def workdir(self) -> str:
        """The folder for models that are not saved yet."""
        return self.parts.models.workdir

    @property
    def is_kept(self) -> bool:
        """Whether what was told so far was found out by another session, and the model is not open."""
        return self.parts.models.is_kept

    def outline(self) -> Outline:
        """What the header of the opened file says: modules, operators, tensors, in the file's own order.

        It needs no analysis and opens nothing: a model that cannot be analysed has one, too.

        Raises:
            BadModel: It is no model, or broken; also while the rows are iterated.
            Misuse: The model is no file.
        """
        if self.parts.models.module is not None:
            raise Misuse("an nn.Module object is no file whose header could be read", where=self.source)
        return headers.outline(self.source)

    def sha256(self) -> str | None:
        """Digest of the opened ONNX file, None for a module.

        Not part of `info`, because it reads the whole file: 0.2 s for 244 MB.

        Raises:
            BadModel: The file cannot be read any more.
        """
        if not self.parts.models.is_graph:
            return None
        import hashlib

        try:
            with input_files.binary(self.source) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BadModel(f"cannot be read: {error.strerror or error}", where=self.source) from None

    # the states, and which of them is current
    history = methods.states.history
    undo = methods.states.undo
    redo = methods.states.redo
    go = methods.states.go
    name = methods.states.name
    restore = methods.states.restore
    bind = methods.states.bind
    do = methods.changes.do
    # what is counted of a model, and what stands in its header
    open = methods.figure_methods.open
    info = methods.figure_methods.info
    info_at = methods.figure_methods.info_at
    stored = methods.figure_methods.stored
    analysis = methods.figure_methods.analysis
    packed_analysis = methods.figure_methods.packed_analysis
    memory = methods.figure_methods.memory
    roofline = methods.figure_methods.roofline
    training = methods.figure_methods.training
    training_memory = methods.figure_methods.training_memory
    training_over_time = methods.figure_methods.training_over_time
    torchinfo = methods.figure_methods.torchinfo
    ops = methods.figure_methods.ops
    layers = methods.figure_methods.layers
    column = methods.figure_methods.column
    overlay = methods.figure_methods.overlay
    search = methods.figure_methods.search
    # which layer feeds which, and what runs it
    connections = methods.connections.connections
    edges = methods.connections.edges
    fx_graph = methods.connections.fx_graph
    placement = methods.connections.placement
    # files that a session writes of itself
    save = methods.exports.save
    check_output = methods.exports.check_output
    script = methods.exports.script
    script_text = methods.exports.script_text


class _Method:
    """A method that a feature adds: its function is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, session: Session | None, owner: type[Session]) -> Any:
        method = checked(load("methods", self._name), argument_type)
        setattr(Session, self._name, method)
        return method if session is None else method.__get__(session, owner)


_ARGUMENTS = {
    "collections.abc": ("Callable", "Iterable", "Mapping", "Sequence"),
    "explorer.engine.convert.job": ("ExporterName", "ScriptMethod"),
    "explorer.facts.cost": ("Hardware",),
    "explorer.facts.evaluate.evaluation": ("Task",),
    "explorer.facts.external.machine": ("Machine",),
    "explorer.facts.models.listing": ("ModelFile",),
    "explorer.facts.quantize": ("FormatSweepSpec", "QuantizeSpec"),
    "explorer.facts.serving.spec": ("ServingSpec",),
    "explorer.facts.split.edit": ("EditStep",),
    "explorer.facts.split.part": ("PartSpec",),
    "explorer.facts.split.split": ("SplitSpec", "StageForm"),
    "explorer.facts.sweep": ("SweepSpec",),
    "explorer.facts.training": ("Optimizer",),
    "explorer.facts.verification": ("Tolerance",),
}
"""Records and choices that annotations of arguments name and their modules import for type checkers alone."""


def argument_type(name: str) -> Any:
    """What such a name stands for.

    Raises:
        KeyError: None of them is called so.
    """
    for home, names in _ARGUMENTS.items():
        if name in names:
            return getattr(import_module(home), name)
    raise KeyError(name)


check_methods(Session, argument_type)
for _name in offered("methods"):
    setattr(Session, _name, _Method(_name))


def reopen(path: str, **options: Any) -> Session:
    """A session of an ONNX file that need not have every dimension and input that `options` name."""
    session = Session(path, **options)
    session.parts.models.strict = False
    return session
