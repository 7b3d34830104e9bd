"""The memory of a training step over time is what torch's own allocator and autograd hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from explorer.base.errors import Misuse  # noqa: E402
from explorer.cli.main import main  # noqa: E402
from explorer.engine.costs.training.memory import find_largest_batch  # noqa: E402
from explorer.facts.training import StepMemory  # noqa: E402
from explorer.session import Session  # noqa: E402
from tests.torch_counter import torch_counter  # noqa: E402

WITHIN = 0.02


class Encoder(nn.Module):
    """Like BERT: embeddings, encoder layers, a classifier of the first word."""

    def __init__(self, dropout: float = 0.1, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        one = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(one, layers)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Any) -> Any:
        return self.head(self.layers(self.words(ids))[:, 0])


class Many(nn.Module):
    """Operators whose backward looks at odd things: in place, statistics, masks, products of two values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.group, self.drop = nn.GroupNorm(2, 8), nn.Dropout2d(0.3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm(self.conv(x)))
        z = self.drop(self.group(y)).sigmoid() * y.tanh()
        flat = z.flatten(2)
        scores = (flat @ flat.transpose(1, 2)).softmax(-1)
        return nn.functional.silu(nn.functional.max_pool2d((scores @ flat).view_as(z), 2)).mean((2, 3))


class Frozen(nn.Module):
    """A trained head behind layers that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


def allocated(model: Any, given: Any) -> int:
    """Bytes that a forward pass leaves allocated on the CPU beside its result, as torch's profiler saw it."""
    model.train()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = model(given)
    left: int = sum(event.self_cpu_memory_usage for event in seen.events())
    return left - result.untyped_storage().nbytes()


