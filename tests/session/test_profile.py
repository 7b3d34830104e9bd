"""Profile of an ONNX graph: the sum is the wall time, and every kernel is a layer or is named."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from explorer.base.errors import BadModel, Cancelled, Misuse
from explorer.engine.profile import onnx as timed_graph
from explorer.engine.profile.kernels import read_kernel_runs
from explorer.facts import Layer
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.facts.roofline import Machine
from explorer.session import Session

SAMPLES = Path(__file__).parent.parent.parent / "sample_models"
_FEW = ProfileSpec(steps=3, warmup=1)


def _profile(path: str | Path, spec: ProfileSpec = _FEW, **options: object) -> Profile:
    with Session(str(path), cache=False) as session:
        return session.profile(spec, **options)  # type: ignore[arg-type]


def _model(folder: Path, text: str, **weights: np.ndarray) -> str:
    model = parser.parse_model(text)
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    path = str(folder / "model.onnx")
    onnx.save(model, path)
    return path


def test_a_normalization_behind_a_join_has_the_time_of_its_own_kernel(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.random((32, 32, 3, 3), np.float32),
        "v": draw.random((16, 64, 1, 1), np.float32),
        **{name: draw.random(64, np.float32) + 0.5 for name in ("scale", "shift", "mean", "variance")},
    }
    path = _model(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[1, 32, 24, 24] x) => (float[1, 16, 24, 24] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Conv <pads = [1, 1, 1, 1]> (a, w)
            joined = Concat <axis = 1> (a, b)
            wide_bn = BatchNormalization (joined, scale, shift, mean, variance)
            cut = Relu (wide_bn)
            y = Conv (cut, v)
        }""",
        **weights,
    )
    found = _profile(path)
    rows = {one.kind: one for one in found.layers}
    assert rows["BatchNormalization"].seconds is not None
    assert rows["BatchNormalization"].within == ""
    assert "Conv" not in {one.name for one in found.other}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimize", ["none", "all"])
@pytest.mark.parametrize("name", ["lenet", "bert_tiny", "lstm_tiny", "mobilenet_small"])
def test_layers_and_what_is_none_and_the_overhead_are_the_wall_time(name: str, optimize: str) -> None:
    found = _profile(SAMPLES / f"{name}.onnx", ProfileSpec(steps=3, optimize=optimize))
    layers = sum(one.seconds.median for one in found.layers if one.seconds)
    other = sum(one.seconds for one in found.other)
    assert layers + other + found.overhead_seconds - found.slowed_seconds == pytest.approx(found.wall_seconds)
    assert min(found.overhead_seconds, found.slowed_seconds) == 0
    assert sum(one.seconds for one in found.operators) == pytest.approx(layers + other)
    top = [one for one in found.modules if "/" not in one.path.strip("/") and "." not in one.path]
    assert all(one.seconds >= one.self_seconds for one in top)
    assert found.runs == 3
    assert found.stopped == "steps"
    # a row is in one place: it runs, it is in another, or it was computed before
    paths = [one.path for one in found.layers]
    assert len(set(paths)) == len(paths)
    assert not set(paths) & set(found.removed)
    assert {one.within for one in found.layers if one.within} <= {o.path for o in found.layers if o.seconds}


def test_without_optimisation_every_layer_that_runs_has_its_own_time() -> None:
    found = _profile(SAMPLES / "lenet.onnx", ProfileSpec(steps=2, optimize="none"))
    assert [one.kind for one in found.layers if one.seconds][:3] == ["Conv", "Relu", "MaxPool"]
    assert not any(one.within for one in found.layers)
    assert all(one.op == one.kind for one in found.layers)
    assert found.other == ()


def test_a_fused_layer_says_in_which_its_work_is_done() -> None:
    found = {one.path: one for one in _profile(SAMPLES / "lenet.onnx").layers}
    relu, gemm = found["/Relu_2"], found["/fc1/Gemm"]
    assert (relu.within, relu.seconds) == ("/fc1/Gemm", None)
    assert gemm.op == "FusedGemm"
    assert gemm.holds == ("/Relu_2",)


def test_a_sum_inside_a_blocked_convolution_is_not_given_to_the_layer_behind_it() -> None:
    found = {one.path: one for one in _profile(SAMPLES / "mobilenet_small.onnx").layers}
    added = found["/features/features.3/Add"]
    if added.seconds is None:  # a processor without blocked layouts adds in a kernel of its own
        assert added.within == "/features/features.3/conv/conv.2/Conv"


