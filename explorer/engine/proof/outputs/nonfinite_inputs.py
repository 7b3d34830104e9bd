"""Compares what two models do with NaN, infinity, -0, huge and tiny numbers in their inputs.

Random inputs are finite. A Relu and a Where that replaces numbers below 0 agree on all of them, but only the
Relu keeps NaN. The square root of a square is the absolute value, unless the square overflows or underflows.
So a changed region also runs with such numbers, and if its sides differ, the whole models do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.outputs.run import is_identical, run_in_float64
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession

Feeds = Mapping[str, Array]
Ordinal = Literal["", "first", "second"]
"""Name of one of two models, or '' for none."""

NONFINITE: Mapping[str, tuple[float, ...]] = {
    "NaN": (np.nan,),
    "unordered": (np.nan,),
    "infinite": (np.inf, -np.inf),
    "negative zero": (-0.0,),
}
"""Numbers that single elements get, by kind; 'unordered' is NaN for operators that sort. For -0, results such
as 1 / -0 differ."""

EXTREME: Mapping[str, float] = {"huge": 1e22, "tiny": 1e-25}
"""Magnitudes that all elements get, by kind. Their squares leave the range of float32."""

_INPUT_TEXTS = {
    "infinite": "infinity",
    "negative zero": "-0",
    **{kind: f"of the size of {number:.0e}" for kind, number in EXTREME.items()},
}
"""Text for the changed inputs in a message, by kind. The text of the other kinds is NaN."""

_CLOSE = 1e-2
"""Difference, relative to the largest magnitudes, up to which a result is close to the float64 result."""

_SHARE = 20
"""At least one of this many elements must differ; a sine of huge numbers, for example, is close by chance."""

_UNDEFINED = ("unordered",)
"""Kinds for which ONNX defines no result: it does not say where NaN is in an order, as in a TopK."""

_ORDERS = ("ArgMax", "ArgMin", "TopK", "Hardmax", "Unique", "NonMaxSuppression", "MaxPool", "GlobalMaxPool")
"""Operators that depend on the order of numbers."""

_MAX_ALONE = 4
"""Largest number of inputs that get nonfinite numbers one at a time."""

_MAX_EVALUATOR_DIFFERENCE = 1e-2
"""Relative and absolute difference up to which two evaluators agree."""

_FLOATS = ("float16", "float32", "float64", "bfloat16")


class NonfiniteDifference(Struct, frozen=True):
    """An output that differs in onnxruntime if inputs contain NaN, infinity, -0, huge or tiny numbers.

    If onnxruntime refuses one of the models, the first output stands for all, and no elements are counted.

    Attributes:
        kind: Kind of the inputs, a key of `NONFINITE` or `EXTREME`.
        output: Name of the output in the original.
        differing, size: Number of elements that differ, and of all elements.
        is_defined: Whether the outputs also differ as ONNX defines the operators. The kernels of onnxruntime
            for recurrent layers lose NaN and tiny numbers, for example.
        refusing: 'first' or 'second' if onnxruntime refuses only that model, such as a Binarizer of NaN.
    """

    kind: str
    output: str
    differing: int
    size: int
    is_defined: bool = False
    refusing: Ordinal = ""

    def __str__(self) -> str:
        inputs = _INPUT_TEXTS.get(self.kind, "NaN")
        if self.refusing:
            differ = ", and by definition the outputs differ" if self.is_defined else ""
            return f"where an input is {inputs}, onnxruntime cannot run the {self.refusing} model{differ}"
        count = (
            f"{self.differing:,} of {many_text(self.size, 'element')} of output '{printable(self.output)}'"
        )
        kernels = "" if self.is_defined else " in the kernels of onnxruntime"
        return f"where an input is {inputs}, {count} differ between the models{kernels}"


def insert_nonfinite(feeds: Feeds, number: float, seed: int) -> Iterator[dict[str, Array]]:
    """Replaces about one of eight floats by `number`: in all inputs, then in one input at a time.

    Of many inputs, only the first `_MAX_ALONE` are changed one at a time.
    """
    names = [name for name, value in feeds.items() if value.dtype.name in _FLOATS and value.size]
    groups = [names] if names else []
    if len(names) > 1:
        groups += [[name] for name in names[:_MAX_ALONE]]
    for group in groups:
        generator = np.random.default_rng(seed)
        changed = dict(feeds)
        for name in group:
            is_chosen = np.asarray(generator.random(feeds[name].shape) < 1 / 8)
            is_chosen.flat[int(generator.integers(is_chosen.size))] = True
            changed[name] = np.where(is_chosen, np.asarray(number, feeds[name].dtype), feeds[name])
        yield changed


def _sum_over_elements(count: Callable[[Array, Array], int], first: Any, second: Any) -> int:
    """Counts the differences of two results of which at least one is a sequence, a map or absent.

    Results with different numbers of elements, or of different kinds, have one difference.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return 1
        first, second = [*first.values()], [second[key] for key in first]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return sum(count(a, b) for a, b in zip(first, second, strict=True))
    return int(not is_identical(first, second))


