"""Model comparison: totals side by side, and why each model differs from the first.

The same model has many forms: a module, its export, a file whose batch norms a tool folded away. A
difference is explained when something that is seen in both accounts for it to the last unit, and open
when not; nothing is explained by being plausible. Parameters follow from the stored tensors
(`comparison_weights`), the rest from the rows of the layer trees, by the kind of work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from explorer.base.units import shape_text
from explorer.engine.costs.compare.rewrites import (
    IdleLayers,
    idle_layers,
    leaves,
    rewritten,
    sizes_computed,
    tile_sums,
)
from explorer.engine.costs.compare.weights import Causes, Zeros, family, graphless, weight_causes
from explorer.engine.costs.memory.liveness import Schedule
from explorer.facts import Analysis
from explorer.facts.comparison import Comparison, Difference

SHOWN = 4
"""How many kinds of work are named in a difference that stays open."""

_SAME_KINDS = ("torch", "torchscript", "torch.export")


def compare(
    analyses: Sequence[Analysis], schedules: Sequence[Schedule] = (), zeros: Sequence[Zeros] = ()
) -> Comparison:
    """The totals of two or more analysed models, and every difference from the first.

    Args:
        analyses: Of the models.
        schedules: Their execution orders, which show the layers that no output needs.
        zeros: For each model, whether a stored tensor is all zeros.

    `agree` says that parameters and MACs of each model are those of the first, or that the differences
    are explained in full.
    """
    first = analyses[0]
    differences: list[Difference] = []
    agree = True
    for at, second in enumerate(analyses[1:], start=1):
        idle = idle_layers(first, second, (schedules[0], schedules[at])) if schedules else IdleLayers()
        changes, same = _against(first, second, at, idle, (zeros[0], zeros[at]) if zeros else ())
        differences += changes
        agree = agree and same
    return Comparison(tuple(a.info for a in analyses), _operators(analyses), tuple(differences), agree)


def _against(
    first: Analysis, second: Analysis, at: int, idle: IdleLayers, zeros: Sequence[Zeros]
) -> tuple[list[Difference], bool]:
    """Differences of one model from the first, and whether parameters and MACs are settled."""
    causes = weight_causes(first, second, idle.paths, zeros)
    folds = causes is not None and causes.folds
    params = _weights(first, second, at, "params", causes)
    macs = _work(first, second, at, "macs", idle)
    differences = [
        *params,
        *_weights(first, second, at, "weight_bytes", causes),
        *macs,
        *_elementwise(first, second, at, folds, idle),
        *_moved(first, second, at, folds),
    ]
    # a file of tensors has no other figures that could differ
    settled = params if graphless(first) or graphless(second) else [*params, *macs]
    return differences, all(d.delta is not None and d.delta == d.explained for d in settled)


# -- parameters


def _weights(
    first: Analysis, second: Analysis, at: int, figure: str, causes: Causes | None
) -> list[Difference]:
    delta = getattr(second.info.totals, figure) - getattr(first.info.totals, figure)
    if causes is None:
        return [Difference(at, figure, delta, 0, "its tensors are not known one by one")] if delta else []
    amounts = [(c.why, c.params if figure == "params" else c.bytes) for c in causes.known]
    differences = [Difference(at, figure, n, n, why) for why, n in amounts if n]
    rest = delta - sum(n for _, n in amounts)
    if rest:
        differences.append(
            Difference(at, figure, rest, 0, causes.alone or "no weight that is known explains it")
        )
    return differences


# -- work


def _unknown(analysis: Analysis) -> int:
    return sum(1 for layer in leaves(analysis) if layer.status == "unknown")


def _by_family(analysis: Analysis, figure: str) -> Counter[str]:
    work: Counter[str] = Counter()
    for layer in leaves(analysis):
        work[family(layer.kind)] += getattr(layer, figure) or 0
    return work


def _sizes(analysis: Analysis) -> list[tuple[int | str | None, ...]]:
    return [tuple(i.shape or ()) for i in analysis.info.model.inputs]


def _batches(first: Analysis, second: Analysis) -> tuple[int, int] | None:
    """The batches of the two models, if their inputs differ in nothing else."""
    pairs = list(zip(_sizes(first), _sizes(second), strict=False))
    if len(_sizes(first)) != len(_sizes(second)) or not pairs:
        return None
    batches = set()
    for a, b in pairs:
        if (
            not a
            or len(a) != len(b)
            or a[1:] != b[1:]
            or not isinstance(a[0], int)
            or not isinstance(b[0], int)
        ):
            return None
        batches.add((a[0], b[0]))
    return batches.pop() if len(batches) == 1 else None


def _same_inputs(first: Analysis, second: Analysis) -> bool:
    return sorted(map(str, _sizes(first))) == sorted(map(str, _sizes(second)))


def _inputs_text(first: Analysis, second: Analysis) -> str:
    ours = ", ".join(map(shape_text, _sizes(second)))
    theirs = ", ".join(map(shape_text, _sizes(first)))
    return f"other inputs: {ours} instead of {theirs}"


def _work(first: Analysis, second: Analysis, at: int, figure: str, idle: IdleLayers) -> list[Difference]:
    """Differences of a figure that grows with the inputs."""
    a, b = getattr(first.info.totals, figure), getattr(second.info.totals, figure)
    if graphless(first) or graphless(second):
        if figure != "macs" or graphless(first) == graphless(second):
            return []
        return [Difference(at, figure, None, None, "one of the two is tensors without a graph")]
    missing = _unknown(first) + _unknown(second)
    if a is None or b is None:
        return [Difference(at, figure, None, None, f"not known for {missing:,} layers: see their reasons")]
    differences = []
    if missing and figure == "macs":
        differences.append(
            Difference(at, figure, None, None, f"{missing:,} layers have no known cost and are left out")
        )
    delta = b - a
    if not delta:
        return differences
    if not _same_inputs(first, second):
        batches = _batches(first, second)
        if batches and b * batches[0] == a * batches[1]:
            why = f"batch {batches[1]:,} instead of {batches[0]:,}"
            return [*differences, Difference(at, figure, delta, delta, why)]
        return [*differences, Difference(at, figure, delta, None, _inputs_text(first, second))]
    amounts = tile_sums(first, second, figure) + idle.amounts(figure)
    differences += [Difference(at, figure, n, n, why) for why, n in amounts if n]
    rest = delta - sum(n for _, n in amounts)
    return (
        [*differences, Difference(at, figure, rest, 0, _where(first, second, figure))]
        if rest
        else differences
    )


def _where(first: Analysis, second: Analysis, figure: str) -> str:
    """The kinds of work in which two models differ, largest difference first."""
    a, b = _by_family(first, figure), _by_family(second, figure)
    changed = {k: b[k] - a[k] for k in {*a, *b} if b[k] != a[k]}
    order = sorted(changed, key=lambda k: (-abs(changed[k]), k))
    parts = [f"{k} {changed[k]:+,}" for k in order[:SHOWN]]
    rest = len(order) - SHOWN
    return "; ".join(parts) + (f"; {rest:,} more kinds" if rest > 0 else "")


# -- elementwise work


def _elementwise(
    first: Analysis, second: Analysis, at: int, folds: bool, idle: IdleLayers
) -> list[Difference]:
    figure = "elementwise_ops"
    a, b = first.info.totals.elementwise_ops, second.info.totals.elementwise_ops
    if a is None or b is None or a == b or not _same_inputs(first, second):
        return _work(first, second, at, figure, idle)
    first_work, second_work = _by_family(first, figure), _by_family(second, figure)
    amounts: list[tuple[str, int]] = []
    if folds:
        amounts.append((_FOLDED, second_work["batch norm"] - first_work["batch norm"]))
        biases = _bias_work(second) - _bias_work(first)
        if second_work["convolution"] - first_work["convolution"] == biases:
            amounts.append((_BIASES, biases))
    if not first_work["quantization"] or not second_work["quantization"]:
        amounts.append((_QUANTIZED, second_work["quantization"] - first_work["quantization"]))
    settled = {"batch norm", "convolution"} if folds else set()
    amounts += rewritten(first, second, settled, idle.paths)
    amounts += sizes_computed(first, second)
    amounts += tile_sums(first, second, figure)
    amounts += idle.amounts(figure)
    differences = [Difference(at, figure, n, n, why) for why, n in amounts if n]
    rest = b - a - sum(n for _, n in amounts)
    if rest:
        differences.append(Difference(at, figure, rest, 0, _where(first, second, figure)))
    return differences


_FOLDED = "scale and shift of batch normalisations that are folded into the weights before them"
_QUANTIZED = "values that are quantized or dequantized: a scale, and a shift"
_BIASES = "biases of convolutions that come with folding: one addition for every output"


def _bias_work(analysis: Analysis) -> int:
    """Additions of the biases of convolutions: their only elementwise work."""
    work = 0
    for layer in leaves(analysis):
        if family(layer.kind) == "convolution" and len(layer.weights) > 1:
            work += layer.elementwise_ops or 0
    return work


def _count(analysis: Analysis, name: str) -> int:
    return sum(layer.calls for layer in leaves(analysis) if family(layer.kind) == name)


# -- operators


def _moved(first: Analysis, second: Analysis, at: int, folds: bool) -> list[Difference]:
    """Differences in operators that one model has and the other needs not, with the reason."""
    differences: list[Difference] = []
    if graphless(first) or graphless(second):
        return differences
    for name, (fewer, more) in _DROPPED.items():
        delta = _count(second, name) - _count(first, name)
        if delta and (folds or name != "batch norm"):
            differences.append(Difference(at, "operators", delta, delta, fewer if delta < 0 else more))
    return differences


_DROPPED = {
    "dropout or identity": (
        "dropout and identity left out: they do nothing in evaluation mode",
        "dropout and identity kept: they do nothing in evaluation mode",
    ),
    "batch norm": (
        "batch normalisations folded into the weights of what stands before them",
        "batch normalisations that are folded into other weights in the first",
    ),
    "constant": (
        "constants that are nodes in the first",
        "constants that an export writes as nodes: sizes, mostly",
    ),
}
"""Work that a model can do without, and what to say where it has less or more of it than the first."""


def _operators(analyses: Sequence[Analysis]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """How many operators of each type there are, in the words of the format, or of the work they do where
    the models are of different formats.
    """
    formats = {a.info.model.format for a in analyses}
    bare = all(map(graphless, analyses))
    alike = formats <= set(_SAME_KINDS) or len(formats) == 1 or bare
    counts = []
    for analysis in analyses:
        count: Counter[str] = Counter()
        # if one model is a graph, the types of the other's tensors are no operators
        listed = leaves(analysis) if bare or not graphless(analysis) else []
        for layer in listed:
            count[layer.kind if alike else family(layer.kind)] += layer.calls
        counts.append(count)
    names = sorted({n for c in counts for n in c}, key=lambda n: (-max(c[n] for c in counts), n))
    return tuple((name, tuple(c[name] for c in counts)) for name in names if any(c[name] for c in counts))
