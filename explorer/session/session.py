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
from typing import TYPE_CHECKING, Any, Self

from explorer.base.errors import Misuse
from explorer.session import headers
from explorer.session.methods.data import DataMethods
from explorer.session.methods.exports import ExportMethods
from explorer.session.methods.figures import FigureMethods
from explorer.session.methods.fold import FoldMethods
from explorer.session.methods.graph import GraphMethods
from explorer.session.methods.profile import ProfileMethods
from explorer.session.methods.proofs import ProofMethods
from explorer.session.methods.quantize import QuantizeMethods
from explorer.session.methods.sizes import SizeMethods
from explorer.session.methods.split import SplitMethods
from explorer.session.methods.states import StateMethods
from explorer.session.methods.tiling import TilingMethods
from explorer.session.methods.values import ValueMethods
from explorer.session.parts.models import Cancel, InputShapes, Models, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from explorer.base.outline import Outline
    from explorer.facts.cost import Hardware
    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec


class Session(
    StateMethods,
    FigureMethods,
    SizeMethods,
    GraphMethods,
    ValueMethods,
    DataMethods,
    TilingMethods,
    QuantizeMethods,
    ProfileMethods,
    SplitMethods,
    FoldMethods,
    ProofMethods,
    ExportMethods,
):
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
        weights_file: str | None = None,
        dims: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        seed: int = 0,
        trust: bool = False,
        rules: str | None = None,
        observe: bool = False,
        past: int | None = None,
        workdir: str | None = None,
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
        self._models = Models(source, inputs, options, workdir, cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the models and removes the session's temporary folder."""
        self._forget_beside()
        self._models.close()

    @property
    def source(self) -> str:
        """Path or name of the model; the class of an nn.Module object."""
        return self._models.source

    @property
    def workdir(self) -> str:
        """The folder for models that are not saved yet."""
        return self._models.workdir

    @property
    def is_kept(self) -> bool:
        """Whether what was told so far was found out by another session, and the model is not open."""
        return self._models.is_kept

    def outline(self) -> Outline:
        """What the header of the opened file says: modules, operators, tensors, in the file's own order.

        It needs no analysis and opens nothing: a model that cannot be analysed has one, too.

        Raises:
            BadModel: It is no model, or broken; also while the rows are iterated.
            Misuse: The model is no file.
        """
        if self._models.module is not None:
            raise Misuse("an nn.Module object is no file whose header could be read", where=self.source)
        return headers.outline(self.source)

    def sha256(self) -> str | None:
        """Digest of the opened ONNX file, None for a module.

        Not part of `info`, because it reads the whole file: 0.2 s for 244 MB.
        """
        if not self._models.is_graph:
            return None
        import hashlib

        with open(self.source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def sweep(
        self,
        spec: SweepSpec,
        *,
        hardware: Hardware | None = None,
        order: str = "best",
        verify: bool = False,
        draws: int = 1,
        seed: int = 0,
        output: str | None = None,
        scheduler: str | None = None,
        workers: int | None = None,
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
            [(self, self._models)],
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
        output: str | None = None,
        scheduler: str | None = None,
        workers: int | None = None,
        seconds: float | None = None,
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

        with self._quantizer.gone_to(state, back=True):
            return sweep_formats(
                [(self, self._models)],
                spec,
                reopen,
                output=output,
                scheduler=scheduler,
                workers=workers,
                seconds=seconds,
                on_progress=on_progress,
                cancel=cancel,
            )

    def sweep_training(self, data: str, over: str, **how: Any) -> TrainingSweep:
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

        return sweep_trainings(self, self._models, data, over, reopen, **how)


def reopen(path: str, **options: Any) -> Session:
    """A session of an ONNX file that need not have every dimension and input that `options` name."""
    session = Session(path, **options)
    session._models.strict = False
    return session
