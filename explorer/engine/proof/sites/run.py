"""Site runs, layer 2 of the proof: every tiled site by itself, against float64 element by element.

The site is cut out of the tiled graph with its functions as they are, so that an operator that does not
do what it is called is caught here. Beside the true activations it sees dense random rows: behind a
ReLU half the weights are multiplied by zero, and a fault there is invisible.

The limit is 8 u (|x| |W|), elementwise; u is the unit roundoff. Sums of mixed signs stay below 1 to 5 u
of that scale. Where all terms have one sign, partial sums grow as fast as the scale itself, and so do
their roundings, with the square root of the number of additions in a row (Higham and Mary, "A new
approach to probabilistic rounding error analysis", SISC 2019): there the limit grows with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Cancelled
from explorer.engine.graph.interpreter import Wiring, reads
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, subgraphs
from explorer.engine.proof.float64.evaluator import product
from explorer.engine.proof.meanings import Original, ProductSpec, Rows
from explorer.engine.proof.outputs.compare import SLAB, OutputComparison, unit_roundoff
from explorer.engine.proof.sites.exact import compare_exact, dense_integers
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import SitePlan

LIMIT = 8.0
"""What |error| / (u |x| |W|) may be where signs are mixed."""

_SAME_SIGN = 1.5
"""Times the square root of the additions in a row, times |x W| / (|x| |W|): what it may be where they are
not. Seen with positive numbers alone, in tiles 4 to 1,024 deep: 0.6 to 1.2."""

_WITHOUT_BLAS = 1 << 28
"""Multiplications in a type wider than float64 that are worth waiting for (a second or so)."""

_ROWS = 1 << 21
"""Elements of X that are widened at a time."""

_SAMPLED = 32
"""Rows up to which all are compared in the dense draw, and how many of more are by chance."""

_IN_FULL = 1 << 26
"""Multiplications up to which every row of the true activations is compared with float64."""

_SMALL = 1 << 25
"""Bytes that go into a site up to which its draws are run at a time: a run has them several times."""

_ONE_THREAD = 1 << 20
"""Multiplications of a product that is over before another thread is awake."""

_TOGETHER = 1024
"""Nodes that one session may hold: creating it is quadratic in those that are ready at once."""


Sessions = dict[tuple[tuple[Value, ...], tuple[str, ...]], RuntimeSession]
"""Sessions of the parts of a site whose sizes are open, by what goes in and comes out."""


class SiteRun(Struct, frozen=True):
    """What running a site showed.

    Attributes:
        comparison: With the original's own output.
        bound_ratio: |error| / (u |x| |W|) of the element that comes closest to its limit, or exceeds it
            most.
        limit: What it may be for that element.
        rows: Rows of input that were tried.
        reason: '' if the site passes.
        note: What is to be said of the original.
        exact: Whether it was compared with exact integer arithmetic, bit for bit.
    """

    comparison: OutputComparison
    bound_ratio: float | None
    limit: float
    rows: int
    reason: str
    note: str = ""
    exact: bool = False


def chain_length(site: SitePlan) -> int:
    """How many additions follow each other on the way to an element: in a tile, then over the tiles."""
    return min(site.tile[1], site.K) + site.grid[1]


def run_site(
    after: Model,
    site: SitePlan,
    original: Original,
    meaning: ProductSpec,
    inputs: Sequence[Array],
    y: Array,
    seed: int,
    share: ThreadShare,
    wiring: Wiring,
    sessions: Sessions | None = None,
) -> SiteRun:
    """Runs one site on its true activations and on dense random ones.

    Args:
        after: The tiled model.
        site: What the plan says of the site.
        original: The product as it was.
        meaning: What it means at the sizes of `inputs`.
        inputs: The values that it reads, as they were in a run of the original.
        y: The original's own output for them.
        seed: Of the dense activations.
        share: Threads for its sessions; asked between them whether to stop.
        wiring: Of the tiled graph.
        sessions: Of an earlier run of this site at other sizes; it gets what this one makes.

    Returns:
        The evidence; `reason` is '' if the site passes.

    Raises:
        BadModel: onnxruntime cannot load or run the site.
        Cancelled: `share` said so.
    """
    fill = _dense if meaning.integers is None else dense_integers
    dense = [fill(x, (seed, 2, i)) if i < original.operands else x for i, x in enumerate(inputs)]
    draws = [list(inputs), dense]
    outputs = _Runner(after, site, original, share, wiring, sessions).run(draws)
    comparison = OutputComparison(unit_roundoff(str(y.dtype)), binned=False)
    wrong = next((o for o in outputs if o.shape != y.shape or o.dtype != y.dtype), None)
    if wrong is not None:
        reason = f"it gives {wrong.dtype} {list(wrong.shape)}, the original {y.dtype} {list(y.shape)}"
        return SiteRun(comparison, None, LIMIT, 0, reason)
    sampled = _looked_at(site, meaning, seed)
    rows = meaning.batch * (meaning.M + (meaning.M if sampled is None else len(sampled)))
    if meaning.integers is not None:
        found = compare_exact(meaning, draws, outputs, y)
        return SiteRun(found.comparison, None, LIMIT, rows, found.reason, found.note, True)
    before, shown = meaning.out(y), meaning.out(outputs[0])
    left = meaning.left(inputs)
    looked = [_unsure(meaning, inputs, left, before, shown, sampled), sampled]
    given = [_rows(shown, looked[0]), _rows(meaning.out(outputs.pop()), sampled)]
    references = _references(meaning, draws, [left, meaning.left(dense)], looked)
    del left, dense
    true = references[0].exact.astype(np.float64)
    comparison.add(_rows(before, looked[0]), given[0], true)
    if looked[0] is not None:
        rest = np.setdiff1d(np.arange(meaning.M), looked[0], assume_unique=True)
        comparison.add(before[:, rest], shown[:, rest], None)
    ratio, limit = _largest_ratio(given, references, unit_roundoff(str(y.dtype)), chain_length(site))
    return SiteRun(comparison, ratio, limit, rows, fault_of(comparison, ratio, limit))


def run_part(
    model: Model, outputs: Sequence[str], feeds: Mapping[str, Array], what: str, threads: int
) -> dict[str, Array]:
    """Runs what lies between some values of a graph and others.

    Args:
        model: The model.
        outputs: Value names.
        feeds: Values to begin with.
        what: What it is, for messages.
        threads: For its operators.

    Raises:
        BadModel: onnxruntime cannot load or run it.
    """
    nodes, _ = Wiring.of(model.graph).needed(outputs, stop=feeds)
    return run_nodes(model, nodes, feeds, outputs, what, threads)


def run_nodes(
    model: Model,
    nodes: Sequence[Node],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    what: str,
    threads: int | None = None,
) -> dict[str, Array]:
    """Runs some nodes of a model by themselves: see `run_part`."""
    given = tuple(Value(n, str(v.dtype), v.shape) for n, v in feeds.items())
    return _part(model, nodes, given, outputs, what, threads, True).run(dict(feeds))


def _part(
    model: Model,
    nodes: Sequence[Node],
    inputs: tuple[Value, ...],
    outputs: Sequence[str],
    what: str,
    threads: int | None,
    sparing: bool = False,
) -> RuntimeSession:
    """A session of some nodes of a model by themselves, with the weights that they read."""
    read = {name for node in nodes for name in reads(node)} - {value.name for value in inputs}
    initializers = model.graph.initializers
    graph = Graph(
        name="part",
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(Value(n, None, None) for n in outputs),
        initializers={n: initializers[n] for n in read if n in initializers},
    )
    part = replace(model, graph=graph, functions=_called(model, nodes), metadata={}, extra=())
    return RuntimeSession(part, what=what, optimise=False, threads=threads, sparing=sparing)


def _called(model: Model, nodes: Iterable[Node]) -> dict[tuple[str, str, str], Function]:
    """The functions that nodes call, and those that these call: a session checks all that it is given."""
    found: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending += (n for _, body in subgraphs(node) for n in body.nodes)
        if node.key in model.functions and node.key not in found:
            found.add(node.key)
            pending += model.functions[node.key].nodes
    return {key: function for key, function in model.functions.items() if key in found}  # in their order


def fault_of(comparison: OutputComparison, ratio: float, limit: float) -> str:
    """What is wrong with a site's numbers, in words; '' if nothing is."""
    if comparison.nonfinite:
        return f"{comparison.nonfinite:,} NaN or Inf that the original has not"
    if not ratio <= limit:  # a NaN must fail, and compares false with everything
        return f"error of {ratio:.3g} x u (|x| |W|), allowed are {limit:.3g}"
    return ""


