"""Changed regions, run alone: the original's own values first, then dense random ones.

A whole run shows a region the values that it meets there: behind a dead ReLU nothing, below the limit of a
Clip nothing of the limit. So a region also gets values without zeros, of a tenth of, once and ten times the
spread of its own, and must be as close to float64 on them as the original's. Indices, masks and ids are never
made up. Values that a region can never meet may show a difference that is none (what a Relu behind a Relu
does): then it is looked at together with what makes its inputs, and believed if that is the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph import Model, Node, subgraphs
from explorer.engine.verify import outputs
from explorer.engine.verify.independence import independent
from explorer.engine.verify.inputs import Drawn, draw
from explorer.engine.verify.outputs import Noise, Run, by_one_ulp
from explorer.engine.verify.probes import Region, Wiring, cut_out
from explorer.engine.verify.regions import Changed, Correspondence
from explorer.engine.verify.runtime import Array, Session, expose
from explorer.engine.verify.trials import FLOATS
from explorer.engine.verify.truth import in_float64
from explorer.engine.verify.value_numbers import RANDOM
from explorer.errors import BadModel
from explorer.facts import OutputEvidence, RegionEvidence
from explorer.units import printable
from explorer.verdicts import NOT_NEEDED

__all__ = ["Settled", "Try", "settle"]

_SPREADS = (1.0, 0.1, 10.0)
"""Of the dense values, times that of the original's own."""

_ENOUGH, _MANY = 4096, 8
"""How many made-up numbers are enough, and how many sets of them are drawn for it at the most."""

_DRAWS = 3
"""Inputs that are tried for a region in which there is nothing that could be made up."""

_UPSTREAM = 3
"""How many steps against the stream a region is widened where only made-up values show a difference."""

_NAMED = 3
"""Operators of a region that are named."""

Feeds = dict[str, Array]


class Try(Struct, frozen=True):
    """Sizes at which regions are run: how the inputs are drawn, and what is given in their place."""

    drawn: tuple[Drawn, ...]
    given: Mapping[str, Array] | None = None

    def feeds(self, seed: int) -> Feeds:
        """Inputs of the original."""
        return dict(self.given) if self.given is not None else draw(self.drawn, seed)


class Settled(Struct, frozen=True):
    """A region that was tried, and where its nodes stand in the original."""

    evidence: RegionEvidence
    positions: tuple[int, ...]


def settle(
    found: Correspondence,
    tries: Sequence[Try],
    seed: int,
    tell: Callable[[int, int], None],
    cancel: Callable[[], bool] | None,
) -> tuple[Settled, ...]:
    """Tests every changed region; where one fails, whether it was cut out wrongly.

    A value that a diff matched may be another one (of a convolution into which a normalisation was folded):
    then what lies behind it makes up for it, and the region grows that way until it is right or ends at an
    output. Growth doubles, so that a model of a thousand layers takes ten rounds.

    Args:
        found: The two graphs.
        tries: Sizes to try; regions are widened at the first.
        seed: Of the first draw.
        tell: Told how many regions of how many are done.
        cancel: Asked now and then.

    Returns:
        Evidence of every region; where one of them differs, first the one that showed it first.
    """
    runner = _Runner(found, tries, seed, cancel)
    known: dict[tuple[object, ...], Settled] = {}
    failed: dict[str, tuple[Changed, Settled]] = {}
    dropped: set[str] = set()
    ends = {p.before for p in found.outputs}
    step = 1
    while True:
        regions = found.regions(dropped, {})
        runner.expose(regions)
        for at, region in enumerate(regions):
            tell(at, len(regions))
            if region.key not in known:
                known[region.key] = runner.widened(region, dropped)
            if known[region.key].evidence.kind == "different":
                failed.setdefault(region.pair.before, (region, known[region.key]))
        bad = [r for r in regions if known[r.key].evidence.kind in ("different", "unproven")]
        growing = [r.pair.before for r in bad if r.pair.before not in ends]
        if not growing:
            break
        for name in growing:
            dropped |= _following(found, name, step) - ends
        step *= 2
    shown = [known[region.key] for region in regions]
    # what nothing behind it makes up for, or nothing behind it shows
    for region, settled in failed.values():
        within = [r for r in regions if runner.one.producer[region.pair.before] in r.before.nodes]
        if any(r in bad for r in within) or any(runner.hides(r, region) for r in within):
            return (settled, *(one for one in shown if one is not settled))
    return tuple(shown)


