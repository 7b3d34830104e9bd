"""One word, one meaning: a name that stands before a figure stands for the same quantity in every verb."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from explorer import Session
from explorer.cli import main
from explorer.facts import build_total_row, to_json
from explorer.facts.roofline import Machine
from explorer.features.training.training_page import step_blocks
from explorer.report.blocks import Block, Fields, Span
from explorer.report.present.look.info import headline, overview
from explorer.report.present.look.layers import layer_blocks
from explorer.report.present.look.memory_words import figures as memory_figures
from explorer.report.present.look.roofline_words import figures as roofline_figures
from explorer.settings.columns import COLUMNS, NOTHING

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


def words_of(blocks: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """The figures of blocks by their labels, long and short: exact, without units and signs."""
    for block in blocks:
        for field in block.rows if isinstance(block, Fields) else ():
            label = field.label.text if isinstance(field.label, Span) else str(field.label)
            figure = field.figure
            text = (figure.exact or figure.text) if isinstance(figure, Span) else str(figure)
            digits = re.sub(r"[^\d.]", "", text) or text
            yield from ((word.strip(), digits) for word in (label, field.short) if word.strip())


def tabs_of(session: Session) -> dict[str, list[tuple[str, str]]]:
    """The words and figures of the header, the tabs, the tree's total row and the JSON documents."""
    info, memory, training = session.info(), session.memory(), session.training()
    roofline = session.roofline(Machine("", 1e12, 1e10))
    model = build_total_row(info.totals)
    columns = [
        (column.head, re.sub(r"[^\d.]", "", str(value)))
        for column in COLUMNS.values()
        if column.unit in ("count", "bytes") and (value := column.get_value(model, NOTHING)) is not None
    ]
    documents = {
        name: [(f"json {key}", str(value)) for key, value in to_json(fact).items() if isinstance(value, int)]
        for name, fact in (("json of info", info.totals), ("json of memory", memory))
    }
    return {
        "header": [*words_of([headline(info)])],
        "Model": [*words_of([*overview(info), *step_blocks(info, training)])],
        "Layer": [*words_of(layer_blocks(model, info.totals))],
        "Memory": [*words_of(memory_figures(memory))],
        "Roofline": [*words_of([roofline_figures(roofline)])],
        "tree": columns,
        **documents,
    }


@pytest.mark.parametrize("kind", ["onnx", "module", "transformer"])
def test_a_word_is_the_same_figure_in_the_header_in_all_tabs_in_the_tree_and_in_json(
    kind: str, sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}
    if kind == "module":
        pytest.importorskip("torch")
        (tmp_path / "in_place_words.py").write_text(IN_PLACE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        source, options = "in_place_words:net", {"input_shapes": {"x": (None, (1, 3, 8, 8))}}
    else:
        source = str(sample("lenet" if kind == "onnx" else "bert_tiny"))
        options = {"dims": {"batch": 2, "sequence": 16}} if kind == "transformer" else {}
    seen: dict[str, dict[str, str]] = {}
    with Session(source, **options) as session:
        for tab, words in tabs_of(session).items():
            for word, figure in words:
                seen.setdefault(word, {})[tab] = figure
    assert {"MACs", "params", "weights", "peak", "activations", "Kept outputs"} <= set(seen)
    assert len(seen["MACs"]) >= 4, "the word stands in the header, two tabs and the tree"
    differing = {word: figures for word, figures in seen.items() if len(set(figures.values())) > 1}
    assert not differing


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
