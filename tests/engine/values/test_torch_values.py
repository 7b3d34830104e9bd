"""Weights and activations of an nn.Module are what torch itself holds and computes."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402

from explorer.base.errors import BadModel, Cancelled, Misuse  # noqa: E402
from explorer.engine.values.activations import ActivationRequest, ActivationRun, measure_activations  # noqa: E402
from explorer.engine.values.numbers import SLAB  # noqa: E402
from explorer.engine.values.statistics import measure  # noqa: E402
from explorer.engine.values.torch_activations import record  # noqa: E402
from explorer.engine.values.torch_tensors import build_numbers, read_slabs  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402
from explorer.facts.values import Activations  # noqa: E402
from explorer.host import processor  # noqa: E402
from explorer.session import Session  # noqa: E402

# -- tensors


def whole(tensor: Any) -> Any:
    return np.concatenate([s.astype(np.float64) for s in read_slabs(tensor)])


@pytest.mark.parametrize(
    "kind", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "bool"]
)
def test_every_type_gives_the_numbers_that_torch_holds(kind: str) -> None:
    tensor = (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 5).to(getattr(torch, kind))
    np.testing.assert_array_equal(whole(tensor), tensor.double().numpy().ravel())
    found = measure(build_numbers(tensor, "a.b.weight"))
    assert (found.tensor.dtype, found.layer, found.bytes) == (kind, "a.b", tensor.nbytes)


@pytest.mark.parametrize("make", [lambda t: t.T, lambda t: t[:, ::2], lambda t: t[0].expand(3, -1)])
def test_views_are_read_in_order(make: Any) -> None:
    tensor = make(torch.arange(24.0).reshape(4, 6))
    np.testing.assert_array_equal(whole(tensor), tensor.contiguous().double().numpy().ravel())


def test_a_large_tensor_comes_in_slabs_without_a_copy() -> None:
    tensor = torch.zeros(3, SLAB // 4, dtype=torch.float32)
    parts = list(read_slabs(tensor))
    assert [p.nbytes for p in parts] == [SLAB] * 3
    assert all(np.shares_memory(p, tensor.numpy()) for p in parts)
    turned = torch.zeros(SLAB // 4, 3).T
    assert max(p.nbytes for p in read_slabs(turned)) <= SLAB


def test_a_sparse_parameter_counts_the_zeros_that_it_does_not_hold() -> None:
    dense = torch.zeros(10, 10)
    dense[2, 3] = 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = dense.to_sparse_csr()
    for tensor in (dense.to_sparse(), rows):
        found = measure(build_numbers(tensor, "w"))
        assert (found.zeros, found.maximum, found.mean) == (0.99, 4.0, 0.04)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.copy = nn.Linear(4, 11, bias=False)
        self.copy.weight.data.copy_(self.embed.weight.data)
        self.copy.weight.requires_grad_(False)
        self.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16), persistent=False)

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids)) + self.copy(self.embed(ids))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that `package.module:callable` finds."""
    made = types.ModuleType("stats_models")
    made.__dict__.update(
        tied=lambda: (Tied(), torch.zeros(2, 5, dtype=torch.int64)),
        dense=lambda: (nn.Sequential(nn.Linear(8, 4)), torch.zeros(2, 8)),
        nested=lambda: (Nested(), torch.zeros(2, 4)),
        huge=lambda: nn.Linear(1 << 20, 1 << 22),
        shy=Shy,
        image=lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
        breaks=lambda: (
            nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()),
            torch.zeros(2, 4),
        ),
        hollow=lambda: nn.Linear(4, 4, device="meta"),
    )
    monkeypatch.setitem(sys.modules, "stats_models", made)
    return "stats_models"


def test_tied_parameters_copies_and_buffers_are_told_apart(module: str) -> None:
    with Session(f"{module}:tied", seed=5) as session:
        found = session.weights()
        named = {t.tensor.name: t for t in found.tensors}
        assert list(named) == ["embed.weight", "copy.weight", "scale"]
        assert found.tied == (("embed.weight", "head.weight"),)
        assert found.duplicates == (("embed.weight", "copy.weight"),)
        assert [t.trainable for t in found.tensors] == [True, False, False]
        assert found.notes == ("random weights, seed 5",)
        assert [t.tensor.name for t in session.weights(["head"]).tensors] == ["head.weight"]


