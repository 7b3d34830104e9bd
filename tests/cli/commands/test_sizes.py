"""`explorer sizes` and `explorer decode`: text, JSON and CSV tell the same; misuse is one line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer.cli import main

Sample = Callable[[str], Path]
Ask = Callable[..., str]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command prints."""

    def run(*words: Any, code: int = 0) -> str:
        assert main.main([str(word) for word in words]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return run


def test_crossings_forms_and_figures_are_the_same_in_text_json_and_csv(ask: Ask, sample: Sample) -> None:
    words = (
        "sizes",
        sample("bert_tiny"),
        "--dim",
        "sequence=16",
        "--over",
        "batch=1:64",
        "--machine",
        "h100",
    )
    text, document = ask(*words), json.loads(ask(*words, "--json"))
    rows = list(csv.DictReader(io.StringIO(ask(*words, "--csv"))))
    assert "activations pass the weights at batch 14" in text
    assert document["crossings"] == [
        {"size": 14, "above": "activations", "below": "weights", "counted": True}
    ]
    assert document["over"] == {"name": "batch", "low": 1, "high": 64, "at": None, "others": {}}
    assert {"name": "macs", "form": "2461696*batch"} in document["curves"]
    assert "2,461,696 n" in text
    assert len(rows) == len(document["sizes"])
    for row, record in zip(rows, document["sizes"], strict=True):
        assert row["macs"] == str(record["macs"]) == str(2461696 * record["size"])
    assert "34.46 M" in text
    assert "memory" in text


@pytest.mark.slow
def test_a_decoders_step_in_text_json_and_csv(ask: Ask, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "tiny_decoder.py").write_text(
        "import torch\n"
        "from tests.features.sizes.test_size_curves import Decoder\n"
        "def model():\n"
        "    return Decoder(), torch.zeros(1, 8, dtype=torch.int64)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("decode", "tiny_decoder:model", "--past", "64")
    text, document = ask(*words), json.loads(ask(*words, "--json"))
    assert "KV cache passes the weights at 99 tokens" in text
    assert document["decode"]["kv_passes_weights"] == 99
    assert document["decode"]["kv_bytes_per_token"] == 512
    rows = list(csv.DictReader(io.StringIO(ask(*words, "--csv"))))
    assert [row["path"] for row in rows] == [row["path"] for row in document["layers"]]
    assert "scaled_dot_product_attention" in text


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ("batch=0:3", "not a range of whole sizes"),
        ("batch=1.5:3", "not a range of whole sizes"),
        ("batch=9:2", "9 to 2 is not a range"),
        ("batch=7", "not a size with its range"),
        ("=1:2", "not a size with its range"),
        ("height", "no size is called 'height'"),
    ],
)
def test_a_range_that_cannot_be_read_is_one_line(ask: Ask, sample: Sample, over: str, says: str) -> None:
    said = ask("sizes", sample("lstm_tiny"), "--over", over, code=2)
    assert says in said
    assert said.count("\n") == 1


def test_what_has_no_size_or_no_step_is_one_line(ask: Ask, sample: Sample) -> None:
    assert "leaves no size open" in ask("sizes", sample("lenet"), code=2)
    assert "neither a text input nor cache inputs" in ask("decode", sample("lenet"), code=2)
    assert "at least one token" in ask("decode", sample("lenet"), "--past", "0", code=2)
