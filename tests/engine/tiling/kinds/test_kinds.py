"""Kinds of matmul, found by the modules that know them: each operator once, with a meaning for the proof."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest

from explorer.engine.proof import meanings
from explorer.engine.tiling import kinds
from explorer.engine.tiling.kinds.exclusions import NOT_MATRIX


@pytest.mark.parametrize(("package", "table"), [(kinds, "KINDS"), (meanings, "MEANINGS")])
def test_no_two_modules_name_one_operator(package: object, table: str) -> None:
    names = (f"{package.__name__}.{found.name}" for found in iter_modules(package.__path__))
    keys = Counter(key for name in names for key in getattr(import_module(name), table, {}))
    assert len(keys) > 10
    assert [key for key, count in keys.items() if count > 1] == []


def test_all_that_is_tiled_can_be_proved() -> None:
    tiled = {key for key in kinds.KINDS if key[1] not in NOT_MATRIX}
    assert tiled == set(meanings.MEANINGS)
