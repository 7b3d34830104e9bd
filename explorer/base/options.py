"""Declared options: an option of a verb is a field of the record that the verb takes, written there once.

The declaration is part of the field's annotation, where msgspec keeps it:

    edges: Annotated[Edges, option("leave the last tile of an axis partial, or pad it")] = "ragged"

From it come the option of the command line with its help, the setting of a TOML file, the field of a dialog
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
    """What is declared of an option, beside its type and default.

    Attributes:
        help: What it is for, in half a line.
        manual: The same in the manual's words (Markdown), where it says more than `help`.
        metavar: What stands for its value in the help; made of the choices where there are some.
        flag: Its spelling, where it is not the field's name: '--site' of `sites`.
        short: Its short spelling: '-n'.
        old: A spelling that is still understood, and shown nowhere.
        reader: The name of what turns a text or a TOML value into the field's value, in
            `explorer.settings.options`. Without one the type decides.
        write: The word that `reader` reads, of a value.
        joined: Whether all values of an option with many stand in one word, between commas; `reader` reads
            the word.
        usual: What the help says of the default, where that is not the default itself; '' says nothing.
        spelled: A headless command names it even where it has its default.
        in_file: Whether a settings file may set it.
        selects: It selects what is changed: on the command line it overrules what a file switches off.
        label: What a dialog calls it; '' leaves it out.
        placeholder: What an empty field of a dialog shows: what it means, an example.
        words: What a dialog offers, where the type has no choices.
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


_KEY = "option"
"""Of the declaration among what msgspec keeps of an annotation."""


def option(help: str, **declared: Any) -> Meta:
    """The annotation of a field that is an option.

    Args:
        help: See `Declaration`.
        **declared: Further fields of `Declaration`.
    """
    return Meta(extra={_KEY: Declaration(help, **declared)})


class DeclaredOption(Struct, frozen=True):
    """A field of a record that was declared an option.

    Attributes:
        name: The field's.
        kind: Its type, without None and without limits; of a tuple of any length the type of one value.
        default: Its default.
        declared: What was declared.
        many: Whether it holds any number of values.
        least: The least value of a number; None for no limit.
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
        """The only values that it takes; empty for any."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value on the command line."""
        return self.kind is bool and not self.declared.reader


@cache
def options(record: type[Struct]) -> tuple[DeclaredOption, ...]:
    """The options that a record declares, in the order of its fields.

    Args:
        record: A record whose annotations hold `option(...)`.
    """
    declared = map(_declared_option, msgspec.structs.fields(record))
    return tuple(option for option in declared if option is not None)


def option_of(record: type[Struct], name: str) -> DeclaredOption:
    """The option that a field declares.

    Raises:
        KeyError: The field declares none.
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