def test_random_weights_are_said_to_be_random_wherever_their_numbers_are_shown(module: str) -> None:
    random = ("random weights, seed 0",)
    with Session(f"{module}:dense") as session:
        assert session.weights().notes == session.activations().notes == random
        session.tile(TileSpec((4, 4, 4)), verify=False)
        assert session.weights().notes == session.activations().notes == random


@pytest.mark.slow
def test_weights_are_those_that_the_seed_makes() -> None:
    with Session("resnet18", seed=3) as session:
        found = {t.tensor.name: t for t in session.weights(["layer1.0"]).tensors}
    torch.manual_seed(3)
    from torchvision.models import resnet18

    expected = resnet18()
    weight = expected.layer1[0].conv1.weight.detach().double()
    assert found["layer1.0.conv1.weight"].mean == pytest.approx(float(weight.mean()), rel=1e-9)
    assert set(found) == {n for n in expected.state_dict() if n.startswith("layer1.0.")}


def test_weights_that_do_not_fit_in_memory_are_refused_before_they_are_made(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "free_bytes", lambda: 1 << 30)
    with Session(f"{module}:huge") as session, pytest.raises(Misuse, match=r"16\.00 TiB and 1\.00 GiB"):
        session.weights()


def test_without_the_system_s_word_memory_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise FileNotFoundError

    monkeypatch.setattr("psutil.virtual_memory", absent)
    assert processor.free_bytes() is None


# -- activations


