"""Stopped children (SIGSTOP, a debugger): processes that end nothing, and answer nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from explorer.base.errors import EngineDied

LIMIT = 10.0
"""Seconds for which a stage may be stopped before all are given up."""


class StoppedChildren:
    """How long which children of this process have been stopped."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def check(self, stages: Sequence[int], files: Sequence[str]) -> None:
        """Looks at the processes of stages; asked again and again.

        Args:
            stages: Their ids.
            files: What each of them runs.

        Raises:
            EngineDied: One has been stopped for `LIMIT` seconds.
        """
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in stages if _is_stopped(pid)}
        for at, pid in enumerate(stages):
            if now - self._since.get(pid, now) > LIMIT:
                raise EngineDied(
                    f"the process of stage {at + 1} answers no more: it was stopped (SIGSTOP, or a debugger)",
                    where=files[at],
                    hint="all stages were ended; run it again",
                )


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it ended, and was waited for
        return False
