"""Writes profiles to files: Chrome trace, collapsed stacks for flame graphs, TensorBoard events."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.facts import Layer
from explorer.facts.profile.profile import LayerTime, Profile
from explorer.facts.profile.recording import RecordedEvent, RecordedRun
from explorer.host import input_files, output_files
from explorer.host.optional_packages import require
from explorer.host.output_files import make_folder, write_atomically
from explorer.report.timeline import build_frames, run_title

_TRACE_NOTE = "runs under the profiler as they were recorded; the pauses between runs are left out"


def build_chrome_trace(profiles: Sequence[Profile], rows: Sequence[Layer], model: str) -> str:
    """Build a Chrome trace of the recorded runs, for Perfetto and TensorBoard; each profile is a process.

    Times are in microseconds. Format: "Trace Event Format" of the Chromium project.
    """
    events: list[dict[str, Any]] = []
    for pid, profile in enumerate(profiles, 1):
        threads = {event.thread for run in profile.recording for event in run.events} | {0}
        names = [("process_name", 0, run_title(profile, model))]
        names += [
            ("thread_name", thread, f"thread {thread}" if thread else "main thread")
            for thread in sorted(threads)
        ]
        for name, thread, label in names:
            events.append({"ph": "M", "name": name, "pid": pid, "tid": thread, "args": {"name": label}})
        start = 0.0
        for number, run in enumerate(profile.recording, 1):
            # tools find training steps by the name that torch.profiler uses
            prefix, category = ("ProfilerStep#", "user_annotation") if profile.phases else ("run ", "run")
            args = _list_profile_arguments(profile)
            events.append(_make_slice(f"{prefix}{number}", category, pid, 0, start, run.seconds, args))
            events += _list_run_events(run, profile, rows, pid, start)
            start += run.seconds
    metadata = {"tool": f"explorer {__version__}", "model": model, "what": _TRACE_NOTE}
    return json.dumps(
        {"displayTimeUnit": "ms", "otherData": metadata, "traceEvents": events}, indent=1, allow_nan=False
    )


def _make_slice(
    name: str, category: str, pid: int, thread: int, start: float, seconds: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a trace event with a start and a duration; Perfetto calls it a slice."""
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": thread, **times, "args": args}


def _list_run_events(
    run: RecordedRun, profile: Profile, rows: Sequence[Layer], pid: int, run_start: float
) -> Iterator[dict[str, Any]]:
    """Yield the trace events of a run: phases, groups, layers and kernels."""
    args_by_layer = {
        time.layer: _build_layer_arguments(time) for time in profile.layers if time.seconds is not None
    }
    has_modules = any(event.kind == "module" for event in run.events)
    for first, last, group_row in () if has_modules else _list_group_spans(run, rows):
        seconds = last.start + last.seconds - first.start
        yield _make_slice(
            rows[group_row].path, "group", pid, first.thread, run_start + first.start, seconds, {}
        )
    for event in run.events:
        position = pid, event.thread, run_start + event.start, event.seconds
        row = None if event.layer is None else rows[event.layer]
        if event.kind == "phase":
            yield _make_slice(event.name, "user_annotation", *position, {})
        elif row is not None:
            # 'own' is time that a group spends itself, outside of its layers
            category = "group" if row.group and event.kind == "module" else "own" if row.group else "layer"
            yield _make_slice(row.path or row.name, category, *position, args_by_layer.get(row.id, {}))
        if event.kind == "kernel":
            category = "cpu_op" if has_modules else "kernel" if row else "other"
            yield _make_slice(event.name, category, *position, {})
        elif event.kind == "module" and row is None:
            yield _make_slice("model", "group", *position, {})


def _list_group_spans(
    run: RecordedRun, rows: Sequence[Layer]
) -> Iterator[tuple[RecordedEvent, RecordedEvent, int]]:
    """Find the spans of consecutive kernels in the same group of layers.

    Each span is the first event, the last event and the row of the group. Outer groups come first. Kernels
    without a layer do not end a span.
    """
    spans: list[tuple[RecordedEvent, RecordedEvent, int]] = []
    open_spans: list[int] = []
    end = 0.0
    for event in run.events:
        if event.layer is None or event.kind != "kernel":
            continue
        if event.start < end:
            continue  # the event is nested in the previous kernel, whose span covers it
        end = event.start + event.seconds
        enclosing, group = list[int](), rows[event.layer].parent
        while group is not None:
            enclosing.insert(0, group)
            group = rows[group].parent
        shared_count = 0
        while (
            shared_count < min(len(open_spans), len(enclosing))
            and spans[open_spans[shared_count]][2] == enclosing[shared_count]
        ):
            first, _, row = spans[open_spans[shared_count]]
            spans[open_spans[shared_count]] = first, event, row
            shared_count += 1
        del open_spans[shared_count:]
        for row in enclosing[shared_count:]:
            open_spans.append(len(spans))
            spans.append((event, event, row))
    return iter(spans)


