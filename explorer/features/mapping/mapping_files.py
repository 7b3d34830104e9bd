"""Files of the map view: the mapping file, and the C code with its proof."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from glob import escape
from typing import TYPE_CHECKING, NamedTuple

from explorer.base.errors import Cancelled, ExplorerError
from explorer.base.features import list_offers, load
from explorer.base.verdicts import PASSED, VERDICTS
from explorer.facts.emission import MANIFEST
from explorer.features.mapping.nest_words import list_level_names
from explorer.host import scratch
from explorer.host.output_files import check_target, open_text, write_atomically
from explorer.settings.mapping_file import format_mappings
from explorer.tui.dialogs.dialogs import (
    ConfirmDialog,
    MessageDialog,
    PageDialog,
    ask_path,
    format_without_options,
)
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from textual.screen import Screen

    from explorer.facts.emission import CodeFusion, CodeProof
    from explorer.facts.mapping import MappingCost, MemoryMachine
    from explorer.tui.state.jobs import Jobs


class ShownMapping(NamedTuple):
    """A mapping on the screen.

    Attributes:
        machine: The machine.
        cost: The mapping with its cost.
        fuse: 'epilogue' if the operators after the matmul are fused, or ''.
    """

    machine: MemoryMachine
    cost: MappingCost
    fuse: CodeFusion

    @property
    def content(self) -> str:
        """The mapping as the text of a mapping file."""
        names = [" ".join(level) for level in list_level_names(self.machine, self.cost)]
        return format_mappings(self.machine.hardware.name, [(self.cost.mapping, names)])


def can_emit() -> bool:
    """Return whether the program can write code and prove it."""
    return "code_evidence" in list_offers("words")


class MappingFiles:
    """Writes the files of a mapping, and proves its code.

    Args:
        view: Screen that shows the mapping.
        jobs: Jobs of the screen.
        say: Function that shows a message on the screen.
    """

    def __init__(self, view: Screen[None], jobs: Jobs, say: Callable[[str], None]) -> None:
        self._view, self._jobs, self._say = view, jobs, say

    # the mapping file

    def write(self, displayed: ShownMapping) -> None:
        """Ask for a path, and write the mapping file."""

        def write(path: str, overwrite: bool, ask_again: Callable[[], None]) -> None:
            work = self._write(path, displayed.content, overwrite, ask_again)
            self._view.run_worker(work, exit_on_error=False)

        question = "The mapping of this matmul, which explorer map reads with --mapping, into the file"
        ask_path(self._view.app, "Write the mapping", "mapping.toml", question, write)

    async def _write(self, path: str, content: str, overwrite: bool, ask_again: Callable[[], None]) -> None:
        def work() -> None:
            check_target(path, overwrite=overwrite, models=(), weights=())
            with write_atomically(path, overwrite=overwrite) as temporary, open_text(temporary) as target:
                target.write(content)

        try:
            await asyncio.to_thread(work)
        except ExplorerError as error:
            message = MessageDialog("Write the mapping", str(error))
            self._view.app.push_screen(message, lambda _: ask_again())
        else:
            self._say(f"written to {path}")

    # the code

    def prove(self, displayed: ShownMapping) -> None:
        """Prove the code of the mapping without keeping it."""
        self._view.run_worker(self._prove(displayed), group="code", exit_on_error=False)

    async def _prove(self, displayed: ShownMapping) -> None:
        try:
            with scratch.create_folder() as folder:
                proof = await self._emit(displayed, os.path.join(folder, "code"), folder, "proving the code")
        except Cancelled:
            self._say("the proof was stopped")
        except ExplorerError as error:
            self._view.app.push_screen(MessageDialog("Prove the code", format_without_options(error)))
        else:
            self._show_proof(proof, "")

    async def _emit(
        self, displayed: ShownMapping, output: str, folder: str, title: str, *, overwrite: bool = False
    ) -> CodeProof:
        """Emit and prove the code into `output`; `folder` takes the mapping file."""
        path = os.path.join(folder, "mapping.toml")
        with open_text(path) as target:
            target.write(displayed.content)
        proof: CodeProof = await self._jobs.run(
            title,
            "emit",
            output=output,
            mapping=path,
            machine=displayed.machine,
            fuse=displayed.fuse,
            sites=(escape(displayed.cost.mapping.site),),
            overwrite=overwrite,
        )
        return proof

    def emit(self, displayed: ShownMapping) -> None:
        """Ask for a folder, and write the proved code into it."""
        site = "".join(letter if letter.isalnum() else "_" for letter in displayed.cost.mapping.site)

        def write(folder: str, _: bool, ask_again: Callable[[], None]) -> None:
            def on_confirmed(is_confirmed: bool | None) -> None:
                if is_confirmed:
                    work = self._write_code(displayed, folder, exists, ask_again)
                    self._view.run_worker(work, group="code", exit_on_error=False)
                else:
                    ask_again()

            exists = os.path.lexists(os.path.join(folder, MANIFEST))
            if exists:
                question = f"{folder} has code already. Replace it?"
                self._view.app.push_screen(ConfirmDialog("Replace the code?", question), on_confirmed)
            else:
                on_confirmed(True)

        question = "Write this matmul's loops as C code, and prove its numbers and bytes moved. Folder:"
        ask_path(self._view.app, "Emit C code", f"{site.strip('_') or 'code'}_code", question, write)

    async def _write_code(
        self, displayed: ShownMapping, output: str, overwrite: bool, ask_again: Callable[[], None]
    ) -> None:
        try:
            with scratch.create_folder() as folder:
                proof = await self._emit(displayed, output, folder, "emitting the code", overwrite=overwrite)
        except Cancelled:
            self._say("stopped, no file was written")
        except ExplorerError as error:
            message = MessageDialog("Emit C code", format_without_options(error))
            self._view.app.push_screen(message, lambda _: ask_again())
        else:
            self._show_proof(proof, proof.output)

    def _show_proof(self, proof: CodeProof, output: str) -> None:
        """Show the evidence and the verdict, and where the code is."""
        assert proof.verdict_kind is not None  # `emit` proves by default
        blocks = load("words", "code_evidence")(proof)
        has_passed = proof.verdict_kind in PASSED
        if output:
            self._say(f"written to {output}")
        elif has_passed:
            self._say(f"{VERDICTS[proof.verdict_kind]}; x writes the code")
        page = PageDialog(
            f"The code: {VERDICTS[proof.verdict_kind]}",
            lambda width: draw(blocks, width),
            tone=verdict_tone(proof.verdict_kind),
            copy=proof.verdict,
            hint="y copy verdict · Esc close",
        )
        self._view.app.push_screen(page)
