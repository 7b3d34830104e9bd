"""Runs both models in full in onnxruntime and compares their outputs (step 4 of `proof.proof`).

This step needs no tiling plan, so it can compare any two ONNX files. Each set of inputs is a draw. The
original also runs in float64. Its difference from float64 is the noise floor: the other model's difference
from float64 may exceed it only by what rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled
from explorer.base.units import many_text, printable, shape_text
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import DTYPES, Model, Value
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.progress import Cancel
from explorer.engine.proof.compare import OutputComparison, compute_limit, get_unit_roundoff
from explorer.engine.proof.float64 import evaluator
from explorer.engine.proof.outputs.tolerance import judge_within
from explorer.engine.proof.structure.probes import Pair
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession
from explorer.facts import OutputEvidence
from explorer.facts.verification import Tolerance

Feeds = Mapping[str, Array]

_MAX_LISTED_NAMES = 4
"""Largest number of names that a message lists."""

_MAX_MAGNIFICATION = 64.0
_MAX_PROVED_DIFFERENCE = 0.02
"""Limits of an output's RMS difference if all parts are proved: its ratio to the output's sensitivity (see
`ModelOutputs`), and its ratio to the output's size. The output fails only beyond both limits."""


class InputMismatch(Exception):
    """Two models whose inputs or outputs do not match. The text says how they differ.

    Attributes:
        mismatched_inputs: Pair of inputs whose shapes differ, or None for another difference.
    """

    def __init__(self, text: str, mismatched_inputs: tuple[Value, Value] | None = None) -> None:
        super().__init__(text)
        self.mismatched_inputs = mismatched_inputs


class ModelOutputs(Struct, frozen=True):
    """The outputs of one model.

    Attributes:
        names: Names of the outputs.
        draws: Outputs of each draw, in the order of `names`.
        sensitivity: RMS change of each output when the first draw's inputs change by one unit in the last
            place. The inputs of a quantized model change by enough to change integers, and an unoptimized run
            counts too. Empty if not measured.
        level: Highest graph optimization with which the runtime loads the model, or '' for full optimization.
    """

    names: tuple[str, ...]
    draws: tuple[tuple[Any, ...], ...]
    sensitivity: tuple[float, ...] = ()
    level: str = ""


class Noise(Struct, frozen=True):
    """Facts about rounding errors that decide how outputs are judged.

    Attributes:
        reference: 'float64', or the reason why there are no float64 results.
        depth: Number of roundings on a path through the model. It is used without float64 results.
        growth: Factor by which the other model may round more, because of longer sums.
        sensitivity: RMS change of one output (see `ModelOutputs`).
        independent: Number of independent errors by output name of the original (see `independence`).
        both: Whether neither model is the original, so that each must be as accurate as the other.
        is_proved: Whether all parts that the outputs depend on are proved. Then only a difference beyond all
            rounding fails.
        tolerance: Difference that the user allows, or None. It replaces all other criteria.
        drawn: Names of the outputs that depend on random numbers ("drawn"), of the original and of the other
            model.
        has_steps: Whether a rounding may move a value across a threshold (see `has_steps`).
    """

    reference: str
    depth: int
    growth: float = 1.0
    sensitivity: float = 0.0
    independent: Mapping[str, int] = {}
    both: bool = False
    is_proved: bool = False
    tolerance: Tolerance | None = None
    drawn: tuple[Collection[str], Collection[str]] = ((), ())
    has_steps: bool = False


