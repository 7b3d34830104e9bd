"""Finds inputs that give the operators of a region values in every range in which they behave differently.

Relu, for example, has a range on either side of its bend at 0; `bend_points` lists the ranges of operators.
A run meets a range if it gives the operand a value in it. The region runs on scaled and on constant inputs.
If an operand is below a range in one run and above it in another, an input between the two is in the range,
and bisection finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.engine.proof.regions.bend_points import OperandWatch, Target
from explorer.engine.proof.regions.synthetic_values import DRAWN_FLOATS, Feeds
from explorer.engine.runtime.onnxruntime import Array

_MAGNITUDES = (1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e6, 1e9, 1e18, 1e30, 1e38)
"""Factors for dense random values, and for inputs that are 1 throughout."""

_MAX_ALONE = 4
"""Largest number of inputs that are also changed one at a time."""

_BISECTIONS = 64
"""Number of bisections, after which two 64-bit floats of the same sign are adjacent."""

_MAX_RUNS, _MIN_RUNS = 400, 32
"""Largest and smallest limit for the number of runs of a search."""

_MAX_ELEMENTS = 1 << 25
"""Largest number of watched elements in all runs. `_MIN_RUNS` runs are allowed even with more elements."""

Observe = Callable[[Feeds], Sequence[Mapping[str, Array]]]
"""Function that runs the region in both models, its two sides, and returns the inner values of each side."""

Key = tuple[int, OperandWatch, Target]
"""Side of the region (0: original, 1: other), watched operand, and range."""


class Coverage(Struct):
    """Ranges that no run has met yet, and the synthetic inputs that met the other ranges.

    Attributes:
        watches: Watched operands of either side.
        missing: Ranges that no run has met.
        feeds: Synthetic inputs that were the first to meet a range.
        runs: Number of runs.
    """

    watches: tuple[Sequence[OperandWatch], Sequence[OperandWatch]]
    missing: dict[Key, None] = field(default_factory=dict)
    feeds: list[Feeds] = field(default_factory=list)
    runs: int = 0

    def __post_init__(self) -> None:
        for side, watches in enumerate(self.watches):
            self.missing.update(
                ((side, watch, target), None) for watch in watches for target in watch.targets
            )

    @property
    def required(self) -> list[Key]:
        """The ranges that the verdict needs and that no run has met."""
        return [key for key in self.missing if key[2].required]

    def add(self, values: Sequence[Mapping[str, Array]], feeds: Feeds | None = None) -> bool:
        """Removes the ranges that a run met from `missing`, and returns whether the run met one of them.

        The inputs `feeds` of such a run are stored. A range that does not apply to the operand's type is
        removed, too, but does not count as met.
        """
        finished = []
        for key in self.missing:
            side, watch, target = key
            observed = watch.read(values[side])
            if observed is None or target.is_met(observed):
                finished.append((key, observed is not None))
        for key, _ in finished:
            del self.missing[key]
        is_new = any(is_met for _, is_met in finished)
        if is_new and feeds is not None:
            self.feeds.append(feeds)
        return is_new


def search_missing_ranges(
    coverage: Coverage,
    observe: Observe,
    original_values: Feeds,
    dense: Feeds,
    adjustable: Sequence[str],
    seed: int,
) -> None:
    """Searches inputs that meet the missing ranges, and adds them to `coverage.feeds`.

    Args:
        coverage: Ranges to meet.
        observe: Function that runs both sides of the region.
        original_values: Values of the inputs in a run of the original model.
        dense: Random values of the inputs, spread as those of `original_values`.
        adjustable: Names of the float and bool inputs that are changed.
        seed: Seed of the random numbers.
    """
    floats = [
        name
        for name in adjustable
        if original_values[name].dtype.name in DRAWN_FLOATS and original_values[name].size
    ]
    size = sum(array.size for values in observe(original_values) for array in values.values())
    runs = max(_MIN_RUNS, min(_MAX_RUNS, _MAX_ELEMENTS // max(size, 1)))
    search = _Search(coverage, observe, seed, runs)
    for name in adjustable:
        if original_values[name].dtype.kind == "b":
            for flags in (np.ones_like(original_values[name]), np.zeros_like(original_values[name])):
                search.observe({**dense, name: flags})
    for path in _list_paths(original_values, dense, floats):
        if not coverage.missing:
            return
        search.follow(path)
        if not coverage.required:
            return


def _list_paths(original_values: Feeds, dense: Feeds, floats: Sequence[str]) -> Iterator[list[Feeds]]:
    """Yields paths: lists of inputs ordered by their factor, from large negative to large positive."""
    factors = sorted({sign * magnitude for magnitude in _MAGNITUDES for sign in (-1.0, 1.0)} | {0.0})
    groups = [list(floats)] + ([[name] for name in floats[:_MAX_ALONE]] if len(floats) > 1 else [])
    for index, group in enumerate(groups):
        # the first group changes all floats; the other groups change one input beside the original's values
        unchanged = dense if index == 0 else original_values
        for is_constant in (False, True):
            unscaled = {
                name: np.ones(original_values[name].shape) if is_constant else dense[name] for name in group
            }
            yield [
                {
                    **unchanged,
                    **{name: scale(unit, original_values[name], factor) for name, unit in unscaled.items()},
                }
                for factor in factors
            ]


def scale(values: Array, like: Array, factor: float) -> Array:
    """Scales values and converts them to the type of an input, without infinities."""
    largest = _find_largest(like)
    with np.errstate(all="ignore"):
        scaled = np.clip(values.astype(np.float64) * factor, -largest, largest) + 0.0  # without -0.0
        return np.asarray(scaled).astype(like.dtype)


def _find_largest(like: Array) -> float:
    """Returns the largest finite number of an array's type."""
    if like.dtype.kind == "f":
        return float(np.finfo(like.dtype).max)
    return 3e38  # bfloat16


