"""What a session knows of its models: totals, layers, costs, values.

Everything here looks and changes nothing; see `explorer.session` for the door.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Analysis, Info, OpStat
from explorer.session.states import Cancel, InputShapes, OnProgress, States

if TYPE_CHECKING:
    from explorer.engine.formats.outline import Outline
    from explorer.facts.comparison import TorchinfoTable
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Activations, Weights

__all__ = ["Looking"]


class Looking(States):
    """The methods of `explorer.session.Session` that find something out about a model."""

    def open(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Info:
        """Opens the model.

        Returns:
            Its totals.

        Raises:
            BadModel: The source is no model, or a broken one.
            Misuse: An option does not fit it.
            MissingExtra: It needs a package that is not installed.
        """
        return self._examine(0, on_progress, cancel).info

    def info(self, index: int | None = None) -> Info:
        """Totals of the model at `index` of the history (None: the current one)."""
        return self._examine(self._at(index)).info

    def info_at(
        self, input_shapes: InputShapes, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Info:
        """Totals of the opened model at other sizes of its inputs; the session keeps those it has.

        Args:
            input_shapes: As `Session` takes them.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.
        """
        opened = self._open(on_progress)
        kept = opened.options
        # the dimensions of a graph are its own; the one of a module says what these shapes say
        dims = kept.dims if opened.names() else {}
        opened.options = replace(kept, dims=dims, input_shapes={**kept.input_shapes, **input_shapes})
        try:
            return self._told(0, opened.examine(on_progress=on_progress, cancel=cancel)).info
        finally:
            opened.options = kept

    def stored(self) -> Info:
        """What the opened module stores, and nothing of its work: for one whose inputs are not known.

        Raises:
            Misuse: It is no nn.Module.
        """
        from explorer.engine.models.torch.module import TorchModel

        opened = self._open(None)
        if not isinstance(opened, TorchModel):
            raise Misuse("only an nn.Module has inputs that nobody knows", where=self.source)
        return opened.stored()

    def analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """Totals and every layer of the model at `index` of the history (None: the current one)."""
        return self._examine(self._at(index), on_progress, cancel).analysis

    def memory(self, index: int | None = None) -> Memory:
        """What is alive at each step of the execution order, and the arena that holds it."""
        from explorer.engine.costs.memory.liveness import memory

        return memory(self._ordered(index))

    def roofline(self, machine: Machine, index: int | None = None) -> Roofline:
        """Every layer against the limits of a machine (see `explorer.settings.machines`)."""
        from explorer.engine.costs.memory.roofline import roofline

        return roofline(self._ordered(index).analysis, machine)

    def training(
        self, *, batch: int | None = None, optimizer: Optimizer = "sgd", index: int | None = None
    ) -> Training:
        """What one training step multiplies and keeps in memory, layer by layer and in total.

        Args:
            batch: Batch size; the model is analysed again for it. None leaves its sizes as they are.
            optimizer: 'sgd', 'momentum' or 'adam'.
            index: Which model of the history; None is the current one.

        Raises:
            Misuse: There is no such optimizer, or the model has no batch or only another one.
        """
        from explorer.engine.costs.training import onnx
        from explorer.engine.costs.training import step as training
        from explorer.engine.models.opened import dims_of

        training.check(batch, optimizer)
        at = self._at(index)
        if at == 0:
            return training.training(self._open(None).training(batch), optimizer)
        model = self._model(at)
        dims = dims_of(model, self._options["dims"])
        return training.training(onnx.step(model, batch=batch, dims=dims), optimizer)

    def weights(
        self,
        names: Sequence[str] = (),
        *,
        bins: int = 32,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Weights:
        """Statistics of stored tensors, read a slab at a time.

        Args:
            names: Globs over the names of tensors and the paths of layers and groups; empty means all.
            bins: Intervals of the histograms.
            index: Which model of the history; None is the current one.
            on_progress: Told how many tensors are done.
            cancel: Asked at every slab; True stops.

        Raises:
            Misuse: A glob matches nothing, or there is no memory for the weights of a module.
            Cancelled: `cancel` said so.
        """
        from explorer.engine.values import onnx_tensors, weights

        at = self._at(index)
        layers = self._rows(at, on_progress, cancel)
        opened = None if at else self._open(on_progress)
        # whatever was made of random weights is as random as they are
        made = onnx_tensors.stored(self._model(at)) if opened is None else ()
        tensors, notes = (made, self._random_weights()) if opened is None else opened.tensors()
        return weights.weights(
            tensors,
            names,
            source=self._label(at),
            layers=layers,
            notes=notes,
            bins=bins,
            on_progress=on_progress,
            cancel=cancel,
        )

    def activations(
        self,
        layers: Sequence[str] = (),
        *,
        input: str | None = None,
        seed: int = 0,
        bins: int = 32,
        output: str | None = None,
        overwrite: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Activations:
        """What the layers of a model put out for one input: statistics, and the values if asked for.

        Args:
            layers: Globs over the paths of layers; empty means every one.
            input: An .npy file, or an .npz file by names of inputs; None draws the input.
            seed: Of the drawn input, and the same for both kinds of model.
            bins: Intervals of the histograms.
            output: An .npz file that takes the values, named after their layers.
            overwrite: Whether an existing `output` may be replaced.
            index: Which model of the history; None is the current one.
            on_progress: Told how many layers have run.
            cancel: Asked at every layer; True stops, and nothing is written.

        Raises:
            Misuse: The input does not fit, a glob matches nothing, or `output` cannot be written.
            BadModel: The model fails before any of these layers has run; if it fails later, what ran until
                then is told, and `skipped` says where it failed and why.
            Cancelled: `cancel` said so.
        """
        from explorer.engine.models.opened import dims_of
        from explorer.engine.values import activations, onnx_activations

        at = self._at(index)
        if output is not None:
            self._check_target(output, overwrite, *([input] if input else []))
        rows = self._rows(at, on_progress, cancel)

        def run(asked: activations.ActivationRequest) -> activations.ActivationRun:
            if at == 0:
                return self._open(on_progress).activations(asked, rows)
            model = self._model(at, on_progress)
            dims = dims_of(model, self._options["dims"])
            return onnx_activations.run(model, rows, asked, dims=dims)

        found = activations.activations(
            run,
            layers,
            source=self._label(at),
            input=input,
            seed=seed,
            bins=bins,
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(found, notes=self._random_weights())

    def torchinfo(self) -> TorchinfoTable:
        """Torchinfo's own table of the opened model, and where its numbers are not ours and why.

        Raises:
            Misuse: The model is an ONNX file.
            MissingExtra: torchinfo is not installed.
            BadModel: torchinfo cannot run the model.
        """
        from explorer.engine.models.torch.module import TorchModel

        opened = self._open(None)
        if not isinstance(opened, TorchModel):
            raise Misuse(
                "torchinfo reads nn.Modules, and this file has none",
                where=self.source,
                hint="leave --style out: our own tree is for every format",
            )
        from explorer.engine.costs.compare import torchinfo as torchinfo_table

        shapes, dims = self._options["input_shapes"], self._options["dims"]
        return torchinfo_table.table(opened.loaded, self.analysis(0), input_shapes=shapes, dims=dims)

    def ops(self, index: int | None = None) -> tuple[OpStat, ...]:
        """Operator types of a model: how many, what they cost, the range of every attribute."""
        from explorer.engine.costs.operator_stats import operator_stats

        return operator_stats(self.analysis(index))

    def search(self, text: str, index: int | None = None) -> tuple[int, ...]:
        """Ids of the layers that match a query (see `explorer.settings.filter`)."""
        from explorer.settings import filter

        return filter.search(self.analysis(index).layers, text)

    def outline(self) -> Outline:
        """What the header of the opened file says: modules, operators, tensors, in the file's own order.

        It needs no analysis and opens nothing: a model that cannot be analysed has one, too.

        Raises:
            BadModel: It is no model, or broken; also while the rows are iterated.
            Misuse: The model is no file.
        """
        from explorer.session import headers

        if self._module is not None:
            raise Misuse("an nn.Module object is no file whose header could be read", where=self.source)
        return headers.outline(self.source)

    def sha256(self) -> str | None:
        """Digest of the opened ONNX file, None for a module.

        Not part of `info`, because it reads the whole file: 0.2 s for 244 MB.
        """
        if self._open(None).format != "onnx":
            return None
        import hashlib

        with open(self.source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
