"""Figures of a session's models over one size, and decode steps beside full passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse, nearest
from explorer.engine.costs.decode import onnx_cache, prefill
from explorer.engine.costs.decode.step import text_shapes
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.sizes.curves import SizeRange, size_curves, usable_range
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.progress import report
from explorer.facts import Info
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress

Sizes = dict[str, int | None]

_TEXT = "sequence"
"""Name of the length of a module's text."""
_TOKENS_OF_CACHE = "tokens"
"""Name of the length of a text for a graph with cache inputs: several dimensions follow from it."""
_BATCHES, _LENGTHS = 1 << 10, 1 << 15
"""Largest batch and largest length of a curve, unless the caller asks for more."""
_TOKENS = (1024, 128, 16)
"""Numbers of tokens to try in turn for a decode step, where the caller gives none."""


class CurveMaker:
    """Analyzes the models of a session at other sizes, and restores their own sizes afterwards."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def names(self, index: int | None) -> Sizes:
        """Sizes that can vary, each with its current value; None for an open one."""
        info = self._models.ordered(index).info
        named = dict.fromkeys(d for t in info.model.inputs for d in t.shape or () if isinstance(d, str))
        model_sizes: Sizes = {**named, **(info.assumptions.get("dims") or {})}
        at = self._models.at(index)
        if self._is_module(self._models.opened(at)):
            model_sizes |= _module_sizes(info) | model_sizes
        return {_TOKENS_OF_CACHE: None, **model_sizes} if self._takes_cache(at) else model_sizes

    def curves(
        self,
        name: str | None,
        low: int | None,
        high: int | None,
        machine: Machine | None,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> SizeCurves:
        """Figures over one size, from `low` to `high`."""
        at = self._models.at(index)
        known_sizes = self.names(at)
        if not known_sizes:
            raise Misuse("this model leaves no size open", where=self._models.source)
        if self._models.options["past"] is not None:
            raise Misuse("curves are of whole passes", where="--decode", hint="leave it out")
        name = _named(name, known_sizes)
        has_range = low is not None or high is not None
        least = low or 1
        most = high or max(least, _BATCHES if "batch" in name.lower() else _LENGTHS)
        if most < least:
            raise Misuse(f"{least:,} to {most:,} is no range", where="--over", hint="write batch=1:64")
        module = self._is_module(self._models.opened(at, on_progress))
        own_names = {name, _TEXT if module else _TOKENS_OF_CACHE}
        others = {
            size_name: size or 1 for size_name, size in known_sizes.items() if size_name not in own_names
        }
        if name == _TOKENS_OF_CACHE:
            others = {}
        open_ = [size_name for size_name in others if known_sizes[size_name] is None]
        note = (f"{', '.join(f'{size_name}=1' for size_name in open_)} taken",) if open_ else ()
        with self._sizes(at, on_progress, cancel) as examine:
            over = SizeRange(
                name,
                least,
                most,
                known_sizes[name],
                {size_name: others[size_name] for size_name in open_},
                note,
            )

            @cache
            def counted(size: int) -> AnalysisResult:
                return examine(**self._options(at, name, size, others))

            over = usable_range(over, counted, is_requested=has_range)
            cached = self._cached(at, examine, over, others)
            return replace(size_curves(over, counted, cached, machine), names=dict(known_sizes))

    def decode(
        self, tokens: int | None, index: int | None, on_progress: OnProgress, cancel: Cancel
    ) -> Decode:
        """The decode step after a text, and the pass over that text."""
        at = self._models.at(index)
        opened = self._models.opened(at, on_progress)
        if tokens is None and opened.options.past:
            tokens = opened.options.past
        if tokens is not None and tokens < 1:
            raise Misuse("a text has one token at least", where="--past")
        with self._sizes(at, on_progress, cancel) as examine:

            @cache
            def step(past: int) -> AnalysisResult:
                result = examine(past=past)
                if "decode" not in result.info.assumptions:
                    raise Misuse("models of this format have no decode mode", where=self._models.source)
                return result

            def text(past: int) -> AnalysisResult:
                return examine(past=past, prefill=True)

            for size in (tokens,) if tokens else _TOKENS:
                try:
                    return prefill.decode(step, text, size)
                except Misuse as error:
                    if size == (tokens or _TOKENS[-1]):
                        raise self._no_step(error) from None
            raise AssertionError

    # inside

    def _no_step(self, error: Misuse) -> Misuse:
        """The error without `--past`, for a caller who did not pass that option."""
        where = self._models.source if error.where == "--past" else error.where
        if error.where == "--past" and error.code in ("drop_option", "no_step"):
            return Misuse(error.what, where=where, hint="info tells its whole pass")
        return Misuse(error.what, where=where, hint=error.hint, code=error.code)

    @contextmanager
    def _sizes(
        self, at: int, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[Callable[..., AnalysisResult]]:
        """Yield a function that analyzes a model with other options; restore its own options at the end."""
        opened: Any = self._models.opened(at, on_progress)
        usual, loaded = opened.options, getattr(opened, "loaded", None)
        bound_inputs = getattr(loaded, "bound", None)
        done = 0

        def examine(**changed: Any) -> AnalysisResult:
            nonlocal done
            report(on_progress, cancel, "counting at other sizes", done)
            done += 1
            opened.options = replace(usual, **changed)
            result: AnalysisResult = opened.examine(cancel=cancel)
            result.analysis, result.schedule  # noqa: B018 - computed while the model has these sizes
            return result

        try:
            yield examine
        finally:
            opened.options = usual
            if loaded is not None:
                loaded.bound = bound_inputs

    def _options(self, at: int, name: str, size: int, others: dict[str, int]) -> dict[str, Any]:
        """The options that give a model a size."""
        opened: Any = self._models.opened(at)
        usual: OpenOptions = opened.options
        if name == _TOKENS_OF_CACHE and self._takes_cache(at):
            return {"past": size, "prefill": True}
        if name == _TEXT and self._is_module(opened):
            shapes = text_shapes(opened.loaded.bound.inputs, size)
            return {"dims": {}, "input_shapes": shapes}
        if self._is_module(opened):
            return {"dims": {**usual.dims, name: size}}
        return {"dims": {**others, name: size}, "input_shapes": {}}

    def _cached(
        self, at: int, examine: Callable[..., AnalysisResult], over: SizeRange, others: dict[str, int]
    ) -> Callable[[int], int] | None:
        """A function from tokens to cache bytes; None where the size is not a length, or without a cache."""
        opened = self._models.opened(at)
        module = self._is_module(opened)
        if "batch" in over.name.lower() or (module and over.name != _TEXT):
            return None
        keeps_dims = module or over.name == _TOKENS_OF_CACHE
        dims = dict(opened.options.dims) if keeps_dims else others
        shapes = opened.options.input_shapes

        def cache_bytes(tokens: int) -> int:
            result = examine(past=tokens, dims=dims, input_shapes=shapes)
            return result.info.totals.kv_cache_bytes or 0

        try:
            return cache_bytes if cache_bytes(max(1, over.low)) else None
        except ExplorerError:
            return None  # a model without a decode step has no cache

    def _takes_cache(self, at: int) -> bool:
        """Whether a model is a graph that takes a key-value cache as inputs."""
        model = getattr(self._models.opened(at), "model", None)
        return model is not None and bool(onnx_cache.find(model))

    def _is_module(self, opened: OpenedModel) -> bool:
        """Whether a model is an nn.Module, whose sizes have no names."""
        return hasattr(opened, "loaded") and opened.names() is None


def _module_sizes(info: Info) -> Sizes:
    """Sizes of a module's first input: the batch, and the length of the text where the input is token ids."""
    first = info.model.inputs[0] if info.model.inputs else None
    shape = (first and first.shape) or ()
    if len(shape) < 2 or not isinstance(shape[0], int) or not isinstance(shape[1], int):
        return {}
    ids = len(shape) == 2 and first is not None and (first.dtype or "").startswith("int")
    return {"batch": shape[0], **({_TEXT: shape[1]} if ids else {})}


