"""Compares models: totals side by side, and why each model differs from the first.

One model has many forms: a module, its export, a file with folded batch norms. A difference is explained only
if facts of both models account for all of it; a plausible cause alone does not count. Differences in
parameters are explained by the stored tensors (`compare.weights`). All other differences are explained by the
rows of the layer trees, grouped by kind of work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from explorer.base.units import shape_text
from explorer.engine.costs.compare.rewrites import (
    IdleLayers,
    find_idle_layers,
    find_rewrites,
    list_counted_layers,
    list_partial_sums,
    list_size_work,
    list_tile_work,
)
from explorer.engine.costs.compare.weights import (
    Buffers,
    Causes,
    Zeros,
    find_family,
    find_weight_causes,
    is_graphless,
)
from explorer.engine.costs.memory.liveness import Schedule
from explorer.facts import Analysis, Layer, list_dimension_sizes
from explorer.facts.comparison import Comparison, Difference

MAX_NAMED_KINDS = 4
"""Maximum number of kinds of work that an unexplained difference names."""

_SAME_KINDS = ("torch", "torchscript", "torch.export")
"""Formats whose operators have the same names."""


def compare(
    analyses: Sequence[Analysis],
    schedules: Sequence[Schedule] = (),
    zeros: Sequence[Zeros] = (),
    buffers: Sequence[Buffers] = (),
) -> Comparison:
    """Compares the totals of two or more analyzed models, and explains every difference from the first.

    Args:
        analyses: Analyses of the models.
        schedules: Their execution orders, which show the layers that no output needs.
        zeros: For each model, whether the stored tensor with a name is all zeros.
        buffers: For each model, the shapes of a module's buffers by name.

    `Comparison.agree` is True if every difference in parameters and MACs from the first model is explained in
    full.
    """
    first = analyses[0]
    differences: list[Difference] = []
    agree = True
    for index, second in enumerate(analyses[1:], start=1):
        idle = (
            find_idle_layers(first, second, (schedules[0], schedules[index])) if schedules else IdleLayers()
        )
        changes, is_same = _compare_with_first(
            first,
            second,
            index,
            idle,
            (zeros[0], zeros[index]) if zeros else (),
            (buffers[0], buffers[index]) if buffers else (),
        )
        differences += changes
        agree = agree and is_same
    return Comparison(tuple(a.info for a in analyses), _count_operators(analyses), tuple(differences), agree)


def _compare_with_first(
    first: Analysis,
    second: Analysis,
    index: int,
    idle: IdleLayers,
    zeros: Sequence[Zeros],
    buffers: Sequence[Buffers],
) -> tuple[list[Difference], bool]:
    """Returns one model's differences from the first, and whether they explain all parameters and MACs."""
    causes = find_weight_causes(first, second, idle.paths, zeros, buffers)
    folds = causes is not None and causes.folds
    params = _list_weight_differences(first, second, index, "params", causes)
    macs = _list_work_differences(first, second, index, "macs", idle)
    differences = [
        *params,
        *_list_weight_differences(first, second, index, "weight_bytes", causes),
        *macs,
        *_list_elementwise_differences(first, second, index, causes, idle),
        *_list_operator_differences(first, second, index, folds),
    ]
    # a file of tensors has no other figures to compare
    decisive = params if is_graphless(first) or is_graphless(second) else [*params, *macs]
    return differences, all(d.delta is not None and d.delta == d.explained for d in decisive)


# -- parameters


def _list_weight_differences(
    first: Analysis, second: Analysis, index: int, figure: str, causes: Causes | None
) -> list[Difference]:
    """Returns the differences of 'params' or 'weight_bytes': one per cause, and the unexplained rest."""
    delta = getattr(second.info.totals, figure) - getattr(first.info.totals, figure)
    if causes is None:
        return [Difference(index, figure, delta, 0, "its tensors are not known one by one")] if delta else []
    amounts = [(c.reason, c.params if figure == "params" else c.bytes) for c in causes.explained]
    differences = [Difference(index, figure, n, n, why) for why, n in amounts if n]
    unexplained = delta - sum(n for _, n in amounts)
    if unexplained:
        differences.append(
            Difference(index, figure, unexplained, 0, causes.unmatched_text or "no known weight explains it")
        )
    return differences


# -- work


def _count_unknown(analysis: Analysis) -> int:
    return sum(1 for layer in list_counted_layers(analysis) if layer.status == "unknown")


def _sum_by_family(analysis: Analysis, figure: str) -> Counter[str]:
    """Returns the sum of a figure by kind of work (`weights.find_family`)."""
    work: Counter[str] = Counter()
    for layer in list_counted_layers(analysis):
        work[find_family(layer.kind)] += getattr(layer, figure) or 0
    return work


