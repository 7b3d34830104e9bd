"""Two passes over texts of different length, side by side: what grows with the text, and what mixes it.

A decode step can be derived where every position is worked on by itself, except in attention that does not
look ahead. Shapes tell which tensors hold positions, and pairs of positions; the execution order tells
where they come from: whether a product is one of queries and keys, whether its scores meet a mask, and in
what form keys and values would be kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.engine.costs.decode.position_roles import FACTORS, HIDING, LOOKUPS, ROLES
from explorer.engine.costs.memory.liveness import AnalysisResult, Detail, ExecutionStep, TensorAccess
from explorer.engine.operators.operator import Role
from explorer.facts import Shape

_WHERE = "--decode"
_HINT = "leave --decode out for the whole pass"


class Cached(Struct):
    """Keys or values of one attention: bytes of a position, and the steps that spread them out."""

    size: int
    spread: list[int]


class TwoTexts:
    """The two passes side by side, `tokens` positions in the first and `length` in the second.

    Attributes:
        pairs: What each step does in the first pass and in the second; None for the inputs.
        apart: Ids of the steps that work on nothing of the text.
        cached: Keys and values by the step that reads them, once `check` has seen it.
        whole_reads: Steps and places of the reads that take keys and values whole.
        masks: How many attentions are taken to be causal for their mask.
    """

    def __init__(self, long: AnalysisResult, other: AnalysisResult, tokens: int, length: int) -> None:
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
        self.cached: dict[int, list[Cached]] = {}
        self.whole_reads: set[tuple[int, int]] = set()
        self.masks = 0

    def pair(self, at: int, a: ExecutionStep, b: ExecutionStep) -> tuple[Detail, Detail] | None:
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

    def mixed(self, step: ExecutionStep, how: str) -> Misuse:
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

    def one(self, a: int | None, b: int | None, step: ExecutionStep, apart: bool = False) -> int:
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

    def power(self, a: TensorAccess | None, b: TensorAccess | None, step: ExecutionStep) -> int:
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

    def whole_or_one(self, step: ExecutionStep, tensor: TensorAccess, power: int) -> None:
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
        first, second = FACTORS.get(detail.op, (0, 1))
        # a tensor that is both is read once
        last = len(detail.reads) - 1
        return min(first, last), min(second, last)

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

    def masked(self, at: int, scores: TensorAccess | None) -> bool:
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

    def scored(self, tensor: TensorAccess, at: int) -> bool:
        """Whether a tensor comes from a product of queries and keys."""
        return any(op is not None and ROLES.get(op) == "product" for op in self.origins(tensor, at))

    def hides(self, tensor: TensorAccess, at: int) -> bool:
        """Whether a tensor over pairs of positions can tell earlier from later: it is made so, or given."""
        return any(op is None or op in HIDING for op in self.origins(tensor, at))

    def origins(self, tensor: TensorAccess, at: int) -> Iterator[str | None]:
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
        self.cached.setdefault(at, []).append(Cached(size // self.tokens, spread))

    def source(self, at: int, operand: TensorAccess) -> tuple[int, list[int]]:
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
