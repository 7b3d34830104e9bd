"""Measuring a machine: of kernels that take known times, on a clock of our own, the rates come out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.base.errors import Cancelled
from explorer.engine.profile.load import LoadWatch
from explorer.engine.profile.measure.kernels import DTYPES, RuntimeKernels
from explorer.engine.profile.measure.machine import SIZES, Surroundings, measure
from explorer.engine.profile.measure.probes import OPS
from explorer.engine.profile.predict import TimeModel
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.machine import MeasuredMachine
from explorer.host import processor

RATES = {"float32": 100e9, "int8": 400e9, "float16": 50e9}
CACHES = ((1, 32 << 10, 1), (3, 32 << 20, 4))


class Machine:
    """Kernels that take the time that they are said to take, on a clock that only they move."""

    def __init__(
        self,
        rates: Mapping[str, float] = RATES,
        noise: Callable[[], float] = lambda: 1.0,
        best: int = 512,
    ) -> None:
        self.now, self.rates, self.noise, self.best = 0.0, rates, noise, best
        self.elements = 0

    def clock(self) -> float:
        return self.now

    def _takes(self, seconds: float) -> Callable[[], object]:
        def run() -> None:
            self.now += seconds * self.noise()

        return run

    def gemm(self, dtype: str, size: int, count: int) -> Callable[[], object] | None:
        if dtype not in self.rates:
            return None
        slower = 1 if size == self.best else 2
        return self._takes(count * size**3 / self.rates[dtype] * slower)

    def add(self, elements: int) -> Callable[[], object]:
        self.elements = max(self.elements, elements)
        return self._takes(12 * elements / 50e9)

    def chain(self, nodes: int) -> Callable[[], object]:
        return self._takes(2e-6 + nodes * 1e-7)

    def matmul(self, m: int, k: int, n: int) -> Callable[[], object]:
        return self._takes(m * k * n / self.rates["float32"])

    def conv(
        self, channels: tuple[int, int], side: int, kernel: int, groups: int, count: int
    ) -> Callable[[], object]:
        macs = channels[0] // groups * channels[1] * kernel**2 * side**2
        return self._takes(count * macs / self.rates["float32"])

    def elementwise(self, op: str, shape: tuple[int, ...]) -> Callable[[], object]:
        return self._takes(8 * math.prod(shape) / 50e9)

    def watch(self) -> LoadWatch:
        quiet = LoadWatch(1, switches=lambda: 0, busy=lambda: None, average=lambda: 0.0, clock=self.clock)
        return quiet

    def measured(
        self,
        limit: float = 20.0,
        caches: tuple[tuple[int, int, int], ...] = CACHES,
        free: int | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> MeasuredMachine:
        told = Surroundings("a processor", caches, free, "2026-11-23", self.clock)
        return measure(self, 4, limit, told, self.watch(), cancel=cancel)


def test_the_peak_of_each_type_is_its_best_matmul_and_the_bandwidth_what_an_array_moves() -> None:
    machine = Machine()
    found = machine.measured()
    assert {peak.dtype: peak.macs_per_second for peak in found.peaks} == pytest.approx(RATES)
    assert {peak.sizes for peak in found.peaks} == {(512,) * 3}
    assert found.refused == ("bfloat16",)
    assert found.bandwidth.bytes_per_second == pytest.approx(50e9)
    assert found.launch.median == pytest.approx(1e-7, rel=0.05)
    assert found.call.median == pytest.approx(2.1e-6)
    for one in found.kernels:
        assert one.macs_per_second == pytest.approx(RATES[one.dtype] / (1 if one.sizes[0] == 512 else 2))
    assert (found.threads, found.processor, found.loaded, found.notes) == (4, "a processor", False, ())


@pytest.mark.parametrize("slow", [1, 30, 300])
def test_the_time_limit_holds_on_slow_machines_and_what_is_not_sure_is_said(slow: int) -> None:
    machine = Machine({dtype: rate / slow for dtype, rate in RATES.items()})
    found = machine.measured(limit=10.0)
    assert found.seconds <= 14
    sides = [one.sizes[0] for one in found.kernels if one.dtype == "float32"]
    assert sides == list(SIZES[: len(sides)])
    assert slow == 1 or len(sides) < len(SIZES)
    assert len(found.peaks) == len(RATES)
    assert slow < 300 or any(said.startswith("not sure to 5 %") for said in found.notes)


def test_the_arrays_are_beyond_the_last_cache_or_it_is_said_that_they_are_not() -> None:
    machine = Machine()
    assert machine.measured().notes == ()
    assert machine.elements * 4 >= 4 * (32 << 20)
    (said,) = machine.measured(free=256 << 20).notes
    assert said == "the arrays of the bandwidth have 32.00 MiB each, the last cache 32.00 MiB"
    (said,) = machine.measured(caches=()).notes
    assert "tells no caches" in said


def test_a_machine_whose_runs_differ_much_is_said_to_be_loaded() -> None:
    steps = itertools.cycle([1.0, 1.0, 1.0, 4.0])
    found = Machine(noise=lambda: next(steps)).measured()
    assert found.loaded
    assert "times as long as another" in found.load


def test_who_stops_it_gets_no_figures() -> None:
    machine = Machine()
    with pytest.raises(Cancelled):
        machine.measured(cancel=lambda: machine.now > 0.5)
    assert machine.now < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_onnxruntime_runs_every_kernel_that_it_does_not_refuse(dtype: str) -> None:
    kernels = RuntimeKernels(1)
    run = kernels.gemm(dtype, 8, 3)
    assert run is not None or dtype not in ("float32", "int8")
    others = (kernels.add(100), kernels.chain(3), kernels.matmul(2, 3, 4), kernels.conv((4, 6), 5, 3, 2, 2))
    for one in (run, *others, *(kernels.elementwise(op, (1, 2, 4, 4)) for op in OPS[1:])):
        if one is not None:
            one()


def _layer(kind: str, shape: tuple[int, ...], macs: int, moved: int, **more: object) -> Layer:
    made = (TensorInfo("y", "float32", shape),)
    return Layer(
        0,
        None,
        kind,
        kind,
        kind,
        0,
        False,
        outputs=made,
        macs=macs,
        bytes_read=moved,
        bytes_written=0,
        **more,
    )  # type: ignore[arg-type]


def test_a_layer_is_predicted_to_take_what_a_kernel_like_it_took() -> None:
    model = TimeModel(Machine().measured())
    macs = 512 * 512 * 512
    weights = (TensorInfo("w", "float32", (512, 512)),)
    rows = _layer("MatMul", (8, 64, 512), macs, 3 << 20, weights=weights)
    assert model.seconds(rows) == pytest.approx(macs / RATES["float32"], rel=0.05)
    conv = _layer("Conv", (1, 64, 56, 56), 64 * 576 * 3136, 1_753_088, attributes={"group": 1})
    assert model.seconds(conv) == pytest.approx(conv.macs / RATES["float32"], rel=0.05)  # type: ignore[operator]
    for kind in ("Add", "Relu", "Swish", "Softmax"):
        took = model.seconds(_layer(kind, (1 << 20,), 0, 8 << 20))
        assert took == pytest.approx((8 << 20) / 50e9, rel=0.05)
    assert model.seconds(_layer("Reshape", (4,), 0, 0)) == pytest.approx(1e-7, rel=0.05)


def test_weights_take_the_time_in_which_they_come_from_memory() -> None:
    model = TimeModel(Machine({**RATES, "float32": 1e13}).measured())
    layer = _layer("MatMul", (1, 4096), 4096 * 4096, 4 * 4096 * 4096, weight_bytes_read=4 * 4096 * 4096)
    assert model.seconds(layer) == pytest.approx(4 * 4096 * 4096 / 50e9, rel=0.05)


def test_what_is_not_known_of_a_layer_is_not_predicted() -> None:
    model = TimeModel(Machine().measured())
    known = _layer("MatMul", (4, 4), 64, 192)
    assert model.seconds(known) is not None
    halves = (TensorInfo("y", "float16", (4, 4)),)
    for change in ({"macs": None}, {"bytes_read": None}, {"outputs": ()}, {"outputs": halves}):
        assert model.seconds(replace(known, **change)) is None


def test_caches_and_cores_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    first, second = (processor.processors() * 2)[:2]
    for at in {first, second}:
        (tmp_path / f"cpu{at}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{at}" / "topology" / "thread_siblings_list").write_text(f"{first},{second}\n")
    for index, (level, kind, size, shared) in enumerate(
        [(1, "Data", "48K", "0"), (1, "Instruction", "32K", "0"), (3, "Unified", "32M", "0-3,8-11")]
    ):
        folder = tmp_path / f"cpu{first}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")
    assert processor.caches(str(tmp_path)) == ((1, 48 << 10, 1), (3, 32 << 20, 8))
    assert processor.cores(str(tmp_path)) == max(1, len(processor.processors()) - (first != second))
