"""Detects stopped stage processes (SIGSTOP, a debugger), which neither end nor answer.

A stage is one part of a split model; each stage runs in its own child process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from explorer.base.errors import EngineDied

MAX_STOPPED_SECONDS = 10.0
"""Seconds for which a stage may be stopped before the program ends all stages."""


class StoppedChildren:
    """Tracks for how long each child process has been stopped."""

    def __init__(self) -> None:
        self._stopped_since: dict[int, float] = {}

    def check(self, stages: Sequence[int], files: Sequence[str]) -> None:
        """Checks the processes of all stages. Call it repeatedly.

        Args:
            stages: Process ids of the stages.
            files: Files that the stages run, in the same order.

        Raises:
            EngineDied: A process has been stopped for `MAX_STOPPED_SECONDS` seconds.
        """
        check_time = time.monotonic()
        self._stopped_since = {
            pid: self._stopped_since.get(pid, check_time) for pid in stages if _is_stopped(pid)
        }
        for index, pid in enumerate(stages):
            if check_time - self._stopped_since.get(pid, check_time) > MAX_STOPPED_SECONDS:
                raise EngineDied(
                    f"the process of stage {index + 1} no longer answers:"
                    " it was stopped (SIGSTOP, or a debugger)",
                    where=files[index],
                    hint="all stages were ended; run it again",
                )


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # the process has ended
        return False
