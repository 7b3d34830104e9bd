"""Session: the only entrance to the engine, for the command line, the screen and Python programs.

All three open, count, tile and compare models through a session, which keeps a history of states. Every state
is a file of its own, so a change never touches the model before it, undo selects an earlier state, and the
history alone restores a session whose process died.

Methods are functions in `methods`, by subject, and in the features (`base.features`). `methods.public_api`
lists all of them with their types. Importing this module is cheap: the parts import onnx, numpy and torch
when they need them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from explorer.base.checked import Natural, PathText, check_methods, wrap_checked
from explorer.base.errors import BadModel, Misuse
from explorer.base.features import list_offers, load
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
    """A model, its analysis, and the models made from it.

    Args:
        source: Path of an ONNX file or another supported file, name of a torchvision model,
            `package.module:callable`, or an nn.Module object, which is never changed. A session in its own
            process (`process.client`) accepts only paths and names, because an object would have to be sent
            there.
        inputs: Inputs with which to call an nn.Module object: a tensor or array, a tuple of them, or a dict
            of keyword inputs. Tensors may be nested in tuples, lists and dicts. None guesses them from the
            model.
        kwargs: Keyword inputs of an nn.Module object, beside the positional ones in `inputs`.
        weights: Name of trained weights in torchvision, or None for random, seeded weights.
        weights_file: Path of a file of weights for a module: a state_dict, safetensors, or a trainer's
            checkpoint. No code in it runs.
        dims: Sizes for symbolic dimensions: {'batch': 8}.
        input_shapes: Map from input name to (dtype or None, shape), which replaces the model's own
            declaration.
        seed: Seed of random weights.
        trust: Whether code in the model file may run.
        rules: Path of a Python file with rules for the user's own operators (needs `trust`).
        observe: Whether a run on random inputs finds the shapes that inference cannot find.
        past: Number of tokens in the KV cache for decode mode, which processes one new token; None for a full
            pass.
        shapes: Whether the ONNX files that the session writes declare the inferred type and shape of every
            value (see `infer`).
        partial: Whether a module whose code fails has figures up to the failed layer. By default its figures
            are refused with an `ExplorerError` that names the layer and the shapes.
        workdir: Folder for changed models until they are saved. None uses a temporary folder, which `close`
            removes.
        cache: Whether to reuse the stored analysis of the same model and to store new analyses.
            `explorer.session.cache.analysis_cache` defines when a model is the same.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | nn.Module,
        *,
        inputs: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        weights: str | None = None,
        weights_file: PathText | None = None,
        dims: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        seed: Natural = 0,
        trust: bool = False,
        rules: PathText | None = None,
        observe: bool = False,
        past: Natural | None = None,
        shapes: bool = False,
        partial: bool = False,
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
            "shapes": shapes,
        }
        models = Models(source, inputs, options, workdir, cache, kwargs)
        models.partial = partial
        self.parts = SessionParts(models)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        models, entries = self.parts.models, self.parts.models.history.entries
        info, entry = models.current_info, entries[models.current]
        state = f", state {models.current} of {len(entries) - 1}: {entry.name or entry.label}" * (
            len(entries) > 1
        )
        figures = ", not analyzed yet"
        if info is not None:
            sign, macs = info.totals.sign, info.totals.macs
            counts = f"{sign}{macs:,} MACs" if macs is not None else "unknown MACs"
            figures = f", {counts}, {info.totals.stored_sign}{info.totals.params:,} parameters"
        return f"<Session of '{self.source}'{state}{figures}>"

    def _repr_html_(self) -> str | None:
        """Return HTML of totals and states, or None before the analysis or if no feature draws HTML."""
        models = self.parts.models
        info = models.current_info
        if info is None or "html" not in list_offers("displays"):
            return None
        draw = load("displays", "html")
        history = models.history if len(models.history.entries) > 1 else None
        texts = [draw(fact) for fact in (info, history) if fact is not None]
        return None if None in texts else "".join(texts)

    def close(self) -> None:
        """Releases the models and removes the session's temporary folder."""
        self.parts.close_second_model()
        self.parts.models.close()

    @property
    def source(self) -> str:
        """Path or name of the model, or the class name of an nn.Module object."""
        return self.parts.models.source

    @property
    def workdir(self) -> str:
        """Folder for models that are not saved yet."""
        return self.parts.models.workdir

    @property
    def is_kept(self) -> bool:
        """Whether the analysis comes from the cache and the model is not open."""
        return self.parts.models.is_kept

    def outline(self) -> Outline:
        """Reads the header of the opened file: modules, operators and tensors, in the order of the file.

        It needs no analysis, so it also works for a model that cannot be analyzed.

        Raises:
            BadModel: The file is not a model or is broken; also raised during the iteration of the rows.
            Misuse: The model is an nn.Module object.
        """
        if self.parts.models.module is not None:
            raise Misuse("an nn.Module object is not a file whose header could be read", where=self.source)
        return headers.read_outline(self.source)

    def sha256(self) -> str | None:
        """Return the SHA-256 digest of the opened ONNX file, or None for a module.

        It is not part of `info`, because it reads the complete file: 0.2 s for 244 MB.

        Raises:
            BadModel: The file can no longer be read.
        """
        if not self.parts.models.is_graph:
            return None
        import hashlib

        try:
            with input_files.open_binary(self.source) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BadModel(f"cannot be read: {error.strerror or error}", where=self.source) from None

    # states of the history
    history = methods.states.history
    undo = methods.states.undo
    redo = methods.states.redo
    go = methods.states.go
    name = methods.states.name
    restore = methods.states.restore
    bind = methods.states.bind
    do = methods.changes.do
    # figures of a model
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
    torchsummary = methods.figure_methods.torchsummary
    ops = methods.figure_methods.ops
    layers = methods.figure_methods.layers
    column = methods.figure_methods.column
    overlay = methods.figure_methods.overlay
    search = methods.figure_methods.search
    # connections between layers, and execution providers
    connections = methods.connections.connections
    edges = methods.connections.edges
    fx_graph = methods.connections.fx_graph
    placement = methods.connections.placement
    # files that a session writes
    save = methods.exports.save
    check_output = methods.exports.check_output
    script = methods.exports.script
    script_text = methods.exports.script_text


