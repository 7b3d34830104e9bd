"""`--csv`: the tables of `machines` and `quantize` have the rows of their JSON answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.cli.main import main


@pytest.mark.parametrize(("verb", "key"), [("machines", "machines"), ("quantize", "layers")])
def test_csv_has_the_rows_of_the_json_answer(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str], verb: str, key: str
) -> None:
    words = [verb] if verb == "machines" else [verb, str(sample("lenet")), "--to", "int8"]
    assert main([*words, "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)[key]]
    assert main([*words, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == names
    assert names
