"""Whether the machine is as fast as when it was measured: times a matmul and a network again.

A neighbor that takes a steady part of a processor, a cache or the clock shows in no figure of the system, and
runs do not differ. But a kernel with a known time is slower then.

The cores behind a virtual machine's processors may change, too, within minutes: two cores that share their
last cache exchange a cache line in 50 ns, others in 270, and a MobileNetV2 takes 4.0 or 6.6 ms. A matmul is
as fast as before, for each thread works on its own results; a network of small convolutions is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from explorer.base.units import seconds_text
from explorer.engine.profile.measure.kernels import Kernels, Run
from explorer.engine.profile.measure.machine import together
from explorer.engine.profile.measure.probes import network, network_time, slowed
from explorer.engine.profile.runs import wait_idle
from explorer.engine.profile.statistics import spread
from explorer.facts.profile.machine import MeasuredMachine

_LARGEST, _LONGEST = 512, 2e-3
"""Side of the matmul, and seconds of a run: to make it and to time it twice takes some 50 ms."""
_LONGEST_NETWORK = 20e-3
_WARM, _RUNS = 2, 7
_SLOWER = 1.2
"""Ratio of times above which the machine is called slower, at both ends of the medians' intervals."""
_OTHERWISE = 1.1
"""The same ratio for the network, in both directions."""


class SpeedCheck:
    """Checks the speed of the machine; `words` and `now` cover all calls of `look`.

    Args:
        machine: Its measurement.
        kernels: The kernels to time; None: onnxruntime's, with the threads of the measurement.
        clock: Returns seconds.
        idle: Waits until no thread of this process is busy.
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
            and kernel.sizes[0] <= _LARGEST
            and kernel.seconds.median * together(kernel.macs) <= _LONGEST
        ]
        self._machine = machine
        self._then = max(short, key=lambda kernel: kernel.macs, default=None)
        self._network = network_time(machine.probes)
        self._kernels = kernels or Kernels(machine.threads)
        self._clock, self._idle = clock, idle
        self._samples, self._networks = list[float](), list[float]()

    def look(self) -> None:
        """Times the kernels once more."""
        if self._then is not None:
            count = together(self._then.macs)
            run = self._kernels.gemm(self._then.dtype, self._then.sizes[0], count)
            if run is not None:
                self._samples += [seconds / count for seconds in self._times(run)]
        if self._network is not None and self._network[1] <= _LONGEST_NETWORK:
            self._networks += self._times(self._kernels.network(network(1)))

    def _times(self, run: Run) -> list[float]:
        self._idle()
        times = []
        for _ in range(_WARM + _RUNS):
            began = self._clock()
            run()
            times.append(self._clock() - began)
        return times[_WARM:]

    def words(self) -> str:
        """Signs that the machine is slower now, in words; '' for none."""
        if self._then is None or not self._samples:
            return ""
        now, then = spread(self._samples), self._then.seconds
        if now.low <= _SLOWER * then.high:
            return ""
        rate, sizes = now.median / then.median, " x ".join(f"{size:,}" for size in self._then.sizes)
        return (
            f"it is {rate:.1f} times slower than when it was measured: a matmul of {sizes} took"
            f" {seconds_text(now.median)}, then {seconds_text(then.median)}"
        )

    def now(self) -> tuple[MeasuredMachine, str]:
        """The machine with its present speed, and a text on the difference to its measurement; '' for none.

        It differs if the processors compute as fast as then, but exchange results faster or slower.
        """
        if self._network is None or not self._networks or self.words():
            return self._machine, ""
        (low, high), took = self._network, spread(self._networks)
        if took.low <= _OTHERWISE * high and took.high * _OTHERWISE >= low:
            return self._machine, ""
        then = (low + high) / 2
        times = took.median / then
        comparison = f"{times:.1f} times slower" if times > 1 else f"{1 / times:.1f} times faster"
        return replace(self._machine, probes=slowed(self._machine.probes, times)), (
            f"small convolutions are predicted {comparison} than when the machine was measured: a network of"
            f" them took {seconds_text(took.median)}, then {seconds_text(then)}, and a matmul what it took"
            " then"
        )
