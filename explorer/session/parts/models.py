"""The models of a session: the opened model, the states made from it, and the current one.

A state is the opened model, a file, or an nn.Module. A module that was dropped from memory is built again.
The graph, the analysis and the matrix products of each state are cached here, so they are computed once.
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
from explorer.base.features import list_offers, load
from explorer.engine.costs import value_flow
from explorer.engine.costs.layer_tree import add_bounds_note
from explorer.engine.costs.memory import liveness
from explorer.engine.costs.memory.liveness import AnalysisResult, BuiltRows
from explorer.engine.costs.operator_stats import compute_operator_stats
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.models.open_model import open_model
from explorer.engine.models.opened_model import (
    OpenedModel,
    OpenOptions,
    check_names,
    load_rules,
    name_only_input,
    select_dims,
)
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.facts import Analysis, History, HistoryEntry, Layer, Progress
from explorer.host import confinement, output_files, scratch
from explorer.session.cache import analysis_cache
from explorer.session.cache.rows import pack_rows
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

__all__ = ["Cancel", "Dims", "InputShapes", "Models", "OnProgress", "State", "create_stem"]

_T = TypeVar("_T")
_MIN_CACHED_ROWS, _CACHED_ROWS_PER_SECOND = 10_000, 50_000
"""Limits of the rows that `analysis` packs for the cache: a fixed number, plus a number per second that the
analysis took. `pages` packs every row, because its caller needs the packed rows.
"""

_MAX_MODULES = 3
"""Largest number of states in memory that are modules."""

_MAX_EXPORT_BYTES = 1 << 32
"""Bytes of weights above which a tiling plan of a module is made without an ONNX export."""

_HINT_FOR_FAILED_RUN = (
    "set other sizes or element types with --input-shape, such as x:f32:1x3x224x224, or add --partial (in"
    " Python partial=True) for the figures of the layers before it"
)

Dims = Mapping[str, int | Sequence[int]]
InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]
State = tuple["Models", int]
"""A state of a session: its models, and the index in their history."""


class Models:
    """The states of a session, with everything computed from each.

    Args:
        source: Path, name of a model, or nn.Module object.
        inputs: Inputs with which to call an nn.Module object.
        options: Fields of `OpenOptions`, except `loaded_rules`.
        workdir: Folder for models that are not saved, or None for a temporary one.
        cache: Whether to read and write the analysis cache.
        keyword_inputs: Keyword inputs of an nn.Module object, beside `inputs`.

    Attributes:
        source: A path or a name; the class of an nn.Module object.
        module: The nn.Module object, or None.
        strict: Whether every dimension and input in the options must exist in the model.
        partial: Whether a module whose run fails has figures up to the failed layer, instead of an error.
        rules: Rules that the user's file registered, once the model is open.
        history: History of the states.
        products: Matrix products of each state, by the choice of operators that were decomposed or packed.
    """

    def __init__(
        self,
        source: Any,
        inputs: Any,
        options: dict[str, Any],
        workdir: str | None,
        cache: bool = True,
        keyword_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        is_path_or_name = isinstance(source, (str, os.PathLike))
        self.module, self._inputs = (None if is_path_or_name else source), inputs
        self._keyword_inputs = keyword_inputs
        self.source: str = os.fspath(source) if is_path_or_name else type(source).__name__
        if is_path_or_name and (inputs is not None or keyword_inputs):
            raise Misuse("inputs go with an nn.Module object", hint="for a path or a name: input_shapes=...")
        self.options = options
        self.strict, self.partial = True, False
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
        self._uses_cache, self._opened_ns = cache and is_path_or_name, time.time_ns()
        self._analysis_seconds = 0.0
        self._cache: AnalysisCache | None = None
        self._results: dict[int, AnalysisResult] = {}
        self._graph_results: dict[int, AnalysisResult] = {}
        self.products: dict[int, dict[Any, Products]] = {}

    def close(self) -> None:
        """Releases the models and removes the temporary folder."""
        self._original = None
        self._states.clear()
        self._modules.clear()
        self._results.clear()
        self._graph = None
        if self._own_workdir is not None:
            self._remove_workdir()
            self._own_workdir = None

    def open_other(self, source: str) -> Models:
        """Opens another model with the same options.

        The sizes and inputs in the options need not exist in it.

        Raises:
            Misuse: The model is outside the folder to which a browser session is confined.
        """
        confinement.check_model(source)
        opened = Models(source, None, dict(self.options), None, self._uses_cache)
        opened.strict, opened.partial = False, self.partial
        return opened

    @property
    def workdir(self) -> str:
        """Folder for models that are not saved yet."""
        if self._workdir is not None:
            return self._workdir
        if self._own_workdir is None:
            import weakref

            folder = scratch.Folder()
            self._own_workdir = folder.path
            # removes the folder even if the caller never closes the session
            self._remove_workdir = weakref.finalize(self, folder.remove)
        return self._own_workdir

    # states of the history

    @property
    def current(self) -> int:
        """Index of the current state."""
        return self.history.current

    def resolve_index(self, index: int | None) -> int:
        """Returns the index of a state. None selects the current one.

        Raises:
            Misuse: The history has no such entry.
        """
        state, count = self.current if index is None else index, len(self.history.entries)
        if not 0 <= state < count:
            raise Misuse(f"the history has no entry {state}", hint=f"it has {count}")
        return state

    def label(self, state: int) -> str:
        """Returns the name of a state for the user: its saved path, or the model and the change."""
        entry = self.history.entries[state]
        return entry.saved or (f"{self.source}, {entry.label}" if state else self.source)

    def append(
        self,
        entry: HistoryEntry,
        module: TorchModel | None = None,
        graph: Model | None = None,
        examined: AnalysisResult | None = None,
    ) -> None:
        """Adds a state that was made from the current one, and makes it the current state.

        Args:
            entry: History entry of the state.
            module: Module of the state, or None if the state is a file.
            graph: Graph in the file of the state, or None to read it when it is needed.
            examined: Analysis of the graph, or None to analyze it when it is needed.
        """
        self.history = states.append(self.history, replace(entry, dims=dict(self.options["dims"])))
        if module is not None:
            self._keep_module(self.current, module)
        if graph is not None:
            self._states[self.current] = _open_onnx(graph.path, OpenOptions(), graph)
        if examined is not None:
            self._results[self.current] = self.present_analysis(self.current, examined)

    def is_module(self, state: int) -> bool:
        """Whether a state is an nn.Module without a file."""
        return state > 0 and self.history.entries[state].path is None

    def restore(self, history: History) -> None:
        """Restores the history of a session that ended.

        Raises:
            Misuse: The history is not a tree of states, or its current state does not exist.
        """
        if not (history.is_tree and 0 <= history.current < len(history.entries)):
            raise Misuse("this is not a history of states", where="restore")
        if history.tip is not None and not 0 <= history.tip < len(history.entries):
            history = replace(history, tip=None)
        for state in range(1, max(len(self.history.entries), len(history.entries))):
            self._forget(state)
        self.history = history
        if history.dims is not None:
            self._set_dims({name: size for name, size in history.dims.items() if size > 0})

    def rewind(self, history: History) -> None:
        """Restores an earlier history.

        Deletes the files of later states, except files that the user saved.
        """
        for state in range(len(history.entries), len(self.history.entries)):
            entry = self.history.entries[state]
            if entry.path is not None and not entry.saved:
                with contextlib.suppress(OSError):
                    os.remove(entry.path)
            self._forget(state)
        self.history = history

    def bind(self, dims: Mapping[str, int], on_progress: OnProgress, cancel: Cancel) -> None:
        """Binds other sizes to open dimensions, and analyzes the current state.

        After an error nothing changes.

        Raises:
            Misuse: A size is below 1, the model does not accept it, or a state was made for another size.
        """
        for name, size in dims.items():
            if size < 1:
                raise Misuse(f"'{size}' is not a size", where=name, hint="write a whole number of 1 or more")
        for entry in self.history.entries:
            for name, size in (entry.dims or {}).items():
                if dims.get(name) != size:
                    state_name = entry.name or entry.label
                    hint = "open the model again for another size"
                    raise Misuse(f"'{state_name}' was made for {name}={size:,}", where=name, hint=hint)
        opened = self.open_state(0, on_progress)
        check_names([opened], replace(opened.options, dims=dict(dims)))
        former_dims = self.options["dims"]
        former_results = self._results, self.products, self._graph, self._graph_results
        self._set_dims(dims)
        try:
            self.examine(self.current, on_progress, cancel)
        except BaseException:
            self._set_dims(former_dims)
            self._results, self.products, self._graph, self._graph_results = former_results
            raise
        self.history = replace(self.history, dims=dict(dims))

    def create_unused_path(self) -> str:
        """Returns a path for the file of a new state. No file exists there."""
        number, base = len(self.history.entries), create_stem(self.source)
        while os.path.lexists(path := os.path.join(self.workdir, f"{number}-{base}.onnx")):
            number += 1
        return path

    def check_output_path(self, path: str, overwrite: bool, *inputs: str | None) -> None:
        """Refuses an output path that is a file of the session, or one of the files `inputs`.

        Raises:
            Misuse: The path is such a file, exists although `overwrite` is False, or cannot be written.
        """
        models = [self.source, *(e.path for e in self.history.entries if e.path)]
        read = [name for name in (*inputs, self.options["weights_file"], self.options["rules"]) if name]
        weights = self._weight_files()
        output_files.check_target(path, overwrite=overwrite, models=models, weights=weights, inputs=read)

    def refuse_shapes(self) -> None:
        """Refuses the option `shapes` for a result that is not an ONNX file.

        Raises:
            Misuse: The session has the option.
        """
        if self.options["shapes"]:
            raise Misuse("only ONNX files declare shapes", where="--shapes", hint="leave it out")

    def check_onnx(self, path: str, overwrite: bool, *inputs: str | None) -> None:
        """Like `check_output_path`, for an ONNX file: also refuses the extension of another format."""
        from explorer.engine import convert  # imported late: most uses of a session do not need it

        self.check_output_path(path, overwrite, *inputs)
        convert.check_name(
            path, "onnx", also="for an nn.Module also .pt2 and .pt, with quantize or tile --to torch"
        )

    # opened models and analyses

    def open_state(self, state: int = 0, on_progress: OnProgress = None) -> OpenedModel:
        """Opens the original, an ONNX file, or a module that a change made.

        Later calls return the same model.

        Raises:
            BadModel: The original is broken, or has changed since its cached analysis was read.
        """
        if self.is_module(state):
            return self._load_module(state, on_progress)
        if state:
            model = self._open_file(state)
            model.options = self._state_options(self.options["dims"])
            return model
        if self._original is None:
            opened = self._open(on_progress)
            if self._cache is not None and not self._cache.is_unchanged():
                raise BadModel(
                    "the file has changed since it was looked at", where=self.source, hint="open it again"
                )
            self._original = opened
        return self._original

    @property
    def is_kept(self) -> bool:
        """Whether the original's analysis comes from the cache and the original is not open."""
        return self._original is None and 0 in self._results

    @property
    def is_graph(self) -> bool:
        """Whether the original is an ONNX graph. It need not be open."""
        if self.is_kept:
            return self._results[0].info.model.format == "onnx"
        return self.open_state().is_graph

    @property
    def from_torch(self) -> bool:
        """Whether the original is an nn.Module."""
        return hasattr(self.open_state(), "loaded")

    def is_planned_as_traced(self, state: int, on_progress: OnProgress = None) -> bool:
        """Whether a tiling plan uses the products of a run on shapes, without an export to ONNX."""
        opened: Any = None if state else self.open_state(0, on_progress)
        if not hasattr(opened, "loaded"):
            return False
        if self.options["past"] is not None:
            return True
        if opened.planned_as_traced:
            return self._graph is None
        parameter_bytes: int = sum(p.numel() * p.element_size() for p in opened.loaded.meta().parameters())
        return self._graph is None and parameter_bytes > _MAX_EXPORT_BYTES

    def list_own_modules(self, index: int | None) -> Mapping[str, Any]:
        """Lists the modules of the user's own nn.Module by path, or returns {} for a state made from it."""
        if self.module is None or self.resolve_index(index):
            return {}
        return dict(self.module.named_modules(remove_duplicate=False))

    @property
    def current_info(self) -> Info | None:
        """Totals of the current state, or None if it is not analyzed yet."""
        examined = self._results.get(self.current)
        return None if examined is None else examined.info

    def check_no_step(self, state: int, on_progress: OnProgress = None) -> None:
        """Refuses decode mode for a module, because its ONNX export is a full pass."""
        if self.options["past"] is not None and self.is_planned_as_traced(state, on_progress):
            raise Misuse(
                "a decode step of an nn.Module can be planned and swept, but not written",
                where="--decode",
                hint="leave it out for a whole pass",
            )

    def load_graph(self, state: int, on_progress: OnProgress = None) -> Model:
        """Loads the ONNX graph of a state, in plain form. A module is exported."""
        if self.is_module(state):
            # each state needs its own folder: the names of exported files do not tell states apart
            folder_path = os.path.join(self.workdir, f"module-{state}")
            os.makedirs(folder_path, mode=0o700, exist_ok=True)
            with scratch.keep_files_private(folder_path) as folder:
                return self._load_module(state, on_progress).graph(folder, on_progress=on_progress)
        if state:
            return build_plain_form(self._open_file(state).model)
        if self._graph is None:
            with scratch.keep_files_private(self.workdir) as folder:
                self._graph = build_plain_form(
                    self.open_state(0, on_progress).graph(folder, on_progress=on_progress)
                )
        return self._graph

    def find_sizes(self, state: int, model: Model) -> tuple[dict[str, int], dict[str, Any]]:
        """Finds the sizes of dimensions, and the shapes of inputs, with which a state's graph is analyzed.

        In decode mode these are the sizes of a decode step.

        Raises:
            Misuse: The graph has no decode step for that number of cached tokens, or the user must set a
                size.
        """
        opened: Any = self.open_state(state)
        if self.options["past"] is not None and opened.is_graph:
            return opened.list_sizes()  # type: ignore[no-any-return]
        names = {value.name for value in model.graph.required_inputs}
        shapes = {name: shape for name, shape in self.name_input_shapes(model).items() if name in names}
        return select_dims(model, self.options["dims"]), shapes

    def name_input_shapes(self, model: Model) -> InputShapes:
        """Returns the user's input shapes by the names of a graph's inputs.

        A shape without a name belongs to the only input. For a file, `_open` names it; for a module, the name
        is known once it was exported.
        """
        inputs = model.graph.required_inputs
        shapes: InputShapes = self.options["input_shapes"]
        return {name or inputs[0].name: shape for name, shape in shapes.items() if name or len(inputs) == 1}

    def examine(self, state: int, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """Analyzes a state and finds its execution order. Later calls return the same result."""
        if state not in self._results:
            stored_result = None if state else self._load_cached_analysis()
            result = stored_result or self._analyze(state, on_progress, cancel)
            self._results[state] = self.present_analysis(state, result)
            if stored_result is None:
                self._cache_fact(state, "info", lambda: _add_bounds(result))
        return self._results[state]

    def examine_or_refuse(
        self, state: int, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> AnalysisResult:
        """Like `examine`, but refuses a module whose run failed, because its figures do not cover all layers.

        Raises:
            BadModel: The run of a module failed, and the session is not partial.
        """
        examined = self.examine(state, on_progress, cancel)
        self.refuse_failed_run(examined.failed_layer)
        return examined

    def refuse_failed_run(self, failed_layer: str) -> None:
        """Refuses a module whose run failed, unless the session is partial.

        Args:
            failed_layer: Layer at which the module's code failed, and its error; '' if it ran to its end.

        Raises:
            BadModel: The run failed.
        """
        if failed_layer and not self.partial:
            raise BadModel(
                f"the model failed in {failed_layer}", where=self.source, hint=_HINT_FOR_FAILED_RUN
            )

    def analyze_at_path(self, model: Model, path: str, cancel: Cancel) -> AnalysisResult:
        """Analyzes a graph whose file will become a state, and computes its rows. The result names `path`."""
        result = _open_onnx(path, self._state_options(self.options["dims"]), model).examine(cancel=cancel)
        result.rows()
        return result.replace_info(replace(result.info, model=replace(result.info.model, source=path)))

    def analysis(self, state: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """Returns the totals and all layers of a state.

        Raises:
            BadModel: The run of a module failed, and the session is not partial.
        """
        analysis = self.examine_or_refuse(state, on_progress, cancel).analysis
        if len(analysis.layers) <= _MIN_CACHED_ROWS + _CACHED_ROWS_PER_SECOND * self._analysis_seconds:
            self._cache_fact(state, "rows", lambda: pack_rows(analysis.layers))
        return analysis

    def pages(self, state: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """Like `analysis`, but the layers are packed rows."""
        examined = self.examine_or_refuse(state, on_progress, cancel)
        rows: Any = None if state or self.cache is None else self.cache.rows()
        if rows is None:
            rows = pack_rows(examined.analysis.layers)
            self._cache_fact(state, "rows", lambda: rows)
        return Analysis(examined.info, rows)

    def ops(self, state: int) -> tuple[OpStat, ...]:
        """Returns statistics of the operator types of a state."""
        return self._load_or_compute(
            state, "ops", lambda: compute_operator_stats(self.examine_or_refuse(state).analysis)
        )

    def memory(self, state: int) -> Memory:
        """Returns the lifetimes of tensors and the arena of a state."""
        return self._load_or_compute(
            state, "memory", lambda: liveness.compute_memory(self.examine_with_order(state))
        )

    def profile(self, state: int) -> Profile | None:
        """Returns the last profile of a state in this session, or the cached profile of the original."""
        profile = self.history.entries[state].profile
        if profile is None and state == 0 and self.cache is not None:
            profile = self.cache.get("profile")
        return profile

    def keep_profile(self, state: int, profile: Profile) -> None:
        """Caches a profile of the original at its own batch size, in place of an earlier one."""
        if state == 0 and self.cache is not None and profile.batch is None:
            self.examine(0)
            self.cache.tried.discard("profile")
            self._cache_fact(0, "profile", lambda: profile)

    def present_analysis(self, state: int, examined: AnalysisResult) -> AnalysisResult:
        """Adds the saved path of a state and the notes about inexact figures to its analysis."""
        info, saved = _add_bounds(examined), self.history.entries[state].saved
        if saved:
            info = replace(info, model=replace(info.model, source=saved))
        return examined.replace_info(info)

    def examine_with_order(self, index: int | None) -> AnalysisResult:
        """Analyzes a state whose execution order must be known, at least in part.

        Raises:
            Misuse: The model is a file of tensors without operators.
        """
        examined = self.examine_or_refuse(self.resolve_index(index))
        if not examined.info.totals.nodes and (order := examined.schedule).incomplete_reason:
            raise Misuse(order.incomplete_reason, where=self.source, hint=order.hint)
        return examined

    def list_weight_notes(self) -> tuple[str, ...]:
        """Lists notes about weights that are not the model's own: random, or from the user's file."""
        notes: tuple[str, ...] = getattr(self.open_state(), "replaced_weights", ())
        return notes

    def rows(self, state: int, on_progress: OnProgress, cancel: Cancel) -> tuple[Layer, ...]:
        """Returns the layers of a state, or () if an option is missing or wrong, such as the input shape."""
        try:
            return self.examine(state, on_progress, cancel).analysis.layers
        except Misuse:
            return ()

    def analyze_original_at(
        self, input_shapes: InputShapes, on_progress: OnProgress, cancel: Cancel
    ) -> AnalysisResult:
        """Analyzes the original at other input sizes."""
        opened = self.open_state(0, on_progress)
        # a module has no named dimensions: the shapes determine its batch size
        dims = opened.options.dims if opened.names() else {}
        return self.analyze_with(0, dims, input_shapes, on_progress, cancel)

    def analyze_with(
        self,
        state: int,
        dims: Mapping[str, int],
        shapes: Mapping[str, Any],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> AnalysisResult:
        """Analyzes a state with other sizes. The options of the session stay as they are."""
        opened = self.open_state(state, on_progress)
        session_options = opened.options
        opened.options = replace(
            session_options, dims=dims, input_shapes={**session_options.input_shapes, **shapes}
        )
        try:
            result: AnalysisResult = opened.examine(on_progress=on_progress, cancel=cancel)
            return result
        finally:
            opened.options = session_options

    def graph_analysis(self, state: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """Returns the analysis of a state's ONNX graph. A module is exported."""
        return self.examine_graph(state, on_progress, cancel).analysis

    def examine_graph(self, state: int, on_progress: OnProgress, cancel: Cancel) -> AnalysisResult:
        """Like `examine`, but of the ONNX graph. A module is exported."""
        if self.open_state(state, on_progress).is_graph:
            return self.examine(state, on_progress, cancel)
        if state not in self._graph_results:
            self._graph_results[state] = self._analyze_graph(state, on_progress, cancel)
        return self._graph_results[state]

    def analyze_graph_at(self, state: int, sizes: Mapping[str, int], model: Model | None = None) -> Analysis:
        """Analyzes a state's graph. `sizes` applies only if some figures are unknown without it.

        Args:
            state: Index of the state.
            sizes: Sizes of open dimensions.
            model: Graph to analyze at `sizes` in place of the state's own, or None.
        """
        if model is not None:
            return self._analyze_graph(state, None, None, sizes, model).analysis
        analysis = self.graph_analysis(state, None, None)
        if analysis.info.totals.coverage == 1 or not sizes:
            return analysis
        return self._analyze_graph(state, None, None, sizes).analysis

    def analyze_comparable(
        self, state: int, another: int, on_progress: OnProgress, cancel: Cancel
    ) -> Analysis:
        """Returns the analysis of a state, if necessary at the sizes of a tiling between it and `another`."""
        analysis = self.graph_analysis(state, on_progress, cancel)
        between = states.list_between(self.history, state, another)
        records = [entry.record for entry in between if entry.record is not None]
        sizes = next((record.sizes for record in records if record.sizes is not None), None)
        if analysis.info.totals.coverage == 1 or sizes is None:
            return analysis
        return self._analyze_graph(state, on_progress, cancel, sizes).analysis

    # the analysis cache

    @property
    def cache(self) -> AnalysisCache | None:
        """Cache of the original at the bound sizes, or None if nothing is cached."""
        if self._cache is None and self._uses_cache:
            self._cache = analysis_cache.open_cache(self.source, self.options, self.strict, self._opened_ns)
            self._uses_cache = self._cache is not None
        return self._cache

    def _load_cached_analysis(self) -> AnalysisResult | None:
        """Reads the analysis of the original from the cache, or returns None.

        Rows are read when they are needed.
        """
        cache = self.cache
        info = None if cache is None else cache.get("info")
        if cache is None or info is None:
            return None
        analyze_again = functools.cache(lambda: self._analyze(0, None, None))

        def load_rows() -> BuiltRows:
            pages = cache.rows()
            if pages is None:
                return analyze_again().rows()
            return BuiltRows(tuple(pages), lambda: analyze_again().schedule, functools.cache(load_flow))

        def load_flow() -> ValueFlow | None:
            record = cache.get("flow")
            if record is None:
                return analyze_again().flow
            return value_flow.build_flow(record)

        return AnalysisResult(info, load_rows)

    def _wrap_cached_flow(self, examined: AnalysisResult) -> AnalysisResult:
        """Wraps the analysis of the original so that its edges are cached once they are computed."""

        def build_rows() -> BuiltRows:
            built_rows = examined.rows()

            def build_and_cache_flow() -> ValueFlow | None:
                flow = built_rows.build_flow()
                if flow is not None and len(flow.made) <= _MIN_CACHED_ROWS:
                    self._cache_fact(0, "flow", lambda: value_flow.build_record(flow))
                return flow

            return built_rows._replace(build_flow=functools.cache(build_and_cache_flow))

        return type(examined)(examined.info, build_rows, examined.bounds, examined.failed_layer)

    def _load_or_compute(self, state: int, name: str, make: Callable[[], _T]) -> _T:
        """Reads a fact of the original from the cache, or computes and caches it."""
        stored_fact: _T | None = None if state or self.cache is None else self.cache.get(name)
        if stored_fact is not None:
            return stored_fact
        fact = make()
        self._cache_fact(state, name, lambda: fact)
        return fact

    def _cache_fact(self, state: int, name: str, fact: Callable[[], Any]) -> None:
        """Caches a fact of the original. Each name is tried only once."""
        if (original := self._results.get(0)) is not None and original.failed_layer:
            return  # a later session refuses the model, unless it is partial as well
        if state == 0 and self.cache is not None and name not in self.cache.tried:
            opened, cached_files = self._original, self.cache.files
            files = cached_files if opened is None else opened.rests_on(self._results[0].info)
            self.cache.keep(name, fact, files, self._analysis_seconds)

    def _analyze(self, state: int, on_progress: OnProgress, cancel: Cancel) -> AnalysisResult:
        """Analyzes a state."""
        opened = self.open_state(state, on_progress)
        began = time.perf_counter()
        examined = opened.examine(on_progress=on_progress, cancel=cancel)
        self._analysis_seconds = time.perf_counter() - began
        if self.options["past"] is not None and "decode" not in examined.info.assumptions:
            raise Misuse("models of this format have no decode mode", where="--past", hint="leave it out")
        return examined if state or self.cache is None else self._wrap_cached_flow(examined)

    # helpers

    def _analyze_graph(
        self,
        state: int,
        on_progress: OnProgress,
        cancel: Cancel,
        sizes: Mapping[str, int] | None = None,
        replacement: Model | None = None,
    ) -> AnalysisResult:
        """Analyzes a state's graph, or the graph `replacement`. `sizes` applies to unbound dimensions."""
        model = replacement or self.load_graph(state)
        open_dims = {d for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)}
        sizes_here = {name: size for name, size in (sizes or {}).items() if name in open_dims}
        opened = _open_onnx(model.path, self._state_options({**sizes_here, **self.options["dims"]}), model)
        return opened.examine(on_progress=on_progress, cancel=cancel)

    def _open_file(self, state: int) -> OnnxModel:
        """Opens the ONNX file of a state with default options."""
        if state not in self._states:
            path = self.history.entries[state].path
            if path is None or not os.path.exists(path):
                raise Misuse("this state of the session is gone", where=path or "history")
            self._states[state] = _open_onnx(path, OpenOptions())
        return self._states[state]

    def _load_module(self, state: int, on_progress: OnProgress) -> TorchModel:
        """Returns the module of a state. If it was dropped from memory, builds it again from its parent."""
        if state not in self._modules:
            entry, parent = self.history.entries[state], self.history.parent(state) or 0
            is_known_change = entry.change in list_offers("changes")
            make_again = load("changes", entry.change).again if is_known_change else None
            if make_again is None:
                raise Misuse("this state of the session is gone", where="history")
            parent_model = self.open_state(parent, on_progress)
            self._keep_module(
                state, make_again(entry, parent_model, self.examine(parent, on_progress).analysis)
            )
        return self._modules[state]

    def _keep_module(self, state: int, module: TorchModel) -> None:
        """Keeps a module in memory, and drops the oldest modules. Each module holds its own weights."""
        self._modules[state] = module
        while len(self._modules) > _MAX_MODULES:
            del self._modules[next(iter(self._modules))]

    def _open(self, on_progress: OnProgress) -> OpenedModel:
        if on_progress is not None:
            on_progress(Progress("opening"))
        options = self._open_options()
        if self.module is None:
            opened = open_model(self.source, options)
        else:
            from explorer.engine.models.torch.module import ModuleObject  # imports torch

            opened = ModuleObject(self.module, self._inputs, options, self._keyword_inputs)
        if (names := opened.names()) is not None and "" in options.input_shapes:
            shapes = name_only_input(options.input_shapes, names[1])
            self.options = {**self.options, "input_shapes": shapes}
            options = opened.options = replace(options, input_shapes=shapes)
        if self.strict:
            check_names([opened], options)
        return opened

    def _open_options(self) -> OpenOptions:
        """Returns options with the rules that the user's file registers. The file runs once."""
        options = load_rules(OpenOptions(**self.options, loaded_rules=self.rules))
        self.rules = options.loaded_rules
        return options

    def _state_options(self, dims: Mapping[str, int]) -> OpenOptions:
        """Returns options for a state's graph, in which the user's input shapes are already applied."""
        return replace(self._open_options(), dims=dims, input_shapes={})

    def _set_dims(self, dims: Mapping[str, int]) -> None:
        """Sets other sizes and drops everything that was computed for the former sizes."""
        self.options["dims"] = dict(dims)
        self._results, self.products, self._graph_results, self._cache = {}, {}, {}, None
        self._modules.clear()
        if self._original is not None:
            self._original.options = replace(self._original.options, dims=dict(dims))
            if not self._original.is_graph:
                self._graph = None

    def _forget(self, state: int) -> None:
        self._states.pop(state, None)
        self._modules.pop(state, None)
        self._graph_results.pop(state, None)
        self._results.pop(state, None)
        self.products.pop(state, None)

    def _weight_files(self) -> set[str]:
        """Lists the files next to the opened model that hold its weights."""
        if not self.open_state().is_graph:
            return set(getattr(self.open_state(), "files", ()))
        folder = os.path.dirname(self.source)
        tensors = self.load_graph(0).graph.initializers.values()
        return {os.path.join(folder, tensor.external) for tensor in tensors if tensor.external}


def _open_onnx(path: str, options: OpenOptions, model: Model | None = None) -> OnnxModel:
    """Opens the ONNX file `path`, or wraps `model`, the graph in it."""
    # imports the engine, which a cached answer does not need
    from explorer.engine.models.onnx import OnnxModel, open_graph

    return open_graph(path, options) if model is None else OnnxModel(path, options, model)


def _add_bounds(examined: AnalysisResult) -> Info:
    """Adds notes about inexact figures to the info of an analysis."""
    return add_bounds_note(examined.info, examined.bounds) if examined.bounds.rows else examined.info


def create_stem(source: str) -> str:
    """Returns a base name for files made from `source`: its file name without '.onnx' and odd characters."""
    stem = os.path.basename(source).removesuffix(".onnx")
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in stem) or "model"
    # a file name has at most 255 bytes, and suffixes such as `_tiled.onnx.toml` follow
    return os.fsencode(plain)[:200].decode("utf-8", "ignore")
