"""The models of a session: what was opened, what was made of it, and which is current.

A state is a file, the opened model, or an nn.Module made of it, which is made again where it is not there any
more; what was found out about one (its graph, its analysis, its matrix products) is kept here, so that no
question costs twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.features import load, offered
from explorer.engine.costs import value_flow
from explorer.engine.costs.layer_tree import add_bounds_note
from explorer.engine.costs.memory import liveness
from explorer.engine.costs.memory.liveness import AnalysisResult, MadeRows
from explorer.engine.costs.operator_stats import operator_stats
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.models.open_model import open_model
from explorer.engine.models.opened_model import OpenedModel, OpenOptions, check_names, dims_of, with_rules
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.runtime.plain_form import plain
from explorer.facts import Analysis, History, HistoryEntry, Layer, Progress
from explorer.host import confinement, output_files, scratch
from explorer.session.cache import analysis_cache
from explorer.session.cache.rows import packed
from explorer.session.parts import history as states

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.models.onnx import OnnxModel
    from explorer.engine.models.torch.module import TorchModel
    from explorer.engine.operators.call import Rules
    from explorer.engine.tiling.products import Products
    from explorer.facts import Info, OpStat
    from explorer.facts.memory import Memory
    from explorer.facts.profile.profile import Profile
    from explorer.session.cache.analysis_cache import AnalysisCache

__all__ = ["Cancel", "Dims", "InputShapes", "Models", "OnProgress", "State", "stem"]

_T = TypeVar("_T")
_FEW, _A_SECOND = 10_000, 50_000
"""Rows that are packed in no time, and for a second of analysis: who shows no pages keeps no more of them."""

_MODULES = 3
"""States that are modules and held in memory."""

_MUCH_TO_EXPORT = 1 << 32
"""Bytes of weights above which a plan of a module does not wait for a file that holds them all."""

Dims = Mapping[str, int | Sequence[int]]
InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]
State = tuple["Models", int]
"""A model of a session: which session's, and where in its history."""