class _Method:
    """Descriptor of a method that a feature adds. It imports the method's function on first access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, session: Session | None, owner: type[Session]) -> Any:
        method = wrap_checked(load("methods", self._name), argument_type)
        setattr(Session, self._name, method)
        return method if session is None else method.__get__(session, owner)


_ARGUMENTS = {
    "collections.abc": ("Callable", "Iterable", "Mapping", "Sequence"),
    "explorer.facts.check": ("CheckSpec",),
    "explorer.facts.conversion": ("ExporterName", "ScriptMethod"),
    "explorer.facts.cost": ("Hardware", "OrderName"),
    "explorer.facts.evaluate.evaluation": ("Task",),
    "explorer.facts.external.machine": ("Machine",),
    "explorer.facts.models.listing": ("ModelFile",),
    "explorer.facts.quantize": ("FormatSweepSpec", "QuantizeSpec"),
    "explorer.facts.serving.spec": ("ServingSpec",),
    "explorer.facts.split.edit": ("EditStep",),
    "explorer.facts.split.infer": ("InferSpec",),
    "explorer.facts.split.part": ("PartSpec",),
    "explorer.facts.split.split": ("SplitSpec", "StageForm"),
    "explorer.facts.sweep": ("SweepSpec",),
    "explorer.facts.training": ("Optimizer",),
    "explorer.facts.user_pass": ("PassSpec",),
    "explorer.facts.verification": ("Tolerance",),
}
"""Types in annotations that modules import only for type checkers, by the module that defines them."""


def argument_type(name: str) -> Any:
    """Resolves the name of a type in an annotation.

    Raises:
        KeyError: `_ARGUMENTS` does not contain the name.
    """
    for module, names in _ARGUMENTS.items():
        if name in names:
            return getattr(import_module(module), name)
    raise KeyError(name)


check_methods(Session, argument_type)
for _name in list_offers("methods"):
    setattr(Session, _name, _Method(_name))


def reopen(path: str, **options: Any) -> Session:
    """Opens an ONNX file as a session, and ignores dimensions and inputs in `options` that the file lacks."""
    session = Session(path, **options)
    session.parts.models.strict = False
    return session
