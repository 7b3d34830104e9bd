"""Layer 2 of the proof: every tiled site is run by itself, and compared with float64 element by element.

The site is cut out of the tiled graph with its functions as they are, so that an operator that does not
do what it is called is caught here. Beside the true activations it sees dense random rows: behind a
ReLU half the weights are multiplied by zero, and a fault there is invisible.

The limit is 8 u (|x| |W|), elementwise; u is the unit roundoff. Tiled sums stay below 1 u of that scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from explorer.engine.graph import Function, Graph, Model, Node, Value
from explorer.engine.verify.compare import Comparison, unit_roundoff, widened
from explorer.engine.verify.float64 import product
from explorer.engine.verify.interpret import needed, reads
from explorer.engine.verify.runtime import Array, Session
from explorer.engine.verify.structure import Original
from explorer.errors import Cancelled
from explorer.facts import SitePlan

__all__ = ["LIMIT", "SiteRun", "run_site"]

LIMIT = 8.0
"""What |error| / (u |x| |W|) may be: seen are 0.6 to 1, and a single weight off by 0.1 % exceeds 8."""

_TOGETHER = 2048
"""Nodes that one session may hold: creating it is quadratic in those that are ready at once."""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """What running a site showed."""

    comparison: Comparison
    bound_ratio: float | None
    rows: int
    reason: str


def run_site(
    after: Model,
    site: SitePlan,
    original: Original,
    x: Array,
    y: Array,
    bias: Array | None,
    seed: int,
    cancel: Callable[[], bool] | None = None,
) -> SiteRun:
    """Runs one site on its true activation and on dense random rows.

    Args:
        after: The tiled model.
        site: What the plan says of the site.
        original: The product as it was.
        x: The activation, in its own shape.
        y: The original's own output for it.
        bias: C as it was in that run; None if there is none.
        seed: Of the dense rows.
        cancel: Asked between sessions.

    Returns:
        The evidence; `reason` is '' if the site passes.

    Raises:
        BadModel: onnxruntime cannot load or run the site.
        Cancelled: `cancel` said so.
    """
    dense = _dense(x, seed)
    runner = _Runner(after, site, original, cancel)
    outputs = runner.run([x, dense], bias)
    comparison = Comparison(unit_roundoff(str(y.dtype)))
    wrong = next((o for o in outputs if o.shape != y.shape or o.dtype != y.dtype), None)
    if wrong is not None:
        reason = f"it gives {wrong.dtype} {list(wrong.shape)}, the original {y.dtype} {list(y.shape)}"
        return SiteRun(comparison, None, 0, reason)
    ratio = 0.0
    references, bounds = _references(original, [x, dense], bias, y.shape)
    comparison.add(y, outputs[0], references[0].astype(np.float64))
    # dense rows have no output of the original beside them: NaN shows in the ratio
    for got, true, bound in zip(outputs, references, bounds, strict=True):
        ratio = max(ratio, _ratio(got, true, bound, unit_roundoff(str(y.dtype))))
    return SiteRun(comparison, ratio, 2 * site.M, _verdict(comparison, ratio))


def _verdict(comparison: Comparison, ratio: float) -> str:
    if comparison.nonfinite:
        return f"{comparison.nonfinite:,} NaN or Inf that the original has not"
    if not ratio <= LIMIT:  # a NaN must fail, and compares false with everything
        return f"error of {ratio:.3g} x u (|x| |W|), allowed are {LIMIT:g}"
    return ""


def _ratio(got: Array, true: Array, bound: Array, roundoff: float) -> float:
    """Largest |error| in units of the bound; infinite where a finite result became NaN or Inf."""
    finite = np.isfinite(true) & np.isfinite(bound)
    with np.errstate(over="ignore"):
        # a sum that is too large for the type is Inf by right
        finite &= np.isfinite(true.astype(got.dtype))
    if not finite.any():
        return 0.0
    error = np.abs(got[finite].astype(true.dtype) - true[finite])
    if not np.isfinite(error).all():
        return float("inf")
    tiny = np.finfo(got.dtype).smallest_subnormal
    allowed = roundoff * bound[finite] + tiny.astype(true.dtype)
    return float((error / allowed).max())


def _dense(x: Array, seed: int) -> Array:
    """Values of both signs, none near zero, as large as the activation's."""
    generator = np.random.default_rng((seed, 2))
    finite = widened(x)[np.isfinite(widened(x))]
    scale = float(np.abs(finite).max()) if finite.size and finite.any() else 1.0
    values = generator.uniform(0.5, 1.0, x.shape) * generator.choice((-1.0, 1.0), x.shape)
    return np.asarray(values * scale).astype(x.dtype)


