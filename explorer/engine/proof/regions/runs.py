"""Changed regions, run alone: the original's own values first, then dense random ones.

A whole run shows a region the values that it meets there: behind a dead ReLU nothing, below the limit of a
Clip nothing of the limit. So a region also gets values without zeros, of a tenth of, once and ten times the
spread of its own, and must be as close to float64 on them as the original's. Indices, masks and ids are never
made up. Values that a region can never meet may show a difference that is none (what a Relu behind a Relu
does): then it is looked at together with what makes its inputs, and believed if that is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.base.verdicts import NOT_NEEDED
from explorer.engine.graph.dtypes import element_type
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.random_operators import NOT_SHARED
from explorer.engine.graph.random_operators import draws as draws_random
from explorer.engine.progress import Cancel
from explorer.engine.proof.compare import unit_roundoff
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.outputs.independence import independent
from explorer.engine.proof.outputs.run import ModelOutputs, Noise, by_one_ulp
from explorer.engine.proof.regions.correspondence import ChangedRegion, Correspondence
from explorer.engine.proof.regions.deciding_numbers import (
    Deciding,
    TableRow,
    Variation,
    moved_number,
    one_sided,
    scaled_number,
)
from explorer.engine.proof.regions.float64_layers import EXACT, in_float64, in_full
from explorer.engine.proof.regions.moved_numbers import moved
from explorer.engine.proof.regions.observability import NodeContents, controls
from explorer.engine.proof.regions.stored_numbers import (
    StoredDifferences,
    constants_of,
    differences,
    restored,
)
from explorer.engine.proof.regions.synthetic_values import (
    FED_FLOATS,
    Feeds,
    dense,
    meeting,
    spreads,
    steered_values,
)
from explorer.engine.proof.structure.probes import Pair, region_model
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput, draw
from explorer.facts import OutputEvidence, RegionEvidence

_SPREADS = (1.0, 0.1, 10.0)
"""Of the dense values, times that of the original's own."""

_ENOUGH, _MANY = 4096, 8
"""How many made-up numbers are enough, and how many sets of them are drawn for it at the most."""

_DRAWS = 3
"""Inputs that are tried for a region in which there is nothing that could be made up."""

_UPSTREAM = 3
"""How many steps against the stream a region is widened where only made-up values show a difference."""

_DENSE, _MEETING, _STEERED = "dense random", "few different", "steered"
"""Kinds of sets of values; the original's own have none."""

_NAMED = 3
"""Operators of a region that are named."""

_AHEAD = 1 << 24
"""Bytes of the original's own values that one run of it fetches for regions to come: a run for each region
alone would take time with the square of their number."""

_SMALL = 1 << 20
"""Bytes of a region below which it is not worth threads, which are made and ended for each."""

_LIMITS = 48
"""Limits of one side of a region that are tried."""

_INSIDE = 16
"""Values in a region that are looked at again, the last ones first, for whether it hides them."""


class RegionResult(Struct, frozen=True):
    """A region that was tried.

    Attributes:
        evidence: What it showed.
        positions: Of its nodes in the original.
        lasting: Whether it gives, or may give, something else, so that a region around it that gives the same
            must make up for that.
        rounded: How far apart stored numbers are, of themselves, that were computed in another order.
        hides: Difference, of what it puts out, that its runs do not tell from rounding; 0 where every number
            in it has a counterpart.
        folded: Whether a counterpart was computed from several numbers.
    """

    evidence: RegionEvidence
    positions: tuple[int, ...] = ()
    lasting: bool = False
    rounded: float = 0.0
    hides: float = 0.0
    folded: bool = False

    @property
    def passed(self) -> bool:
        """Whether it is the same wherever it was tried."""
        return self.evidence.kind in ("equal", "evidence")


