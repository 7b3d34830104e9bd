"""What `explorer serving` says of a folder and of a module, and how it refuses what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer.cli import main
from tests.engine.formats.transformers import folders

Ask = Callable[..., str]

_MODULES = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def gpt():
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=64))

def plain():
    return torch.nn.Linear(4, 4)
"""
SHORT = ("--prompt", "12", "--context", "20,100")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command prints."""

    def run(*words: Any, code: int = 0) -> str:
        assert main.main([str(word) for word in words]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return run


@pytest.mark.slow
def test_a_layout_is_best_only_where_times_and_memory_are_known(ask: Ask, folder: str) -> None:
    words = ("serving", folder, *SHORT, "--batch", "1", "--devices", "2")
    rates = ("--peak-macs", "1T", "--bandwidth", "1GB/s", "--links", "1GB/s")
    for more, word in (((), ""), (rates, "fastest"), ((*rates, "--card", "1G"), "best")):
        _, _, table = ask(*words, *more).partition("Layouts over devices: tensor x pipeline x expert")
        said = {line.split()[-1] for line in table.splitlines() if line.strip().startswith(("20 ", "100 "))}
        assert said & {"best", "fastest"} == ({word} if word else set())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "served.py").write_text(_MODULES)
    monkeypatch.chdir(tmp_path)
    return "served.py"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    }
    return str(folders.folder(tmp_path / "tiny-llama", config, folders.llama(2, 64, 96, 128, 32)))


@pytest.mark.slow
def test_a_folder_is_served_from_its_headers(ask: Ask, folder: str) -> None:
    document = json.loads(ask("serving", folder, *SHORT, "--machine", "h100", "--devices", "2", "--json"))
    figures = document["serving"]
    # two layers, keys and values of two heads of 16 numbers
    assert figures["cache"]["token_bytes"] == 2 * 2 * 2 * 16 * 2
    assert figures["forms"]["cache_bytes"] == f"{2 * 2 * 2 * 16 * 2}*context"
    assert [(row["context"], row["batch"]) for row in document["times"]] == [
        (context, batch) for context in (20, 100) for batch in (1, 8, 32)
    ]
    assert all(row["fits"] for row in document["times"])
    assert {(row["tensor"], row["pipeline"]) for row in document["layouts"]} == {(2, 1), (1, 2)}


@pytest.mark.slow
def test_a_module_with_a_cache_is_served_in_text_and_csv(ask: Ask, small: str) -> None:
    text = ask("serving", f"{small}:gpt", *SHORT)
    assert "KV cache" in text
    assert "bytes(context) = 512*context" in text
    assert "its configuration was made for 64 tokens; longer contexts are still computed" in text
    rows = ask("serving", f"{small}:gpt", *SHORT, "--csv").splitlines()
    assert rows[0].startswith("context,batch,memory")
    assert len(rows) == 1 + 6


@pytest.mark.slow
def test_memory_and_rates_are_drawn(ask: Ask, small: str, tmp_path: Path) -> None:
    h100 = ("--machine", "h100")
    for machine, title in (
        ((), "MACs of a token"),
        (h100, "Tokens a second at best on h100"),
        ((*h100, "--devices", "1,2"), "Tokens a second at best on 2 x h100"),
    ):
        ask("serving", f"{small}:gpt", *SHORT, *machine, "--plot", "drawn.svg", "--force")
        drawn = (tmp_path / "drawn.svg").read_text()
        assert "weights and cache" in drawn
        assert title in drawn
    assert "drawn.gif" in ask("serving", f"{small}:gpt", "--plot", "drawn.gif", code=2)


@pytest.mark.slow
def test_models_stand_side_by_side(ask: Ask, small: str, folder: str) -> None:
    text = ask("serving", folder, f"{small}:gpt", *SHORT, "--batch", "1")
    assert "KV bytes a token" in text
    both = json.loads(ask("serving", folder, f"{small}:gpt", *SHORT, "--batch", "1", "--json"))
    assert [one["serving"]["architecture"] for one in both["models"]] == [
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
    ]
    header, *rows = ask("serving", folder, f"{small}:gpt", *SHORT, "--batch", "1", "--csv").splitlines()
    assert header.startswith("model,context,batch,memory")
    assert [row.split(",")[:3] for row in rows] == [
        [model, context, "1"] for model in (folder, f"{small}:gpt") for context in ("20", "100")
    ]


@pytest.mark.slow
def test_models_side_by_side_are_laid_over_the_devices_that_were_asked_for(
    ask: Ask, small: str, folder: str
) -> None:
    words = ("--batch", "1", "--context", "20", "--devices", "1,2", "--machine", "h100")
    text = ask("serving", folder, f"{small}:gpt", *words)
    rows = [line.split() for line in text.partition("2 devices, 20 tokens, batch 1")[2].splitlines()]
    for at, model in ((0, folder), (1, f"{small}:gpt")):
        alone = json.loads(ask("serving", model, *words, "--json"))
        best = min((one for one in alone["layouts"] if one["devices"] == 2), key=lambda one: one["token"])
        shown = f"{best['tensor']} x {best['pipeline']} x {best['expert']}"
        assert " ".join(rows[0][5 * at : 5 * at + 5]) == shown
        assert rows[6][1 + at] == f"{best['rate']:,.0f}"
    assert "does not fit" not in text
    assert "does not fit" in ask("serving", folder, f"{small}:gpt", *words, "--card", "1K")


@pytest.mark.slow
def test_a_sweep_is_kept_in_a_file_that_is_shown_as_others_are(ask: Ask, folder: str, tmp_path: Path) -> None:
    kept = str(tmp_path / "results.db")
    words = ("serving", folder, *SHORT, "--batch", "1,4", "--devices", "1,2,3", "--dtype", "bf16,int8")
    text = ask(*words, "--sweep", "--machine", "h100", "-o", kept)
    assert "no layout over 3 devices: 4 heads do not divide by 3" in text
    assert "weights in" in text
    made = json.loads(ask(*words, "--sweep", "--machine", "h100", "-o", kept, "--json"))
    assert (made["made"], made["kept"]) == (0, len(made["rows"]))
    shown = json.loads(ask("sweep", kept, "--json"))
    assert shown["rows"] == made["rows"]
    assert len(ask("sweep", kept, "--csv").splitlines()) == 1 + len(made["rows"])
    assert "does not apply to stored results" in ask("sweep", kept, "--tile", "16", code=2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("served.py:gpt", "-o", "x.db"), "--output: keeps and spreads the rows of a sweep; add --sweep"),
        (("served.py:gpt", "--dtype", "bf16,fp8"), "one type is counted at a time; give one, or add --sweep"),
        (("served.py:gpt", "--sweep", "--plot", "x.svg"), "--plot: shows one model at one type"),
        (("served.py:gpt", "--sweep", "-o", "served.py"), "served.py: this is the model itself"),
        (("served.py:plain",), "it has no key-value cache of its own"),
        (("served.py:gpt", "--context", "many"), "'many' is not a number of tokens"),
        (("served.py:gpt", "--prompt", "1k,2k"), "takes one number of tokens"),
        (("served.py:gpt", "--links", "fast"), "--links"),
    ],
)
def test_what_cannot_be_served_is_one_line(ask: Ask, small: str, words: tuple[str, ...], says: str) -> None:
    assert says in ask("serving", *words, code=2)


def test_a_graph_is_no_module_with_a_cache(ask: Ask, sample: Callable[[str], Path]) -> None:
    assert "explorer decode counts a step" in ask("serving", sample("bert_tiny"), code=2)
