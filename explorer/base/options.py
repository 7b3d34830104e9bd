"""Declared options: an option of a verb is a field of the verb's record, written once.

The declaration is part of the field's annotation, where msgspec keeps it:

    edges: Annotated[Edges, option("leave the last tile of an axis partial, or pad it")] = "ragged"

It is the source of the command-line option with its help, the setting of a TOML file, the field of a dialog
and the headless command of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

Write = Callable[[Any], str]


class Declaration(Struct, frozen=True):
    """The declaration of an option, beside its type and default.

    Attributes:
        help: Its purpose, in half a line.
        manual: The same for the manual (Markdown), if it says more than `help`.
        metavar: The placeholder of its value in the help; by default from the choices, if any.
        flag: Its spelling, if it is not the field's name: '--site' for `sites`.
        short: Its short spelling: '-n'.
        old: A spelling that is still accepted, but not documented.
        reader: The name of the function that turns a text or a TOML value into the field's value, in
            `explorer.settings.option_values`. Without one the type decides.
        write: Returns the word of a value that `reader` reads.
        joined: Whether several values are one word, separated by commas; `reader` reads
            the word.
        usual: The help's text about the default, if it is not the default itself; '' for no text.
        spelled: A headless command contains it even with its default.
        in_file: Whether a settings file may set it.
        selects: It selects what is changed: on the command line it overrides what a file switches off.
        label: Its label in a dialog; '' for no field in the dialog.
        placeholder: The text of an empty field in a dialog: its meaning, an example.
        words: The choices in a dialog, if they are not those of the type in its order.
        group: The name of a group of options that a command or a dialog takes together.
    """

    help: str
    manual: str = ""
    metavar: str = ""
    flag: str = ""
    short: str = ""
    old: str = ""
    reader: str = ""
    write: Write = str
    joined: bool = False
    usual: str | None = None
    spelled: bool = False
    in_file: bool = True
    selects: bool = False
    label: str = ""
    placeholder: str = ""
    words: tuple[str, ...] = ()
    group: str = ""


_KEY = "option"
"""Key of the declaration in msgspec's metadata of an annotation."""


def option(help: str, **declared: Any) -> Meta:
    """The annotation of a field that is an option.

    Args:
        help: See `Declaration`.
        **declared: Further fields of `Declaration`.
    """
    return Meta(extra={_KEY: Declaration(help, **declared)})


class DeclaredOption(Struct, frozen=True):
    """A field of a record that is declared an option.

    Attributes:
        name: The field's name.
        kind: Its type, without None and without limits; of a tuple of any length, the type of one value.
        default: Its default.
        declared: Its declaration.
        many: Whether it holds any number of values.
        least: The smallest value of a number; None for no limit.
    """

    name: str
    kind: Any
    default: Any
    declared: Declaration
    many: bool = False
    least: float | None = None

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        return self.declared.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """Its only values; empty if any value is valid."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_switch(self) -> bool:
        """Whether it has no value on the command line."""
        return self.kind is bool and not self.declared.reader


@cache
def options(record: type[Struct]) -> tuple[DeclaredOption, ...]:
    """The options that a record declares, in the order of its fields.

    Args:
        record: A record whose annotations hold `option(...)`.
    """
    declared = map(_declared_option, msgspec.structs.fields(record))
    return tuple(option for option in declared if option is not None)


def group_of(record: type[Struct], *groups: str) -> tuple[DeclaredOption, ...]:
    """The options of a record that belong to one of these groups."""
    return tuple(option for option in options(record) if option.declared.group in groups)


def option_of(record: type[Struct], name: str) -> DeclaredOption:
    """The option that a field declares.

    Raises:
        KeyError: The field is not an option.
    """
    return {declared.name: declared for declared in options(record)}[name]


def _declared_option(field: msgspec.structs.FieldInfo) -> DeclaredOption | None:
    if get_origin(field.type) is not Annotated:
        return None
    kind, *notes = get_args(field.type)
    metas = [note for note in notes if isinstance(note, Meta)]
    declared = next((meta.extra[_KEY] for meta in metas if meta.extra and _KEY in meta.extra), None)
    if declared is None:
        return None
    members = [member for member in get_args(kind) if member is not type(None)]
    if len(members) == 1 and len(members) < len(get_args(kind)):
        kind = members[0]
    if get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        metas += inner
    least = next((meta.ge for meta in metas if meta.ge is not None), None)
    many = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    default = field.default if field.default is not NODEFAULT else None
    kind = get_args(kind)[0] if many else kind
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return DeclaredOption(field.name, kind, default, declared, many, least)
