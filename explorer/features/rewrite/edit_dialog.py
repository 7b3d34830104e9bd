"""Edit dialog: what is to become of the layer under the cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from explorer.base.errors import Misuse
from explorer.facts.split.edit import EditKind, EditStep
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import safe
from explorer.tui.widgets.option_field import OptionField

if TYPE_CHECKING:
    from textual.widget import Widget

    from explorer.facts import Layer

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
    """Asks for one step.

    Args:
        layer: The layer under the cursor.
        last: What was asked for and could not be done, to be mended.
    """

    TITLE_TEXT = "Edit"
    HINT = "↑↓←→ choose · Enter do it · Esc cancel"

    def __init__(self, layer: Layer, last: EditStep | None) -> None:
        super().__init__()
        self._layer = layer
        self._last = last or EditStep("rename", layer.path)

    def fields(self) -> ComposeResult:
        """The fields."""
        begin = next(word for word, kind in _KINDS.items() if kind == self._last.kind)
        yield OptionField("do", tuple(_KINDS), begin, id="kind")
        yield from self.entry("of", self._last.name, "a node or a tensor", "name")
        known = ", ".join(self._layer.attributes) or "none"
        yield from self.entry("attribute", self._last.attribute, safe(known), "attribute")
        yield from self.entry("to", self._last.to, "a name, a value, an operator", "to")

    def first(self) -> Widget:
        """What is done comes first."""
        return self.query_one("#kind", OptionField)

    @property
    def _kind(self) -> EditKind:
        return _KINDS[self.query_one("#kind", OptionField).value]

    def meaning(self) -> list[tuple[str, str]]:
        """What will happen, and what the layer has."""
        kind = self._kind
        said = [(_MEANING[kind], "dim")]
        if kind == "set":
            has = ", ".join(f"{name}={value}" for name, value in self._layer.attributes.items())
            said.append((f"{self._layer.kind}: {has or 'no attributes'}", "dim"))
        if kind == "rename":
            names = [tensor.name for tensor in (*self._layer.outputs, *self._layer.weights) if tensor.name]
            said.append((f"Its tensors: {', '.join(names)}" if names else "", "dim"))
        return said

    def answer(self) -> EditStep:
        """What the fields say."""
        kind = self._kind
        name, attribute, to = (self.text_of(field).strip() for field in ("name", "attribute", "to"))
        if not name:
            raise Misuse("nothing is named", where="of")
        if kind == "set" and not attribute:
            raise Misuse("no attribute is named", where="attribute")
        if kind in ("rename", "replace_op") and not to:
            raise Misuse("says nothing", where="to")
        wanted = "" if kind == "delete" else to
        return EditStep(kind, name, wanted, attribute if kind == "set" else "")
