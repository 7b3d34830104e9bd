"""Kept memory and peak of a training step are those of the live storages in a real step on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from explorer.session import Session  # noqa: E402


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages that operators create, until nothing references them."""

    def __init__(self, existing: list[Any]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = dict.fromkeys((t.untyped_storage()._cdata for t in existing), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.known[storage._cdata] = storage.nbytes()
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self.release, storage._cdata)
        self.peak = max(self.peak, self.live)
        return result

    def release(self, key: int) -> None:
        self.live -= self.known.pop(key)


def run_step(model: Any, given: tuple[Any, ...]) -> tuple[int, int]:
    """Bytes that a real forward pass keeps for the backward pass, and the peak of both passes."""
    existing = [*model.parameters(), *model.buffers(), *given]
    stored = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in existing}.values())
    model.train()
    with LiveStorages(existing) as watch:
        result = model(*given)
        forward = watch.live
        outcome = [t for t in tree_leaves(result) if t.requires_grad]
        loss = torch.stack([t.sum().float() for t in outcome]).sum()
        with_result = watch.live
        del result, outcome
        kept = forward - (with_result - watch.live)
        loss.backward()
        del loss
    return kept, watch.peak + stored


class Reweighted(nn.Module):
    """Scores with a learned bias by distance, which torch does not fuse, and their softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(20, 60), nn.Embedding(15, 5)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).view(3, 8, 3, 5, 4).permute(2, 0, 3, 1, 4)
        distance = torch.arange(8)[:, None] - torch.arange(8)[None] + 7
        bias = self.bias(distance).permute(2, 0, 1)
        return F.scaled_dot_product_attention(*parts, attn_mask=bias[None]).flatten(1)


class AutocastLoss(nn.Module):
    """A layer that runs twice in one block of autocast, norms without float32 weights, and losses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(24, 24), nn.Linear(24, 7)
        self.norm, self.groups = nn.LayerNorm(24), nn.GroupNorm(3, 12)

    def forward(self, x: Any, labels: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.body(self.body(self.norm(x)).relu())
            scores = self.head(F.layer_norm(y, (24,)))
            image = self.groups(y.view(-1, 12, 2).bfloat16())
            return (
                F.cross_entropy(scores, labels),
                F.mse_loss(scores.float().exp(), scores.detach().float()),
                image,
            )


class Spectrum(nn.Module):
    """Writes into complex zeros that it creates, and folds overlapping columns."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.columns = nn.Linear(12, 12), nn.Linear(27, 27)

    def forward(self, x: Any, image: Any) -> Any:
        bands = torch.zeros(len(x), 7, dtype=torch.complex64, device=x.device)
        bands[:, :5] = torch.fft.rfft(self.product(x))[:, 2:]
        columns = self.columns(F.unfold(image, 3, padding=1).transpose(1, 2)).transpose(1, 2)
        return torch.fft.irfft(bands).sin(), F.fold(columns.exp(), (9, 9), 3, padding=1)


class Scalars(nn.Module):
    """Numbers that are tensors: a count of a mask, a class without a batch, a counter, reduced losses."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(9, 6), nn.BatchNorm1d(6)

    def forward(self, x: Any, label: Any) -> Any:
        y = self.norm(self.product(x))
        mean = torch.masked.mean(y, mask=torch.ones(len(x), 6, dtype=torch.bool))
        losses = F.smooth_l1_loss(y, x[:, :6]), F.soft_margin_loss(y, torch.ones(len(x), 6))
        probable = F.binary_cross_entropy(y.sigmoid(), x[:, 3:].sigmoid())
        return mean * torch.tensor(3.5), F.nll_loss(y[0].log_softmax(0), label), *losses, probable


MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "scores with a learned bias": (Reweighted, (torch.zeros(3, 8, 20),)),
    "autocast with losses": (AutocastLoss, (torch.zeros(10, 24), torch.arange(10) % 7)),
    "complex zeros and folded columns": (Spectrum, (torch.zeros(4, 12), torch.zeros(2, 3, 9, 9))),
    "scalars": (Scalars, (torch.zeros(5, 9), torch.tensor(2))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_keeps_and_needs_what_lives_in_a_real_step(name: str) -> None:
    make, given = MODELS[name]
    kept, peak = run_step(make(), given)
    for _ in range(2):  # the second session repeats calls that the first one recorded
        with Session(make(), inputs=given, cache=False) as session:
            step = session.training_memory().steps[0]
        assert (step.counted, step.mode, step.assumption) == ("autograd", "train", "")
        assert (step.kept_bytes, step.peak_bytes) == (kept, peak)


def test_a_sparse_gradient_of_a_bag_has_a_row_for_each_index() -> None:
    model = nn.Sequential(nn.EmbeddingBag(900, 32, mode="sum", sparse=True), nn.Linear(32, 3))
    with Session(model, inputs=torch.arange(3000).reshape(60, 50) % 900, cache=False) as session:
        step = session.training_memory(measured=True).steps[0]
    assert step.moments[-1].gradients == 3000 * (8 + 32 * 4) + (3 * 32 + 3) * 4
    assert step.measured is not None
    assert step.peak_bytes == pytest.approx(step.measured.peak_bytes, rel=0.02)


class MovesSaved(nn.Module):
    """Keeps what autograd saves on the CPU, and a part of it in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(11, 7), nn.Linear(7, 13)

    def forward(self, x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            y = self.one(x).sigmoid().cos()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            return self.two(y).tanh().exp()


class Relations(nn.Module):
    """Correlations and covariances of features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(9, 5)

    def forward(self, x: Any) -> Any:
        y = self.features(x)
        return torch.corrcoef(y), torch.cov(y.T, correction=0)


def needs_gradient(*shape: int) -> Any:
    return torch.zeros(shape, requires_grad=True)


class Pull(nn.Module):
    """An energy between points and a learned table, and a factor without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(6, 3))

    def forward(self, points: Any, factor: Any) -> Any:
        return (points[:, None] - self.table).pow(2).sum(-1).exp() * factor


@pytest.mark.parametrize(
    ("make", "make_inputs"),
    [
        (lambda: nn.Linear(5, 3), lambda: (needs_gradient(7, 5),)),
        (Pull, lambda: (needs_gradient(8, 3), torch.zeros(8, 6))),
        (Pull, lambda: (torch.zeros(8, 3), needs_gradient(8, 6))),
        (MovesSaved, lambda: (torch.zeros(6, 11),)),
        (Relations, lambda: (torch.zeros(5, 9),)),
    ],
)
def test_inputs_with_gradients_and_hooks_need_what_they_need_in_a_real_step(
    make: Any, make_inputs: Any
) -> None:
    kept, peak = run_step(make(), make_inputs())
    with Session(make(), inputs=make_inputs(), cache=False) as session:
        step = session.training_memory().steps[0]
    assert (step.counted, step.assumption) == ("autograd", "")
    assert (step.kept_bytes, step.peak_bytes) == (kept, peak)


def test_the_gradient_of_an_input_is_counted_as_a_gradient() -> None:
    model, inputs = nn.Linear(50, 30), needs_gradient(70, 50)
    with Session(model, inputs=inputs, cache=False) as session:
        step = session.training_memory(measured=True).steps[0]
        assert session.training().backward_macs == 2 * 70 * 50 * 30
    assert step.moments[-1].gradients == 4 * (30 * 50 + 30 + 70 * 50)
    assert step.measured is not None
    assert step.measured.peak_bytes >= step.peak_bytes
    assert inputs.grad is None


class Checks(nn.Module):
    """Refuses numbers that are not finite, and takes another way for large ones if `branches`."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.product, self.branches = nn.Linear(9, 16), branches

    def forward(self, x: Any) -> Any:
        y = self.product(x)
        assert torch.isfinite(y).all()
        if y.isnan().any():
            raise ValueError("not a number")
        return y.exp().sin().cos() if self.branches and y.mean() > 3 else y.exp()


@pytest.mark.parametrize("branches", [False, True])
def test_memory_that_depends_on_values_is_an_assumption(branches: bool) -> None:
    with Session(Checks(branches), inputs=torch.zeros(5, 9), cache=False) as session:
        step = session.training_memory().steps[0]
    assert step.counted == "autograd"
    assert step.assumption.startswith("assumed: the outcome of branches")
    assert step.kept_bytes == 5 * 16 * 4 * (2 if branches else 1)


@torch.compile
def doubled(x: Any) -> Any:
    return x * 2


class CallsCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return doubled(self.product(x))


def call_doubled(x: Any) -> Any:
    return doubled(x)


class CallsThrough(CallsCompiled):
    def forward(self, x: Any) -> Any:
        return call_doubled(self.product(x))


class HoldsCompiled(CallsCompiled):
    def __init__(self) -> None:
        super().__init__()
        self.after = [doubled]

    def forward(self, x: Any) -> Any:
        return self.after[0](self.product(x))


def hook_compiled() -> Any:
    model = nn.Linear(3, 3)
    model.register_forward_hook(lambda module, inputs, output: doubled(output))
    return model


def compile_in_place() -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.GELU())
    model[1].compile()
    return model


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: torch.compile(nn.Sequential(nn.Linear(3, 3), nn.GELU())), "the model"),
        (compile_in_place, "1"),
        (CallsCompiled, "doubled"),
        (CallsThrough, "doubled"),
        (HoldsCompiled, "doubled"),
        (hook_compiled, "doubled"),
    ],
)
def test_the_memory_of_a_compiled_part_is_an_assumption(make: Any, name: str, capsys: Any) -> None:
    with Session(make(), inputs=torch.zeros(2, 3), cache=False) as session:
        memory = session.training_memory()
    assert memory.steps[0].assumption.startswith(f"assumed: {name} keeps")
    assert memory.steps[0].assumption == memory.notes[0]


def test_gradients_in_torchscript_are_unknown_and_those_of_a_group_norm_are_not() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(5, 6), nn.Tanh()))
    model = nn.Sequential(
        scripted, nn.Unflatten(1, (6, 1)), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6, 2)
    )
    with Session(model, inputs=torch.zeros(3, 5), cache=False) as session:
        rows = {row.path: row for row in session.training().layers}
    assert rows["0.0"].status == "unknown"
    assert "TorchScript" in rows["0.0"].reason
    assert {path: row.status for path, row in rows.items() if row.status != "exact"} == {"0.0": "unknown"}