class Shy(nn.Module):
    """Says nothing of what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, left: Any, right: Any) -> Any:
        return left * self.weight + right


def test_weights_need_no_input_and_activations_take_its_shape_from_the_file(
    module: str, tmp_path: Path
) -> None:
    given = str(tmp_path / "in.npz")
    np.savez(given, left=np.zeros((2, 3), np.float32), right=np.ones((1, 3), np.float32))
    with Session(f"{module}:shy") as session:
        assert session.weights().tensors[0].mean == 1
        found = session.activations(input=given)
        assert [(t.tensor.shape, t.mean) for t in found.tensors] == [((2, 3), 1.0)]
        with pytest.raises(Misuse, match="shape of the input"):
            session.activations()


def test_the_verb_takes_the_shapes_of_a_module_s_inputs_from_the_file(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli import main

    given = str(tmp_path / "in.npz")
    np.savez(given, left=np.zeros((2, 3), np.float32), right=np.ones((1, 3), np.float32))
    assert main.main(["activations", f"{module}:shy", "--input", given, "--json", "--quiet"]) == 0
    assert [t["shape"] for t in json.loads(capsys.readouterr().out)["tensors"]] == [[2, 3]]
    assert main.main(["activations", f"{module}:shy", "--quiet"]) == 2
    assert "the shape of the input 'left' is not known" in capsys.readouterr().err
    # an array without a name says nothing of two inputs
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    assert main.main(["activations", f"{module}:shy", "--input", str(tmp_path / "x.npy"), "--quiet"]) == 2
    assert "the shape of the input 'left' is not known" in capsys.readouterr().err


def test_the_verb_asks_for_no_input_to_show_weights(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    from explorer.cli import main

    assert main.main(["weights", f"{module}:shy", "--quiet"]) == 0
    assert "weight" in capsys.readouterr().out
    assert main.main(["weights", f"{module}:shy", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(t["name"], t["mean"]) for t in found["tensors"]] == [("weight", 1)]
    # what it stores is known; what it computes is not, and said to be unknown
    totals = found["totals"]
    assert (totals["params"], totals["weight_bytes"], totals["macs"], totals["coverage"]) == (3, 12, None, 0)
    assert found["model"]["inputs"] == []
    assert "not known" in found["model"]["notes"][0]


def test_the_verb_s_totals_are_those_of_the_input_that_was_run(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli import main

    given = str(tmp_path / "x.npy")
    np.save(given, np.ones((2, 3, 20, 24), np.float32))
    assert main.main(["activations", f"{module}:image", "--input", given, "--json", "--quiet"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert ran["model"]["inputs"][0]["shape"] == [2, 3, 20, 24]
    assert ran["totals"]["macs"] == 2 * 8 * 18 * 22 * 27
    shape = ["--input-shape", "input:2,3,20,24"]
    assert main.main(["info", f"{module}:image", *shape, "--json", "--quiet"]) == 0
    assert ran["totals"] == json.loads(capsys.readouterr().out)["totals"]


def test_a_module_that_fails_half_way_shows_what_ran_and_names_what_failed(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli import main

    output = str(tmp_path / "o.npz")
    command = ["activations", f"{module}:breaks", "--output", output, "--json", "--quiet"]
    assert main.main([*command, "--partial"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [t["layer"] for t in found["tensors"]] == ["0", "1"]
    (failed, reason), (after, why) = ((s["layer"], s["reason"]) for s in found["skipped"])
    assert (failed, after, why) == ("2", "3", "not reached: the model failed in 2")
    assert reason.startswith("failed here: RuntimeError: ")
    with np.load(output) as values:
        assert values.files == ["0", "1"]
    # as the analysis of the same model says it
    with Session(f"{module}:breaks", partial=True) as session:
        rows = {layer.path: layer.reason for layer in session.analysis().layers}
    assert rows["2"].startswith("failed here: RuntimeError: ")
    assert rows["3"] == why


def test_a_module_object_runs_on_the_inputs_that_came_with_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU())
    model[0].weight.data.copy_(torch.eye(3))
    with Session(model, inputs=torch.full((2, 3), 7.0)) as session:
        found = session.activations()
        assert [(t.minimum, t.maximum) for t in found.tensors] == [(7, 7), (7, 7)]
        assert found.inputs == ("input: float32 [2, 3], as given",)
    with Session(model, inputs=torch.full((2, 3), 7.0), dims={"batch": 5}) as session:
        found = session.activations()
        assert found.tensors[0].tensor.shape == (5, 3)
        assert "standard normal" in found.inputs[0]


def test_a_model_in_bfloat16_takes_a_file_in_float32(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).bfloat16()
    given = str(tmp_path / "x.npy")
    np.save(given, np.ones((4, 3), np.float32))
    with Session(model, inputs=torch.zeros(1, 3, dtype=torch.bfloat16)) as session:
        found = session.activations(input=given)
        assert (found.tensors[0].tensor.shape, found.tensors[0].tensor.dtype) == ((4, 2), "bfloat16")


def test_layers_that_wait_for_their_first_input_get_it_in_a_copy() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(5))
    with Session(model, inputs=torch.randn(2, 3, 8, 8)) as session:
        shapes = {t.tensor.name: t.tensor.shape for t in session.weights().tensors}
        assert shapes == {
            "0.weight": (4, 3, 3, 3),
            "0.bias": (4,),
            "2.weight": (5, 144),
            "2.bias": (5,),
        }
        assert [t.tensor.shape for t in session.activations().tensors] == [(2, 4, 6, 6), (2, 144), (2, 5)]
    assert isinstance(model[0].weight, nn.parameter.UninitializedParameter)


def test_layers_that_wait_take_the_shape_that_was_asked_for() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(5))
    with Session(model, input_shapes={"input": (None, (1, 3, 6, 6))}) as session:
        shapes = {t.tensor.name: t.tensor.shape for t in session.weights(["*.weight"]).tensors}
        assert shapes == {"0.weight": (4, 3, 3, 3), "2.weight": (5, 4 * 4 * 4)}


def test_layers_whose_buffers_wait_too_get_them_in_a_copy() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d())
    with Session(model, inputs=torch.randn(2, 3, 8, 8)) as session:
        shapes = {t.tensor.name: t.tensor.shape for t in session.weights(["1"]).tensors}
        assert shapes["1.running_mean"] == shapes["1.weight"] == (4,)
        assert [t.tensor.shape for t in session.activations().tensors] == [(2, 4, 6, 6)] * 2
    assert isinstance(model[1].running_mean, nn.parameter.UninitializedBuffer)


def test_weights_in_the_handles_of_quantized_layers_are_opened() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
        model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
    with Session(model, inputs=torch.randn(2, 4)) as session:
        weight, bias = session.weights().tensors
        assert (weight.tensor.dtype, weight.tensor.shape, weight.layer) == ("int8", (5, 4), "0")
        truth = model[0].weight().dequantize().double()
        assert weight.minimum == pytest.approx(float(truth.min()), rel=1e-6)
        assert weight.mean == pytest.approx(float(truth.mean()), rel=1e-6)
        assert bias.tensor.dtype == "float32"
        found = session.activations()
        assert [t.layer for t in found.tensors] == ["0", "1"]
        assert not found.skipped


def test_a_module_without_values_is_refused(module: str) -> None:
    with Session(f"{module}:hollow") as session, pytest.raises(Misuse, match="on the meta device"):
        session.weights()


class Nested(nn.Module):
    """Calls one module three times, changes a value in place, and returns nested things."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.pair = Pair()
        self.silent = nn.Linear(4, 4)
        self.text = Text()

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = self.relu(self.step(x))
        self.text(x)
        return self.pair(x)


