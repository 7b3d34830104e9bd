"""The one door to the engine.

The command line, the screen and a Python program all go through `Session`: none of them may grow its
own way to open, count, tile or compare. A session keeps a history of models; every entry is an ONNX
file, so "before" is never touched by making "after", undo is a step back in a tuple, and a session
whose process died is restored from the history alone.

Importing this module is cheap; onnx, numpy and torch are imported by the methods that need them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.arguments import opening_words
from explorer.errors import Misuse
from explorer.facts import (
    Analysis,
    Diff,
    History,
    HistoryEntry,
    Info,
    Layer,
    OpStat,
    Plan,
    Progress,
    TileResult,
    TileSpec,
    Verification,
)

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.analysis.memory import Examined
    from explorer.engine.analysis.rules import Rules
    from explorer.engine.formats.opening import Opened
    from explorer.engine.formats.outline import Outline
    from explorer.engine.graph import Model
    from explorer.engine.transforms.products import Products
    from explorer.engine.transforms.sites import Site
    from explorer.facts.comparison import Comparison, TorchinfoTable
    from explorer.facts.conversion import Conversion
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Activations, Weights

__all__ = ["Session", "compare_files", "diff_files", "verify_files"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None
InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


class Session:
    """A model, what is known of it, and what was made of it.

    Args:
        source: An ONNX file, a torchvision model's name, or `package.module:callable`; or an nn.Module
            object, which is never changed. (A session in a process of its own, `worker.Engine`, takes paths
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
    ) -> None:
        self._module, self._inputs = (None if isinstance(source, (str, os.PathLike)) else source), inputs
        self.source = os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        if self._module is None and inputs is not None:
            raise Misuse("inputs go with an nn.Module object", hint="for a path or a name: input_shapes=...")
        self._options: dict[str, Any] = {
            "weights": weights,
            "dims": dict(dims or {}),
            "input_shapes": dict(input_shapes or {}),
            "seed": seed,
            "trust": trust,
            "rules": rules,
            "observe": observe,
            "past": past,
        }
        self._strict = True
        self._rules: Rules | None = None
        self._workdir = workdir
        self._own_workdir: str | None = None
        self._opened: Opened | None = None
        self._history = History((HistoryEntry("original", None, ""),), 0)
        self._models: dict[int, Model] = {}
        self._examined: dict[int, Examined] = {}
        self._original_graph_analysis: Analysis | None = None
        self._products: dict[int, Products] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the models and removes the session's temporary folder."""
        self._models.clear()
        self._examined.clear()
        self._opened = None
        if self._own_workdir is not None:
            self._remove_workdir()
            self._own_workdir = None

    @property
    def workdir(self) -> str:
        """The folder for models that are not saved yet."""
        if self._workdir is not None:
            return self._workdir
        if self._own_workdir is None:
            import shutil
            import tempfile
            import weakref

            self._own_workdir = tempfile.mkdtemp(prefix="explorer-")
            # who forgets to close a session must not find thousands of folders one day
            self._remove_workdir = weakref.finalize(self, shutil.rmtree, self._own_workdir, True)
        return self._own_workdir

    # what is known

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

    def analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """Totals and every layer of the model at `index` of the history (None: the current one)."""
        return self._examine(self._at(index), on_progress, cancel).analysis

    def memory(self, index: int | None = None) -> Memory:
        """What is alive at each step of the execution order, and the arena that holds it."""
        from explorer.engine.analysis.memory import memory

        return memory(self._ordered(index))

    def roofline(self, machine: Machine, index: int | None = None) -> Roofline:
        """Every layer against the limits of a machine (see `explorer.machines`)."""
        from explorer.engine.analysis.roofline import roofline

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
        from explorer.engine.analysis import training, training_onnx
        from explorer.engine.formats.opening import dims_of

        training.check(batch, optimizer)
        at = self._at(index)
        if at == 0:
            return training.training(self._open(None).training(batch), optimizer)
        model = self._model(at)
        dims = dims_of(model, self._options["dims"])
        return training.training(training_onnx.step(model, batch=batch, dims=dims), optimizer)

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
        tensors, notes = opened.tensors() if opened else (onnx_tensors.stored(self._model(at)), ())
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
            BadModel: The model fails on this input.
            Cancelled: `cancel` said so.
        """
        from explorer.engine.formats.opening import dims_of
        from explorer.engine.values import activations, onnx_activations

        at = self._at(index)
        if output is not None:
            self._check_target(output, overwrite, *([input] if input else []))
        rows = self._rows(at, on_progress, cancel)

        def run(asked: activations.Asked) -> activations.Ran:
            if at == 0:
                return self._open(on_progress).activations(asked, rows)
            model = self._model(at, on_progress)
            dims = dims_of(model, self._options["dims"])
            return onnx_activations.run(model, rows, asked, dims=dims)

        return activations.activations(
            run,
            layers,
            source=self._label(at),
            input=input,
            seed=seed,
            bins=bins,
            output=output,
            on_progress=on_progress,
            cancel=cancel,
        )

    def torchinfo(self) -> TorchinfoTable:
        """Torchinfo's own table of the opened model, and where its numbers are not ours and why.

        Raises:
            Misuse: The model is an ONNX file.
            MissingExtra: torchinfo is not installed.
            BadModel: torchinfo cannot run the model.
        """
        from explorer.engine.formats.torch_model import TorchModel

        opened = self._open(None)
        if not isinstance(opened, TorchModel):
            raise Misuse(
                "torchinfo reads nn.Modules, and this file has none",
                where=self.source,
                hint="leave --style out: our own tree is for every format",
            )
        from explorer.engine.analysis import torchinfo_table

        shapes, dims = self._options["input_shapes"], self._options["dims"]
        return torchinfo_table.table(opened.loaded, self.analysis(0), input_shapes=shapes, dims=dims)

    def ops(self, index: int | None = None) -> tuple[OpStat, ...]:
        """Operator types of a model: how many, what they cost, the range of every attribute."""
        from explorer.engine.analysis.operators import operator_stats

        return operator_stats(self.analysis(index))

    def search(self, text: str, index: int | None = None) -> tuple[int, ...]:
        """Ids of the layers that match a query (see `explorer.query`)."""
        from explorer import query

        return query.search(self.analysis(index).layers, text)

    def outline(self) -> Outline:
        """What the header of the opened file says: modules, operators, tensors, in the file's own order.

        It needs no analysis and opens nothing: a model that cannot be analysed has one, too.

        Raises:
            BadModel: It is no model, or broken; also while the rows are iterated.
            Misuse: The model is no file.
        """
        from explorer import glance

        if self._module is not None:
            raise Misuse("an nn.Module object is no file whose header could be read", where=self.source)
        return glance.outline(self.source)

    def sha256(self) -> str | None:
        """Digest of the opened ONNX file, None for a module.

        Not part of `info`, because it reads the whole file: 0.2 s for 244 MB.
        """
        if self._open(None).format != "onnx":
            return None
        import hashlib

        with open(self.source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # what can be made

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile` would do to the current model, without doing it.

        Raises:
            Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
        """
        return self._plan(spec, on_progress)[0]

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
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
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: See `plan`; or `output` cannot be written or exists.
            Cancelled: `cancel` said so.
        """
        from explorer import targets
        from explorer.engine.formats import onnx_reader, onnx_writer
        from explorer.engine.transforms import tile as transform
        from explorer.engine.validate import validate

        started = time.perf_counter()
        if output is not None:
            self._check_target(output, overwrite)
        plan, bound, sites = self._plan(spec, on_progress)
        tiled = transform.tile(bound, plan, sites)
        target = output or self._unused_name()
        evidence: Verification | None = None
        ours = overwrite or output is None
        with contextlib.suppress(_Disproved), targets.replacing(target, overwrite=ours) as temporary:
            onnx_writer.write(tiled, temporary, on_progress=on_progress, cancel=cancel)
            if verify:
                after = validate(onnx_reader.read(temporary))
                evidence = self._verify(bound, after, plan, draws, seed, on_progress, cancel)
                evidence = replace(evidence, before=self._label(self._history.current), after=target)
                if not evidence.passed:
                    raise _Disproved
        kept = evidence is None or evidence.passed
        command = self.command(spec, output)
        if kept:
            entry = HistoryEntry(
                label=f"tile {'x'.join(map(str, plan.tile))}",
                path=target,
                command=command,
                plan=plan,
                verification=evidence,
                saved=output or "",
            )
            self._append(entry)
        seconds = time.perf_counter() - started
        return TileResult(plan, (output or target) if kept else "", evidence, seconds, command)

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Evidence that two models of the history compute the same."""
        at = self._at(after)
        plan = self._history.entries[at].plan
        first = self._model(self._at(before), on_progress)
        second = self._model(at, on_progress)
        evidence = self._verify(first, second, plan, draws, seed, on_progress, cancel)
        return replace(evidence, before=self._label(self._at(before)), after=self._label(at))

    def diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """What changed between two models of the history, as ONNX graphs."""
        from explorer.engine.diff import diff

        a, b = self._at(before), self._at(after)
        changes = diff(
            self._model(a, on_progress),
            self._model(b, on_progress),
            before_analysis=self._comparable_analysis(a, b, on_progress, cancel),
            after_analysis=self._graph_analysis(b, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=self._label(a), after=self._label(b))

    # history

    def history(self) -> History:
        """All states of the session and which is current."""
        return self._history

    def undo(self) -> History:
        """One step back; at the original it stays there."""
        self._history = replace(self._history, current=max(self._history.current - 1, 0))
        return self._history

    def redo(self) -> History:
        """One step forward again; at the newest state it stays there."""
        last = len(self._history.entries) - 1
        self._history = replace(self._history, current=min(self._history.current + 1, last))
        return self._history

    def restore(self, history: History) -> History:
        """Takes up the history of another session of the same source, whose process ended."""
        for at in range(1, max(len(self._history.entries), len(history.entries))):
            self._forget(at)
        self._history = history
        return self._history

    def save(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes the current model to `path` as ONNX.

        Returns:
            The path.

        Raises:
            Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
                written.
        """
        from explorer import targets
        from explorer.engine.formats import onnx_writer

        self._check_target(path, overwrite)
        model = self._model(self._history.current, on_progress)
        with targets.replacing(path, overwrite=overwrite) as temporary:
            onnx_writer.write(model, temporary, on_progress=on_progress)
        entries = list(self._history.entries)
        entries[self._history.current] = replace(entries[self._history.current], saved=path)
        self._history = History(tuple(entries), self._history.current)
        return path

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the opened model can become: for each kind what it is, and how files of it are called."""
        from explorer.engine import convert

        return convert.kinds(self._open(None))

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
        from explorer.engine import convert

        if self._history.current:
            raise Misuse(
                "the current model was tiled: it is ONNX already", where=self.source, hint="save it as it is"
            )
        asked = convert.Asked(
            exporter=exporter,
            opset=opset,
            input_names=tuple(input_names),
            output_names=tuple(output_names),
            dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()},
            method=method,
        )
        fact = convert.write(
            lambda: self._open(on_progress),
            self.source if self._module is None else None,
            output,
            asked,
            dims=self._options["dims"],
            input_shapes=self._options["input_shapes"],
            trust=bool(self._options["trust"]),
            overwrite=overwrite,
            verify=verify,
            draws=draws,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )
        if self._module is not None:
            return fact
        import shlex

        words = ["explorer", "convert", self.source, "-o", output, *convert.words(asked)]
        return replace(fact, command=shlex.join([*words, *opening_words(self._options)]))

    def command(self, spec: TileSpec, output: str | None = None) -> str:
        """The command that does headless what `tile` does; '' for an nn.Module object, which has no name."""
        if self._module is not None:
            return ""
        import shlex

        words = ["explorer", "tile", self.source, "-o", output or f"{_stem(self.source)}_tiled.onnx"]
        words += ["--tile", "x".join(map(str, spec.tile))]
        for site in spec.sites:
            words += ["--site", site]
        words += ["--edges", spec.edges, "--form", spec.form]
        return shlex.join([*words, *opening_words(self._options)])

    # inside

    def _at(self, index: int | None) -> int:
        at = self._history.current if index is None else index
        if not 0 <= at < len(self._history.entries):
            raise Misuse(f"the history has no entry {at}", hint=f"it has {len(self._history.entries)}")
        return at

    def _unused_name(self) -> str:
        """A file for a new state: none of the history's, though a step back leaves numbers behind."""
        number = len(self._history.entries)
        while os.path.lexists(path := os.path.join(self.workdir, f"{number}-{_stem(self.source)}.onnx")):
            number += 1
        return path

    def _label(self, at: int) -> str:
        """What the user calls a state: where it was saved, or what was done to which model."""
        entry = self._history.entries[at]
        return entry.saved or (f"{self.source}, {entry.label}" if at else self.source)

    def _open(self, on_progress: OnProgress) -> Opened:
        if self._opened is None:
            from explorer.engine.formats import open_model
            from explorer.engine.formats.opening import OpenOptions, check_names, with_rules

            if on_progress is not None:
                on_progress(Progress("opening"))
            options = with_rules(OpenOptions(**self._options))
            if self._module is None:
                opened = open_model(self.source, options)
            else:
                from explorer.engine.formats.torch_model import ModuleObject

                opened = ModuleObject(self._module, self._inputs, options)
            if self._strict:
                check_names([opened], options)
            self._rules = options.own
            self._opened = opened
        return self._opened

    def _model(self, at: int, on_progress: OnProgress = None) -> Model:
        """The ONNX graph at a place of the history; the original is exported if it is none."""
        if at not in self._models:
            if at == 0:
                self._models[0] = self._open(on_progress).graph(self.workdir, on_progress=on_progress)
            else:
                from explorer.engine.formats import onnx_reader
                from explorer.engine.validate import validate

                path = self._history.entries[at].path
                if path is None or not os.path.exists(path):
                    raise Misuse("this state of the session is gone", where=path or "history")
                self._models[at] = validate(onnx_reader.read(path))
        return self._models[at]

    def _examine(self, at: int, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """The analysis of the model at a place of the history, and its execution order, made once."""
        if at not in self._examined:
            from explorer.engine.analysis.tree import said_of_bounds

            if at == 0:
                examined = self._open(on_progress).examine(on_progress=on_progress, cancel=cancel)
            else:
                examined = self._examine_graph(self._model(at), on_progress, cancel)
            if self._options["past"] is not None and "decode" not in examined.info.assumptions:
                raise Misuse("models of this format have no decode mode", where="--past", hint="leave it out")
            named = _with_file(examined.info, self._history.entries[at].saved or None)
            self._examined[at] = examined.with_info(said_of_bounds(named, examined.bounds))
        return self._examined[at]

    def _ordered(self, index: int | None) -> Examined:
        """The analysis of a model whose order of execution is known, if only in part.

        Raises:
            Misuse: It is a file of tensors, which says nothing of the work.
        """
        examined = self._examine(self._at(index))
        why = "" if examined.analysis.info.totals.nodes else examined.schedule.failed
        if why:
            raise Misuse(why, where=self.source, hint="open the code or the graph that the weights are for")
        return examined

    def _rows(self, at: int, on_progress: OnProgress, cancel: Cancel) -> tuple[Layer, ...]:
        """The layers of a model; none of a module whose inputs have still to be given, which has values."""
        try:
            return self._examine(at, on_progress, cancel).analysis.layers
        except Misuse:
            return ()

    def _graph_analysis(self, at: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """As `analysis`, but of the ONNX graph even where the original is a module."""
        if at or self._open(on_progress).format == "onnx":
            return self.analysis(at, on_progress=on_progress, cancel=cancel)
        if self._original_graph_analysis is None:
            examined = self._examine_graph(self._model(0), on_progress, cancel)
            self._original_graph_analysis = examined.analysis
        return self._original_graph_analysis

    def _comparable_analysis(
        self, before: int, after: int, on_progress: OnProgress, cancel: Cancel
    ) -> Analysis:
        """The analysis of `before` at the sizes that the tilings on the way to `after` took."""
        known = self._graph_analysis(before, on_progress, cancel)
        tiled = any(entry.plan is not None for entry in self._history.entries[before + 1 : after + 1])
        if known.info.totals.coverage == 1 or not tiled:
            return known
        return self._examine_graph(self._found(before, on_progress).bound, on_progress, cancel).analysis

    def _examine_graph(self, model: Model, on_progress: OnProgress, cancel: Cancel) -> Examined:
        from explorer.engine.analysis import onnx_model
        from explorer.engine.formats.opening import dims_of

        dims = dims_of(model, self._options["dims"])
        self._open(on_progress)
        analysed = partial(
            onnx_model.examine,
            model,
            rules=self._rules,
            observe=bool(self._options["observe"]),
            on_progress=on_progress,
            cancel=cancel,
        )
        if self._options["past"] is not None:
            from explorer.engine.analysis.decode import step_of_graph

            return step_of_graph(model, self._options["past"], dims, {}, analysed)
        return analysed(dims=dims)

    def _plan(self, spec: TileSpec, on_progress: OnProgress) -> tuple[Plan, Model, list[Site]]:
        """The plan, the model at the sizes the plan is for, and the plan's sites in it."""
        from explorer.engine.transforms.plan import make_plan

        found = self._found(self._history.current, on_progress)
        plan, chosen = make_plan(
            found.sites,
            found.skipped,
            spec,
            opset=found.bound.opset,
            macs_total=found.macs_total,
            dims=found.dims,
        )
        return plan, found.bound, chosen

    def _found(self, at: int, on_progress: OnProgress) -> Products:
        """The matrix products of a state."""
        if at not in self._products:
            from explorer.engine.formats.opening import dims_of
            from explorer.engine.transforms.products import find_products

            model = self._model(at, on_progress)
            dims = dims_of(model, self._options["dims"])
            self._products[at] = find_products(model, dims, self._options["input_shapes"], self._rules)
        return self._products[at]

    def _verify(
        self,
        before: Model,
        after: Model,
        plan: Plan | None,
        draws: int,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Verification:
        from explorer.engine.verify import verify

        return verify(
            before,
            after,
            plan=plan,
            draws=draws,
            seed=seed,
            dims=dict(plan.dims) if plan is not None else self._options["dims"],
            input_shapes=self._options["input_shapes"],
            torch_run=self._open(on_progress).runner(),
            on_progress=on_progress,
            cancel=cancel,
        )

    def _append(self, entry: HistoryEntry) -> None:
        """Adds a state behind the current one; what could have been redone is gone."""
        kept = self._history.entries[: self._history.current + 1]
        for at in range(len(kept), len(self._history.entries)):
            self._forget(at)
        self._history = History((*kept, entry), len(kept))

    def _forget(self, at: int) -> None:
        self._models.pop(at, None)
        self._examined.pop(at, None)
        self._products.pop(at, None)

    def _check_target(self, path: str, overwrite: bool, *inputs: str) -> None:
        from explorer.targets import check_target

        models = [self.source, *(e.path for e in self._history.entries if e.path), *inputs]
        check_target(path, overwrite=overwrite, models=models, weights=self._weight_files())

    def _weight_files(self) -> set[str]:
        """Files beside the opened model that hold its weights."""
        if self._open(None).format != "onnx":
            return set(getattr(self._opened, "files", ()))
        folder = os.path.dirname(self.source)
        tensors = self._model(0).graph.initializers.values()
        return {os.path.join(folder, tensor.external) for tensor in tensors if tensor.external}


class _Disproved(Exception):
    """Leaves the block that would have moved the result into place."""


def _stem(source: str) -> str:
    """A file name for what is made of `source`."""
    stem = os.path.basename(source).removesuffix(".onnx")
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in stem) or "model"


def _with_file(info: Info, saved: str | None) -> Info:
    """The facts with the name under which the user knows the model."""
    return info if saved is None else replace(info, model=replace(info.model, source=saved))


@contextlib.contextmanager
def _pair(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[tuple[Session, Session]]:
    """Two sessions with the same options; a dimension need only exist in one of the two models."""
    from explorer.engine.formats.opening import OpenOptions, check_names

    with Session(a, **options) as first, Session(b, **options) as second:
        first._strict = second._strict = False
        opened = [first._open(None), second._open(None)]
        check_names(opened, OpenOptions(**first._options))
        yield first, second


def verify_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: int = 3,
    seed: int = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Verification:
    """Evidence that the models `a` and `b` compute the same; `options` as for `Session`."""
    with _pair(a, b, options) as (first, second):
        evidence = first._verify(
            first._model(0, on_progress),
            second._model(0, on_progress),
            None,
            draws,
            seed,
            on_progress,
            cancel,
        )
        return replace(evidence, before=first.source, after=second.source)


def diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Diff:
    """What changed from the model `a` to the model `b`; `options` as for `Session`."""
    from explorer.engine.diff import diff

    with _pair(a, b, options) as (first, second):
        changes = diff(
            first._model(0, on_progress),
            second._model(0, on_progress),
            before_analysis=first._graph_analysis(0, on_progress, cancel),
            after_analysis=second._graph_analysis(0, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=first.source, after=second.source)


def compare_files(
    *sources: str | os.PathLike[str],
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Comparison:
    """Totals of two or more models side by side, and their differences from the first.

    Args:
        sources: As for `Session`.
        on_progress: Told the phase of each model.
        cancel: Asked now and then; True stops.
        options: As for `Session`; a dimension or input need only exist in one of the models.

    Raises:
        Misuse: There is only one model, or no model has a dimension or input that was named.
    """
    from explorer.engine.analysis.comparison import compare
    from explorer.engine.formats.opening import OpenOptions, check_names

    if len(sources) < 2:
        raise Misuse("there is nothing to compare with", hint="name two models or more")
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(Session(source, **options)) for source in sources]
        for session in sessions:
            session._strict = False
        opened = [session._open(on_progress) for session in sessions]
        check_names(opened, OpenOptions(**sessions[0]._options))
        return compare([s.analysis(on_progress=on_progress, cancel=cancel) for s in sessions])
