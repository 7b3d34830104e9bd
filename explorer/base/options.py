"""Declared options: each option of a verb is declared once, as a field of the verb's record.

The declaration is part of the field's annotation, where msgspec keeps it:

    edges: Annotated[Edges, option("leave the last tile of an axis partial, or pad it")] = "ragged"

The command-line option with its help, the setting of a TOML file, the field of a dialog and the printed
command of a state are all built from this declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

Write = Callable[[Any], str]


class Declaration(Struct, frozen=True):
    """Declaration of an option. Its type and its default come from the field.

    Attributes:
        help: Purpose of the option in a short phrase.
        manual: Purpose for the manual (Markdown), if it is longer than `help`.
        metavar: Placeholder of its value in the help; by default built from the choices, if any.
        flag: Spelling on the command line, if it differs from the field's name: '--site' for `sites`.
        short: Short spelling: '-n'.
        old: Former spelling, which is still accepted but not documented.
        reader: Name of the reader in `explorer.settings.option_values` that converts a text or a TOML value.
            Without a reader, the type of the field determines the conversion.
        write: Function that converts a value to a word that `reader` accepts.
        joined: Whether several values form one word, separated by commas, which `reader` reads.
        usual: Text about the default in the help; '' for no text, or None to print the default itself.
        spelled: Whether the printed command of a state contains the option even with its default value.
        in_file: Whether a settings file may set the option.
        selects: Whether the option selects the layers or sites to change. On the command line it overrides
            the layers that a file switches off.
        label: Label in a dialog; '' if the dialog has no field for it.
        placeholder: Text of an empty field in a dialog, with its meaning or an example.
        words: Choices in a dialog, if they differ from the values of the type.
        group: Name of a group of options that a command or a dialog uses together.
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
    """Builds the annotation of a field that is an option.

    Args:
        help: See `Declaration`.
        **declared: Further fields of `Declaration`.
    """
    return Meta(extra={_KEY: Declaration(help, **declared)})


class DeclaredOption(Struct, frozen=True):
    """A field of a record that is declared as an option.

    Attributes:
        name: Name of the field.
        kind: Type of the field without None and without limits; for a tuple of any length, the type of one
            value.
        default: Default value; None for a field without one.
        declared: Declaration of the option.
        many: Whether the option holds any number of values: a tuple, or a mapping from names to values.
        least: Smallest allowed number, or None for no limit.
    """

    name: str
    kind: Any
    default: Any
    declared: Declaration
    many: bool = False
    least: float | None = None

    @property
    def flag(self) -> str:
        """Spelling on the command line."""
        return self.declared.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed values; empty if any value is valid."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_mapping(self) -> bool:
        """Whether the option maps names to values. Its reader then takes all texts, and `write` one pair."""
        return get_origin(self.kind) is Mapping

    @property
    def is_switch(self) -> bool:
        """Whether the option has no value on the command line."""
        return self.kind is bool and not self.declared.reader


@cache
def list_declared_options(record: type[Struct]) -> tuple[DeclaredOption, ...]:
    """Lists the options that a record declares, in the order of its fields.

    Args:
        record: Record type whose annotations contain `option(...)`.
    """
    declared = map(_read_declared_option, msgspec.structs.fields(record))
    return tuple(option for option in declared if option is not None)


def list_group(record: type[Struct], *groups: str) -> tuple[DeclaredOption, ...]:
    """Lists the options of a record in any of the given groups."""
    return tuple(option for option in list_declared_options(record) if option.declared.group in groups)


def find_option(record: type[Struct], name: str) -> DeclaredOption:
    """Finds the option that a field declares.

    Raises:
        KeyError: The field is not an option.
    """
    return {declared.name: declared for declared in list_declared_options(record)}[name]


def _read_declared_option(field: msgspec.structs.FieldInfo) -> DeclaredOption | None:
    """Reads the declaration in the annotation of a field; None for a field that is no option."""
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
    is_list = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    default = None if field.default is NODEFAULT else field.default
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    kind = get_args(kind)[0] if is_list else kind
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    is_many = is_list or get_origin(kind) is Mapping
    return DeclaredOption(field.name, kind, default, declared, is_many, least)
