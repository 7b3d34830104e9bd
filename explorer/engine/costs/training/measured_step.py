"""Measures the memory of a training step on the CPU, as torch's allocator reports it to torch's profiler.

The simulated memory (`simulation`) comes from a run on shapes. This run computes values, and includes the
memory that the simulation leaves out: workspaces inside kernels, and tensors that kernels allocate and free.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.training.simulation import OPTIMIZERS, create_state
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.facts.training import MeasuredMemory, Optimizer, Phase
from explorer.host import input_files, scratch
from explorer.host.optional_packages import format_error

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library prints to the terminal

MAX_VALUES = 256
"""Maximum number of values of a phase. A longer phase keeps the largest value of each interval."""

_PHASES: tuple[Phase, ...] = ("forward", "backward", "step")
_RANGES: dict[str, Phase] = {f"explorer training: {phase}": phase for phase in _PHASES}
"""Phases by the names of their ranges in the profile."""


def measure_step(
    loaded: LoadedModule, bound_inputs: BoundInputs, optimizer: Optimizer, *, train: bool
) -> MeasuredMemory:
    """Runs one training step of a copy of the module, and returns the memory in use over time.

    Args:
        loaded: Model from `loaded_module.load`; its module does not change.
        bound_inputs: Inputs of the model.
        optimizer: Optimizer that makes the step.
        train: Whether the modules are in training mode.

    Raises:
        BadModel: The step fails.
    """
    model = copy_module(loaded.materialize()).train(train)
    args, kwargs = bound_inputs.build_arguments(device="cpu", with_gradients=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch_optimizer = create_state(OPTIMIZERS[optimizer](trained), trained)
    existing = [*model.parameters(), *model.buffers(), *(t for _, t in walk_tensors([args, kwargs]))]
    existing += [
        value for _, value in walk_tensors([list(state.values()) for state in torch_optimizer.state.values()])
    ]
    existing_bytes = {
        storage_key(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in existing
    }
    ranges = {phase: name for name, phase in _RANGES.items()}
    try:
        with (
            loaded.quiet(),
            torch.enable_grad(),
            torch.random.fork_rng(devices=[]),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        ):
            with record_function(ranges["forward"]):
                result = model(*args, **kwargs)
                losses = [t.sum().float() for _, t in walk_tensors(result) if t.requires_grad]
                loss = torch.stack(losses).sum()
                del result, losses
            with record_function(ranges["backward"]):
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
            with record_function(ranges["step"]):
                torch_optimizer.step()
    except ExplorerError:
        raise
    except Exception as error:
        raise BadModel(f"the step cannot be measured ({format_error(error)})", where=loaded.source) from error
    return _sum_memory(_list_events(profiler), sum(existing_bytes.values()))


def _list_events(profiler: Any) -> list[dict[str, Any]]:
    """Returns the events of a profile, in the order of time."""
    with scratch.create_folder() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        trace = json.loads(input_files.read_content(path, internal=True))
    return sorted((event for event in trace["traceEvents"] if "ts" in event), key=lambda event: event["ts"])


def _sum_memory(events: Iterable[dict[str, Any]], initial_bytes: int) -> MeasuredMemory:
    """Adds up allocations and releases, phase by phase, starting from `initial_bytes`."""
    live: dict[Phase, list[int]] = {phase: [] for phase in _PHASES}
    phase: Phase | None = None
    total = initial_bytes
    for event in events:
        name = str(event.get("name", ""))
        if event.get("ph") == "X" and name in _RANGES:
            phase = _RANGES[name]
        elif name == "[memory]" and phase:
            total += int(event["args"]["Bytes"])
            live[phase].append(total)
    peak_bytes, peak_phase = max((max(live[phase], default=0), phase) for phase in _PHASES)
    thinned = {phase: _thin(live[phase]) for phase in _PHASES}
    return MeasuredMemory(max(peak_bytes, initial_bytes), peak_phase, **thinned)


def _thin(values: Sequence[int]) -> tuple[int, ...]:
    """Returns at most `MAX_VALUES` values, each the largest of its interval."""
    width = -(-len(values) // MAX_VALUES)
    return tuple(max(values[start : start + width]) for start in range(0, len(values), max(1, width)))