class _Search:
    """A search for inputs that meet ranges, with a limited number of runs."""

    def __init__(self, coverage: Coverage, observe: Observe, seed: int, budget: int) -> None:
        self.coverage, self.run_sides, self.budget = coverage, observe, budget
        self.generator = np.random.default_rng(seed)

    def observe(self, feeds: Feeds) -> Sequence[Mapping[str, Array]] | None:
        """Runs both sides on inputs and marks the ranges that they meet; None without a result."""
        if self.coverage.runs >= self.budget:
            return None
        self.coverage.runs += 1
        try:
            values = self.run_sides(feeds)
        except BadModel:
            return None
        self.coverage.add(values, feeds)
        return values

    def follow(self, path: Sequence[Feeds]) -> None:
        """Runs the inputs of a path, then searches between those that are on both sides of a range."""
        results: dict[int, tuple[Feeds, Sequence[Mapping[str, Array]]]] = {}
        for index in sorted(range(len(path)), key=lambda index: abs(index - len(path) // 2)):
            if not self.coverage.missing:
                return
            if (values := self.observe(path[index])) is not None:
                results[index] = path[index], values
        for key in list(self.coverage.missing):
            if key not in self.coverage.missing:
                continue
            side, watch, _ = key
            observed = [(feeds, watch.read(values[side])) for _, (feeds, values) in sorted(results.items())]
            self._search_between(key, [(feeds, values) for feeds, values in observed if values is not None])

    def _search_between(self, key: Key, observed: Sequence[tuple[Feeds, Array]]) -> None:
        """Searches an input that meets a range between neighbors of a path, on both sides of the range."""
        low, high = key[2].low, key[2].high
        # the smallest inputs first, because rounding is coarse between large ones
        for index in sorted(range(len(observed) - 1), key=lambda index: abs(index - len(observed) // 2)):
            (first, before), (second, after) = observed[index], observed[index + 1]
            if before.shape != after.shape:
                continue
            crosses = ((before < low) & (after > high)) | ((before > high) & (after < low))
            if crosses.any() and self._bisect(key, first, second, before < after, crosses):
                return

    def _bisect(self, key: Key, first: Feeds, second: Feeds, rises: Array, crosses: Array) -> bool:
        """Bisects between two inputs: every element for itself if possible, and all together otherwise."""
        names = [name for name in first if not _is_same(first[name], second[name])]
        aims = np.resize(self._choose_aims(key[2]), crosses.size).reshape(crosses.shape)
        if all(first[name].shape == crosses.shape for name in names):
            blend = _Blend(first, second, names, np.zeros(crosses.shape), np.ones(crosses.shape))
            if self._narrow(key, blend, lambda observed: (observed < aims) == rises):
                return True
        index = np.unravel_index(int(np.argmax(crosses)), crosses.shape)

        def is_before(observed: Array) -> Array:
            return np.asarray((observed[index] < aims[index]) == rises[index])

        # a count of positive elements passes all numbers only if one element after the other changes
        return any(
            self._narrow(key, _Blend(first, second, names, np.zeros(()), np.ones(()), is_stepwise), is_before)
            for is_stepwise in (False, True)
        )

    def _narrow(self, key: Key, blend: _Blend, is_before: Callable[[Array], Array]) -> bool:
        """Halves the part of a path where an operand crosses its aim. Returns whether the range was met."""
        side, watch, _ = key
        shape = None
        feeds: Feeds = {}
        for _ in range(blend.count_bisections()):
            feeds = blend.mix()
            values = self.observe(feeds)
            if values is None or (observed := watch.read(values[side])) is None:
                break
            shape = shape or observed.shape
            if observed.shape != shape:
                break
            blend.halve(is_before(observed))
        if key in self.coverage.missing:
            return False
        # the first input that met the range may lie at its edge; this one is closest to the aim
        self.coverage.feeds.append(feeds)
        return True

    def _choose_aims(self, target: Target) -> Array:
        """Chooses numbers in a range, half of them close to its middle."""
        middle, half_width = (target.low + target.high) / 2, (target.high - target.low) / 2
        near = self.generator.choice([-1.0, 1.0], 32) * 10.0 ** self.generator.uniform(-5, 0, 32)
        return middle + half_width * np.concatenate([near, self.generator.uniform(-1, 1, 32)])


class _Blend(Struct):
    """Inputs between two others.

    Attributes:
        first, second: Inputs at both ends.
        names: Names of the inputs that differ.
        low, high: Part of the way from `first` to `second` that is searched, for each element or for all.
        is_stepwise: Whether the elements change one after the other, and not all together.
    """

    first: Feeds
    second: Feeds
    names: Sequence[str]
    low: Array
    high: Array
    is_stepwise: bool = False

    def mix(self) -> Feeds:
        """Returns the inputs in the middle of the part."""
        middle = (self.low + self.high) / 2
        mixed = dict(self.first)
        for name in self.names:
            first, second = (feeds[name].astype(np.float64) for feeds in (self.first, self.second))
            if self.is_stepwise:
                is_changed = np.arange(first.size).reshape(first.shape) < middle * first.size
                mixed[name] = np.where(is_changed, self.second[name], self.first[name])
                continue
            mixed[name] = np.asarray(first * (1 - middle) + second * middle).astype(self.first[name].dtype)
        return mixed

    def count_bisections(self) -> int:
        """Returns the number of halves after which the inputs no longer change."""
        sizes = (self.first[name].size for name in self.names)
        return max(sizes, default=1).bit_length() + 1 if self.is_stepwise else _BISECTIONS

    def halve(self, is_before: Array) -> None:
        """Keeps the second half where the aim was not reached yet, and the first half elsewhere."""
        middle = (self.low + self.high) / 2
        self.low, self.high = np.where(is_before, middle, self.low), np.where(is_before, self.high, middle)


def _is_same(first: Array, second: Array) -> bool:
    return first is second or first.tobytes() == second.tobytes()
