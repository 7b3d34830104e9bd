"""Defines the devices on which a module is timed: the processor, or a CUDA device.

A CUDA device works asynchronously: a call returns before its kernels have run. So the wall time ends when all
kernels have ended. The parts of a training step are measured between events on the device's clock. The time
of an operator is the time of the kernels that it launched.
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
from explorer.engine.profile.torch.events import Event, read_cuda_events, read_events
from explorer.host.optional_packages import format_error


class Processor:
    """The processor. Its calls are complete when they return.

    Attributes:
        name: Name of the device for `--device`.
        activities: The activities that torch's profiler records.
    """

    name = "cpu"
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CPU,)

    def move(self, value: Any) -> Any:
        """Moves a tensor or a module to the device."""
        return value

    def make_default(self) -> AbstractContextManager[object]:
        """Returns a context manager that makes the device torch's default."""
        return nullcontext()

    def wait(self) -> None:
        """Waits until all work on the device is done."""

    def create_mark(self) -> Any:
        """Returns the current time as a mark for `compute_seconds`."""
        return time.perf_counter()

    def compute_seconds(self, start: Any, end: Any) -> float:
        """Computes the seconds between two marks. Call `wait` before."""
        return float(end - start)

    def read_events(self, profiler: Any) -> tuple[list[Event], list[Event]]:
        """Returns the events of a profiler that has ended: the program's calls, and the device's kernels."""
        return read_events(profiler), []

    def begin_measuring(self) -> None:
        """Starts to measure memory."""

    def list_notes(self) -> tuple[str, ...]:
        """Returns notes on the runs since `begin_measuring`."""
        return ()

    def free_memory(self) -> None:
        """Frees unused memory of the device."""


class Cuda(Processor):
    """A CUDA device, by its name in torch, such as 'cuda:0'."""

    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)

    def __init__(self, name: str) -> None:
        self.name = name
        self._before = 0
        self._has_kernels = False

    def move(self, value: Any) -> Any:
        """See `Processor`.

        Raises:
            BadModel: The device has too little memory, or its driver failed.
        """
        try:
            return value.to(self.name)
        except RuntimeError as error:  # out of memory, or an incompatible driver
            subject = "the model" if isinstance(value, nn.Module) else "an input"
            reason = str(error).partition("\n")[0]
            raise BadModel(f"{subject} cannot be moved to the device: {reason}", where=self.name) from None

    def make_default(self) -> AbstractContextManager[object]:
        """See `Processor`."""
        return torch.cuda.device(self.name)

    def wait(self) -> None:
        """See `Processor`."""
        torch.cuda.synchronize(self.name)

    def create_mark(self) -> Any:
        """See `Processor`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event

    def compute_seconds(self, start: Any, end: Any) -> float:
        """See `Processor`."""
        return float(start.elapsed_time(end)) * 1e-3

    def read_events(self, profiler: Any) -> tuple[list[Event], list[Event]]:
        """See `Processor`."""
        calls, kernels = read_cuda_events(profiler)
        self._has_kernels = self._has_kernels or bool(kernels)
        return calls, kernels

    def begin_measuring(self) -> None:
        """See `Processor`."""
        torch.cuda.reset_peak_memory_stats(self.name)
        self._before = torch.cuda.memory_allocated(self.name)

    def list_notes(self) -> tuple[str, ...]:
        """See `Processor`."""
        peak = torch.cuda.max_memory_allocated(self.name)
        reserved = torch.cuda.max_memory_reserved(self.name)
        no_kernels_note = (
            "torch's profiler reported no kernel of the device, so layers have no times: another profiler may"
            " use its counters (CUPTI), or the driver reserves them for an administrator",
        )
        return (
            *(() if self._has_kernels else no_kernels_note),
            f"the runs used at most {bytes_text(peak)} of the memory of"
            f" {torch.cuda.get_device_name(self.name)}, with {bytes_text(self._before)} in use before;"
            f" torch's allocator reserved {bytes_text(reserved)}",
        )

    def free_memory(self) -> None:
        """See `Processor`."""
        with suppress(RuntimeError):  # after a kernel's error, every call of the device fails
            torch.cuda.empty_cache()


def find_device(name: str) -> Processor:
    """Returns the device with a name: 'cpu', 'cuda', 'cuda:1'.

    Raises:
        Misuse: The device does not exist, or its driver does not work.
    """
    available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    device_name = name.casefold()
    if device_name == "cpu":
        return Processor()
    if device_name not in available and (device_name != "cuda" or len(available) < 2):
        raise Misuse(f"torch has no '{name}' here", where="--device", hint=f"it has {', '.join(available)}")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return Cuda(f"cuda:{torch.cuda.current_device()}" if device_name == "cuda" else device_name)
    except (RuntimeError, AssertionError) as error:  # an old driver, or torch built without CUDA
        raise Misuse(f"torch cannot use '{name}': {format_error(error)}", where="--device") from None
