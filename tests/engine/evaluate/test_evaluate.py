"""`explorer evaluate`: figures of models on a data file, against torch's losses over the whole."""

import csv
import json
import os
import sys
import tracemalloc

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import explorer
from explorer.base.errors import Cancelled, Misuse
from explorer.cli.main import main
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.session import Session

CLASSES = 7
CODE = """
import torch
from torch import nn

def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 7)), torch.zeros(1, 6)

def unsaid():
    return nn.Sequential(nn.Linear(6, 7), nn.Softmax(1))
"""


def _linear(path, *, batch="n", softmax=False, scale=1.0, name="x"):
    """y = x W + b of seeded numbers; returns W and b."""
    draw = np.random.default_rng(17)
    weight = draw.standard_normal((6, CLASSES)).astype(np.float32)
    bias = (draw.standard_normal(CLASSES) * scale).astype(np.float32)
    nodes = [helper.make_node("Gemm", [name, "w", "b"], ["y"])]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["y"], ["p"], axis=1))
    out = "p" if softmax else "y"
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 6])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [batch, CLASSES])],
        [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return weight, bias


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_to_evaluate.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_to_evaluate", None)


def _samples(count=203):
    draw = np.random.default_rng(3)
    return draw.standard_normal((count, 6)).astype(np.float32), draw.integers(0, CLASSES, count)


def test_figures_are_those_of_the_whole_file_whatever_the_batch(here):
    weight, bias = _linear("a.onnx")
    _linear("b.onnx", scale=1.4)
    x, y = _samples()
    np.savez("d.npz", x=x, y=y)
    a, b = (x @ weight + bias * scale for scale in (1.0, 1.4))
    for batch in (1, 64, 500):
        found = explorer.evaluate_files("a.onnx", "b.onnx", data="d.npz", batch=batch)
        assert (found.task, found.samples, found.labels, found.inputs) == ("classification", 203, "y", ("x",))
        first, second = found.models
        logits, labels = torch.from_numpy(a).double(), torch.from_numpy(y)
        assert first.accuracy == (a.argmax(1) == y).mean()
        assert first.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)
        five = logits.topk(5).indices
        assert first.top5 == (five == labels[:, None]).any(1).double().mean().item()
        assert first.agreement is None
        assert first.scores == "logits"
        beside = second.agreement
        assert beside.snr_db == pytest.approx(10 * np.log10((a**2).sum() / ((b - a) ** 2).sum()), rel=1e-4)
        assert beside.top1 == (a.argmax(1) == b.argmax(1)).mean()
        matrix = np.zeros((CLASSES, CLASSES), int)
        for confusion in second.confusions:
            matrix[confusion.label, confusion.predicted] = confusion.count
        for each in second.classes:
            matrix[each.label, each.label] = each.correct
        expected = np.zeros_like(matrix)
        np.add.at(expected, (y, b.argmax(1)), 1)
        assert (matrix == expected).all()
        assert second.confused == (b.argmax(1) != y).sum()


def test_a_model_fixed_to_a_batch_gives_the_same_figures(here):
    _linear("open.onnx")
    _linear("one.onnx", batch=1)
    _linear("eight.onnx", batch=8)
    x, y = _samples()
    np.savez("d.npz", x=x, y=y)
    found = explorer.evaluate_files("open.onnx", "one.onnx", "eight.onnx", data="d.npz", batch=50)
    for model in found.models[1:]:
        assert model.agreement.max_abs < 1e-5
        assert model.accuracy == found.models[0].accuracy
        assert sum(each.samples for each in model.classes) == 203


def test_probabilities_are_no_logits(here):
    _linear("a.onnx")
    _linear("soft.onnx", softmax=True)
    x, y = _samples()
    np.savez("d.npz", x=x, y=y)
    logits, soft = explorer.evaluate_files("a.onnx", "soft.onnx", data="d.npz").models
    assert (logits.scores, soft.scores) == ("logits", "probabilities")
    assert soft.loss == pytest.approx(logits.loss, rel=1e-4)


