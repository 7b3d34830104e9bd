"""Statistics of a tensor that is read a slab at a time.

Everything is exact: moments are merged in float64 by the update of Chan, Golub and LeVeque (1983), and
quantiles are found by counting, not by sorting, so no tensor is too large for them. A type of at most 16
bits has at most 65,536 values: how often each occurs says all there is to know, in one pass. For wider
types the first pass counts the upper 16 bits of every number, and each pass after that the next 16 bits
of those numbers that can still be one of the quantiles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.errors import Cancelled
from explorer.facts import TensorInfo
from explorer.facts.values import Histogram, TensorStats

__all__ = ["QUANTILES", "SLAB", "Array", "Numbers", "measure", "slabs_of"]

Array = np.ndarray[Any, np.dtype[Any]]
Slabs = Callable[[], Iterator[Array]]
Cancel = Callable[[], bool] | None

SLAB = 1 << 24
"""Bytes of a tensor that are looked at together, at most."""

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_CHUNK = 1 << 17
"""Numbers that are converted to float64 together: 1 MiB, which stays in the processor's cache."""

_SORTED = 1 << 16
"""Numbers up to which sorting is faster than counting."""

_LARGEST = sys.float_info.max

_TINY = 2.0**-600
"""Scale at which the squares of the largest float64 can be added up."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one tensor, without holding them.

    Attributes:
        name: Of the tensor.
        dtype: As stored, in numpy's (or ml_dtypes') spelling.
        shape: Concrete.
        nbytes: As stored.
        slabs: Yields all elements in order, as one-dimensional arrays of at most `SLAB` bytes; can be
            called again. Packed types come unpacked, one number a byte.
        layer: Path of the layer that the tensor belongs to; empty if that has to be looked up.
        identity: The same for names that are one stored tensor; None if it is nobody else's.
        trainable: Whether it is a parameter with requires_grad; None if the format does not say.
        zeros: Elements that are zero without being stored (sparse tensors); `slabs` yields the others.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    slabs: Slabs
    layer: str = ""
    identity: Any = None
    trainable: bool | None = None
    zeros: int = 0

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


def slabs_of(array: Array) -> Slabs:
    """The slabs of an array that is in memory or mapped; an array in C order is not copied."""
    step = max(SLAB // max(array.itemsize, 1), 1)

    def slabs() -> Iterator[Array]:
        flat = array.reshape(-1)
        for at in range(0, flat.size, step):
            yield flat[at : at + step]

    return slabs


def measure(
    numbers: Numbers, *, bins: int = 32, call: int = 0, origin: str = "observed", cancel: Cancel = None
) -> TensorStats:
    """What there is to say about the numbers of one tensor.

    Args:
        numbers: The tensor.
        bins: Intervals of the histogram.
        call: Which call of its layer made it.
        origin: Who says so, for `TensorInfo`.
        cancel: Asked at every slab; True stops.

    Raises:
        Cancelled: `cancel` said so.
        BadModel: The tensor cannot be read.
    """
    first = next(numbers.slabs(), None)
    kind = np.dtype(np.float32) if first is None else first.dtype
    empty = first is None and not numbers.zeros
    del first
    found: Mapping[str, Any]
    if empty:
        found = _NOTHING
    elif numbers.dtype == "string" or kind.kind in "cOUSM":
        found = _counted_only(numbers, kind, cancel)
    elif kind.itemsize <= 2:
        found = _by_value(numbers, kind, bins, cancel)
    else:
        found = _Wide(numbers, kind, bins, cancel).figures()
    return TensorStats(
        TensorInfo(numbers.name, numbers.dtype, numbers.shape, origin),
        numbers.layer,
        numbers.elements,
        numbers.nbytes,
        call=call,
        trainable=numbers.trainable,
        **found,
    )


_NOTHING: Mapping[str, Any] = {
    "minimum": None,
    "maximum": None,
    "mean": None,
    "std": None,
    "zeros": None,
    "nan": 0,
    "inf": 0,
}


def _chunks(numbers: Numbers, cancel: Cancel) -> Iterator[Array]:
    for slab in numbers.slabs():
        if cancel is not None and cancel():
            raise Cancelled
        for at in range(0, slab.size, _CHUNK):
            yield slab[at : at + _CHUNK]


def _counted_only(numbers: Numbers, kind: np.dtype[Any], cancel: Cancel) -> Mapping[str, Any]:
    """Strings have no figures, complex numbers no order: of these only what is zero, NaN or infinite."""
    if kind.kind != "c":
        return _NOTHING
    nan = inf = 0
    zeros = numbers.zeros
    for chunk in _chunks(numbers, cancel):
        bad = np.isnan(chunk)
        nan += int(bad.sum())
        inf += int((np.isinf(chunk) & ~bad).sum())
        zeros += int((chunk == 0).sum())
    return {**_NOTHING, "zeros": zeros / numbers.elements, "nan": nan, "inf": inf}


def _by_value(numbers: Numbers, kind: np.dtype[Any], bins: int, cancel: Cancel) -> Mapping[str, Any]:
    """Of a type of one or two bytes: from how often each of its values occurs."""
    code = np.dtype(np.uint8 if kind.itemsize == 1 else np.uint16)
    counts = np.zeros(1 << (8 * kind.itemsize), np.int64)
    for chunk in _chunks(numbers, cancel):
        counts += np.bincount(np.ascontiguousarray(chunk).view(code), minlength=counts.size)
    values = np.arange(counts.size).astype(code)
    codes = np.flatnonzero(counts)
    with np.errstate(invalid="ignore"):
        numeric = values[codes].view(np.bool_ if kind.kind == "b" else kind).astype(np.float64)
    counts = counts[codes]
    nan, inf = int(counts[np.isnan(numeric)].sum()), int(counts[np.isinf(numeric)].sum())
    finite = np.isfinite(numeric)
    # -0.0 and 0.0 are two codes and one value
    numeric, where = np.unique(numeric[finite], return_inverse=True)
    merged = np.zeros(numeric.size, np.int64)
    np.add.at(merged, where, counts[finite])
    if numbers.zeros:
        numeric, merged = _with_zeros(numeric, merged, numbers.zeros)
    total = int(merged.sum())
    if not total:
        return {**_NOTHING, "zeros": 0.0, "nan": nan, "inf": inf}
    mean = math.fsum(numeric * merged) / total
    variance = math.fsum((numeric - mean) ** 2 * merged) / total
    cumulative = np.cumsum(merged)
    low, high = float(numeric[0]), float(numeric[-1])
    edges = _edges(low, high, bins)
    filled = np.zeros(bins, np.int64)
    np.add.at(filled, _places(numeric, edges), merged)
    return {
        "minimum": low,
        "maximum": high,
        "mean": mean,
        "std": math.sqrt(variance),
        "zeros": int(merged[numeric == 0].sum()) / numbers.elements,
        "nan": nan,
        "inf": inf,
        "quantiles": _quantiles(
            total, lambda rank: float(numeric[np.searchsorted(cumulative, rank, side="right")])
        ),
        "histogram": Histogram(tuple(edges.tolist()), tuple(filled.tolist())),
    }


def _with_zeros(values: Array, counts: Array, zeros: int) -> tuple[Array, Array]:
    """The counts of sorted values with `zeros` more zeros."""
    at = int(np.searchsorted(values, 0.0))
    if at == values.size or values[at] != 0:
        values, counts = np.insert(values, at, 0.0), np.insert(counts, at, 0)
    counts[at] += zeros
    return values, counts


def _ranks(total: int) -> Iterator[tuple[float, int, int, float]]:
    """Each quantile with the ranks of the two numbers between which it lies, and how far from the first
    (as numpy's default, method 7 of Hyndman and Fan).
    """
    for q in QUANTILES:
        place = q * (total - 1)
        low = min(int(place), total - 1)
        yield q, low, min(low + 1, total - 1), place - low


def _quantiles(total: int, number: Callable[[int], float]) -> tuple[tuple[float, float], ...]:
    """The quantiles of `total` numbers of which `number` tells the one of a rank."""
    found = []
    for q, low, high, part in _ranks(total):
        a, b = number(low), number(high)
        found.append((q, a if a == b else a * (1 - part) + b * part))
    return tuple(found)


def _edges(low: float, high: float, bins: int) -> Array:
    """Edges of equal intervals; a single value gets an interval of 1 around it, as numpy does."""
    if low == high:
        around = max(0.5, abs(low) * 2.0**-40)
        low, high = max(low - around, -_LARGEST), min(high + around, _LARGEST)
    if math.isfinite(high - low):
        return np.linspace(low, high, bins + 1)
    return np.linspace(low / 2, high / 2, bins + 1) * 2


def _places(values: Array, edges: Array) -> Array:
    """The interval of each value, the last one closed."""
    bins = edges.size - 1
    low, high = float(edges[0]), float(edges[-1])
    span = high / 2 - low / 2
    if not span or not math.isfinite(bins / span):
        return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
    # by division, then put right where rounding crossed an edge
    places = ((values / 2 - low / 2) * (bins / span)).astype(np.intp)
    np.clip(places, 0, bins - 1, out=places)
    places -= values < edges[places]
    places += (values >= edges[places + 1]) & (places < bins - 1)
    return places


class _Wide:
    """Figures of numbers of four or eight bytes."""

    def __init__(self, numbers: Numbers, kind: np.dtype[Any], bins: int, cancel: Cancel) -> None:
        self.numbers = numbers
        self.kind = kind
        self.bins = bins
        self.cancel = cancel
        self.nan = self.inf = 0
        self.zeros = numbers.zeros
        self.low, self.high = math.inf, -math.inf
        self.few: list[Array] = []
        self.sorting = numbers.elements <= _SORTED
        self.upper = np.zeros(1 << 16, np.int64)

    def figures(self) -> Mapping[str, Any]:
        count, mean, squares = self.look()
        found = {
            **_NOTHING,
            "nan": self.nan,
            "inf": self.inf,
            "zeros": self.zeros / self.numbers.elements,
        }
        if not count:
            return found
        if not math.isfinite(squares):
            # only float64 numbers have squares that float64 cannot hold
            count, mean, squares = self.moments(_TINY)
            mean, deviation = mean / _TINY, math.sqrt(squares / count) / _TINY
        else:
            deviation = math.sqrt(squares / count)
        edges = _edges(self.low, self.high, self.bins)
        filled = np.zeros(self.bins, np.int64)
        wanted = sorted({rank for _, low, high, _ in _ranks(count) for rank in (low, high)})
        if self.sorting:
            values = np.sort(np.concatenate(self.few)) if self.few else np.zeros(0)
            if self.numbers.zeros:
                at = int(np.searchsorted(values, 0))
                values = np.insert(values, at, np.zeros(self.numbers.zeros, values.dtype))
            numeric = values.astype(np.float64)
            filled += np.bincount(_places(numeric, edges), minlength=self.bins)
            order = {rank: float(numeric[rank]) for rank in wanted}
        else:
            order = self.select(wanted, edges, filled)
        return {
            **found,
            "minimum": self.low,
            "maximum": self.high,
            "mean": mean,
            "std": deviation,
            "quantiles": _quantiles(count, order.__getitem__),
            "histogram": Histogram(tuple(edges.tolist()), tuple(filled.tolist())),
        }

    def finite(self) -> Iterator[Array]:
        """All finite numbers, a chunk at a time."""
        for chunk in _chunks(self.numbers, self.cancel):
            if self.kind.kind != "f":
                yield chunk
                continue
            good = np.isfinite(chunk)
            yield chunk if good.all() else chunk[good]

    def look(self) -> tuple[int, float, float]:
        """The first pass: all that can be said without knowing the range."""
        count, mean, squares = self.numbers.zeros, 0.0, 0.0
        if count:
            self.low = self.high = 0.0
            self.upper[int(self.keys(np.zeros(1, self.kind))[0]) >> self.shift] += count
        for chunk in _chunks(self.numbers, self.cancel):
            if self.kind.kind == "f":
                good = np.isfinite(chunk)
                if not good.all():
                    nan = int(np.isnan(chunk).sum())
                    self.nan += nan
                    self.inf += chunk.size - int(good.sum()) - nan
                    chunk = chunk[good]
            if not chunk.size:
                continue
            self.zeros += chunk.size - int(np.count_nonzero(chunk))
            self.low = min(self.low, float(chunk.min()))
            self.high = max(self.high, float(chunk.max()))
            if self.sorting:
                self.few.append(np.array(chunk))
            else:
                upper = (self.keys(chunk) >> self.shift).astype(np.intp)
                self.upper += np.bincount(upper, minlength=self.upper.size)
            count, mean, squares = _merged(count, mean, squares, chunk.astype(np.float64))
        return count, mean, squares

    def moments(self, scale: float) -> tuple[int, float, float]:
        """Count, mean and sum of squared deviations of the finite numbers, times `scale`."""
        count, mean, squares = self.numbers.zeros, 0.0, 0.0
        for chunk in self.finite():
            if chunk.size:
                count, mean, squares = _merged(count, mean, squares, chunk.astype(np.float64) * scale)
        return count, mean, squares

    @property
    def shift(self) -> int:
        """Bits below the upper 16."""
        return 8 * self.kind.itemsize - 16

    def keys(self, values: Array) -> Array:
        """Unsigned integers in the order of the numbers.

        The bits of floats are in the order of their size: negative ones are turned round, positive ones
        put above them.
        """
        width = 8 * self.kind.itemsize
        unsigned = np.dtype(f"u{self.kind.itemsize}")
        bits: Array = np.ascontiguousarray(values).view(unsigned)
        top = unsigned.type(1 << (width - 1))
        if self.kind.kind == "u":
            return bits
        if self.kind.kind == "f":
            top = (bits.view(f"i{self.kind.itemsize}") >> (width - 1)).view(unsigned) | top
        turned: Array = bits ^ top
        return turned

    def values(self, keys: Array) -> Array:
        """The numbers of `keys`."""
        top = keys.dtype.type(1 << (8 * self.kind.itemsize - 1))
        bits: Array = keys
        if self.kind.kind == "i":
            bits = keys ^ top
        elif self.kind.kind == "f":
            bits = np.where(keys & top != 0, keys ^ top, ~keys)
        return bits.view(self.kind)

    def select(self, wanted: Sequence[int], edges: Array, filled: Array) -> dict[int, float]:
        """The numbers of the ranks `wanted`; fills the histogram on the way."""
        split = self.fill(edges, filled)
        cumulative = np.cumsum(self.upper)
        prefix = {rank: int(np.searchsorted(cumulative, rank, side="right")) for rank in wanted}
        below = {rank: rank - int(cumulative[p] - self.upper[p]) for rank, p in prefix.items()}
        near = np.zeros(1 << 16, np.bool_)
        near[list(prefix.values())] = True
        shift = self.shift
        while shift:
            known = np.array(sorted(set(prefix.values())), dtype=f"u{self.kind.itemsize}")
            counts = np.zeros((known.size, 1 << 16), np.int64)
            first = shift == self.shift
            for chunk in self.finite():
                keys = self.keys(chunk)
                upper = (keys >> self.shift).astype(np.intp)
                if first:
                    across = chunk[split[upper]].astype(np.float64)
                    filled += np.bincount(_places(across, edges), minlength=self.bins)
                self.next(keys[near[upper]], known, shift, counts, 1)
            if self.numbers.zeros:
                zero = self.keys(np.zeros(1, self.kind))
                if first and split[int(zero[0]) >> self.shift]:
                    filled[_places(np.zeros(1), edges)] += self.numbers.zeros
                self.next(zero, known, shift, counts, self.numbers.zeros)
            shift -= 16
            index = {int(p): at for at, p in enumerate(known)}
            for rank, p in prefix.items():
                row = np.cumsum(counts[index[p]])
                digit = int(np.searchsorted(row, below[rank], side="right"))
                below[rank] -= int(row[digit] - counts[index[p]][digit])
                prefix[rank] = p << 16 | digit
            # 7 MiB, which the next round must not hold twice
            del counts
        keys = np.array(list(prefix.values()), dtype=f"u{self.kind.itemsize}")
        return dict(zip(prefix, self.values(keys).astype(np.float64).tolist(), strict=True))

    def fill(self, edges: Array, filled: Array) -> Array:
        """Books all numbers with the same upper 16 bits at once where they lie in one interval.

        Returns:
            For each upper 16 bits whether they reach across an edge, so that every number has to be asked.
        """
        upper = np.flatnonzero(self.upper).astype(f"u{self.kind.itemsize}")
        low = upper << upper.dtype.type(self.shift)
        high = low | upper.dtype.type((1 << self.shift) - 1)
        first, last = (_places(self.values(k).astype(np.float64), edges) for k in (low, high))
        whole = first == last
        np.add.at(filled, first[whole], self.upper[upper[whole]])
        split = np.zeros(1 << 16, np.bool_)
        split[upper[~whole]] = True
        return split

    def next(self, keys: Array, known: Array, shift: int, counts: Array, times: int) -> None:
        """Counts the 16 bits below `shift` of those keys whose upper bits are among `known`."""
        upper = keys >> keys.dtype.type(shift)
        at = np.searchsorted(known, upper)
        at[at == known.size] = 0
        hit = known[at] == upper
        digits = (keys[hit] >> keys.dtype.type(shift - 16)) & keys.dtype.type(0xFFFF)
        np.add.at(counts, (at[hit], digits.astype(np.intp)), times)


def _merged(count: int, mean: float, squares: float, more: Array) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations with the numbers `more` added."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = more.size
        centre = float(more.mean())
        rest = more - centre
        own = float(rest @ rest)
        if not count:
            return size, centre, own
        gap = centre - mean
        whole = count + size
        return whole, mean + gap * (size / whole), squares + own + gap * gap * (count * (size / whole))
