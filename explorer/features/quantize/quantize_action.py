"""Quantization: other number formats, what was lost by them, and another choice for one layer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.facts.quantize import QuantizeRequest
from explorer.features.quantize.layer_request import LayerRequest
from explorer.features.quantize.quantize_dialog import QuantizeDialog
from explorer.features.quantize.quantize_view import QuantizationScreen
from explorer.features.quantize.records import QuantizationRecord
from explorer.report.present.shell.history_words import state_name
from explorer.tui.commands.context import ScreenCommand

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.quantize import Quantization


class QuantizeCommand(ScreenCommand):
    """Gives layers other number formats."""

    def run(self) -> None:
        """Show what the current state lost, if it was quantized; else ask for formats."""
        if not self.context.ready():
            return
        entry = self.store.entry
        if entry is not None and isinstance(entry.record, QuantizationRecord):
            self.show(entry.record.quantization)
        else:
            self._begin(None)

    def show(self, fact: Quantization, layer: str = "") -> None:
        """What the current state lost; the cursor on a layer."""
        assert self.store.entry is not None
        name = state_name(self.store.entry, self.store.history_place)
        self.context.ask(QuantizationScreen(fact, name, layer=layer, exact=self.store.exact), self.take)

    def take(self, wish: LayerRequest | None) -> None:
        """Act on the answer of a screen about a quantization: go to a layer, or quantize again."""
        if wish is None:
            return
        if wish.what == "layer":
            self.context.go_to_layer(wish.layer)
        elif wish.what == "anew":
            self._begin(self.store.history.parent(self.store.history_place) if self.store.history else None)
        else:
            work = partial(self.jobs.run, "quantizing again", "requantize", wish.layer, **wish.values)
            record = None if self.store.entry is None else self.store.entry.record
            fact = record.quantization if isinstance(record, QuantizationRecord) else None
            back = partial(self.show, fact, wish.layer) if fact is not None else None
            self.context.start("Quantize", self._made(work, wish.layer), back)

    def _begin(self, state: int | None) -> None:
        """Ask for formats of a state; None for the current one."""
        self.context.with_layers(*self.tree.cursor_range, partial(self._ask, state))

    def _ask(self, state: int | None, layers: list[Layer]) -> None:
        store = self.store
        record = store.entry.record if state is not None and store.entry is not None else None
        request = record.quantize if isinstance(record, QuantizationRecord) else None
        if request is None and (request := store.quantize_request) is not None:
            # layers and rules by hand belong to the state that the last request was for
            request = replace(request, spec=replace(request.spec, ops=(), sites=(), rules=()), as_graph=False)
        options = {"state": state, "as_graph": request is not None and request.as_graph}
        dialog = QuantizeDialog(
            partial(self.jobs.run, "choosing", "quantize_choice", **options),
            layers,
            by_value=store.by_value,
            last=request,
        )
        self.context.ask(dialog, partial(self.make, state))

    def make(self, state: int | None, request: QuantizeRequest | None) -> None:
        """Quantize a state as it was chosen, here or elsewhere."""
        if self.jobs.current is not None:
            self.jobs.stop()  # the choice that the dialog asked for
        if request is None:
            return
        self.store.quantize_request = request
        work = partial(
            self.jobs.run,
            *("quantizing", "quantize", request.spec),
            state=state,
            calibrate=request.calibrate or None,
            draws=request.draws,
            seed=request.seed,
            as_graph=request.as_graph,
        )
        self.context.start_next("Quantize", self._made(work), partial(self._begin, state))

    async def _made(self, work: Callable[[], Awaitable[Quantization]], layer: str = "") -> None:
        before = self.store.history_place
        fact = await work()
        await self.context.take_history()
        await self.context.show_made("go", before, command=fact.command)
        self.show(fact, layer)