def _hint_sizes(*analyses: Analysis) -> str:
    """Returns the options that fix the open sizes of the inputs, which leave figures unknown, or ''."""
    open_sizes = dict.fromkeys(
        name
        for analysis in analyses
        for name, size in list_dimension_sizes(analysis.info).items()
        if size is None
    )
    return f"; add {' '.join(f'--dim {name}=1' for name in open_sizes)}" if open_sizes else ""


def _list_input_sizes(analysis: Analysis) -> list[tuple[int | str | None, ...]]:
    return [tuple(i.shape or ()) for i in analysis.info.model.inputs]


def _find_batch_sizes(first: Analysis, second: Analysis) -> tuple[int, int] | None:
    """Returns the batch sizes of the two models if their inputs differ in nothing else, or None."""
    pairs = list(zip(_list_input_sizes(first), _list_input_sizes(second), strict=False))
    if len(_list_input_sizes(first)) != len(_list_input_sizes(second)) or not pairs:
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


def _have_same_inputs(first: Analysis, second: Analysis) -> bool:
    return sorted(map(str, _list_input_sizes(first))) == sorted(map(str, _list_input_sizes(second)))


def _describe_inputs(first: Analysis, second: Analysis) -> str:
    ours = ", ".join(map(shape_text, _list_input_sizes(second)))
    theirs = ", ".join(map(shape_text, _list_input_sizes(first)))
    return f"other inputs: {ours} instead of {theirs}"


def _list_work_differences(
    first: Analysis, second: Analysis, index: int, figure: str, idle: IdleLayers
) -> list[Difference]:
    """Returns the differences of a figure that depends on the input sizes."""
    a, b = getattr(first.info.totals, figure), getattr(second.info.totals, figure)
    if is_graphless(first) or is_graphless(second):
        if figure != "macs" or is_graphless(first) == is_graphless(second):
            return []
        return [Difference(index, figure, None, None, "one of the two is tensors without a graph")]
    missing = _count_unknown(first) + _count_unknown(second)
    if a is None or b is None:
        unknown = f"not known for {missing:,} layers{_hint_sizes(first, second)}"
        return [Difference(index, figure, None, None, unknown)]
    differences = []
    if missing and figure == "macs":
        differences.append(
            Difference(index, figure, None, None, f"{missing:,} layers have no known cost and are left out")
        )
    delta = b - a
    if not delta:
        return differences
    if not _have_same_inputs(first, second):
        batches = _find_batch_sizes(first, second)
        if batches and b * batches[0] == a * batches[1]:
            why = f"batch {batches[1]:,} instead of {batches[0]:,}"
            return [*differences, Difference(index, figure, delta, delta, why)]
        return [*differences, Difference(index, figure, delta, None, _describe_inputs(first, second))]
    amounts = list_tile_work(first, second, figure) + idle.list_amounts(figure)
    differences += [Difference(index, figure, n, n, why) for why, n in amounts if n]
    unexplained = delta - sum(n for _, n in amounts)
    return (
        [*differences, Difference(index, figure, unexplained, 0, _describe_work(first, second, figure))]
        if unexplained
        else differences
    )


def _describe_work(first: Analysis, second: Analysis, figure: str) -> str:
    """Names the kinds of work in which two models differ, largest difference first."""
    a, b = _sum_by_family(first, figure), _sum_by_family(second, figure)
    changed = {k: b[k] - a[k] for k in {*a, *b} if b[k] != a[k]}
    order = sorted(changed, key=lambda k: (-abs(changed[k]), k))
    parts = [f"{k} {changed[k]:+,}" for k in order[:MAX_NAMED_KINDS]]
    further = len(order) - MAX_NAMED_KINDS
    return "; ".join(parts) + (
        f"; {further:,} more {'kind' if further == 1 else 'kinds'}" if further > 0 else ""
    )


# -- elementwise work


def _list_elementwise_differences(
    first: Analysis, second: Analysis, index: int, causes: Causes | None, idle: IdleLayers
) -> list[Difference]:
    figure, folds = "elementwise_ops", causes is not None and causes.folds
    a, b = first.info.totals.elementwise_ops, second.info.totals.elementwise_ops
    if a is None or b is None or a == b or not _have_same_inputs(first, second):
        return _list_work_differences(first, second, index, figure, idle)
    first_work, second_work = _sum_by_family(first, figure), _sum_by_family(second, figure)
    amounts: list[tuple[str, int]] = []
    if folds:
        amounts.append((_FOLDED, second_work["batch norm"] - first_work["batch norm"]))
        biases = _sum_bias_work(second) - _sum_bias_work(first)
        if second_work["convolution"] - first_work["convolution"] == biases:
            amounts.append((_BIASES, biases))
    explained_kinds = {"batch norm", "convolution"} if folds else set()
    if not first_work["quantization"] or not second_work["quantization"]:
        amounts.append((_QUANTIZED, second_work["quantization"] - first_work["quantization"]))
        explained_kinds.add("quantization")
    if causes is not None:
        amounts += _list_omitted_bias_work(first, second, causes, explained_kinds)
    amounts += find_rewrites(first, second, explained_kinds, idle.paths)
    amounts += list_size_work(first, second)
    amounts += list_tile_work(first, second, figure)
    amounts += list_partial_sums(first, second)
    amounts += idle.list_amounts(figure)
    differences = [Difference(index, figure, n, n, why) for why, n in amounts if n]
    unexplained = b - a - sum(n for _, n in amounts)
    if unexplained:
        differences.append(Difference(index, figure, unexplained, 0, _describe_work(first, second, figure)))
    return differences