class _Reference(Struct, frozen=True):
    """What a site should give, in a wider type, (batch, M, N).

    Attributes:
        exact: alpha X W + beta C.
        bound: The same with absolute values throughout.
        product: alpha X W by itself.
    """

    exact: Array
    bound: Array
    product: Array


def _largest_ratio(
    given: Sequence[Array], references: Sequence[_Reference], roundoff: float, chain: int
) -> tuple[float, float]:
    """Of several runs the ratio that comes closest to its limit, and the limit."""
    ratio, limit = 0.0, LIMIT
    # dense rows have no output of the original beside them: NaN shows in the ratio
    for got, reference in zip(given, references, strict=True):
        here = _ratio(got, reference, roundoff, chain)
        if here[0] / here[1] >= ratio / limit:
            ratio, limit = here
    return ratio, limit


def _ratio(got: Array, reference: _Reference, roundoff: float, chain: int) -> tuple[float, float]:
    """|error| / (u bound), and what it may be, of the element that comes closest to its limit.

    The first is infinite where a finite result became NaN or Inf.
    """
    flat = [array.reshape(-1) for array in (got, reference.exact, reference.bound, reference.product)]
    ratio, limit = 0.0, LIMIT
    for first in range(0, got.size, SLAB):
        slabs = [array[first : first + SLAB] for array in flat]
        here = _slab_ratio(slabs, roundoff, chain)
        if here[0] / here[1] > ratio / limit:
            ratio, limit = here
    return ratio, limit