def count_nonfinite_differences(first: Array, second: Array) -> int:
    """Counts the elements that are NaN, or a certain infinity, in only one of two results.

    Of results that are not floats, all differing elements count; of results with different shapes, all
    elements. The elements of sequences and maps are compared one by one.
    """
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return _sum_over_elements(count_nonfinite_differences, first, second)
    if first.shape != second.shape:
        return max(first.size, second.size)
    if first.dtype.name not in _FLOATS or second.dtype.name not in _FLOATS:
        return int(np.count_nonzero(first != second))
    if "bfloat16" in (first.dtype.name, second.dtype.name) or first.dtype != second.dtype:
        first, second = first.astype(np.float64), second.astype(np.float64)
    is_infinite = np.isinf(first) | np.isinf(second)
    return int(np.count_nonzero((np.isnan(first) != np.isnan(second)) | (is_infinite & (first != second))))


def count_differences(first: Array, second: Array) -> int:
    """Counts the elements that no rounding explains: NaN or infinite in only one result, or not close.

    Finite elements count too, because a comparison with NaN may choose between two finite numbers.
    """
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return _sum_over_elements(count_differences, first, second)
    count = count_nonfinite_differences(first, second)
    if first.shape != second.shape or {first.dtype.kind, second.dtype.kind} != {"f"}:
        return count
    first, second = first.astype(np.float64), second.astype(np.float64)
    is_finite = np.isfinite(first) & np.isfinite(second)
    return count + int(np.count_nonzero(is_finite & ~_is_close(first, second)))


def draw_extreme(feeds: Feeds, number: float, seed: int) -> dict[str, Array]:
    """Replaces all float32 and float64 numbers by normal random numbers times `number`."""
    generator = np.random.default_rng(seed)
    return {
        name: np.asarray(generator.standard_normal(value.shape) * number).astype(value.dtype)
        if value.dtype.name in ("float32", "float64")
        else value
        for name, value in feeds.items()
    }


def count_extreme_differences(
    first: Array, second: Array, compute_reference: Callable[[], Array | None]
) -> int:
    """Counts the elements that are close to the float64 result in only one of two results.

    Both results may be far from it: a fused normalization and its single operators overflow differently.

    Args:
        first: Result of the original.
        second: Result of the other model.
        compute_reference: Computes the original's float64 result, or None if it has none.

    Returns:
        The number of elements; 0 if it is a small share of all, if there is no float64 result, or if the
        results are no tensors.
    """
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return 0
    if first.shape != second.shape or not first.size or {first.dtype.kind, second.dtype.kind} != {"f"}:
        return 0
    first, second = first.astype(np.float64), second.astype(np.float64)
    if bool(np.all(_is_close(first, second))):
        return 0
    reference = compute_reference()
    if reference is None or np.shape(reference) != first.shape:
        return 0
    count = int(np.count_nonzero(_is_close(first, reference) != _is_close(second, reference)))
    return count if count * _SHARE >= first.size else 0


def _is_close(value: Array, reference: Array) -> Array:
    """Returns for each element whether it is close to the reference, relative to the element or the RMS."""
    finite = np.abs(reference[np.isfinite(reference)]).astype(np.float64)
    largest = float(finite.max(initial=0.0))
    scale = largest * float(np.sqrt(np.mean((finite / largest) ** 2))) if largest else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        is_near = np.abs(value - reference) <= _CLOSE * np.maximum(np.abs(reference), scale)
    return np.asarray(
        (is_near & np.isfinite(reference)) | (value == reference) | (np.isnan(value) & np.isnan(reference))
    )


def list_kinds(nodes: Iterable[Node]) -> list[str]:
    """Lists the kinds of numbers to insert into the inputs of these nodes."""
    nan = "unordered" if any(node.op in _ORDERS for node in nodes) else "NaN"
    return [nan, "infinite", "negative zero"]


