"""Options of the command line that a record declares (`explorer.base.options`)."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from explorer.base.options import group_of, options
from explorer.cli.arguments.options import Option

S = TypeVar("S", bound=Struct)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.base.options import DeclaredOption
    from explorer.cli.arguments.command import ParsedArgs


def declared_options(record: type[Struct], *names: str, without: tuple[str, ...] = ()) -> tuple[Option, ...]:
    """The options of a record.

    Args:
        record: See `explorer.base.options.options`.
        names: Of the fields, in the order of the help; all, as the record has them, without any.
        without: Fields that are left out.
    """
    by_name = {option.name: option for option in options(record)}
    return tuple(_option(by_name[name]) for name in names or by_name if name not in without)


def declared_group(record: type[Struct], group: str) -> tuple[Option, ...]:
    """The options of a record that belong to a group."""
    return tuple(map(_option, group_of(record, group)))


def _option(declared: DeclaredOption) -> Option:
    declaration = declared.declared
    many = declared.many and not declaration.joined
    default = None if many or declared.is_switch else declared.default
    typed = None if default in (None, "", ()) else declaration.write(default)
    usual = typed if declaration.usual is None else declaration.usual
    notes = f" (default {usual})" * bool(usual) + "; repeatable" * many
    return Option(
        declared.flag,
        declaration.help + notes,
        declaration.metavar,
        typed,
        many=many,
        short=declaration.short,
        old=declaration.old,
        choices=declared.choices,
        manual=(declaration.manual or declaration.help) + notes,
        declared=declared,
    )


def record_of(args: ParsedArgs, record: type[S], /, **fields: Any) -> S:
    """A record as its options were typed.

    Args:
        args: What was typed.
        record: See `explorer.base.options.options`.
        **fields: Fields that are no options, or that take another value than the typed one.
    """
    return record(**{**typed_values(args, record), **fields})


def typed_values(
    args: ParsedArgs, record: type[Struct], *, without: tuple[str, ...] = (), group: str = ""
) -> dict[str, Any]:
    """What was typed of a record's options, by the names of its fields.

    Args:
        args: What was typed.
        record: See `explorer.base.options.options`.
        without: Fields that are left out.
        group: Only options of this group; of all where it is empty.
    """
    declared = group_of(record, group) if group else options(record)
    keys = {option.name: _option(option).key for option in declared if option.name not in without}
    typed = vars(args)
    return {name: typed[key] for name, key in keys.items() if key in args.explicit and key in typed}