def _slab_ratio(slabs: Sequence[Array], roundoff: float, chain: int) -> tuple[float, float]:
    got, true, bound, product = slabs
    dtype = got.dtype
    finite = np.isfinite(true) & np.isfinite(bound)
    with np.errstate(over="ignore"):
        # a sum that is too large for the type is Inf by right
        finite &= np.isfinite(true.astype(dtype))
    if not finite.all():
        got, true, bound, product = got[finite], true[finite], bound[finite], product[finite]
    if not got.size:
        return 0.0, LIMIT
    error = np.abs(got.astype(true.dtype) - true)
    if not np.isfinite(error).all():
        return float("inf"), LIMIT
    scale = roundoff * bound + np.asarray(_smallest(dtype)).astype(true.dtype)
    ratios = error / scale
    coherence = np.abs(product) * roundoff / scale
    limits = np.maximum(LIMIT, _SAME_SIGN * math.sqrt(chain) * coherence)
    worst = int(np.argmax(ratios / limits))
    return float(ratios[worst]), float(limits[worst])


def _smallest(dtype: np.dtype[Any]) -> Any:
    """The smallest number of a float type."""
    if dtype.kind == "f":
        return np.finfo(dtype).smallest_subnormal
    import ml_dtypes

    limits: Any = ml_dtypes.finfo
    return limits(dtype).smallest_subnormal


_DRAWN = 1_048_573
"""Random numbers drawn for an input; a larger one repeats them. A prime: no row falls in step with it."""


def _dense(x: Array, seed: tuple[int, ...]) -> Array:
    """Values of both signs, none near zero, as large as the activation's."""
    generator = np.random.default_rng(seed)
    largest = np.abs(x).max(initial=0.0, where=np.isfinite(x))
    kind = np.float64 if x.dtype == np.float64 else np.float32
    values = generator.random(min(x.size, _DRAWN), kind) - 0.5
    values += np.copysign(0.5, values)
    drawn = np.asarray(values * (values.dtype.type(largest) or 1.0)).astype(x.dtype)
    return drawn.reshape(x.shape) if drawn.size == x.size else np.resize(drawn, x.shape)


def _looked_at(site: SitePlan, meaning: ProductSpec, seed: int) -> Array | None:
    """Rows of the dense draw that are compared with float64; None for all.

    They are there because true activations may meet part of the weight with zeros only, and every one of them
    meets all of it: of the 12,544 rows of an image's convolution some are enough, in every tile the first and
    the last, and others by chance. Of true activations every row is compared, with float64 or, where that is
    too much, as `_unsure` does.
    """
    if meaning.M <= _SAMPLED or meaning.integers is not None:
        return None
    starts = np.arange(0, meaning.M, site.tile[0])
    ends = np.minimum(starts + site.tile[0], meaning.M) - 1
    chance = np.random.default_rng((seed, 4)).integers(0, meaning.M, _SAMPLED)
    return np.unique(np.concatenate([starts, ends, chance]))


