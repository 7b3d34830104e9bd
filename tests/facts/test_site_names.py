"""Modules in the names of an exporter's nodes."""

from __future__ import annotations

import pytest

from explorer.facts.site_names import find_scope, format_site


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/trunk/trunk.7/branch/branch.2/Conv", "trunk.7.branch.2"),
        ("/trunk/trunk.7/branch/branch.0/branch.0.1/Clip", "trunk.7.branch.0.1"),
        ("/head/head.1/Gemm", "head.1"),
        ("/encoder/block/mix/mix.1/MatMul", "encoder.block.mix.1"),
        ("/gate/gates.1/Conv", "gate.gates.1"),
    ],
)
def test_a_name_that_contains_its_module_stands_without_it(name: str, module: str) -> None:
    assert find_scope(name).rpartition(".")[0] == module
    assert format_site(name, module) == name
    assert format_site(name, "tail.3") == f"{name} in tail.3"
