"""A decode step derived from passes over whole texts, for models that take no cache.

Two passes over texts of different length tell which figures and which tensors grow with the text. Of what
grows, a step does one row: one position of what is worked on position by position, one query of attention.
Only keys and values are read whole, out of the cache, and copies that spread them out before they meet the
query are made whole. What a text is otherwise mixed by cannot be derived, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from explorer.engine.analysis.memory import Detail, Examined, Moved, Schedule, Step, live_peak
from explorer.engine.analysis.positions import ADDED_FIRST, FACTORS, HIDING, LOOKUPS, ROLES, Role
from explorer.engine.analysis.tree import summed
from explorer.errors import Misuse
from explorer.facts import Analysis, Layer, ModelInfo, Shape, TensorInfo

__all__ = ["derive"]

_WHERE = "--decode"
_HINT = "leave --decode out for the whole pass"


def derive(long: Examined, other: Examined, tokens: int, length: int) -> Examined:
    """One decode step, the last of `tokens` positions.

    Args:
        long: The pass over `tokens` positions, its steps detailed.
        other: The pass over `length` positions, `length` different from `tokens`, likewise.
        tokens: Positions of `long`: those in the cache and the new one.
        length: Positions of `other`.

    Raises:
        Misuse: The model mixes positions otherwise than by attention that does not look ahead, or how a
            figure grows with the text cannot be told.
    """
    return _Derivation(long, other, tokens, length).result()


@dataclass(slots=True)
class _Cached:
    """Keys or values of one attention: bytes of a position, and the steps that spread them out."""

    size: int
    spread: list[int]


@dataclass(slots=True)
class _Row:
    """Sums over the operators of one row."""

    macs: int = 0
    elementwise: int = 0
    read: int = 0
    stored: int = 0
    written: int = 0
    cached: int | None = None
    whole: bool = False
    apart: bool = True
    macs_before: int = 0
    elementwise_before: int = 0


class _Derivation:
    """The two passes side by side. `tokens` positions in the first, `length` in the second."""

    def __init__(self, long: Examined, other: Examined, tokens: int, length: int) -> None:
        self.long, self.other = long, other
        self.tokens, self.length = tokens, length
        self.steps = list(long.schedule.steps)
        self.rows = list(long.schedule.rows)
        for found, size in ((long, tokens), (other, length)):
            if found.schedule.failed:
                notes = found.analysis.info.model.notes
                why = next((n for n in notes if n.startswith("the model failed")), found.schedule.failed)
                raise Misuse(f"it does not run over {size:,} tokens: {why}", where=_WHERE, hint=_HINT)
        second = list(other.schedule.steps)
        same = [s.label for s in self.steps] == [s.label for s in second]
        same = same and [x.path for x in long.analysis.layers] == [x.path for x in other.analysis.layers]
        if not same:
            raise Misuse("what it runs depends on the length of the text", where=_WHERE, hint=_HINT)
        self.pairs: list[tuple[Detail, Detail] | None] = [
            self.pair(at, a, b) for at, (a, b) in enumerate(zip(self.steps, second, strict=True))
        ]
        self.second = second
        self.makers: dict[Hashable, list[int]] = {}
        for at, pair in enumerate(self.pairs):
            for made in pair[0].made if pair else ():
                self.makers.setdefault(made.key, []).append(at)
        self.apart = self.without_text()
        # with which power of the length a tensor grows, and the bytes of one of its positions
        self.held: dict[Hashable, tuple[int, int]] = {}
        for (key, _, m), (_, _, n) in zip(self.steps[0].outputs, second[0].outputs, strict=True):
            power = self.degree(m, n) or 0
            self.held[key] = power, (m or 0) // self.tokens if power else m or 0
        self.cached: dict[int, list[_Cached]] = {}
        self.whole_reads: set[tuple[int, int]] = set()
        self.masks = 0

    def pair(self, at: int, a: Step, b: Step) -> tuple[Detail, Detail] | None:
        """The operator of a step in both passes; None for the inputs."""
        if not at:
            return None
        if a.detail is None or b.detail is None or len(a.detail.reads) != len(b.detail.reads):
            raise self.mixed(
                a, "it runs other operators inside" if a.leaf < 0 else "it has an inside of its own"
            )
        return a.detail, b.detail

    def without_text(self) -> set[int]:
        """Ids of the steps that work on nothing of the text: they number positions and make masks."""
        text = {key for key, _, _ in self.steps[0].outputs} if self.steps else set()
        found = set()
        for step, pair in zip(self.steps, self.pairs, strict=True):
            if pair is None:
                continue
            # what only asks for a shape reads nothing
            if any(m is not None and m.size != 0 and not m.stored and m.key in text for m in pair[0].reads):
                text.update(m.key for m in pair[0].made)
            else:
                found.add(id(step))
        return found

    def mixed(self, step: Step, how: str) -> Misuse:
        """The refusal that names a layer."""
        op = step.detail.op.removeprefix("aten::") if step.detail else ""
        name = f"{step.label} ({op})" if op else step.label
        return Misuse(f"no decode step can be derived: {how}", where=name, hint=_HINT)

    # -- how things grow ------------------------------------------------------------------------

    def degree(self, a: int | None, b: int | None) -> int | None:
        """With which power of the length a figure grows; None if with none."""
        if a is None or b is None:
            return None
        for power in (0, 1, 2):
            if a * self.length**power == b * self.tokens**power:
                return power
        return None

    def one(self, a: int | None, b: int | None, step: Step, apart: bool = False) -> int:
        """What one row takes of a figure; `apart` for a row that has nothing of the text."""
        power = self.degree(a, b)
        if a is not None and b is not None and power is None and (apart or id(step) in self.apart):
            # what is made of positions alone, such as the distance of each to the one before
            return self.for_one(a, b)
        if a is None or power is None or (power and a % self.tokens):
            raise self.mixed(step, "how its figures grow with the text cannot be told")
        return a // self.tokens if power else a

    def for_one(self, a: int, b: int) -> int:
        """What grows evenly with the text, for a text of one position."""
        return a - (a - b) * (self.tokens - 1) // (self.tokens - self.length)

    def power(self, a: Moved | None, b: Moved | None, step: Step) -> int:
        """With which power of the length a tensor grows."""
        if a is None or b is None:
            return 0
        power = self.degree(a.size, b.size)
        if power is None and id(step) in self.apart and a.size is not None and b.size is not None:
            return 1
        if power is None:
            unknown = a.size is None or b.size is None
            raise self.mixed(
                step,
                "the sizes of its tensors are not known"
                if unknown
                else "how its tensors grow with the text cannot be told",
            )
        return power

    def growing(self, a: Shape | None, b: Shape | None) -> list[int]:
        """Axes of a shape that grow with the text."""
        return [i for i, (m, n) in enumerate(zip(a or (), b or (), strict=False)) if m != n]

    # -- what operators do along the text -------------------------------------------------------

    def check(self, at: int) -> None:
        """Refuses what mixes positions, and notes where keys and values are."""
        step, pair = self.steps[at], self.pairs[at]
        if pair is None or id(step) in self.apart:
            return
        a, b = pair
        reads = [self.power(m, n, step) for m, n in zip(a.reads, b.reads, strict=True)]
        made = [self.power(m, n, step) for m, n in zip(a.made, b.made, strict=True)]
        for tensor, power in zip(a.reads, reads, strict=True):
            if tensor is not None and tensor.size and not tensor.stored:
                self.whole_or_one(step, tensor, power)
        for tensor, power in zip(a.made, made, strict=True):
            held = self.held.get(tensor.key, (0, 0))
            size = tensor.size or 0
            self.held[tensor.key] = max(held, (power, size // self.tokens if power else size))
        if not any(reads) and not any(made):
            return
        role: Role | None = "each" if a.pointwise else ROLES.get(a.op)
        highest, result = max(reads, default=0), max(made, default=0)
        if role is None:
            raise self.mixed(step, "it mixes the positions of the text")
        if role in ("normalise", "softmax"):
            along = self.growing(a.made[0].shape, b.made[0].shape)
            over_text = [axis for axis in along if axis in a.axes]
            # of two axes the last holds the keys, over which probabilities add up to one
            keys = along[1:] if role == "softmax" and result == 2 else []
            if not a.axes or over_text != keys:
                raise self.mixed(step, "it mixes the positions of the text")
        elif a.op in LOOKUPS and result and self.looks_up(a, reads):
            raise self.mixed(step, "it looks up positions of the text")
        elif result < highest and role in ("each", "move") and not self.picks_one(a, reads):
            raise self.mixed(step, "it works on several positions of the text at once")
        elif role == "reduce" and result < highest:
            raise self.mixed(step, "it sums over the positions of the text")
        elif role == "product":
            self.product(at, a, b)
        elif role == "attention":
            self.attention(at, a, b, reads)

    def whole_or_one(self, step: Step, tensor: Moved, power: int) -> None:
        """Refuses what reads a part of a text: neither all of it nor a single position."""
        held, row = self.held.get(tensor.key, (0, 0))
        if power < held and (held > 1 or (tensor.size or 0) > row):
            raise self.mixed(step, "it works on several positions of the text at once")

    def picks_one(self, a: Detail, reads: Sequence[int]) -> bool:
        """Whether what comes out of a text is one of its positions, such as the last, or its shape."""
        row = max((m.size or 0) // self.tokens for m, p in zip(a.reads, reads, strict=True) if m and p)
        return max(reads) == 1 and all((m.size or 0) <= row for m in a.made)

    def looks_up(self, a: Detail, reads: Sequence[int]) -> bool:
        """Whether positions are looked up among what was made of the text, not in a stored table."""
        table = a.reads[0]
        return table is not None and not table.stored and bool(reads[0]) and any(reads[1:])

    def product(self, at: int, a: Detail, b: Detail) -> None:
        """A matrix product: of rows with weights, of queries with keys, or of probabilities with values."""
        step = self.steps[at]
        first, second = self.factors(a)
        powers = [self.power(a.reads[i], b.reads[i], step) for i in (first, second)]
        result = self.power(a.made[0], b.made[0], step)
        if sorted(powers) == [0, result]:
            return
        if powers == [1, 1] and result == 2:
            self.note(at, second)
            return
        if sorted(powers) == [1, 2] and result == 1:
            scores = first if powers[0] == 2 else second
            if not self.masked(at, a.reads[scores]):
                raise self.mixed(step, "nothing shows that its attention does not look ahead")
            self.note(at, first if scores == second else second)
            return
        if powers == [1, 1] and result == 1 and self.batched(a, b, first, second):
            return
        raise self.mixed(step, "it mixes the positions of the text")

    def factors(self, detail: Detail) -> tuple[int, int]:
        """Places of the two factors of a product among its reads."""
        places = range(1 if detail.op in ADDED_FIRST else 0, len(detail.reads))
        return FACTORS.get(detail.op, (places[0], places[min(1, len(places) - 1)]))

    def batched(self, a: Detail, b: Detail, first: int, second: int) -> bool:
        """Whether a product has the positions in its batch."""
        for place in (first, second):
            one, two = a.reads[place], b.reads[place]
            shape = one.shape if one else None
            axes = self.growing(shape, two.shape if two else None)
            if any(axis >= len(shape or ()) - 2 for axis in axes):
                return False
        return True

    def attention(self, at: int, a: Detail, b: Detail, reads: Sequence[int]) -> None:
        """Attention in one operator: query, key and value first, the mask behind them."""
        step = self.steps[at]
        if len(reads) < 3 or a.reads[1] is None or a.reads[2] is None:
            raise self.mixed(step, "its keys and values come packed")
        if not reads[1] and not reads[2]:
            return  # keys and values of something else than the text
        if (reads[0], reads[1], reads[2]) != (1, 1, 1):
            raise self.mixed(step, "it mixes the positions of the text")
        if not a.causal:
            masks = [m for m, power in zip(a.reads, reads, strict=True) if power == 2 and m is not None]
            if not any(self.hides(m, at) for m in masks):
                raise self.mixed(step, "nothing shows that its attention does not look ahead")
            self.masks += 1
        self.note(at, 1)
        self.note(at, 2)

    def masked(self, at: int, scores: Moved | None) -> bool:
        """Whether the scores come from queries and keys and meet something that knows both positions."""
        masked = False
        while scores is not None:
            maker = self.maker(scores.key, at)
            pair = self.pairs[maker] if maker is not None else None
            if maker is None or pair is None:
                return False
            a, b = pair
            role = "each" if a.pointwise else ROLES.get(a.op)
            powers = [self.power(m, n, self.steps[maker]) for m, n in zip(a.reads, b.reads, strict=True)]
            square = [m for m, power in zip(a.reads, powers, strict=True) if power == 2]
            if role == "product" and [powers[i] for i in self.factors(a)] == [1, 1]:
                masked = masked or any(self.hides(m, maker) for m in square if m is not None)
                self.masks += masked
                return masked
            if role not in ("each", "softmax", "move") or not square:
                return False
            onward = [m for m in square if m is not None and self.scored(m, maker)]
            if len(onward) != 1:
                return False
            masked = masked or any(
                self.hides(m, maker) for m in square if m is not None and m is not onward[0]
            )
            scores, at = onward[0], maker
        return False

    def scored(self, tensor: Moved, at: int) -> bool:
        """Whether a tensor comes from a product of queries and keys."""
        return any(op is not None and ROLES.get(op) == "product" for op in self.origins(tensor, at))

    def hides(self, tensor: Moved, at: int) -> bool:
        """Whether a tensor over pairs of positions can tell earlier from later: it is made so, or given."""
        return any(op is None or op in HIDING for op in self.origins(tensor, at))

    def origins(self, tensor: Moved, at: int) -> Iterator[str | None]:
        """Operators behind a tensor over pairs of positions; None for one that is stored or comes in."""
        seen: set[tuple[Hashable, int]] = set()
        pending = [(tensor, at)]
        while pending:
            current, before = pending.pop()
            maker = self.maker(current.key, before)
            if current.stored or maker is None:
                yield None
                continue
            pair = self.pairs[maker]
            if pair is None or (current.key, maker) in seen:
                continue
            seen.add((current.key, maker))
            a, b = pair
            yield a.op
            if a.op in LOOKUPS:
                continue
            reads = [
                (m, self.power(m, n, self.steps[maker]))
                for m, n in zip(a.reads, b.reads, strict=True)
                if m is not None
            ]
            over_pairs = [(m, maker) for m, power in reads if power == 2]
            pending += over_pairs
            if not over_pairs and ROLES.get(a.op) == "move" and self.cut(a, maker):
                yield None

    def cut(self, detail: Detail, at: int) -> bool:
        """Whether a tensor over pairs of positions is cut out of a square that the model stores."""
        while True:
            source = detail.reads[0] if detail.reads else None
            if source is None:
                return False
            if source.stored:
                square = (source.shape or ())[-2:]
                return len(square) == 2 and square[0] == square[1] != 1
            maker = self.maker(source.key, at)
            pair = self.pairs[maker] if maker is not None else None
            if maker is None or pair is None or ROLES.get(pair[0].op) != "move" or pair[0].op in LOOKUPS:
                return False
            detail, at = pair[0], maker

    def maker(self, key: Hashable, before: int) -> int | None:
        """The last step before another that made a tensor."""
        return next((at for at in reversed(self.makers.get(key, ())) if at < before), None)

    # -- keys and values ------------------------------------------------------------------------

    def note(self, at: int, place: int) -> None:
        """Notes that an operator reads keys or values, and where a cache would hold them."""
        pair = self.pairs[at]
        assert pair is not None
        operand = pair[0].reads[place]
        assert operand is not None
        self.whole_reads.add((at, place))
        size, spread = self.source(at, operand)
        if size % self.tokens:
            raise self.mixed(self.steps[at], "what it caches of a position cannot be told")
        self.cached.setdefault(at, []).append(_Cached(size // self.tokens, spread))

    def source(self, at: int, operand: Moved) -> tuple[int, list[int]]:
        """The smallest form of an operand on its way here, and the steps that make more of it from there.

        Heads that several queries share are cached once, before they are repeated.
        """
        size = operand.size or 0
        spread: list[int] = []
        way: list[int] = []
        current, before = operand, at
        while True:
            maker = self.maker(current.key, before)
            pair = self.pairs[maker] if maker is not None else None
            if maker is None or pair is None:
                return size, spread
            a, b = pair
            if not a.pointwise and ROLES.get(a.op) not in ("each", "move"):
                return size, spread
            long = [
                m
                for m, n in zip(a.reads, b.reads, strict=True)
                if m is not None and self.power(m, n, self.steps[maker])
            ]
            if len(long) != 1 or long[0].stored:
                return size, spread
            way.append(maker)
            current, before = long[0], maker
            if (current.size or 0) < size:
                size, spread = current.size or 0, list(way)

    # -- the result -----------------------------------------------------------------------------

    def result(self) -> Examined:
        """The step."""
        for at in range(len(self.steps)):
            self.check(at)
        whole = {maker for found in self.cached.values() for c in found for maker in c.spread}
        rows: dict[int, _Row] = {}
        for at, (step, pair, row) in enumerate(zip(self.steps, self.pairs, self.rows, strict=True)):
            if pair is not None and row is not None:
                self.book(at, step, pair, rows.setdefault(row, _Row()), at in whole)
        layers = self.layers(rows)
        order = self.schedule(whole)
        return Examined(self.analysis(layers, rows, order), order)

    def book(self, at: int, step: Step, pair: tuple[Detail, Detail], row: _Row, whole: bool) -> None:
        """Adds what a step takes of an operator to its row."""
        a, b = pair

        def one(x: int | None, y: int | None) -> int:
            return x or 0 if whole else self.one(x, y, step)

        row.macs += one(a.macs, b.macs)
        row.elementwise += one(a.elementwise, b.elementwise)
        row.macs_before += a.macs or 0
        row.elementwise_before += a.elementwise or 0
        for place, (m, n) in enumerate(zip(a.reads, b.reads, strict=True)):
            if m is None or n is None:
                continue
            every = whole or (at, place) in self.whole_reads
            size = (m.size or 0) if every else one(m.size, n.size)
            row.read += size
            row.stored += size if m.stored else 0
        for m, n in zip(a.made, b.made, strict=True):
            row.written += one(m.size, n.size)
        for cached in self.cached.get(at, ()):
            row.cached = (row.cached or 0) + cached.size * (self.tokens - 1)
        row.whole = row.whole or whole
        row.apart = row.apart and id(step) in self.apart

    def layers(self, rows: dict[int, _Row]) -> tuple[Layer, ...]:
        """The rows of the tree, groups summed anew."""
        done: list[Layer] = []
        for layer, other in zip(self.long.analysis.layers, self.other.analysis.layers, strict=True):
            row = rows.get(layer.id, _Row())
            step = Step(layer.path, (), ())
            attends = row.cached is not None and self.is_operator(layer)
            shown = replace(
                layer,
                inputs=self.tensors(layer.inputs, other.inputs, row.whole, attends),
                outputs=self.tensors(layer.outputs, other.outputs, row.whole),
            )
            if layer.group:
                done.append(shown)
                continue
            if layer.status == "unknown":
                raise self.mixed(step, f"its cost is not known ({layer.reason})")
            elementwise = row.elementwise
            if layer.elementwise_ops != row.elementwise_before and not row.whole:
                elementwise = self.one(layer.elementwise_ops, other.elementwise_ops, step, row.apart)
            moved = layer.bytes_written or layer.bytes_read
            activation = layer.activation_bytes or 0
            ends = layer.activation_bytes, other.activation_bytes
            shrunk = activation if row.whole else self.one(*ends, step, row.apart)
            done.append(
                replace(
                    shown,
                    macs=row.macs,
                    elementwise_ops=elementwise,
                    bytes_read=row.read if moved else 0,
                    weight_bytes_read=row.stored if moved else 0,
                    bytes_written=row.written if moved else 0,
                    activation_bytes=shrunk,
                    kv_cache_bytes=row.cached,
                    formula=self.formula(layer, row),
                )
            )
        return _summed_up(done)

    def formula(self, layer: Layer, row: _Row) -> str:
        if not layer.formula or not (layer.macs or layer.elementwise_ops):
            return layer.formula
        if row.cached is not None:
            return f"derived, 1 of {self.tokens:,} queries, against as many keys, of ({layer.formula})"
        if row.whole:
            return f"derived, on the whole cache: {layer.formula}"
        if (row.macs, row.elementwise) == (row.macs_before, row.elementwise_before):
            return layer.formula
        return f"derived, 1 of {self.tokens:,} rows of ({layer.formula})"

    def is_operator(self, layer: Layer) -> bool:
        """Whether a row is an operator itself: a module is called by its class, a function by its name."""
        return self.long.analysis.info.model.format == "onnx" or not layer.kind[:1].isupper()

    def tensors(
        self, found: Sequence[TensorInfo], others: Sequence[TensorInfo], whole: bool, attends: bool = False
    ) -> tuple[TensorInfo, ...]:
        """Tensors as one row has them: the first axis that grows with the text holds one position.

        What `attends` has its keys and values behind the query, which are whole.
        """
        if whole or len(found) != len(others):
            return tuple(found)
        shown = []
        for place, (a, b) in enumerate(zip(found, others, strict=True)):
            keys = attends and place > 0 and len(self.growing(a.shape, b.shape)) == 1
            shown.append(a if keys else replace(a, shape=self.shrunk(a.shape, b.shape)))
        return tuple(shown)

    def shrunk(self, a: Shape | None, b: Shape | None) -> Shape | None:
        axes = self.growing(a, b)
        if a is None or not axes:
            return a
        long, other = a[axes[0]], (b or ())[axes[0]]
        one = self.for_one(long, other) if isinstance(long, int) and isinstance(other, int) else None
        return (*a[: axes[0]], one, *a[axes[0] + 1 :])

    def schedule(self, whole: set[int]) -> Schedule:
        """The execution order of the step: caches are there from its start to its end."""
        caches: list[tuple[Hashable, TensorInfo, int | None]] = []
        used: dict[int, list[Hashable]] = {}
        for at, found in self.cached.items():
            for index, cached in enumerate(found):
                cache: Hashable = ("cache", at, index)
                held = cached.size * (self.tokens - 1)
                told = TensorInfo(f"cache of {self.steps[at].label}", "uint8", (held,), "inferred")
                caches.append((cache, told, held))
                # copies that spread the cache out read it first
                used.setdefault(cached.spread[-1] if cached.spread else at, []).append(cache)
        steps = []
        for at, (step, other) in enumerate(zip(self.steps, self.second, strict=True)):
            made: list[tuple[Hashable, TensorInfo, int | None]] = []
            for (key, info, size), (_, info_b, size_b) in zip(step.outputs, other.outputs, strict=True):
                if at in whole:
                    made.append((key, info, size))
                else:
                    shape = self.shrunk(info.shape, info_b.shape)
                    made.append((key, replace(info, shape=shape), self.one(size, size_b, step)))
            more = caches if not at else []
            inputs = (*step.inputs, *used.get(at, ()))
            steps.append(replace(step, inputs=inputs, outputs=(*made, *more), detail=None))
        keep = {*self.long.schedule.keep, *(key for key, _, _ in caches)}
        return Schedule(steps, keep, self.rows)

    def analysis(self, layers: tuple[Layer, ...], rows: dict[int, _Row], order: Schedule) -> Analysis:
        """The facts of the step."""
        old, peak = self.long.analysis.info, live_peak(order.steps, order.keep)
        leaves = [x for x in layers if not x.group]
        cached = sum(row.cached or 0 for row in rows.values())
        macs = summed(x.macs for x in leaves)
        sums = self.activations(layers)
        totals = replace(
            old.totals,
            macs=macs,
            flops=None if macs is None else 2 * macs,
            elementwise_ops=summed(x.elementwise_ops for x in leaves),
            bytes_read=summed(x.bytes_read for x in leaves),
            bytes_written=summed(x.bytes_written for x in leaves),
            weight_bytes_read=summed(x.weight_bytes_read for x in leaves),
            activation_bytes_peak=peak.bytes,
            peak_at=peak.label,
            peak_tensors=peak.tensors,
            kv_cache_bytes=cached,
            activation_bytes_sum=sums[0],
            activation_bytes_functional=sums[1],
        )
        past = self.tokens - 1
        how = f"derived from passes over {self.tokens:,} and {self.length:,} tokens: one row of each layer"
        if cached:
            how += f", one query against {self.tokens:,} keys, the cache read whole"
        if self.masks:
            how += "; masks over pairs of positions are taken to hide what comes later"
        model = old.model
        other = self.other.analysis.info.model
        assumptions = {**old.assumptions, "decode": {"past": past, "tokens": 1, "how": how}}
        info = replace(
            old,
            model=self.model(model, other),
            assumptions=assumptions,
            totals=totals,
        )
        return Analysis(info, layers)

    def model(self, model: ModelInfo, other: ModelInfo) -> ModelInfo:
        return replace(
            model,
            inputs=self.tensors(model.inputs, other.inputs, False),
            outputs=self.tensors(model.outputs, other.outputs, False),
        )

    def activations(self, layers: Sequence[Layer]) -> tuple[int | None, int | None]:
        """Sums of activations, apart for modules and functional operators where the totals are."""
        old = self.long.analysis.info.totals
        leaves = [(x, y) for x, y in zip(layers, self.long.analysis.layers, strict=True) if not x.group]
        if old.activation_bytes_functional is None:
            return summed(x.activation_bytes for x, _ in leaves), None
        sums = {True: [0, 0], False: [0, 0]}
        for now, before in leaves:
            pair = sums[not self.is_operator(before)]
            pair[0] += now.activation_bytes or 0
            pair[1] += before.activation_bytes or 0
        whole = (sums[True][1], sums[False][1]) == (old.activation_bytes_sum, old.activation_bytes_functional)
        return (sums[True][0], sums[False][0]) if whole else (None, None)


_FIGURES = (
    "macs", "elementwise_ops", "bytes_read", "weight_bytes_read", "bytes_written", "activation_bytes",
)  # fmt: skip


def _summed_up(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The rows with the figures of groups summed from the leaves below them."""
    sums: dict[int, dict[str, int]] = {}
    done = list(layers)
    for layer in reversed(layers):
        if layer.group:
            mine = sums.get(layer.id, {})
            figures: dict[str, Any] = {name: mine.get(name, 0) for name in _FIGURES}
            layer = done[layer.id] = replace(layer, **figures, kv_cache_bytes=mine.get("kv_cache_bytes"))
        if layer.parent is None:
            continue
        above = sums.setdefault(layer.parent, {})
        for name in (*_FIGURES, "kv_cache_bytes"):
            value = getattr(layer, name)
            if value is not None:
                above[name] = above.get(name, 0) + value
    return tuple(done)