def pair_inputs(before: Model, after: Model, interchangeable: Collection[str] = ()) -> dict[str, str]:
    """Returns the input name of `after` for each input name of `before`, paired by name or else by position.

    Args:
        before: First model.
        after: Second model.
        interchangeable: Element types that may differ between paired inputs.

    Raises:
        InputMismatch: The number, types or shapes of the inputs differ.
    """
    first, second = before.graph.required_inputs, after.graph.required_inputs
    if len(first) != len(second):
        raise InputMismatch(f"one model takes {many_text(len(first), 'input')}, the other {len(second)}")
    by_name = {v.name: v for v in second}
    has_same_names = all(v.name in by_name for v in first)
    pairs = [(v, by_name[v.name] if has_same_names else second[i]) for i, v in enumerate(first)]
    for a, b in pairs:
        same_type = a.dtype == b.dtype or (a.dtype in interchangeable and b.dtype in interchangeable)
        if not same_type or not _can_match(a, b):
            text = f"input {_describe_declaration(a)} is {_describe_declaration(b)} in the other model"
            raise InputMismatch(text, mismatched_inputs=(a, b) if same_type else None)
    return {a.name: b.name for a, b in pairs}


def check_interface(before: Model, after: Model) -> None:
    """Checks that a caller can pass inputs to both models alike, by position and as optional inputs.

    Raises:
        InputMismatch: The inputs have another order, which matters to callers that pass them by position. Or
            a stored tensor is an optional input that one model reads, and a constant or missing in the other.
    """
    first, second = ([v.name for v in m.graph.required_inputs] for m in (before, after))
    if any(name in first and first.index(name) != index for index, name in enumerate(second)):
        names_text = ", ".join(f"'{printable(name)}'" for name in second[:_MAX_LISTED_NAMES])
        raise InputMismatch(f"the inputs have another order: {names_text}")
    for model, counterpart, ordinal in ((before, after, "first"), (after, before, "second")):
        for name in sorted(model.defaults - counterpart.defaults):
            if any(name in list_reads(node) for node in model.graph.nodes):
                raise InputMismatch(
                    f"'{printable(name)}' is an input that a caller may give in the {ordinal} model,"
                    " and a constant or missing in the other"
                )


def pair_outputs(before: Model, after: Model) -> list[Pair]:
    """Pairs the outputs by position.

    Raises:
        InputMismatch: The models have different numbers of outputs, or another order of the same outputs.
    """
    first, second = ([v.name for v in m.graph.outputs] for m in (before, after))
    if len(first) != len(second):
        missing = [f"'{printable(n)}'" for n in (*first, *second) if (n in first) != (n in second)]
        names_text = f": only one of them has {', '.join(missing[:_MAX_LISTED_NAMES])}" if missing else ""
        raise InputMismatch(
            f"one model has {many_text(len(first), 'output')}, the other {len(second)}{names_text}"
        )
    if first != second and set(first) == set(second):
        names_text = ", ".join(f"'{printable(n)}'" for n in second[:_MAX_LISTED_NAMES])
        raise InputMismatch(f"the outputs have another order: {names_text}")
    return [Pair(a, b) for a, b in zip(first, second, strict=True)]


def _can_match(a: Value, b: Value) -> bool:
    """Whether two inputs can have the same shape."""
    if a.shape is None or b.shape is None:
        return True
    if len(a.shape) != len(b.shape):
        return False
    return all(
        d == e or not isinstance(d, int) or not isinstance(e, int)
        for d, e in zip(a.shape, b.shape, strict=True)
    )


def list_size_remarks(before: Model, after: Model, names: Mapping[str, str]) -> Iterator[str]:
    """Yields a remark for each input with a size that only one model leaves open.

    Args:
        before: First model.
        after: Second model.
        names: Input names of `after` by input name of `before`.
    """
    others = {value.name: value for value in after.graph.required_inputs}
    for value in before.graph.required_inputs:
        shape, other_shape = value.shape, others[names[value.name]].shape
        if shape is None or other_shape is None or len(shape) != len(other_shape):
            continue
        pairs = [(isinstance(d, int), isinstance(e, int)) for d, e in zip(shape, other_shape, strict=True)]
        for ordinal, fixed in (("first", (True, False)), ("second", (False, True))):
            if fixed in pairs:
                yield f"only the {ordinal} model fixes a size of input '{printable(value.name)}'"


