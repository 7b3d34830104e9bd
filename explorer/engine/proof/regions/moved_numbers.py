"""Numbers that a rewrite changed, in regions with other operators, where no number has a known counterpart.

A rewrite joins, splits or transposes tensors, and keeps the numbers. A number that is missing afterwards, or
a tensor that is nearly equal to one of the other region, was changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.diff.folded_weights import folded_change
from explorer.engine.graph.model import Model, Tensor
from explorer.engine.proof.regions.stored_numbers import (
    CLOSE,
    SELDOM,
    Same,
    Sides,
    Sizes,
    StoredDifference,
    apart,
    constants_of,
    turned_matrix,
)
from explorer.engine.runtime.onnxruntime import Array

_NEAR, _NEARBY = 2.0**-12, 2.0**-4
"""Largest relative change of a number that counts as moved by the rewrite; and the limit where nearly all
other numbers were kept bit for bit."""

_LIKE = 2.0**-6
"""Relative difference up to which a tensor of one region may be the counterpart of one of the other."""

_MANY = 1 << 23
"""Numbers of a region above which single numbers are not compared."""


def moved(sides: Sides, sizes: Sizes, same: Same) -> Iterator[StoredDifference]:
    """Numbers that a rewrite changed while it kept the others.

    Args:
        sides: Both regions, with folding applied.
        sizes: For each folded weight, the size of the terms that it adds up.
        same: Whether two stored tensors are equal.
    """
    yield from _numbers_gone(sides)
    yield from _tensors(sides, sizes, same)


def _numbers_gone(sides: Sides) -> Iterator[StoredDifference]:
    """Numbers that a rewrite changed slightly while it kept nearly all others bit for bit.

    A rewrite may join, split or transpose tensors: the set of numbers stays the same.
    """
    if any(sum(t.elements for t in m.graph.initializers.values()) > _MANY for m in sides):
        return
    (mine, had), (theirs, have) = (np.unique(_numbers(m), return_counts=True) for m in sides)
    numbers = np.union1d(mine, theirs)
    surplus = np.zeros(numbers.size, np.int64)
    surplus[np.searchsorted(numbers, mine)] += had
    surplus[np.searchsorted(numbers, theirs)] -= have
    gone, new = numbers[surplus > 0], numbers[surplus < 0]
    few, total = min((surplus[surplus > 0].sum(), had.sum()), (-surplus[surplus < 0].sum(), have.sum()))
    # where weights were joined or split, neighbors have no counterpart here; where numbers were computed from
    # others, some have none close by
    if not gone.size or not new.size or (few > 1 and few * SELDOM > total):
        return
    limit = _NEARBY if few * SELDOM <= total else _NEAR
    near = [
        (_nearest(gone, number), _nearest(new, number)) for number in (gone if gone.size <= new.size else new)
    ]
    shares = [abs(now - old) / abs(old) if old else np.inf for old, now in near]
    if CLOSE < max(shares) <= limit:
        old, now = near[shares.index(max(shares))]
        yield StoredDifference(
            f"a stored number is {now:.9g}, where the original has {old:.9g}", max(shares), True
        )


def _nearest(numbers: Array, number: float) -> float:
    return float(numbers[np.argmin(np.abs(numbers - number))])


def _numbers(model: Model) -> Array:
    """All finite floats that a region stores."""
    tensors = constants_of(model.graph.nodes, model.graph.initializers).values()
    arrays = [np.asarray(t.array(), np.float64).reshape(-1) for t in tensors if "float" in t.dtype]
    attributes = [v for node in model.graph.nodes for v in node.attributes.values() if isinstance(v, float)]
    numbers: Array = np.concatenate([*arrays, np.array(attributes)])
    return np.asarray(numbers[np.isfinite(numbers)])


def _tensors(sides: Sides, sizes: Sizes, same: Same) -> Iterator[StoredDifference]:
    """Tensors of the first region that nearly equal one of the second, and their difference."""
    mine, theirs = (
        {name: t for name, t in constants_of(m.graph.nodes, m.graph.initializers).items() if _weight(t)}
        for m in sides
    )
    for name, tensor in sorted(mine.items()):
        if any(twin.shape == tensor.shape and same(tensor, twin) for twin in theirs.values()):
            continue
        candidates = (
            (twin, twin_tensor, _counterpart(tensor, twin_tensor))
            for twin, twin_tensor in sorted(theirs.items())
        )
        twin, twin_tensor, there = next(
            (match for match in candidates if match[2] is not None), ("", tensor, None)
        )
        if there is None:
            continue
        if name in sizes[0]:
            text = folded_change(name, tensor, there, sizes[0][name])
        elif twin in sizes[1]:
            beside = tensor if there is twin_tensor else turned_matrix(tensor)
            text = folded_change(twin, twin_tensor, beside, sizes[1][twin])
        else:
            old, new = (np.asarray(t.array()).reshape(-1) for t in (tensor, there))
            if old.tobytes() != new.tobytes():
                yield apart("a stored tensor", old, new, None, tensor)
            continue
        if text:
            yield StoredDifference(text, np.inf, True)


def _counterpart(tensor: Tensor, candidate: Tensor) -> Tensor | None:
    """The candidate, transposed if needed, if it nearly equals the tensor."""
    if candidate.dtype != tensor.dtype or candidate.elements != tensor.elements:
        return None
    sizes = [[n for n in t.shape if n != 1] for t in (tensor, candidate)]
    forms = [candidate] if sizes[0] == sizes[1] else []
    if len(candidate.shape) == len(tensor.shape) == 2 and candidate.shape[::-1] == tensor.shape:
        forms.append(turned_matrix(candidate))
    old = np.asarray(tensor.array(), np.float64).reshape(-1)
    for form in forms:
        new = np.asarray(form.array(), np.float64).reshape(-1)
        if np.abs(new - old).max() <= _LIKE * np.abs(old).max():
            return form
    return None


def _weight(tensor: Tensor) -> bool:
    """Whether a tensor holds more than a few floats."""
    if "float" not in tensor.dtype or not 1 < tensor.elements <= _MANY:
        return False
    try:
        return bool(np.isfinite(np.asarray(tensor.array(), np.float64)).all())
    except BadModel:
        return False
