"""Open sizes and decoding: figures over a batch or a length, and what the model leaves open, bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts.serving.spec import ServingSpec
from explorer.report.present.look.info import sizes_of
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.machine import MachineDialog
from explorer.tui.plots.decode_view import DecodeView
from explorer.tui.plots.serving_view import ServingView
from explorer.tui.plots.sizes_dialog import SizesDialog
from explorer.tui.plots.sizes_view import SizeChoice, SizesView
from explorer.tui.state.hardware import known_machine, use_hardware

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving
    from explorer.facts.sizes.curves import SizeCurves
    from explorer.facts.sizes.decode import Decode


def ask_machine(command: ScreenCommand, then: Callable[[Machine | None], None]) -> None:
    """Asks for a machine, which the session then knows, and hands it on."""

    def answered(hardware: Hardware | None) -> None:
        if hardware is not None:
            use_hardware(command.store, hardware)
            then(command.store.machine)

    command.context.ask(MachineDialog(command.store.hardware), answered)


class SizesCommand(ScreenCommand):
    """Shows figures over a size; asks for the sizes that the model leaves open where there are none."""

    def run(self) -> None:
        """Count, and show."""
        if self.context.ready():
            self.context.start("Open sizes", self._count())

    def _open(self) -> dict[str, int | None]:
        return {} if self.store.analysis is None else sizes_of(self.store.analysis.info)

    async def _count(self) -> None:
        try:
            fact = await self.jobs.run("counting over sizes", "sizes", machine=known_machine(self.store))
        except Cancelled:
            raise
        except ExplorerError as error:
            # what cannot be counted over its sizes can still be bound to one
            self.store.say(str(error) if self._open() else "this model leaves no size open")
            if self._open():
                self._type()
            return
        view = SizesView(fact, frozenset(self._open()), self._ask, partial(ask_machine, self))
        self.context.ask(view, self._chosen)

    async def _ask(self, name: str, machine: Machine | None) -> SizeCurves:
        fact: SizeCurves = await self.jobs.ask("sizes", name, machine=machine)
        return fact

    def _chosen(self, choice: SizeChoice | None) -> None:
        if choice is not None and choice.serving:
            ServingCommand(self.context).run()
        elif choice is not None and choice.size is None:
            self._type()
        elif choice is not None:
            bound = {name: size for name, size in self._open().items() if size is not None}
            self._answered({**bound, choice.name: choice.size or 1})

    def _type(self) -> None:
        self.context.ask(SizesDialog(self._open()), self._answered)

    def _answered(self, dims: dict[str, int] | None) -> None:
        if dims is not None:
            before = {name: size for name, size in self._open().items() if size is not None}
            self.context.start("Open sizes", self._bind(dims, before))

    async def _bind(self, dims: dict[str, int], before: dict[str, int]) -> None:
        self.store.history = await self.jobs.run("binding sizes", "bind", dims)
        await self.context.show_current("bind", before)
        self.store.say(f"bound: {units.dims_text(dims)}" if dims else "no size is bound")


class DecodeCommand(ScreenCommand):
    """Shows a decode step beside the pass over its text."""

    def run(self) -> None:
        """Count, and show."""
        if self.context.ready():
            self.context.start("Decoding", self._count())

    async def _count(self) -> None:
        fact: Decode = await self.jobs.run("counting a decode step", "decode")
        self.context.ask(DecodeView(fact, self._ask, exact=self.store.exact), lambda _: None)

    async def _ask(self, tokens: int) -> Decode:
        fact: Decode = await self.jobs.ask("decode", tokens)
        return fact


class ServingCommand(ScreenCommand):
    """Shows what it costs to run a language model, and asks again as its sizes are changed."""

    def run(self) -> None:
        """Count, and show."""
        if self.context.ready():
            self.context.start("Serving", self._count())

    async def _count(self) -> None:
        machine = known_machine(self.store)
        fact: Serving = await self.jobs.run(
            "counting prompt and steps", "serving", ServingSpec(), machine=machine
        )
        view = ServingView(fact, self._ask, partial(ask_machine, self), exact=self.store.exact)
        self.context.ask(view, lambda _: None)

    async def _ask(self, spec: ServingSpec, machine: Machine | None) -> Serving:
        fact: Serving = await self.jobs.ask("serving", spec, machine=machine)
        return fact
