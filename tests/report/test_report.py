"""What a person reads: aligned, honest about what is unknown, and safe whatever a model file says."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from explorer.facts import (
    Analysis,
    Diff,
    Info,
    Layer,
    LeftOver,
    ModelInfo,
    NodeDiff,
    OpDiff,
    OpStat,
    OutputEvidence,
    Plan,
    Range,
    SiteEvidence,
    SitePlan,
    SkippedSite,
    TensorInfo,
    TiledMacs,
    TileResult,
    Totals,
    Verification,
)
from explorer.facts.comparison import Comparison, build_figure_table, collect_model_figures
from explorer.facts.emission import CodeEvidence, CodeProof
from explorer.features.compare import compare_words as compare
from explorer.features.emit.emit_words import code_proof
from explorer.features.tiling import tile_words as tile
from explorer.report.blocks import Block, Column, Line, Paragraph, Span, Table
from explorer.report.layout import Page
from explorer.report.present.compare import diff, verify
from explorer.report.present.look.info import info
from explorer.report.present.look.layers import describe_doubt
from explorer.report.present.look.ops import ops
from explorer.report.present.look.table import layers

TOTALS = Totals(
    nodes=3,
    params=61_100_840,
    trainable_params=61_100_840,
    weight_bytes=244_403_360,
    macs=714_188_480,
    flops=1_428_376_960,
    elementwise_ops=2_000_000,
    activation_bytes_sum=4_194_304,
    activation_bytes_peak=1_048_576,
    bytes_read=250_000_000,
    bytes_written=4_194_304,
    coverage=1.0,
    peak_at="features.0",
)
MODEL = ModelInfo(
    source="alexnet",
    format="torch",
    inputs=(TensorInfo("x", "float32", (1, 3, 224, 224)),),
    outputs=(TensorInfo("linear", "float32", (1, 1000)),),
)
INFO = Info(MODEL, {"dims": {"batch": 8}, "weights": "random, seed 0"}, TOTALS, "explorer 0.1.0")
LAYERS = (
    Layer(0, None, "features", "features", "Sequential", 0, True, params=2_469_696, macs=655_566_528),
    Layer(
        1,
        0,
        "features.0",
        "0",
        "Conv2d",
        1,
        False,
        outputs=(TensorInfo("y", "float32", (1, 64, 55, 55)),),
        params=23_296,
        weight_bytes=93_184,
        macs=70_276_800,
        activation_bytes=774_400,
    ),
    Layer(
        2,
        0,
        "features.1",
        "1",
        "Mystery",
        1,
        False,
        calls=2,
        macs=None,
        elementwise_ops=None,
        status="unknown",
        reason="no rule for Mystery",
        shared_with=("features.0",),
    ),
)
SITE = SitePlan(
    name="classifier.1",
    op="Gemm",
    M=1,
    K=9216,
    N=4096,
    grid=(1, 144, 64),
    products=9216,
    utilisation=1 / 64,
    form="scan",
    edges="ragged",
    output="y",
    weight="w",
    bias=True,
)
PLAN = Plan(
    (64, 64, 64),
    "ragged",
    "auto",
    (SITE,),
    9216,
    37_748_736,
    714_188_480,
    (SkippedSite("attention", "MatMul", "both operands are activations"),),
)
SITE_PROOF = SiteEvidence(
    name="classifier.1",
    M=1,
    K=9216,
    N=4096,
    tiles=9216,
    structure="",
    max_abs=1.5e-7,
    max_rel=1e-6,
    mse=3e-15,
    cosine=0.9999999999,
    bound_ratio=0.63,
    limit=8.0,
    rms_before=2e-7,
    rms_after=1e-7,
    rows=9,
    nonfinite=0,
    passed=True,
    reason="",
)
OUTPUT_PROOF = OutputEvidence(
    name="linear",
    dtype="float32",
    shape=(1, 1000),
    max_abs=3e-8,
    max_rel=1e-6,
    mse=1e-17,
    cosine=1.0,
    reference="float64",
    rms_before=2e-9,
    rms_after=1e-9,
    max_before=1e-8,
    max_after=1e-8,
    nonfinite=0,
    equal=False,
    passed=True,
    reason="",
)
PROOF = Verification(
    passed=True,
    verdict_kind="equal",
    verdict="the tiled model is no less accurate than the original",
    before="alexnet",
    after="tiled.onnx",
    seeds=(0, 1, 2),
    inputs=("x: float32, standard normal",),
    sites=(SITE_PROOF,),
    outputs=(OUTPUT_PROOF,),
    seconds=2.5,
)
CHANGE = Diff(
    before="alexnet",
    after="tiled.onnx",
    equal=False,
    summary=(OpDiff("Gemm", 3, 1, 2, 0, 0), OpDiff("Conv", 5, 0, 5, 0, 0), OpDiff("Scan", 0, 0, 0, 1, 0)),
    nodes=(
        NodeDiff(
            "tiled", "classifier.1", "classifier.1", "Gemm -> 9,216 products", "Gemm", None, "outputs", 1.0,
            (("2DMM_64x64x64", 9216), ("Sum", 64)),
        ),
        NodeDiff("renamed", "relu", "act", "only the name", "Relu", "Relu", "structure", 0.9),
        NodeDiff("changed", "conv", "conv", "attribute group 1 -> 2", "Conv", "Conv", "name"),
        NodeDiff("added", None, "extra", "Identity", None, "Identity"),
    ),
    totals_before=TOTALS,
    totals_after=replace(TOTALS, nodes=35, activation_bytes_peak=2_097_152),
)  # fmt: skip


def text(blocks: Iterable[Block], width: int | None = None, **console: object) -> str:
    """The report as it is redirected, or with `width` as on a terminal of that many columns."""
    stream = io.StringIO()
    shown = Console(file=stream, width=width or 1 << 16, highlight=False, **console)  # type: ignore[arg-type]
    shown.print(Page(blocks, fit=width is not None), crop=False, soft_wrap=True)
    return stream.getvalue()


def row_with(word: str, report: str) -> str:
    rows = [line for line in report.splitlines() if word in line]
    assert rows, f"{word!r} is nowhere in:\n{report}"
    return rows[0]


def test_info_shows_rounded_and_exact_figures_side_by_side() -> None:
    report = text(info(INFO))
    assert row_with("MACs", report).split()[:4] == ["MACs", "714.19", "M", "714,188,480"]
    assert row_with("MACs", report).endswith("multiply-accumulates; 1 MAC = 2 FLOPs")
    assert "233.08 MiB" in row_with("Weight bytes", report)
    assert "244,403,360" in row_with("Weight bytes", report)
    assert "inputs too, no weights; at features.0" in row_with("Activations, peak", report)
    assert "[1, 3, 224, 224]" in row_with("inputs", report)
    assert "batch = 8" in report, "what was assumed is said"
    assert "random, seed 0" in report


def test_of_a_tiled_model_the_share_on_tiles_is_told_and_what_is_left_with_the_reason() -> None:
    left = (
        LeftOver("Conv", "features.0", 5, 655_566_528, "a convolution"),
        LeftOver("Mystery", "odd", 1, None, ""),
    )
    share = 58_621_952 / 714_188_480
    report = text(info(replace(INFO, tiled=TiledMacs(14_336, 58_621_952, 714_188_480, share, left))))
    assert "8.2 %" in row_with("MACs on tiles", report)
    assert "58,621,952" in row_with("MACs on tiles", report)
    assert "14,336 tile matmuls" in row_with("MACs on tiles", report)
    assert "features.0 and 4 more" in row_with("a convolution", report)
    assert "91.8 %" in row_with("a convolution", report)
    assert "?" in row_with("Mystery", report)
    nearly = text(info(replace(INFO, tiled=TiledMacs(1, 99_999, 100_000, 0.99999, left))))
    assert "99.9 %" in row_with("MACs on tiles", nearly), "never rounded up to all"
    whole = text(info(replace(INFO, tiled=TiledMacs(1, 5, 5, 1.0))))
    assert "padding" not in whole
    assert "padding included" in text(info(replace(INFO, tiled=TiledMacs(1, 5, 5, 1.0, padded=True))))
    assert "100 %" in row_with("MACs on tiles", whole)
    assert "not on tiles" not in whole
    unknown = text(info(replace(INFO, tiled=TiledMacs(None, None, None, None))))
    assert "?" in row_with("MACs on tiles", unknown)
    assert "on tiles" not in text(info(INFO))


def test_a_partial_count_is_a_lower_bound_and_never_claims_to_be_complete() -> None:
    partial = replace(TOTALS, coverage=0.9996)
    report = text(info(replace(INFO, totals=partial)))
    assert ">= 714.19 M" in row_with("MACs", report)
    assert ">= 714,188,480" in row_with("MACs", report)
    assert ">=" not in row_with("Parameters", report), "parameters are counted without any rule"
    assert "99.9 %" in row_with("Coverage", report)
    assert "100.0 %" not in report


@pytest.mark.parametrize(("status", "sign"), [("bound", "<= "), ("assumed", "~ ")])
def test_a_figure_that_is_not_exact_says_so_wherever_it_stands(status: Any, sign: str) -> None:
    """A user sees MACs in `info`, `layers`, `diff` and `compare`: none of them takes a bound for a count."""
    doubted = replace(TOTALS, status=status)
    about = replace(INFO, totals=doubted)
    report = text(info(about))
    assert f"{sign}714.19 M" in row_with("MACs", report)
    assert f"{sign}714,188,480" in row_with("MACs", report)
    assert sign not in row_with("Parameters", report)
    assert row_with("Arithmetic intensity", report).split()[2] == sign.strip(), "its bytes are exact"
    assert "100 %" in row_with("Coverage", report)
    assert "cost of each node is known" not in report
    assert f"{sign}714.19 M" in row_with("total", text(layers(Analysis(about, LAYERS))))
    change = text(diff.diff(replace(CHANGE, totals_before=replace(CHANGE.totals_before, status=status))))
    assert row_with("MACs", change).split()[1] == sign.strip()
    assert row_with("MACs", change).endswith("?"), "the difference of two bounds is nothing"
    figures = build_figure_table(["a", "b"], [collect_model_figures(INFO), collect_model_figures(about)])
    beside = text(compare.compare(Comparison((INFO, about), (), (), True, figures)))
    assert beside.count("714.19 M") == 2
    assert beside.count(f"{sign}714.19 M") == 1


def test_unknown_is_a_question_mark_and_never_zero() -> None:
    nothing = replace(TOTALS, macs=None, flops=None, bytes_read=None, coverage=0.5)
    report = text(info(replace(INFO, totals=nothing)))
    assert row_with("MACs", report).split()[:2] == ["MACs", "?"]
    assert "?" in row_with("Arithmetic intensity", report)
    mystery = row_with("Mystery", text(layers(Analysis(INFO, LAYERS))))
    assert " ? " in mystery
    assert "no rule for Mystery" in mystery


def test_symbolic_dimensions_come_with_the_option_that_binds_them() -> None:
    inputs = (TensorInfo("ids", "int64", ("batch", "sequence")),)
    symbolic = replace(INFO, model=replace(MODEL, inputs=inputs), assumptions={"dims": {"batch": 1}})
    report = text(info(symbolic))
    assert "--dim sequence=1" in report
    assert "--dim batch" not in report, "it is bound already"


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("exact", "", ""),
        ("bound", "nonzero", "upper bound: nonzero"),
        ("bound", "assumed: a value taken as 1", "assumed: a value taken as 1"),
        ("unknown", "no rule", "no rule"),
    ],
)
def test_what_is_not_exact_says_what_it_is_instead(status: Any, reason: str, said: str) -> None:
    """In the table of layers, and on the page of `explorer report`."""
    assumed = reason == "assumed: a value taken as 1"
    row = Layer(0, None, "a", "a", "X", 0, False, status=status, reason=reason, assumed=assumed)
    assert describe_doubt(row) == said


def test_layers_are_indented_as_they_are_nested() -> None:
    report = text(layers(Analysis(INFO, LAYERS)))
    assert row_with("Sequential", report).startswith("features")
    conv = row_with("Conv2d", report)
    assert conv.startswith("  0 ")
    for figure in ("[1, 64, 55, 55]", "23.30 k", "91.00 KiB", "70.28 M", "9.8 %"):
        assert figure in conv
    assert "Mystery, 2 calls" in row_with("Mystery", report), "how often it is called"
    assert "shared with features.0" in row_with("Mystery", report)
    assert "714.19 M" in row_with("total", report)


def test_a_share_that_would_round_to_nothing_says_so() -> None:
    tiny = replace(LAYERS[1], macs=1000)
    assert "<0.1 %" in row_with("Conv2d", text(layers(Analysis(INFO, (tiny,)))))


def test_operators_show_the_range_of_every_attribute() -> None:
    stats = (
        OpStat(
            "Conv",
            5,
            655_566_528,
            2_469_696,
            0,
            {
                "kernel_shape": Range([3, 3], [11, 11], 3, (([3, 3], 3), ([5, 5], 1), ([11, 11], 1))),
                "group": Range(1, 1, 1, ((1, 5),)),
                "pads": Range(None, None, 2, (([0, 0], 1), ([1, 1, 1, 1], 4))),
                "channels": Range(3, 384, 40, tuple((i, 1) for i in range(16))),
            },
        ),
        OpStat("Relu", 7, 0, 0, 100, {}),
    )
    report = text(ops(INFO, stats))
    assert "91.8 %" in row_with("Conv ", report)
    assert "[3, 3] .. [11, 11]   ([3, 3] ×3, [5, 5], [11, 11])" in row_with("kernel_shape", report)
    assert row_with("group", report).split() == ["group", "1"]
    assert "[0, 0], [1, 1, 1, 1] ×4" in row_with("pads", report)
    assert "and 24 more" in row_with("channels", report), "a list that was cut says so"


def test_tiling_says_what_was_tiled_what_was_left_and_why() -> None:
    report = text(tile.plan(PLAN, "alexnet"))
    site = row_with("classifier.1", report)
    for piece in ("Gemm + bias", "9,216", "4,096", "1 x 144 x 64", "1.6 %", "scan"):
        assert piece in site
    assert "both operands are activations" in row_with("attention", report)
    assert "64x64x64" in report
    assert "5.3 %" in report, "the share of the model's MACs that is tiled"


def test_a_tiling_ends_with_proof_change_file_and_the_next_command() -> None:
    report = text(tile.tile(TileResult(PLAN, "out file.onnx", PROOF, 0.3, "…"), "alexnet", CHANGE))
    order = [
        report.index(w) for w in ("tile matmuls", "Proof", "What changed", "wrote out file.onnx", "next")
    ]
    assert order == sorted(order)
    assert "explorer diff alexnet 'out file.onnx'" in report, "ready to be pasted into a shell"


def test_a_tiling_that_was_not_verified_says_so() -> None:
    report = text(tile.tile(TileResult(PLAN, "out.onnx", None, 0.3, ""), "alexnet", CHANGE))
    assert "Not verified" in report


def test_a_plan_alone_says_that_nothing_was_written() -> None:
    report = text(tile.tile(TileResult(PLAN, "", None, 0.0, ""), "alexnet", None))
    assert "no file was written" in report
    assert "-o FILE" in report


def test_a_tiling_that_failed_its_proof_says_so_and_points_at_no_file() -> None:
    failed = replace(
        PROOF,
        passed=False,
        verdict_kind="different",
        verdict="tile (0, 3) of classifier.1 is not its slice of the weight",
    )
    report = text(tile.tile(TileResult(PLAN, "", failed, 0.3, ""), "alexnet", None))
    assert "DIFFERENT" in report
    assert "wrote" not in report.replace("no file was written", "")
    assert "no file was written" in report
    assert "Add -o FILE" not in report
    assert "next" not in report


def test_a_tiling_that_failed_its_proof_says_how_to_find_the_layer() -> None:
    failed = replace(
        PROOF, passed=False, verdict_kind="different", verdict="different: output 'y'", after="tiled.onnx"
    )
    command = "explorer tile alexnet -o tiled.onnx --tile 64x64x64"
    report = text(tile.tile(TileResult(PLAN, "", failed, 0.3, command), "alexnet", None, ("--dim", "n=1")))
    first, second = (line for line in report.splitlines() if "explorer " in line)
    assert f"{command} --no-verify" in first, "the file has to be there"
    assert "explorer blame alexnet tiled.onnx --dim n=1" in second
    assert "explorer diff" not in report


def test_the_evidence_stands_beside_the_verdict() -> None:
    report = text(verify.verification(PROOF))
    assert "equal" in report
    assert "no less accurate" in report
    site = row_with("classifier.1", report)
    for piece in ("9,216", "1.5e-07", "3.0e-15", "0.63 u, limit 8 u", "2.0e-07 -> 1.0e-07", "ok"):
        assert piece in site
    assert "3 random inputs, seeds 0, 1, 2" in report


@pytest.mark.parametrize("width", [80, 100])
def test_a_diff_and_a_verdict_keep_names_apart_on_a_terminal(width: int) -> None:
    names = [
        f"/features/features.{block}/conv/conv.{part}/conv.{part}.0/Conv"
        for block in range(2, 6)
        for part in range(2)
    ]
    tiled, renamed = CHANGE.nodes[:2]
    nodes = (
        *(replace(tiled, before=name, after=name) for name in names),
        *(replace(renamed, before=f"{name}_old", after=f"{name}_new") for name in names[:3]),
    )
    report = text(diff.diff(replace(CHANGE, nodes=nodes)), width)
    shown = [
        re.split(r"\s{2,}", line.strip())[1] for line in report.splitlines() if line.startswith("  tiled")
    ]
    assert len(set(shown)) == len(names), shown
    changes = [line for line in report.splitlines() if line.startswith("  renamed")]
    assert len(set(changes)) == 3
    assert all("old ->" in line and "new" in line for line in changes), changes
    sites = tuple(replace(SITE_PROOF, name=name) for name in names)
    verdict = text(verify.verification(replace(PROOF, sites=sites)), width)
    rows = [line for line in verdict.splitlines() if "9,216" in line and "conv." in line]
    assert [row.split("   ")[0].strip().removeprefix("features.") for row in rows] == [
        f"{block}/conv.{part}.0 Conv" for block in range(2, 6) for part in range(2)
    ]
    assert "features.2" in rows[0] or "matmul features…" in verdict, "what is left out stands in the title"


def test_a_difference_is_named_with_its_place_and_its_reason() -> None:
    bad_site = replace(SITE_PROOF, passed=False, structure="tile (0, 0, 3) is transposed", reason="")
    bad_output = replace(OUTPUT_PROOF, passed=False, nonfinite=2, max_abs=float("nan"), reason="2 new NaN")
    found = replace(
        PROOF,
        passed=False,
        verdict_kind="different",
        verdict="different",
        sites=(bad_site,),
        outputs=(bad_output,),
    )
    report = text(verify.verification(found))
    assert "DIFFERENT" in report
    assert "tile (0, 0, 3) is transposed" in report
    assert "2 new NaN" in report
    assert "2 NaN or Inf" in row_with("float32 [1, 1000]", report)
    assert "nan" in row_with("float32 [1, 1000]", report)


def test_what_could_not_be_compared_is_a_question_mark() -> None:
    unknown = replace(OUTPUT_PROOF, rms_before=None, rms_after=None, mse=None, reference="the run failed")
    report = text(verify.verification(replace(PROOF, outputs=(unknown,))))
    assert "?" in row_with("float32 [1, 1000]", report).split()


def test_a_diff_counts_by_operator_and_explains_every_row() -> None:
    report = text(diff.diff(CHANGE))
    assert row_with("Gemm ", report).split() == ["Gemm", "3", "2", "1", "-"]
    assert "Gemm -> 9,216 tile matmuls" in row_with("tiled ", report)
    assert "9,216 2DMM_64x64x64" in report, "a tiled row opens"
    assert "relu -> act" in row_with("renamed", report)
    assert "matched by structure, 90 % sure" in row_with("renamed", report)
    assert "unchanged" in row_with("MACs", report)
    assert "+32" in row_with("Nodes", report)
    assert "+1.00 MiB  (x 2.0)" in row_with("Activations, peak", report)


def test_a_cost_that_is_partly_unknown_is_a_lower_bound_and_its_change_unknown() -> None:
    partly = replace(CHANGE, totals_before=replace(CHANGE.totals_before, coverage=0.5))
    report = text(diff.diff(partly))
    peak = row_with("Activations, peak", report)
    assert ">= 1.00 MiB" in peak
    assert peak.rstrip().endswith("?")
    assert "+32" in row_with("Nodes", report), "nodes and weights are known all the same"


def test_the_next_command_binds_what_the_tiling_bound() -> None:
    bound = replace(PLAN, dims={"batch": 1, "seq": 16})
    fact = TileResult(bound, "out.onnx", None, 0.3, "")
    report = text(tile.tile(fact, "m.onnx", None, ["--dim", "seq=16"]))
    assert "explorer diff m.onnx out.onnx --dim seq=16 --dim batch=1" in report


def test_a_plan_says_at_which_sizes_it_holds() -> None:
    report = text(tile.plan(replace(PLAN, dims={"batch": 8}), "alexnet"))
    assert "batch=8" in report.splitlines()[0]


def test_a_product_that_runs_often_or_stands_beside_others_counts_each() -> None:
    often = replace(SITE, name="step", calls=35)
    beside = replace(SITE, name="heads", batch=12, grid=(1, 1, 1), products=12)
    report = text(tile.plan(replace(PLAN, sites=(often, beside)), "m.onnx"))
    assert "35 runs" in row_with("step", report)
    assert "322,560" in row_with("step", report)
    assert "12 x (1 x 1 x 1)" in row_with("heads", report)


def test_sizes_that_stay_open_are_named_beside_those_that_the_figures_are_for() -> None:
    fact = replace(PLAN, dims={"batch": 1, "sequence": 64}, free=("batch", "sequence"))
    report = text(tile.plan(fact, "m.onnx"))
    assert "counted for batch=1, sequence=64" in report
    assert "takes every size of batch and sequence" in report


@pytest.mark.parametrize(("count", "folded"), [(23, False), (25, True)])
def test_many_products_that_are_alike_share_a_row_and_few_do_not(count: int, folded: bool) -> None:
    sites = tuple(replace(SITE, name=f"layer{i}.fc", output=f"y{i}", weight=f"w{i}") for i in range(count))
    other = replace(SITE, name="head", N=1000)
    report = text(tile.plan(replace(PLAN, sites=(*sites[1:], other, sites[0])), "m.onnx"))
    assert ("layer1.fc and 24 more" in report) == folded
    assert ("layer7.fc" in report) != folded
    assert "head" in report
    assert f"{25 * 9216:,}" in row_with("layer1.fc", report) or not folded
    assert ("--json" in report) == folded
    rows = [replace(CHANGE.nodes[0], before=site.name, after=site.name) for site in sites]
    changed = text(diff.diff(replace(CHANGE, nodes=(*rows, *CHANGE.nodes[1:]))))
    # three rows of other kinds make them many
    assert f"layer0.fc and {count - 1} more" in changed
    assert all(name in changed for name in ("act", "conv", "extra"))


def test_of_many_proofs_that_are_alike_the_worst_is_shown_and_every_failure() -> None:
    sites = [replace(SITE_PROOF, name=f"layer{i}.fc", bound_ratio=i / 10) for i in range(30)]
    sites[3] = replace(sites[3], passed=False, differs=True, reason="tile (0, 1, 2) is that of (0, 2, 1)")
    report = text(
        verify.evidence(
            replace(PROOF, passed=False, verdict_kind="different", verdict="different: x", sites=tuple(sites))
        )
    )
    assert "2.90 u, limit 8 u" in row_with("layer29.fc and 28 more", report)
    assert "DIFFERENT" in row_with("layer3.fc", report)
    assert "tile (0, 1, 2) is that of (0, 2, 1)" in report


def test_exact_sums_are_called_exact_and_what_was_not_measured_says_why() -> None:
    exact = replace(SITE_PROOF, bound_ratio=None, rms_after=0.0)
    unknown = replace(SITE_PROOF, name="other", bound_ratio=None, rms_after=None)
    output = replace(OUTPUT_PROOF, rms_before=None, rms_after=None, reason="no float64: no such operator")
    report = text(verify.evidence(replace(PROOF, sites=(exact, unknown), outputs=(output,))))
    assert " exact " in row_with("classifier.1", report)
    assert " ? " in row_with("other", report)
    assert "no float64: no such operator" in report


def test_exact_sums_that_the_original_misses_say_what_it_did() -> None:
    far = replace(SITE_PROOF, bound_ratio=None, rms_after=0.0, max_abs=17.0, reason="the original saturates")
    near = replace(far, name="other", max_abs=1e-6, reason="as it should be")
    report = text(verify.evidence(replace(PROOF, sites=(far, near))))
    assert "the original saturates" in report
    assert "as it should be" not in report


def test_identical_models_list_nothing() -> None:
    same = replace(CHANGE, equal=True, nodes=(), summary=(OpDiff("Gemm", 3, 0, 3, 0, 0),))
    report = text(diff.diff(same))
    assert "identical" in report
    assert "Gemm" not in report


def test_models_that_differ_in_names_only_are_equal_and_say_so() -> None:
    row = NodeDiff("renamed", "fc", "linear", "another name", "Gemm", "Gemm", "structure", 0.95)
    report = text(diff.diff(replace(CHANGE, equal=True, nodes=(row,))))
    assert "only names" in report
    assert "fc -> linear" in report


HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202egnp\n\tend"


def test_nothing_from_a_model_file_reaches_the_terminal_as_an_escape_or_as_markup() -> None:
    evil_layer = replace(LAYERS[1], name=HOSTILE, kind=HOSTILE, reason=HOSTILE, shared_with=(HOSTILE,))
    evil_model = replace(MODEL, source=HOSTILE, producer=HOSTILE, notes=(HOSTILE,))
    evil_model = replace(
        evil_model, inputs=(TensorInfo(HOSTILE, HOSTILE, (HOSTILE, None), conflict=HOSTILE),)
    )
    evil_info = replace(INFO, model=evil_model, assumptions={HOSTILE: HOSTILE, "dims": {HOSTILE: 1}})
    evil_site = replace(SITE, name=HOSTILE, op=HOSTILE)
    evil_proof = replace(
        PROOF,
        verdict=HOSTILE,
        before=HOSTILE,
        inputs=(HOSTILE,),
        sites=(replace(SITE_PROOF, name=HOSTILE, passed=False, reason=HOSTILE),),
    )
    evil_diff = replace(
        CHANGE, nodes=(NodeDiff("tiled", HOSTILE, HOSTILE, HOSTILE, children=((HOSTILE, 2),)),)
    )
    reports = [
        info(
            replace(evil_info, tiled=TiledMacs(1, 1, 3, 1 / 3, (LeftOver(HOSTILE, HOSTILE, 2, 2, HOSTILE),)))
        ),
        layers(Analysis(evil_info, (evil_layer,))),
        ops(
            evil_info, (OpStat(HOSTILE, 1, 1, 1, 1, {HOSTILE: Range(HOSTILE, HOSTILE, 1, ((HOSTILE, 1),))}),)
        ),
        tile.tile(
            TileResult(replace(PLAN, sites=(evil_site,)), HOSTILE, evil_proof, 1, ""), HOSTILE, evil_diff
        ),
        verify.verification(evil_proof),
        diff.diff(evil_diff),
    ]
    for blocks in reports:
        for width in (None, 80):
            report = text(blocks, width)
            assert "[bold red]x[/]" in report or "…" in report
            assert all(c.isprintable() or c == "\n" for c in report)
            # a wrapped line is indented, and what follows a line break of the file would not be
            assert not any(line.startswith("end") for line in report.splitlines())


def test_redirected_text_has_no_colour_no_cut_and_no_blanks_at_the_end() -> None:
    long = replace(LAYERS[1], name="block." * 60 + "conv")
    report = text(layers(Analysis(INFO, (long,))))
    assert "block." * 60 + "conv" in report
    assert "\x1b" not in report
    assert not any(line != line.rstrip() for line in report.splitlines())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_keeps_within_a_terminal_and_keeps_its_names_apart(width: int) -> None:
    long = replace(LAYERS[1], name="block." * 30 + "conv")
    report = text(layers(Analysis(INFO, (*LAYERS, long))), width)
    table = report.split("\n\n", 1)[1]
    assert all(len(line) <= width for line in table.splitlines())
    row = row_with("  block", table)
    assert "…" in row
    assert "conv " in row, "so does its end, which tells it from its siblings"


def test_prose_wraps_with_its_indent_on_a_terminal_and_is_one_line_when_redirected() -> None:
    words = Paragraph("word " * 60, indent=4)
    lines = text([words], 50).splitlines()
    assert len(lines) > 1
    assert all(line.startswith("    word") and len(line) <= 50 for line in lines)
    assert len(text([words]).splitlines()) == 1


def test_wide_characters_stay_aligned() -> None:
    table = Table((Column("a"), Column("b")), [("層一", "x"), ("plain", "y")], indent=0)
    lines = text([table]).splitlines()
    assert lines[1] == "層一   x"
    assert lines[2] == "plain  y"


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict", newline="\n")
    console = Console(file=stream, width=100, highlight=False)
    console.print(Page([Line(("█▌ 2×3 · é", Span(" 層"))), *tile.plan(PLAN, "é")], fit=False), crop=False)
    stream.flush()
    assert raw.getvalue().decode("ascii").startswith("#= 2x3 - \\xe9 \\u5c64\n")


def test_a_sum_of_activations_below_the_peak_says_what_it_leaves_out() -> None:
    totals = replace(
        INFO.totals, activation_bytes_sum=1_000, activation_bytes_peak=2_000, activation_bytes_functional=500
    )
    assert "not the tensors inside a module" in row_with(
        "Activations, sum", text(info(replace(INFO, totals=totals)))
    )
    above = replace(totals, activation_bytes_sum=3_000)
    assert "inside a module" not in text(info(replace(INFO, totals=above)))


@pytest.mark.parametrize(("limit", "is_explained"), [(8.0, False), (8.71, True)])
def test_a_limit_above_the_usual_one_is_explained(limit: float, is_explained: bool) -> None:
    evidence = CodeEvidence(
        *("fc2", "Gemm", "site_001.c", 1, 120, 84, 1, ("dense",), False, 2.1, limit, 16, (), True),
        *("evidence", "", 0.1),
    )
    proof = CodeProof("code", "c", "gemmini", 2, "cc", (evidence,), "evidence", "equal on evidence", 0.2)
    lines = " ".join(text(code_proof(proof)).split())
    assert ("terms have mostly one sign" in lines) is is_explained