def compare_nonfinite(
    models: tuple[Model, Model],
    names: Mapping[str, str],
    output_names: Sequence[tuple[str, str]],
    feeds: Feeds,
    kinds: Collection[str],
    seed: int,
) -> Iterator[NonfiniteDifference]:
    """Runs two models on unusual numbers, and yields at most one output that differs for each kind.

    Args:
        models: Original, and the model to compare with it.
        names: Name of the second model's input by the name of the original's input.
        output_names: Names of each output in the two models.
        feeds: Finite inputs, by the original's names.
        kinds: Kinds of numbers to insert.
        seed: Seed that chooses the elements.
    """
    if not kinds:
        return
    first, second = (RuntimeSession(model, label="a model", optimize=False) for model in models)
    expected = first.run(feeds), second.run({names[name]: value for name, value in feeds.items()})
    for kind in (kind for kind in kinds if kind in EXTREME):
        changed = draw_extreme(feeds, EXTREME[kind], seed)
        try:
            old = first.run(changed)
            new = second.run({names[name]: value for name, value in changed.items()})
        except BadModel:
            continue
        differences = []
        for before, after in output_names:
            pair = old[before], new[after]
            if all(isinstance(result, np.ndarray) for result in pair):
                compute_reference = cache(partial(_compute_reference, models[0], changed, before))
                count = count_extreme_differences(*pair, compute_reference)
                if count:
                    is_defined = _rounds_differently(
                        models, names, (before, after), changed, compute_reference
                    )
                    differences.append(
                        NonfiniteDifference(kind, before, count, old[before].size, is_defined=is_defined)
                    )
        if differences:
            yield max(differences, key=lambda difference: difference.is_defined)
    for kind in (kind for kind in kinds if kind in NONFINITE):
        refusal: NonfiniteDifference | None = None
        for changed in (feed for number in NONFINITE[kind] for feed in insert_nonfinite(feeds, number, seed)):
            first_results = _run_or_refuse(first, changed)
            second_results = _run_or_refuse(second, {names[name]: value for name, value in changed.items()})
            if first_results is None or second_results is None:
                if first_results is not second_results:
                    is_defined = kind not in _UNDEFINED and _differs_by_definition(
                        models, names, output_names, (feeds, expected), changed
                    )
                    refusing: Ordinal = "first" if first_results is None else "second"
                    refusal = NonfiniteDifference(kind, output_names[0][0], 0, 0, is_defined, refusing)
                    if is_defined:
                        break
                continue
            pairs = [(before, first_results[before], second_results[after]) for before, after in output_names]
            differing = [
                (NonfiniteDifference(kind, before, count, first_result.size), first_result, second_result)
                for before, first_result, second_result in pairs
                if isinstance(first_result, np.ndarray) and isinstance(second_result, np.ndarray)
                if (count := count_differences(first_result, second_result))
            ]
            if not differing:
                continue
            is_defined = kind not in _UNDEFINED and _differs_by_definition(
                models, names, output_names, (feeds, expected), changed
            )
            if not is_defined:  # rounding may put finite results of kernels on different sides of a step
                differing = [entry for entry in differing if count_nonfinite_differences(*entry[1:])]
            if differing:
                refusal = None
                yield replace(differing[0][0], is_defined=is_defined)
                break
        if refusal is not None:
            yield refusal


def _run_or_refuse(session: RuntimeSession, feeds: Feeds) -> dict[str, Array] | None:
    """Runs a model, or returns None if onnxruntime refuses the inputs."""
    try:
        return session.run(feeds)
    except BadModel:
        return None


def _compute_reference(model: Model, feeds: Feeds, output: str) -> Array | None:
    """Computes an output in float64, or None if the model has no float64 run."""
    results, _ = run_in_float64(model, [feeds], None, lambda: None)
    return np.asarray(results[0][output]) if results else None


def _rounds_differently(
    models: tuple[Model, Model],
    names: Mapping[str, str],
    output_names: tuple[str, str],
    feeds: Feeds,
    compute_reference: Callable[[], Array | None],
) -> bool:
    """Whether an output differs if each operator's result is exact but rounded to its type.

    Also True if a model cannot run in float64.
    """
    second_feeds = {names[name]: value for name, value in feeds.items()}
    results = []
    for model, inputs, output in zip(models, (feeds, second_feeds), output_names, strict=True):
        computed, _ = run_in_float64(model, [inputs], None, lambda: None, rounds_results=True)
        if not computed:
            return True
        results.append(np.asarray(computed[0][output]))
    return bool(count_extreme_differences(results[0], results[1], compute_reference))


def _differs_by_definition(
    models: tuple[Model, Model],
    names: Mapping[str, str],
    output_names: Sequence[tuple[str, str]],
    finite: tuple[Feeds, Sequence[Mapping[str, Array]]],
    feeds: Feeds,
) -> bool:
    """Whether outputs differ as ONNX defines the operators; False if a model cannot run in float64.

    Args:
        models: Original, and the model to compare with it.
        names: Name of the second model's input by the name of the original's input.
        output_names: Names of each output in the two models.
        finite: Finite inputs, and the outputs of both models for them. The evaluator of ONNX lacks some
            attributes, so it counts only if it agrees with the runtime on these inputs.
        feeds: Inputs with NaN or infinity.
    """
    finite_feeds, expected = finite
    results: list[Mapping[str, Array]] = []
    for index, model in enumerate(models):
        draws = [
            {names[name] if index else name: value for name, value in inputs.items()}
            for inputs in (finite_feeds, feeds)
        ]
        computed, _ = run_in_float64(model, draws, None, lambda: None)
        if not computed or not _agrees(expected[index], computed[0]):
            return False
        results.append(computed[1])
    return any(count_differences(results[0][before], results[1][after]) for before, after in output_names)


def _agrees(expected: Mapping[str, Array], computed: Mapping[str, Array]) -> bool:
    """Whether the float64 results are nearly those of the runtime."""
    return all(
        isinstance(value, np.ndarray)
        and value.shape == computed[name].shape
        and np.allclose(
            value.astype(np.float64),
            computed[name],
            rtol=_MAX_EVALUATOR_DIFFERENCE,
            atol=_MAX_EVALUATOR_DIFFERENCE,
            equal_nan=True,
        )
        for name, value in expected.items()
    )
