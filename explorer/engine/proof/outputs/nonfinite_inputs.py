"""Compares what two models do with NaN and infinity in their inputs.

Random inputs are finite. A Relu and a Where that replaces numbers below 0 agree on all of them, but only the
Relu keeps NaN. So a changed region also runs with NaN and infinity, and if its sides differ, the whole models
do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.outputs.run import run_in_float64
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession

Feeds = Mapping[str, Array]

NONFINITE: Mapping[str, tuple[float, ...]] = {
    "NaN": (np.nan,),
    "unordered": (np.nan,),
    "infinite": (np.inf, -np.inf),
}
"""Numbers that are not finite, by kind; 'unordered' is NaN for operators that sort."""

_UNDEFINED = ("unordered",)
"""Kinds for which ONNX defines no result: it does not say where NaN is in an order, as in a TopK."""

_ORDERS = ("ArgMax", "ArgMin", "TopK", "Hardmax", "Unique", "NonMaxSuppression", "MaxPool", "GlobalMaxPool")
"""Operators that depend on the order of numbers."""

_MAX_ALONE = 4
"""Largest number of inputs that get a number that is not finite one at a time."""

_MAX_EVALUATOR_DIFFERENCE = 1e-2
"""Relative and absolute difference up to which two evaluators are taken to compute the same."""

_FLOATS = ("float16", "float32", "float64", "bfloat16")


class NonfiniteDifference(Struct, frozen=True):
    """An output that differs in onnxruntime if inputs hold NaN or infinity.

    Attributes:
        kind: Kind of the inputs, a key of `NONFINITE`.
        output: Name of the output in the original.
        differing, size: Number of elements that differ, and of all elements.
        is_defined: Whether the outputs also differ as ONNX defines the operators. The kernels of onnxruntime
            for recurrent layers lose NaN, for example.
    """

    kind: str
    output: str
    differing: int
    size: int
    is_defined: bool = False

    def __str__(self) -> str:
        inputs = "infinity" if self.kind == "infinite" else "NaN"
        count = (
            f"{self.differing:,} of {many_text(self.size, 'element')} of output '{printable(self.output)}'"
        )
        return f"where an input is {inputs}, {count} differ{'' if self.is_defined else ' in onnxruntime'}"


def insert_nonfinite(feeds: Feeds, number: float, seed: int) -> Iterator[dict[str, Array]]:
    """Replaces one of eight floats by a number that is not finite: in all inputs, then in one at a time."""
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


def count_nonfinite_differences(first: Array, second: Array) -> int:
    """Counts the elements that are NaN, or a certain infinity, in one of two results alone."""
    if first.shape != second.shape:
        return max(first.size, second.size)
    if first.dtype.name not in _FLOATS or second.dtype.name not in _FLOATS:
        return int(np.count_nonzero(first != second))
    if "bfloat16" in (first.dtype.name, second.dtype.name) or first.dtype != second.dtype:
        first, second = first.astype(np.float64), second.astype(np.float64)
    is_infinite = np.isinf(first) | np.isinf(second)
    return int(np.count_nonzero((np.isnan(first) != np.isnan(second)) | (is_infinite & (first != second))))


def list_kinds(nodes: Iterable[Node]) -> list[str]:
    """Lists the kinds of numbers to insert into the inputs of these nodes."""
    nan = "unordered" if any(node.op in _ORDERS for node in nodes) else "NaN"
    return [nan, "infinite"]


def compare_nonfinite(
    models: tuple[Model, Model],
    names: Mapping[str, str],
    ends: Sequence[tuple[str, str]],
    feeds: Feeds,
    kinds: Collection[str],
    seed: int,
) -> Iterator[NonfiniteDifference]:
    """Runs two models on inputs with NaN and infinity, and yields one output that differs for each kind.

    Args:
        models: Original, and the model to compare with it.
        names: Name of the second model's input by the name of the original's input.
        ends: Names of each output in the two models.
        feeds: Finite inputs, by the original's names.
        kinds: Kinds of numbers to insert.
        seed: Seed that chooses the elements.
    """
    if not kinds:
        return
    first, second = (RuntimeSession(model, what="a model", optimise=False) for model in models)
    expected = first.run(feeds), second.run({names[name]: value for name, value in feeds.items()})
    for kind in kinds:
        for changed in (feed for number in NONFINITE[kind] for feed in insert_nonfinite(feeds, number, seed)):
            try:
                old = first.run(changed)
                new = second.run({names[name]: value for name, value in changed.items()})
            except BadModel:
                continue
            counts = [
                (before, count_nonfinite_differences(old[before], new[after]), old[before].size)
                for before, after in ends
                if isinstance(old[before], np.ndarray) and isinstance(new[after], np.ndarray)
            ]
            difference = next((NonfiniteDifference(kind, *count) for count in counts if count[1]), None)
            if difference is not None:
                is_defined = kind not in _UNDEFINED and _differs_by_definition(
                    models, names, ends, (feeds, expected), changed
                )
                yield replace(difference, is_defined=is_defined)
                break


def _differs_by_definition(
    models: tuple[Model, Model],
    names: Mapping[str, str],
    ends: Sequence[tuple[str, str]],
    finite: tuple[Feeds, Sequence[Mapping[str, Array]]],
    feeds: Feeds,
) -> bool:
    """Whether outputs differ as ONNX defines the operators; False if they cannot be computed so.

    Args:
        models: Original, and the model to compare with it.
        names: Name of the second model's input by the name of the original's input.
        ends: Names of each output in the two models.
        finite: Finite inputs, and the outputs of both models for them. The evaluator of ONNX lacks some
            attributes, so it counts only if it agrees with the runtime on these inputs.
        feeds: Inputs with NaN or infinity.
    """
    finite_feeds, expected = finite
    results: list[Mapping[str, Array]] = []
    for index, model in enumerate(models):
        draws = [
            {names[name] if index else name: value for name, value in each.items()}
            for each in (finite_feeds, feeds)
        ]
        computed, _ = run_in_float64(model, draws, None, lambda: None)
        if not computed or not _agrees(expected[index], computed[0]):
            return False
        results.append(computed[1])
    return any(count_nonfinite_differences(results[0][before], results[1][after]) for before, after in ends)


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