def test_a_table_and_arrays_say_the_same_and_modules_stand_beside_graphs(here):
    _linear("a.onnx")
    x, y = _samples(40)
    np.savez("d.npz", features=x, label=y)
    with open("d.csv", "w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["class", *(f"f{at}" for at in range(6))])
        write.writerows([label, *row.tolist()] for label, row in zip(y, x, strict=True))
    arrays = explorer.evaluate_files("a.onnx", "nets_to_evaluate:net", data="d.npz")
    table = explorer.evaluate_files("a.onnx", "nets_to_evaluate:net", data="d.csv", labels="class")
    for one, other in zip(arrays.models, table.models, strict=True):
        assert (one.accuracy, one.confusions) == (other.accuracy, other.confusions)
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert table.inputs == tuple(f"f{at}" for at in range(6))
    torch.manual_seed(5)
    own = torch.nn.Linear(6, CLASSES)(torch.from_numpy(x)).detach()
    expected = torch.nn.functional.cross_entropy(own.double(), torch.from_numpy(y)).item()
    assert arrays.models[1].loss == pytest.approx(expected, rel=1e-6)


def test_the_last_column_is_the_label_unless_the_model_takes_them_all(here):
    _linear("a.onnx")
    _linear("b.onnx", scale=2)
    x, y = _samples(20)
    np.savetxt("with.csv", np.c_[x, y], delimiter=";")
    np.savetxt("without.csv", x, delimiter=",")
    assert explorer.evaluate_files("a.onnx", data="with.csv").labels == "column 7"
    found = explorer.evaluate_files("a.onnx", "b.onnx", data="without.csv")
    assert (found.task, found.labels) == ("agreement", "")
    assert found.models[1].agreement.top1 is not None


def test_a_module_that_does_not_say_what_it_takes_takes_the_data(here):
    x, y = _samples(30)
    np.savez("d.npz", a=x, labels=y)
    found = explorer.evaluate_files("nets_to_evaluate:unsaid", data="d.npz")
    assert found.models[0].scores == "probabilities"
    assert any("random" in note for note in found.models[0].notes)


def test_numbers_to_be_met_are_a_regression(here):
    weight, bias = _linear("a.onnx")
    x, _ = _samples(90)
    target = (x @ weight).astype(np.float32) * np.geomspace(1, 100, weight.shape[1], dtype=np.float32)
    target[:, 0] = 3
    np.savez("d.npz", x=x, target=target)
    found = explorer.evaluate_files("a.onnx", data="d.npz", batch=7)
    gap = (x @ weight + bias).astype(np.float64) - target
    assert found.task == "regression"
    one = found.models[0]
    assert one.loss == pytest.approx((gap**2).mean(), rel=1e-5)
    assert one.mean_absolute == pytest.approx(np.abs(gap).mean(), rel=1e-5)
    spread = target.astype(np.float64).var(axis=0)[1:]  # the first does not vary, and has none
    assert one.r2 == pytest.approx((1 - (gap**2).mean(axis=0)[1:] / spread).mean(), rel=1e-5)
    assert one.accuracy is None


def test_rows_with_a_single_one_are_classes(here):
    _linear("a.onnx")
    x, y = _samples(50)
    np.savez("d.npz", x=x, y=np.eye(CLASSES, dtype=np.float32)[y])
    np.savez("plain.npz", x=x, y=y)
    a, b = (explorer.evaluate_files("a.onnx", data=name) for name in ("d.npz", "plain.npz"))
    assert a.task == "classification"
    assert a.models[0].loss == b.models[0].loss


def test_classes_on_another_axis_are_found_where_the_labels_lie(here):
    node = helper.make_node("Identity", ["x"], ["y"])
    shape = ["n", 3, 4, 5]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    draw = np.random.default_rng(1)
    x, y = draw.standard_normal((9, 3, 4, 5)).astype(np.float32), draw.integers(0, 3, (9, 4, 5))
    np.savez("d.npz", x=x, y=y)
    found = explorer.evaluate_files("m.onnx", data="d.npz", batch=4).models[0]
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(x).double(), torch.from_numpy(y)).item()
    assert found.loss == pytest.approx(expected, rel=1e-9)
    assert found.accuracy == (x.argmax(1) == y).mean()