def _list_profile_arguments(profile: Profile) -> dict[str, Any]:
    """Return the settings and times of a profile, as arguments of the events of its runs."""
    names = ("runtime", "device", "threads", "batch", "optimize", "runs", "settled", "loaded", "load")
    times = ("wall_seconds", "overhead_seconds", "slowed_seconds")
    return {name: getattr(profile, name) for name in (*names, *times)}


def _build_layer_arguments(layer: LayerTime) -> dict[str, Any]:
    """Return the figures of a layer over all runs, as arguments of its events."""
    assert layer.seconds is not None
    names = ("kind", "op", "calls", "share", "macs_per_second", "bytes_per_second", "limit_seconds")
    fields = {name: getattr(layer, name) for name in names}
    spread = {f"{name}_seconds": getattr(layer.seconds, name) for name in ("median", "p10", "p90")}
    return {
        **{name: value for name, value in fields.items() if value is not None},
        **spread,
        "with": layer.holds,  # paths of other layers that the same kernel computes
    }


def list_flame_stacks(profiles: Sequence[Profile], rows: Sequence[Layer], model: str) -> Iterator[str]:
    """Yield collapsed stacks for flame graphs, one line per kernel: `group;layer;kernel NANOSECONDS`.

    Layers without kernels and times outside of layers have lines, too. With several profiles, each stack
    starts with the title of its profile. Numbers are whole, because speedscope skips lines with fractions.
    Format: stackcollapse of "Flame Graphs", B. Gregg.
    """
    for profile in profiles:
        prefix = (run_title(profile, model),) if len(profiles) > 1 else ()
        all_frames = build_frames(profile, rows)
        stacks_with_kernels = {frame.stack[:-1] for frame in all_frames if frame.category == "kernel"}
        for frame in all_frames:
            is_leaf = frame.category in ("kernel", "other", "overhead")
            if is_leaf or (frame.category in ("layer", "own") and frame.stack not in stacks_with_kernels):
                names = [name.replace(";", ":") or "(unnamed)" for name in (*prefix, *frame.stack)]
                yield f"{';'.join(names)} {frame.seconds * 1e9:.0f}\n"


_FORBIDDEN = re.compile(r"[^-/\w.]")
"""Characters that are not allowed in a TensorBoard tag."""


def check_tensorboard(folder: str) -> None:
    """Check a TensorBoard folder before the model is timed.

    Raises:
        Misuse: The path is a file, or its parent folder does not exist.
        MissingExtra: tensorboardX is not installed.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Misuse("is not a folder", where=folder, hint="name a folder; TensorBoard reads all files in it")
    if not os.path.isdir(os.path.dirname(os.path.abspath(folder))):
        raise Misuse("there is no such folder", where=os.path.dirname(folder), hint="create it first")
    require("tensorboardX", "--tensorboard")


@contextmanager
def write_tensorboard_events(profiles: Sequence[Profile], folder: str) -> Iterator[str]:
    """Context manager that writes times as TensorBoard events.

    All times are scalars; those of layers are also a histogram. The batch size is the step. The event file
    appears in the folder when the block ends without an error. A missing folder is created; files in an
    existing folder stay. The optional package tensorboardX writes the events, without TensorFlow.

    Yields:
        The path of the event file.

    Raises:
        Misuse: The file cannot be written.
    """
    writer = require("tensorboardX", "--tensorboard").SummaryWriter
    with tempfile.TemporaryDirectory() as workdir:
        # the suffix distinguishes two files written in the same second
        with writer(workdir, filename_suffix=f".{uuid.uuid4().hex[:8]}") as log:
            for profile in profiles:
                step = profile.batch or profile.rows or 1
                for tag, value in _list_scalars(profile):
                    log.add_scalar(tag, value, step)
                times = [layer.seconds.median for layer in profile.layers if layer.seconds is not None]
                if times:
                    log.add_histogram("layer_seconds", times, step)
        (name,) = os.listdir(workdir)
        target = os.path.join(folder, name)
        with make_folder(folder), write_atomically(target) as temporary:
            with (
                input_files.open_binary(os.path.join(workdir, name), internal=True) as events,
                output_files.open_binary(temporary) as file,
            ):
                shutil.copyfileobj(events, file)
            yield target


def _list_scalars(profile: Profile) -> Iterator[tuple[str, float]]:
    """Yield the tags with their seconds."""
    yield "wall_seconds", profile.wall_seconds
    yield "overhead_seconds", profile.overhead_seconds
    groups = (
        (
            "layers",
            [(layer.path, layer.seconds.median) for layer in profile.layers if layer.seconds is not None],
        ),
        ("operators", [(operator.op, operator.seconds) for operator in profile.operators]),
        ("modules", [(module.path, module.seconds) for module in profile.modules]),
        ("other", [(part.name, part.seconds) for part in profile.other]),
        ("phases", [(phase.name, phase.seconds.median) for phase in profile.phases]),
    )
    for group, rows in groups:
        for name, seconds in rows:
            yield f"{group}/{_FORBIDDEN.sub('_', name).strip('/') or 'unnamed'}", seconds
