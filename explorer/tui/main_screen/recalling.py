"""The history from the main screen: going to any state, comparing any two, keeping all as a script."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from explorer.tui.main_screen.blaming import Blaming
from explorer.tui.pages.history import state_name
from explorer.tui.pages.verdict import TO_BLAME, TONES, verdict_lines, verdict_title
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.facts import Diff, History, Verification
    from explorer.tui.dialogs.history import Wish

__all__ = ["Recalling"]


class Recalling(Blaming):
    """The part of the main screen that knows what was done before."""

    def action_history(self, at: int | None = None) -> None:
        """Every state of the session."""
        from explorer.tui.dialogs.history import HistoryScreen

        if self._ready():
            self.run_worker(self._show_history(HistoryScreen, at), exit_on_error=False)

    async def _show_history(self, screen: Callable[..., Any], at: int | None) -> None:
        await self._take_history()
        self.app.push_screen(screen(self.history, self._rename, at=at, blink=not self.remote), self._wished)

    async def _rename(self, at: int, name: str) -> History:
        history: History = await self.jobs.ask("name", at, name)
        self.history = history
        self.show_heads()
        return history

    def _wished(self, wish: Wish | None) -> None:
        if wish is None:
            return
        if wish.what == "script":
            self._ask_script(wish.at)
            return
        title, work = {
            "go": ("Go there", self._do_go),
            "compare": ("Compare", self._do_compare),
            "prove": ("Prove", self._do_prove),
        }[wish.what]
        self._start(title, work(wish))

    def _named(self, at: int) -> str:
        assert self.history is not None
        return f"{at} {state_name(self.history.entries[at], at)}"

    async def _do_go(self, wish: Wish) -> None:
        assert self.history is not None
        before = self.history.current
        if wish.at == before:
            return
        self.history = await self.jobs.run("going back", "go", wish.at)
        await self._show_current("go", before)
        self.say(f"this is {self._named(wish.at)}")
        if self.query_one("#diff").display:
            self.open_tab("diff", focus=False)

    async def _do_compare(self, wish: Wish) -> None:
        from explorer.tui.dialogs.history import DiffScreen

        changes: Diff = await self.jobs.run("comparing", "diff", wish.other, wish.at)
        screen = DiffScreen(changes, self._named(wish.other), self._named(wish.at), exact=self.exact)
        self.app.push_screen(screen, lambda _: self.action_history(wish.at))

    async def _do_prove(self, wish: Wish) -> None:
        from explorer.tui.dialogs.dialogs import Page

        proof: Verification = await self.jobs.run("verifying", "verify", wish.other, wish.at)
        page = Page(
            f"{verdict_title(proof)}: {self._named(wish.other)} and {self._named(wish.at)}",
            lambda width: verdict_lines(proof, width),
            hint="" if proof.passed else TO_BLAME,
            tone=TONES[proof.verdict_kind],
        )

        def answered(more: bool | None) -> None:
            if more and not proof.passed:
                self.blame(before=wish.other, after=wish.at)
            else:
                self.action_history(wish.at)

        self.app.push_screen(page, answered)

    # files

    def _ask_script(self, at: int) -> None:
        said = f"The commands that make {self._named(at)} again, as a shell script, written to"
        self._ask_file("Save as a script", f"{self._stem()}.sh", said, "script", index=at)

    def action_keep_choices(self) -> None:
        """Ask where, and write what was tiled as a file for --config."""
        if not self._ready():
            return
        if not self.can_compare():
            self.say("nothing was tiled yet; t tiles a layer")
            return
        said = "How each product was tiled, as rules for --config, written to"
        self._ask_file("Keep the tilings", f"{self._stem()}.toml", said, "keep_choices")

    def _stem(self) -> str:
        return os.path.basename(self.source.rstrip(os.sep)).removesuffix(".onnx").replace(":", "_")

    def _ask_file(self, title: str, path: str, said: str, method: str, **how: Any) -> None:
        def write(chosen: str, overwrite: bool) -> Coroutine[Any, Any, None]:
            return self._do_write(method, chosen, overwrite=overwrite, **how)

        self.ask_path(title, path, said, write)

    async def _do_write(self, method: str, path: str, **how: Any) -> None:
        written = await self.jobs.run("writing", method, path, **how)
        self.say(f"written to {safe(written)}")
