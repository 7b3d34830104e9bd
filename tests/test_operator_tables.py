"""A contributor is told in which tables of the engine an operator has a meaning, and in which it has none."""

from __future__ import annotations

import pytest

from tests.operator_tables import main, mentions, operator_tables


def test_tables_are_discovered_where_they_are_defined() -> None:
    tables = {(table.file, table.name): table for table in operator_tables()}
    defaults = tables["explorer/engine/graph/schema_defaults.py", "DEFAULTS"]
    assert {"Conv", "Gemm"} <= defaults.operators
    assert not any(file.startswith("explorer/engine/costs/aten/") for file, _ in tables), "names of ATen"
    assert len({table.place for table in tables.values()}) == len(tables)


def test_a_new_operator_is_told_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    main("ConvOfTomorrow")
    text = capsys.readouterr().out
    assert "no record in explorer/engine/operators has this name yet" in text
    assert "Tables that name ConvOfTomorrow (0)" in text
    assert f"Tables that do not name ConvOfTomorrow ({len(operator_tables())})" in text


def test_comparisons_outside_tables_are_listed() -> None:
    lines = mentions("BatchNormalization")
    assert lines
    assert all('"BatchNormalization"' in line for line in lines)
    assert mentions("ConvOfTomorrow") == []