def test_kernels_of_a_run_add_up_to_what_onnxruntime_says_of_it(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "told")
    session = onnxruntime.InferenceSession(str(SAMPLES / "lenet.onnx"), options)
    for _ in range(2):
        session.run(None, {"input": np.zeros((1, 1, 28, 28), np.float32)})
    path = session.end_profiling()
    events = [e for e in json.loads(Path(path).read_text()) if e["name"].endswith("_kernel_time")]
    runs = list(read_kernel_runs(path))
    assert [run.is_complete for run in runs] == [True, True]
    ours = sum(kernel.seconds for run in runs for kernel in run.kernels.values())
    assert ours == pytest.approx(sum(e["dur"] for e in events) * 1e-6)
    assert sum(kernel.calls for run in runs for kernel in run.kernels.values()) == len(events)


_BODIES = """
<ir_version: 9, opset_import: ["": 20, "my": 1]>
g (float[4,8] x, bool c, int64 n) => (float[4,8] z)
{
  a = my.F(x, W)
  b = my.F(a, W)
  d = If (c) <then_branch = t () => (float[4,8] q) { q1 = MatMul(b, W) q = Relu(q1) },
              else_branch = e () => (float[4,8] q) { q = Relu(b) }>
  z = Loop (n, c, d) <body = bb (int64 i, bool ci, float[4,8] s) => (bool co, float[4,8] so)
      { co = Identity(ci) s1 = MatMul(s, W) so = Relu(s1) }>
}
<domain: "my", opset_import: ["": 20]>
F (p, w) => (r) { u = MatMul(p, w) r = Relu(u) }
"""


def test_calls_branches_and_bodies_have_rows_and_times_of_their_own(tmp_path: Path) -> None:
    path = _model(tmp_path, _BODIES, W=np.eye(8, dtype=np.float32))
    np.savez(tmp_path / "in.npz", x=np.ones((4, 8), np.float32), c=np.array(True), n=np.array(5))
    found = _profile(path, ProfileSpec(steps=2, input=str(tmp_path / "in.npz")))
    timed = [one for one in found.layers if one.seconds]
    products = {one.path: one.calls for one in timed if one.kind == "MatMul"}
    calls = sorted(products.values())
    assert calls == [1, 1, 1, 5]  # two calls, a branch, a body five times
    assert len({path.split("/")[0] for path in products}) == 4
    assert {one.kind for one in timed} >= {"If", "Loop"}
    loop = next(one for one in found.modules if one.kind == "Loop")
    assert loop.self_seconds <= loop.seconds
    # the branch that was not taken has no time
    with Session(path, cache=False) as session:
        other = [row.path for row in session.analysis().layers if "else_branch" in row.path and not row.group]
    assert not set(other) & {one.path for one in timed}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["unrolled", "scan", "lab"])
def test_the_products_of_a_tiled_layer_are_its_rows(form: str, tmp_path: Path) -> None:
    from explorer.facts import TileSpec

    with Session(str(SAMPLES / "mlp_128.onnx"), cache=False) as session:
        session.tile(TileSpec(tile=(64, 64, 64), form=form), verify=False)  # type: ignore[arg-type]
        found = session.profile(_FEW)
        assert session.history().entries[1].profile == found
        assert session.history().entries[0].profile is None
    products = [one for one in found.layers if one.seconds and "MatMul" in one.op]
    assert sum(one.calls for one in products) == 8
    assert found.other == ()


