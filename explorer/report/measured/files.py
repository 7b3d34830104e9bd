"""A profile as a file: Chrome's trace events, which Perfetto opens, and collapsed stacks for flame graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from explorer.base.version import __version__
from explorer.facts import Layer
from explorer.facts.profile.profile import Profile
from explorer.report.measured.timeline import Piece, pieces, title

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
        events += [_event(piece, pid, profile) for piece in pieces(profile, rows)]
    about = {"tool": f"explorer {__version__}", "model": model, "what": _SAID}
    return json.dumps(
        {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, indent=1, allow_nan=False
    )


def _event(piece: Piece, pid: int, profile: Profile) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": piece.name,
        "cat": piece.category,
        "pid": pid,
        "tid": 1,
        "ts": piece.start * 1e6,
        "dur": piece.seconds * 1e6,
        "args": _run(profile) if piece.category == "run" else _layer(piece),
    }


def _run(profile: Profile) -> dict[str, Any]:
    names = ("runtime", "device", "threads", "batch", "optimize", "runs", "settled", "loaded", "load")
    return {name: getattr(profile, name) for name in (*names, "wall_seconds", "overhead_seconds")}


def _layer(piece: Piece) -> dict[str, Any]:
    one = piece.layer
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
        found = pieces(profile, rows)
        kernels = {piece.stack[:-1] for piece in found if piece.category == "kernel"}
        for piece in found:
            leaf = piece.category in ("kernel", "other", "overhead")
            if leaf or (piece.category in ("layer", "own") and piece.stack not in kernels):
                names = [name.replace(";", ":") or "(unnamed)" for name in (*before, *piece.stack)]
                yield f"{';'.join(names)} {piece.seconds * 1e6:.3f}\n"