_FOLDED = "scale and shift of batch normalizations that are folded into the weights before them"
_QUANTIZED = "values that are quantized or dequantized: a scale, and a shift"
_OMITTED_BIASES = "biases of zeros that only one model adds: one addition for every output"
_BIASES = "biases of convolutions that come with folding: one addition for every output"


def _list_omitted_bias_work(
    first: Analysis, second: Analysis, causes: Causes, explained_kinds: Collection[str]
) -> list[tuple[str, int]]:
    """Returns the additions of biases of zeros that one model omits, with the reason.

    A model may share one tensor of zeros instead. Only if as many products lack a bias as there are such
    biases, the products without a bias are those whose bias is zeros.
    """
    amounts = []
    for sign, tensors in causes.zero_biases.items():
        owner_model, other_model = (first, second) if sign < 0 else (second, first)
        for family in {find_family(t.owners[0].kind) for t in tensors} - set(explained_kinds):
            owners = {
                o.path: o for t in tensors for o in t.owners if find_family(o.kind) == family and o.macs
            }
            missing = len(_list_biased(owner_model, family)) - len(_list_biased(other_model, family))
            if owners and missing == len(owners):
                work = sum(owner.elementwise_ops or 0 for owner in owners.values())
                amounts.append((_OMITTED_BIASES, sign * work))
    return amounts


def _list_biased(analysis: Analysis, family: str) -> list[Layer]:
    """Returns the products of a family that store more than their weight."""
    return [
        layer
        for layer in list_counted_layers(analysis)
        if find_family(layer.kind) == family and layer.macs and len(layer.weights) > 1
    ]


def _sum_bias_work(analysis: Analysis) -> int:
    """Returns the additions of convolution biases, which are the only elementwise work of a convolution."""
    return sum(layer.elementwise_ops or 0 for layer in _list_biased(analysis, "convolution"))


def _count_calls(analysis: Analysis, name: str) -> int:
    """Returns the number of operators of one kind of work."""
    return sum(layer.calls for layer in list_counted_layers(analysis) if find_family(layer.kind) == name)


# -- operators


def _list_operator_differences(
    first: Analysis, second: Analysis, index: int, folds: bool
) -> list[Difference]:
    """Returns the differences in operators that only one model needs, with the reason."""
    differences: list[Difference] = []
    if is_graphless(first) or is_graphless(second):
        return differences
    for name, (fewer, surplus) in _DROPPED.items():
        delta = _count_calls(second, name) - _count_calls(first, name)
        if delta and (folds or name != "batch norm"):
            differences.append(Difference(index, "operators", delta, delta, fewer if delta < 0 else surplus))
    return differences


_DROPPED = {
    "dropout or identity": (
        "dropout and identity left out: they do nothing in evaluation mode",
        "dropout and identity kept: they do nothing in evaluation mode",
    ),
    "batch norm": (
        "batch normalizations folded into the weights of the layer before them",
        "batch normalizations that are folded into other weights in the first",
    ),
    "constant": (
        "constants that are nodes in the first",
        "constants that an export writes as nodes: sizes, mostly",
    ),
}
"""Kinds of work that a model can omit: messages for fewer and for more of them than in the first model."""


def _count_operators(analyses: Sequence[Analysis]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns the number of operators by type, or by kind of work if the models have different formats."""
    formats = {a.info.model.format for a in analyses}
    all_graphless = all(map(is_graphless, analyses))
    has_common_types = formats <= set(_SAME_KINDS) or len(formats) == 1 or all_graphless
    counts = []
    for analysis in analyses:
        count: Counter[str] = Counter()
        # if one model is a graph, the tensor types of a model without a graph are not operators
        listed = list_counted_layers(analysis) if all_graphless or not is_graphless(analysis) else []
        for layer in listed:
            count[layer.kind if has_common_types else find_family(layer.kind)] += layer.calls
        counts.append(count)
    names = sorted({n for c in counts for n in c}, key=lambda n: (-max(c[n] for c in counts), n))
    return tuple((name, tuple(c[name] for c in counts)) for name in names if any(c[name] for c in counts))