class Pair(nn.Module):
    def forward(self, x: Any) -> Any:
        return {"first": x + 1, "more": (x, [x * 2])}


class Text(nn.Module):
    def forward(self, x: Any) -> str:
        return "nothing"


def watched(
    model: Any, *args: Any, layers: tuple[str, ...] = (), output: str | None = None, **kwargs: Any
) -> Activations:
    def run(asked: ActivationRequest) -> Any:
        return ActivationRun((), record(model, [(args, kwargs)], asked))

    return measure_activations(run, layers, output=output)


def test_a_module_that_runs_three_times_has_three_entries(tmp_path: Path) -> None:
    model, x = Nested(), torch.randn(2, 4)
    path = str(tmp_path / "o.npz")
    found = watched(model, x, output=path)
    assert [(t.tensor.name, t.call) for t in found.tensors if t.layer == "step"] == [
        ("step", 0),
        ("step", 1),
        ("step", 2),
    ]
    with torch.no_grad(), np.load(path) as values:
        first = model.step(x)
        # as the layer put it out, before the activation behind it changed it in place
        np.testing.assert_array_equal(values["step"], first.numpy())
        second = model.step(first.relu())
        np.testing.assert_array_equal(values["step#2"], second.numpy())


def test_nested_outputs_are_named_after_their_places() -> None:
    found = watched(Nested(), torch.randn(2, 4))
    names = [t.tensor.name for t in found.tensors if t.layer == "pair"]
    assert names == ["pair.first", "pair.more.0", "pair.more.1.0"]


def test_what_did_not_run_or_gave_no_tensor_says_so() -> None:
    skipped = dict(watched(Nested(), torch.randn(2, 4)).skipped)
    assert skipped == {
        "silent": "it does not run on these inputs in evaluation mode",
        "text": "its output is not a tensor (str)",
    }


def test_compiled_parts_are_named_as_what_they_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.jit.script(nn.Linear(3, 3))
    found = watched(nn.Sequential(nn.Linear(3, 3), compiled, nn.ReLU()), torch.randn(2, 3))
    assert [t.layer for t in found.tensors] == ["0", "2"]
    assert dict(found.skipped).keys() == {"1"}


