"""Session methods that count figures over one size, and decode steps.

A size is a dimension of the inputs: the batch, or the length of the text in tokens. The analysis runs at
several sizes, and a closed form is fitted where possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse, suggest_name
from explorer.engine.costs.decode import onnx_cache, prefill
from explorer.engine.costs.decode.step import build_text_shapes
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.sizes.curves import SizeRange, compute_size_curves, find_usable_range
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.progress import report
from explorer.facts import Info
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress

Sizes = dict[str, int | None]

_TEXT_LENGTH = "sequence"
"""Name of the text length of a module."""
_CACHED_TOKENS = "tokens"
"""Name of the text length of a graph with cache inputs, which sets several dimensions."""
_MAX_BATCH, _MAX_LENGTH = 1 << 10, 1 << 15
"""Default upper ends of a curve over a batch and over another size."""
_DEFAULT_TOKENS = (1024, 128, 16)
"""Numbers of tokens to try in turn for a decode step if the caller gives none."""


class CurveMaker:
    """Analyzes the models of a session at other sizes, and restores their own sizes at the end."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def names(self, index: int | None) -> Sizes:
        """Return the sizes that can vary, each with its current value, or None for an open size."""
        info = self._models.examine_with_order(index).info
        input_dims = [dim for tensor in info.model.inputs for dim in tensor.shape or ()]
        open_sizes = dict.fromkeys(dim for dim in input_dims if isinstance(dim, str))
        model_sizes: Sizes = {**open_sizes, **(info.assumptions.get("dims") or {})}
        state_index = self._models.resolve_index(index)
        if self._is_module(self._models.open_state(state_index)):
            model_sizes |= _find_module_sizes(info) | model_sizes
        return {_CACHED_TOKENS: None, **model_sizes} if self._has_cache_inputs(state_index) else model_sizes

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
        """Count the figures over one size, from `low` to `high`."""
        state_index = self._models.resolve_index(index)
        known_sizes = self.names(state_index)
        if not known_sizes:
            raise Misuse("this model leaves no size open", where=self._models.source)
        if self._models.options["past"] is not None:
            raise Misuse("the curves are those of full passes", where="--decode", hint="leave it out")
        name = _choose_size(name, known_sizes)
        has_range = low is not None or high is not None
        smallest = low or 1
        largest = high or max(smallest, _MAX_BATCH if "batch" in name.lower() else _MAX_LENGTH)
        if largest < smallest:
            raise Misuse(
                f"{smallest:,} to {largest:,} is not a range", where="--over", hint="write batch=1:64"
            )
        is_module = self._is_module(self._models.open_state(state_index, on_progress))
        own_names = {name, _TEXT_LENGTH if is_module else _CACHED_TOKENS}
        other_sizes = {
            size_name: size or 1 for size_name, size in known_sizes.items() if size_name not in own_names
        }
        if name == _CACHED_TOKENS:
            other_sizes = {}
        assumed_names = [size_name for size_name in other_sizes if known_sizes[size_name] is None]
        notes = (f"assumed: {', '.join(f'{size}=1' for size in assumed_names)}",) if assumed_names else ()
        with self._open_other_sizes(state_index, on_progress, cancel) as examine:
            size_range = SizeRange(
                name,
                smallest,
                largest,
                known_sizes[name],
                {size_name: other_sizes[size_name] for size_name in assumed_names},
                notes,
            )

            @cache
            def count_at(size: int) -> AnalysisResult:
                return examine(**self._options(state_index, name, size, other_sizes))

            size_range = find_usable_range(size_range, count_at, is_requested=has_range)
            count_cache_bytes = self._make_cache_counter(state_index, examine, size_range, other_sizes)
            return replace(
                compute_size_curves(size_range, count_at, count_cache_bytes, machine), names=dict(known_sizes)
            )

    def decode(
        self, tokens: int | None, index: int | None, on_progress: OnProgress, cancel: Cancel
    ) -> Decode:
        """Count the decode step after a text, and the prefill pass over that text."""
        state_index = self._models.resolve_index(index)
        opened = self._models.open_state(state_index, on_progress)
        if tokens is None and opened.options.past:
            tokens = opened.options.past
        if tokens is not None and tokens < 1:
            raise Misuse("a decode step needs at least one token in the cache", where="--past")
        with self._open_other_sizes(state_index, on_progress, cancel) as examine:

            @cache
            def analyze_step(past: int) -> AnalysisResult:
                result = examine(past=past)
                if "decode" not in result.info.assumptions:
                    raise Misuse("models of this format have no decode mode", where=self._models.source)
                return result

            def analyze_text(past: int) -> AnalysisResult:
                return examine(past=past, prefill=True)

            for size in (tokens,) if tokens else _DEFAULT_TOKENS:
                try:
                    return prefill.compare_prefill_and_step(analyze_step, analyze_text, size)
                except Misuse as error:
                    if size == (tokens or _DEFAULT_TOKENS[-1]):
                        raise self._reword_past_error(error) from None
            raise AssertionError

    def _reword_past_error(self, error: Misuse) -> Misuse:
        """Return an error that does not name `--past`, for a caller who did not pass that option."""
        where = self._models.source if error.where == "--past" else error.where
        if error.where == "--past" and error.code in ("drop_option", "no_step"):
            return Misuse(error.what, where=where, hint="explorer info shows its full pass")
        return Misuse(error.what, where=where, hint=error.hint, code=error.code)

    @contextmanager
    def _open_other_sizes(
        self, state_index: int, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[Callable[..., AnalysisResult]]:
        """Yield a function that analyzes a model with other options; restore its options at the end."""
        opened: Any = self._models.open_state(state_index, on_progress)
        own_options, loaded = opened.options, getattr(opened, "loaded", None)
        bound_inputs = getattr(loaded, "bound", None)
        run_count = 0

        def examine(**changed: Any) -> AnalysisResult:
            nonlocal run_count
            report(on_progress, cancel, "counting at other sizes", run_count)
            run_count += 1
            opened.options = replace(own_options, **changed)
            result: AnalysisResult = opened.examine(cancel=cancel)
            result.analysis, result.schedule  # noqa: B018 - computes both while the model has these sizes
            return result

        try:
            yield examine
        finally:
            opened.options = own_options
            if loaded is not None:
                loaded.bound = bound_inputs

    def _options(self, state_index: int, name: str, size: int, other_sizes: dict[str, int]) -> dict[str, Any]:
        """Return fields of `OpenOptions` that set the size `name` of a model to `size`."""
        opened: Any = self._models.open_state(state_index)
        own_options: OpenOptions = opened.options
        if name == _CACHED_TOKENS and self._has_cache_inputs(state_index):
            return {"past": size, "prefill": True}
        if name == _TEXT_LENGTH and self._is_module(opened):
            shapes = build_text_shapes(opened.loaded.bound.inputs, size)
            return {"dims": {}, "input_shapes": shapes}
        if self._is_module(opened):
            return {"dims": {**own_options.dims, name: size}}
        return {"dims": {**other_sizes, name: size}, "input_shapes": {}}

    def _make_cache_counter(
        self,
        state_index: int,
        examine: Callable[..., AnalysisResult],
        size_range: SizeRange,
        other_sizes: dict[str, int],
    ) -> Callable[[int], int] | None:
        """Return a function that counts the cache bytes of a number of tokens.

        None if the size is not a text length, or the model has no cache.
        """
        opened = self._models.open_state(state_index)
        is_module = self._is_module(opened)
        if "batch" in size_range.name.lower() or (is_module and size_range.name != _TEXT_LENGTH):
            return None
        keeps_dims = is_module or size_range.name == _CACHED_TOKENS
        dims = dict(opened.options.dims) if keeps_dims else other_sizes
        shapes = opened.options.input_shapes

        def cache_bytes(tokens: int) -> int:
            result = examine(past=tokens, dims=dims, input_shapes=shapes)
            return result.info.totals.kv_cache_bytes or 0

        try:
            return cache_bytes if cache_bytes(max(1, size_range.low)) else None
        except ExplorerError:
            return None  # a model without a decode step has no cache

    def _has_cache_inputs(self, state_index: int) -> bool:
        """Return whether a state is a graph with its KV cache as inputs."""
        model = getattr(self._models.open_state(state_index), "model", None)
        return model is not None and bool(onnx_cache.find_cache(model))

    def _is_module(self, opened: OpenedModel) -> bool:
        """Return whether a model is an nn.Module, whose sizes have no names."""
        return hasattr(opened, "loaded") and opened.names() is None


def _find_module_sizes(info: Info) -> Sizes:
    """Return the sizes of a module's first input: the batch, and the text length for token ids."""
    first = info.model.inputs[0] if info.model.inputs else None
    shape = (first and first.shape) or ()
    if len(shape) < 2 or not isinstance(shape[0], int) or not isinstance(shape[1], int):
        return {}
    has_token_ids = len(shape) == 2 and first is not None and (first.dtype or "").startswith("int")
    return {"batch": shape[0], **({_TEXT_LENGTH: shape[1]} if has_token_ids else {})}


def _choose_size(name: str | None, known_sizes: Sizes) -> str:
    """Return the size to vary: `name` if given, else a text length, else the first size."""
    if name is None:
        length_names = [
            size_name
            for size_name in known_sizes
            if any(word in size_name.lower() for word in ("seq", "len", "tok"))
        ]
        return next(iter([*length_names, *known_sizes]))
    if name not in known_sizes:
        raise Misuse(
            f"no size is called '{name}'",
            where="--over",
            hint=suggest_name(name, known_sizes),
        )
    return name


def size_names(session: Facade, index: int | None = None) -> dict[str, int | None]:
    """Return the sizes that `sizes` can vary, each with its current value, or None if open."""
    return session.parts.get_part(CurveMaker).names(index)


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
    """Count MACs, memory and least time over one size, and find sizes at which one figure passes another.

    Args:
        over: Name of the size: an open dimension of the model, or 'batch' or 'sequence' of a module. None
            takes the text length, or the first size.
        low: Smallest size; the default is 1.
        high: Largest size. The default is 1,024 for a batch and 32,768 for another size, or the largest that
            the model supports.
        machine: Machine for the times, or None to leave them out.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: There is no such size, or the model does not support the requested range.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(CurveMaker).curves(over, low, high, machine, index, on_progress, cancel)


def decode(
    session: Facade,
    tokens: int | None = None,
    *,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Decode:
    """Count one decode step after a text, the prefill pass over the text, and the growth of the KV cache.

    Args:
        tokens: Number of tokens of the text. The default is the session's `past`, else 1,024, or fewer if the
            model supports fewer.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: The model has no decode step, or none after so many tokens.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(CurveMaker).decode(tokens, index, on_progress, cancel)
