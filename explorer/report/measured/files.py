"""A profile as a file: Chrome's trace events, which Perfetto opens, and collapsed stacks for flame graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from explorer.base.version import __version__
from explorer.facts import Layer
from explorer.facts.profile.profile import Profile
from explorer.report.measured.timeline import Frame, frames, title

_SAID = "medians of runs, laid end to end in the order of the layers: no recording of one run"


def trace(profiles: Sequence[Profile], rows: Sequence[Layer], model: str) -> str:
    """Trace events, a process for each profile; times in microseconds.

    Format: "Trace Event Format", the Chromium project.
    """
    events: list[dict[str, Any]] = []
    for pid, profile in enumerate(profiles, 1):
        lane = f"median run ({profile.device}, {profile.threads:,} threads)"
        for name, said in (("process_name", title(profile, model)), ("thread_name", lane)):
            events.append({"ph": "M", "name": name, "pid": pid, "tid": 1, "args": {"name": said}})
        events += [_event(frame, pid, profile) for frame in frames(profile, rows)]
    about = {"tool": f"explorer {__version__}", "model": model, "what": _SAID}
    return json.dumps(
        {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, indent=1, allow_nan=False
    )


def _event(frame: Frame, pid: int, profile: Profile) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": frame.name,
        "cat": frame.category,
        "pid": pid,
        "tid": 1,
        "ts": frame.start * 1e6,
        "dur": frame.seconds * 1e6,
        "args": _run(profile) if frame.category == "run" else _layer(frame),
    }


def _run(profile: Profile) -> dict[str, Any]:
    names = ("runtime", "device", "threads", "batch", "optimize", "runs", "settled", "loaded", "load")
    times = ("wall_seconds", "overhead_seconds", "slowed_seconds")
    return {name: getattr(profile, name) for name in (*names, *times)}


def _layer(frame: Frame) -> dict[str, Any]:
    one = frame.layer
    if one is None or one.seconds is None:
        return {}
    names = ("kind", "op", "calls", "share", "macs_per_second", "bytes_per_second", "limit_seconds")
    found = {name: getattr(one, name) for name in names}
    spread = {"p10_seconds": one.seconds.p10, "p90_seconds": one.seconds.p90}
    return {
        **{name: value for name, value in found.items() if value is not None},
        **spread,
        "with": one.holds,
    }


def stacks(profiles: Sequence[Profile], rows: Sequence[Layer], model: str) -> Iterator[str]:
    """Collapsed stacks: a line a kernel, `group;layer;kernel MICROSECONDS`; of several profiles by batch.

    Format: "Flame Graphs", B. Gregg, stackcollapse.
    """
    for profile in profiles:
        before = (title(profile, model),) if len(profiles) > 1 else ()
        found = frames(profile, rows)
        kernels = {frame.stack[:-1] for frame in found if frame.category == "kernel"}
        for frame in found:
            leaf = frame.category in ("kernel", "other", "overhead")
            if leaf or (frame.category in ("layer", "own") and frame.stack not in kernels):
                names = [name.replace(";", ":") or "(unnamed)" for name in (*before, *frame.stack)]
                yield f"{';'.join(names)} {frame.seconds * 1e6:.3f}\n"
