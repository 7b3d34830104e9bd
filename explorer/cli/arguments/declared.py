"""Options of the command line that are declared in records (`explorer.base.options`)."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from msgspec import Struct

from explorer.base.options import find_option, list_declared_options, list_group
from explorer.cli.arguments.options import Option, derive_key

S = TypeVar("S", bound=Struct)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs


def list_options(record: type[Struct], *names: str, without: tuple[str, ...] = ()) -> tuple[Option, ...]:
    """Return the options that a record declares.

    Args:
        record: Record type; see `explorer.base.options.list_declared_options`.
        names: Names of fields in the order of the help; by default all fields in the order of the record.
        without: Names of fields to leave out.
    """
    names = names or tuple(option.name for option in list_declared_options(record))
    return tuple(_find_option(record, name) for name in names if name not in without)


def list_declared_group(record: type[Struct], group: str) -> tuple[Option, ...]:
    """Return the options of a record that belong to a group."""
    return tuple(_find_option(record, option.name) for option in list_group(record, group))


@cache
def _find_option(record: type[Struct], name: str) -> Option:
    """Return the option of a field. All verbs share it, so that the manual page lists it once."""
    declared = find_option(record, name)
    declaration = declared.declared
    is_repeatable = declared.many and not declaration.joined
    default = None if is_repeatable or declared.is_switch else declared.default
    typed = None if default in (None, "", ()) else declaration.write(default)
    default_text = typed if declaration.usual is None else declaration.usual
    notes = f" (default {default_text})" * bool(default_text) + "; repeatable" * is_repeatable
    return Option(
        declared.flag,
        declaration.help + notes,
        declaration.metavar,
        typed,
        many=is_repeatable,
        short=declaration.short,
        old=declaration.old,
        choices=declared.choices,
        manual=(declaration.manual or declaration.help) + notes,
        declared=declared,
    )


def record_of(args: ParsedArgs, record: type[S], /, **fields: Any) -> S:
    """Create a record from the options that the user typed.

    Args:
        args: Parsed arguments.
        record: Record type; see `explorer.base.options.list_declared_options`.
        **fields: Values of fields that are not options, or that override options.
    """
    return record(**{**read_typed_values(args, record), **fields})


def read_typed_values(
    args: ParsedArgs, record: type[Struct], *, without: tuple[str, ...] = (), group: str = ""
) -> dict[str, Any]:
    """Return the typed values of a record's options, by field name.

    Args:
        args: Parsed arguments.
        record: Record type; see `explorer.base.options.list_declared_options`.
        without: Names of fields to leave out.
        group: Group of options to return; '' for all.
    """
    declared = list_group(record, group) if group else list_declared_options(record)
    keys = {option.name: derive_key(option.flag) for option in declared if option.name not in without}
    typed = vars(args)
    return {name: typed[key] for name, key in keys.items() if key in args.explicit and key in typed}