def _describe_declaration(value: Value) -> str:
    return f"'{printable(value.name)}' {value.dtype or '?'} {shape_text(value.shape)}"


def run_all(
    model: Model,
    feeds: Sequence[Feeds],
    label: str,
    step: Callable[[], None],
    *,
    measure_sensitivity: bool = False,
    threads: int | None = None,
    sparing: bool = True,
) -> ModelOutputs:
    """Runs a model on every draw, in a session that ends with this call.

    Args:
        model: Model to run.
        feeds: Input arrays by name, for each draw.
        label: Name of the model in error messages.
        step: Function that is called before each draw.
        measure_sensitivity: Whether to run the first draw again with slightly changed inputs, and a quantized
            model also without graph optimization.
        threads: Number of threads for the operators, or None for onnxruntime's default.
        sparing: Whether to save memory (see `RuntimeSession`).

    Raises:
        BadModel: onnxruntime cannot load or run the model.
    """
    session = RuntimeSession(model, label=label, threads=threads, sparing=sparing)

    def call(draw: Feeds) -> tuple[Any, ...]:
        results = session.run(draw)
        return tuple(results[name] for name in session.outputs)

    if not measure_sensitivity or not is_quantized(model):
        perturb = shift_by_one_ulp if measure_sensitivity else None
        outputs = run_each(call, session.outputs, feeds, step, perturb=perturb)
        return replace(outputs, level=session.level)
    # A rounding of 1e-7 sometimes decides between two integers, but an input change of that size seldom
    # passes the first quantizer. So the input changes by more, and an unoptimized run, which adds in another
    # order, counts, too.
    outputs = run_each(call, session.outputs, feeds, step, perturb=_shift_slightly)
    unoptimized = RuntimeSession(model, label=label, optimize=False, threads=threads).run(feeds[0])
    changes = (
        measure_rms_change(output, unoptimized[name])
        for output, name in zip(outputs.draws[0], outputs.names, strict=True)
    )
    sensitivity = tuple(map(max, outputs.sensitivity, changes))
    return replace(outputs, sensitivity=sensitivity, level=session.level)


_SMALL_CHANGE = 2.0**-14
"""Relative change of an input that a quantizer reads, large enough to change some of its integers."""


def _shift_slightly(feeds: Feeds) -> Feeds:
    """Changes float inputs by the relative amount `_SMALL_CHANGE`."""
    return {
        name: value if value.dtype.kind != "f" else (value * (1 + _SMALL_CHANGE)).astype(value.dtype)
        for name, value in feeds.items()
    }


_QUANTIZER_OPERATORS = ("QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear")


def is_quantized(model: Model) -> bool:
    """Whether the model has quantizers, which may turn a rounding into a step between two integers."""
    return any(node.op in _QUANTIZER_OPERATORS for node in model.graph.nodes)