def _unsure(
    meaning: ProductSpec,
    inputs: Sequence[Array],
    left: Rows,
    before: Array,
    got: Array,
    sampled: Array | None,
) -> Array | None:
    """Rows of the true activations that are compared with float64; None for all.

    Of a large product they are those that are sampled, and those that are farther from the original's own
    output than two sums of such numbers may be by their roundings. |x| |W| is at most the product of the
    lengths of a row and a column (Cauchy and Schwarz), for which nothing has to be multiplied.
    """
    if sampled is None or meaning.batch * meaning.M * meaning.K * meaning.N <= _IN_FULL:
        return None
    weight = meaning.weight(inputs)
    roundoff = unit_roundoff(str(got.dtype))
    tall = np.sqrt(np.einsum("bkn,bkn->bn", weight, weight, dtype=np.float64)) * abs(meaning.alpha)
    bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
    added = meaning.added(np.abs(bias.astype(np.float64) * meaning.beta)) if bias is not None else None
    found: list[Array] = [sampled]
    step = max(1, SLAB // max(meaning.N, 1))
    with np.errstate(all="ignore"):
        for b in range(meaning.batch):
            for first in range(0, meaning.M, step):
                rows = slice(first, first + step)
                x = left(b, rows)
                wide = np.sqrt(np.einsum("mk,mk->m", x, x, dtype=np.float64))
                scale = wide[:, None] * tall[b if len(tall) > 1 else 0]
                if added is not None:
                    scale += added[b, rows]
                gap = np.abs(got[b, rows].astype(np.float64) - before[b, rows].astype(np.float64))
                allowed = 2 * LIMIT * roundoff * scale + float(_smallest(got.dtype))
                # a NaN must be looked at, and compares false with everything
                found.append(first + np.flatnonzero(~(gap <= allowed).all(1)))
    return np.unique(np.concatenate(found))


def _rows(array: Array, some: Array | None) -> Array:
    """Those rows of (batch, M, ...)."""
    return array if some is None else array[:, some]


def _references(
    meaning: ProductSpec,
    draws: Sequence[Sequence[Array]],
    lefts: Sequence[Rows],
    looked: Sequence[Array | None],
) -> list[_Reference]:
    """What the site should give for each draw of its inputs, in the rows that are looked at."""
    stored = isinstance(meaning.right, np.ndarray)
    weights = [meaning.weight(inputs) for inputs in (draws[:1] if stored else draws)]
    terms = len(draws) * meaning.batch * meaning.M * meaning.K * meaning.N
    # a type wider than float64 has no BLAS: where that takes minutes, both errors are within the limit
    wider = draws[0][0].dtype == np.float64 and terms <= _WITHOUT_BLAS
    wide = np.dtype(np.longdouble if wider else np.float64)
    every = np.arange(meaning.M)
    bands = [(left, every if some is None else some) for left, some in zip(lefts, looked, strict=True)]
    with np.errstate(all="ignore"):
        if stored and meaning.batch * meaning.K * sum(len(some) for _, some in bands) <= _ROWS:
            # one pass over the weight for all draws
            ends = np.cumsum([len(some) for _, some in bands])[:-1]
            together = np.arange(sum(len(some) for _, some in bands))

            def all_draws(b: int, at: Array | slice) -> Array:
                return np.concatenate([left(b, some) for left, some in bands])[at]

            both = _banded(all_draws, together, weights[0], wide)
            parts = [np.split(side, ends, axis=1) for side in both]
        else:
            each = [_banded(*band, weights[0 if stored else at], wide) for at, band in enumerate(bands)]
            parts = [list(side) for side in zip(*each, strict=True)]
        results = []
        for inputs, some, part, top in zip(draws, looked, *parts, strict=True):
            part *= wide.type(meaning.alpha)
            top *= abs(meaning.alpha)
            bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
            added: Any = 0
            if bias is not None:
                added = _rows(meaning.added(bias.astype(wide) * wide.type(meaning.beta)), some)
            if meaning.shown is not None:
                shown = _rows(meaning.shown, some)
                part, top = np.where(shown, part, 0), np.where(shown, top, 0)
            results.append(_Reference(part + added, top + np.abs(added), part))
    return results


def _banded(left: Rows, some: Array, weight: Array, wide: np.dtype[Any]) -> tuple[Array, Array]:
    """X W and |x| |W| of a stack, some rows at a time: a convolution has 29 million elements in X."""
    batch, depth, width = weight.shape
    exact, bound = (np.empty((batch, len(some), width), wide) for _ in range(2))
    step = max(1, _ROWS // max(depth, 1))
    for b in range(batch):
        for first in range(0, len(some), step):
            rows = slice(first, first + step)
            exact[b, rows], bound[b, rows] = product(left(b, some[rows]).astype(wide), weight[b])
    return exact, bound


class _Runner:
    """Runs a site as one sub-model, or, where its nodes are too many for one, column by column."""

    def __init__(
        self,
        after: Model,
        site: SitePlan,
        original: Original,
        share: ThreadShare,
        wiring: Wiring,
        sessions: Sessions | None,
    ) -> None:
        self.after = after
        self.sessions = sessions
        self.site = site
        self.share = share
        self.given = list(original.inputs)
        nodes, _ = wiring.needed([site.output], stop=self.given)
        function = after.functions.get(nodes[0].key) if len(nodes) == 1 else None
        if function is not None and len(function.nodes) > _TOGETHER:
            nodes = _opened(nodes[0], function)
        self.nodes = nodes

    def run(self, draws: Sequence[Sequence[Array]]) -> list[Array]:
        """The site's output for each draw of its inputs."""
        values = [dict(zip(self.given, inputs, strict=True)) for inputs in draws]
        joins = [n for n in self.nodes if "Concat" in n.op and len(n.inputs) > 1]
        looped = any(n.op == "Scan" for n in self.nodes)  # a Scan's columns are one body already
        if len(self.nodes) <= _TOGETHER or looped or not joins:
            self._stage(self.nodes, [self.site.output], values)
        else:
            self._in_columns(max(joins, key=lambda n: len(n.inputs)), values)
        return [known[self.site.output] for known in values]

    def _in_columns(self, join: Node, values: list[dict[str, Array]]) -> None:
        """What the columns share; each column; what comes behind them.

        Columns are alike, and a session of one serves all: the tiles are handed in.
        """
        parts = list(dict.fromkeys(join.inputs))
        makers = {o: n for n in self.nodes for o in n.outputs if o}
        users: dict[int, set[int]] = {}
        for at, part in enumerate(parts):
            for node in _cone(part, makers, set(self.given)):
                users.setdefault(id(node), set()).add(at)
        tail, _ = Wiring(self.nodes).needed([self.site.output], stop=[*self.given, *parts])
        for node in tail:
            users.setdefault(id(node), set()).update((-1, -2))  # never a column's own
        columns: list[list[Node]] = [[] for _ in parts]
        shared: list[Node] = []
        for node in self.nodes:
            owners = users.get(id(node), set())
            if len(owners) == 1:
                columns[next(iter(owners))].append(node)
            elif owners - {-1, -2}:
                # what comes behind the columns may need it, too, and makes it again
                shared.append(node)
        moving = _reached(shared, self.given)
        outside = {name for nodes in (*columns, tail) for n in nodes for name in reads(n)}
        fixed = [n for n in shared if id(n) not in moving]
        if fixed:
            # cuts of the weight: once for all activations
            wanted = outside | {name for n in shared if id(n) in moving for name in reads(n)}
            once: list[dict[str, Array]] = [{}]
            self._stage(fixed, [o for n in fixed for o in n.outputs if o in wanted], once)
            for known in values:
                known.update(once[0])
        varying = [n for n in shared if id(n) in moving]
        if varying:
            self._stage(varying, [o for n in varying for o in n.outputs if o in outside], values)
        sessions: dict[Any, RuntimeSession] = {}
        for part, nodes in zip(parts, columns, strict=True):
            if self.share.stopped():
                raise Cancelled
            if nodes:
                self._column(part, nodes, values, sessions)
        self._stage(tail, [self.site.output], values)

    def _column(
        self,
        part: str,
        nodes: Sequence[Node],
        values: list[dict[str, Array]],
        sessions: dict[Any, RuntimeSession],
    ) -> None:
        """One column, in the session of the first column that is like it."""
        names: dict[str, str] = {}
        for node in nodes:
            for name in (*node.inputs, *node.outputs):
                if name:
                    names.setdefault(name, f"v{len(names)}")
        made = {o for n in nodes for o in n.outputs}
        outer = [name for name in names if name not in made]
        initializers = self.after.graph.initializers
        # a weight in a file may begin at any byte; the runtime wants whole words
        tiles = {
            name: np.require(initializers[name].array(), requirements=("C", "A"))
            for name in outer
            if name in initializers
        }
        inputs = [{n: tiles[n] if n in tiles else known[n] for n in outer} for known in values]
        kinds = tuple((names[n], str(v.dtype), v.shape) for n, v in inputs[0].items())
        key = (tuple(_signature(n, names) for n in nodes), kinds)
        if key not in sessions:
            alike = [
                n.with_values([names.get(i, "") for i in n.inputs], [names.get(o, "") for o in n.outputs], "")
                for n in nodes
            ]
            given = tuple(Value(*kind) for kind in kinds)
            sessions[key] = self._session(alike, given, [names[part]])
        for known, feeds in zip(values, inputs, strict=True):
            result = sessions[key].run({names[n]: v for n, v in feeds.items()})
            known[part] = result[names[part]]

    def _stage(self, nodes: Sequence[Node], outputs: Sequence[str], values: list[dict[str, Array]]) -> None:
        """Runs nodes for every activation and adds `outputs` to what is known of it."""
        if self.share.stopped():
            raise Cancelled
        own = {o for n in nodes for o in n.outputs}
        read = dict.fromkeys(name for n in nodes for name in reads(n))
        inputs = [name for name in read if name in values[0] and name not in own]
        given = tuple(Value(n, str(values[0][n].dtype), values[0][n].shape) for n in inputs)
        if self.sessions is None:
            session = self._session(nodes, given, outputs)
        else:
            given = tuple(Value(v.name, v.dtype, (None,) * len(v.shape or ())) for v in given)
            key = given, tuple(outputs)
            if key not in self.sessions:
                self.sessions[key] = self._session(nodes, given, outputs)
            session = self.sessions[key]
        feeds = [{name: known[name] for name in inputs} for known in values]
        small = sum(value.nbytes for known in feeds for value in known.values()) <= _SMALL
        width = min(self.share.threads, len(feeds)) if small else 1
        with ThreadPoolExecutor(max(1, width)) as pool:
            for known, made in zip(values, pool.map(session.run, feeds), strict=True):
                known.update(made)

    def _session(
        self, nodes: Sequence[Node], inputs: tuple[Value, ...], outputs: Sequence[str]
    ) -> RuntimeSession:
        what = f"site '{self.site.name}'"
        large_products = self.site.form == "batched" or math.prod(self.site.tile) > _ONE_THREAD
        threads = self.share.threads if large_products else 1
        return _part(self.after, nodes, inputs, outputs, what, threads, True)


def _cone(output: str, makers: Mapping[str, Node], stop: set[str]) -> list[Node]:
    """The nodes that `output` depends on, not looking behind `stop`; in no order."""
    found: dict[int, Node] = {}
    pending = [output]
    while pending:
        name = pending.pop()
        node = makers.get(name)
        if node is not None and name not in stop and id(node) not in found:
            found[id(node)] = node
            pending.extend(reads(node))
    return list(found.values())


def _reached(nodes: Sequence[Node], names: Sequence[str]) -> set[int]:
    """Ids of the nodes that depend on `names`."""
    moving = set(names)
    reached: set[int] = set()
    for node in nodes:
        if any(name in moving for name in reads(node)):
            reached.add(id(node))
            moving.update(node.outputs)
    return reached


def _signature(node: Node, names: Mapping[str, str]) -> tuple[Any, ...]:
    """What makes two nodes of different columns the same node; tensors and graphs never are."""
    attributes = tuple(
        (k, v if isinstance(v, (int, float, str, bytes, tuple)) else id(v))
        for k, v in node.attributes.items()
    )
    wires = tuple(names.get(n, "") for n in (*node.inputs, "|", *node.outputs))
    return node.op, node.domain, node.overload, wires, attributes


def _opened(call: Node, function: Function) -> list[Node]:
    """The body of a function in place of its call; the functions that it calls stay calls."""
    names = dict(zip(function.inputs, call.inputs, strict=False))
    names.update(zip(function.outputs, call.outputs, strict=False))

    def outer(name: str) -> str:
        return names.get(name, f"{call.label}::{name}") if name else ""

    return [
        node.with_values(
            [*map(outer, node.inputs)], [*map(outer, node.outputs)], f"{call.label}::{node.name}"
        )
        for node in function.nodes
    ]
