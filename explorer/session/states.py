"""The models of a session: what was opened, what was made of it, and which is current.

The lowest part of `explorer.session.Session`. A state is a file or the opened model; what was found out
about one (its graph, its analysis, its matrix products) is kept here, so that no question costs twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Analysis, History, HistoryEntry, Info, Layer, Plan, Progress, Verification
from explorer.host import scratch

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.costs.memory.liveness import Examined
    from explorer.engine.costs.onnx_rules import Rules
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened import Opened
    from explorer.engine.tiling.products import Products
    from explorer.facts import TileSpec
    from explorer.facts.blame import Blame
    from explorer.facts.verification import Tolerance

__all__ = ["Cancel", "Dims", "InputShapes", "OnProgress", "States", "stem"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None
Dims = Mapping[str, int | Sequence[int]]
InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]

_LONGEST_NAME = 200
"""Characters of a state's name."""


class States:
    """A model and what was made of it; the arguments are those of `explorer.session.Session`."""

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
        if workdir is not None:
            scratch.ours(workdir)
        self._own_workdir: str | None = None
        self._opened: Opened | None = None
        self._history = History((HistoryEntry("original", None, ""),), 0)
        self._models: dict[int, Model] = {}
        self._examined: dict[int, Examined] = {}
        self._original_graph_analysis: Analysis | None = None
        self._products: dict[int, dict[Any, Products]] = {}

    def __enter__(self) -> Self:
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
            import weakref

            folder = scratch.Folder()
            self._own_workdir = folder.path
            # who forgets to close a session must not find thousands of folders one day
            self._remove_workdir = weakref.finalize(self, folder.remove)
        return self._own_workdir

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

    def go(self, index: int) -> History:
        """To any state: it becomes the current one, and the others stay where they are.

        Raises:
            Misuse: The history has no such entry.
        """
        self._history = replace(self._history, current=self._at(index))
        return self._history

    def name(self, index: int, text: str) -> History:
        """Gives a state a name of the user's own; an empty one takes it away.

        Raises:
            Misuse: The history has no such entry.
        """
        self._amend(self._at(index), name=" ".join(text.split())[:_LONGEST_NAME])
        return self._history

    def restore(self, history: History) -> History:
        """Takes up the history of another session of the same source, whose process ended."""
        for at in range(1, max(len(self._history.entries), len(history.entries))):
            self._forget(at)
        self._history = history
        if history.dims is not None:
            self._take_dims({name: size for name, size in history.dims.items() if size > 0})
        return self._history

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
        from explorer.engine.models.opened import check_names

        for name, size in dims.items():
            if size < 1:
                raise Misuse(f"'{size}' is no size", where=name, hint="write a whole number of 1 or more")
        for entry in self._history.entries:
            for name, size in (entry.dims or {}).items():
                if dims.get(name) != size:
                    made = entry.name or entry.label
                    hint = "open the model again for another size"
                    raise Misuse(f"'{made}' was made for {name}={size:,}", where=name, hint=hint)
        opened = self._open(on_progress)
        check_names([opened], replace(opened.options, dims=dict(dims)))
        before = self._options["dims"], self._examined, self._products, self._models
        graph = self._original_graph_analysis
        self._take_dims(dims)
        try:
            self._examine(self._history.current, on_progress, cancel)
        except BaseException:
            self._take_dims(before[0])
            _, self._examined, self._products, self._models = before
            self._original_graph_analysis = graph
            raise
        self._history = replace(self._history, dims=dict(dims))
        return self._history

    # inside

    def _take_dims(self, dims: Mapping[str, int]) -> None:
        """Other sizes: whatever was found out at those before is not known any more."""
        self._options["dims"] = dict(dims)
        self._examined, self._products, self._original_graph_analysis = {}, {}, None
        if self._opened is not None:
            self._opened.options = replace(self._opened.options, dims=dict(dims))
            if self._opened.format != "onnx":
                self._models = {at: model for at, model in self._models.items() if at}

    def _at(self, index: int | None) -> int:
        at = self._history.current if index is None else index
        if not 0 <= at < len(self._history.entries):
            raise Misuse(f"the history has no entry {at}", hint=f"it has {len(self._history.entries)}")
        return at

    def _unused_name(self) -> str:
        """A file for a new state: none of the history's, though a step back leaves numbers behind."""
        number = len(self._history.entries)
        while os.path.lexists(path := os.path.join(self.workdir, f"{number}-{stem(self.source)}.onnx")):
            number += 1
        return path

    def _label(self, at: int) -> str:
        """What the user calls a state: where it was saved, or what was done to which model."""
        entry = self._history.entries[at]
        return entry.saved or (f"{self.source}, {entry.label}" if at else self.source)

    def _open(self, on_progress: OnProgress) -> Opened:
        if self._opened is None:
            from explorer.engine.models.opened import OpenOptions, check_names, with_rules
            from explorer.engine.models.registry import open_model

            if on_progress is not None:
                on_progress(Progress("opening"))
            options = with_rules(OpenOptions(**self._options))
            if self._module is None:
                opened = open_model(self.source, options)
            else:
                from explorer.engine.models.torch.module import ModuleObject

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
                with scratch.made_private(self.workdir) as folder:
                    self._models[0] = self._open(on_progress).graph(folder, on_progress=on_progress)
            else:
                from explorer.engine.formats.onnx import reader
                from explorer.engine.formats.onnx.validate import validate

                path = self._history.entries[at].path
                if path is None or not os.path.exists(path):
                    raise Misuse("this state of the session is gone", where=path or "history")
                self._models[at] = validate(reader.read(path))
        return self._models[at]

    def _examine(self, at: int, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """The analysis of the model at a place of the history, and its execution order, made once."""
        if at not in self._examined:
            if at == 0:
                examined = self._open(on_progress).examine(on_progress=on_progress, cancel=cancel)
            else:
                examined = self._examine_graph(self._model(at), on_progress, cancel)
            if self._options["past"] is not None and "decode" not in examined.info.assumptions:
                raise Misuse("models of this format have no decode mode", where="--past", hint="leave it out")
            self._examined[at] = self._told(at, examined)
        return self._examined[at]

    def _told(self, at: int, examined: Examined) -> Examined:
        """An analysis with what the session knows of the model's file, and a word on what is not exact."""
        from explorer.engine.costs.layer_tree import said_of_bounds

        named = _with_file(examined.info, self._history.entries[at].saved or None)
        return examined.with_info(said_of_bounds(named, examined.bounds))

    def _ordered(self, index: int | None) -> Examined:
        """The analysis of a model whose order of execution is known, if only in part.

        Raises:
            Misuse: It is a file of tensors, which says nothing of the work.
        """
        examined = self._examine(self._at(index))
        order = examined.schedule
        if order.failed and not examined.analysis.info.totals.nodes:
            raise Misuse(order.failed, where=self.source, hint=order.hint)
        return examined

    def _random_weights(self) -> tuple[str, ...]:
        """That the weights of every state are random, if those of the opened model are."""
        said = getattr(self._open(None), "weights_note", "")
        return (said,) if said.startswith("random") else ()

    def _rows(self, at: int, on_progress: OnProgress, cancel: Cancel) -> tuple[Layer, ...]:
        """The layers of a model; none of a module whose inputs have still to be given, which has values."""
        try:
            return self._examine(at, on_progress, cancel).analysis.layers
        except Misuse:
            return ()

    def _graph_analysis(self, at: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """As `analysis`, but of the ONNX graph even where the original is a module."""
        if at or self._open(on_progress).format == "onnx":
            return self._examine(at, on_progress, cancel).analysis
        if self._original_graph_analysis is None:
            examined = self._examine_graph(self._model(0), on_progress, cancel)
            self._original_graph_analysis = examined.analysis
        return self._original_graph_analysis

    def _comparable_analysis(self, at: int, other: int, on_progress: OnProgress, cancel: Cancel) -> Analysis:
        """The analysis of a state at the sizes of the figures of the tilings between it and another."""
        known = self._graph_analysis(at, on_progress, cancel)
        between = self._history.entries[min(at, other) + 1 : max(at, other) + 1]
        sizes = next((entry.plan.dims for entry in between if entry.plan is not None), None)
        if known.info.totals.coverage == 1 or sizes is None:
            return known
        return self._examine_graph(self._model(at), on_progress, cancel, sizes).analysis

    def _examine_graph(
        self,
        model: Model,
        on_progress: OnProgress,
        cancel: Cancel,
        sizes: Mapping[str, int] | None = None,
    ) -> Examined:
        """The analysis of a graph; `sizes` are of dimensions that nobody bound."""
        from explorer.engine.costs.onnx import analyse
        from explorer.engine.models.opened import dims_of

        own = {d for value in model.graph.feeds for d in value.shape or () if isinstance(d, str)}
        dims = {k: v for k, v in (sizes or {}).items() if k in own}
        dims.update(dims_of(model, self._options["dims"]))
        self._open(on_progress)
        analysed = partial(
            analyse.examine,
            model,
            rules=self._rules,
            observe=bool(self._options["observe"]),
            on_progress=on_progress,
            cancel=cancel,
        )
        if self._options["past"] is not None:
            from explorer.engine.costs.decode.step import step_of_graph

            return step_of_graph(model, self._options["past"], dims, {}, analysed)
        return analysed(dims=dims)

    def _found(
        self,
        at: int,
        on_progress: OnProgress,
        spec: TileSpec | None = None,
        apart: tuple[str, ...] | None = None,
    ) -> Products:
        """The matrix products of a state; where `spec` packs groups into tiles, these among them.

        `apart` names the nodes that are taken apart, None for all that can be.
        """
        packed = spec is not None and spec.grouped == "pack"
        kept = self._products.get(at, {})
        known: Any = (spec.tile, spec.rules, apart) if packed and spec else apart
        if known not in kept:
            from explorer.engine.models.opened import dims_of
            from explorer.engine.tiling.products import find_products
            from explorer.engine.tiling.rules import packing

            model = self._model(at, on_progress)
            dims = dims_of(model, self._options["dims"])
            asked: dict[str, Any] = {"grouped": "pack", "pack": packing(spec)} if packed and spec else {}
            shapes = self._options["input_shapes"]
            # of the packings the last one: each holds shapes and an analysis
            kept = {key: found for key, found in kept.items() if key is None}
            kept[known] = find_products(model, dims, shapes, self._rules, apart=apart, **asked)
            self._products[at] = kept
        return kept[known]

    def _verify(
        self,
        before: Model,
        after: Model,
        plan: Plan | None,
        draws: int,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
        dims: Dims | None = None,
        input: str | None = None,
        tolerance: Tolerance | None = None,
    ) -> Verification:
        from explorer.engine.proof import verify

        bound = _fixed(plan) if plan is not None else self._options["dims"]
        return verify(
            before,
            after,
            plan=plan,
            draws=draws,
            seed=seed,
            torch_run=self._open(on_progress).runner(),
            **self._inputs_of(before, bound, dims, input),
            tolerance=tolerance,
            on_progress=on_progress,
            cancel=cancel,
        )

    def _blame(
        self,
        before: Model,
        after: Model,
        draws: int,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
        dims: Dims | None = None,
        input: str | None = None,
    ) -> Blame:
        from explorer.engine.proof.blame.search import blame

        return blame(
            before,
            after,
            draws=draws,
            seed=seed,
            **self._inputs_of(before, self._options["dims"], dims, input),
            on_progress=on_progress,
            cancel=cancel,
        )

    def _inputs_of(
        self, before: Model, bound: Mapping[str, int], dims: Dims | None, input: str | None
    ) -> dict[str, Any]:
        """What a proof or a blame is told of the inputs: sizes, shapes, and a file's values."""
        from explorer.engine.models.opened import dims_of
        from explorer.engine.runtime.input_files import read_input

        if input is not None and dims:
            raise Misuse("the sizes are those of the file", where="--dim", hint="leave it out, or --input")
        return {
            "dims": dims_of(before, {**bound, **(dims or {})}),
            "input_shapes": self._options["input_shapes"],
            "given": read_input(input) if input is not None else None,
        }

    def _plan_between(self, before: int, after: int) -> Plan | None:
        """What was tiled on the way from one state to a later one; None for nothing, and on the way back."""
        plans = [entry.plan for entry in self._history.entries[before + 1 : after + 1] if entry.plan]
        if not plans:
            return None
        sites = tuple(site for plan in plans for site in plan.sites)
        return replace(
            plans[-1],
            sites=sites,
            products=None if any(p.products is None for p in plans) else sum(p.products or 0 for p in plans),
            macs=None if any(p.macs is None for p in plans) else sum(p.macs or 0 for p in plans),
            dims={name: size for plan in plans for name, size in plan.dims.items()},
            free=tuple(dict.fromkeys(name for plan in plans for name in plan.free)),
            decomposed=tuple(dict.fromkeys(name for plan in plans for name in plan.decomposed)),
        )

    def _append(self, entry: HistoryEntry) -> None:
        """Adds a state behind the current one; what could have been redone is gone."""
        kept = self._history.entries[: self._history.current + 1]
        for at in range(len(kept), len(self._history.entries)):
            self._forget(at)
        self._history = replace(self._history, entries=(*kept, entry), current=len(kept))

    def _amend(self, at: int, **fields: str) -> None:
        """Says something else of a state."""
        entries = list(self._history.entries)
        entries[at] = replace(entries[at], **fields)
        self._history = replace(self._history, entries=tuple(entries))

    def _forget(self, at: int) -> None:
        self._models.pop(at, None)
        self._examined.pop(at, None)
        self._products.pop(at, None)

    def _check_target(self, path: str, overwrite: bool, *inputs: str) -> None:
        from explorer.host.output_files import check_target

        models = [self.source, *(e.path for e in self._history.entries if e.path), *inputs]
        check_target(path, overwrite=overwrite, models=models, weights=self._weight_files())

    def _weight_files(self) -> set[str]:
        """Files beside the opened model that hold its weights."""
        if self._open(None).format != "onnx":
            return set(getattr(self._opened, "files", ()))
        folder = os.path.dirname(self.source)
        tensors = self._model(0).graph.initializers.values()
        return {os.path.join(folder, tensor.external) for tensor in tensors if tensor.external}


def _fixed(plan: Plan) -> dict[str, int]:
    """The sizes that a plan has bound: those that it leaves open are tried at several."""
    return {name: size for name, size in plan.dims.items() if name not in plan.free}


def stem(source: str) -> str:
    """A file name for what is made of `source`."""
    stem = os.path.basename(source).removesuffix(".onnx")
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in stem) or "model"
    # a file system takes 255 bytes, and what is made of it is called `_tiled.onnx.toml` and the like
    return os.fsencode(plain)[:200].decode("utf-8", "ignore")


def _with_file(info: Info, saved: str | None) -> Info:
    """The facts with the name under which the user knows the model."""
    return info if saved is None else replace(info, model=replace(info.model, source=saved))
