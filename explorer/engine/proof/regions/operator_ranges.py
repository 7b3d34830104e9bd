"""Finds inputs of a region for every range in which its operators behave differently.

`bend_points` lists the ranges, and `driven_values` searches inputs that meet them. This module does both for
the two sides of a region. It also draws values that random inputs do not contain: very small and very large
floats, unusual integers and sizes, and settings of bools.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from explorer.base.errors import BadModel
from explorer.engine.fold.calls import inline_calls
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.proof.regions.bend_points import has_unknown_operator, list_control_reads
from explorer.engine.proof.regions.computed_constants import store_computed_constants
from explorer.engine.proof.regions.driven_values import Coverage, scale, search_missing_ranges
from explorer.engine.proof.regions.inner_values import Watched, watch_region
from explorer.engine.proof.regions.synthetic_values import DRAWN_FLOATS, Feeds
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput

_SMALL_FACTORS = (0.0, 1e-4, 1e-8)
"""Factors of dense values that reveal an epsilon, or a function that is flat at 0."""

_FAR_FACTORS, _CONSTANTS = (100.0, -100.0, 1e4, -1e4), (1.0, -1.0, 30.0, -30.0, 1e3, -1e3)
"""Factors of dense values, and constant values, for operators whose bends are not known."""

_MAX_NUMBERS, _MAX_ADDED = 64, 8
"""Largest number of stored integers whose neighbors are tried, and of those whose sums, differences, products
and quotients are tried, too."""

_ARITHMETIC = frozenset(("Add", "Div", "Mul", "Sub"))
"""Operators behind which an integer other than the stored ones may meet a limit."""

_SUMS = frozenset(
    str.split("Conv ConvInteger CumSum Einsum Gemm MatMul MatMulInteger ReduceL1 ReduceMean ReduceSum Sum")
)
"""Operators that sum integers. Random integers do not meet a limit of their sum."""

_MAX_SUMS, _SUM_POSITIONS = 256, 8
"""Largest number of inputs that bring a sum to a stored integer, and number of elements that get it."""

_MIN_INTEGERS, _MAX_DRAWS = 64, 32
"""Number of integers to try in each range, and largest number of draws for them."""

_MAX_SIZES, _LARGEST_SIZE, _MAX_SIZED_BYTES = 4, 6, 1 << 26
"""Limits of drawn sizes: elements of an input that decides sizes, largest size, and bytes of the region's
inputs multiplied by the largest size for each element."""

_MAX_COMBINED, _RANDOM_FLAGS = 8, 6
"""Largest number of bools of which every combination is tried, and number of random settings beyond it."""

_FLAG_SHARES = np.array([1 / 64, 1 / 8, 1 / 4, 3 / 4, 7 / 8, 63 / 64])
"""Shares of true elements in the random settings."""

_MAX_COMPUTED_BYTES = 2
"""Largest width in bytes of a computed integer for which any value is tried."""

_INTEGER_RANGES = (3, 100, (1 << 24) + 2, 1 << 40, 1 << 62)
"""Largest magnitudes of drawn integers. Beyond 2^24, float32 does not represent all integers."""

_MAX_STORED = 64
"""Largest number of elements of a stored tensor whose integers are tried."""

Twins = Mapping[str, str]
"""The original's name of each input of a side."""


class Side(Struct, frozen=True):
    """One side of a region.

    Attributes:
        model: The region as a model, with function calls replaced and constants computed.
        twins: The original's name of each input.
        types: Element type of each input, by its own name.
    """

    model: Model
    twins: Twins
    types: Mapping[str, str]

    def watch(self, inputs: Collection[str], *, bodies: bool) -> Watched:
        """Lists the operands to watch that depend on inputs; `inputs` has the original's names of these."""
        names = {name for name, twin in self.twins.items() if twin in inputs}
        return watch_region(self.model, self.types, names, bodies=bodies)

    def decides_size(self, name: str) -> bool:
        """Whether an input, by the original's name, decides a size, a branch or an input of a function."""
        dependent = {own_name for own_name, twin in self.twins.items() if twin == name}
        if not dependent:
            return False
        for node in self.model.graph.nodes:
            if not dependent.isdisjoint(list_reads(node)):
                dependent.update(filter(None, node.outputs))
        return not dependent.isdisjoint(list_control_reads(self.model))


def prepare_side(model: Model, twins: Twins) -> Side:
    """Builds the side of a region from its model and from the original's names of its inputs."""
    types = {value.name: value.dtype or "" for value in model.graph.required_inputs}
    return Side(store_computed_constants(inline_calls(model, ())), twins, types)


