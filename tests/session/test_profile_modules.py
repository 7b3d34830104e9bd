"""Profile of nn.Modules: the sum is the wall time, operators are as torch counts them, the module stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from explorer.base.errors import BadModel, Misuse
from explorer.engine.profile.torch.events import MODULE, FunctionRows, build_module_run, read_events
from explorer.facts import Layer
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.session import Session

_FEW = ProfileSpec(steps=2, warmup=1)
_STEP = ProfileSpec(steps=2, warmup=1, train=True)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.act(self.norm(self.fc(x))) + x) * 2


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Block(), _Block()
        self.head = nn.Linear(16, 3)
        self.unused = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.head(self.second(self.first(x))), -1)


def _profile(module: nn.Module, given: torch.Tensor, spec: ProfileSpec = _FEW, **options: Any) -> Profile:
    with Session(module, inputs=given, cache=False) as session:
        return session.profile(spec, **options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("spec", [_FEW, _STEP])
def test_layers_and_what_is_none_and_the_overhead_are_the_wall_time(spec: ProfileSpec) -> None:
    found = _profile(_Net(), torch.randn(8, 16), spec)
    layers = sum(one.seconds.median for one in found.layers if one.seconds)
    other = sum(one.seconds for one in found.other)
    assert layers + other + found.overhead_seconds - found.slowed_seconds == pytest.approx(found.wall_seconds)
    top = sum(one.seconds for one in found.modules if "." not in one.path)
    rest = sum(one.seconds.median for one in found.layers if one.path in ("head", "softmax") and one.seconds)
    assert top + rest == pytest.approx(layers)
    assert found.runs == 2
    assert found.profiler_overhead is not None
    assert found.runtime.startswith("torch ")
    assert "unused" in found.removed


def test_modules_and_the_functions_that_they_call_have_the_rows_of_the_tree() -> None:
    found = {one.path: one for one in _profile(_Net(), torch.randn(8, 16)).layers}
    assert {path: one.op for path, one in found.items() if path.startswith("first")} == {
        "first.fc": "aten::linear",
        "first.norm": "aten::batch_norm",
        "first.act": "aten::relu_",
        "first.add": "aten::add",
        "first.mul": "aten::mul",
    }
    assert found["first.act"].calls == 2
    assert found["softmax"].op == "aten::softmax"
    assert found["first.fc"].allocated_bytes == 8 * 16 * 4
    assert found["first.fc"].macs_per_second


def _both_ways(module: nn.Module, given: torch.Tensor, train: bool) -> Any:
    activities = [ProfilerActivity.CPU]
    with torch.set_grad_enabled(train), profile(activities=activities, profile_memory=True) as seen:
        with record_function(f"{MODULE}0"):
            made = module(given)
        if train:
            made.sum().backward()
    return seen


_OPERATORS = ("aten", "autograd", "torch")


@pytest.mark.parametrize("train", [False, True])
def test_operators_are_those_of_key_averages(train: bool) -> None:
    seen = _both_ways(_Net(), torch.randn(8, 16), train)
    ours = build_module_run(read_events(seen), FunctionRows([], [0])).operators
    theirs = {
        one.key: one for one in seen.key_averages() if one.key.startswith(("aten", "autograd", "torch"))
    }
    assert ours.keys() >= theirs.keys()
    assert len(theirs) > 8
    for name, one in theirs.items():
        assert ours[name].calls == one.count, name
        assert ours[name].seconds * 1e6 == pytest.approx(one.cpu_time_total, abs=0.5), name
        assert ours[name].self_seconds * 1e6 == pytest.approx(one.self_cpu_time_total, abs=0.5), name
        assert ours[name].bytes == one.self_cpu_memory_usage, name
        assert ours[name].total_bytes == one.cpu_memory_usage, name


def test_layers_that_a_module_computes_itself_say_so_and_do_not_count_as_left_out() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()  # one operator, the fast path
    found = _profile(encoder, torch.randn(2, 4, 16))
    assert found.removed == ()
    inside = {one.path: one.within for one in found.layers}
    assert inside["layers.0.linear1"] == "layers.0"
    assert inside["layers.0"] == ""


def test_a_range_of_the_models_own_hides_no_operator() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with record_function("mine"):
                return torch.tanh(self.fc(x))

    found = {one.path: one.op for one in _profile(Named(), torch.randn(8, 16)).layers}
    assert found == {"fc": "aten::linear", "tanh": "aten::tanh"}


@pytest.mark.slow
def test_what_runs_backward_is_the_layers_that_made_it() -> None:
    net = _Net()
    net.first.fc.requires_grad_(False)
    found = _profile(net, torch.randn(8, 16), _STEP)
    backward = {one.path: one.backward_seconds for one in found.layers if one.seconds}
    assert backward["first.fc"] is None  # nothing before it is trained
    for path in ("first.norm", "first.act", "first.add", "second.fc", "head", "softmax"):
        assert backward[path], path
    kernels = {one.path: one.op for one in found.layers}
    assert kernels["head"] == "aten::linear, AddmmBackward0, TBackward0"
    assert [one.name for one in found.phases] == ["forward", "loss", "backward", "optimizer step"]
    assert {one.name for one in found.other} == {"loss", "backward", "optimizer step"}
    shares = sum(one.share for one in found.phases)
    assert 0.5 < shares < 1.5  # of medians


def test_a_session_leaves_the_module_and_torch_as_they_were() -> None:
    net, given = _Net().train(), torch.randn(8, 16)
    net.first.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [part.training for part in net.modules()]
    kept, threads = given.clone(), torch.get_num_threads()
    _profile(net, given, ProfileSpec(steps=2, train=True, optimizer="adam", threads=1))
    _profile(net, given, ProfileSpec(steps=2, threads=1))
    assert [part.training for part in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    assert torch.equal(given, kept)
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_inputs_of_a_file_are_taken_and_a_batch_is_its_first_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "in.npy")
    np.save(path, np.ones((6, 16), np.float32))
    spec = ProfileSpec(steps=1, input=path)
    found = _profile(_Net(), torch.randn(2, 16), spec)
    assert (found.rows, found.batch) == (6, None)
    cut = _profile(_Net(), torch.randn(2, 16), spec, batch=4)
    assert (cut.rows, cut.batch) == (4, 4)
    with pytest.raises(Misuse, match="6 rows for a batch of 8"):
        _profile(_Net(), torch.randn(2, 16), spec, batch=8)


@pytest.mark.slow
def test_two_modules_are_compared_row_by_row() -> None:
    with Session(_Net(), inputs=torch.randn(8, 16), cache=False) as session:
        found = session.compare_profiles(0, 0, spec=_FEW)
    assert {one.status for one in found.layers} == {"same"}
    assert {"first.fc", "head"} <= {one.path for one in found.layers}
    assert found.difference == found.after.wall_seconds - found.before.wall_seconds


class _Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class _Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            raise ValueError("not here")
        return x + 1


def test_a_module_that_fails_is_named() -> None:
    with pytest.raises(BadModel, match=r"failed in inner: ValueError: not here"):
        _profile(_Fails(), torch.randn(8, 16))


class _Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += x.device.type == "cpu"
        if self.calls > 6:
            raise ValueError("worn out")
        return x + 1


def test_one_that_fails_after_some_runs_says_where_and_what_was_measured() -> None:
    with pytest.raises(BadModel, match=r"failed in 1: ValueError: worn out") as failed:
        _profile(nn.Sequential(nn.Linear(16, 16), _Late()), torch.randn(8, 16), ProfileSpec(steps=20))
    assert re.match(r"\d runs? before it took [\d.]+ .s each", failed.value.hint)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ProfileSpec(device="tpu"), "--device: torch has no 'tpu' here; it has cpu"),
        (ProfileSpec(optimize="all"), "--optimize: torch has no levels of graph optimization"),
        (ProfileSpec(threads=10_000), "--threads: 10,000 threads"),
    ],
)
def test_what_cannot_be_is_one_line(spec: ProfileSpec, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        _profile(_Net(), torch.randn(2, 16), spec)
    assert said in str(refused.value)


def test_an_optimizer_that_nobody_has_is_refused() -> None:
    with pytest.raises(Misuse, match=r"ProfileSpec\.optimizer: 'lion' .*give 'adam', 'momentum' or 'sgd'"):
        ProfileSpec(optimizer="lion")  # type: ignore[arg-type]


def test_what_cannot_be_trained_says_so() -> None:
    with pytest.raises(Misuse, match="no parameter of the model is trained"):
        _profile(nn.ReLU(), torch.randn(2, 16), _STEP)
    with pytest.raises(BadModel, match=r"failed in 1: ValueError: Expected more than 1 value"):
        _profile(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), torch.randn(1, 16), _STEP)


def _layer(at: int, parent: int | None, path: str, kind: str, group: bool = False) -> Layer:
    return Layer(at, parent, path, path, kind, 0, group, 1, (), (), ())


def test_a_function_that_is_no_row_is_the_modules_own() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + x

    seen = _both_ways(Odd(), torch.randn(2, 16), False)
    run = build_module_run(read_events(seen), FunctionRows([_layer(0, None, "odd", "Odd", True)], [0]))
    assert set(run.rows) == {0}
    assert set(run.rows[0].ops) == {"aten::linear", "aten::add"}