def settle(
    correspondence: Correspondence,
    tries: Sequence[tuple[RandomInput, ...]],
    seed: int,
    tell: Callable[[int, int], None],
    cancel: Cancel,
) -> tuple[RegionResult, ...]:
    """Tests every changed region; where one fails, whether it was cut out wrongly.

    A value that a diff matched may be another one (of a convolution into which a normalisation was folded):
    then what lies behind it makes up for it, and the region grows that way until it is right or ends at an
    output. Growth doubles, so that a model of a thousand layers takes ten rounds.

    Args:
        correspondence: The two graphs.
        tries: How the inputs are drawn at each of the sizes; regions are widened at the first.
        seed: Of the first draw.
        tell: Told how many regions of how many are done.
        cancel: Asked now and then.

    Returns:
        Evidence of every region; where one of them differs, first the one that showed it first.
    """
    runner = _Runner(correspondence, tries, seed, cancel)
    results: dict[tuple[object, ...], RegionResult] = {}
    failed: dict[str, RegionResult] = {}
    dropped: set[str] = set()
    ends = {p.before for p in correspondence.outputs}
    step = 1
    while True:
        regions = correspondence.regions(dropped, {})
        runner.expose(regions)
        for at, region in enumerate(regions):
            tell(at, len(regions))
            if region.key not in results:
                results[region.key] = runner.widened(region, dropped)
            if results[region.key].lasting:
                failed.setdefault(region.pair.before, results[region.key])
        bad = [r for r in regions if not results[r.key].passed]
        growing = [r.pair.before for r in bad if r.pair.before not in ends]
        # behind the last one all is the same by construction: nothing makes up for it
        if not growing or (bad == regions[-1:] and results[bad[0].key].lasting):
            break
        for name in growing:
            dropped |= _following(correspondence, name, step) - ends
        step *= 2
    cut_off = [_cut_off(runner, pair) for pair in correspondence.cut_off]
    outcomes = [*(results[region.key] for region in regions), *cut_off]
    first = _first(runner, regions, results, failed, dropped)
    return (
        tuple(outcomes)
        if first is None
        else (first, *(outcome for outcome in outcomes if outcome is not first))
    )


def _first(
    runner: _Runner,
    regions: Sequence[ChangedRegion],
    results: Mapping[tuple[object, ...], RegionResult],
    failed: Mapping[str, RegionResult],
    dropped: set[str],
) -> RegionResult | None:
    """Of regions that grew, what showed first that one of them differs."""
    for region in regions:
        producer = runner.one.producer
        within = [n for n in failed if producer[n] in region.before.nodes and n != region.pair.before]
        first, shows = None, results[region.key].evidence
        if shows.kind == "different":
            first = next((failed[n] for n in within if failed[n].evidence.kind == "different"), None)
        elif within:
            first = _hidden(runner, region, sorted(within, key=producer.__getitem__, reverse=True), dropped)
            first = first or next(
                (failed[n] for n in within if failed[n].evidence.reason == shows.reason), None
            )
        if first is not None:
            return first
    return None


def _cut_off(runner: _Runner, pair: Pair) -> RegionResult:
    op = printable(runner.one.nodes[runner.one.producer[pair.before]].op)
    reason = "it is made of values that it cannot be given alone"
    return RegionResult(RegionEvidence(pair.before, op, op, 0, "unproven", reason))


def _hidden(
    runner: _Runner, region: ChangedRegion, within: Sequence[str], dropped: set[str]
) -> RegionResult | None:
    """A value in a region that differs, where the region does not show it and does not make up for it.

    What makes up for a difference is another operator behind it. Where there are the same ones, with the same
    numbers in them, the difference is lost: in an ArgMax, behind a head of zeros, in a sum with numbers that
    are far larger.
    """
    differing: set[str] = set()
    for name in within[:_INSIDE]:
        # what was tried before it grew may have been given what is another value in the other graph
        again = runner.graphs.regions(dropped - {name}, {})
        alone = next((r for r in again if r.pair.before == name), None)
        if alone is None:
            continue
        runner.expose([alone])
        settled = runner.widened(alone, dropped - {name})
        if not settled.lasting:
            continue
        differing.add(name)
        if runner.graphs.follows(region.pair, differing, dropped):
            return settled
    return None


