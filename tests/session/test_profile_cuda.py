"""Profile of nn.Modules on CUDA: where there is a device, and everywhere on events as torch tells them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import onnxruntime
import pytest
import torch
from torch import nn
from torch.autograd.profiler import EventList
from torch.autograd.profiler import profile as torch_profiler
from torch.profiler import ProfilerActivity, profile, record_function

from explorer.base.errors import BadModel, Misuse
from explorer.engine.profile.torch import device
from explorer.engine.profile.torch.events import (
    LAUNCHED,
    MODULE,
    FunctionRows,
    build_module_run,
    read_cuda_events,
)
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.session import Session

_FEW = ProfileSpec(steps=2, warmup=1, device="cuda", record=1)
_STEP = ProfileSpec(steps=2, warmup=1, device="cuda", train=True)
_THERE = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
_CUDA = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.first(x)), -1)


def _profile(spec: ProfileSpec, module: nn.Module | None = None) -> Profile:
    with Session(module or _Net(), inputs=torch.randn(8, 16), cache=False) as session:
        return session.profile(spec)


# events as torch's profiler tells them of a CUDA device, around those of a run on the processor


class _Told:
    """An event with some of its answers changed."""

    def __init__(self, event: Any, **answers: Any) -> None:
        self._event, self._answers = event, answers

    def __getattr__(self, name: str) -> Any:
        if name in self._answers:
            return lambda: self._answers[name]
        return getattr(self._event, name)


class _Events(NamedTuple):
    """What `profile.profiler.kineto_results` is, with kernels of the operators that call no other."""

    real: Any

    def trace_start_ns(self) -> int:
        return int(self.real.trace_start_ns())

    def events(self) -> list[Any]:
        return [*self._told([*self.real.events()])]

    def _told(self, real: list[Any]) -> Iterator[Any]:
        cuda = torch.autograd.DeviceType.CUDA
        ops = [one for one in real if one.activity_type() == "cpu_op"]
        callers = {id(one) for one, inner in itertools.pairwise(ops) if inner.start_ns() < one.end_ns()}
        for at, one in enumerate(real):
            if one.name() == "[memory]":
                yield _Told(one, device_type=cuda)
                continue
            yield one
            number = one.correlation_id()
            if one.activity_type() == "cpu_op" and id(one) not in callers:
                took = 1000 * (1 + number % 7)
                of = {"linked_correlation_id": number, "external_id": number, "correlation_id": 9000 + at}
                yield _Told(
                    one, name="cudaLaunchKernel", activity_type="cuda_runtime", end_ns=one.start_ns(), **of
                )
                on = {"device_type": cuda, "device_resource_id": 7, "activity_type": "kernel"}
                yield _Told(one, name="a_kernel", end_ns=one.start_ns() + took, **of, **on)
            if one.is_user_annotation():  # the same range, as the device saw it
                yield _Told(one, activity_type="gpu_user_annotation", device_type=cuda, device_resource_id=7,
                            linked_correlation_id=number)  # fmt: skip
        # what the driver does for nobody has a number of its own, which may be an operator's
        yield _Told(ops[0], name="cudaDeviceSynchronize", activity_type="cuda_runtime", external_id=0,
                    start_ns=real[-1].end_ns(), end_ns=real[-1].end_ns() + 5)  # fmt: skip


class _Seen(NamedTuple):
    """What `torch.profiler.profile` is, as far as it is read."""

    profiler: Any


def _seen(real: Any) -> _Seen:
    return _Seen(mock.Mock(kineto_results=_Events(real.profiler.kineto_results)))


class _Event:
    """`torch.cuda.Event`, by the processor's clock."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:0"
        self.at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return (other.at - self.at) * 1e3


