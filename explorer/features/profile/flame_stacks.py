"""Collapsed stacks of a profile, from which flame graphs are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from explorer.facts import Layer
from explorer.facts.profile.profile import Profile
from explorer.report.timeline import frames, title


def stacks(profiles: Sequence[Profile], rows: Sequence[Layer], model: str) -> Iterator[str]:
    """Collapsed stacks: a line a kernel, `group;layer;kernel NANOSECONDS`; of several profiles by batch.

    Whole numbers: speedscope skips a line with another.

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
                yield f"{';'.join(names)} {frame.seconds * 1e9:.0f}\n"
