"""`explorer info`: lines of totals that combine several figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.cli.main import main


@pytest.mark.parametrize("name", ["lenet", "mobilenet_small", "three_inputs"])
def test_every_byte_once_is_the_sum_of_the_layers_reads_and_writes(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = str(sample(name))
    assert main(["layers", path, "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["layers"] if not row["group"]]
    moved = sum(row["bytes_read"] + row["bytes_written"] for row in rows)
    assert main(["info", path]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Every byte once" in line)
    assert f" {moved:,} " in line


def test_every_byte_once_is_a_lower_bound_if_a_size_is_open(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(sample("bert_tiny"))]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Every byte once" in line)
    assert line.split()[3] == ">="
