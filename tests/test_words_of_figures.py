"""One word, one meaning: a name that stands before a figure stands for the same quantity in every verb."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.cli import main

ROW = re.compile(r"^  (\S.*?)  +(?:[<>]= |~ )?(\S+(?: \S+)?)  +([\d,]+)(?:  |$)")
"""Name, rounded figure and exact one."""

IN_PLACE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(8 * 6 * 6, 5)

    def forward(self, x):
        return self.last(self.act(self.first(x)).flatten(1) + 1)

def net():
    return Net()
"""


def figures(*words: str) -> dict[str, str]:
    """The exact figures that a verb prints, by their names."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main.main([*words, "--quiet"]) == 0
    found: dict[str, str] = {}
    for line in out.getvalue().splitlines():
        row = ROW.match(line)
        if row:
            found.setdefault(row[1], row[3])
    return found


@pytest.mark.parametrize("kind", ["module", "onnx"])
def test_a_name_stands_for_one_figure_in_every_verb(
    kind: str, sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = [str(sample("lenet"))]
    if kind == "module":
        pytest.importorskip("torch")
        (tmp_path / "in_place_words.py").write_text(IN_PLACE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        source = ["in_place_words:net", "--input-shape", "x:1,3,8,8"]
    seen: dict[str, dict[str, str]] = {}
    machine = ["--peak-macs", "1T", "--bandwidth", "10GB/s"]
    for verb, more in (("info", []), ("memory", []), ("training", []), ("roofline", machine)):
        for name, figure in figures(verb, *source, *more).items():
            seen.setdefault(name, {})[verb] = figure
    assert {"Activations, sum", "Activations, peak", "Buffers, sum", "Kept outputs"} <= set(seen)
    for name, by_verb in seen.items():
        assert len(set(by_verb.values())) == 1, f"{name} is {by_verb}"
    assert set(seen["Activations, peak"]) == {"info", "memory"}
    if kind == "module":
        sums = [
            next(iter(seen[name].values())) for name in ("Activations, sum", "Buffers, sum", "Kept outputs")
        ]
        assert len(set(sums)) == 3, "what is in place, or made by a function, is in one of them only"


def test_training_answers_first_with_one_memory_and_names_the_other_figure_theoretical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "in_place_words.py").write_text(IN_PLACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main.main(["training", "in_place_words:net", "--input-shape", "x:4,3,8,8", "--quiet"]) == 0
    lines = out.getvalue().splitlines()
    names = [row[1] for line in lines if (row := ROW.match(line))]
    assert names[:2] == ["Kept by autograd", "Memory, peak"]
    assert "Memory, sum" not in names
    theoretical = next(at for at, line in enumerate(lines) if line.startswith("Outputs of all layers"))
    assert "would keep this much" in lines[theoretical + 1]
    assert [at for at, line in enumerate(lines) if "Kept outputs" in line] == [theoretical + 2]