_THRESHOLD_OPERATORS = frozenset(
    (
        *_QUANTIZER_OPERATORS,
        *("QLinearConv", "QLinearMatMul", "Round", "Floor", "Ceil", "Sign", "Mod"),
        *("ArgMax", "ArgMin", "TopK", "Hardmax", "NonMaxSuppression", "NonZero", "Unique"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
    )
)
"""Operators whose output may jump when a rounding moves an input across a threshold."""


def has_steps(model: Model) -> bool:
    """Whether a rounding may move a value across a threshold. Bodies and functions are included."""
    return any(node.op in _THRESHOLD_OPERATORS for node in list_all_nodes(model, model.graph.nodes))


def run_each(
    call: Callable[[Feeds], Sequence[Any]],
    names: Sequence[str],
    feeds: Sequence[Feeds],
    step: Callable[[], None],
    *,
    perturb: Callable[[Feeds], Feeds] | None = None,
) -> ModelOutputs:
    """Runs a model on every draw through any function.

    Args:
        call: Function that runs the model on input arrays by name.
        names: Names of the model's outputs.
        feeds: Input arrays by name, for each draw.
        step: Function that is called before each draw.
        perturb: Function that changes inputs slightly, or None. The first draw also runs with changed inputs.
    """
    draws = []
    for draw in feeds:
        step()
        draws.append(tuple(call(draw)))
    if perturb is None:
        return ModelOutputs(tuple(names), tuple(draws))
    pairs = zip(draws[0], call(perturb(feeds[0])), strict=True)
    return ModelOutputs(tuple(names), tuple(draws), tuple(measure_rms_change(a, b) for a, b in pairs))


def is_judged_by_float64(evidence: OutputEvidence) -> bool:
    """Whether an output is float32 and was judged by its float64 result alone, without its sensitivity.

    For types narrower than float32, the sensitivity is the minimum noise floor (see `OutputComparison`).
    """
    return evidence.max_before is not None and evidence.dtype == "float32"


def shift_by_one_ulp(feeds: Feeds) -> Feeds:
    """Changes each float input by one unit in the last place."""
    return {name: _shift_floats(value) for name, value in feeds.items()}


def measure_rms_change(old: Any, new: Any) -> float:
    """Computes the RMS difference of the finite elements of two float outputs.

    The result is 0 for other types and for different shapes.
    """
    if not isinstance(old, np.ndarray) or old.dtype.kind != "f" or old.shape != new.shape:
        return 0.0
    figures = OutputComparison(0.0, has_bins=False)
    figures.add(old, new, None)
    return math.sqrt(figures.mse or 0.0)


def _shift_floats(value: Array) -> Array:
    """Changes floats by one unit in the last place, up and down in turn. Other types are unchanged."""
    if value.dtype.kind != "f":
        return value
    towards = np.where(np.arange(value.size) % 2, np.inf, -np.inf).reshape(value.shape)
    return np.asarray(np.nextafter(value, towards.astype(value.dtype)))


def run_in_float64(
    model: Model,
    feeds: Sequence[Feeds],
    cancel: Cancel,
    step: Callable[[], None],
    *,
    rounds_results: bool = False,
) -> tuple[list[dict[str, Array]], str]:
    """Runs every draw in float64.

    Args:
        model: Model to run.
        feeds: Input arrays by name, for each draw.
        cancel: Function that returns True to cancel.
        step: Function that is called before each draw.
        rounds_results: Whether the result of each operator is rounded to its own type.

    Returns:
        The results by output name for each draw, and 'float64'. Or no results, and the reason.

    Raises:
        Cancelled: `cancel` returned True.
    """
    results = []
    for draw in feeds:
        step()
        try:
            results.append(evaluator.run(model, draw, cancel, rounds_results=rounds_results))
        except evaluator.NoReference as error:
            return [], f"none: {error}"
        except Cancelled:
            raise
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError, BadModel) as error:
            return [], f"none: the float64 run failed: {printable(' '.join(str(error).split()))[:120]}"
    return results, "float64"


def compare(
    before: ModelOutputs,
    after: ModelOutputs,
    references: Sequence[Mapping[str, Array]],
    noise: Noise,
    note: str = "",
) -> tuple[OutputEvidence, ...]:
    """Compares all outputs of two models.

    Args:
        before: Outputs of the original.
        after: Outputs of the other model. They are paired by name, or by position if the names differ.
        references: Float64 results of the first draws, by the original's output names. Draws without float64
            results are judged by the noise of the others.
        noise: Facts about rounding errors.
        note: Prefix of the reasons that compare numbers; reasons about types and shapes do not have it.

    Returns:
        Evidence for every output.
    """
    order = _pair_positions(before.names, after.names)
    results = []
    for index, name in enumerate(before.names):
        old = [draw[index] for draw in before.draws]
        new = [draw[order[index]] for draw in after.draws]
        exact = [r.get(name) for r in references] + [None] * (len(old) - len(references))
        sensitivity = before.sensitivity[index] if before.sensitivity else 0.0
        evidence = _compare_output(name, old, new, exact, replace(noise, sensitivity=sensitivity), note)
        has_same_shapes = all(np.shape(a) == np.shape(b) for a, b in zip(old, new, strict=True))
        is_random = name in noise.drawn[0] or after.names[order[index]] in noise.drawn[1]
        if is_random and has_same_shapes and not evidence.equal:
            evidence = _mark_random(evidence, noise)
        if noise.tolerance is not None:
            evidence = judge_within(evidence, old, new, noise.tolerance)
        results.append(evidence)
    return tuple(results)


