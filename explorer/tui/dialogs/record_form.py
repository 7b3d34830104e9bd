"""Record form: a dialog with one field per option that a record declares with a label."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Horizontal

from explorer.base.options import DeclaredOption, list_declared_options
from explorer.base.units import join_values
from explorer.settings.option_values import read_option
from explorer.settings.parse import parse_words
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.option_field import FieldLabel, OptionField
from explorer.tui.widgets.text_input import create_text_input

R = TypeVar("R", bound=Struct)

_MAX_LENGTH = 60
"""Maximum characters of a field."""


class RecordForm(FormDialog[R], Generic[R]):
    """Asks for a record.

    Args:
        last: Record with the initial values. Attributes without a field keep these values.
    """

    def __init__(self, last: R) -> None:
        super().__init__()
        self._last = last

    @property
    def _options(self) -> list[DeclaredOption]:
        return [option for option in list_declared_options(type(self._last)) if option.declared.label]

    def compose_fields(self) -> ComposeResult:
        """Yield a field for each option: a choice, or a text input."""
        for option in self._options:
            declared, value = option.declared, getattr(self._last, option.name)
            if option.choices:
                field = OptionField(declared.label, option.choices, value, id=_make_id(option))
                field.option = option
                yield field
            else:
                write = join_values if option.many and not declared.joined else declared.write
                text = "" if value in (None, "", ()) else write(value)
                with Horizontal(classes="form-row"):
                    yield FieldLabel(option)
                    yield create_text_input(
                        text, placeholder=declared.placeholder, id=_make_id(option), max_length=_MAX_LENGTH
                    )

    def read_answer(self) -> R:
        """Return the record that the fields describe.

        Raises:
            Misuse: A field has an invalid value.
        """
        return replace(self._last, **{option.name: self._read_value(option) for option in self._options})

    def describe(self) -> list[tuple[str, str]]:
        """Return the help text of each option."""
        self.read_answer()
        return [(f"{option.declared.label}: {option.declared.help}", "dim") for option in self._options]

    def _read_value(self, option: DeclaredOption) -> Any:
        if option.choices:
            return self.query_one(f"#{_make_id(option)}", OptionField).value
        text = self.get_text(_make_id(option)).strip()
        if not text:
            return option.default
        has_many_values = option.many and not option.declared.joined
        typed = parse_words(text, option.declared.label) if has_many_values else text
        return read_option(option, typed, option.declared.label)


def _make_id(option: DeclaredOption) -> str:
    return option.flag.removeprefix("--")