class RegionObserver:
    """Runs both sides of a region and returns the watched operands.

    Raises:
        BadModel: The runtime cannot load a side with the operands as outputs.
    """

    def __init__(self, sides: Sequence[Side], watched: Sequence[Watched]) -> None:
        self._sides = sides
        self._sessions: list[RuntimeSession | None] = []
        self._stored: list[dict[str, Array]] = []
        for side, region in zip(sides, watched, strict=True):
            stored = region.model.graph.initializers
            names = dict.fromkeys(name for watch in region.watches for name in watch.reads)
            self._stored.append({name: np.asarray(stored[name].array()) for name in names if name in stored})
            inner = [name for name in names if name not in stored and name not in side.types]
            label = "a changed region alone"
            self._sessions.append(
                RuntimeSession(expose(region.model, inner), label=label, optimize=False, threads=1)
                if inner
                else None
            )

    def __call__(self, feeds: Feeds) -> list[Mapping[str, Array]]:
        """Returns the watched values of each side, by name."""
        results: list[Mapping[str, Array]] = []
        for side, session, stored in zip(self._sides, self._sessions, self._stored, strict=True):
            side_feeds = {name: feeds[twin] for name, twin in side.twins.items()}
            inner = (
                session.run({name: side_feeds[name] for name in side.types}) if session is not None else {}
            )
            results.append({**side_feeds, **stored, **inner})
        return results


def reach_ranges(
    sides: tuple[Side, Side], original_values: Feeds, draw_tried: Callable[[], Sequence[Feeds]], seed: int
) -> tuple[list[Feeds], str]:
    """Finds inputs in the ranges of the operators that the tried inputs did not reach.

    Args:
        sides: Both sides of the region.
        original_values: The original's own values of the inputs.
        draw_tried: Draws the other inputs that were tried, dense random values first.
        seed: Seed of the random numbers.

    Returns:
        The inputs, and the description of a range that they do not reach, or ''.
    """
    adjustable = [
        name
        for name, value in original_values.items()
        if value.dtype.name in DRAWN_FLOATS or value.dtype.kind == "b"
    ]
    floats = [name for name in adjustable if original_values[name].dtype.kind != "b"]
    extra_feeds: list[Feeds] = []
    is_unknown = any(has_unknown_operator(side.model) for side in sides)
    integers = [name for name, value in original_values.items() if _is_free_integer(sides, name, value)]
    watched, observe = _observe(sides, [*adjustable, *integers], original_values)
    if not is_unknown and not any(region.watches for region in watched):
        return [], ""
    dense, *_ = tried = draw_tried()
    if is_unknown:
        ones = {name: np.ones(original_values[name].shape) for name in floats}
        extra_feeds += [
            {**dense, **_scale_all(dense, original_values, floats, factor)} for factor in _FAR_FACTORS
        ]
        extra_feeds += [
            {**dense, **_scale_all(ones, original_values, floats, factor)} for factor in _CONSTANTS
        ]
    extra_feeds += [
        {**dense, **_scale_all(dense, original_values, floats, factor)} for factor in _SMALL_FACTORS
    ]
    coverage = Coverage((watched[0].watches, watched[1].watches))
    for feeds in (original_values, *tried) if coverage.missing else ():
        try:
            coverage.add(observe(feeds))
        except BadModel:
            continue
    if coverage.missing:
        search_missing_ranges(coverage, observe, original_values, dense, adjustable, seed)
    missed_range = next((watch.describe(target) for _, watch, target in coverage.required), "")
    return [*extra_feeds, *coverage.feeds], missed_range


def _scale_all(values: Feeds, like: Feeds, names: Sequence[str], factor: float) -> Feeds:
    return {name: scale(values[name], like[name], factor) for name in names}


def _observe(
    sides: tuple[Side, Side], inputs: Collection[str], original_values: Feeds
) -> tuple[list[Watched], RegionObserver]:
    """Loads both sides with their operands as outputs; those in bodies only if the runtime accepts them."""
    watched = [side.watch(inputs, bodies=True) for side in sides]
    try:
        observe = RegionObserver(sides, watched)
        observe(original_values)
    except BadModel:
        watched = [side.watch(inputs, bodies=False) for side in sides]
        observe = RegionObserver(sides, watched)
    return watched, observe


