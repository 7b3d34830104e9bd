"""Compares the arrays of one value in two models, and makes the inputs on which a layer is tried.

Two effects can hide a wrong weight. After a ReLU, half of the weight is multiplied by zero. In a sum of
thousands of terms, rounding hides a relative error of a thousandth. So a layer is also tried on values
without zeros, and on random parts of its input.
"""

from __future__ import annotations

import zlib

import numpy as np
from msgspec import Struct, field

from explorer.base.units import shape_text
from explorer.engine.proof.compare import OutputComparison
from explorer.engine.proof.structure.probes import Pair, Region
from explorer.engine.runtime.onnxruntime import Array

FLOATS = ("float16", "float32", "float64")
"""Float types that numpy has."""

COMPARABLE = frozenset(
    (*FLOATS, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
"""Element types that the runtime accepts and returns."""

_ROUNDING_LIMIT = 16.0
"""Multiple of the original's rounding error above which rounding cannot explain a difference."""

_LARGEST_FILL = 10.0
"""Largest number that replaces zeros. Masks may hold numbers near the largest float."""


class Trial(Struct):
    """A comparison of one value in both models.

    Attributes:
        figures: Comparison over all draws.
        fault: Difference that the figures do not show, such as another shape, or ''.
        not_run: Reason why the layer could not run, or ''.
        differing: Number of different elements. Float types are not counted.
        elements: Number of compared elements.
    """

    figures: OutputComparison
    fault: str = ""
    not_run: str = ""
    differing: int = 0
    elements: int = 0

    @property
    def equal(self) -> bool:
        """Whether all compared elements are equal bit for bit."""
        return self.figures.equal and not self.fault and not self.not_run


class ComparedValue(Struct):
    """A value that both models compute, with its comparisons.

    Attributes:
        pair: Names of the value in the two models.
        before, after: Nodes in either model that compute the value from other compared values.
        dtypes: Element types of the value in the two models.
        nbytes: Inferred size of the value in bytes, or a guess if unknown.
        in_whole_model: Comparison in runs of the whole models.
        alone: Comparisons of the layer alone, on unchanged inputs and on inputs with zeros filled.
        shape: Shape of the value.
    """

    pair: Pair
    before: Region
    after: Region
    dtypes: tuple[str, str]
    nbytes: int
    in_whole_model: Trial
    alone: list[Trial] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats, so that a difference has a magnitude."""
        return self.dtypes[0] in FLOATS


def is_same(a: Array, b: Array) -> bool:
    """Whether two arrays are equal in type, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def add(trial: Trial, a: Array, b: Array, exact: Array | None) -> None:
    """Compares the arrays of one value in both models, and adds the result to a comparison.

    Args:
        trial: Comparison, which is changed in place.
        a: Array of the first model.
        b: Array of the second model.
        exact: Exact array, or None if unknown. It is ignored if its shape differs.
    """
    if a.shape != b.shape:
        trial.fault = f"{shape_text(b.shape)} instead of {shape_text(a.shape)}"
        trial.figures.equal = False
        return
    trial.elements += a.size
    if a.dtype.kind != "f":
        trial.differing += int(np.count_nonzero(a != b))
    if exact is not None and np.shape(exact) != a.shape:
        exact = None
    trial.figures.add(a, b, exact)


def round_to_type(value: Array, dtype: str | None) -> Array:
    """Rounds a value to the type that the other model uses, so that both layers get the same input.

    The result keeps the type of `value`.
    """
    if dtype in (None, "string") or value.dtype == dtype or np.can_cast(value.dtype, dtype):
        return value
    with np.errstate(over="ignore"):
        return value.astype(dtype).astype(value.dtype)


def cast_to_type(value: Array, dtype: str) -> Array:
    """Converts a value to an element type. Strings are unchanged."""
    return value if dtype == "string" else value.astype(dtype, copy=False)


def compute_seed(name: str) -> int:
    """Computes a random seed from the name of a value."""
    return zlib.crc32(name.encode())


def is_undecided(trial: Trial) -> bool:
    """Whether two layers differ by so little that rounding could hide a fault.

    Also true if no float64 result tells how large the rounding errors are.
    """
    if trial.equal or trial.fault or trial.not_run:
        return False
    before, after = trial.figures.rms_before, trial.figures.rms_after
    return before is None or after is None or after <= _ROUNDING_LIMIT * before


def replace_zeros(value: Array, seed: int) -> Array:
    """Replaces zeros by random numbers of the value's own magnitude."""
    is_zero = value == 0
    if value.dtype.kind != "f" or not is_zero.any():
        return value
    magnitudes = np.abs(value[~is_zero & np.isfinite(value)])
    scale = min(float(np.median(magnitudes)) if magnitudes.size else 1.0, _LARGEST_FILL)
    replacements = np.random.default_rng(seed).standard_normal(int(np.count_nonzero(is_zero))) * scale
    if magnitudes.size and not (value < 0).any():
        # a value that is never negative may be the input of a square root
        replacements = np.abs(replacements)
    result = value.copy()
    result[is_zero] = replacements.astype(value.dtype)
    return result


def keep_part(value: Array, part: int, parts: int, seed: int) -> Array:
    """Keeps one of `parts` random parts of a value and sets the other elements to zero.

    All kept elements get the same magnitude and keep their signs. `part` is the index of the part.
    """
    if value.dtype.kind != "f":
        return value
    finite_values = value[np.isfinite(value)]
    scale = min(float(np.median(np.abs(finite_values))) if finite_values.size else 1.0, _LARGEST_FILL)
    is_in_part = np.random.default_rng(seed).integers(0, parts, value.shape) == part
    signs = np.where(value < 0, -scale, scale)
    return np.where(is_in_part, signs, 0).astype(value.dtype)