def step(model: Any, given: Any, **how: Any) -> StepMemory:
    with Session(model, inputs=given) as session:
        found: StepMemory = session.training_memory(**how).steps[0]
    return found


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command prints."""

    def call(*words: str) -> str:
        assert main([*words, "--quiet"]) == 0
        return capsys.readouterr().out

    return call


IDS = torch.zeros(2, 48, dtype=torch.int64)
IMAGE = torch.zeros(2, 3, 32, 32)
MODELS: dict[str, tuple[Any, Any]] = {
    "encoder": (Encoder, IDS),
    "encoder whose attention is fused": (lambda: Encoder(0.0), IDS),
    "many operators": (Many, IMAGE),
    "a frozen body": (Frozen, IMAGE),
}
WHOLE: dict[str, tuple[Any, Any]] = {
    "resnet18": (lambda: torchvision.models.resnet18(), torch.zeros(2, 3, 64, 64)),
    "mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(), torch.zeros(2, 3, 64, 64)),
    "bert": (lambda: Encoder(0.1, 256, 6), torch.zeros(4, 128, dtype=torch.int64)),
}


def agrees(make: Any, given: Any) -> None:
    found, real = step(make(), given), allocated(make(), given)
    assert found.counted == "autograd"
    assert found.mode == "train"
    assert abs(found.kept_bytes - real) <= WITHIN * real


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_for_backward_is_what_torch_leaves_allocated(name: str) -> None:
    agrees(*MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_keep_what_torch_leaves_allocated(name: str) -> None:
    agrees(*WHOLE[name])


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("name", ["resnet18", "bert", "vgg16"])
def test_what_is_kept_is_what_the_snapshot_of_a_cuda_allocator_holds(name: str) -> None:
    vgg16 = (lambda: torchvision.models.vgg16(), torch.zeros(2, 3, 64, 64))
    make, given = WHOLE.get(name, vgg16)
    model, there = make().cuda().train(), given.cuda()
    model(there)  # libraries take their workspaces in the first run

    def held() -> int:
        blocks = [block for one in torch.cuda.memory_snapshot() for block in one["blocks"]]
        return sum(one["requested_size"] for one in blocks if one["state"] == "active_allocated")

    before = held()
    result = model(there)
    kept = held() - before - result.untyped_storage().nbytes()
    assert step(make(), given).kept_bytes == pytest.approx(kept, rel=0.02)


def test_a_moment_is_the_sum_of_its_kinds_and_the_peak_is_the_largest() -> None:
    found = step(Encoder(), IDS, optimizer="adam")
    for at in found.moments:
        kinds = at.parameters, at.optimizer, at.inputs, at.activations, at.gradients, at.temporary
        assert min(kinds) >= 0
        assert sum(kinds) == at.live_bytes
    assert (
        found.peak_bytes == max(at.live_bytes for at in found.moments) == found.moments[found.peak].live_bytes
    )
    assert [at.phase for at in found.moments] == sorted(
        (at.phase for at in found.moments), key=("forward", "backward", "step").index
    )
    assert {one.kind for one in found.holders} <= {
        "parameters",
        "optimizer",
        "activations",
        "gradients",
        "temporary",
    }
    assert sum(one.bytes for one in found.holders) <= found.peak_bytes


def test_gradients_and_optimizer_at_the_end_are_those_of_what_is_trained() -> None:
    model = Encoder()
    size = sum(p.nbytes for p in model.parameters())
    last = step(model, IDS, optimizer="adam").moments[-1]
    assert (last.phase, last.gradients, last.optimizer, last.activations) == ("step", size, 2 * size, 0)
    assert step(model, IDS, optimizer="sgd").moments[-1].optimizer == 0


@pytest.mark.slow
def test_checkpointing_trades_kept_bytes_for_products() -> None:
    """All products of the two layers are made again but the last of each, which nothing there needs."""
    model = Encoder()
    with Session(model, inputs=IDS) as session:
        found = session.training_memory(checkpoint=("layers.layers.*",))
        macs = {layer.path: layer.macs or 0 for layer in session.analysis().layers if not layer.group}
    one = found.steps[0]
    assert found.checkpointed == ("layers.layers.0", "layers.layers.1")
    assert one.plain_kept_bytes is not None
    assert one.kept_bytes < one.plain_kept_bytes / 4
    assert one.plain_peak_bytes is not None
    assert one.peak_bytes < one.plain_peak_bytes
    inside = sum(n for path, n in macs.items() if path.startswith("layers."))
    last = sum(n for path, n in macs.items() if path.endswith(".linear2"))
    assert inside - last <= one.recomputed_macs <= inside
    real = Encoder()
    for layer in real.layers.layers:
        forward = layer.forward
        layer.forward = lambda *a, f=forward, **k: torch.utils.checkpoint.checkpoint(  # type: ignore[assignment]
            f, *a, use_reentrant=False, **k
        )
    assert abs(one.kept_bytes - allocated(real, IDS)) <= WITHIN * one.kept_bytes + 16384
    assert one.recomputed_macs == (step_flops(real, IDS) - step_flops(Encoder(), IDS)) // 2


def step_flops(model: Any, given: Any) -> int:
    """What torch's own counter sees in a forward and a backward pass."""
    model.train()
    with torch_counter() as counter:
        model(given).sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    with Session("vgg16") as session:
        found = session.training_memory(batches=(1, 8, 32, 64, 128), card=4 << 30)
        assert [one.fits for one in found.steps] == [True, True, True, False, False]
        best = found.largest_batch
        assert best is not None
        assert 32 < best < 64
        both = session.training_memory(batches=(best, best + 1), card=4 << 30)
        assert [one.fits for one in both.steps] == [True, False]
        assert session.training_memory(card=1 << 29).largest_batch == 0


def test_a_search_for_a_batch_holds_where_memory_bends() -> None:
    for limit in (5, 40, 1000, 12345):
        best = find_largest_batch(lambda n: n * n + 3, limit)
        assert best * best + 3 <= limit < (best + 1) ** 2 + 3
    with pytest.raises(Misuse, match="does not grow"):
        find_largest_batch(lambda n: 7, 10)


def test_a_graph_is_counted_by_outputs_and_says_so(sample: Any) -> None:
    with Session(str(sample("lenet"))) as session:
        found, plain = session.training_memory(), session.training()
        one = found.steps[0]
        assert one.counted == "outputs"
        assert one.kept_bytes == plain.activation_bytes
        assert any("counted by the outputs of layers" in note for note in found.notes)
        assert one.moments[-1].gradients == plain.gradient_bytes
        with pytest.raises(Misuse, match="nothing can be checkpointed"):
            session.training_memory(checkpoint=("conv*",))


