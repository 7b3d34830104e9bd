"""Session: the one door to the engine, for the command line, the screen and Python programs.

None of them may grow its own way to open, count, tile or compare. A session keeps a history of models; every
entry is an ONNX file, so "before" is never touched by making "after", undo is a step back in a tuple, and a
session whose process died is restored from the history alone.

What can be asked stands in `methods`, by subject; the parts that answer are fields (`parts`).
Importing this module is cheap: onnx, numpy and torch come with the part that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from explorer.base.checked import Count, Natural, PathText, Seconds, check_methods
from explorer.base.errors import BadModel, Misuse
from explorer.host import input_files
from explorer.session import headers, methods
from explorer.session.methods.facade import SessionParts
from explorer.session.parts.models import Cancel, InputShapes, Models, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from explorer.base.outline import Outline
    from explorer.facts.cost import Hardware
    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec


class Session:
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

    def sweep(
        self,
        spec: SweepSpec,
        *,
        hardware: Hardware | None = None,
        order: str = "best",
        verify: bool = False,
        draws: Count = 1,
        seed: Natural = 0,
        output: PathText | None = None,
        scheduler: str | None = None,
        workers: Count | None = None,
        layers: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Sweep:
        """A row for every combination of `spec`, of the current model; `sweep_files` takes several models.

        Args:
            spec: Tiles, edges and forms to combine.
            hardware: The machine; without one there are no cycles.
            order: Of the loops over tiles, as for `cost`.
            verify: Tile, write and prove each combination, too; the tiled files do not stay.
            draws: Random inputs for each proof.
            seed: Of the first draw.
            output: A file that keeps the rows as they are made: what it holds already is not done again.
            scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
            workers: Processes on this machine; 1 is this one, None as many as there are processors where
                that saves time.
            layers: Whether the answer lists the products of the model, too.
            on_progress: Told how many rows are done.
            cancel: Asked now and then; True stops, and what is done is kept.

        Raises:
            Misuse: No combination can be tiled, or `output` is no file of results.
            MissingExtra: `scheduler` needs Dask, which is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.session.sweep import sweep  # onnxruntime, processes

        return sweep(
            [(self, self.parts.models)],
            spec,
            reopen,
            hardware=hardware,
            order=order,
            verify=verify,
            draws=draws,
            seed=seed,
            output=output,
            scheduler=scheduler,
            workers=workers,
            layers=layers,
            on_progress=on_progress,
            cancel=cancel,
        )

    def sweep_formats(
        self,
        spec: FormatSweepSpec,
        *,
        state: int | None = None,
        output: PathText | None = None,
        scheduler: str | None = None,
        workers: Count | None = None,
        seconds: Seconds | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> FormatSweep:
        """Tries number formats on the current model, layer by layer if that is asked for.

        Args:
            spec: Formats, samples, limits of a mixed precision.
            state: Another state of the history; None for the current one.
            output: A file that keeps the rows as they are made: what it holds already is not done again.
            scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
            workers: Processes on this machine; 1 is this one, None as many as there are processors where
                that saves time.
            seconds: Begin no row after so many, in this process: `FormatSweep.open` says how many are left,
                and the same call goes on, without `output`, too, for as long as the session lasts.
            on_progress: Told how many rows are done.
            cancel: Asked now and then; True stops, and what is done is kept.

        Raises:
            Misuse: A format is not known, no layer takes one, or `output` is no file of results.
            MissingExtra: `scheduler` needs Dask, which is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.session.sweep import sweep_formats  # onnxruntime, processes

        with self.parts.quantizer.gone_to(state, back=True):
            return sweep_formats(
                [(self, self.parts.models)],
                spec,
                reopen,
                output=output,
                scheduler=scheduler,
                workers=workers,
                seconds=seconds,
                on_progress=on_progress,
                cancel=cancel,
            )

    def sweep_training(self, data: PathText, over: str, **how: Any) -> TrainingSweep:
        """Trains copies of the module in several ways; which does best on the held out samples.

        Args:
            data: As for `train`.
            over: What is tried: 'lr=1e-4..1e-2,batch=64,256,epochs=20,optimizer=adam,sgd'. All combinations;
                of a range those between its ends by tens (rates) or by doubling.
            how: `trials`, so many combinations, drawn at random from the whole of each range; `seed`, of what
                is drawn, and of every training; `output`, `scheduler`, `workers`, `on_progress`, `cancel` as
                for `sweep`; `take`, a row by its place (1 is the best) and a file for the checkpoint of it,
                which `weights_file` takes, and whether it may `overwrite` one; `labels`, `inputs`, `held`,
                `task` as for `train`.

        Raises:
            Misuse: As for `train`, of all trials; `over` cannot be read, or there is no such row.
            MissingExtra: PyTorch Lightning or Dask is not installed.
            Cancelled: `cancel` said so; what is done is kept.
        """
        from explorer.session.sweep import sweep_trainings  # onnxruntime, processes

        return sweep_trainings(self, self.parts.models, data, over, reopen, **how)

    # the states, and which of them is current
    history = methods.states.history
    undo = methods.states.undo
    redo = methods.states.redo
    go = methods.states.go
    name = methods.states.name
    restore = methods.states.restore
    bind = methods.states.bind
    edit = methods.states.edit
    # what is counted of a model, and what stands in its header
    open = methods.figures.open
    info = methods.figures.info
    info_at = methods.figures.info_at
    stored = methods.figures.stored
    analysis = methods.figures.analysis
    packed_analysis = methods.figures.packed_analysis
    memory = methods.figures.memory
    roofline = methods.figures.roofline
    training = methods.figures.training
    training_memory = methods.figures.training_memory
    training_over_time = methods.figures.training_over_time
    torchinfo = methods.figures.torchinfo
    ops = methods.figures.ops
    layers = methods.figures.layers
    column = methods.figures.column
    overlay = methods.figures.overlay
    placement = methods.figures.placement
    search = methods.figures.search
    # what a model costs at other sizes than its own
    size_names = methods.sizes.size_names
    sizes = methods.sizes.sizes
    decode = methods.sizes.decode
    serving = methods.sizes.serving
    # what feeds what
    connections = methods.graph.connections
    edges = methods.graph.edges
    graph = methods.graph.graph
    node_figures = methods.graph.node_figures
    fx_graph = methods.graph.fx_graph
    # what is in the weights, and what the layers put out
    weights = methods.values.weights
    activations = methods.values.activations
    values = methods.values.values
    heat_map = methods.values.heat_map
    # what the outputs are worth on a data file, and a small module trained on one
    evaluate = methods.data.evaluate
    train = methods.data.train
    module_digest = methods.data.module_digest
    # what a tiling would do and cost, and the state that it makes
    plan = methods.tiling.plan
    tiling = methods.tiling.tiling
    cost = methods.tiling.cost
    tile_steps = methods.tiling.tile_steps
    settings = methods.tiling.settings
    tile = methods.tiling.tile
    plan_module = methods.tiling.plan_module
    tile_module = methods.tiling.tile_module
    module_command = methods.tiling.module_command
    # what a choice of number formats would do, and does
    quantize_choice = methods.quantize.quantize_choice
    quantize_settings = methods.quantize.quantize_settings
    quantize = methods.quantize.quantize
    quantize_module = methods.quantize.quantize_module
    quantize_trial = methods.quantize.quantize_trial
    requantize = methods.quantize.requantize
    # time that is measured, beside what is counted
    profile = methods.profile.profile
    compare_profiles = methods.profile.compare_profiles
    # stages of a pipeline
    split = methods.split.split
    split_draft = methods.split.split_draft
    run_stages = methods.split.run_stages
    extract = methods.split.extract
    # operators that others can do, or that do nothing
    fold_choice = methods.fold.fold_choice
    fold = methods.fold.fold
    # whether two states compute the same, what changed, and which layer departs first
    check_input = methods.proofs.check_input
    verify = methods.proofs.verify
    blame = methods.proofs.blame
    diff = methods.proofs.diff
    tree_diff = methods.proofs.tree_diff
    compare = methods.proofs.compare
    beside = methods.proofs.beside
    # what is written, and the commands that write it
    save = methods.exports.save
    check_output = methods.exports.check_output
    conversions = methods.exports.conversions
    convert = methods.exports.convert
    rebatch = methods.exports.rebatch
    command = methods.exports.command
    script = methods.exports.script
    script_text = methods.exports.script_text
    keep_choices = methods.exports.keep_choices


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


def reopen(path: str, **options: Any) -> Session:
    """A session of an ONNX file that need not have every dimension and input that `options` name."""
    session = Session(path, **options)
    session.parts.models.strict = False
    return session