def _following(correspondence: Correspondence, name: str, count: int) -> set[str]:
    """A value and the next ones behind it that are matched, `count` in all."""
    reached, following = {name}, {name}
    nodes = correspondence.before.graph.nodes
    matched = correspondence.matched
    begin = next(i for i, node in enumerate(nodes) if name in node.outputs)
    for node in nodes[begin + 1 :]:
        if len(following) >= count:
            break
        if reached.intersection(node.inputs):
            reached.update(filter(None, node.outputs))
            following.update(matched.intersection(node.outputs))
    return following


class _Tries(Struct):
    """What tries of a region showed; `varied`: what steers branches and loops, and was tried in all ways."""

    results: list[OutputEvidence] = field(default_factory=list)
    first: list[Array] = field(default_factory=list)
    draws: int = 0
    moved: bool = False
    varied: set[str] = field(default_factory=set)


class _Runner:
    def __init__(
        self,
        correspondence: Correspondence,
        tries: Sequence[tuple[RandomInput, ...]],
        seed: int,
        cancel: Cancel,
    ) -> None:
        self.graphs, self.tries, self.seed, self.cancel = correspondence, tries, seed, cancel
        self.one, self.other = correspondence.wirings
        self._session: RuntimeSession | None = None
        self._exposed: set[str] = set()
        self._asked: dict[str, None] = {}
        self._fetched: dict[tuple[int, int], Feeds] = {}
        self._types: dict[str, str] = {}
        self._stored_in: dict[tuple[object, ...], StoredDifferences] = {}
        self.contents = NodeContents(correspondence.before, correspondence.after)
        self._varying = Variation(correspondence.before), Variation(correspondence.after)

    def expose(self, regions: Sequence[ChangedRegion]) -> None:
        """Loads the original with what regions are given as outputs."""
        names = dict.fromkeys(name for r in regions for name in r.reads if name in self.one.producer)
        if names.keys() - self._exposed:
            self._exposed |= names.keys()
            self._asked, self._fetched = names, {}
            model = expose(self.graphs.before, sorted(self._exposed))
            self._session = RuntimeSession(model, what="the original", optimise=False)

    def own(self, names: Sequence[str], trial_inputs: tuple[RandomInput, ...], seed: int) -> Feeds:
        """The original's own values."""
        feeds = self._fetched.get((id(trial_inputs), seed), {})
        if missing := [name for name in names if name not in feeds]:
            inputs = draw(trial_inputs, seed)
            feeds = {**inputs, **{name: feeds[name] for name in names if name in feeds}}
            if computed := [name for name in missing if name not in inputs]:
                assert self._session is not None
                feeds |= self._session.run(inputs, [*computed, *self._ahead(computed)])
            self._fetched[id(trial_inputs), seed] = feeds
            self._types.update((name, element_type(value)) for name, value in feeds.items())
        return {name: feeds[name] for name in names}

    def _ahead(self, requested: Sequence[str]) -> Iterator[str]:
        """Values that the next regions will ask for, as far as they are small."""
        budget, begun = _AHEAD, False
        for name in self._asked:
            begun = begun or name == requested[0]
            if not begun or name in requested:
                continue
            budget -= self.graphs.nbytes(name)
            if budget < 0:
                return
            yield name

    def widened(self, region: ChangedRegion, dropped: set[str]) -> RegionResult:
        """Evidence of a region, alone or together with what makes its inputs."""
        alone = result = self.test(region)
        past: set[str] = set()
        for _ in range(_UPSTREAM):
            if (
                result.passed
                or result.evidence.own
                or (result.lasting and result.evidence.kind == "unproven")
            ):
                break
            past |= {name for name in region.reads if name in self.one.producer}
            regions = self.graphs.regions(set(dropped), {region.pair.before: past})
            wider = next((r for r in regions if r.pair == region.pair), region)
            if wider.key == region.key:
                break
            region = wider
            self.expose([region])
            result = self.test(region)
        return result if result.passed else alone

    def test(self, region: ChangedRegion) -> RegionResult:
        """Runs a region at all sizes."""
        nodes = self._nodes(region)
        evidence = RegionEvidence(
            value=region.pair.before,
            before=_named([node.op for node in nodes[0]]),
            after=_named([node.op for node in nodes[1]]),
            draws=0,
            kind="unproven",
            reason="",
        )
        tally = _Tries()
        try:
            run = self._both(region)
            draws = tuple(draws_random(m, side) for m, side in zip(self.contents.models, nodes, strict=True))
            if any(draws):
                values = self.own(region.reads, self.tries[0], self.seed)
                return RegionResult(
                    _drawn(evidence, draws, run(values), run(values)), region.before.nodes, lasting=True
                )
            for at, trial_inputs in enumerate(self.tries):
                try:
                    values = self.own(region.reads, trial_inputs, self.seed)
                except BadModel:
                    if at == 0:
                        raise
                    continue
                for kind, feeds in self._sets(region, nodes, values, trial_inputs, first=at == 0):
                    difference = self._tried(region, run, kind, feeds, tally)
                    if difference is not None:
                        where = f" on {kind} values" if kind in (_DENSE, _MEETING) else ""
                        certain = kind != _MEETING
                        failure = replace(
                            evidence,
                            draws=tally.draws,
                            kind="different" if certain else "unproven",
                            own=not where,
                            reason=f"{difference.reason}{where}",
                            max_abs=difference.max_abs,
                        )
                        return RegionResult(failure, region.before.nodes, lasting=True)
        except BadModel as error:
            reason = f"it could not be run alone: {printable(str(error))}"
            return RegionResult(replace(evidence, reason=reason, own=True), region.before.nodes)
        return self._judged(region, nodes, evidence, tally)

    def _judged(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        evidence: RegionEvidence,
        tally: _Tries,
    ) -> RegionResult:
        """What follows from a region that gave the same wherever it was tried."""
        here = region.before.nodes

        def unproven(reason: str, *, lasting: bool = True) -> RegionResult:
            return RegionResult(replace(figures, reason=reason), here, lasting)

        figures = evidence
        if not tally.results:
            return unproven("not one finite number came out of it", lasting=False)
        worst = max(tally.results, key=lambda r: r.max_abs or 0.0)
        equal = all(r.equal for r in tally.results)
        figures = replace(evidence, draws=tally.draws, max_abs=worst.max_abs, equal=equal)
        if not region.reads and equal:
            same = replace(figures, kind="equal", reason="constants: bit for bit the same")
            return RegionResult(same, here)
        twins = {name: twin or name for name, twin in region.given.items()}
        varied = tally.varied, {name for name, twin in twins.items() if twin in tally.varied}
        if self.contents.undecided(nodes, varied):
            return unproven("not every branch in it was taken")
        if not tally.moved and region.reads:
            return unproven("its output does not depend on what was varied", lasting=False)
        stored_differences = self._differences(region)
        hidden, rounded, hides = self._stored(region, nodes, worst, stored_differences)
        if hidden:
            return unproven(f"{hidden}, and nothing that was tried shows it")
        if number := self._unseen(region, nodes, tables_alone=stored_differences.alike):
            return unproven(number)
        remark = f"; stored numbers differ by up to {rounded:.1e} of themselves, as computed in another order"
        reason = worst.reason + (remark if rounded else "")
        return RegionResult(
            replace(figures, kind="evidence", reason=reason),
            here,
            rounded=rounded,
            hides=hides,
            folded=stored_differences.alike and any(stored_differences.sizes),
        )

    def _stored(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        worst: OutputEvidence,
        stored_differences: StoredDifferences,
    ) -> tuple[str, float, float]:
        """What stored numbers show beyond the runs of a region.

        Returns:
            (what differs though no run shows it; how far apart stored numbers are, of themselves, that were
            computed in another order; how far apart regions may be, of what they put out, without showing it)
        """
        before = self._cut(region)[0]
        if not stored_differences.alike:
            return self._moved(region, worst, stored_differences)
        large = [difference for difference in stored_differences.found if difference.large]
        for difference in large[:_INSIDE]:
            # two may make up for each other: a factor that was moved from one weight into the next
            alone = len(stored_differences.found) == 1 or difference.place is None
            if alone or not self._shown(
                region, nodes, before, restored(stored_differences.sides[1], difference)
            ):
                return difference.text, 0.0, 0.0
        return (
            "",
            max(
                (difference.apart for difference in stored_differences.found if not difference.large),
                default=0.0,
            ),
            0.0,
        )

    def _unseen(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], *, tables_alone: bool
    ) -> str:
        """What is to be said of a limit that one side alone holds, and that nothing shows to count.

        Args:
            region: The region.
            nodes: Its nodes, of both sides.
            tables_alone: Whether its other numbers are held against each other already.
        """
        sides = self._cut(region)
        for which, model, every in zip(
            ("first", "second"), sides, one_sided(*sides, self._varying), strict=True
        ):
            rows: list[Deciding] = [number for number in every if isinstance(number, TableRow)]
            single = [] if tables_alone else [n for n in every if not isinstance(n, TableRow)]
            if len(single) > _LIMITS:
                return f"{len(single)} limits are in the {which} model alone, too many to try them all"
            for number in (*single, *rows):
                if not self._counts(region, nodes, model, number):
                    return (
                        f"{number} is in the {which} model alone,"
                        " and nothing that was tried comes close enough to show what it does"
                    )
        return ""

    def _counts(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        model: Model,
        number: Deciding,
    ) -> bool:
        """Whether a number was shown to count, by others close to it, or not to, by others far from it."""
        changes = partial(self._changes, region, nodes, model)
        # below it and above: where one of them alone changes anything, runs met one side of it
        if all(map(changes, moved_number(model, number))):
            return True
        far = scaled_number(model, number)
        return bool(far) and not any(map(changes, far))

    def _changes(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], model: Model, replacement: Model
    ) -> bool:
        """Whether a side of a region puts out something else than another model in its place."""
        input_names = {value.name for value in model.graph.feeds}
        twins = {name: twin or name for name, twin in region.given.items()}
        as_it_is = RuntimeSession(model, what="a changed region alone", optimise=False, threads=1)
        try:
            beside = RuntimeSession(replacement, what="a changed region alone", optimise=False, threads=1)
        except BadModel:
            return True  # it is no model any more
        for at, trial_inputs in enumerate(self.tries):
            try:
                original_values = self.own(region.reads, trial_inputs, self.seed)
            except BadModel:
                continue
            for _, feeds in self._sets(region, nodes, original_values, trial_inputs, first=at == 0):
                for values in feeds:
                    mine = {name: values[twins.get(name, name)] for name in input_names}
                    try:
                        old = as_it_is.run(mine)
                    except BadModel:
                        continue
                    try:
                        new = beside.run(mine)
                    except BadModel:
                        return True
                    if not all(outputs.identical(old[name], new[name]) for name in old):
                        return True
        return False

    def _moved(
        self, region: ChangedRegion, worst: OutputEvidence, stored_differences: StoredDifferences
    ) -> tuple[str, float, float]:
        """As `_stored`, where the operators are others."""
        if not worst.dtype.startswith("float") or not region.reads:
            return "", 0.0, 0.0
        large = next(
            (
                m
                for m in moved(stored_differences.sides, stored_differences.sizes, self.graphs.same_content)
                if m.large
            ),
            None,
        )
        if large is not None:
            return large.text, 0.0, 0.0
        gap = None
        if any(self._holds_floats(model) for model in stored_differences.sides):
            original_values = self.own(region.reads, self.tries[0], self.seed)
            values = dense(original_values, spreads(original_values), _SPREADS[0], self.seed)
            gap = in_full(region, (self.one, self.other), values, self.cancel)
        elif worst.equal:
            return "", 0.0, 0.0
        if gap is not None and gap <= EXACT:
            return "", 0.0, 0.0  # of the same numbers, whatever became of them
        return "", 0.0, _hidden_by_rounding(worst) if gap is None else gap

    @staticmethod
    def _holds_floats(model: Model) -> bool:
        return any(
            "float" in t.dtype for t in constants_of(model.graph.nodes, model.graph.initializers).values()
        )

    def _shown(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], before: Model, after: Model
    ) -> bool:
        """Whether two forms of a region are told apart."""
        original_values = self.own(region.reads, self.tries[0], self.seed)
        run = self._beside(region, before, after)
        sets = self._sets(region, nodes, original_values, self.tries[0], first=True)
        try:
            pairs = [
                (*run(values), values) for kind, feeds in sets if kind in ("", _DENSE) for values in feeds
            ]
            return not self._compared(region, pairs, run).passed
        except BadModel:  # what cannot be run shows nothing
            return False

    def _sets(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        original_values: Feeds,
        trial_inputs: tuple[RandomInput, ...],
        *,
        first: bool,
    ) -> Iterator[tuple[str, list[Feeds]]]:
        """Sets of values to try, by what they are."""
        steering = [name for name in controls(nodes[0]) if name in region.before.given]
        floats = [n for n, v in original_values.items() if v.dtype.name in FED_FLOATS and v.size]
        feeds = [original_values]
        if not floats:
            feeds += [self.own(region.reads, trial_inputs, self.seed + i) for i in range(1, _DRAWS)]
        yield "", feeds
        if steering:
            yield _STEERED, [steered_values(original_values, steering, way) for way in (True, False)]
        if not floats:
            return
        count = max(1, min(_MANY, _ENOUGH // sum(original_values[name].size for name in floats)))
        wide = spreads(original_values)
        for spread in _SPREADS if first else _SPREADS[:1]:
            yield _DENSE, [dense(original_values, wide, spread, self.seed + i) for i in range(count)]
        yield (
            _MEETING,
            [meeting(original_values, self.contents.numbers(nodes), self.seed + i) for i in range(count)],
        )

    def _tried(
        self,
        region: ChangedRegion,
        run: Callable[[Feeds], tuple[Array, Array]],
        kind: str,
        feeds: Sequence[Feeds],
        tally: _Tries,
    ) -> OutputEvidence | None:
        """Runs a region on sets of values; what showed a difference, None if nothing did."""
        if kind == _MEETING and not all(r.equal for r in tally.results):
            return None  # where it rounds otherwise, it may fall to another side of such a number
        pairs = []
        for values in feeds:
            try:
                pairs.append((*run(values), values))
            except BadModel:
                if not kind:
                    raise
        if not pairs:
            return None
        output = self._compared(region, pairs, run)
        tally.draws += len(pairs)
        if not output.passed:
            # NaN against NaN shows nothing
            return None if output.equal else output
        tally.results.append(output)
        old_outputs = [old for old, _, _ in pairs]
        tally.first = tally.first or old_outputs[:1]
        tally.moved = tally.moved or not all(
            outputs.identical(old_output, tally.first[0]) for old_output in old_outputs
        )
        names = (n for n, v in feeds[0].items() if v.dtype.kind in "bi" and v.size == 1)
        if kind == _STEERED:
            tally.varied.update(names if len(pairs) == len(feeds) else ())
        return None

    def _differences(self, region: ChangedRegion) -> StoredDifferences:
        """In what the numbers differ that are stored in a region of both graphs."""
        if region.key not in self._stored_in:
            self._stored_in = {region.key: differences(*self._cut(region), self.graphs.same_content)}
        return self._stored_in[region.key]

    def _nodes(self, region: ChangedRegion) -> tuple[list[Node], list[Node]]:
        return (
            [self.one.nodes[at] for at in region.before.nodes],
            [self.other.nodes[at] for at in region.after.nodes],
        )

    def _cut(self, region: ChangedRegion) -> tuple[Model, Model]:
        """A region of both graphs as models of their own."""
        if not self._types.keys() >= set(region.reads):
            self.own(region.reads, self.tries[0], self.seed)
        after_types = {name: self._types[twin or name] for name, twin in region.given.items()}
        return region_model(self.one, region.before, self._types), region_model(
            self.other, region.after, after_types
        )

    def _both(self, region: ChangedRegion) -> Callable[[Feeds], tuple[Array, Array]]:
        """What runs a region in both graphs on the same values."""
        return self._beside(region, *self._cut(region))

    def _beside(
        self, region: ChangedRegion, first: Model, second: Model
    ) -> Callable[[Feeds], tuple[Array, Array]]:
        """What runs two models on what a region is given."""
        size = sum(map(self.graphs.nbytes, region.reads))
        size += sum(t.nbytes for model in (first, second) for t in model.graph.initializers.values())
        threads = 1 if size < _SMALL else None
        label = "a changed region alone"
        before, after = (
            RuntimeSession(model, what=label, optimise=False, threads=threads) for model in (first, second)
        )

        def run(values: Feeds) -> tuple[Array, Array]:
            (old,) = before.run({n: values[n] for n in region.before.given}).values()
            (new,) = after.run({n: values[twin or n] for n, twin in region.given.items()}).values()
            return old, new

        return run

    def _compared(
        self,
        region: ChangedRegion,
        pairs: Sequence[tuple[Array, Array, Feeds]],
        run: Callable[[Feeds], tuple[Array, Array]],
    ) -> OutputEvidence:
        name = (region.pair.before,)
        old, new = (ModelOutputs(name, tuple((pair[at],) for pair in pairs)) for at in (0, 1))
        noise = Noise(NOT_NEEDED, outputs.depth_of(region_model(self.one, region.before)))
        (output,) = outputs.compare(old, new, [], noise)
        if output.equal or not output.dtype.startswith("float"):
            return output
        exact = partial(in_float64, self.one, region.before, cancel=self.cancel)
        truths = [exact({n: values[n] for n in region.before.given}) for _, _, values in pairs]
        results = [{name[0]: true} for true in truths if true is not None]
        eased = output
        text = "float64" if len(results) == len(pairs) else "none: the region cannot be run in float64"
        change = outputs.change(pairs[0][0], run(dict(by_one_ulp(pairs[0][2])))[0])
        old = replace(old, sensitivity=(change,))
        truth = results if text == "float64" else []
        noise = replace(noise, reference=text)
        (output,) = outputs.compare(old, new, truth, noise)
        if output.passed:
            return output
        inputs = {n: pairs[0][2][n] for n in region.before.given}
        part = region_model(self.one, region.before, {n: element_type(v) for n, v in inputs.items()})
        few = independent(part, [RandomInput(n, element_type(v), v.shape) for n, v in inputs.items()])
        fewest = min(few.values(), default=old.draws[0][0].size)
        noise = replace(noise, independent=dict.fromkeys(name, fewest))
        (output,) = outputs.compare(old, new, truth, noise)
        if not output.passed and eased.passed and self._differences(region).rounded:
            return eased  # the numbers are others, by a rounding: so is what they make
        return output


def _drawn(
    evidence: RegionEvidence, draws: Sequence[bool], first: Sequence[Array], again: Sequence[Array]
) -> RegionEvidence:
    """What two runs on the same values show of a region that draws random numbers.

    How far apart its runs are shows nothing of it. That numbers are drawn on one side alone, and change what
    comes out, does.
    """
    varies = [
        drawn and not outputs.identical(*runs)
        for drawn, runs in zip(draws, zip(first, again, strict=True), strict=True)
    ]
    if varies[0] == varies[1] or all(draws):
        return replace(evidence, draws=2, reason=NOT_SHARED)
    which, opposite = ("the first", "the second") if varies[0] else ("the second", "the first")
    reason = f"random numbers change what {which} puts out, and {opposite} draws none"
    return replace(evidence, draws=2, kind="different", own=True, reason=reason)


def _hidden_by_rounding(worst: OutputEvidence) -> float:
    """Of what a region puts out, the difference that its runs would have let pass for rounding."""
    least = unit_roundoff(worst.dtype)
    if worst.relative_rms is None or worst.equal:
        return least
    return max(least, worst.relative_rms / min(worst.limit_share or 1.0, 1.0))


def _named(ops: Sequence[str]) -> str:
    """'Conv, BatchNormalization and 3 more'."""
    head = ", ".join(printable(op) for op in ops[:_NAMED])
    return head if len(ops) <= _NAMED else f"{head} and {len(ops) - _NAMED} more"
