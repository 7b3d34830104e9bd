"""Edit dialog for one step on the layer under the cursor, and the display of its result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from explorer.base.errors import Misuse
from explorer.facts.split.edit import EditKind, EditStep
from explorer.features.rewrite.rewrite_words import build_edit_blocks
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog, PageDialog
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import escape_name
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from textual.widget import Widget

    from explorer.facts import Layer
    from explorer.facts.split.edit import Edit, EditStep


_KINDS: Mapping[str, EditKind] = {
    "rename": "rename",
    "set attribute": "set",
    "delete": "delete",
    "replace operator": "replace_op",
}
_MEANING: Mapping[str, str] = {
    "rename": "The node, or a tensor that is named above, gets the name in 'to', wherever it is read.",
    "set": "The attribute gets the value in 'to'; an empty one takes it away, so that its default holds.",
    "delete": "The node goes, if nothing reads it, or if one input has the type and shape of its output.",
    "replace_op": "The node gets the operator in 'to', which has to take the same inputs.",
}


class EditDialog(FormDialog[EditStep]):
    """Ask for one step.

    Args:
        layer: Layer under the cursor.
        last: Failed step that the user can correct, or None.
    """

    TITLE_TEXT = "Edit"
    HINT = "↑↓←→ choose · Enter do it · Esc cancel"

    def __init__(self, layer: Layer, last: EditStep | None) -> None:
        super().__init__()
        self._layer = layer
        self._last = last or EditStep("rename", layer.path)

    def compose_fields(self) -> ComposeResult:
        """Yield a field for each part of a step."""
        current_word = next(word for word, kind in _KINDS.items() if kind == self._last.kind)
        yield OptionField("do", tuple(_KINDS), current_word, id="kind")
        yield from self.compose_row("of", self._last.name, "a node or a tensor", "name")
        attributes = ", ".join(self._layer.attributes) or "none"
        yield from self.compose_row("attribute", self._last.attribute, escape_name(attributes), "attribute")
        yield from self.compose_row("to", self._last.to, "a name, a value, an operator", "to")

    def find_first_field(self) -> Widget:
        """Return the field for the kind of step, which gets the focus."""
        return self.query_one("#kind", OptionField)

    @property
    def _kind(self) -> EditKind:
        return _KINDS[self.query_one("#kind", OptionField).value]

    def describe(self) -> list[tuple[str, str]]:
        """Describe the effect of the step, and list the attributes or tensors of the layer."""
        kind = self._kind
        lines = [(_MEANING[kind], "dim")]
        if kind == "set":
            attributes_text = ", ".join(f"{name}={value}" for name, value in self._layer.attributes.items())
            lines.append((f"{self._layer.kind}: {attributes_text or 'no attributes'}", "dim"))
        if kind == "rename":
            names = [tensor.name for tensor in (*self._layer.outputs, *self._layer.weights) if tensor.name]
            lines.append((f"Its tensors: {', '.join(names)}" if names else "", "dim"))
        return lines

    def read_answer(self) -> EditStep:
        """Return the step that the fields describe."""
        kind = self._kind
        name, attribute, to = (self.get_text(field).strip() for field in ("name", "attribute", "to"))
        if not name:
            raise Misuse("nothing is named", where="of")
        if kind == "set" and not attribute:
            raise Misuse("no attribute is named", where="attribute")
        if kind in ("rename", "replace_op") and not to:
            raise Misuse("is empty", where="to")
        target = "" if kind == "delete" else to
        return EditStep(kind, name, target, attribute if kind == "set" else "")


class EditCommand(ScreenCommand):
    """Command that edits the chosen layer."""

    def run(self) -> None:
        """Ask for a step, then apply it."""
        if not self.context.ready():
            return
        layers, (first, stop) = self.tree.model.layers, self.tree.cursor_range
        if first == stop or layers[first].group:
            self.store.say("put the cursor on one layer: a group is not a node")
            return
        self._ask(layers[first], None)

    def _ask(self, layer: Layer, last: EditStep | None) -> None:
        dialog = EditDialog(layer, last)
        self.context.ask(dialog, partial(self._handle_answer, layer))

    def _handle_answer(self, layer: Layer, step: EditStep | None) -> None:
        if step is not None:
            self.context.start("Edit", self._edit(step), partial(self._ask, layer, step))

    async def _edit(self, step: EditStep) -> None:
        fact: Edit = await self.jobs.run("editing", "edit", (step,))
        await self.context.load_history()
        await self.context.show_new_state("undo", command=fact.command)
        page = PageDialog(
            "Edited",
            lambda width: draw(build_edit_blocks(fact), width - 1),
            hint="Enter diff · y copy command · Esc close",
            copy=fact.command,
        )
        self.context.ask(page, lambda more: self.panes.tabs.open("diff") if more else None)
