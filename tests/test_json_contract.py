"""The JSON that scripts rely on: exact integers, null for what is unknown, and sums that agree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from explorer.cli import main
from explorer.facts import OutputEvidence, SiteEvidence, Verification
from explorer.report import document
from tests import answers

Ask = Callable[..., dict[str, Any]]

SAMPLES = (
    "lenet",
    "mlp_128",
    "linear_32x64x128",
    "jsc_tiny",
    "jsc_tiny_x10",
    "mobilenet_small",
    "bert_tiny",
    "three_inputs",
)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The JSON document that a command prints, after `answers.check`."""

    def call(*words: object, code: int = 0) -> dict[str, Any]:
        assert main.main([*map(str, words), "--json", "--quiet"]) == code
        out = capsys.readouterr().out
        found: dict[str, Any] = json.loads(
            out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")
        )
        answers.check(str(words[0]), found)
        return found

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_known_of_every_sample_keeps_the_contract(
    ask: Ask, sample: Callable[[str], Path], name: str
) -> None:
    info = ask("info", sample(name))
    assert info["totals"]["flops"] is None or info["totals"]["flops"] == 2 * info["totals"]["macs"]
    layers = ask("layers", sample(name))
    assert {key: layers[key] for key in info} == info, "every verb says the same of the same model"
    rows = layers["layers"]
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert all(row["parent"] is None or row["parent"] < row["id"] for row in rows)
    assert len({row["path"] for row in rows}) == len(rows)
    leaves = [row for row in rows if not row["group"]]
    assert sum(row["macs"] or 0 for row in leaves) == (info["totals"]["macs"] or 0)
    ops = ask("ops", sample(name))
    assert {key: ops[key] for key in info} == info
    assert sum(op["count"] for op in ops["ops"]) == info["totals"]["nodes"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lenet", "linear_32x64x128", "bert_tiny"])
def test_tile_verify_and_diff_keep_the_contract(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    dims = ["--dim", "batch=1", "--dim", "sequence=16"] if name == "bert_tiny" else []
    out = tmp_path / "tiled.onnx"
    tiled = ask("tile", sample(name), "-o", out, *dims)
    assert tiled["output"] == str(out)
    assert tiled["verification"]["passed"] is True
    assert tiled["plan"]["products"] == sum(site["products"] for site in tiled["plan"]["sites"])
    for site in tiled["plan"]["sites"]:
        assert site["products"] == site["batch"] * math.prod(site["grid"])
    proof = ask("verify", sample(name), out, *dims)
    assert proof["passed"] is True
    assert {site["name"] for site in proof["sites"]} == {site["name"] for site in tiled["plan"]["sites"]}
    blame = ask("blame", sample(name), out, *dims)
    assert blame["same"] is True
    assert {site["output"] for site in tiled["plan"]["sites"]} <= {
        probe["value"] for probe in blame["probes"]
    }
    change = ask("diff", sample(name), out, *dims, code=1)
    assert change["equal"] is False
    rows = [node for node in change["nodes"] if node["status"] == "tiled"]
    assert len(rows) == len(tiled["plan"]["sites"])


def test_the_trees_side_by_side_keep_the_contract(ask: Ask, sample: Callable[[str], Path]) -> None:
    trees = ask("diff", "--tree", sample("lenet"), sample("mlp_128"), code=1)
    assert trees["tree_counts"] == {"removed": 12, "added": 1}
    assert sum(row["delta"]["macs"] for row in trees["tree"] if not row["inside"]) == (
        trees["totals"]["after"]["macs"] - trees["totals"]["before"]["macs"]
    )


@pytest.mark.slow
def test_info_of_a_tiled_model_says_which_share_runs_on_tiles(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    assert "tiled" not in ask("info", sample("mlp_128"))
    out = tmp_path / "tiled.onnx"
    made = ask("tile", sample("lenet"), "-o", out, "--site", "*fc*", "--no-verify")
    whole = ask("info", sample("lenet"))["totals"]["macs"]
    for verb in ("info", "layers", "ops"):
        tiled = ask(verb, out)["tiled"]
        assert tiled["macs"] == made["plan"]["macs"] < tiled["macs_total"] == whole
        assert tiled["products"] == made["plan"]["products"]
        assert tiled["share"] == tiled["macs"] / whole
        assert [(row["op"], row["count"]) for row in tiled["left"]] == [("Conv", 2)]
    all_of_it = ask("tile", sample("mlp_128"), "-o", out, "--force", "--no-verify")
    tiled = ask("info", out)["tiled"]
    assert (tiled["share"], tiled["left"]) == (1.0, [])
    assert tiled["products"] == all_of_it["plan"]["products"] == 8


def test_the_textbook_case_is_eight_products(ask: Ask, sample: Callable[[str], Path]) -> None:
    plan = ask("tile", sample("mlp_128"))
    assert plan["output"] is None
    assert plan["verification"] is None
    (site,) = plan["plan"]["sites"]
    assert (site["M"], site["K"], site["N"], site["grid"], site["products"]) == (128, 128, 128, [2, 2, 2], 8)
    assert site["form"] == "lab"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("params", -1),
        ("params", 0.5),
        ("coverage", 1.5),
        ("status", "certain"),
        ("macs", "many"),
        ("more", 1),
    ],
)
def test_an_answer_with_a_figure_that_cannot_be_is_found(
    ask: Ask, sample: Callable[[str], Path], key: str, value: object
) -> None:
    answer = ask("info", sample("mlp_128"))
    answer["totals"][key] = value
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        answers.check("info", answer)


def test_an_identical_model_has_no_rows(ask: Ask, sample: Callable[[str], Path]) -> None:
    change = ask("diff", sample("lenet"), sample("lenet"))
    assert change["equal"] is True
    assert change["nodes"] == []
    assert change["totals"]["before"] == change["totals"]["after"]


@pytest.mark.slow
def test_what_depends_on_an_unbound_dimension_is_null_and_not_zero(
    ask: Ask, sample: Callable[[str], Path]
) -> None:
    symbolic = ask("layers", sample("bert_tiny"))
    assert symbolic["model"]["inputs"][0]["shape"] == ["batch", "sequence"]
    assert symbolic["totals"]["coverage"] < 1
    unknown = [row for row in symbolic["layers"] if row["status"] == "unknown"]
    assert unknown
    assert any(row["macs"] is None for row in unknown)
    assert all(row["reason"] for row in unknown if not row["group"])
    bound = ask("layers", sample("bert_tiny"), "--dim", "batch=1", "--dim", "sequence=16")
    assert bound["assumptions"]["dims"] == {"batch": 1, "sequence": 16}
    assert bound["totals"]["coverage"] == 1


def test_a_number_that_is_not_finite_is_a_word_because_null_means_unknown() -> None:
    output = OutputEvidence(
        "y",
        "float32",
        (1,),
        math.nan,
        math.inf,
        None,
        0.5,
        "float64",
        *[0.0] * 4,
        nonfinite=1,
        equal=False,
        passed=False,
        reason="new NaN",
    )
    site = SiteEvidence("s", 1, 2, 3, 6, "", *[-math.inf] * 5, 8.0, 0.0, 0.0, 9, 1, False, "new Inf")
    fact = Verification(False, "different", "a", "b", (0,), (), (site,), (output,))
    found = json.loads(json.dumps(document.verification(fact, "explorer 1"), allow_nan=False))
    answers.check("verify", found)
    assert (found["outputs"][0]["max_abs"], found["outputs"][0]["max_rel"]) == ("nan", "inf")
    assert found["outputs"][0]["mse"] is None
    assert found["sites"][0]["max_abs"] == "-inf"


@pytest.mark.slow
def test_a_module_keeps_the_contract_too(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "small_net.py").write_text(
        "import torch\n\n\ndef model():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("small_net:model", "--input-shape", "input:3,10")
    info = ask("info", *words)
    assert "opset" not in info["model"], "what a format does not have is absent"
    assert info["totals"]["trainable_params"] == info["totals"]["params"] == 304
    assert info["totals"]["macs"] == 3 * (200 + 80)
    assert ask("layers", *words)["totals"] == ask("ops", *words)["totals"] == info["totals"]
    tiled = ask("tile", *words, "-o", "tiled.onnx", "--tile", "8")
    assert tiled["verification"]["torch"], "PyTorch's own output is compared"