def test_a_pattern_that_means_no_module_is_refused_by_name() -> None:
    with Session("resnet18") as session, pytest.raises(Misuse, match="did you mean 'layer4'"):
        session.training_memory(checkpoint=("layer5",))


@pytest.mark.slow
def test_a_module_is_left_as_it_was() -> None:
    with Session("resnet18") as session:
        before = session.info()
        session.training_memory(checkpoint=("layer1",))
        assert session.info() == before
        assert session.training().forward_macs == before.totals.macs


@pytest.mark.slow
def test_the_command_sets_batches_side_by_side(said: Any) -> None:
    text = said("training", "vgg16", "--batch", "1,128", "--card", "8G", "--checkpoint", "features")
    assert "Memory over time" in text
    assert "parameters include buffers" in text
    assert "up to batch" in text
    assert "MACs again" in text


def test_a_picture_stacks_the_kinds(tmp_path: Path, said: Any) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "step.svg"
    said("plot", "alexnet", "--what", "memory-over-time", "--batch", "2,4", "-o", str(picture))
    drawn = picture.read_text()
    assert "activations" in drawn
    assert "backward" in drawn
    assert "batch 4, all" in drawn
    assert "128.00 MiB" in drawn, "bytes are counted in powers of two, and so are the ticks"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_measured_memory_is_that_of_the_count_and_of_workspaces(optimizer: Any) -> None:
    model = Many()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    fact = step(model, IMAGE, optimizer=optimizer, measured=True)
    measured = fact.measured
    assert measured is not None
    assert 0.98 * fact.peak_bytes <= measured.peak_bytes <= 1.25 * fact.peak_bytes
    phases = {"forward": measured.forward, "backward": measured.backward, "step": measured.step}
    assert max(phases[measured.peak_phase]) == measured.peak_bytes
    assert all(len(values) <= 256 for values in phases.values())
    held = fact.moments[-1].live_bytes - fact.moments[-1].temporary
    assert abs(phases["step"][-1] - held) <= WITHIN * held if phases["step"] else optimizer == "sgd"
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert step(model, IMAGE, optimizer=optimizer).measured is None


def _run_before(model: Any) -> Any:
    model(torch.rand(2, 6))
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6))),
        lambda: _run_before(nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 6)))),
        lambda: _run_before(nn.Sequential(prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.5))),
    ],
)
def test_a_module_that_stores_a_computed_weight_is_measured(make: Any) -> None:
    with Session(make(), inputs=torch.rand(2, 6), cache=False) as session:
        step = session.training_memory(measured=True).steps[0]
    assert step.measured is not None
    assert step.measured.peak_bytes >= step.kept_bytes


def test_a_step_that_cannot_be_measured_is_refused(sample: Any) -> None:
    with Session(str(sample("lenet"))) as session, pytest.raises(Misuse, match="open the PyTorch module"):
        session.training_memory(measured=True)
    with Session(Many(), inputs=IMAGE) as session, pytest.raises(Misuse, match="leave --checkpoint out"):
        session.training_memory(measured=True, checkpoint=("conv",))


def test_the_measured_line_lies_over_the_counted_areas(tmp_path: Path, said: Any) -> None:
    pytest.importorskip("matplotlib")
    words = ("sample_models/jsc.py:jsc_tiny_x10", "--batch", "8", "--measured")
    text = said("training", *words)
    assert "measured / counted" in text
    picture = tmp_path / "step.svg"
    said("plot", *words, "--what", "memory-over-time", "-o", str(picture))
    assert "measured on the CPU" in picture.read_text()
    said("plot", *words[:3], "--what", "memory-over-time", "-o", str(picture), "--force")
    assert "measured on the CPU" not in picture.read_text()


class HalfScripted(nn.Module):
    """A layer, and a compiled TorchScript part whose gradients torch cannot compute without values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.jit.script(nn.Sequential(nn.Linear(14, 18), nn.Sigmoid()))
        self.last = nn.Linear(18, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x)).exp()


def test_a_torchscript_part_of_a_module_has_a_figure_or_a_reason() -> None:
    with Session(HalfScripted(), inputs=torch.zeros(6, 14)) as session:
        memory = session.training_memory()
    assert memory.steps[0].counted == "autograd" or "counted by the outputs of layers" in memory.notes[0]
    assert memory.steps[0].kept_bytes >= 6 * 18 * 4
