"""Checks whether the machine is as fast as when it was measured, by timing a matmul and a network again.

Another virtual machine may take a constant part of a processor, a cache or the clock. No figure of the system
shows this, and the runs do not differ, but a kernel with a known time is slower.

The cores behind a virtual machine's processors may also change within minutes. Two cores that share their
last cache exchange a cache line in 50 ns, other pairs in 270 ns; a MobileNetV2 takes 4.0 or 6.6 ms. A matmul
does not show this, because each thread works on its own results. A network of small convolutions does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from explorer.base.units import seconds_text
from explorer.engine.profile.measure.kernels import Kernels, Run
from explorer.engine.profile.measure.machine import count_copies
from explorer.engine.profile.measure.probes import (
    apply_network_factor,
    compute_network_time,
    list_network_convolutions,
)
from explorer.engine.profile.runs import wait_idle
from explorer.engine.profile.statistics import compute_spread
from explorer.facts.profile.machine import MeasuredMachine

_MAX_SIDE, _MAX_SECONDS = 512, 2e-3
"""Maximum side of the matmul, and maximum seconds of its run. The check of it takes about 50 ms."""
_MAX_NETWORK_SECONDS = 20e-3
"""Maximum seconds of a run of the network."""
_WARMUP_RUNS, _RUNS = 2, 7
"""Number of runs without and with a measured time."""
_MIN_CHANGE = 1.2
"""Ratio of the nearest ends of two time intervals above which the machine counts as slower or faster."""
_MIN_NETWORK_CHANGE = 1.1
"""The same ratio for the network, in both directions."""


class SpeedCheck:
    """Checks the speed of the machine, from the samples of all calls of `add_samples`.

    Args:
        machine: The measurement of the machine.
        kernels: Builder of the runs, or None for onnxruntime with the threads of the measurement.
        clock: Function that returns seconds.
        idle: Function that waits until no thread of this process is busy.
    """

    def __init__(
        self,
        machine: MeasuredMachine,
        *,
        kernels: Kernels | None = None,
        clock: Callable[[], float] = time.perf_counter,
        idle: Callable[[], object] = wait_idle,
    ) -> None:
        short = [
            kernel
            for kernel in machine.kernels
            if kernel.dtype == "float32"
            and kernel.sizes[0] <= _MAX_SIDE
            and kernel.seconds.median * count_copies(kernel.macs) <= _MAX_SECONDS
        ]
        self._machine = machine
        self._reference = max(short, key=lambda kernel: kernel.macs, default=None)
        self._network = compute_network_time(machine.probes)
        self._kernels = kernels or Kernels(machine.threads)
        self._clock, self._idle = clock, idle
        self._samples, self._networks = list[float](), list[float]()

    def add_samples(self) -> None:
        """Times the matmul and the network, and adds the samples."""
        if self._reference is not None:
            count = count_copies(self._reference.macs)
            run = self._kernels.build_gemm(self._reference.dtype, self._reference.sizes[0], count)
            if run is not None:
                self._samples += [seconds / count for seconds in self._time_runs(run)]
        if self._network is not None and self._network[1] <= _MAX_NETWORK_SECONDS:
            self._networks += self._time_runs(self._kernels.build_network(list_network_convolutions(1)))

    def _time_runs(self, run: Run) -> list[float]:
        self._idle()
        times = []
        for _ in range(_WARMUP_RUNS + _RUNS):
            began = self._clock()
            run()
            times.append(self._clock() - began)
        return times[_WARMUP_RUNS:]

    def describe_slowdown(self) -> str:
        """Describes how much slower the machine is than in its measurement, or returns ''."""
        return self._describe_change() if self._compute_change() > 1 else ""

    def describe_speedup(self) -> str:
        """Describes how much faster the machine is than in its measurement, or returns ''."""
        return self._describe_change() if self._compute_change() < 1 else ""

    def _compute_change(self) -> float:
        """Returns the ratio of the matmul's present time to the measured time, or 1 for a small change."""
        if self._reference is None or not self._samples:
            return 1.0
        current, measured = compute_spread(self._samples), self._reference.seconds
        is_near = current.low <= _MIN_CHANGE * measured.high and measured.low <= _MIN_CHANGE * current.high
        return 1.0 if is_near else current.median / measured.median

    def _describe_change(self) -> str:
        assert self._reference is not None
        current, measured = compute_spread(self._samples).median, self._reference.seconds.median
        sizes = " x ".join(f"{size:,}" for size in self._reference.sizes)
        return (
            f"it is {_compare_speeds(current / measured)} than when it was measured: a matmul of {sizes} took"
            f" {seconds_text(current)} instead of {seconds_text(measured)}"
        )

    def adapt_machine(self) -> tuple[MeasuredMachine, str]:
        """Returns the measurement adapted to the present speed, and a text about the difference or ''.

        The measurement is adapted if the processors compute as fast as before, but exchange results faster or
        slower. If they compute at another speed, the time of the network shows nothing further.
        """
        if self._network is None or not self._networks or self._compute_change() != 1:
            return self._machine, ""
        (low, high), spread = self._network, compute_spread(self._networks)
        if spread.low <= _MIN_NETWORK_CHANGE * high and spread.high * _MIN_NETWORK_CHANGE >= low:
            return self._machine, ""
        measured = (low + high) / 2
        ratio = spread.median / measured
        return replace(self._machine, probes=apply_network_factor(self._machine.probes, ratio)), (
            f"small convolutions are predicted {_compare_speeds(ratio)} than when the machine was measured:"
            f" a network of them took {seconds_text(spread.median)} instead of {seconds_text(measured)},"
            " while a matmul took the same time"
        )


def _compare_speeds(ratio: float) -> str:
    """Describes how much slower or faster a kernel is whose present time is `ratio` the measured one."""
    return f"{ratio:.1f} times slower" if ratio > 1 else f"{1 / ratio:.1f} times faster"