def list_integers_to_vary(
    sides: tuple[Side, Side], inputs: Sequence[RandomInput], original_values: Feeds
) -> list[RandomInput]:
    """Lists the integers that a region reads and that may have any value.

    They are inputs of the model, and integers of at most 16 bits that it computes. Wider integers may be
    positions in a tensor, of which few are valid.
    """
    planned_inputs = {planned.name: planned for planned in inputs}
    computed = [
        RandomInput(name, get_element_type(value), value.shape, high=int(np.abs(value.astype(int)).max()) + 1)
        for name, value in original_values.items()
        if name not in planned_inputs
        and value.dtype.kind in "iu"
        and value.dtype.itemsize <= _MAX_COMPUTED_BYTES
        and value.size
    ]
    return [
        planned
        for planned in (*inputs, *computed)
        if planned.name in original_values
        and planned.values is None
        and original_values[planned.name].size
        and _is_free_integer(sides, planned.name, original_values[planned.name])
    ]


def _is_free_integer(sides: Sequence[Side], name: str, value: Array) -> bool:
    """Whether an input, by the original's name, is an integer tensor that decides no size and no branch."""
    return value.dtype.kind in "iu" and not any(side.decides_size(name) for side in sides)


def draw_integers(
    sides: tuple[Side, Side], varied: Sequence[RandomInput], original_values: Feeds, seed: int
) -> Iterator[list[Feeds]]:
    """Yields sets of inputs with unusual integers: negative, large, and close to stored ones.

    Small inputs are drawn several times, because one draw of a single integer shows little.
    """
    generator = np.random.default_rng(seed)
    numbers = _list_integers(sides)
    elements = sum(original_values[planned.name].size for planned in varied)
    draws = max(1, min(_MAX_DRAWS, _MIN_INTEGERS // max(elements, 1)))
    for magnitude in (0, *_INTEGER_RANGES):
        yield [
            _draw_integers_within(magnitude, numbers, varied, original_values, generator)
            for _ in range(draws)
        ]
    if numbers and any(node.op in _SUMS for side in sides for node in side.model.graph.nodes):
        yield _place_single_integers(numbers, varied, original_values, generator)


def _place_single_integers(
    numbers: Sequence[int],
    varied: Sequence[RandomInput],
    original_values: Feeds,
    generator: np.random.Generator,
) -> list[Feeds]:
    """Sets all integers to 0 but one, which gets a neighbor of a stored number, so that sums equal it."""
    choices = [
        (planned.name, number, position)
        for planned in varied
        for number in dict.fromkeys(n + step for n in dict.fromkeys(numbers) for step in (0, -1, 1))
        for position in range(min(original_values[planned.name].size, _SUM_POSITIONS))
    ]
    chosen = generator.permutation(len(choices))[:_MAX_SUMS]
    zeros = {planned.name: np.zeros_like(original_values[planned.name]) for planned in varied}
    inputs: list[Feeds] = []
    for name, number, position in (choices[index] for index in chosen):
        info = np.iinfo(zeros[name].dtype)
        single = zeros[name].copy()
        single.flat[position] = min(max(number, int(info.min)), int(info.max))
        inputs.append({**original_values, **zeros, name: single})
    return inputs


def _draw_integers_within(
    magnitude: int,
    numbers: Sequence[int],
    varied: Sequence[RandomInput],
    original_values: Feeds,
    generator: np.random.Generator,
) -> Feeds:
    """Draws integers of a largest magnitude; 0 stands for the range of each input and its negatives."""
    feeds = dict(original_values)
    for planned in varied:
        value = original_values[planned.name]
        info = np.iinfo(value.dtype)
        low, high = (-planned.high, planned.high - 1) if magnitude == 0 else (-magnitude, magnitude)
        drawn = np.asarray(
            generator.integers(max(low, info.min), min(high, info.max), value.shape, endpoint=True)
        )
        if magnitude and numbers:
            neighbors = generator.choice(numbers, value.shape) + generator.integers(-1, 2, value.shape)
            drawn = np.where(generator.random(value.shape) < 0.5, drawn, neighbors)
        drawn = np.clip(drawn, info.min, info.max).astype(value.dtype)
        if magnitude > 1 << 32 or magnitude > info.max:
            extremes = generator.choice(np.array([info.min, info.max], value.dtype), value.shape)
            drawn = np.where(generator.random(value.shape) < 1 / 4, extremes, drawn)
        feeds[planned.name] = drawn
    return feeds


def draw_sizes(
    sides: tuple[Side, Side], inputs: Sequence[RandomInput], original_values: Feeds, seed: int
) -> list[Feeds]:
    """Draws small integers for the inputs of the model that decide a size, a position or a trip count.

    Larger integers could take all memory. The runtime rejects impossible integers.
    """
    names = [
        planned.name
        for planned in inputs
        if planned.values is None
        and planned.name in original_values
        and original_values[planned.name].dtype.kind in "iu"
        and 0 < original_values[planned.name].size <= _MAX_SIZES
        and any(side.decides_size(planned.name) for side in sides)
    ]
    count = sum(original_values[name].size for name in names)
    nbytes = sum(value.nbytes for value in original_values.values())
    if not names or nbytes * _LARGEST_SIZE**count > _MAX_SIZED_BYTES or any(map(_has_custom_operator, sides)):
        return []
    generator = np.random.default_rng(seed)
    return [
        {**original_values, **{name: _draw_sizes_like(original_values[name], generator) for name in names}}
        for _ in range(_MAX_DRAWS)
    ]


def _draw_sizes_like(value: Array, generator: np.random.Generator) -> Array:
    lowest = 0 if value.dtype.kind == "u" else -_LARGEST_SIZE // 2
    return np.asarray(generator.integers(lowest, _LARGEST_SIZE, value.shape, endpoint=True)).astype(
        value.dtype
    )


def _has_custom_operator(side: Side) -> bool:
    """Whether an operator is of another domain. For wrong positions, its kernel may read outside a tensor."""
    return any(node.domain for node in list_all_nodes(side.model, side.model.graph.nodes))


def draw_flags(sides: Sequence[Side], original_values: Feeds, feeds: Feeds, seed: int) -> list[Feeds]:
    """Draws bools: every combination if they are few, otherwise all true, all false and random settings.

    The number of true bools is also one of the integers that the region stores, such as a limit of a count.

    Args:
        sides: Both sides of the region.
        original_values: The original's own values of the inputs.
        feeds: Values of the other inputs.
        seed: Seed of the random numbers.
    """
    names = [name for name, value in original_values.items() if value.dtype.kind == "b" and value.size]
    count = sum(original_values[name].size for name in names)
    if not count:
        return []
    if count <= _MAX_COMBINED:
        settings = np.array(list(itertools.product((True, False), repeat=count)))
    else:
        random_settings = np.random.default_rng(seed).random((_RANDOM_FLAGS, count)) < _FLAG_SHARES[:, None]
        stored = [number for number in dict.fromkeys(_list_integers(sides)) if 0 < number < count]
        counts = np.array([0, count, *stored[:_MAX_NUMBERS]])
        settings = np.concatenate([np.arange(count) < counts[:, None], random_settings])
    ends = np.cumsum([original_values[name].size for name in names])[:-1]
    return [
        {
            **feeds,
            **{
                name: part.reshape(original_values[name].shape)
                for name, part in zip(names, np.split(setting, ends), strict=True)
            },
        }
        for setting in settings
    ]


def _list_integers(sides: Sequence[Side]) -> list[int]:
    """Lists integers of short stored tensors and of short attributes of custom operators on both sides."""
    numbers: set[int] = set()
    for side in sides:
        graph = side.model.graph
        constants = [t for node in graph.nodes if (t := read_constant(node)) is not None]
        for tensor in (*graph.initializers.values(), *constants):
            if tensor.dtype.startswith(("int", "uint")) and tensor.elements <= _MAX_STORED:
                numbers.update(int(v) for v in np.asarray(tensor.array()).reshape(-1).tolist())
        for node in graph.nodes:  # such as the keys of a LabelEncoder
            for value in node.attributes.values() if node.domain else ():
                if isinstance(value, list | tuple) and len(value) <= _MAX_STORED:
                    numbers.update(v for v in value if isinstance(v, int))
    stored = sorted(n for n in numbers if abs(n) < 1 << 40)[:_MAX_NUMBERS]
    arithmetic = any(node.op in _ARITHMETIC for side in sides for node in side.model.graph.nodes)
    if not stored or len(stored) > _MAX_ADDED or not arithmetic:
        return stored
    # an x + 5 that is compared with 100 needs an x of 95
    combined = {
        number
        for a, b in itertools.product(stored, stored)
        for number in (a - b, a + b, a * b, a // b if b else 0)
        if abs(number) < 1 << 40
    } - numbers
    return [*stored * -(-len(combined) // len(stored)), *sorted(combined)]  # half of them are stored
