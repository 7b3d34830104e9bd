"""Answers as JSON: each one matches the schema of its verb, and its figures are possible.

The schemas come from the types of the facts (`explorer schema VERB`); `tests/report/json_contract.txt` holds
their keys. Limits that types do not hold are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema

from tests import documents

SHARES = ("confidence", "coverage", "padded_share", "share", "utilisation")
"""Keys of numbers from 0 to 1."""

AT_LEAST_ONE = ("count", "distinct", "grid", "products", "ratio", "tile")
"""Keys of numbers of 1 or more."""

SIGNED = ("attributes", "delta", "explained", "reach")
"""Keys of integers below 0, or of records with such integers. Every other integer is 0 or more."""

FORMATS = ("onnx", "torch", "torchscript", "torch.export")
WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    **{verb: {"format": FORMATS} for verb in ("info", "layers", "ops")},
    "tile": {
        "format": FORMATS,
        "form": ("auto", "lab", "scan", "unrolled", "batched"),
        "edges": ("ragged", "padded"),
        "dynamic": ("batch", "M", "K", "N"),
    },
    "diff": {
        "status": (
            *("changed", "added", "removed", "renamed", "tiled", "merged"),
            *("exact", "bound", "assumed", "unknown", "same", "moved"),
        ),
        "match": ("name", "structure", "outputs", ""),
    },
}
"""Words of a key by verb, where the type of the key is text."""

NOT_EMPTY: dict[str, tuple[str, ...]] = {
    "layers": ("layers",),
    "ops": ("ops",),
    "tile": ("plan.tile", "plan.sites"),
    "history": ("states",),
    "memory": ("steps", "tensors"),
    "roofline": ("layers",),
    "plan": ("cost.orders", "sites", "orders"),
    "training": ("layers", "training.memory.steps"),
    "weights": ("tensors",),
    "activations": ("tensors",),
    "compare": ("models",),
}
"""Lists that are never empty, by verb."""


def check(verb: str, answer: dict[str, Any]) -> None:
    """Hold an answer against the schema of its verb and against the limits above."""
    jsonschema.validate(answer, documents.schema(verb))
    assert answer["tool"].startswith("explorer ")
    for path in NOT_EMPTY.get(verb, ()):
        values: Any = answer
        for key in path.split("."):
            values = values.get(key, {"": "another form of the answer"})
        assert values, path
    for path, value in _leaves(answer, ()):
        key = path[-1]
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, str):
            assert key != "sha256" or re.fullmatch("[0-9a-f]{64}", value) or not value, path
            assert value in WORDS.get(verb, {}).get(key, (value,)), (path, value)
        elif not set(path) & set(SIGNED):
            assert key not in SHARES or 0 <= value <= 1, (path, value)
            assert key not in AT_LEAST_ONE or value >= 1, (path, value)
            assert isinstance(value, float) or value >= 0, (path, value)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value that is no list and no record, with the keys on the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value
