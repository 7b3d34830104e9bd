"""One case of a hunt: a random graph tiled and proved, or changed and proved, held against runs of its own.

What onnxruntime gives for inputs that the proof has not drawn decides: models that differ there must not be
called equal, and what tiling makes must never be found different.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from msgspec import Struct

from explorer import Session, TileSpec, blame_files, verify_files
from explorer.base.errors import ExplorerError
from tests.hunt.random_changes import CHANGES, HARMLESS
from tests.hunt.random_graphs import RandomGraph

KINDS = ("graphs", "mutations")
LARGEST = 12
"""Operators of a case."""

_SPREADS = (1.0, 0.2, 5.0, 30.0)
_APART = 2e-3
"""By how much of its size an output differs that no rounding explains."""


class Find(Struct, frozen=True):
    """A wrong answer.

    Attributes:
        what: What is wrong.
        seed, steps: Of the case.
    """

    what: str
    seed: int
    steps: int


def outputs(path: Path, seed: int) -> list[np.ndarray]:
    """What a model gives for inputs of several sizes, both ways of its condition."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng([seed, 77])
    made = []
    for spread in _SPREADS:
        for way in (True, False):
            feeds: dict[str, Any] = {}
            for one in session.get_inputs():
                if one.name == "x":
                    feeds["x"] = (rng.standard_normal(one.shape) * spread).astype(np.float32)
                else:
                    feeds[one.name] = np.asarray(way)
            made.append(session.run(None, feeds)[0])
    return made


def differ(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Whether outputs are apart by more than rounding."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return True
        with np.errstate(all="ignore"):
            size = float(np.abs(a[np.isfinite(a)]).max(initial=1e-3))
            if not np.allclose(a, b, rtol=_APART, atol=_APART * size, equal_nan=True):
                return True
    return False


def _tiled(seed: int, steps: int, folder: Path) -> str:
    """Tiles a random graph; what is wrong with the answer, '' if nothing is."""
    rng = random.Random(f"{seed}/tile")
    source, target = folder / "original.onnx", folder / "other.onnx"
    onnx.save(RandomGraph(seed, steps).model(), source)
    try:
        expected = outputs(source, seed)
    except Exception:
        return ""  # the runtime refuses the graph
    spec = TileSpec(
        tuple(rng.choice([1, 2, 3, 4, 8]) for _ in range(3)),  # type: ignore[arg-type]
        form=rng.choice(["auto", "lab", "unrolled", "scan", "batched"]),  # type: ignore[arg-type]
        edges=rng.choice(["ragged", "padded"]),  # type: ignore[arg-type]
    )
    target.unlink(missing_ok=True)
    try:
        with Session(str(source)) as session:
            result = session.tile(spec, output=str(target), verify=False)
            assert result is not None
    except ExplorerError as error:
        return "" if "internal" not in str(error) else f"internal error: {error}"
    if differ(expected, outputs(target, seed)):
        return f"the tiled file gives something else ({spec})"
    fact = verify_files(str(source), str(target))
    if not fact.passed:
        return f"what was tiled is not proved ({spec}): {fact.verdict}"
    # of few numbers the rounding of three draws may happen to exceed that of the original's own noise
    if (blame := blame_files(str(source), str(target))).kind not in ("equal", "rounding", "amplified"):
        return f"blame finds a difference in what was tiled ({blame.kind}: {spec})"
    return ""


def _changed(seed: int, steps: int, folder: Path) -> str:
    """Changes a random graph; what is wrong with the answer, '' if nothing is."""
    rng = random.Random(f"{seed}/change")
    source, target = folder / "original.onnx", folder / "other.onnx"
    model = RandomGraph(seed, steps).model()
    onnx.save(model, source)
    change = rng.choice(CHANGES)
    name = getattr(change, "__name__", "")
    if not change(model, rng):
        return ""
    onnx.save(model, target)
    try:
        expected, got = outputs(source, seed), outputs(target, seed)
    except Exception:
        return ""  # no model any more
    apart = differ(expected, got)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(expected, got, strict=True))
    try:
        fact = verify_files(str(source), str(target))
    except ExplorerError as error:
        return f"{name}: {error}" if "internal" in str(error) else ""
    if apart and fact.passed:
        return f"{name}: different models are called {fact.verdict}"
    if same and change in HARMLESS and fact.verdict_kind != "equal":
        return f"{name}: a harmless rewriting is called {fact.verdict}"
    return ""


_RUN = {"graphs": _tiled, "mutations": _changed}


def attempt(kind: str, seed: int, steps: int, folder: Path) -> str:
    """Tries one case; what is wrong, '' if nothing is. Errors that no user should see are wrong, too."""
    try:
        return _RUN[kind](seed, steps, folder)
    except Exception as error:  # the program's own faults are what is hunted for
        return f"{type(error).__name__}: {error}"


def steps_of(seed: int) -> int:
    """How many operators the case of a seed has."""
    return random.Random(f"{seed}/steps").randrange(1, LARGEST + 1)


def hunt_one(kind: str, seed: int, folder: Path) -> Find | None:
    """Tries the case of a seed; a find is cut down to the fewest steps that still show one."""
    steps = steps_of(seed)
    what = attempt(kind, seed, steps, folder)
    if not what:
        return None
    for fewer in range(1, steps):
        smaller = attempt(kind, seed, fewer, folder)
        if smaller:
            return Find(smaller, seed, fewer)
    attempt(kind, seed, steps, folder)  # its files again
    return Find(what, seed, steps)