@pytest.mark.parametrize("optimize", ["none", "all"])
def test_pieces_of_an_operator_without_a_kernel_are_its_own(optimize: str, tmp_path: Path) -> None:
    """onnxruntime opens HardSwish into nodes without names: the largest asks for the most memory."""
    path = _model(
        tmp_path,
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[1,8,64,64] x) => (float[1,8,32,32] z, float[1,8,64,64] y) {
          p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)
          h = HardSwish(p) n = Neg(h) z = HardSwish(n) y = HardSwish(x) }""",
    )
    found = _profile(path, ProfileSpec(steps=2, optimize=optimize))
    pieces = {one.path: one for one in found.layers if one.kind == "HardSwish"}
    assert [one.calls for one in pieces.values()] == [2, 2, 2]
    assert max(pieces, key=lambda path: pieces[path].allocated_bytes or 0) == "y"
    # of a processor whose blocks are 8 channels wide
    assert {one.name for one in found.other} <= {"ReorderInput", "ReorderOutput"}


def test_a_layer_that_runs_in_another_precision_keeps_its_time_and_casts_are_no_layer(tmp_path: Path) -> None:
    path = _model(
        tmp_path,
        """<ir_version: 9, opset_import: ["": 20]>
        g (float16[1,8,16,16] x) => (float16[1,8,16,16] z) {
          a = Conv<pads=[1,1,1,1]>(x, W) b = Relu(a) z = Add(b, x) }""",
        W=np.ones((8, 8, 3, 3), np.float16),
    )
    for optimize in ("none", "all"):
        found = _profile(path, ProfileSpec(steps=1, optimize=optimize))
        assert {one.kind for one in found.layers} == {"Conv", "Relu", "Add"}
        assert next(one for one in found.layers if one.kind == "Conv").seconds is not None
        assert {one.name for one in found.other} <= {"Cast", "ReorderInput", "ReorderOutput"}


def test_what_is_left_of_an_if_that_is_known_is_the_ifs(tmp_path: Path) -> None:
    path = _model(
        tmp_path,
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[4] x) => (float[4] z) {
          k = Constant<value = bool[1] {1}>() c = Squeeze(k)
          b = If (c) <then_branch = t () => (float[4] q) { q1 = Relu(x) q = Exp(q1) },
                      else_branch = e () => (float[4] r) { r = Neg(x) }>
          z = Abs(b) }""",
    )
    found = _profile(path, ProfileSpec(steps=1))
    assert {(one.kind, one.calls) for one in found.layers if one.seconds} == {("If", 2), ("Abs", 1)}
    assert found.other == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lenet", "bert_tiny", "lstm_tiny", "mobilenet_small"])
def test_every_mac_is_of_a_layer_that_has_time_or_is_in_one(name: str) -> None:
    dims = {"batch": 1, "sequence": 4} if name == "bert_tiny" else {}
    with Session(str(SAMPLES / f"{name}.onnx"), cache=False, dims=dims) as session:
        found = session.profile(ProfileSpec(steps=1))
        layers = session.analysis().layers
    assert sum(layers[one.layer].macs or 0 for one in found.layers if not layers[one.layer].group) == sum(
        layer.macs or 0 for layer in layers if not layer.group
    )


def test_a_batch_is_bound_and_rows_are_told(tmp_path: Path) -> None:
    found = _profile(SAMPLES / "bert_tiny.onnx", batch=4)
    assert (found.batch, found.rows) == (4, 4)
    assert found.inputs[0].startswith("input_ids: int64 [4, 1]")


@pytest.mark.parametrize(("most", "count"), [(1000, 6), (1, 1)])
def test_runs_of_large_graphs_are_kept_until_each_layer_has_an_interval_if_there_is_room(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_graph, "_EVENTS", 1)
    monkeypatch.setattr(timed_graph, "_MAX_EVENTS", most)
    found = _profile(SAMPLES / "lenet.onnx", ProfileSpec(steps=7))
    assert {one.seconds.count for one in found.layers if one.seconds} == {count}