def test_states_of_a_session_stand_beside_each_other(here, sample):
    x = np.random.default_rng(2).standard_normal((25, 16)).astype(np.float32)
    np.savez("d.npz", x=x, y=np.arange(25) % 5)
    seen = []
    with Session(sample("jsc_tiny_x10")) as session:
        session.tile(explorer.TileSpec(tile=(16, 16, 16)))
        others = [str(sample("jsc_tiny"))]
        found = session.evaluate("d.npz", states=(0, 1), others=others, batch=10, on_progress=seen.append)
        with pytest.raises(Cancelled):
            session.evaluate("d.npz", cancel=lambda: True)
    assert len(found.models) == 3
    assert found.models[1].agreement.snr_db > 100
    assert found.models[2].agreement.snr_db < 20
    assert [(p.done, p.total) for p in seen if p.phase == "evaluating"] == [(0, 25), (10, 25), (20, 25)]


def test_a_model_that_gives_nan_is_not_called_right(here):
    _linear("a.onnx", scale=float("nan"))
    x, _ = _samples(12)
    np.savez("d.npz", x=x, y=np.zeros(12, int))
    found = explorer.evaluate_files("a.onnx", data="d.npz").models[0]
    assert (found.accuracy, found.undefined, found.loss) == (0, 12, None)


