"""Two models measured at the values that both have: as they run whole, and layer by layer on equal terms.

As many values at a time as fit in a budget, because a runtime hands all outputs over together. The float64
run of the original keeps step and lets go of what no later layer reads.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.analysis import shapes
from explorer.engine.graph import DTYPES, Model, dtype_code
from explorer.engine.verify import float64
from explorer.engine.verify.compare import Comparison, unit_roundoff
from explorer.engine.verify.inputs import Drawn
from explorer.engine.verify.outputs import by_one_ulp
from explorer.engine.verify.probes import Pair, Region, Wiring, cut_out, pair_values
from explorer.engine.verify.quantised import with_floats
from explorer.engine.verify.runtime import Array, Session, expose
from explorer.errors import BadModel, Cancelled
from explorer.facts import Progress
from explorer.units import printable, shape_text

__all__ = ["BUDGET", "FLOATS", "Place", "Probing", "Trial"]

Cancel = Callable[[], bool] | None
OnProgress = Callable[[Progress], None] | None
Feeds = dict[str, Array]

BUDGET = 1 << 28
"""Bytes of values that are held together."""

FLOATS = ("float16", "float32", "float64")

_SEEN = frozenset((*FLOATS, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
"""Types that the runtime hands over and takes in."""

_COPIES = 6
"""Arrays of the size of a value that are held while it is looked at: of both models, of both layers run
alone, with their inputs moved, and in float64."""

_NODES = 2048
"""Nodes of one session of layers side by side: loading one is quadratic in what is ready at once."""

_SLAB = 1 << 16
"""Elements compared at a time: a comparison makes some twenty arrays of float64, which so stay in cache: in
slabs of a million elements it took eight times as long."""

_TERMS, _MOST_PARTS = 1024, 16
"""Terms of a sum that are tried together, and in how many parts at most."""

_PLAIN = 16.0
"""How many times the original's noise is no matter of rounding."""

_LARGEST_FILL = 10.0
"""Masks hold numbers near the largest float, with which nothing should be filled."""


class Trial(Struct):
    """The values of one place from both models, compared.

    Attributes:
        figures: The comparison, over all draws.
        fault: What is wrong beyond figures: another shape, or the layer cannot be run.
        differing: Elements that are not equal; only counted for what is no float.
    """

    figures: Comparison
    fault: str = ""
    differing: int = 0
    elements: int = 0

    @property
    def equal(self) -> bool:
        """Bit for bit the same, as far as seen."""
        return self.figures.equal and not self.fault


class Place(Struct):
    """A value that both models have, and what was seen of it.

    Attributes:
        pair: Its names.
        before, after: What makes it in either model out of other such values.
        dtypes: Its type in either model.
        nbytes: Of one array of it, as inferred; a guess where nothing is known.
        whole: As the models run.
        alone: Its layer alone on the first model's values: as they are, and with their zeros filled.
    """

    pair: Pair
    before: Region
    after: Region
    dtypes: tuple[str, str]
    nbytes: int
    whole: Trial
    alone: list[Trial] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    @property
    def float(self) -> bool:
        """Whether errors of it have a size."""
        return self.dtypes[0] in FLOATS


class _Alone(Struct, frozen=True):
    """Layers of both models, each on values that it is given.

    Attributes:
        outputs, outputs_after: What is called how in either session.
        dtypes: Of what the second model's layers are given.
    """

    first: Session
    second: Session
    outputs: Mapping[str, str]
    outputs_after: Mapping[str, str]
    dtypes: Mapping[str, str]


