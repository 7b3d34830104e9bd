"""Curves of a session's models over a size, and a language model's decode step beside its whole pass."""

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
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.facts import Info
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.session.parts.models import Models

Sizes = dict[str, int | None]

_TEXT = "sequence"
"""What the length of a module's text is called."""
_TOKENS_OF_CACHE = "tokens"
"""The length of a text, of a graph that takes its cache as inputs: several of its sizes follow from it."""
_BATCHES, _LENGTHS = 1 << 10, 1 << 15
"""Up to which size the curves go unless somebody asks for more."""
_TOKENS = (1024, 128, 16)
"""Tokens of a text for which a step is tried, where nobody says how many."""


class CurveMaker:
    """What a model costs at other sizes; it keeps those that it has."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def names(self, index: int | None) -> Sizes:
        """Sizes that a model can have others of, and what it has now; None for what is open."""
        info = self._models.ordered(index).info
        named = dict.fromkeys(d for t in info.model.inputs for d in t.shape or () if isinstance(d, str))
        found: Sizes = {**named, **(info.assumptions.get("dims") or {})}
        at = self._models.at(index)
        if self._is_module(self._models.opened(at)):
            found |= _module_sizes(info) | found
        return {_TOKENS_OF_CACHE: None, **found} if self._takes_cache(at) else found

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
        """The curves over a size."""
        at = self._models.at(index)
        known = self.names(at)
        if not known:
            raise Misuse("this model leaves no size open", where=self._models.source)
        if self._models.options["past"] is not None:
            raise Misuse("curves are of whole passes", where="--decode", hint="leave it out")
        name = _named(name, known)
        given = low is not None or high is not None
        least = low or 1
        most = high or max(least, _BATCHES if "batch" in name.lower() else _LENGTHS)
        if most < least:
            raise Misuse(f"{least:,} to {most:,} is no range", where="--over", hint="write batch=1:64")
        module = self._is_module(self._models.opened(at, on_progress))
        own = {name, _TEXT if module else _TOKENS_OF_CACHE}
        others = {other: size or 1 for other, size in known.items() if other not in own}
        if name == _TOKENS_OF_CACHE:
            others = {}
        open_ = [other for other in others if known[other] is None]
        note = (f"{', '.join(f'{one}=1' for one in open_)} taken",) if open_ else ()
        with self._sizes(at, on_progress, cancel) as examine:
            over = SizeRange(name, least, most, known[name], {one: others[one] for one in open_}, note)

            @cache
            def counted(size: int) -> AnalysisResult:
                return examine(**self._options(at, name, size, others))

            over = usable_range(over, counted, is_requested=given)
            cached = self._cached(at, examine, over, others)
            return replace(size_curves(over, counted, cached, machine), names=dict(known))

    def decode(
        self, tokens: int | None, index: int | None, on_progress: OnProgress, cancel: Cancel
    ) -> Decode:
        """The step behind a text, beside the pass over it."""
        at = self._models.at(index)
        opened = self._models.opened(at, on_progress)
        if tokens is None and opened.options.past:
            tokens = opened.options.past
        if tokens is not None and tokens < 1:
            raise Misuse("a text has one token at least", where="--past")
        with self._sizes(at, on_progress, cancel) as examine:

            @cache
            def step(past: int) -> AnalysisResult:
                found = examine(past=past)
                if "decode" not in found.info.assumptions:
                    raise Misuse("models of this format have no decode mode", where=self._models.source)
                return found

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
        """Why there is no step, to somebody who did not ask for it by an option."""
        where = self._models.source if error.where == "--past" else error.where
        if error.where == "--past" and error.code in ("drop_option", "no_step"):
            return Misuse(error.what, where=where, hint="info tells its whole pass")
        return Misuse(error.what, where=where, hint=error.hint, code=error.code)

    @contextmanager
    def _sizes(
        self, at: int, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[Callable[..., AnalysisResult]]:
        """Analyses a model with other options; behind it the model has its own again."""
        opened: Any = self._models.opened(at, on_progress)
        usual, loaded = opened.options, getattr(opened, "loaded", None)
        bound = getattr(loaded, "bound", None)
        done = 0

        def examine(**changed: Any) -> AnalysisResult:
            nonlocal done
            report(on_progress, cancel, "counting at other sizes", done)
            done += 1
            opened.options = replace(usual, **changed)
            found: AnalysisResult = opened.examine(cancel=cancel)
            found.analysis, found.schedule  # noqa: B018 - made while the model has these sizes
            return found

        try:
            yield examine
        finally:
            opened.options = usual
            if loaded is not None:
                loaded.bound = bound

    def _options(self, at: int, name: str, size: int, others: dict[str, int]) -> dict[str, Any]:
        """The options of a model for a size."""
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
        """Bytes of a cache of so many tokens, if the size is the length of a text and there is a cache."""
        opened = self._models.opened(at)
        module = self._is_module(opened)
        if "batch" in over.name.lower() or (module and over.name != _TEXT):
            return None
        own = module or over.name == _TOKENS_OF_CACHE
        dims = dict(opened.options.dims) if own else others
        shapes = opened.options.input_shapes

        def held(tokens: int) -> int:
            found = examine(past=tokens, dims=dims, input_shapes=shapes)
            return found.info.totals.kv_cache_bytes or 0

        try:
            return held if held(max(1, over.low)) else None
        except ExplorerError:
            return None  # what has no decode step has no cache

    def _takes_cache(self, at: int) -> bool:
        """Whether it is a graph that takes a key-value cache."""
        model = getattr(self._models.opened(at), "model", None)
        return model is not None and bool(onnx_cache.find(model))

    def _is_module(self, opened: OpenedModel) -> bool:
        """Whether it is an nn.Module, whose sizes have no names of their own."""
        return hasattr(opened, "loaded") and opened.names() is None


def _module_sizes(info: Info) -> Sizes:
    """Sizes of a module's first input: the batch, and the length of a text if it is ids."""
    first = info.model.inputs[0] if info.model.inputs else None
    shape = (first and first.shape) or ()
    if len(shape) < 2 or not isinstance(shape[0], int) or not isinstance(shape[1], int):
        return {}
    ids = len(shape) == 2 and first is not None and (first.dtype or "").startswith("int")
    return {"batch": shape[0], **({_TEXT: shape[1]} if ids else {})}


def _named(name: str | None, known: Sizes) -> str:
    """The size that is meant: one that is asked for, else one that is open, the length of a text first."""
    if name is None:
        texts = [one for one in known if any(word in one.lower() for word in ("seq", "len", "tok"))]
        return next(iter([*texts, *known]))
    if name not in known:
        raise Misuse(
            f"no size is called '{name}'",
            where="--over",
            hint=nearest(name, known) or f"one of {', '.join(known)}",
        )
    return name