def _references(
    original: Original, xs: Sequence[Array], bias: Array | None, y_shape: tuple[int, ...]
) -> tuple[list[Array], list[Array]]:
    """The product alpha X W + beta C in a wider type, and the same with absolute values, each shaped as Y."""
    weight = original.weight
    wide = np.dtype(np.longdouble if weight.dtype == np.float64 else np.float64)
    matrices = [_logical(original, x) for x in xs]
    rows = np.concatenate(matrices).astype(wide)
    with np.errstate(all="ignore"):
        exact, bound = product(rows, weight)
        exact *= wide.type(original.alpha)
        bound *= abs(original.alpha)
        results, bounds = [], []
        for part, top in zip(np.split(exact, len(xs)), np.split(bound, len(xs)), strict=True):
            if original.swapped:
                part, top = part.T, top.T
            part, top = part.copy(), top.copy()
            if bias is not None:
                added = bias.astype(wide) * wide.type(original.beta)
                part += added
                top += np.abs(added)
            results.append(part.reshape(y_shape))
            bounds.append(top.reshape(y_shape))
    return results, bounds


def _logical(original: Original, x: Array) -> Array:
    """The activation as (M, K)."""
    if original.transposed and x.ndim > 1:
        return x.T
    return x.reshape(-1, original.weight.shape[0])


class _Runner:
    """Runs a site as one sub-model, or, where its nodes are too many, a few columns at a time."""

    def __init__(
        self, after: Model, site: SitePlan, original: Original, cancel: Callable[[], bool] | None
    ) -> None:
        self.after = after
        self.site = site
        self.cancel = cancel
        self.x = original.x
        self.bias = original.bias if isinstance(original.bias, str) else ""
        stop = [self.x, self.bias] if self.bias else [self.x]
        nodes, _ = needed(after.graph.nodes, [site.output], stop=stop, known=after.graph.initializers)
        calls = [after.functions.get(n.key) for n in nodes]
        if len(nodes) == 1 and calls[0] is not None and len(calls[0].nodes) > _TOGETHER:
            nodes = _opened(nodes[0], calls[0])
        self.nodes = nodes

    def run(self, xs: Sequence[Array], bias: Array | None) -> list[Array]:
        """The site's output for each activation."""
        fixed = {self.bias: bias} if self.bias and bias is not None else {}
        stages = list(self._stages())
        values: list[dict[str, Array]] = [{self.x: x, **fixed} for x in xs]
        for nodes, inputs, outputs in stages:
            if self.cancel is not None and self.cancel():
                raise Cancelled
            session = self._session(nodes, inputs, outputs, values[0])
            for known in values:
                known.update(session.run({name: known[name] for name in inputs}))
        return [known[self.site.output] for known in values]

    def _stages(self) -> Iterator[tuple[list[Node], list[str], list[str]]]:
        """(nodes, inputs, outputs) of each sub-model, in an order in which they can run."""
        given = [self.x, self.bias] if self.bias else [self.x]
        output = self.site.output
        made = {o for n in self.nodes for o in n.outputs}
        joins = [n for n in self.nodes if "Concat" in n.op and len(n.inputs) > 1]
        if len(self.nodes) <= _TOGETHER or not joins:
            yield self.nodes, self._used(self.nodes, given), [output]
            return
        join = max(joins, key=lambda n: len(n.inputs))
        parts = [name for name in dict.fromkeys(join.inputs) if name in made]
        each = max(1, _TOGETHER * len(parts) // len(self.nodes))
        for at in range(0, len(parts), each):
            group = parts[at : at + each]
            nodes, _ = needed(self.nodes, group, stop=given)
            yield nodes, self._used(nodes, given), group
        tail, _ = needed(self.nodes, [output], stop=[*given, *parts])
        yield tail, self._used(tail, [*given, *parts]), [output]

    def _used(self, nodes: Sequence[Node], names: Sequence[str]) -> list[str]:
        read = {name for node in nodes for name in reads(node)}
        return [name for name in names if name in read]

    def _session(
        self, nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str], known: Mapping[str, Array]
    ) -> Session:
        read = {name for node in nodes for name in reads(node)}
        initializers = self.after.graph.initializers
        graph = Graph(
            name="site",
            nodes=tuple(nodes),
            inputs=tuple(Value(n, str(known[n].dtype), known[n].shape) for n in inputs),
            outputs=tuple(Value(n, None, None) for n in outputs),
            initializers={n: initializers[n] for n in read if n in initializers},
        )
        part = dataclasses.replace(self.after, graph=graph, metadata={}, extra=())
        return Session(part, what=f"site '{self.site.name}'", optimise=False)


def _opened(call: Node, function: Function) -> list[Node]:
    """The body of a function in place of its call; the functions that it calls stay calls."""
    names = dict(zip(function.inputs, call.inputs, strict=False))
    names.update(zip(function.outputs, call.outputs, strict=False))

    def outer(name: str) -> str:
        return names.get(name, f"{call.label}::{name}") if name else ""

    return [
        Node(
            node.op,
            [outer(n) for n in node.inputs],
            [outer(n) for n in node.outputs],
            name=f"{call.label}::{node.name}",
            domain=node.domain,
            overload=node.overload,
            attributes=node.attributes,
        )
        for node in function.nodes
    ]
