"""The JSON that scripts rely on: its names, its nesting, exact integers, and null for what is unknown.

The schemas are written out here a second time, by hand: a key that is renamed in the program, or an
integer that becomes a float, must break a test and not somebody's script. Keys may be added.
"""

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
from tests import documents
from tests.schemas import COUNT, COUNT_OR_NULL, FLAG, MEASURED, SHARE, TEXT, Schema, document_of, listed

Ask = Callable[..., dict[str, Any]]

TENSOR = document_of(
    name=TEXT,
    dtype={"type": ["string", "null"]},
    shape={"anyOf": [{"type": "null"}, listed({"type": ["integer", "string", "null"]})]},
)
MODEL = document_of(
    ("sha256", "opset", "file_bytes"),
    source=TEXT,
    format={"enum": ["onnx", "torch", "torchscript", "torch.export"]},
    sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    opset=COUNT,
    file_bytes=COUNT,
    inputs=listed(TENSOR),
    outputs=listed(TENSOR),
    producer=TEXT,
    notes=listed(TEXT),
)
TOTALS = document_of(
    ("trainable_params", "activation_bytes_functional"),
    nodes=COUNT,
    params=COUNT,
    trainable_params=COUNT,
    weight_bytes=COUNT,
    macs=COUNT_OR_NULL,
    flops=COUNT_OR_NULL,
    elementwise_ops=COUNT_OR_NULL,
    activation_bytes_sum=COUNT_OR_NULL,
    activation_bytes_peak=COUNT_OR_NULL,
    activation_bytes_functional=COUNT,
    bytes_read=COUNT_OR_NULL,
    bytes_written=COUNT_OR_NULL,
    coverage=SHARE,
    status={"enum": ["exact", "bound", "assumed", "unknown"]},
    peak_at=TEXT,
    peak_tensors=listed(TENSOR),
)
ENVELOPE: dict[str, Schema] = {
    "schema_version": {"const": 1},
    "tool": {"type": "string", "pattern": "^explorer "},
}
TILED = document_of(
    products=COUNT_OR_NULL,
    macs=COUNT_OR_NULL,
    macs_total=COUNT_OR_NULL,
    share={"type": ["number", "null"], "minimum": 0, "maximum": 1},
    left=listed(document_of(op=TEXT, name=TEXT, count=COUNT, macs=COUNT_OR_NULL, reason=TEXT)),
    dims={"type": "object", "additionalProperties": COUNT},
)
INFO_KEYS: dict[str, Schema] = {
    **ENVELOPE,
    "model": MODEL,
    "assumptions": document_of(dims={"type": "object", "additionalProperties": COUNT}),
    "totals": TOTALS,
}
LAYER = document_of(
    id=COUNT,
    parent=COUNT_OR_NULL,
    path=TEXT,
    name=TEXT,
    kind=TEXT,
    depth=COUNT,
    group=FLAG,
    calls=COUNT,
    inputs=listed(TENSOR),
    outputs=listed(TENSOR),
    weights=listed(TENSOR),
    params=COUNT,
    weight_bytes=COUNT,
    macs=COUNT_OR_NULL,
    formula=TEXT,
    elementwise_ops=COUNT_OR_NULL,
    bytes_read=COUNT_OR_NULL,
    bytes_written=COUNT_OR_NULL,
    activation_bytes=COUNT_OR_NULL,
    attributes={"type": "object"},
    status={"enum": ["exact", "bound", "unknown"]},
    reason=TEXT,
    shared_with=listed(TEXT),
    repeat=COUNT,
)
RANGE = document_of(
    min={},
    max={},
    distinct={"type": "integer", "minimum": 1},
    values=listed(document_of(value={}, count=COUNT)),
)
OP = document_of(
    op=TEXT,
    count={"type": "integer", "minimum": 1},
    macs=COUNT_OR_NULL,
    params=COUNT,
    elementwise_ops=COUNT_OR_NULL,
    attributes={"type": "object", "additionalProperties": RANGE},
)
THREE = {"type": "integer", "minimum": 1}
SITE = document_of(
    name=TEXT,
    op=TEXT,
    M=COUNT,
    K=COUNT,
    N=COUNT,
    batch=THREE,
    tile=listed(THREE, minItems=3, maxItems=3),
    grid=listed(THREE, minItems=3, maxItems=3),
    products={"type": "integer", "minimum": 1},
    utilisation=SHARE,
    form={"enum": ["lab", "scan", "unrolled", "batched"]},
    edges={"enum": ["ragged", "padded"]},
    output=TEXT,
    weight=TEXT,
    bias=FLAG,
    dtype=TEXT,
    accumulator=TEXT,
    dynamic=listed({"enum": ["batch", "M", "K", "N"]}),
    place=listed(TEXT),
    calls=COUNT_OR_NULL,
    macs=COUNT_OR_NULL,
)
PLAN = document_of(
    tile=listed(THREE, minItems=3, maxItems=3),
    edges={"enum": ["ragged", "padded"]},
    form={"enum": ["auto", "lab", "scan", "unrolled", "batched"]},
    sites=listed(SITE, minItems=1),
    products={"type": "integer", "minimum": 1},
    macs=COUNT,
    macs_total=COUNT_OR_NULL,
    skipped=listed(document_of(name=TEXT, op=TEXT, reason=TEXT, macs=COUNT_OR_NULL)),
    dims={"type": "object", "additionalProperties": COUNT},
    free=listed(TEXT),
    decomposed=listed(TEXT),
)
OUTPUT_PROOF = document_of(
    name=TEXT,
    dtype=TEXT,
    shape=listed(COUNT),
    max_abs=MEASURED,
    max_rel=MEASURED,
    mse=MEASURED,
    cosine=MEASURED,
    reference=TEXT,
    rms_before=MEASURED,
    rms_after=MEASURED,
    max_before=MEASURED,
    max_after=MEASURED,
    nonfinite=COUNT,
    equal=FLAG,
    passed=FLAG,
    reason=TEXT,
    undefined=COUNT,
)
SITE_PROOF = document_of(
    name=TEXT,
    M=COUNT,
    K=COUNT,
    N=COUNT,
    tiles=COUNT,
    structure=TEXT,
    max_abs=MEASURED,
    max_rel=MEASURED,
    mse=MEASURED,
    cosine=MEASURED,
    bound_ratio=MEASURED,
    limit={"type": "number"},
    rms_before=MEASURED,
    rms_after=MEASURED,
    rows=COUNT,
    nonfinite=COUNT,
    passed=FLAG,
    reason=TEXT,
)
PROOF_KEYS: dict[str, Schema] = {
    "passed": FLAG,
    "verdict": {"type": "string", "minLength": 1},
    "before": TEXT,
    "after": TEXT,
    "seeds": listed({"type": "integer"}, minItems=1),
    "inputs": listed(TEXT),
    "sites": listed(SITE_PROOF),
    "outputs": listed(OUTPUT_PROOF),
    "torch": listed(OUTPUT_PROOF),
    "seconds": {"type": "number"},
}
NODE = document_of(
    status={"enum": ["changed", "added", "removed", "renamed", "tiled", "merged"]},
    before={"type": ["string", "null"]},
    after={"type": ["string", "null"]},
    what=TEXT,
    op_before={"type": ["string", "null"]},
    op_after={"type": ["string", "null"]},
    match={"enum": ["name", "structure", "outputs", ""]},
    confidence=SHARE,
    children=listed(document_of(op=TEXT, count=COUNT)),
)
PROBE = document_of(
    step=COUNT,
    layer=TEXT,
    op=TEXT,
    layer_after=TEXT,
    value=TEXT,
    value_after=TEXT,
    layers=COUNT,
    dtype=TEXT,
    dtype_after=TEXT,
    shape=listed(COUNT),
    max_abs=MEASURED,
    rms=MEASURED,
    relative=MEASURED,
    snr_db=MEASURED,
    cosine=MEASURED,
    nonfinite=COUNT,
    noise=MEASURED,
    introduced=MEASURED,
    introduced_noise=MEASURED,
    departs=FLAG,
    state={"enum": ["equal", "rounding", "inherited", "coarser", "introduced"]},
    reason=TEXT,
    output=FLAG,
)
SCHEMAS: dict[str, Schema] = {
    "info": document_of(("tiled",), **INFO_KEYS, tiled=TILED),
    "layers": document_of(("tiled",), **INFO_KEYS, tiled=TILED, layers=listed(LAYER, minItems=1)),
    "ops": document_of(("tiled",), **INFO_KEYS, tiled=TILED, ops=listed(OP, minItems=1)),
    "tile": document_of(
        **ENVELOPE,
        model=MODEL,
        plan=PLAN,
        output={"type": ["string", "null"]},
        verification={"anyOf": [{"type": "null"}, document_of(**PROOF_KEYS)]},
        command=TEXT,
        seconds={"type": "number"},
    ),
    "settings": document_of(
        **INFO_KEYS,
        grouped=TEXT,
        grouped_origin=TEXT,
        sites=listed(
            document_of(
                name=TEXT,
                op=TEXT,
                M=COUNT,
                K=COUNT,
                N=COUNT,
                tile=listed(COUNT, minItems=3, maxItems=3),
                edges=TEXT,
                form=TEXT,
                on=FLAG,
                origins=document_of(tile=TEXT, edges=TEXT, form=TEXT, on=TEXT),
            ),
        ),
        unused=listed(document_of(origin=TEXT, says=TEXT, near=TEXT)),
    ),
    "history": document_of(
        **ENVELOPE,
        source=TEXT,
        current=COUNT,
        output={"type": ["string", "null"]},
        states=listed(
            document_of(
                name=TEXT,
                label=TEXT,
                command=TEXT,
                saved={"type": ["string", "null"]},
                products=COUNT_OR_NULL,
                passed={"type": ["boolean", "null"]},
            ),
            minItems=1,
        ),
    ),
    "cache": document_of(**ENVELOPE, folder=TEXT, files=COUNT, bytes=COUNT, most_bytes=COUNT),
    "verify": document_of(**ENVELOPE, **PROOF_KEYS),
    "blame": document_of(
        **ENVELOPE,
        kind={"enum": ["equal", "rounding", "fault", "spread", "coarser", "amplified", "unlike"]},
        same=FLAG,
        verdict=TEXT,
        criterion=TEXT,
        before=TEXT,
        after=TEXT,
        first=COUNT_OR_NULL,
        worst=COUNT_OR_NULL,
        most=COUNT_OR_NULL,
        probes=listed(PROBE),
        unpaired=listed(document_of(value=TEXT, reason=TEXT)),
        unpaired_count=COUNT,
        seeds=listed(COUNT),
        inputs=listed(TEXT),
        chunks=COUNT,
        held_bytes=COUNT,
        seconds={"type": "number"},
    ),
    "diff": document_of(
        **ENVELOPE,
        before=TEXT,
        after=TEXT,
        equal=FLAG,
        summary=listed(
            document_of(op=TEXT, total=COUNT, changed=COUNT, unchanged=COUNT, added=COUNT, removed=COUNT)
        ),
        nodes=listed(NODE),
        totals=document_of(before=TOTALS, after=TOTALS),
    ),
}
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
    """The JSON document that a command prints, held against the verb's schema, and against the manual's."""

    def call(*words: object, code: int = 0) -> dict[str, Any]:
        assert main.main([*map(str, words), "--json", "--quiet"]) == code
        out = capsys.readouterr().out
        found: dict[str, Any] = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        jsonschema.validate(found, SCHEMAS[str(words[0])])
        jsonschema.validate(found, documents.schema(str(words[0])))
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
    jsonschema.validate(found, SCHEMAS["verify"])
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