def test_a_machine_gives_each_layer_its_least_time() -> None:
    from explorer.facts.roofline import Machine

    found = _profile(SAMPLES / "lenet.onnx", machine=Machine("slow", 1e6, 1e6))
    conv = next(one for one in found.layers if one.path == "/conv1/Conv")
    assert conv.limit_seconds == pytest.approx(117.6e3 / 1e6, rel=0.2)
    assert conv.efficiency == pytest.approx(conv.limit_seconds / conv.seconds.median)  # type: ignore[operator, union-attr]
    assert found.efficiency is not None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ProfileSpec(threads=10_000), "--threads: 10,000 threads on"),
        (ProfileSpec(device="quantum"), "--device: onnxruntime has no 'quantum' here"),
        (ProfileSpec(optimizer="adam"), "--optimizer: it applies only to a training step; add --train"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(spec: ProfileSpec, said: str) -> None:
    with pytest.raises(Misuse, match=r".") as refused:
        _profile(SAMPLES / "lenet.onnx", spec)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"steps": 0}, "ProfileSpec.steps: 0 cannot be taken; give a whole number of at least 1 or None"),
        ({"time_limit": 0.0}, "ProfileSpec.time_limit: 0.0 cannot be taken; give a number above 0"),
        ({"time_limit": float("nan")}, "ProfileSpec.time_limit: nan cannot be taken"),
        ({"time_limit": float("inf")}, "ProfileSpec.time_limit: inf cannot be taken"),
        ({"seed": -1}, "ProfileSpec.seed: -1 cannot be taken"),
        (
            {"optimize": "most"},
            "ProfileSpec.optimize: 'most' cannot be taken; give 'all', 'basic', 'extended', 'none' or None",
        ),
    ],
)
def test_what_no_model_can_be_timed_with_is_refused_before_one_is_named(field: Any, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        ProfileSpec(**field)
    assert str(refused.value).startswith(said)


def test_a_model_that_fails_says_at_which_layer_and_what_ran_before(tmp_path: Path) -> None:
    path = _model(
        tmp_path,
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[4] x, int64[1] s) => (float[N] z) { a = Relu(x) fold = Reshape(a, s) z = Neg(fold) }""",
    )
    np.savez(tmp_path / "in.npz", x=np.ones(4, np.float32), s=np.array([3]))
    with Session(path, cache=False) as session:
        names = [row.path for row in session.analysis().layers if row.kind == "Reshape"]
        with pytest.raises(BadModel) as failed:
            session.profile(ProfileSpec(input=str(tmp_path / "in.npz")))
    assert failed.value.where == names[0]
    assert "Input shape:{4}, requested shape:{3}" in failed.value.what
    assert "explorer_" not in failed.value.what
    assert failed.value.hint.startswith("1 kernel ran before the failure, ")


def test_a_model_that_cannot_be_loaded_is_a_line_with_its_layer(tmp_path: Path) -> None:
    path = _model(
        tmp_path,
        """<ir_version: 9, opset_import: ["": 20]>
        g (bfloat16[4] x) => (bfloat16[4] z) { z = Relu(x) }""",
    )
    with pytest.raises(BadModel) as failed:
        _profile(path)
    assert failed.value.where == "z"
    assert "explorer_" not in failed.value.what
    assert failed.value.hint == ""  # without optimisation it is the same


def test_no_file_is_left_when_it_is_stopped(tmp_path: Path) -> None:
    asked = iter([False] * 3)
    with Session(str(SAMPLES / "lenet.onnx"), cache=False, workdir=str(tmp_path)) as session:
        with pytest.raises(Cancelled):
            session.profile(_FEW, cancel=lambda: next(asked, True))
        assert os.listdir(tmp_path) == []
        assert session.history().entries[0].profile is None


def test_a_profile_that_could_not_be_written_whole_is_a_line(tmp_path: Path) -> None:
    cut = tmp_path / "profile.json"
    cut.write_text('[\n{"cat" : "Node","dur" :5,"ts" :1,"ph" : "X","name" :"a_kernel_time","args" : {"op_na')
    with pytest.raises(BadModel, match="could not write its complete profile; is the disk full"):
        list(read_kernel_runs(str(cut)))


def test_a_name_with_a_quotation_mark_is_read_too(tmp_path: Path) -> None:
    """onnxruntime writes names as they are, which is no JSON."""
    path = tmp_path / "profile.json"
    line = '{"cat" : "Node","pid" :1,"tid" :1,"dur" :%d,"ts" :%d,"ph" : "X","name" :"%s","args" : {%s}}'
    path.write_text(
        "[\n"
        + line % (7, 1, 'say "hi"_kernel_time', '"op_name" : "Relu"')
        + ",\n"
        + line % (9, 0, "model_run", "")
        + "\n]\n"
    )
    (run,) = read_kernel_runs(str(path))
    assert run.is_complete
    assert (run.kernels['say "hi"'].op, run.kernels['say "hi"'].calls) == ("Relu", 1)


@pytest.mark.slow
def test_two_models_are_timed_in_turn_and_a_tiled_layer_is_one_row(tmp_path: Path) -> None:
    from explorer.facts import TileSpec

    with Session(str(SAMPLES / "lenet.onnx"), cache=False) as session:
        session.tile(TileSpec(tile=(32, 32, 32)), verify=False)
        found = session.compare_profiles(0, 1, spec=ProfileSpec(steps=7, warmup=1))
        assert [entry.profile for entry in session.history().entries] == [found.before, found.after]
    assert found.difference == found.after.wall_seconds - found.before.wall_seconds
    rows = {one.path: one for one in found.layers}
    assert rows["/fc1/Gemm"].status == "tiled"
    assert rows["/fc1/Gemm"].before is not None
    assert rows["/fc1/Gemm"].after is not None
    assert rows["/Relu_2"].before is None  # it was done in the Gemm
    assert rows["/Relu_2"].after is not None
    assert len(rows) == len(found.layers)
    for one in found.layers:
        medians = [side.median if side else 0.0 for side in (one.before, one.after)]
        assert one.difference == medians[1] - medians[0]
        assert one.significant in (True, False)


@pytest.mark.slow
def test_every_kernel_is_in_one_difference() -> None:
    """All rows that ran, on both sides, are told once: the differences add up to that of all kernels."""
    from explorer.engine.diff import compare_trees
    from explorer.engine.profile.assemble import TimeSamples
    from explorer.engine.profile.compare import TimedModel, compare_timed
    from explorer.facts import TileSpec

    with Session(str(SAMPLES / "bert_tiny.onnx"), cache=False) as session:
        session.tile(TileSpec(tile=(32, 32, 32)), verify=False)
        both = [session.analysis(0), session.analysis(1)]
        graphs = session.parts.models.load_graph(0), session.parts.models.load_graph(1)
        profile = session.profile(_FEW, index=0)
    tree = compare_trees(*both, form="graph", graphs=graphs)
    timed = [
        TimedModel(profile, one.layers, {row.id: TimeSamples([1.0]) for row in one.layers if row.id % 3})
        for one in both
    ]
    found = compare_timed(timed[0], timed[1], tree)
    ran = [len(one.samples) for one in timed]
    assert sum(one.difference for one in found.layers) == pytest.approx(ran[1] - ran[0])
    assert sum(one.before.median for one in found.layers if one.before) == pytest.approx(ran[0])

    def sure(before: list[float], after: list[float]) -> set[bool | None]:
        sides = [
            TimedModel(profile, one.layers, {row.id: TimeSamples(runs) for row in one.layers})
            for one, runs in zip(both, (before, after), strict=True)
        ]
        return {one.significant for one in compare_timed(*sides, tree).layers if one.before and one.after}

    assert sure([1e-3] * 30, [2.0] * 3) == {True}  # too few for an interval, but all of them took longer
    assert sure([1e-3] * 30, [2.0]) == {None}
    assert sure([1e-3, 1e3] * 15, [2.0] * 3) == {None}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([1.0] * 9, [2.0] * 9, True),
        ([1.0, 2.0] * 9, [1.5] * 18, False),
        ([1.0] * 5, [2.0] * 9, None),
        (None, [2.0] * 9, True),
        (None, [0.0] * 9, False),
    ],
)
def test_a_difference_is_more_than_noise_where_intervals_do_not_meet(
    before: list[float] | None, after: list[float], said: bool | None
) -> None:
    from explorer.engine.profile.statistics import compute_spread
    from explorer.facts.profile.comparison import is_significant

    assert is_significant(None if before is None else compute_spread(before), compute_spread(after)) is said


@pytest.mark.parametrize(("few", "many"), [(1, 19), (2, 7), (2, 8), (3, 5), (5, 7)])
def test_ranks_of_equal_times_differ_in_one_of_twenty_at_most(few: int, many: int) -> None:
    """Every order in which runs of equal models can come: all are as likely."""
    from explorer.engine.profile.statistics import ranks_differ

    said = [
        ranks_differ([*map(float, places)], [float(at) for at in range(few + many) if at not in places])
        for places in itertools.combinations(range(few + many), few)
    ]
    assert sum(said) <= 0.05 * len(said)
    assert any(said) == (0.05 * len(said) >= 2)
    assert not ranks_differ([1.0] * few, [1.0] * many)


def test_a_profile_brings_columns_of_which_groups_have_the_sums() -> None:
    machine = Machine("npu", 1e12, 1e11)
    with Session(str(SAMPLES / "bert_tiny.onnx"), cache=False) as session:
        with pytest.raises(Misuse, match="needs a profile"):
            session.column("measured")
        found = session.profile(_FEW, machine=machine)
        names = ("measured", "measured_share", "efficiency")
        layers = session.analysis().layers
        measured, share, reached = (session.column(name) for name in names)
        table = session.layers("measured>0", ("measured",))
    timed = {one.layer: one for one in found.layers if one.seconds}
    for row in layers:
        inside = [one for at, one in timed.items() if at == row.id or _is_in(layers, at, row.id)]
        took = sum(one.seconds.median for one in inside if one.seconds)
        assert (took or None) == (None if np.isnan(measured[row.id]) else pytest.approx(measured[row.id]))
        if inside:
            assert share[row.id] == pytest.approx(sum(one.share for one in inside))
            known = [one for one in inside if one.limit_seconds is not None and one.seconds]
            spent = sum(one.seconds.median for one in known if one.seconds)
            least = sum(one.limit_seconds or 0 for one in known)
            assert (least / spent if least else 0) == pytest.approx(np.nan_to_num(reached[row.id]))
    # what a filter leaves adds up, too
    assert table.totals[0] == pytest.approx(measured[len(layers)])
    assert measured[len(layers)] + sum(one.seconds for one in found.other) + found.overhead_seconds == (
        pytest.approx(found.wall_seconds + found.slowed_seconds)
    )


def _is_in(layers: Sequence[Layer], at: int | None, group: int) -> bool:
    while at is not None:
        at = layers[at].parent
        if at == group:
            return True
    return False
