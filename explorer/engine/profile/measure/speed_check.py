"""Whether the machine is as fast as when it was measured: one of the matmuls of then, timed again.

A neighbour that takes a steady part of a processor, of a cache or of the clock is in no figure of the
system's, and runs do not differ. A kernel whose time is known is slower then, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from explorer.base.units import seconds_text
from explorer.engine.profile.measure.kernels import Kernels, RuntimeKernels
from explorer.engine.profile.measure.machine import together
from explorer.engine.profile.runs import wait_idle
from explorer.engine.profile.statistics import spread
from explorer.facts.profile.machine import MeasuredMachine

_LARGEST, _LONGEST = 512, 2e-3
"""Side of the matmul, and seconds of a run: to make it and to time it twice takes some 50 ms."""
_WARM, _RUNS = 2, 7
_SLOWER = 1.2
"""How many times as long it takes where that is said, at either end of what the medians may be."""


class SpeedCheck:
    """Looks at how fast the machine is; `words` is of all looks together.

    Args:
        seen: What was measured of it.
        kernels: What is timed; None for those of onnxruntime, with as many threads as then.
        clock: Seconds.
        idle: Waits until no thread of ours is busy.
    """

    def __init__(
        self,
        seen: MeasuredMachine,
        *,
        kernels: Kernels | None = None,
        clock: Callable[[], float] = time.perf_counter,
        idle: Callable[[], object] = wait_idle,
    ) -> None:
        short = [
            one
            for one in seen.kernels
            if one.dtype == "float32"
            and one.sizes[0] <= _LARGEST
            and one.seconds.median * together(one.macs) <= _LONGEST
        ]
        self._then = max(short, key=lambda one: one.macs, default=None)
        self._kernels = kernels or RuntimeKernels(seen.threads)
        self._clock, self._idle, self._samples = clock, idle, list[float]()

    def look(self) -> None:
        """Times it some more."""
        if self._then is None:
            return
        count = together(self._then.macs)
        run = self._kernels.gemm(self._then.dtype, self._then.sizes[0], count)
        if run is None:
            return
        self._idle()
        for at in range(_WARM + _RUNS):
            began = self._clock()
            run()
            if at >= _WARM:
                self._samples.append((self._clock() - began) / count)

    def words(self) -> str:
        """What says that the machine is slower now; '' where nothing does."""
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