def _pair_positions(names: Sequence[str], other_names: Sequence[str]) -> Sequence[int]:
    """Returns the position of each output in the other model: by name, or its own if the names differ."""
    if set(names) == set(other_names):
        return [other_names.index(name) for name in names]
    return range(len(names))


def is_within_rounding(evidence: OutputEvidence, noise: Noise) -> bool:
    """Whether the roundings on a path through the model (`noise.depth`) explain the outputs' difference."""
    limit = compute_limit(get_unit_roundoff(evidence.dtype), noise.depth, noise.growth)
    return evidence.relative_rms is not None and evidence.relative_rms <= limit


def fail_irreproducible(
    evidence: Sequence[OutputEvidence], first: ModelOutputs, second: ModelOutputs, label: str, noise: Noise
) -> tuple[OutputEvidence, ...]:
    """Fails outputs that differ by more than rounding between two runs of one model on the same inputs.

    Args:
        evidence: Evidence for every output.
        first: Outputs of a run of one of the two models.
        second: Outputs of another run of this model.
        label: Name of this model in the reason.
        noise: Facts about rounding errors.
    """
    results = []
    positions = _pair_positions([output.name for output in evidence], first.names)
    for output, position in zip(evidence, positions, strict=True):
        old, new = first.draws[0][position], second.draws[0][position]
        repeat = _compare_output(output.name, [old], [new], [None], noise, "")
        if not (output.drawn or repeat.equal or is_within_rounding(repeat, noise)):
            gap_text = "" if repeat.max_abs is None else f" (largest difference {repeat.max_abs:.1e})"
            reason = f"two runs of {label} on the same inputs give different results{gap_text}"
            output = replace(
                output, passed=False, irreproducible=True, reason=reason, limit_share=None, stepped=False
            )
        results.append(output)
    return tuple(results)


def _mark_random(evidence: OutputEvidence, noise: Noise) -> OutputEvidence:
    """Marks an output as random. A difference between two runs of it shows nothing.

    The output passes, because all parts that it depends on are proved or tested one by one. An output of
    torch does not pass, because its parts are not proved.
    """
    gap_text = "" if evidence.max_abs is None else f" (largest difference {evidence.max_abs:.1e})"
    reason = f"it depends on random numbers, which differ in each run{gap_text}"
    return replace(
        evidence, drawn=True, passed=not noise.both, reason=reason, limit_share=None, stepped=False
    )


def build_empty_evidence(
    name: str, dtype: str, shape: tuple[int, ...], reason: str, *, passed: bool = False
) -> OutputEvidence:
    """Builds evidence without figures, for two outputs that cannot be subtracted."""
    return OutputEvidence(
        name=name,
        dtype=dtype,
        shape=shape,
        reference="not needed: compared exactly",
        max_before=None,
        max_after=None,
        **OutputComparison(0.0).list_evidence_fields(),
        equal=passed,
        passed=passed,
        reason=reason,
    )


