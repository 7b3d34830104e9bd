"""Session: the one door to the engine, for the command line, the screen and Python programs.

None of them may grow its own way to open, count, tile or compare. A session keeps a history of models; every
entry is an ONNX file, so "before" is never touched by making "after", undo is a step back in a tuple, and a
session whose process died is restored from the history alone.

Here stands what can be asked; the parts that answer are fields. Importing this module is cheap: onnx, numpy
and torch come with the part that needs them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import (
    Analysis,
    Diff,
    History,
    Info,
    LayerTable,
    OpStat,
    Plan,
    TileResult,
    TileSpec,
    Verification,
)
from explorer.session import headers
from explorer.session import history as states
from explorer.session.models import Cancel, Dims, InputShapes, Models, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from explorer.base.outline import Outline
    from explorer.engine.graph_view.graphs import ModelGraphs
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import TorchinfoTable
    from explorer.facts.conversion import Conversion
    from explorer.facts.cost import Hardware, PlanCost
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
    from explorer.facts.graph.edges import RowEdges
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.settings import Settings
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Activations, Weights
    from explorer.facts.verification import Tolerance
    from explorer.session.compare import Comparer
    from explorer.session.export import Exporter
    from explorer.session.figures import ModelFigures
    from explorer.session.proofs import Prover
    from explorer.session.tiling import Tiler
    from explorer.session.torch_modules import ModuleTiler
    from explorer.session.values import ModelValues


class Session:
    """A model, what is known of it, and what was made of it.

    Args:
        source: An ONNX file, a torchvision model's name, or `package.module:callable`; or an nn.Module
            object, which is never changed. (A session in a process of its own, `process.client`, takes paths
            and names only: an object would have to be sent there.)
        inputs: What to call an nn.Module object with: a tensor or array, a tuple of them, or a dict of
            keyword inputs; tensors may lie in nested tuples, lists and dicts. None: guessed from the model.
        weights: torchvision's name of trained weights; None for random, seeded ones.
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
            next time (`explorer.session.kept.analysis_cache` says when it is the same).
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | nn.Module,
        *,
        inputs: Any = None,
        weights: str | None = None,
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

    # states

    def history(self) -> History:
        """All states of the session and which is current."""
        return self._models.history

    def undo(self) -> History:
        """One step back; at the original it stays there."""
        self._models.history = states.step(self._models.history, -1)
        return self._models.history

    def redo(self) -> History:
        """One step forward again; at the newest state it stays there."""
        self._models.history = states.step(self._models.history, 1)
        return self._models.history

    def go(self, index: int) -> History:
        """To any state: it becomes the current one, and the others stay where they are.

        Raises:
            Misuse: The history has no such entry.
        """
        self._models.history = replace(self._models.history, current=self._models.at(index))
        return self._models.history

    def name(self, index: int, text: str) -> History:
        """Gives a state a name of the user's own; an empty one takes it away.

        Raises:
            Misuse: The history has no such entry.
        """
        at, words = self._models.at(index), " ".join(text.split())[: states.LONGEST_NAME]
        self._models.history = states.amend(self._models.history, at, name=words)
        return self._models.history

    def restore(self, history: History) -> History:
        """Takes up the history of another session of the same source, whose process ended."""
        self._models.restore(history)
        return history

    def bind(
        self, dims: Mapping[str, int], *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> History:
        """Takes sizes for dimensions that the model leaves open, in place of those that it was opened with.

        Args:
            dims: Sizes by name; what is left out stays open.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops, and all is as before.

        Raises:
            Misuse: There is no such dimension, the model cannot be of that size, or a state is of another.
        """
        self._models.bind(dims, on_progress, cancel)
        return self._models.history

    # figures and values

    def open(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Info:
        """Opens the model.

        Returns:
            Its totals.

        Raises:
            BadModel: The source is no model, or a broken one.
            Misuse: An option does not fit it.
            MissingExtra: It needs a package that is not installed.
        """
        return self._models.examined(0, on_progress, cancel).info

    def info(self, index: int | None = None) -> Info:
        """Totals of the model at `index` of the history (None: the current one)."""
        return self._models.examined(self._models.at(index)).info

    def info_at(
        self, input_shapes: InputShapes, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Info:
        """Totals of the opened model at other sizes of its inputs; the session keeps those it has.

        Args:
            input_shapes: As `Session` takes them.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.
        """
        return self._figures.info_at(input_shapes, on_progress, cancel)

    def stored(self) -> Info:
        """What the opened module stores, and nothing of its work: for one whose inputs are not known.

        Raises:
            Misuse: It is no nn.Module.
        """
        return self._figures.stored()

    def analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """Totals and every layer of the model at `index` of the history (None: the current one)."""
        return self._models.analysis(self._models.at(index), on_progress, cancel)

    def packed_analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """As `analysis`, but its layers are packed, and each is made when it is looked at: of very many."""
        return self._models.pages(self._models.at(index), on_progress, cancel)

    def memory(self, index: int | None = None) -> Memory:
        """What is alive at each step of the execution order, and the arena that holds it."""
        return self._models.memory(self._models.at(index))

    def connections(self, layer: str | int, index: int | None = None) -> Connections:
        """Which layers feed a layer or group, and which ones read what it makes.

        Args:
            layer: Its path, its name or a glob where that is enough, or its id.
            index: Which model of the history; None is the current one.

        Raises:
            Misuse: There is no such layer, or there are several.
        """
        return self._figures.connections(layer, index)

    def edges(self, index: int | None = None) -> RowEdges:
        """Which rows of the layer tree feed which further down, by their ids."""
        return self._figures.edges(index)

    def roofline(self, machine: Machine, index: int | None = None) -> Roofline:
        """Every layer against the limits of a machine (see `explorer.settings.machines`)."""
        return self._figures.roofline(machine, index)

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
        return self._figures.training(batch, optimizer, index)

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
        return self._values.weights(names, bins, index, on_progress, cancel)

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
        return self._values.activations(
            layers, input, seed, bins, output, overwrite, index, on_progress, cancel
        )

    def torchinfo(self) -> TorchinfoTable:
        """Torchinfo's own table of the opened model, and where its numbers are not ours and why.

        Raises:
            Misuse: The model is an ONNX file.
            MissingExtra: torchinfo is not installed.
            BadModel: torchinfo cannot run the model.
        """
        if not self._models.from_torch:
            raise Misuse(
                "torchinfo reads nn.Modules, and this file has none",
                where=self.source,
                hint="leave --style out: our own tree is for every format",
            )
        return self._module_tiler.torchinfo()

    def ops(self, index: int | None = None) -> tuple[OpStat, ...]:
        """Operator types of a model: how many, what they cost, the range of every attribute."""
        return self._models.ops(self._models.at(index))

    def layers(
        self,
        query: str = "",
        columns: Sequence[str] = (),
        *,
        style: str = "tree",
        sort: str = "",
        depth: int | None = None,
        flat: bool = False,
        machine: Machine | None = None,
        spec: TileSpec | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
    ) -> LayerTable:
        """Rows of the layer tree as a table: filtered, folded, sorted, with columns.

        Args:
            query: A filter (see `explorer.settings.filter`): what it finds stays, and the groups around it,
                which sum what is left in them. Empty keeps all.
            columns: By name (see `explorer.settings.columns`); empty takes those of the style.
            style: 'tree', 'torchinfo', 'torchsummary', 'keras' or 'sizes'.
            sort: A column: siblings with the largest first, texts from A; the other way behind a minus.
            depth: Levels of the tree, from 1.
            flat: Rows without others in them only, one below the other, sorted together.
            machine: Of the column `time`.
            spec: A tiling: of the column `utilization`.
            index: Which model of the history; None is the current one.
            on_progress: Told where a plan stands.

        Raises:
            Misuse: There is no such column or style, a column needs a machine or a tile, or the filter
                cannot be read.
        """
        plan = None if spec is None else self._tiler.plan(spec, on_progress, at=index)[0]
        return self._figures.table(
            query,
            columns,
            style=style,
            sort=sort,
            depth=depth,
            flat=flat,
            machine=machine,
            plan=plan,
            index=index,
        )

    def graph(
        self,
        layer: str | int | None = None,
        *,
        depth: int | None = None,
        nested: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> GraphDrawing:
        """A model as a graph, laid out: which layer feeds which, with groups folded.

        Args:
            layer: A group, whose inside is drawn, or a layer, which is drawn with what feeds and reads it:
                its path, its name, a glob or a filter that only one has, or its id. None: the whole model.
            depth: How many levels of groups are opened (1: none); of a layer, how many edges away. None: as
                many as a readable drawing has room for.
            nested: Groups stay closed, and every one brings a drawing of its inside.
            index: Which model of the history; None is the current one.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.

        Raises:
            Misuse: There is no such layer, or nobody knows what feeds what: a file of tensors.
        """
        examined = self._models.examined(self._models.at(index), on_progress, cancel)
        row = None if layer is None else self._figures.row(layer, index)
        return self._graphs.draw(examined, self.source, row, depth, nested, cancel)

    def node_figures(
        self,
        figure: str = "macs",
        *,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> NodeFigures:
        """A figure of every node of the graph, by the names that Model Explorer knows nodes by.

        Args:
            figure: One of `explorer.facts.graph.drawing.FIGURES`: 'macs', 'params', 'activations', ...
            index: Which model of the history; None is the current one.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.

        Raises:
            Misuse: There is no such figure, or the model has no nodes with names: an nn.Module.
        """
        at = self._models.at(index)
        examined = self._models.examined(at, on_progress, cancel)
        return self._graphs.node_figures(examined, self._models.opened(at), self.source, figure)

    def search(self, text: str, index: int | None = None) -> tuple[int, ...]:
        """Ids of the layers that match a query (see `explorer.settings.filter`)."""
        return self._figures.search(text, index)

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

    # tiling

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile` would do to the current model, without doing it.

        Raises:
            Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
        """
        return self._tiler.plan(spec, on_progress)[0]

    def tiling(self) -> Plan | None:
        """The plan by which the current model was tiled; None for one that is not.

        A file that was tiled before says so itself, and what it says is a claim: `verify` proves it. Of a
        model that was tiled several times it is the last plan, with the sites of the earlier ones behind
        its own.
        """
        return None if self.info().tiled is None else self._tiler.tiling()

    def cost(
        self,
        spec: TileSpec,
        hardware: Hardware | None = None,
        *,
        order: str = "best",
        formulas: bool | None = None,
        on_progress: OnProgress = None,
    ) -> PlanCost:
        """What a tiling of the current model would cost on a machine, without doing it.

        Args:
            spec: See `plan`.
            hardware: The machine (see `explorer.settings.machines.hardware`); None leaves out cycles and
                time.
            order: 'best' for the loop order with the least traffic at each site, or the one for all: 'mnk',
                'output-stationary'.
            formulas: Say at every site how its figures come about; None: where there is one site only.
            on_progress: Told where the job stands.

        Raises:
            Misuse: See `plan`; or there is no such order, or the machine contradicts itself.
        """
        return self._tiler.cost(spec, hardware, order, formulas, on_progress)

    def settings(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
        """What `spec` asks of every site of the current model, and who said so.

        Raises:
            Misuse: See `plan`.
        """
        return self._tiler.settings(spec, on_progress)

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 1,
        seed: int = 0,
        input: str | None = None,
        discard: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TileResult:
        """Tiles the current model; the result becomes the current one.

        Args:
            spec: Tile size, sites, edges, form.
            output: Where to write it; None keeps it in the session's folder until `save`.
            overwrite: Whether an existing `output` may be replaced.
            verify: Prove the result before it gets its name. A result that fails is not kept: then
                `TileResult.output` is empty and the history unchanged.
            draws: Random inputs for the proof.
            seed: Of the first draw.
            input: An .npy or .npz file with the inputs for the proof, in place of random ones.
            discard: Whether states that were undone and never saved may go: the result takes their place.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: See `plan`; or `output` cannot be written or exists; or a state would be lost.
            Cancelled: `cancel` said so.
        """
        how: dict[str, Any] = {"draws": draws, "seed": seed, "on_progress": on_progress, "cancel": cancel}
        return self._tiler.tile(
            spec,
            command=self.command(spec, output),
            output=output,
            overwrite=overwrite,
            discard=discard,
            prove=partial(self._prover.verify, input=input, **how) if verify else None,
            on_progress=on_progress,
            cancel=cancel,
        )

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
        from explorer.session.sweep import sweep

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

    def plan_module(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile_module` would do, without doing it.

        Raises:
            Misuse: As `tile_module` says.
        """
        self._tiler.check_module(on_progress)
        return self._module_tiler.plan(spec, on_progress)

    def tile_module(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> tuple[nn.Module, TileResult]:
        """An nn.Module like the opened one whose layers multiply by tiles; the opened one stays as it is.

        Layers keep their names, parameters, hooks and devices, so a state_dict fits both. Where the session
        was opened with an object the result has tensors of its own.

        Args:
            spec: Tile size, layers, edges; `form` has to be 'auto'.
            output: Where to write it: .pt2, or TorchScript by another ending; None writes nothing.
            overwrite: Whether an existing `output` may be replaced.
            dynamic: Axes that a .pt2 file leaves open: {'x': {0: 'batch'}}.
            verify: Prove the result; a file that fails is not kept, and `TileResult.output` is empty.
            draws: Random inputs for the proof.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: The model is no nn.Module, or was tiled as ONNX already; nothing can be tiled; or `output`
                cannot be written.
            BadModel: The module cannot be run or written.
            ExplorerError: Nothing was to be written, and the proof speaks against the result.
            Cancelled: `cancel` said so.
        """
        self._tiler.check_module(on_progress)
        return self._module_tiler.tile(
            spec,
            output=output,
            overwrite=overwrite,
            dynamic=dynamic,
            verify=verify,
            draws=draws,
            seed=seed,
            command=self.module_command(spec, output, dynamic),
            on_progress=on_progress,
            cancel=cancel,
        )

    def module_command(
        self,
        spec: TileSpec,
        output: str | None = None,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
    ) -> str:
        """The command that does headless what `tile_module` does; '' where no command can."""
        return self._exporter.module_command(spec, output, dynamic)

    # proof and difference

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: int = 1,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        tolerance: Tolerance | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Evidence that two models of the history compute the same.

        Args:
            before: The original.
            after: The other model; None is the current one.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            tolerance: By how much the outputs may differ: then only they are compared.
            on_progress: Told where the proof stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        models = self._models
        a, b = models.at(before), models.at(after)
        graphs = models.graph(a, on_progress), models.graph(b, on_progress)
        evidence = self._prover.verify(
            *graphs,
            states.plan_between(models.history, a, b),
            draws=draws,
            seed=seed,
            dims=dims,
            input=input,
            tolerance=tolerance,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(evidence, before=models.label(a), after=models.label(b))

    def blame(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        spec: TileSpec | None = None,
        draws: int = 3,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Blame:
        """The first layer in which one model of the history departs from another, and how the error grows.

        Args:
            before: The original.
            after: The other model; None is the current one.
            spec: In place of both: the current model, and what `tile` makes of it, which is looked at only.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        models = self._models
        with contextlib.ExitStack() as stack:
            if spec is None:
                a, b = models.at(before), models.at(after)
                graphs = models.graph(a, on_progress), models.graph(b, on_progress)
                labels = models.label(a), models.label(b)
            else:
                graphs = stack.enter_context(self._tiler.tried(spec, on_progress, cancel))
                labels = models.label(models.current), f"tile {'x'.join(map(str, spec.tile))}"
            fact = self._prover.blame(
                *graphs,
                draws=draws,
                seed=seed,
                dims=dims,
                input=input,
                on_progress=on_progress,
                cancel=cancel,
            )
        return replace(fact, before=labels[0], after=labels[1])

    def diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """What changed between two models of the history, as ONNX graphs."""
        return self._comparer.diff(before, after, on_progress, cancel)

    # export

    def save(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes the current model to `path` as ONNX.

        Returns:
            The path.

        Raises:
            Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
                written.
        """
        return self._exporter.save(path, overwrite, on_progress)

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the opened model can become: for each kind what it is, and how files of it are called."""
        return self._exporter.conversions()

    def convert(
        self,
        output: str,
        *,
        exporter: str | None = None,
        opset: int | None = None,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        method: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Conversion:
        """Writes the opened model as another kind of file, and shows that it is the same.

        Args:
            output: The file; its ending says what it is to be (see `engine.convert.CONVERTERS`).
            exporter: Which of torch's ONNX exporters: 'torchscript' or 'dynamo'; None takes what works.
            opset: Version of ONNX's operators; None takes what the exporter does best.
            input_names: Names in the file, one for each input; empty for the model's own.
            output_names: The same of the outputs.
            dynamic: Input to axis to the name of a dimension that is left open: {'x': {0: 'batch'}}.
            method: How TorchScript is made: 'trace' (None too) or 'script'.
            overwrite: Whether an existing `output` may be replaced.
            verify: Compare the result with the source before it gets its name. A result that fails is not
                kept: then `Conversion.output` is empty.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: The model cannot become that; the message lists what it can become. Or an option does
                not fit, or `output` cannot be written.
            BadModel: The source is broken, or its framework cannot write it so.
            MissingExtra: It needs a package that is not installed.
            Cancelled: `cancel` said so.
        """
        return self._exporter.convert(
            output,
            exporter=exporter,
            opset=opset,
            input_names=tuple(input_names),
            output_names=tuple(output_names),
            dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()},
            method=method,
            overwrite=overwrite,
            verify=verify,
            draws=draws,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )

    def rebatch(
        self,
        batch: int | str,
        output: str,
        *,
        axes: Mapping[str, int] | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Conversion:
        """Writes the current model, whose batch is fixed, for another batch, and compares each row.

        The original is run alone on every slice of the inputs; the result has to give the same rows within
        rounding. One that does not is not kept: then `Conversion.output` is empty.

        Args:
            batch: The new size; or a name, which leaves it open.
            output: The ONNX file.
            axes: Input to the axis that is its batch; None takes the first axis of every input.
            overwrite: Whether an existing `output` may be replaced.
            verify: Compare before the result gets its name.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: The batch cannot be rewritten safely, or `output` cannot be written.
            BadModel: One of the two cannot be run.
            Cancelled: `cancel` said so.
        """
        return self._exporter.rebatch(
            batch,
            output,
            axes=dict(axes or {}),
            overwrite=overwrite,
            verify=verify,
            draws=draws,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )

    def command(self, spec: TileSpec, output: str | None = None) -> str:
        """The command that does headless what `tile` does to the opened model.

        '' where no command can: an nn.Module object has no name, rules that stand in no file no option.
        """
        return self._exporter.command(spec, output)

    def script(self, path: str, *, index: int | None = None, overwrite: bool = False) -> str:
        """Writes the commands that make a state, and those before it, as a shell script.

        Run in an empty folder it makes files that are the session's, byte for byte.

        Args:
            path: Of the script.
            index: Which state of the history; None is the current one.
            overwrite: Whether an existing file may be replaced.

        Returns:
            The path.

        Raises:
            Misuse: Nothing was done yet, no command can open the model, or `path` cannot be written.
        """
        return self._exporter.script(path, index, overwrite)

    def script_text(self, index: int | None = None) -> str:
        """What `script` writes; it opens no model that is not ONNX, so nothing of its code runs.

        Raises:
            Misuse: Nothing was done yet, or no command can open the model.
        """
        return self._exporter.script_text(index)

    def keep_choices(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes what was tiled, and how, as a file for `--config`: a rule for every site, by its name.

        Returns:
            The path.

        Raises:
            Misuse: Nothing was tiled yet, or `path` cannot be written.
        """
        return self._exporter.keep_choices(path, overwrite, self._tiler, on_progress)

    # parts, each imported when it is first used: the first paint and `info` wait for none of them

    @cached_property
    def _figures(self) -> ModelFigures:
        from explorer.session.figures import ModelFigures

        return ModelFigures(self._models)

    @cached_property
    def _graphs(self) -> ModelGraphs:
        from explorer.engine.graph_view.graphs import ModelGraphs  # grandalf, numpy

        return ModelGraphs()

    @cached_property
    def _values(self) -> ModelValues:
        from explorer.session.values import ModelValues

        return ModelValues(self._models)

    @cached_property
    def _tiler(self) -> Tiler:
        from explorer.session.tiling import Tiler

        return Tiler(self._models)

    @cached_property
    def _module_tiler(self) -> ModuleTiler:
        from explorer.session.torch_modules import ModuleTiler

        return ModuleTiler(self._models)

    @cached_property
    def _prover(self) -> Prover:
        from explorer.session.proofs import Prover

        return Prover(self._models)

    @cached_property
    def _comparer(self) -> Comparer:
        from explorer.session.compare import Comparer

        return Comparer(self._models)

    @cached_property
    def _exporter(self) -> Exporter:
        from explorer.session.export import Exporter

        return Exporter(self._models)


def reopen(path: str, **options: Any) -> Session:
    """A session of an ONNX file that need not have every dimension and input that `options` name."""
    session = Session(path, **options)
    session._models.strict = False
    return session
