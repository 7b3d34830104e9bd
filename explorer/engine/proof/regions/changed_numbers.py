"""Finds stored numbers that a rewrite changed in regions whose operators differ.

In such a region, no node tells which number of one graph corresponds to a number of the other. But a correct
rewrite joins, splits or transposes tensors and keeps their numbers. So a missing number was changed, and so
was a tensor that only nearly equals a tensor of the other region.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.diff.folded_weights import describe_folded_change
from explorer.engine.graph.model import Model, Tensor
from explorer.engine.proof.regions.stored_numbers import (
    CLOSE,
    MIN_NUMBERS_PER_CHANGE,
    IsSameTensor,
    Magnitudes,
    Sides,
    StoredDifference,
    collect_constants,
    describe_difference,
    transpose_matrix,
)
from explorer.engine.runtime.onnxruntime import Array

_MAX_CHANGE, _MAX_LONE_CHANGE = 2.0**-12, 2.0**-4
"""Largest relative change of a number that still counts as a change of the same number. The second limit
applies if nearly all other numbers are equal bit for bit."""

_MAX_COUNTERPART_DIFFERENCE = 2.0**-6
"""Largest relative difference between a tensor of one region and its counterpart in the other region."""

_MAX_NUMBERS = 1 << 23
"""Number of stored numbers in a region above which single numbers are not compared."""


def find_changed_numbers(
    sides: Sides, magnitudes: Magnitudes, is_same: IsSameTensor
) -> Iterator[StoredDifference]:
    """Yields the numbers that a rewrite changed while it kept the others.

    Args:
        sides: Models of both regions, with folding applied.
        magnitudes: For either region, the sum of the absolute values of the terms of each folded weight, by
            name.
        is_same: Function that returns whether two stored tensors are equal.
    """
    yield from _find_changed_number(sides)
    yield from _compare_tensors(sides, magnitudes, is_same)


def _find_changed_number(sides: Sides) -> Iterator[StoredDifference]:
    """Yields a number that changed slightly while nearly all others were kept bit for bit.

    Joining, splitting and transposing tensors keep the set of numbers.
    """
    if any(sum(t.elements for t in m.graph.initializers.values()) > _MAX_NUMBERS for m in sides):
        return
    (numbers_before, counts_before), (numbers_after, counts_after) = (
        np.unique(_collect_numbers(m), return_counts=True) for m in sides
    )
    numbers = np.union1d(numbers_before, numbers_after)
    surplus = np.zeros(numbers.size, np.int64)
    surplus[np.searchsorted(numbers, numbers_before)] += counts_before
    surplus[np.searchsorted(numbers, numbers_after)] -= counts_after
    missing, new = numbers[surplus > 0], numbers[surplus < 0]
    changed_count, total = min(
        (surplus[surplus > 0].sum(), counts_before.sum()), (-surplus[surplus < 0].sum(), counts_after.sum())
    )
    # if weights were joined or split, or numbers were computed anew, the nearest numbers are not counterparts
    if (
        not missing.size
        or not new.size
        or (changed_count > 1 and changed_count * MIN_NUMBERS_PER_CHANGE > total)
    ):
        return
    limit = _MAX_LONE_CHANGE if changed_count * MIN_NUMBERS_PER_CHANGE <= total else _MAX_CHANGE
    nearest_pairs = [
        (_find_nearest(missing, number), _find_nearest(new, number))
        for number in (missing if missing.size <= new.size else new)
    ]
    changes = [abs(new_number - old) / abs(old) if old else np.inf for old, new_number in nearest_pairs]
    if CLOSE < max(changes) <= limit:
        old, new_number = nearest_pairs[changes.index(max(changes))]
        yield StoredDifference(
            f"a stored number is {new_number:.9g}, where the original has {old:.9g}", max(changes), True
        )


def _find_nearest(numbers: Array, number: float) -> float:
    """Finds the element that is closest to a number."""
    return float(numbers[np.argmin(np.abs(numbers - number))])


def _collect_numbers(model: Model) -> Array:
    """Collects all finite floats that a region stores."""
    tensors = collect_constants(model.graph.nodes, model.graph.initializers).values()
    arrays = [np.asarray(t.array(), np.float64).reshape(-1) for t in tensors if "float" in t.dtype]
    attributes = [v for node in model.graph.nodes for v in node.attributes.values() if isinstance(v, float)]
    numbers: Array = np.concatenate([*arrays, np.array(attributes)])
    return np.asarray(numbers[np.isfinite(numbers)])


def _compare_tensors(
    sides: Sides, magnitudes: Magnitudes, is_same: IsSameTensor
) -> Iterator[StoredDifference]:
    """Yields the differences between tensors of the first region and nearly equal tensors of the second."""
    weights_before, weights_after = (
        {
            name: t
            for name, t in collect_constants(m.graph.nodes, m.graph.initializers).items()
            if _is_weight(t)
        }
        for m in sides
    )
    for name, tensor in sorted(weights_before.items()):
        if any(
            candidate.shape == tensor.shape and is_same(tensor, candidate)
            for candidate in weights_after.values()
        ):
            continue
        candidates = (
            (counterpart_name, counterpart_tensor, _find_counterpart(tensor, counterpart_tensor))
            for counterpart_name, counterpart_tensor in sorted(weights_after.items())
        )
        counterpart_name, counterpart_tensor, oriented = next(
            (match for match in candidates if match[2] is not None), ("", tensor, None)
        )
        if oriented is None:
            continue
        if name in magnitudes[0]:
            text = describe_folded_change(name, tensor, oriented, magnitudes[0][name])
        elif counterpart_name in magnitudes[1]:
            counterpart = tensor if oriented is counterpart_tensor else transpose_matrix(tensor)
            text = describe_folded_change(
                counterpart_name, counterpart_tensor, counterpart, magnitudes[1][counterpart_name]
            )
        else:
            old, new = (np.asarray(t.array()).reshape(-1) for t in (tensor, oriented))
            if old.tobytes() != new.tobytes():
                yield describe_difference("a stored tensor", old, new, None, tensor)
            continue
        if text:
            yield StoredDifference(text, np.inf, True)


def _find_counterpart(tensor: Tensor, candidate: Tensor) -> Tensor | None:
    """Returns the candidate, transposed if needed, or None if it does not nearly equal the tensor."""
    if candidate.dtype != tensor.dtype or candidate.elements != tensor.elements:
        return None
    sizes = [[n for n in t.shape if n != 1] for t in (tensor, candidate)]
    oriented_candidates = [candidate] if sizes[0] == sizes[1] else []
    if len(candidate.shape) == len(tensor.shape) == 2 and candidate.shape[::-1] == tensor.shape:
        oriented_candidates.append(transpose_matrix(candidate))
    old = np.asarray(tensor.array(), np.float64).reshape(-1)
    for oriented in oriented_candidates:
        new = np.asarray(oriented.array(), np.float64).reshape(-1)
        if np.abs(new - old).max() <= _MAX_COUNTERPART_DIFFERENCE * np.abs(old).max():
            return oriented
    return None


def _is_weight(tensor: Tensor) -> bool:
    """Whether a tensor holds at least two floats, all finite, and is small enough to compare."""
    if "float" not in tensor.dtype or not 1 < tensor.elements <= _MAX_NUMBERS:
        return False
    try:
        return bool(np.isfinite(np.asarray(tensor.array(), np.float64)).all())
    except BadModel:
        return False