def _compare_output(
    name: str, old: Sequence[Any], new: Sequence[Any], exact: Sequence[Array | None], noise: Noise, note: str
) -> OutputEvidence:
    """Compares one output over all draws; `exact` has the float64 result of each draw, or None."""
    if not all(isinstance(v, np.ndarray) for v in (*old, *new)):
        is_equal = all(is_identical(a, b) for a, b in zip(old, new, strict=True))
        return build_empty_evidence(
            name, "", (), note + ("equal" if is_equal else "values differ"), passed=is_equal
        )
    is_constant = len(old) > 1 and all(v.shape == old[0].shape and not (v != old[0]).any() for v in old[1:])
    dtype, shape = get_element_type(old[0]), tuple(old[0].shape)
    for a, b in zip(old, new, strict=True):
        if a.dtype != b.dtype:
            return build_empty_evidence(name, dtype, shape, f"{a.dtype} in one model, {b.dtype} in the other")
        if a.shape != b.shape:
            reason = f"{shape_text(a.shape)} in one model, {shape_text(b.shape)} in the other"
            return build_empty_evidence(name, dtype, shape, reason)
    # numpy's kind of the float types of ml_dtypes is 'V'
    if old[0].dtype.kind not in "fV" and dtype != "bfloat16":
        differing = sum(int(np.count_nonzero(a != b)) for a, b in zip(old, new, strict=True))
        count = sum(a.size for a in old)
        reason = f"{differing:,} of {count:,} elements differ" if differing else "bit for bit equal"
        evidence = build_empty_evidence(name, dtype, shape, note + reason, passed=not differing)
        is_stepped = noise.is_proved and bool(differing)
        return replace(
            evidence, passed=noise.is_proved or evidence.passed, constant=is_constant, stepped=is_stepped
        )
    independent_count = noise.independent.get(name, old[0].size)
    share = min(independent_count / max(old[0].size, 1), 1.0)
    comparison = OutputComparison(get_unit_roundoff(dtype), noise.sensitivity, noise.growth, share)
    for a, b, reference in zip(old, new, exact, strict=True):
        if reference is not None and reference.shape == a.shape:
            comparison.add(a, b, reference)
        elif reference is None and comparison.judged:
            comparison.add_without_reference(a, b)
        else:
            comparison.add(a, b, None)
    evidence = _compare_floats(name, dtype, shape, comparison, noise, note)
    is_zero = bool(comparison.elements and not comparison.largest)
    return replace(evidence, constant=is_constant or is_zero)


def _compare_floats(
    name: str, dtype: str, shape: tuple[int, ...], comparison: OutputComparison, noise: Noise, note: str
) -> OutputEvidence:
    """Judges a float output from its comparison."""
    reference_text = noise.reference
    judged = comparison.judged and comparison.plausible
    if judged and comparison.roundoff < get_unit_roundoff("float32"):
        # the float64 run may add in the same order as the original, and then shows no rounding error
        judged, reference_text = False, "none: the output is float64 itself"
    elif comparison.judged and not judged:
        reference_text = "none: the float64 run disagrees with the original by more than rounding"
    relative = None if comparison.mse is None else comparison.mse**0.5 / (comparison.scale or 1.0)
    if noise.is_proved:
        fault = comparison.find_problem() or _describe_excess(comparison)
    else:
        fault = comparison.judge(both=noise.both) if judged else comparison.judge_by_depth(noise.depth)
    stepped = noise.has_steps and not fault and comparison.exceeds_rounding(noise.depth)
    if fault:
        reason = fault
    elif comparison.equal:
        # torchvision initializes the last layer of a ViT to zero: then equal outputs say nothing about the
        # layers before it
        is_zero = bool(comparison.elements) and not comparison.largest
        reason = "bit for bit equal, but zero throughout" if is_zero else "bit for bit equal"
    elif judged:
        original_label = "torch's" if noise.both else "the original"
        draws_note = ""
        if comparison.unreferenced_draws is not None:
            draws_note = " in the first run, which explains the others"
        reason = _describe_accuracy(
            comparison.rms_before or 0.0, comparison.rms_after or 0.0, original_label, draws_note
        )
    else:
        largest = f"largest difference {comparison.max_abs:.2e}"
        cause = "from a rounding that crossed a step" if stepped else "from rounding"
        reason = f"{largest}, {_format_relative_difference(relative)}, {cause}"
        if not noise.is_proved:
            reason += f"; no float64: {reference_text.removeprefix('none: ')}"
    if comparison.shared and not fault:
        reason += f"; {comparison.shared:,} of {comparison.size:,} elements are NaN or Inf in both"
    figures = comparison.list_evidence_fields()
    if not judged:
        figures |= {"rms_before": None, "rms_after": None}
    return OutputEvidence(
        name=name,
        dtype=dtype,
        shape=shape,
        reference=reference_text,
        max_before=comparison.max_before if judged else None,
        max_after=comparison.max_after if judged else None,
        **figures,
        equal=comparison.equal,
        passed=not fault,
        reason=note + reason,
        undefined=comparison.shared,
        relative_rms=relative,
        limit_share=None if noise.is_proved else comparison.limit_share,
        stepped=stepped,
        void=bool(fault) and comparison.is_inconclusive,
    )


