"""What changes the model: tile, verify, diff, undo, redo, save, export, and how the results are told."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.actions.jobs import Door, Jobs, Running
from explorer.tui.pages.verdict import TO_BLAME, TONES, verdict_lines, verdict_title
from explorer.tui.tabs.plan import plan_lines
from explorer.tui.terminal.slices import Slices
from explorer.tui.text.lines import BLANK, Line, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import Analysis, Diff, History, Layer, Plan, TileResult, TileSpec, Verification
    from explorer.facts.cost import Hardware, PlanCost
    from explorer.facts.roofline import Machine

__all__ = ["Changing"]

Write = Callable[[str, bool], Coroutine[Any, Any, None]]
"""Writes a file; the second argument is whether one may be replaced."""

_AT_ONCE, _AT_A_TIME = 1_000, 128
"""Layers that can be looked through while a key waits, and between two looks at the clock."""


class Changing(Screen[None]):
    """The half of the main screen that acts; the other half, `MainScreen`, shows.

    Args:
        source: What the user asked for.
        door: The engine.
        remote: Over SSH.
    """

    analysis: Analysis | None
    changes: Diff | None

    def __init__(self, source: str, door: Door, *, remote: bool = False) -> None:
        super().__init__()
        self.source, self.remote = source, remote
        self.jobs = Jobs(door, self.jobs_changed)
        self.history: History | None = None
        self.last_command = ""
        self.said = ""
        self.refused: Running | None = None
        self.machine: Machine | None = None
        self.hardware: Hardware | None = None
        self.tile_spec: TileSpec | None = None

    @property
    def hardware_in_use(self) -> Hardware | None:
        """The machine that was chosen or typed last."""
        from explorer.settings import machines

        known = self.hardware
        return machines.as_hardware(self.machine) if known is None and self.machine is not None else known

    def use_machine(self, hardware: Hardware | None) -> None:
        """A machine that was chosen or typed in one place holds in all; of one without rates the tilings."""
        from explorer.facts.roofline import Machine

        self.hardware = hardware
        if hardware is None or hardware.peak_macs is None or hardware.bandwidth is None:
            return
        machine = Machine(hardware.name, hardware.peak_macs, hardware.bandwidth, hardware.origin)
        if machine != self.machine:
            self.machine = machine
            self.machine_changed()

    def machine_changed(self) -> None:
        """What was found for another machine holds no more."""
        raise NotImplementedError

    # what the other half does

    def show_status(self) -> None:
        """Draw the status line."""
        raise NotImplementedError

    def jobs_changed(self) -> None:
        """A job began or ended."""
        self.show_status()

    def show_heads(self) -> None:
        """Draw the header and the headings of the panes."""
        raise NotImplementedError

    def refresh_all(self) -> None:
        """Draw everything again."""
        raise NotImplementedError

    def show_diff(self, changes: Diff) -> None:
        """Show what changed."""
        raise NotImplementedError

    def open_tab(self, tab: str, *, focus: bool = True) -> None:
        """Show a tab."""
        raise NotImplementedError

    def blame(self, spec: TileSpec | None = None) -> None:
        """Show which layer departs: of a tiling that was refused, or of the current model."""
        raise NotImplementedError

    async def reload(self) -> None:
        """Show the current model."""
        raise NotImplementedError

    async def locate(self, layers: Sequence[Layer], paths: Sequence[str]) -> Mapping[str, int]:
        """Where in the current model's `layers` some paths are."""
        from explorer.process.rows import Rows

        if not isinstance(layers, Rows):
            wanted = set(paths)
            return {layer.path: layer.id for layer in layers if layer.path in wanted}
        return await self.jobs.ask("locate", paths) if paths else {}

    def with_layers(
        self,
        first: int,
        stop: int,
        wanted: Callable[[Layer], object],
        then: Callable[[list[Layer]], None],
    ) -> None:
        """Hand on the layers from `first` to before `stop` that are wanted.

        Very many are looked through between the keys, and handed on when that is done.
        """
        from explorer.tui.tree.widget import LayerTree

        layers = self.query_one(LayerTree).model.layers
        if stop - first <= _AT_ONCE:
            then([layer for layer in layers[first:stop] if wanted(layer)])
            return

        async def look_through() -> None:
            found: list[Layer] = []
            pause = Slices(self.app)
            for at in range(first, stop, _AT_A_TIME):
                found += [layer for layer in layers[at : min(stop, at + _AT_A_TIME)] if wanted(layer)]
                if pause.due():
                    await pause.rest()
            if self.query_one(LayerTree).model.layers is layers and self._ready():
                then(found)

        self.say(f"looking through {stop - first:,} layers…")
        self.run_worker(look_through(), group="inside", exclusive=True, exit_on_error=False)

    def chosen_span(self) -> tuple[int, int]:
        """The first layer under the cursor, and the one behind the last inside it; (0, 0) for none."""
        from explorer.tui.tree.widget import LayerTree

        tree = self.query_one(LayerTree)
        row, model = tree.current_row, tree.model
        if row is None:
            return 0, 0
        members = model.members(row)
        return members[0], model.end[members[-1]]

    async def after_paint(self) -> None:
        """Let out what is to be painted."""
        painted = asyncio.Event()
        self.call_after_refresh(painted.set)
        with contextlib.suppress(TimeoutError):  # a screen that need not be painted again is never refreshed
            await asyncio.wait_for(painted.wait(), 0.5)

    # telling

    def say(self, said: str) -> None:
        """A word in the status line."""
        self.said, self.last_command = said, ""
        self.show_status()

    def fail(
        self, title: str, error: ExplorerError, then: Callable[[], None] | None = None, *, hint: str = ""
    ) -> None:
        """The one line of an error, in a dialog; `then` follows when it is closed."""
        from explorer.tui.dialogs.dialogs import Message

        message = Message(title, str(error), hint=hint)
        self.app.push_screen(message, lambda _: then() if then is not None else None)

    def state_note(self) -> str:
        """Which state of the history is shown, and whether it is saved."""
        if self.history is None or self.history.current == 0:
            return ""
        entry = self.history.entries[self.history.current]
        saved = f"saved as {os.path.basename(entry.saved)}" if entry.saved else "not saved"
        return f"{safe(entry.label)} · {safe(saved)}"

    def can_compare(self) -> bool:
        """Whether the current model is another one than was opened."""
        return self.history is not None and self.history.current > 0

    def _ready(self) -> bool:
        """Whether a job can begin; says why not."""
        if self.jobs.current is not None:
            self.refused = self.jobs.current
            self.app.bell()
            self.show_status()
            return False
        if self.analysis is None:
            self.say("the model is not open; o opens it")
            return False
        return True

    def _start(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        """Run a job unless one runs; tell what goes wrong, and then call `failed`."""
        if self._ready():
            self.run_worker(self._guarded(title, work, failed), group="job", exit_on_error=False)
        else:
            work.close()

    async def _guarded(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        try:
            await work
        except Cancelled:
            self.say(f"{title}: stopped, nothing was changed")
        except ExplorerError as error:
            self.fail(title, error, failed)

    def ask_path(self, title: str, path: str, said: str, write: Write) -> None:
        """Ask where to write, ask before a file is lost, and ask again where it cannot be written."""
        from explorer.tui.dialogs.dialogs import AskPath, Confirm

        def answered(chosen: str | None) -> None:
            if chosen is None:
                return

            def again() -> None:
                self.ask_path(title, chosen, said, write)

            def go(yes: bool | None) -> None:
                if yes:
                    self._start(title, write(chosen, there), again)
                else:
                    again()

            there = os.path.isfile(chosen)
            if there:
                self.app.push_screen(Confirm("Replace the file?", f"{chosen} exists. Replace it?"), go)
            else:
                go(True)

        self.app.push_screen(AskPath(title, path, said, blink=not self.remote), answered)

    # tile

    def action_tile(self) -> None:
        """Ask how, then do it."""
        from explorer.tui.dialogs.tile import TileDialog

        if not self._ready():
            return
        assert self.analysis is not None

        async def ask_plan(spec: TileSpec) -> Plan:
            plan: Plan = await self.jobs.run("planning", "plan", spec)
            return plan

        async def ask_cost(spec: TileSpec, hardware: Hardware | None, formulas: bool | None) -> PlanCost:
            cost: PlanCost = await self.jobs.run("costing", "cost", spec, hardware, formulas=formulas)
            return cost

        by_value = self.analysis.info.model.format == "onnx"

        def ask(chosen: list[Layer]) -> None:
            assert self.analysis is not None
            layers = self.analysis.layers
            dialog = TileDialog(
                ask_plan,
                ask_cost,
                chosen,
                by_value=by_value,
                blink=not self.remote,
                layers=layers if len(layers) <= _AT_ONCE else chosen,
                spec=self.tile_spec,
                hardware=self.hardware_in_use,
            )

            def answered(spec: TileSpec | None) -> None:
                self.use_machine(dialog.hardware)
                self._tile(spec)

            self.app.push_screen(dialog, answered)

        self.with_layers(*self.chosen_span(), lambda layer: True, ask)

    def _tile(self, spec: TileSpec | None) -> None:
        if self.jobs.current is not None:
            self.jobs.stop()
        if spec is None:
            return
        self.tile_spec = spec
        lost = self.history.at_stake if self.history is not None else ()

        def go(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._guarded("Tile", self._do_tile(spec)), group="job", exit_on_error=False)

        if lost:
            from explorer.facts import states_text
            from explorer.tui.dialogs.dialogs import Confirm

            said = f"{states_text(lost)} was undone and not saved, and this takes its place. Tile without it?"
            self.app.push_screen(Confirm("Drop what was undone?", said), go)
        else:
            go(True)

    async def _do_tile(self, spec: TileSpec) -> None:
        from explorer.tui.dialogs.dialogs import Page
        from explorer.tui.dialogs.tile import Made

        result: TileResult = await self.jobs.run("tiling", "tile", spec, discard=True)
        await self._take_history()
        proof = result.verification
        passed = proof is None or proof.passed

        def page(width: int) -> list[Line]:
            lines: list[Line] = []
            if proof is not None:
                lines += verdict_lines(proof, width)
            lines += [BLANK, *wrap((("$ ", "accent"), (safe(result.command), "text")), width - 1, 2)]
            return [*lines, BLANK, *plan_lines(result.plan, width)]

        if not result.output:
            kind = proof.verdict_kind if proof is not None else "different"
            why = "the result differs" if kind == "different" else "the result could not be proved"
            refused = Page(f"Tiling refused: {why}", page, hint=TO_BLAME, tone=TONES[kind])
            self.app.push_screen(refused, lambda more: self.blame(spec) if more else None)
            return
        await self._show_current("undo")
        self.last_command, self.said = result.command, ""
        self.show_status()
        title = "Tiled, not verified" if proof is None else verdict_title(proof)
        await self.after_paint()  # two paints of the whole screen in one go would hold keys up
        dialog = Made(
            title,
            page,
            result.plan,
            hint="Enter diff · i tiles · y copy command · Esc close",
            tone="good" if passed else "bad",
            copy=result.command,
        )
        self.app.push_screen(dialog, self._after_verdict)

    def _after_verdict(self, more: bool | None) -> None:
        if more is not None:
            self.open_tab("diff")

    # verify, diff

    def action_verify(self) -> None:
        """Prove the current model equal to the one opened."""
        if not self._ready():
            return
        if not self.can_compare():
            self.say("nothing to prove: this is the model as it was opened")
            return
        self._start("Verify", self._do_verify())

    async def _do_verify(self) -> None:
        from explorer.tui.dialogs.dialogs import Page

        proof: Verification = await self.jobs.run("verifying", "verify")
        self.app.push_screen(
            Page(
                verdict_title(proof),
                lambda width: verdict_lines(proof, width),
                hint="" if proof.passed else TO_BLAME,
                tone=TONES[proof.verdict_kind],
            ),
            lambda more: self.blame() if more and not proof.passed else None,
        )

    def action_diff(self) -> None:
        """Compare with the model as opened."""
        if not self.can_compare() or self.changes is not None:
            self.open_tab("diff")
            return
        self._start("Diff", self._do_diff())

    async def _do_diff(self) -> None:
        self.show_diff(await self.jobs.run("comparing", "diff"))
        self.open_tab("diff")

    # history

    async def _take_history(self) -> None:
        self.history = await self.jobs.ask("history")

    async def _show_current(self, *way_back: Any) -> None:
        """Show the model that a step led to, or go back: the next step starts from what is on show."""
        try:
            await self.reload()
        except ExplorerError as error:
            self.history = await self.jobs.ask(*way_back)
            self.show_heads()
            raise ExplorerError(
                "the model cannot be read again, so the step was taken back", hint=str(error)
            ) from error

    def action_undo(self) -> None:
        """One step back."""
        if not self.can_compare():
            self.say("nothing to undo")
            return
        self._start("Undo", self._step("undo"))

    def action_redo(self) -> None:
        """One step forward."""
        if self.history is None or self.history.current + 1 >= len(self.history.entries):
            self.say("nothing to redo")
            return
        self._start("Redo", self._step("redo"))

    async def _step(self, way: str) -> None:
        before = self.history
        self.history = await self.jobs.run(way, way)
        assert before is not None
        assert self.history is not None
        changed = before.entries[max(before.current, self.history.current)]
        await self._show_current("redo" if way == "undo" else "undo")
        self.say(f"{'undone' if way == 'undo' else 'redone'}: {changed.label}")
        if self.query_one("#diff").display:
            self.open_tab("diff", focus=False)

    # save, export

    def action_save(self) -> None:
        """Ask where, and write the current model."""
        if not self._ready():
            return
        stem = os.path.basename(self.source).removesuffix(".onnx").replace(":", "_")
        tail = "_tiled" if self.can_compare() else ("_copy" if self.source.endswith(".onnx") else "")
        self.ask_path("Save as ONNX", f"{stem}{tail}.onnx", "The current model, written to", self._do_save)

    async def _do_save(self, path: str, overwrite: bool) -> None:
        saved = await self.jobs.run("saving", "save", path, overwrite=overwrite)
        await self._take_history()
        self.refresh_all()
        self.say(f"saved as {saved}")

    def action_export(self) -> None:
        """Ask where, and write the layer table."""
        if not self._ready():
            return
        stem = os.path.basename(self.source).removesuffix(".onnx").replace(":", "_")
        said = "All layers with their figures; the ending says the format, .csv or .json"
        self.ask_path("Export the layers", f"{stem}_layers.csv", said, self._do_export)

    async def _do_export(self, path: str, overwrite: bool) -> None:
        from explorer.tui.actions.export import write_layers

        assert self.analysis is not None
        await asyncio.to_thread(write_layers, self.analysis, path)
        self.say(f"{len(self.analysis.layers):,} layers written to {path}")

    # leaving

    def action_quit(self) -> None:
        """Leave; ask if something would be lost."""
        running = self.jobs.current
        if running is not None and self.analysis is not None:
            self._leave_after(f"{running.title} is not done. Stop it and quit?")
            return
        if self.history is not None and (lost := self.history.unsaved):
            from explorer.facts import states_text

            self._leave_after(f"{states_text(lost)} not saved. Quit without?")
            return
        self.app.exit(0)

    def _leave_after(self, question: str) -> None:
        from explorer.tui.dialogs.dialogs import Confirm

        self.app.push_screen(Confirm("Quit?", question), lambda yes: self.app.exit(0) if yes else None)