@pytest.fixture(name="posing")
def _posing(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The processor as a CUDA device: torch.cuda answers for it, and the profiler tells kernels."""
    cuda = mock.Mock(Event=_Event)
    cuda.device_count.return_value = 1
    cuda.current_device.return_value = 0
    cuda.current_stream = "stream of {}".format
    cuda.memory_allocated.return_value = 1 << 20
    cuda.max_memory_allocated.return_value = 3 << 20
    cuda.max_memory_reserved.return_value = 4 << 20
    cuda.get_device_name.return_value = "a card"

    class Posing(device.Cuda):
        activities = (ProfilerActivity.CPU,)

        def move(self, given: Any) -> Any:
            cuda.placed(given)
            return given

        def read_events(self, profiler: Any) -> Any:
            return super().read_events(_seen(profiler))

    cuda.device = contextlib.nullcontext
    for name in ("init", "device", "device_count", "current_device", "current_stream", "synchronize", "Event",
                 "empty_cache", "memory_allocated", "max_memory_allocated", "max_memory_reserved",
                 "reset_peak_memory_stats", "get_device_name"):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(device, "Cuda", Posing)
    return cuda


def _both_ways(train: bool) -> Any:
    net, given = _Net(), torch.randn(8, 16)
    with (
        torch.set_grad_enabled(train),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen,
    ):
        with record_function(f"{MODULE}0"):
            made = net(given)
        if train:
            made.sum().backward()
    return seen


@pytest.mark.parametrize("train", [False, True])
def test_operators_have_the_kernels_and_the_memory_that_torchs_own_reading_gives_them(train: bool) -> None:
    seen = _seen(_both_ways(train))
    calls, kernels = read_cuda_events(seen)
    ours = build_module_run(calls, FunctionRows([], [0])).operators
    reader = mock.Mock(spec=torch_profiler, use_device="cuda")
    told = torch_profiler._parse_kineto_results(reader, seen.profiler.kineto_results)
    events = EventList(told, use_device="cuda", profile_memory=True)
    events._build_tree()
    theirs = {
        one.key: one for one in events.key_averages() if one.key.startswith(("aten", "autograd", "torch"))
    }
    assert theirs.keys() == {name for name in ours if name.startswith(("aten", "autograd", "torch"))}
    assert sum(one.self_device_time_total for one in theirs.values()) > 8
    for name, one in theirs.items():
        assert ours[name].calls == one.count, name
        assert ours[name].seconds * 1e6 == pytest.approx(one.device_time_total), name
        assert ours[name].self_seconds * 1e6 == pytest.approx(one.self_device_time_total), name
        assert ours[name].bytes == one.self_device_memory_usage, name
        assert ours[name].total_bytes == one.device_memory_usage, name
    assert "cudaLaunchKernel" not in ours
    assert sum(one.end - one.start for one in kernels) == pytest.approx(
        sum(one.self_seconds for one in ours.values()) * 1e9
    )


@pytest.mark.parametrize("spec", [_FEW, _STEP])
def test_layers_have_the_time_of_their_kernels_and_the_sum_is_the_wall_time(
    posing: mock.Mock, spec: ProfileSpec
) -> None:
    net = _Net()
    found = _profile(spec, net)
    assert found.device == "cuda:0"
    layers = {one.path: one for one in found.layers}
    assert layers.keys() == {"first.0", "first.1", "first.2", "head", "softmax"}
    assert layers["head"].op.startswith("aten::linear")
    times = [one.seconds.median for one in found.layers if one.seconds]
    assert all(one > 0 for one in times)
    other = sum(one.seconds for one in found.other)
    assert sum(times) + other + found.overhead_seconds - found.slowed_seconds == pytest.approx(
        found.wall_seconds
    )
    assert bool(layers["head"].backward_seconds) == spec.train
    assert [one.name for one in found.phases] == (
        ["forward", "loss", "backward", "optimizer step"] if spec.train else []
    )
    assert "at most 3.00 MiB of the memory of a card, with 1.00 MiB in use before" in found.notes[-1]
    # what was moved is a copy of the module, and each run waits before its clock and behind it
    (moved,) = [one for (one,), _ in posing.placed.call_args_list if isinstance(one, nn.Module)]
    assert moved is not net
    assert posing.synchronize.call_count >= 2 * (found.runs + found.warmup)
    posing.empty_cache.assert_called()


def test_a_trace_has_the_kernels_in_a_lane_of_their_stream(posing: mock.Mock) -> None:
    with Session(_Net(), inputs=torch.randn(8, 16), cache=False) as session:
        (run,) = session.profile(_FEW).recording
    lanes = {one.name: one.thread for one in run.events}
    assert lanes["a_kernel"] != lanes["aten::addmm"]
    assert {one.name for one in run.events if one.thread == lanes["a_kernel"]} == {"a_kernel"}


def test_kernels_that_a_module_launches_without_an_operator_are_its_own() -> None:
    real = [*_both_ways(False).profiler.kineto_results.events()]
    (range_,) = [one for one in real if one.is_user_annotation()]
    kernel = _Told(range_, name="triton", activity_type="kernel", device_type=torch.autograd.DeviceType.CUDA,
                   is_user_annotation=False, linked_correlation_id=range_.correlation_id(),
                   end_ns=range_.start_ns() + 4000, device_resource_id=7)  # fmt: skip
    results = mock.Mock()
    results.events.return_value = [*real, kernel]
    calls, _ = read_cuda_events(_Seen(mock.Mock(kineto_results=results)))
    run = build_module_run(calls, FunctionRows([], [0]))
    assert run.rows[0].ops[LAUNCHED] == (pytest.approx(4e-6), 1)
    assert run.rows[0].seconds == pytest.approx(4e-6)


@pytest.mark.parametrize("name", ["cuda:1", "cuda:x", "cuda:", "rocm"])
def test_a_device_that_is_not_there_is_one_line(posing: mock.Mock, name: str) -> None:
    with pytest.raises(Misuse, match=f"torch has no '{name}' here") as refused:
        _profile(ProfileSpec(steps=1, device=name))
    assert refused.value.hint == "it has cpu, cuda:0"


def test_a_device_that_cannot_take_the_model_says_so() -> None:
    full = device.Cuda("cuda:0")
    module = mock.Mock(spec=nn.Module)
    module.to.side_effect = RuntimeError("CUDA out of memory. Tried to allocate 9 GiB\nmore")
    with pytest.raises(
        BadModel, match=r"cuda:0: the model cannot be moved to the device: CUDA out of memory"
    ):
        full.move(module)


def test_a_driver_that_does_not_do_is_one_line(posing: mock.Mock) -> None:
    posing.init.side_effect = RuntimeError("The NVIDIA driver on your system is too old\n(found 11040)")
    with pytest.raises(Misuse, match=r"--device: torch cannot use 'cuda:0': .*too old \(found 11040\)"):
        _profile(ProfileSpec(steps=1, device="cuda:0"))


def test_a_profiler_that_sees_no_kernel_is_told(posing: mock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("reported no kernel" in note for note in _profile(_FEW).notes)
    monkeypatch.setattr(device, "read_cuda_events", lambda profiler: (read_cuda_events(profiler)[0], []))
    assert any("reported no kernel" in note for note in _profile(_FEW).notes)


class _Full(nn.Module):
    """What runs twice, and then has no room; how much was free is another figure each time."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ran += 1
        if self.ran > 4:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {self.ran} MiB are free.")
        return x


def test_what_has_no_room_says_in_which_module_and_gives_back_what_it_can(posing: mock.Mock) -> None:
    posing.empty_cache.side_effect = RuntimeError("an error of a kernel before")
    net = nn.Sequential(nn.Linear(16, 16), _Full())
    with pytest.raises(BadModel, match=r"the model failed in 1: OutOfMemoryError: CUDA out of memory\."):
        _profile(_FEW, net)
    posing.empty_cache.assert_called()


# where there is one


@_THERE
@pytest.mark.parametrize("spec", [_FEW, _STEP])
def test_on_a_device_the_sum_is_the_wall_time_and_nothing_stays(spec: ProfileSpec) -> None:
    net = _Net()
    held = torch.cuda.memory_allocated()
    found = _profile(spec, net)
    assert torch.cuda.memory_allocated() == held
    assert {one.device.type for one in net.parameters()} == {"cpu"}
    assert found.device.startswith("cuda:")
    times = [one.seconds.median for one in found.layers if one.seconds]
    other = sum(one.seconds for one in found.other)
    assert len(times) == 5
    assert min(times) > 0
    assert sum(times) + other + found.overhead_seconds - found.slowed_seconds == pytest.approx(
        found.wall_seconds
    )


@_THERE
def test_on_a_device_operators_are_those_of_key_averages() -> None:
    net, given = _Net().to("cuda"), torch.randn(8, 16, device="cuda")
    with profile(activities=_CUDA, profile_memory=True) as seen:
        with record_function(f"{MODULE}0"):
            net(given).sum().backward()
        torch.cuda.synchronize()
    ours = build_module_run(read_cuda_events(seen)[0], FunctionRows([], [0])).operators
    theirs = {
        one.key: one for one in seen.key_averages() if one.key.startswith(("aten", "autograd", "torch"))
    }
    assert theirs
    for name, one in theirs.items():
        assert ours[name].calls == one.count, name
        assert ours[name].self_seconds * 1e6 == pytest.approx(one.self_device_time_total, abs=0.5), name
        assert ours[name].bytes == one.self_device_memory_usage, name


# onnxruntime


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_the_runtime_has_and_cannot_use_here_is_one_line(
    monkeypatch: pytest.MonkeyPatch, sample: Any
) -> None:
    there = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
    with Session(sample("lenet"), cache=False) as session:
        with pytest.raises(Misuse, match="--device: onnxruntime cannot use CUDAExecutionProvider here"):
            session.profile(ProfileSpec(steps=1, device="cuda"))


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or not torch.cuda.is_available(),
    reason="onnxruntime has no CUDA device here",
)
def test_a_graph_runs_on_a_device_and_says_what_its_times_are(sample: Any) -> None:
    with Session(sample("lenet"), cache=False) as session:
        found = session.profile(ProfileSpec(steps=2, device="cuda"))
    assert found.device == "cuda"
    assert "CUDAExecutionProvider end when the kernel has started" in found.notes[-1]
