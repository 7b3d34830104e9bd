"""Where a module is timed: on the processor, or on a CUDA device.

A CUDA device works behind the program: a call is over before its kernels are. So the wall time ends when all
of them are done, parts of a training step lie between events of the device's own clock, and the time of an
operator is that of the kernels that it launched.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import bytes_text
from explorer.engine.profile.torch.events import Event, cuda_events_of, events_of
from explorer.host.optional_packages import error_line


class Processor:
    """The processor: its calls are complete when they return.

    Attributes:
        name: The name in `--device`.
        activities: The activities that torch's profiler records.
    """

    name = "cpu"
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CPU,)

    def place(self, value: Any) -> Any:
        """A tensor or a module, moved to the device."""
        return value

    def current(self) -> AbstractContextManager[object]:
        """A context in which the device is the default of torch."""
        return nullcontext()

    def wait(self) -> None:
        """Returns when all that was begun is done."""

    def mark(self) -> Any:
        """Now, for `between`."""
        return time.perf_counter()

    def between(self, began: Any, ended: Any) -> float:
        """Seconds between two marks, behind `wait`."""
        return float(ended - began)

    def events(self, profiler: Any) -> tuple[list[Event], list[Event]]:
        """The events of a profiler that has ended: the program's calls, and the device's kernels."""
        return events_of(profiler), []

    def begin(self) -> None:
        """Counts memory from now on."""

    def notes(self) -> tuple[str, ...]:
        """Notes on the runs since `begin`."""
        return ()

    def clear(self) -> None:
        """Frees unused memory of the device."""


class Cuda(Processor):
    """A CUDA device, by its name in torch."""

    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)

    def __init__(self, name: str) -> None:
        self.name = name
        self._before = 0
        self._has_kernels = False

    def place(self, value: Any) -> Any:
        """See `Processor`.

        Raises:
            BadModel: The device has no room for it.
        """
        try:
            return value.to(self.name)
        except RuntimeError as error:  # out of memory; a driver that does not fit
            subject = "the model" if isinstance(value, nn.Module) else "an input"
            reason = str(error).partition("\n")[0]
            raise BadModel(f"{subject} cannot be moved to the device: {reason}", where=self.name) from None

    def current(self) -> AbstractContextManager[object]:
        """See `Processor`."""
        return torch.cuda.device(self.name)

    def wait(self) -> None:
        """See `Processor`."""
        torch.cuda.synchronize(self.name)

    def mark(self) -> Any:
        """See `Processor`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event

    def between(self, began: Any, ended: Any) -> float:
        """See `Processor`."""
        return float(began.elapsed_time(ended)) * 1e-3

    def events(self, profiler: Any) -> tuple[list[Event], list[Event]]:
        """See `Processor`."""
        calls, kernels = cuda_events_of(profiler)
        self._has_kernels = self._has_kernels or bool(kernels)
        return calls, kernels

    def begin(self) -> None:
        """See `Processor`."""
        torch.cuda.reset_peak_memory_stats(self.name)
        self._before = torch.cuda.memory_allocated(self.name)

    def notes(self) -> tuple[str, ...]:
        """See `Processor`."""
        most, reserved = (
            torch.cuda.max_memory_allocated(self.name),
            torch.cuda.max_memory_reserved(self.name),
        )
        blind = (
            "torch's profiler told of no kernel of the device, so layers have no times: another profiler may"
            " have its counters (CUPTI), or the driver keeps them for an administrator",
        )
        return (
            *(() if self._has_kernels else blind),
            f"the runs held {bytes_text(most)} of {torch.cuda.get_device_name(self.name)} at most,"
            f" {bytes_text(self._before)} of it before they began;"
            f" torch's allocator reserved {bytes_text(reserved)}",
        )

    def clear(self) -> None:
        """See `Processor`."""
        with suppress(RuntimeError):  # behind an error of a kernel the device answers nothing else
            torch.cuda.empty_cache()


def device_named(name: str) -> Processor:
    """A device by its name: 'cpu', 'cuda', 'cuda:1'.

    Raises:
        Misuse: There is no such device, or its driver does not work.
    """
    there = ["cpu", *(f"cuda:{at}" for at in range(torch.cuda.device_count()))]
    device_name = name.casefold()
    if device_name == "cpu":
        return Processor()
    if device_name not in there and (device_name != "cuda" or len(there) < 2):
        raise Misuse(f"torch has no '{name}' here", where="--device", hint=f"it has {', '.join(there)}")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return Cuda(f"cuda:{torch.cuda.current_device()}" if device_name == "cuda" else device_name)
    except (RuntimeError, AssertionError) as error:  # a driver too old; torch built without CUDA
        raise Misuse(f"torch cannot use '{name}': {error_line(error)}", where="--device") from None
