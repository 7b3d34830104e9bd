"""A decode step derived from passes over whole texts, for models that take no cache.

Two passes over texts of different length tell which figures and which tensors grow with the text. Of what
grows, a step does one row: one position of what is worked on position by position, one query of attention.
Only keys and values are read whole, out of the cache, and copies that spread them out before they meet the
query are made whole. What a text is otherwise mixed by cannot be derived, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs.decode.sequence_scaling import TwoTexts
from explorer.engine.costs.layer_tree import Bounds, summed
from explorer.engine.costs.memory.liveness import (
    AnalysisResult,
    Detail,
    ExecutionStep,
    Schedule,
    described,
    live_peak,
)
from explorer.facts import Analysis, Layer, ModelInfo, Shape, TensorInfo, is_assumed


def derive(long: AnalysisResult, other: AnalysisResult, tokens: int, length: int) -> AnalysisResult:
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


class _Row(Struct):
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


class _Derivation(TwoTexts):
    """The facts of a step, from two passes that were checked."""

    def result(self) -> AnalysisResult:
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
        return AnalysisResult.of(self.analysis(layers, rows, order), order, _bounds(layers))

    def book(self, at: int, step: ExecutionStep, pair: tuple[Detail, Detail], row: _Row, whole: bool) -> None:
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
            step = ExecutionStep(layer.path, (), ())
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
        return self.long.analysis.info.model.is_graph or not layer.kind[:1].isupper()

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
            for (key, told_a, size), (_, told_b, size_b) in zip(step.outputs, other.outputs, strict=True):
                info, info_b = described(told_a), described(told_b)
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


def _bounds(layers: Sequence[Layer]) -> Bounds:
    """As `tree.bounds`, from the rows of a step."""
    found = [x for x in layers if x.status == "bound" and x.counted and not x.group]
    return len(found), found[0].path if found else "", sum(is_assumed(x.reason) for x in found)
