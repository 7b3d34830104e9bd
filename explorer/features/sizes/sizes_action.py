"""Open sizes and decoding: figures over a batch or a length, and what the model leaves open, bound."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts.serving.spec import ServingSpec
from explorer.features.sizes.decode_view import DecodeView
from explorer.features.sizes.serving_view import ServingView
from explorer.features.sizes.sizes_dialog import SizesDialog
from explorer.features.sizes.sizes_view import SizeChoice, SizesView
from explorer.report.present.look.info import sizes_of
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.look.machine_action import ask_machine
from explorer.tui.state.hardware import known_machine

if TYPE_CHECKING:
    from explorer.facts.serving.serving import Serving
    from explorer.facts.sizes.decode import Decode
    from explorer.tui.commands.context import CommandContext


class SizesCommand(ScreenCommand):
    """Shows figures over a size; asks for the sizes that the model leaves open where there are none."""

    def run(self) -> None:
        """Count, and show."""
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
        view = SizesView(
            fact,
            frozenset(self._open()),
            lambda name, machine: self.jobs.ask("sizes", name, machine=machine),
            partial(ask_machine, self.context),
        )
        self.context.ask(view, self._chosen)

    def _chosen(self, choice: SizeChoice | None) -> None:
        if choice is not None and choice.serving:
            serving(self.context)
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


def decode(context: CommandContext) -> None:
    """Show a decode step beside the pass over its text."""
    context.start("Decoding", _decode(context))


async def _decode(context: CommandContext) -> None:
    fact: Decode = await context.jobs.run("counting a decode step", "decode")
    view = DecodeView(fact, partial(context.jobs.ask, "decode"), exact=context.store.exact)
    context.ask(view, lambda _: None)


def serving(context: CommandContext) -> None:
    """Show what it costs to run a language model; it is asked again as its sizes are changed."""
    context.start("Serving", _serving(context))


async def _serving(context: CommandContext) -> None:
    store, jobs = context.store, context.jobs
    machine = known_machine(store)
    fact: Serving = await jobs.run("counting prompt and steps", "serving", ServingSpec(), machine=machine)
    view = ServingView(
        fact,
        lambda spec, machine: jobs.ask("serving", spec, machine=machine),
        partial(ask_machine, context),
        exact=store.exact,
    )
    context.ask(view, lambda _: None)