def _format_relative_difference(relative: float | None) -> str:
    return f"RMS difference {relative or 0.0:.1e} of the output's RMS"


def relax_evidence(evidence: OutputEvidence, depth: int, growth: float) -> OutputEvidence:
    """Passes an output that failed by its size if `depth` roundings explain its difference.

    Any other output stays unchanged. The caller knows that stored numbers differ by a rounding each, and the
    new reason names them as the cause.
    """
    relative = evidence.relative_rms
    failed_by_size = (evidence.limit_share or 0.0) > 1.0  # not by a NaN or another shape
    if (
        not failed_by_size
        or relative is None
        or relative > compute_limit(get_unit_roundoff(evidence.dtype), depth, growth)
    ):
        return evidence
    figures = f"largest difference {evidence.max_abs:.2e}, {_format_relative_difference(relative)}"
    reason = f"{figures}, from stored numbers"
    return replace(evidence, passed=True, reason=reason, limit_share=None)


def _describe_excess(comparison: OutputComparison) -> str:
    """Describes a difference beyond all rounding, or returns ''. It is used if every part is proved."""
    rms_difference, scale = (comparison.mse or 0.0) ** 0.5, comparison.scale or 0.0
    if rms_difference <= max(_MAX_PROVED_DIFFERENCE * scale, _MAX_MAGNIFICATION * comparison.sensitivity):
        return ""
    return f"RMS difference {rms_difference:.2e} of an output of size {scale:.2e}"


def _describe_accuracy(before: float, after: float, original_label: str, draws_note: str) -> str:
    figures = f"RMS error against float64 {after:.2e}, of {original_label} {before:.2e}{draws_note}"
    if after <= 1.1 * before:  # errors within 10 % of each other count as equal
        return f"{figures}: no less accurate"
    return f"{figures}: within what rounding explains"


_WITH_ELEMENTS = (np.ndarray, list, tuple, dict)
"""Types of values that contain other values."""


def is_identical(a: Any, b: Any) -> bool:
    """Whether two values are equal bit for bit. They may be arrays, sequences, maps or absent optionals."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(is_identical(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_identical(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()
    if isinstance(a, _WITH_ELEMENTS) or isinstance(b, _WITH_ELEMENTS):
        return False  # a sequence and an array
    return bool(a == b)


def estimate_depth(model: Model) -> int:
    """Estimates the roundings on a path through the model.

    The estimate is one for each node, plus the longest axis of each float weight.
    """
    floats = {d.name for d in DTYPES.values() if "float" in d.name}
    depths = (max(t.shape, default=1) for t in model.graph.initializers.values() if t.dtype in floats)
    return len(model.graph.nodes) + sum(depths)