class Probing:
    """One measurement of two models.

    Args:
        before: The original.
        after: The other model.
        inputs: Input of the original to input of the other.
        ends: Outputs of both, paired.
        drawn: How the inputs are drawn.
        feeds: Inputs by the original's names, for each draw.
        without: Values of the original that are not to be paired, and why.
        budget: Bytes of values that are held together.
        on_progress: Told where the work stands.
        cancel: Asked between runs and between layers.

    Attributes:
        one, other: The two graphs.
        places: In the execution order of the original.
        unpaired: Values of the original that are no place, and why.
        chunks: In how many parts the values were looked at.
        held: Most bytes that one part was reckoned to hold.

    Raises:
        BadModel: onnxruntime cannot load one of the models.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        inputs: Mapping[str, str],
        ends: Sequence[Pair],
        drawn: tuple[Drawn, ...],
        feeds: Sequence[Feeds],
        *,
        without: Mapping[str, str] | None = None,
        budget: int = BUDGET,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> None:
        self.one, self.other = Wiring(before), Wiring(after)
        after, floats = with_floats(self.one, self.other)
        if floats:
            self.other = Wiring(after)
        self.inputs = inputs
        self.feeds = feeds
        self.budget = budget
        self.on_progress = on_progress
        self.cancel = cancel
        self.chunks = self.held = 0
        self.tell("pairing values")
        self.without = without or {}
        pairs = pair_values(self.one, self.other, inputs, ends, floats)
        pairs = [p for p in pairs if p.before not in self.without]
        known = shapes.infer(before, None, {d.name: (d.dtype, d.shape) for d in drawn}).values
        pairs = [p for p in pairs if p.before not in known or known[p.before].dtype in (*_SEEN, None)]
        self.tell("loading the original")
        self._first = Session(expose(before, [p.before for p in pairs]), what="the original", optimise=False)
        self.tell("loading the other model")
        self._second = Session(
            expose(after, [p.after for p in pairs]), what="the other model", optimise=False
        )
        types, types_after = self._first.types(), self._second.types()
        usable = [p for p in pairs if _alike(types[p.before], types_after[p.after])]
        self._dtypes = {p.after: str(types_after[p.after]) for p in usable}
        self._dtypes.update((inputs[d.name], d.dtype) for d in drawn)
        self._named = {b: a for a, b in inputs.items()} | {p.after: p.before for p in usable}
        stops, stops_after = {p.before for p in usable}, {p.after for p in usable}
        self.places: list[Place] = []
        for pair in usable:
            dtype = str(types[pair.before])
            info = known.get(pair.before)
            sizes = () if info is None or info.shape is None else info.shape
            sized = info is not None and info.shape is not None and all(isinstance(d, int) for d in sizes)
            count = math.prod(d for d in sizes if isinstance(d, int))
            self.places.append(
                Place(
                    pair,
                    self.one.region(pair.before, stops),
                    self.other.region(pair.after, stops_after),
                    (dtype, self._dtypes[pair.after]),
                    count * DTYPES[dtype_code(dtype)].bits // 8 if sized else budget // 8,
                    Trial(Comparison(unit_roundoff(dtype))),
                )
            )
        self.unpaired = self._left({p.before for p in pairs}, stops)
        self._truth = _Truth(self.one, self.places, feeds[0], self.tell)

    def _left(self, tried: set[str], paired: set[str]) -> dict[str, str]:
        left = {}
        for name in self.one.producer:
            if name in self.one.live and name not in paired:
                untyped = name in tried
                why = "of types that cannot be compared" if untyped else "not in the second model"
                left[name] = self.without.get(name, why)
        return left

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Reports progress, and stops here if the user wants to stop."""
        self.check()
        if self.on_progress is not None:
            self.on_progress(Progress(phase, done, total))

    def check(self) -> None:
        """Stops here if the user wants to stop."""
        if self.cancel is not None and self.cancel():
            raise Cancelled

    def run(self) -> None:
        """Looks at every place.

        Raises:
            BadModel: onnxruntime cannot run one of the models.
            Cancelled: The user said so.
        """
        done = 0
        for chunk in self._chunks():
            self.chunks += 1
            old = self._whole(chunk, done)
            for group in self._groups(chunk):
                self.tell("running layers alone", done, len(self.places))
                self._alone(group, old)
                done += len(group)

    def _chunks(self) -> Iterator[list[Place]]:
        """Places that are held together with what they are made from."""
        size = {p.pair.before: p.nbytes for p in self.places}
        chunk: list[Place] = []
        seen: set[str] = set()
        nbytes = 0
        for place in self.places:
            needs = {place.pair.before, *self._given(place)} & size.keys()
            more = _COPIES * sum(size[name] for name in needs - seen)
            if chunk and nbytes + more > self.budget:
                yield chunk
                chunk, seen, nbytes = [], set(), 0
                more = _COPIES * sum(size[name] for name in needs)
            chunk.append(place)
            seen |= needs
            nbytes += more
            self.held = max(self.held, nbytes)
        if chunk:
            yield chunk

    def _groups(self, chunk: Sequence[Place]) -> Iterator[list[Place]]:
        group: list[Place] = []
        nodes = 0
        for place in chunk:
            more = max(len(place.before.nodes), len(place.after.nodes))
            if group and nodes + more > _NODES:
                yield group
                group, nodes = [], 0
            group.append(place)
            nodes += more
        if group:
            yield group

    def _given(self, place: Place) -> set[str]:
        """What the layers of a place read, by the original's names."""
        return {*place.before.given, *(self._named[name] for name in place.after.given)}

    # the models whole

    def _whole(self, chunk: Sequence[Place], done: int) -> Feeds:
        """Both models on every draw.

        Returns:
            The original's values in the first draw: those of the chunk, and what its layers read.
        """
        mine = [p.pair.before for p in chunk]
        given = {name for p in chunk for name in self._given(p)} - self.inputs.keys()
        kept: Feeds = {}
        for at, feeds in enumerate(self.feeds):
            self.tell("running both models", done, len(self.places))
            wanted = list(dict.fromkeys((*mine, *given))) if at == 0 else mine
            old = self._first.run(feeds, wanted)
            new = self._second.run(
                {self.inputs[name]: value for name, value in feeds.items()}, [p.pair.after for p in chunk]
            )
            for offset, place in enumerate(chunk):
                a, b = old[place.pair.before], new.pop(place.pair.after)
                place.shape = a.shape
                true = None
                if at == 0 and place.float and not _same(a, b):
                    true = self._truth.at(done + offset)
                _add(place.whole, a, b, true)
            if at == 0:
                kept = {**feeds, **old}
        off = [p for p in chunk if p.float and not p.whole.equal]
        if off:
            moved = self._first.run(by_one_ulp(self.feeds[0]), [p.pair.before for p in off])
            for place in off:
                name = place.pair.before
                place.whole.figures.sensitivity = _rms(kept[name], moved.pop(name))
        return kept

    # layers alone

    def _alone(self, group: Sequence[Place], values: Feeds) -> None:
        """The layers of both models on the original's values."""
        try:
            self._tried(group, values)
        except BadModel as error:
            if len(group) > 1:
                for place in group:
                    place.alone.clear()
                    self._alone([place], values)
            else:
                trial = Trial(Comparison(group[0].whole.figures.roundoff), fault=printable(str(error)))
                group[0].alone.append(trial)

    def _tried(self, group: Sequence[Place], values: Feeds) -> None:
        names = {name for place in group for name in self._given(place)}
        given = {name: values[name] for name in names}
        sides = []
        for wiring, regions, what in (
            (self.one, [p.before for p in group], "layers of the original alone"),
            (self.other, [p.after for p in group], "layers of the other model alone"),
        ):
            read = {name for region in regions for name in region.given}
            dtypes = (
                {name: str(given[name].dtype) for name in read}
                if wiring is self.one
                else {name: self._dtypes[name] for name in read}
            )
            model, outputs = cut_out(wiring, regions, dtypes)
            sides.append((Session(model, what=what, optimise=False), outputs, dtypes))
        (first, outputs, _), (second, outputs_after, dtypes_after) = sides
        alone = _Alone(first, second, outputs, outputs_after, dtypes_after)
        self._try(group, given, alone)
        filled = {name: _filled(value, _seed(name)) for name, value in given.items()}
        if any(filled[name] is not value for name, value in given.items()):
            self._try(group, filled, alone)
        # equal bits with every input in play leave nothing to look for
        deep = [p for p in group if p.float and _undecided(p.alone[-1]) and self._parts(p) > 1]
        parts = max(map(self._parts, deep), default=0)
        for part in range(parts):
            thinned = {name: _thinned(value, part, parts, _seed(name)) for name, value in filled.items()}
            self._try(deep, thinned, alone, into=part)

    def _try(self, group: Sequence[Place], given: Feeds, alone: _Alone, *, into: int = 0) -> None:
        """One run of the layers of both models on the same values.

        Args:
            group: Whose layers.
            given: The values by the original's names.
            alone: The layers, loaded.
            into: 0 makes a trial, more adds to the last one.
        """
        roundings = {self._named[name]: dtype for name, dtype in alone.dtypes.items()}
        here = {n: _as_given(given[n], roundings.get(n)) for p in group for n in p.before.given}
        there = {
            n: _as_given(given[self._named[n]], dtype).astype(dtype, copy=False)
            for n, dtype in alone.dtypes.items()
            if any(n in p.after.given for p in group)
        }
        old = alone.first.run(here, [alone.outputs[p.pair.before] for p in group])
        new = alone.second.run(there, [alone.outputs_after[p.pair.after] for p in group])
        off = []
        for place in group:
            a, b = old[alone.outputs[place.pair.before]], new.pop(alone.outputs_after[place.pair.after])
            if not into:
                place.alone.append(Trial(Comparison(place.whole.figures.roundoff)))
            differs = place.float and not _same(a, b)
            self.check()
            _add(place.alone[-1], a, b, self._exactly(place, here) if differs else None)
            if differs:
                off.append(place)
        if off and not into:
            moved = alone.first.run(by_one_ulp(here), [alone.outputs[p.pair.before] for p in off])
            for place in off:
                name = alone.outputs[place.pair.before]
                place.alone[-1].figures.sensitivity = _rms(old[name], moved[name])

    def _parts(self, place: Place) -> int:
        """In how many parts the inputs of a layer are tried: as many as its longest sum asks for.

        In a sum of thousands of terms rounding hides a weight that is off by a thousandth; in a part of it
        with all else zero it does not.
        """
        stored = self.one.model.graph.initializers
        shapes = [stored[name].shape for name in place.before.stored if len(stored[name].shape) > 1]
        depths = [max(shape) if len(shape) == 2 else math.prod(shape[1:]) for shape in shapes]
        return min(-(-max(depths, default=0) // _TERMS), _MOST_PARTS)

    def _exactly(self, place: Place, feeds: Feeds) -> Array | None:
        """The original's layer in float64 on the same values; None if it cannot be run so."""
        given = {name: feeds[name] for name in place.before.given}
        return _float64(self.one, place.before, given, self.cancel)


class _Truth:
    """The original in float64, as far as it was asked for; what no later layer reads is dropped."""

    def __init__(
        self, wiring: Wiring, places: Sequence[Place], feeds: Feeds, tell: Callable[[str, int, int], None]
    ) -> None:
        self.wiring = wiring
        self.places = places
        self.tell = tell
        self.values = dict(feeds)
        self.next = 0
        self.last: dict[str, int] = {}
        for at, place in enumerate(places):
            self.last[place.pair.before] = at
            self.last.update((name, at) for name in place.before.given)

    def at(self, index: int) -> Array | None:
        """The value at a place; None if there is none. Places are asked for in their order."""
        found = None
        while self.next <= index:
            self.tell("running the original in float64", self.next, len(self.places))
            place = self.places[self.next]
            found = None
            if place.before.given <= self.values.keys():
                given = {name: self.values[name] for name in place.before.given}
                found = _float64(self.wiring, place.before, given, None)
            if found is not None and self.last[place.pair.before] > self.next:
                self.values[place.pair.before] = found
            for name in place.before.given:
                if self.last[name] <= self.next:
                    self.values.pop(name, None)
            self.next += 1
        return found


def _float64(wiring: Wiring, region: Region, feeds: Feeds, cancel: Cancel) -> Array | None:
    """One value in float64 from others; None if it cannot be run so."""
    graph = wiring.model.graph
    part = replace(
        expose(wiring.model, [region.value]),
        graph=replace(
            expose(wiring.model, [region.value]).graph,
            nodes=tuple(graph.nodes[at] for at in region.nodes),
        ),
    )
    try:
        result = float64.run(part, feeds, cancel)[region.value]
    except float64.NoReference:
        return None
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError):
        return None
    return result if isinstance(result, np.ndarray) or np.isscalar(result) else None


def _alike(before: str | None, after: str | None) -> bool:
    """Whether values of these types can be subtracted from each other."""
    if before not in _SEEN or after not in _SEEN:
        return False
    return before == after or (before in FLOATS and after in FLOATS)


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _add(trial: Trial, a: Array, b: Array, true: Array | None) -> None:
    """Takes two arrays into a comparison, a slab at a time."""
    if a.shape != b.shape:
        trial.fault = f"{shape_text(b.shape)} instead of {shape_text(a.shape)}"
        trial.figures.equal = False
        return
    trial.elements += a.size
    if a.dtype.kind != "f":
        trial.differing += int(np.count_nonzero(a != b))
    if true is not None and np.shape(true) != a.shape:
        true = None
    if _same(a, b):
        flat_a = a.reshape(-1)
        for at in range(0, max(a.size, 1), _SLAB):
            trial.figures.add_equal(flat_a[at : at + _SLAB])
        return
    flat = a.reshape(-1), b.reshape(-1), None if true is None else np.asarray(true).reshape(-1)
    for at in range(0, max(a.size, 1), _SLAB):
        part = slice(at, at + _SLAB)
        trial.figures.add(flat[0][part], flat[1][part], None if flat[2] is None else flat[2][part])


def _rms(a: Array, b: Array) -> float:
    """RMS difference of what is finite in both."""
    if a.shape != b.shape:
        return 0.0
    figures = Comparison(0.0)
    trial = Trial(figures)
    _add(trial, a, b, None)
    return math.sqrt(figures.mse or 0.0)


def _as_given(value: Array, dtype: str | None) -> Array:
    """The value as far as the other model's type can hold it, so that both layers are given the same."""
    if dtype is None or value.dtype == dtype or np.can_cast(value.dtype, dtype):
        return value
    with np.errstate(over="ignore"):
        return value.astype(dtype).astype(value.dtype)


def _seed(name: str) -> int:
    """Of what is drawn for a value: the same whatever it is looked at together with."""
    return zlib.crc32(name.encode())


def _undecided(trial: Trial) -> bool:
    """Whether two layers differ by so little that rounding could hide a fault."""
    if trial.equal or trial.fault:
        return False
    before, after = trial.figures.rms_before, trial.figures.rms_after
    return before is None or after is None or after <= _PLAIN * before


def _filled(value: Array, seed: int) -> Array:
    zeros = value == 0
    if value.dtype.kind != "f" or not zeros.any():
        return value
    present = np.abs(value[~zeros & np.isfinite(value)])
    scale = min(float(np.median(present)) if present.size else 1.0, _LARGEST_FILL)
    drawn = np.random.default_rng(seed).standard_normal(int(np.count_nonzero(zeros))) * scale
    made = value.copy()
    # what is never negative may be what a root is taken of
    made[zeros] = (drawn if (value < 0).any() or not present.size else np.abs(drawn)).astype(value.dtype)
    return made


def _thinned(value: Array, part: int, parts: int, seed: int) -> Array:
    """Of the value one part of `parts` at random places, of one magnitude; the rest zero."""
    if value.dtype.kind != "f":
        return value
    finite = value[np.isfinite(value)]
    scale = min(float(np.median(np.abs(finite))) if finite.size else 1.0, _LARGEST_FILL)
    chosen = np.random.default_rng(seed).integers(0, parts, value.shape) == part
    signs = np.where(value < 0, -scale, scale)
    return np.where(chosen, signs, 0).astype(value.dtype)