def _following(found: Correspondence, name: str, count: int) -> set[str]:
    """A value and the next ones behind it that are matched, `count` in all."""
    reached, chosen = {name}, {name}
    nodes = found.before.graph.nodes
    matched = found.matched
    begin = next(i for i, node in enumerate(nodes) if name in node.outputs)
    for node in nodes[begin + 1 :]:
        if len(chosen) >= count:
            break
        if reached.intersection(node.inputs):
            reached.update(filter(None, node.outputs))
            chosen.update(matched.intersection(node.outputs))
    return chosen


class _Runner:
    def __init__(
        self,
        found: Correspondence,
        tries: Sequence[Try],
        seed: int,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.found, self.tries, self.seed, self.cancel = found, tries, seed, cancel
        self.one, self.other = Wiring(found.before), Wiring(found.after)
        self._session: Session | None = None
        self._exposed: set[str] = set()
        self.refused: list[int] = []
        """Sizes that the original does not take."""

    def expose(self, regions: Sequence[Changed]) -> None:
        """Loads the original with what regions are given as outputs."""
        self.expose_names({name for r in regions for name in r.reads})

    def expose_names(self, names: set[str]) -> None:
        """The same for values by name."""
        wanted = names & self.one.producer.keys()
        if wanted - self._exposed:
            self._exposed |= wanted
            model = expose(self.found.before, sorted(self._exposed))
            self._session = Session(model, what="the original", optimise=False)

    def own(self, names: Sequence[str], one: Try, seed: int) -> Feeds:
        """The original's own values."""
        feeds = one.feeds(seed)
        wanted = [name for name in names if name not in feeds]
        if wanted:
            assert self._session is not None
            feeds |= self._session.run(feeds, wanted)
        return {name: feeds[name] for name in names}

    def widened(self, region: Changed, dropped: set[str]) -> Settled:
        """Evidence of a region, alone or together with what makes its inputs."""
        alone = found = self.test(region)
        first = region
        past: set[str] = set()
        for _ in range(_UPSTREAM):
            if found.kind in ("equal", "evidence") or found.own:
                break
            past |= {name for name in region.reads if name in self.one.producer}
            regions = self.found.regions(set(dropped), {region.pair.before: past})
            wider = next((r for r in regions if r.pair == region.pair), region)
            if wider.key == region.key:
                break
            region = wider
            self.expose([region])
            found = self.test(region)
        if found.kind in ("equal", "evidence"):
            return Settled(found, region.before.nodes)
        return Settled(alone, first.before.nodes)

    def test(self, region: Changed) -> RegionEvidence:
        """Runs a region at all sizes."""
        nodes = self._nodes(region)
        ops = [[node.op for node in side] for side in nodes]
        conditions = [name for name in _conditions(nodes[0]) if name in region.before.given]
        evidence = RegionEvidence(
            value=region.pair.before,
            before=_named(ops[0]),
            after=_named(ops[1]),
            draws=0,
            kind="unproven",
            reason="",
        )
        results: list[OutputEvidence] = []
        moved = not region.reads
        draws = 0
        try:
            run = self._both(region)
            for at, one in enumerate(self.tries):
                try:
                    own = [self.own(region.reads, one, self.seed)]
                except BadModel:
                    if at == 0:
                        raise
                    continue
                floats = [n for n, v in own[0].items() if v.dtype.name in FLOATS and v.size]
                if not floats and one.given is None:
                    own += [self.own(region.reads, one, self.seed + i) for i in range(1, _DRAWS)]
                own += _both_ways(own[0], conditions)
                sets = [("own", own)]
                for spread in _SPREADS if at == 0 else _SPREADS[:1]:
                    if floats:
                        count = max(1, min(_MANY, _ENOUGH // sum(own[0][name].size for name in floats)))
                        sets.append(("dense", [_dense(own[0], spread, self.seed + i) for i in range(count)]))
                shown: list[Array] = []
                for kind, feeds in sets:
                    pairs = []
                    for given in feeds:
                        try:
                            pairs.append((*run(given), given))
                        except BadModel:
                            if kind == "own":
                                raise
                    if not pairs:
                        continue
                    draws += len(pairs)
                    shown += [old for old, _, _ in pairs]
                    found = self._compared(region, pairs, run)
                    results.append(found)
                    if not found.passed:
                        where = "" if kind == "own" else " on dense random values"
                        return replace(
                            evidence,
                            draws=draws,
                            kind="different",
                            own=kind == "own",
                            reason=f"{found.reason}{where}",
                            max_abs=found.max_abs,
                        )
                moved = moved or _varies(shown)
        except BadModel as error:
            return replace(evidence, reason=f"it could not be run alone: {printable(str(error))}", own=True)
        worst = max(results, key=lambda r: r.max_abs or 0.0)
        equal = all(r.equal for r in results)
        figures = replace(evidence, draws=draws, max_abs=worst.max_abs, equal=equal)
        if not region.reads and equal:
            return replace(figures, kind="equal", reason="constants: bit for bit the same")
        if not moved:
            return replace(figures, reason="its output does not depend on what was varied")
        if any(node.op in RANDOM and not node.domain for side in nodes for node in side):
            return replace(figures, reason="it draws random numbers, which no two runs share")
        if _branches(nodes) > len(conditions):
            return replace(figures, reason="not every branch in it was taken")
        if equal and self._constants_differ(region):
            return replace(figures, reason="its constants differ, and nothing that was tried shows it")
        return replace(figures, kind="evidence", reason=worst.reason)

    def _nodes(self, region: Changed) -> tuple[list[Node], list[Node]]:
        return (
            [self.one.nodes[at] for at in region.before.nodes],
            [self.other.nodes[at] for at in region.after.nodes],
        )

    def _constants_differ(self, region: Changed) -> bool:
        """Whether the two are the same operators with other numbers in them."""
        pairs = list(zip(*self._nodes(region), strict=False))
        if len(region.before.nodes) != len(region.after.nodes) or any(a.key != b.key for a, b in pairs):
            return False
        first, second = self.found.before.graph.initializers, self.found.after.graph.initializers
        stored = [
            (first[x], second[y])
            for a, b in pairs
            for x, y in zip(a.inputs, b.inputs, strict=False)
            if x in first and y in second
        ]
        alike = all((x.dtype, x.shape) == (y.dtype, y.shape) for x, y in stored)
        return alike and any(not self.found.same_content(x, y) for x, y in stored)

    def hides(self, region: Changed, inner: Changed) -> bool:
        """Whether a region that gives the same shows nothing of a value in it that does not.

        Then the original's own operators behind that value make the same of the other graph's value: nothing
        makes up for the difference, it is lost (in an ArgMax, behind a head of zeros, in a sum with numbers
        that are far larger).
        """
        name = inner.pair.before
        behind = self.one.region(region.pair.before, {*region.before.given, name})
        if name not in behind.given:
            return False
        try:
            others = Session(
                expose(self.found.after, [inner.pair.after]), what="the other model", optimise=False
            )
            for one in self.tries:
                feeds = one.feeds(self.seed)
                there = {self.found.inputs[k]: v for k, v in feeds.items()}
                theirs = others.run(there)[inner.pair.after]
                self.expose_names({*behind.given, region.pair.before})
                values = self.own([*behind.given, region.pair.before], one, self.seed)
                types = {n: str(values[n].dtype) for n in behind.given}
                made = _alone(self.one, behind, types)({**{n: values[n] for n in behind.given}, name: theirs})
                old = Run((region.pair.before,), ((values[region.pair.before],),))
                new = Run((region.pair.before,), ((made,),))
                noise = Noise(NOT_NEEDED, outputs.depth_of(self.found.before))
                if not outputs.compare(old, new, [], noise)[0].passed:
                    return False
        except BadModel:
            return False
        return True

    def _both(self, region: Changed) -> Callable[[Feeds], tuple[Array, Array]]:
        """What runs a region in both graphs on the same values."""
        types = {name: str(v.dtype) for name, v in self.own(region.reads, self.tries[0], self.seed).items()}
        before = _alone(self.one, region.before, types)
        names = {name: twin or name for name, twin in region.given.items()}
        after = _alone(self.other, region.after, {n: types[twin] for n, twin in names.items()})

        def run(values: Feeds) -> tuple[Array, Array]:
            old = before({n: values[n] for n in region.before.given})
            return old, after({n: values[twin] for n, twin in names.items()})

        return run

    def _compared(
        self,
        region: Changed,
        pairs: Sequence[tuple[Array, Array, Feeds]],
        run: Callable[[Feeds], tuple[Array, Array]],
    ) -> OutputEvidence:
        name = (region.pair.before,)
        old, new = Run(name, tuple((a,) for a, _, _ in pairs)), Run(name, tuple((b,) for _, b, _ in pairs))
        depth = outputs.depth_of(_part(self.one, region.before, {}))
        noise = Noise(NOT_NEEDED, depth)
        (found,) = outputs.compare(old, new, [], noise)
        if found.equal or not np.issubdtype(pairs[0][0].dtype, np.floating):
            return found
        exact = partial(in_float64, self.one, region.before, cancel=self.cancel)
        truths = [exact({n: given[n] for n in region.before.given}) for _, _, given in pairs]
        known = [{name[0]: true} for true in truths if true is not None]
        text = "float64" if len(known) == len(pairs) else "none: the region cannot be run in float64"
        change = outputs.change(pairs[0][0], run(dict(by_one_ulp(pairs[0][2])))[0])
        old = replace(old, sensitivity=(change,))
        truth = known if text == "float64" else []
        noise = replace(noise, reference=text)
        (found,) = outputs.compare(old, new, truth, noise)
        if found.passed:
            return found
        given = {n: pairs[0][2][n] for n in region.before.given}
        part = _part(self.one, region.before, {n: str(v.dtype) for n, v in given.items()})
        few = independent(part, [Drawn(n, str(v.dtype), v.shape) for n, v in given.items()])
        noise = replace(
            noise, independent=dict.fromkeys(name, min(few.values(), default=old.draws[0][0].size))
        )
        return outputs.compare(old, new, truth, noise)[0]


def _alone(wiring: Wiring, region: Region, types: Mapping[str, str]) -> Callable[[Feeds], Array]:
    model, names = cut_out(wiring, [region], {name: types[name] for name in region.given})
    session = Session(model, what="a changed region alone", optimise=False)
    return lambda values: session.run(values)[names[region.value]]


def _part(wiring: Wiring, region: Region, types: Mapping[str, str]) -> Model:
    return cut_out(wiring, [region], {name: types.get(name, "float32") for name in region.given})[0]


def _dense(own: Feeds, spread: float, seed: int) -> Feeds:
    """Values in place of floats: normal, so none is zero, as wide as the original's own times `spread`."""
    made: Feeds = {}
    for name, value in own.items():
        if value.dtype.name not in FLOATS:
            made[name] = value
            continue
        finite = value[np.isfinite(value)].astype(np.float64)
        own_spread = float(np.std(finite)) if finite.size else 0.0
        own_spread = own_spread or (float(np.abs(finite).max(initial=0.0)) or 1.0)
        generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
        with np.errstate(over="ignore"):
            made[name] = np.asarray(generator.standard_normal(value.shape) * own_spread * spread).astype(
                value.dtype
            )
    return made


def _conditions(nodes: Sequence[Node]) -> list[str]:
    """What decides over the branches of nodes."""
    return list(dict.fromkeys(node.inputs[0] for node in nodes if node.op == "If" and not node.domain))


def _both_ways(own: Feeds, conditions: Sequence[str]) -> list[Feeds]:
    """The values with every condition true, then false."""
    if not conditions:
        return []
    return [{**own, **{c: np.full_like(own[c], way) for c in conditions}} for way in (True, False)]


def _branches(nodes: Sequence[Sequence[Node]]) -> int:
    """How many conditions decide over what runs, those inside of bodies included."""
    inside = [[n for node in side for _, body in subgraphs(node) for n in body.nodes] for side in nodes]
    count = max(len(_conditions(side)) for side in nodes)
    return count + (_branches(inside) if any(inside) else 0)


def _varies(shown: Sequence[Array]) -> bool:
    """Whether not all of some arrays are the same."""
    return any(a.shape != shown[0].shape or a.tobytes() != shown[0].tobytes() for a in shown[1:])


def _named(ops: Sequence[str]) -> str:
    """'Conv, BatchNormalization and 3 more'."""
    head = ", ".join(printable(op) for op in ops[:_NAMED])
    return head if len(ops) <= _NAMED else f"{head} and {len(ops) - _NAMED} more"
