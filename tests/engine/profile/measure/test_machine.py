"""Measuring a machine: of kernels that take known times, on a clock of our own, the rates come out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from explorer.base.errors import Cancelled
from explorer.engine.profile.load import LoadWatch
from explorer.engine.profile.measure.kernels import DTYPES, RuntimeKernels
from explorer.engine.profile.measure.machine import SIZES, Surroundings, measure
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
        self.elements = elements
        return self._takes(12 * elements / 50e9)

    def chain(self, nodes: int) -> Callable[[], object]:
        return self._takes(2e-6 + nodes * 1e-7)

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
    assert found.seconds <= 12
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
    for one in (run, kernels.add(100), kernels.chain(3)):
        if one is not None:
            one()


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