def test_the_model_is_left_as_it_was() -> None:
    """Whatever happens: no hooks, the same training state, weights untouched, attention's fast path back."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fast = torch.backends.mha.get_fastpath_enabled()

    def stop(*_: Any) -> None:
        raise Cancelled

    for asked, error in (
        (ActivationRequest((), None, 0, lambda *_: None, lambda *_: None), None),
        (ActivationRequest((), None, 0, lambda *_: None, stop), Cancelled),
    ):
        if error is None:
            record(model, [((torch.randn(3, 4),), {})], asked)
        else:
            with pytest.raises(error):
                record(model, [((torch.randn(3, 4),), {})], asked)
        with pytest.raises(BadModel, match=r"the model failed in 0: layer '0'"):
            record(model, [((torch.randn(3, 5),), {})], asked)
        assert [m.training for m in model] == [True, False, True]
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_fast_path_hides_no_layer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    found = watched(model, torch.randn(1, 3, 8))
    names = {t.layer for t in found.tensors}
    assert {"layers.0.linear1", "layers.1.self_attn", "layers.1.norm2"} <= names
    # behind a mask the fast path would pack the tokens that count, and the shapes with them
    mask = torch.tensor([[False, False, True]])
    masked = watched(model, torch.randn(1, 3, 8), src_key_padding_mask=mask)
    assert {t.tensor.shape for t in masked.tensors if t.layer == "layers.1.norm2"} == {(1, 3, 8)}


@pytest.mark.slow
def test_containers_are_watched_when_they_are_asked_for() -> None:
    with Session("alexnet") as session:
        found = session.activations(["features", "classifier.*"])
        assert found.tensors[0].tensor.shape == (1, 256, 6, 6)
        assert [t.layer for t in found.tensors[1:]] == [f"classifier.{i}" for i in range(7)]
        functional = session.activations(["flatten", "avgpool"])
        assert [t.layer for t in functional.tensors] == ["avgpool"]
        assert functional.skipped[0][0] == "flatten"
        with pytest.raises(Misuse, match="did you mean 'features'"):
            session.activations(["featurs"])


def test_ids_are_drawn_below_the_height_of_the_table_that_they_index(module: str) -> None:
    with Session(f"{module}:tied") as session:
        found = session.activations()
    assert "0 to 10, rows of the table it indexes, seed 0" in found.inputs[0]


@pytest.mark.slow
def test_an_input_of_another_size_than_the_model_s_own_is_taken(tmp_path: Path) -> None:
    given = str(tmp_path / "x.npy")
    with Session("resnet18") as session:
        np.save(given, np.zeros((2, 3, 64, 64), np.float32))
        found = session.activations(["fc"], input=given)
        assert found.tensors[0].tensor.shape == (2, 1000)
        np.save(given, np.zeros((2, 3, 64, 64)))
        with pytest.raises(Misuse, match="'x' is float64 there and float32 in the model"):
            session.activations(["fc"], input=given)
        np.save(given, np.zeros((2, 5, 64, 64), np.float32))
        with pytest.raises(BadModel, match="the model failed in conv1"):
            session.activations(["fc"], input=given)


def test_a_module_and_its_export_put_out_the_same(tmp_path: Path) -> None:
    """The same seed draws the same input for both; layer by layer the figures agree."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 5)
    ).eval()
    path = str(tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(1, 3, 16, 16),), path, dynamo=False)
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    ours = watched(model, torch.from_numpy(x)).tensors
    with Session(path) as session:
        theirs = session.activations(seed=0).tensors
    assert len(ours) == len(theirs) == 5
    for a, b in zip(ours, theirs, strict=True):
        assert a.tensor.shape == b.tensor.shape
        for name in ("minimum", "maximum", "mean", "std", "zeros"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_figures_go_through_the_worker(module: str) -> None:
    from explorer.process.client import EngineProcess

    engine = EngineProcess("alexnet")
    try:
        found = engine.submit("activations", ["features.0"]).future.result(timeout=120)
        assert found.tensors[0].tensor.shape == (1, 64, 55, 55)
        weights = engine.submit("weights", ["features.0"]).future.result(timeout=120)
        assert [t.tensor.name for t in weights.tensors] == ["features.0.weight", "features.0.bias"]
    finally:
        engine.close()


# -- what flows back


class Branches(nn.Module):
    """Works in place, calls a layer twice, and has one whose output nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.idle = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.relu, self.last = nn.ReLU(inplace=True), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.first(x))
        self.idle(x)
        return self.last(self.twice(self.twice(x)))


def flowing(found: Activations) -> dict[tuple[str, int], Any]:
    return {(stats.tensor.name, stats.call): stats for stats in found.tensors}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loss", ["sum", "mse", "cross-entropy", "given"])
@pytest.mark.parametrize("batch", [None, 2])
def test_gradients_are_those_of_torch(loss: str, batch: int | None, tmp_path: Path) -> None:
    model = Branches()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    target = torch.randn(5, 3) if loss != "cross-entropy" else torch.tensor([0, 2, 1, 1, 0])
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "t.npy", target.numpy())
    given = {"mse": (loss, "t.npy"), "cross-entropy": (loss, "t.npy"), "given": ("t.npy", None)}
    said, file = given.get(loss, (loss, None))
    with Session(model) as session:
        found = session.activations(
            input=str(tmp_path / "x.npy"),
            batch=batch,
            loss=str(tmp_path / said) if said.endswith(".npy") else said,
            target=str(tmp_path / file) if file else None,
            stat="rms,absmax",
            axis=1,
        )
    flown: dict[tuple[str, int], list[Any]] = {}
    for part, wanted in zip(x.split(batch or 5), target.split(batch or 5), strict=True):
        hidden = torch.relu(model.first(part))
        middle = model.twice(hidden)
        last = model.twice(middle)
        out = model.last(last)
        start = {
            "sum": lambda out: out.sum(),
            "mse": lambda out, wanted=wanted: ((out - wanted) ** 2).mean(),
            "cross-entropy": lambda out, wanted=wanted: (
                -torch.log_softmax(out, 1)[torch.arange(len(out)), wanted].mean()
            ),
            "given": lambda out, wanted=wanted: (out * wanted).sum(),
        }[loss](out)
        values = [(("relu", 0), hidden), (("twice", 0), middle), (("twice", 1), last), (("last", 0), out)]
        weights = (f"{layer}.weight" for layer in ("first", "twice", "last"))  # one is used twice
        values += [((name, 0), model.get_parameter(name)) for name in weights]
        for (key, _), gradient in zip(
            values, torch.autograd.grad(start, [v for _, v in values]), strict=True
        ):
            flown.setdefault(key, []).append(gradient)
    seen = flowing(found)
    for key, gradients in flown.items():
        whole = torch.cat(gradients).double()
        chosen = seen[key].chosen
        np.testing.assert_allclose(chosen["rms"], (whole**2).mean(0).sqrt(), rtol=1e-5)
        np.testing.assert_allclose(chosen["absmax"], whole.abs().amax(0), rtol=1e-5)
    roles = {row.tensor: row.role for row in found.statistics}
    assert (roles["twice"], roles["twice.weight"]) == ("gradient", "weight gradient")
    assert any("each of the 3 runs by itself" in note for note in found.notes) == (batch is not None)
    for name in ("idle", "idle.weight"):
        assert dict(found.skipped)[name].startswith("it has no gradient")
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_layers_without_parameters_and_frozen_ones_have_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)
    with Session(model, input_shapes={"input": (None, (2, 4))}) as session:
        found = session.activations(loss="sum")
    seen = flowing(found)
    assert set(seen) == {("0", 0), ("1", 0)}
    assert dict(found.skipped)["0.weight"] == "it is frozen (requires_grad is false), so it has no gradient"
    assert (seen["1", 0].minimum, seen["1", 0].maximum) == (1.0, 1.0)
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.slow
def test_gradients_of_weights_are_those_of_the_layers_that_are_asked_for(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from explorer.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "attentive.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
    )
    words = ["attentive.py:net", "--backward", "--input-shape", "src:1,3,8", "--quiet", "--csv"]
    held = []
    for layers in ([], ["--layer", "self_attn"], ["--op", "Linear", "--layer", "linear*"]):
        assert main(["activations", *words, "--stat", "rms", "--axis", "0", *layers]) == 0
        rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
        held.append(list(dict.fromkeys(row[3] for row in rows if row[2] == "weight gradient")))
    attention = [
        f"self_attn.{name}" for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    ]
    assert held[0][:4] == attention
    assert len(held[0]) == 12
    assert held[1] == attention
    assert held[2] == ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--loss", "sum"], "--backward"),
        (["--backward", "--loss", "huber"], "not a loss"),
        (["--backward", "--loss", "sum", "--target", "t.npy"], "needs no target"),
        (["--backward", "--loss", "cross-entropy", "--target", "t.npy"], "a class is outside 0 to 9"),
        (["--backward", "--loss", "mse", "--target", "t.npy"], "the first output is [1, 1000]"),
        (["--backward", "--loss", "t.npy"], "the first output is [1, 1000]"),
    ],
)
def test_a_loss_that_cannot_be_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from explorer.cli.main import main

    np.save(tmp_path / "t.npy", np.array([1000]))
    monkeypatch.chdir(tmp_path)
    assert main(["activations", "squeezenet1_1", "--layer", "classifier.1", *words]) == 2
    told = capsys.readouterr().err
    assert said.replace("to 9", "to 999") in told
    assert told.count("\n") <= 2


def test_what_flows_back_in_a_graph_is_not_known(capsys: Any) -> None:
    from explorer.cli.main import main

    assert main(["activations", "sample_models/lenet.onnx", "--backward"]) == 2
    assert "only modules have a backward pass" in capsys.readouterr().err


class Stored(nn.Module):
    """Reads the weight of a part that has no code of its own, as a converted ONNX graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Module()
        self.part.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.part.weight)  # type: ignore[arg-type]


def test_a_part_of_a_trace_that_only_stores_weights_is_not_called_idle(tmp_path: Path) -> None:
    file = tmp_path / "stored.pt"
    torch.jit.save(torch.jit.trace(Stored(), torch.ones(1, 4)), file)  # type: ignore[no-untyped-call]
    with Session(str(file), trust=True, input_shapes={"x": (None, (1, 4))}) as session:
        reasons = dict(session.activations().skipped)
    assert "only stores weights" in reasons["part"]
