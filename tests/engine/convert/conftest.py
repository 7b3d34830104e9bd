"""What the tests of conversion share: modules with the same weights each time, and a way to convert."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer import Session
from explorer.facts.conversion import Conversion

Convert = Callable[..., Conversion]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Convert:
    """`convert(source, 'out.onnx', inputs=..., opset=...)` writes into the test's folder.

    Whatever comes of it, nothing half-written may stay there.
    """
    monkeypatch.chdir(tmp_path)

    def call(source: Any, output: str, **options: Any) -> Conversion:
        opening = {k: options.pop(k) for k in ("inputs", "input_shapes", "dims", "trust") if k in options}
        before = set(os.listdir(tmp_path))
        made = ""
        try:
            with Session(source, **opening) as session:
                fact = session.convert(output, **options)
                made = fact.output
                return fact
        finally:
            left = set(os.listdir(tmp_path)) - before - {made, f"{made}.data"}
            assert not left, f"left behind: {left}"

    return call