def _named(name: str | None, known_sizes: Sizes) -> str:
    """The size to vary: `name`, or else the length of a text, or else the first one."""
    if name is None:
        texts = [
            size_name
            for size_name in known_sizes
            if any(word in size_name.lower() for word in ("seq", "len", "tok"))
        ]
        return next(iter([*texts, *known_sizes]))
    if name not in known_sizes:
        raise Misuse(
            f"no size is called '{name}'",
            where="--over",
            hint=nearest(name, known_sizes) or f"one of {', '.join(known_sizes)}",
        )
    return name


def size_names(session: Facade, index: int | None = None) -> dict[str, int | None]:
    """Sizes that `sizes` can go over, and what the model has now; None for what is open."""
    return session.parts.of(CurveMaker).names(index)


def sizes(
    session: Facade,
    over: str | None = None,
    low: int | None = None,
    high: int | None = None,
    *,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> SizeCurves:
    """MACs, memory and least time over one size, and where one passes another.

    Args:
        over: The size: a dimension that the model leaves open, 'batch' or 'sequence' of a module. None
            takes the length of a text, or what there is.
        low: The least size; 1 by default.
        high: The largest; 1,024 of a batch and 32,768 of another size by default, or as far as it goes.
        machine: Of the times; None leaves them out.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: There is no such size, or the model cannot have it over the range that was asked for.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(CurveMaker).curves(over, low, high, machine, index, on_progress, cancel)


def decode(
    session: Facade,
    tokens: int | None = None,
    *,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Decode:
    """One decode step behind a text beside the pass over the text, and what the cache grows to.

    Args:
        tokens: Of the text; by default those of `past`, else 1,024, or fewer where the model takes fewer.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: The model has no decode step, or not behind so many tokens.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(CurveMaker).decode(tokens, index, on_progress, cancel)
