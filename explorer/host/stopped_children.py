"""Detects stopped child processes (SIGSTOP, a debugger), which neither end nor answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from explorer.base.errors import EngineDied

LIMIT = 10.0
"""Seconds for which a stage may be stopped before all stages are ended."""


class StoppedChildren:
    """Tracks for how long each child process has been stopped."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def check(self, stages: Sequence[int], files: Sequence[str]) -> None:
        """Checks the processes of all stages. Call it repeatedly.

        Args:
            stages: Process ids of the stages.
            files: Files that the stages run, in the same order.

        Raises:
            EngineDied: A process has been stopped for `LIMIT` seconds.
        """
        time_now = time.monotonic()
        self._since = {pid: self._since.get(pid, time_now) for pid in stages if _is_stopped(pid)}
        for index, pid in enumerate(stages):
            if time_now - self._since.get(pid, time_now) > LIMIT:
                raise EngineDied(
                    f"the process of stage {index + 1} answers no more:"
                    " it was stopped (SIGSTOP, or a debugger)",
                    where=files[index],
                    hint="all stages were ended; run it again",
                )


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # the process has ended
        return False