class Models:
    """The states of a session, and what is known of each.

    Args:
        source: A path, a model's name, or an nn.Module object.
        inputs: What to call an nn.Module object with.
        options: The fields of `OpenOptions`, but `own`.
        workdir: The folder for models that are not saved; None for a temporary one.
        cache: Whether what was found out before may be told again, and is kept for the next time.

    Attributes:
        source: A path or a name; the class of an nn.Module object.
        module: The nn.Module object, where there is one.
        strict: Whether every dimension and input of the options has to be one of the model's.
        rules: What the user's file of rules registered, once the model is open.
        history: The states.
        products: By state and by what was taken apart or packed: matrix products, see `plans`.
    """

    def __init__(
        self, source: Any, inputs: Any, options: dict[str, Any], workdir: str | None, cache: bool = True
    ) -> None:
        named = isinstance(source, (str, os.PathLike))
        self.module, self._inputs = (None if named else source), inputs
        self.source: str = os.fspath(source) if named else type(source).__name__
        if named and inputs is not None:
            raise Misuse("inputs go with an nn.Module object", hint="for a path or a name: input_shapes=...")
        self.options = options
        self.strict = True
        self.rules: Rules | None = None
        self._workdir = workdir
        if workdir is not None:
            scratch.keep_private(workdir)
        self._own_workdir: str | None = None
        self._original: OpenedModel | None = None
        self._states: dict[int, OnnxModel] = {}
        self._modules: dict[int, TorchModel] = {}
        self.history = History((HistoryEntry("original", None, ""),), 0)
        self._graph: Model | None = None
        self._caches, self._since = cache and named, time.time_ns()
        self._seconds = 0.0
        self._cache: AnalysisCache | None = None
        self._examined: dict[int, AnalysisResult] = {}
        self._of_graphs: dict[int, AnalysisResult] = {}
        self.products: dict[int, dict[Any, Products]] = {}

    def close(self) -> None:
        """Forgets the models and removes the temporary folder."""
        self._original = None
        self._states.clear()
        self._modules.clear()
        self._examined.clear()
        self._graph = None
        if self._own_workdir is not None:
            self._remove_workdir()
            self._own_workdir = None

    def beside(self, source: str) -> Models:
        """Another model, opened as this one is; a size or an input that is named need not be one of its.

        Raises:
            Misuse: A browser may not open it.
        """
        confinement.check_model(source)
        opened = Models(source, None, dict(self.options), None, self._caches)
        opened.strict = False
        return opened

    @property
    def workdir(self) -> str:
        """The folder for models that are not saved yet."""
        if self._workdir is not None:
            return self._workdir
        if self._own_workdir is None:
            import weakref

            folder = scratch.Folder()
            self._own_workdir = folder.path
            # who forgets to close a session must not find thousands of folders one day
            self._remove_workdir = weakref.finalize(self, folder.remove)
        return self._own_workdir

    # states

    @property
    def current(self) -> int:
        """The place of the current state."""
        return self.history.current

    def at(self, index: int | None) -> int:
        """The place of a state; None is the current one.

        Raises:
            Misuse: The history has no such entry.
        """
        at, count = self.current if index is None else index, len(self.history.entries)
        if not 0 <= at < count:
            raise Misuse(f"the history has no entry {at}", hint=f"it has {count}")
        return at

    def label(self, at: int) -> str:
        """What the user calls a state: where it was saved, or what was done to which model."""
        entry = self.history.entries[at]
        return entry.saved or (f"{self.source}, {entry.label}" if at else self.source)

    def append(
        self,
        entry: HistoryEntry,
        module: TorchModel | None = None,
        graph: Model | None = None,
        examined: AnalysisResult | None = None,
    ) -> None:
        """Adds a state that was made of the current one; of one without a file the module itself.

        `graph` is the graph in its file and `examined` its analysis, where they are known.
        """
        self.history = states.append(self.history, replace(entry, dims=dict(self.options["dims"])))
        if module is not None:
            self._keep_module(self.current, module)
        if graph is not None:
            self._states[self.current] = _onnx(graph.path, OpenOptions(), graph)
        if examined is not None:
            self._examined[self.current] = self.presented(self.current, examined)

    def is_module(self, at: int) -> bool:
        """Whether a state was made as an nn.Module, so that no file holds it."""
        return at > 0 and self.history.entries[at].path is None

    def restore(self, history: History) -> None:
        """Takes up the history of a session that ended."""
        if not (history.is_tree and 0 <= history.current < len(history.entries)):
            raise Misuse("this is no history of states", where="restore")
        if history.tip is not None and not 0 <= history.tip < len(history.entries):
            history = replace(history, tip=None)
        for at in range(1, max(len(self.history.entries), len(history.entries))):
            self._forget(at)
        self.history = history
        if history.dims is not None:
            self._take_dims({name: size for name, size in history.dims.items() if size > 0})

    def rewind(self, history: History) -> None:
        """Takes up the history as it was before some states were made, which are forgotten with their files.

        A file that the user named stays.
        """
        for at in range(len(history.entries), len(self.history.entries)):
            entry = self.history.entries[at]
            if entry.path is not None and not entry.saved:
                with contextlib.suppress(OSError):
                    os.remove(entry.path)
            self._forget(at)
        self.history = history

    def bind(self, dims: Mapping[str, int], on_progress: OnProgress, cancel: Cancel) -> None:
        """Takes other sizes for open dimensions; where they do not fit all is as before."""
        for name, size in dims.items():
            if size < 1:
                raise Misuse(f"'{size}' is no size", where=name, hint="write a whole number of 1 or more")
        for entry in self.history.entries:
            for name, size in (entry.dims or {}).items():
                if dims.get(name) != size:
                    state_name = entry.name or entry.label
                    hint = "open the model again for another size"
                    raise Misuse(f"'{state_name}' was made for {name}={size:,}", where=name, hint=hint)
        opened = self.opened(0, on_progress)
        check_names([opened], replace(opened.options, dims=dict(dims)))
        before = self.options["dims"]
        former_results = self._examined, self.products, self._graph, self._of_graphs
        self._take_dims(dims)
        try:
            self.examined(self.current, on_progress, cancel)
        except BaseException:
            self._take_dims(before)
            self._examined, self.products, self._graph, self._of_graphs = former_results
            raise
        self.history = replace(self.history, dims=dict(dims))

    def unused_name(self) -> str:
        """A file for a new state: none of the history's, though a step back leaves numbers behind."""
        number = len(self.history.entries)
        while os.path.lexists(path := os.path.join(self.workdir, f"{number}-{stem(self.source)}.onnx")):
            number += 1
        return path

    def check_target(self, path: str, overwrite: bool, *inputs: str | None) -> None:
        """Refuses to write where a file of the session lies, or another that is read for the result."""
        models = [self.source, *(e.path for e in self.history.entries if e.path)]
        read = [name for name in (*inputs, self.options["weights_file"], self.options["rules"]) if name]
        weights = self._weight_files()
        output_files.check_target(path, overwrite=overwrite, models=models, weights=weights, inputs=read)

    def check_onnx(self, path: str, overwrite: bool, *inputs: str | None) -> None:
        """As `check_target`, of an ONNX file."""
        from explorer.engine import convert  # nothing that only looks at a model waits for it

        self.check_target(path, overwrite, *inputs)
        convert.check_name(path, "onnx", also="an nn.Module: quantize, or tile --to torch (.pt2, .pt)")

    # what is known of them

    def opened(self, at: int = 0, on_progress: OnProgress = None) -> OpenedModel:
        """A state as a model that was opened, once: the first, an ONNX file, or a module that was made."""
        if self.is_module(at):
            return self._module(at, on_progress)
        if at:
            state = self._state(at)
            state.options = self._state_options(self.options["dims"])
            return state
        if self._original is None:
            opened = self._open(on_progress)
            if self._cache is not None and not self._cache.unchanged():
                raise BadModel(
                    "the file has changed since it was looked at", where=self.source, hint="open it again"
                )
            self._original = opened
        return self._original

    @property
    def is_kept(self) -> bool:
        """Whether the original's analysis is there, and the original is not open."""
        return self._original is None and 0 in self._examined

    @property
    def is_graph(self) -> bool:
        """Whether what was opened is an ONNX graph as it is; it need not be opened to be told."""
        if self.is_kept:
            return self._examined[0].info.model.format == "onnx"
        return self.opened().is_graph

    @property
    def from_torch(self) -> bool:
        """Whether what was opened is an nn.Module."""
        return hasattr(self.opened(), "loaded")

    def is_planned_as_traced(self, at: int, on_progress: OnProgress = None) -> bool:
        """Whether a state's products are those of its run on shapes: nothing can be, or need be, exported."""
        opened: Any = None if at else self.opened(0, on_progress)
        if not hasattr(opened, "loaded"):
            return False
        if self.options["past"] is not None:
            return True
        if opened.planned_as_traced:
            return self._graph is None
        parameter_bytes: int = sum(p.numel() * p.element_size() for p in opened.loaded.meta().parameters())
        return self._graph is None and parameter_bytes > _MUCH_TO_EXPORT

    def check_no_step(self, at: int, on_progress: OnProgress = None) -> None:
        """Refuses to take a decode step of a module for the whole pass that its export is."""
        if self.options["past"] is not None and self.is_planned_as_traced(at, on_progress):
            raise Misuse(
                "a decode step of an nn.Module is planned and swept, and not written",
                where="--decode",
                hint="leave it out for a whole pass",
            )

    def graph(self, at: int, on_progress: OnProgress = None) -> Model:
        """The ONNX graph at a place of the history, in plain form; the original is exported if it is none."""
        if self.is_module(at):
            folder_path = os.path.join(self.workdir, f"module-{at}")  # all are called as the original is
            os.makedirs(folder_path, mode=0o700, exist_ok=True)
            with scratch.private_files(folder_path) as folder:
                return self._module(at, on_progress).graph(folder, on_progress=on_progress)
        if at:
            return plain(self._state(at).model)
        if self._graph is None:
            with scratch.private_files(self.workdir) as folder:
                self._graph = plain(self.opened(0, on_progress).graph(folder, on_progress=on_progress))
        return self._graph

    def sizes(self, at: int, model: Model) -> tuple[dict[str, int], dict[str, Any]]:
        """Sizes of dimensions and inputs at which the graph of a state is looked at: in decode mode a step's.

        Raises:
            Misuse: It has no step of one token behind so many, or a size has to be given.
        """
        opened: Any = self.opened(at)
        if self.options["past"] is not None and opened.is_graph:
            return opened.sizes()  # type: ignore[no-any-return]
        names = {value.name for value in model.graph.feeds}
        shapes = {name: shape for name, shape in self.options["input_shapes"].items() if name in names}
        return dims_of(model, self.options["dims"]), shapes

    def examined(self, at: int, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """The analysis of the model at a place of the history, and its execution order, made once."""
        if at not in self._examined:
            stored_result = None if at else self._kept()
            result = stored_result or self._analysed(at, on_progress, cancel)
            self._examined[at] = self.presented(at, result)
            if stored_result is None:
                self._keep(at, "info", lambda: _said_of_bounds(result))
        return self._examined[at]

    def examined_as(self, model: Model, path: str, cancel: Cancel) -> AnalysisResult:
        """The analysis, with its rows, of a graph that is to be a state under another path."""
        made = _onnx(path, self._state_options(self.options["dims"]), model).examine(cancel=cancel)
        made.rows()
        return made.with_info(replace(made.info, model=replace(made.info.model, source=path)))

    def analysis(self, at: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """Totals and every layer of the model at a place of the history."""
        found = self.examined(at, on_progress, cancel).analysis
        if len(found.layers) <= _FEW + _A_SECOND * self._seconds:
            self._keep(at, "rows", lambda: packed(found.layers))
        return found

    def pages(self, at: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """The same with its rows packed."""
        examined = self.examined(at, on_progress, cancel)
        rows: Any = None if at or self.cache is None else self.cache.rows()
        if rows is None:
            rows = packed(examined.analysis.layers)
            self._keep(at, "rows", lambda: rows)
        return Analysis(examined.info, rows)

    def ops(self, at: int) -> tuple[OpStat, ...]:
        """Operator types of a model."""
        return self._kept_or(at, "ops", lambda: operator_stats(self.examined(at).analysis))

    def memory(self, at: int) -> Memory:
        """Liveness and the arena of a model."""
        return self._kept_or(at, "memory", lambda: liveness.memory(self.ordered(at)))

    def profile(self, at: int) -> Profile | None:
        """What was measured of a model: last in this session, else of the original as it was kept."""
        found = self.history.entries[at].profile
        if found is None and at == 0 and self.cache is not None:
            found = self.cache.get("profile")
        return found

    def keep_profile(self, at: int, profile: Profile) -> None:
        """Keeps what was measured of the original as it was opened, in place of what was before."""
        if at == 0 and self.cache is not None and profile.batch is None:
            self.examined(0)
            self.cache.tried.discard("profile")
            self._keep(0, "profile", lambda: profile)

    def presented(self, at: int, examined: AnalysisResult) -> AnalysisResult:
        """An analysis with what the session knows of the model's file, and a word on what is not exact."""
        info, saved = _said_of_bounds(examined), self.history.entries[at].saved
        if saved:
            info = replace(info, model=replace(info.model, source=saved))
        return examined.with_info(info)

    def ordered(self, index: int | None) -> AnalysisResult:
        """The analysis of a model whose order of execution is known, if only in part.

        Raises:
            Misuse: It is a file of tensors, which says nothing of the work.
        """
        examined = self.examined(self.at(index))
        if not examined.info.totals.nodes and (order := examined.schedule).failed:
            raise Misuse(order.failed, where=self.source, hint=order.hint)
        return examined

    def random_weights(self) -> tuple[str, ...]:
        """That the weights of every state are random, or of the user's file (and what of those it lacks), if
        the opened model's are.
        """
        notes: tuple[str, ...] = getattr(self.opened(), "replaced_weights", ())
        return notes

    def rows(self, at: int, on_progress: OnProgress, cancel: Cancel) -> tuple[Layer, ...]:
        """The layers of a model; none of a module whose inputs have still to be given, which has values."""
        try:
            return self.examined(at, on_progress, cancel).analysis.layers
        except Misuse:
            return ()

    def original_at(
        self, input_shapes: InputShapes, on_progress: OnProgress, cancel: Cancel
    ) -> AnalysisResult:
        """The analysis of the opened model at other sizes of its inputs."""
        opened = self.opened(0, on_progress)
        # the dimensions of a graph are its own; the one of a module says what these shapes say
        dims = opened.options.dims if opened.names() else {}
        return self.examined_with(0, dims, input_shapes, on_progress, cancel)

    def examined_with(
        self,
        at: int,
        dims: Mapping[str, int],
        shapes: Mapping[str, Any],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> AnalysisResult:
        """The analysis of a state at these dimensions and other shapes; the session keeps those it has."""
        opened = self.opened(at, on_progress)
        usual = opened.options
        opened.options = replace(usual, dims=dims, input_shapes={**usual.input_shapes, **shapes})
        try:
            result: AnalysisResult = opened.examine(on_progress=on_progress, cancel=cancel)
            return result
        finally:
            opened.options = usual

    def graph_analysis(self, at: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """The analysis of the ONNX graph even of a module."""
        return self.graph_examined(at, on_progress, cancel).analysis

    def graph_examined(self, at: int, on_progress: OnProgress, cancel: Cancel) -> AnalysisResult:
        """As `examined`, but of the ONNX graph even of a module."""
        if self.opened(at, on_progress).is_graph:
            return self.examined(at, on_progress, cancel)
        if at not in self._of_graphs:
            self._of_graphs[at] = self._examined_graph(at, on_progress, cancel)
        return self._of_graphs[at]

    def analysis_at(self, at: int, sizes: Mapping[str, int], model: Model | None = None) -> Analysis:
        """The analysis of a state's graph; at these sizes of its inputs where it is not known without.

        `model` is that graph, written otherwise.
        """
        if model is not None:
            return self._examined_graph(at, None, None, sizes, model).analysis
        analysis = self.graph_analysis(at, None, None)
        if analysis.info.totals.coverage == 1 or not sizes:
            return analysis
        return self._examined_graph(at, None, None, sizes).analysis

    def comparable_analysis(self, at: int, another: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """The analysis of a state at the sizes of the figures of the tilings between it and another."""
        analysis = self.graph_analysis(at, on_progress, cancel)
        between = states.between(self.history, at, another)
        records = [entry.record for entry in between if entry.record is not None]
        sizes = next((record.sizes for record in records if record.sizes is not None), None)
        if analysis.info.totals.coverage == 1 or sizes is None:
            return analysis
        return self._examined_graph(at, on_progress, cancel, sizes).analysis

    # inside: what is kept from session to session

    @property
    def cache(self) -> AnalysisCache | None:
        """What is kept of the original at the sizes that are bound; None if nothing is to be."""
        if self._cache is None and self._caches:
            self._cache = analysis_cache.opens(self.source, self.options, self.strict, self._since)
            self._caches = self._cache is not None
        return self._cache

    def _kept(self) -> AnalysisResult | None:
        """The analysis of the original as it was kept; its rows are read, or made, when asked for."""
        cache = self.cache
        info = None if cache is None else cache.get("info")
        if cache is None or info is None:
            return None
        again = functools.cache(lambda: self._analysed(0, None, None))

        def rows() -> MadeRows:
            pages = cache.rows()
            if pages is None:
                return again().rows()
            return tuple(pages), lambda: again().schedule, functools.cache(flow)

        def flow() -> ValueFlow | None:
            pages = cache.get("flow")
            if pages is None:
                return again().flow
            return value_flow.build_flow(pages)

        return AnalysisResult(info, rows)

    def _keeping_flow(self, examined: AnalysisResult) -> AnalysisResult:
        """The analysis of the original, whose edges are kept as soon as they are made."""

        def rows() -> MadeRows:
            layers, order, make_flow = examined.rows()

            def flow() -> ValueFlow | None:
                edges = make_flow()
                if edges is not None and len(edges.made) <= _FEW:
                    self._keep(0, "flow", lambda: value_flow.record_of(edges))
                return edges

            return layers, order, functools.cache(flow)

        return type(examined)(examined.info, rows, examined.bounds)

    def _kept_or(self, at: int, name: str, make: Callable[[], _T]) -> _T:
        """What was kept of the original, or is made now, and kept."""
        stored_fact: _T | None = None if at or self.cache is None else self.cache.get(name)
        if stored_fact is not None:
            return stored_fact
        fact = make()
        self._keep(at, name, lambda: fact)
        return fact

    def _keep(self, at: int, what: str, fact: Callable[[], Any]) -> None:
        """Keeps what was found out about the original, or made of what was kept; it is tried once."""
        if at == 0 and self.cache is not None and what not in self.cache.tried:
            opened, files = self._original, self.cache.files
            about = files if opened is None else opened.rests_on(self._examined[0].info)
            self.cache.keep(what, fact, about, self._seconds)

    def _analysed(self, at: int, on_progress: OnProgress, cancel: Cancel) -> AnalysisResult:
        """The analysis of the model at a place of the history, made."""
        opened = self.opened(at, on_progress)
        began = time.perf_counter()
        examined = opened.examine(on_progress=on_progress, cancel=cancel)
        self._seconds = time.perf_counter() - began
        if self.options["past"] is not None and "decode" not in examined.info.assumptions:
            raise Misuse("models of this format have no decode mode", where="--past", hint="leave it out")
        return examined if at or self.cache is None else self._keeping_flow(examined)

    # inside

    def _examined_graph(
        self,
        at: int,
        on_progress: OnProgress,
        cancel: Cancel,
        sizes: Mapping[str, int] | None = None,
        written: Model | None = None,
    ) -> AnalysisResult:
        """The analysis of a state's graph; `sizes` are of dimensions that nobody bound."""
        model = written or self.graph(at)
        open_dims = {d for value in model.graph.feeds for d in value.shape or () if isinstance(d, str)}
        sizes_here = {name: size for name, size in (sizes or {}).items() if name in open_dims}
        opened = _onnx(model.path, self._state_options({**sizes_here, **self.options["dims"]}), model)
        return opened.examine(on_progress=on_progress, cancel=cancel)

    def _state(self, at: int) -> OnnxModel:
        """The file of a state, read; whoever only reads the graph has nothing of the user's run."""
        if at not in self._states:
            path = self.history.entries[at].path
            if path is None or not os.path.exists(path):
                raise Misuse("this state of the session is gone", where=path or "history")
            self._states[at] = _onnx(path, OpenOptions())
        return self._states[at]

    def _module(self, at: int, on_progress: OnProgress) -> TorchModel:
        """A state that is a module, made again of the one before it where it was given up."""
        if at not in self._modules:
            entry, parent = self.history.entries[at], self.history.parent(at) or 0
            again = load("changes", entry.change).again if entry.change in offered("changes") else None
            if again is None:
                raise Misuse("this state of the session is gone", where="history")
            before = self.opened(parent, on_progress)
            self._keep_module(at, again(entry, before, self.examined(parent, on_progress).analysis))
        return self._modules[at]

    def _keep_module(self, at: int, module: TorchModel) -> None:
        """Each holds weights of its own: those that were made first can be made again."""
        self._modules[at] = module
        while len(self._modules) > _MODULES:
            del self._modules[next(iter(self._modules))]

    def _open(self, on_progress: OnProgress) -> OpenedModel:
        if on_progress is not None:
            on_progress(Progress("opening"))
        options = self._open_options()
        if self.module is None:
            opened = open_model(self.source, options)
        else:
            from explorer.engine.models.torch.module import ModuleObject  # torch

            opened = ModuleObject(self.module, self._inputs, options)
        if self.strict:
            check_names([opened], options)
        return opened

    def _open_options(self) -> OpenOptions:
        """The options, with what the file of rules registers: it runs once."""
        options = with_rules(OpenOptions(**self.options, own=self.rules))
        self.rules = options.own
        return options

    def _state_options(self, dims: Mapping[str, int]) -> OpenOptions:
        """Options for a graph of ours: it was made with the input shapes that the user gave."""
        return replace(self._open_options(), dims=dims, input_shapes={})

    def _take_dims(self, dims: Mapping[str, int]) -> None:
        """Other sizes: whatever was found out at those before is not known any more."""
        self.options["dims"] = dict(dims)
        self._examined, self.products, self._of_graphs, self._cache = {}, {}, {}, None
        self._modules.clear()
        if self._original is not None:
            self._original.options = replace(self._original.options, dims=dict(dims))
            if not self._original.is_graph:
                self._graph = None

    def _forget(self, at: int) -> None:
        self._states.pop(at, None)
        self._modules.pop(at, None)
        self._of_graphs.pop(at, None)
        self._examined.pop(at, None)
        self.products.pop(at, None)

    def _weight_files(self) -> set[str]:
        """Files beside the opened model that hold its weights."""
        if not self.opened().is_graph:
            return set(getattr(self.opened(), "files", ()))
        folder = os.path.dirname(self.source)
        tensors = self.graph(0).graph.initializers.values()
        return {os.path.join(folder, tensor.external) for tensor in tensors if tensor.external}


def _onnx(path: str, options: OpenOptions, model: Model | None = None) -> OnnxModel:
    from explorer.engine.models.onnx import OnnxModel, open_graph  # the engine, which a kept answer needs not

    return open_graph(path, options) if model is None else OnnxModel(path, options, model)


def _said_of_bounds(examined: AnalysisResult) -> Info:
    """Totals with a word on what is not exact."""
    return add_bounds_note(examined.info, examined.bounds) if examined.bounds[0] else examined.info


def stem(source: str) -> str:
    """A file name for what is made of `source`."""
    stem = os.path.basename(source).removesuffix(".onnx")
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in stem) or "model"
    # a file system takes 255 bytes, and what is made of it is called `_tiled.onnx.toml` and the like
    return os.fsencode(plain)[:200].decode("utf-8", "ignore")
