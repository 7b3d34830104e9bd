"""Work in the background: what it fails with is told, unless what it was for is gone."""

from __future__ import annotations

import asyncio

from textual.app import App
from textual.screen import Screen

from explorer.base.errors import Misuse
from explorer.tui.compat import ClosingWorkers


async def test_an_error_is_told_while_its_screen_is_there_and_ours_are_told_by_whoever_asked() -> None:
    told: list[str] = []
    app: App[None] = App()
    app._workers = ClosingWorkers(app, lambda error: told.append(str(error)))

    async def fail(error: Exception, after: asyncio.Event) -> None:
        await after.wait()
        raise error

    now, later = asyncio.Event(), asyncio.Event()
    now.set()
    async with app.run_test() as pilot:
        here, gone = app.screen, Screen[None]()
        await app.push_screen(gone)
        for screen, error, after in (
            (here, ValueError("a bug"), now),
            (here, Misuse("a word too many"), now),
            (gone, ValueError("what it misses"), later),
        ):
            screen.run_worker(fail(error, after), exit_on_error=False)
        await pilot.pause()
        waiting = [worker for worker in app.workers if worker.node is gone]
        removed = gone.remove()
        later.set()
        await removed
        await asyncio.gather(*(worker.wait() for worker in waiting), return_exceptions=True)
        await pilot.pause()
    assert told == ["a bug"]