def test_the_answer_is_a_table_and_json(here, capsys):
    _linear("a.onnx")
    _linear("b.onnx", scale=1.1)
    x, y = _samples(30)
    np.savez("d.npz", x=x, y=y)
    assert main(["evaluate", "a.onnx", "b.onnx", "--data", "d.npz"]) == 0
    said = capsys.readouterr().out
    assert all(
        word in said for word in ("accuracy", "cross entropy", "SNR dB", "predicted class", "reference")
    )
    assert main(["evaluate", "a.onnx", "a.onnx", "--data", "d.npz", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"][1]["agreement"]["snr_db"] == "inf"
    assert document["models"][1]["agreement"]["rms"] == 0


BAD = {
    "nan": ({"x": np.where(np.arange(60).reshape(10, 6) == 33, np.nan, 0).astype(np.float32)}, "sample 6"),
    "range": ({"y": np.array([0, 1, 2, 7, 0, 0, 0, 0, 0, 0])}, "the label 7 in sample 4 is not a class"),
    "below": ({"y": np.array([0, 1, 2, -1, 0, 0, 0, 0, 0, 0])}, "the label -1 in sample 4 is not a class"),
    "shape": ({"x": np.zeros((10, 5), np.float32)}, "a sample of 'x' is [5] there and [6] in a.onnx"),
    "type": ({"x": np.zeros((10, 6), np.uint8)}, "'x' is uint8 there and float32 in a.onnx"),
    "count": ({"y": np.zeros(9, int)}, "'y' has 9 samples and 'x' 10"),
    "empty": ({"x": np.zeros((0, 6), np.float32), "y": np.zeros(0, int)}, "there is no sample in it"),
    "labels": ({"y": np.zeros((10, 3), int)}, "do not go with an output"),
    "objects": ({"y": np.array(["a"] * 10)}, "'y' is not an array of numbers"),
}


@pytest.mark.slow
def test_no_class_of_a_wide_table_of_confusions_is_cut_at_sixty_columns(here, capsys, monkeypatch):
    _linear("a.onnx")
    x, y = _samples(140_000)
    np.savez("d.npz", x=x, y=y * 0)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["evaluate", "a.onnx", "--data", "d.npz", "--batch", "20000"]) == 0
    said = capsys.readouterr().out
    fact = explorer.evaluate_files("a.onnx", data="d.npz", batch=20_000).models[0]
    for confusion in fact.confusions:
        assert f" {confusion.count:,}" in said
    assert max(map(len, said.splitlines())) <= 60
    heads = [line.split() for line in said.splitlines() if line.split()[:1] == ["label"]]
    assert [word for words in heads for word in words[1:]] == [str(at) for at in range(CLASSES)]
    assert len(heads) > 1


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit_is_one_line(here, capsys, case):
    _linear("a.onnx")
    change, says = BAD[case]
    np.savez("d.npz", **({"x": np.zeros((10, 6), np.float32), "y": np.zeros(10, int)} | change))
    assert main(["evaluate", "a.onnx", "--data", "d.npz"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a,b\n1,2\n", (), "cells"),
        ("f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n1,2,x,4,5,6,0\n", (), "d.csv:3: 'x' in the column 'h' is no"),
        ("f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n1,2,nan,4,5,6,0\n", (), "NaN"),
        ("f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n1,2,4,5,6,0\n", (), "d.csv:3: it has 6 cells"),
        (
            "f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n1,2,3,4,5,6,0.5\n",
            ("--task", "classification"),
            "is not a class",
        ),
        ("f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n", ("--labels", "clas"), "did you mean 'class'"),
        ("f,g,h,i,j,k,class\n1,2,3,4,5,6,0\n", ("--scores", "z"), "no output is called 'z'"),
        ("", (), "there is no sample"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(here, capsys, text, options, says):
    _linear("a.onnx")
    (here / "d.csv").write_text(text)
    assert main(["evaluate", "a.onnx", "--data", "d.csv", *options]) == 2
    err = capsys.readouterr().err
    assert says in err or (says == "cells" and "a sample of 'x' is [1] there" in err)
    assert err.count("\n") == 1


def test_a_file_without_lines_and_a_pipe_are_refused_at_once(here, capsys):
    _linear("a.onnx")
    with open("image.csv", "wb") as file:
        file.truncate(1 << 40)
    os.mkfifo("pipe.csv")
    for name, says in (("image.csv", "more than 16 MiB"), ("pipe.csv", "not a regular file")):
        assert main(["evaluate", "a.onnx", "--data", name]) == 2
        assert says in capsys.readouterr().err


def test_one_model_without_labels_has_nothing_to_say(here):
    _linear("a.onnx")
    np.save("x.npy", np.zeros((4, 6), np.float32))
    with pytest.raises(Misuse, match="no second model to compare with"):
        explorer.evaluate_files("a.onnx", data="x.npy")


def test_batches_are_read_as_they_are_needed(here, monkeypatch):
    """Of a file no more than a batch is held, and a batch is what the runtime gets."""
    _linear("a.onnx")
    x, y = _samples(203)
    np.savez_compressed("d.npz", x=x, y=y)
    sizes = []
    run = RuntimeSession.run

    def watched(self, feeds, names=None):
        sizes.append(len(feeds["x"]))
        return run(self, feeds, names)

    monkeypatch.setattr(RuntimeSession, "run", watched)
    monkeypatch.setattr(np, "load", lambda *a, **k: pytest.fail("the whole file was loaded"))
    explorer.evaluate_files("a.onnx", data="d.npz", batch=100)
    assert sizes == [100, 100, 3]


@pytest.mark.slow
def test_a_table_is_never_in_memory_as_a_whole(here):
    _linear("a.onnx")
    x, y = _samples(8_000)
    np.savetxt("d.csv", np.c_[x, y], delimiter=",", fmt="%.3f")
    explorer.evaluate_files("a.onnx", data="d.csv", batch=8_000)  # what is imported and kept is there
    tracemalloc.start()
    explorer.evaluate_files("a.onnx", data="d.csv", batch=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.size * 8 / 2
