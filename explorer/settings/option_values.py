"""Values of declared options: read from the command line or from TOML, and written as a command.

Records declare the options (`explorer.base.options`). This module contains the conversions of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.options import DeclaredOption, find_option, list_declared_options
from explorer.base.units import sizes_text
from explorer.settings.budgets import BudgetUnit, check_budget
from explorer.settings.parse import (
    parse_assignments,
    parse_axes,
    parse_axis,
    parse_batch,
    parse_card,
    parse_choice,
    parse_choices,
    parse_conditions,
    parse_count,
    parse_dynamic,
    parse_limit,
    parse_map_size,
    parse_names,
    parse_place,
    parse_share,
    parse_sizes,
    parse_span,
    parse_tile,
    parse_tokens,
    parse_words,
    write_option_words,
    write_path_word,
)
from explorer.settings.rates import parse_rate
from explorer.settings.statistics import parse_statistics

Reader = Callable[[Any, str], Any]
"""Function that converts a text or a TOML value to the value of an option.

Its second argument is the place of the value, for errors.
"""

COMMAND_LINE = "command line"
"""Origin of a typed value."""


Spec = TypeVar("Spec", bound=Struct)


def read_option(option: DeclaredOption, value: Any, where: str) -> Any:
    """Reads the value of an option.

    Args:
        option: Declaration of the option.
        value: Text, or value from a TOML file. For an option with many values, a single value or a list.
        where: Place of the value, for errors.

    Raises:
        Misuse: The value is invalid, not one of the choices, or out of range.
    """
    if option.is_mapping:
        return _READERS[option.declared.reader]([value] if isinstance(value, str) else value, where)
    if option.many and not option.declared.joined:
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_read_single_value(option, item_value, where) for item_value in values)
    return _read_single_value(option, value, where)


def _read_single_value(option: DeclaredOption, value: Any, where: str) -> Any:
    """Reads a single value, or several values that one text joins."""
    if option.declared.reader:
        return _READERS[option.declared.reader](value, where)
    if option.choices and option.many and option.declared.joined:
        return parse_choices(read_text(value, where), option.choices, where)
    if option.choices:
        return parse_choice(read_text(value, where), option.choices, where)
    return _BY_TYPE[option.kind](option, value, where)


def build_table_readers(record: type[Struct]) -> dict[str, Reader]:
    """Builds the readers of a TOML table, by setting name, for the options that a file may set."""

    def build_reader(option: DeclaredOption) -> Reader:
        return lambda value, where: read_option(option, value, where)

    return {
        option.name: build_reader(option)
        for option in list_declared_options(record)
        if option.declared.in_file
    }


def list_rule_values(rule: type[Struct]) -> tuple[str, ...]:
    """Returns the names of a rule's fields that set values. All other fields are conditions on a site."""
    return tuple(option.name for option in list_declared_options(rule) if option.default is None)


def apply_typed(spec: Spec, typed: Mapping[str, Any]) -> Spec:
    """Applies typed values to a specification. A typed value holds for every site and overrides all rules.

    Args:
        spec: Record with the fields `rules` and `origins`.
        typed: Typed values by field name.
    """
    record: Any = spec
    has_selection = any(
        option.declared.selects and option.name in typed for option in list_declared_options(type(spec))
    )
    # a typed selection of sites also replaces the rules' switches
    overridden = {*typed, "on"} if has_selection else set(typed)
    rules = tuple(
        replace(rule, **dict.fromkeys(overridden.intersection(list_rule_values(type(rule)))))
        for rule in record.rules
    )
    origins = {**dict(record.origins), **dict.fromkeys(typed, COMMAND_LINE)}
    return replace(spec, **typed, rules=rules, origins=tuple(origins.items()))


def is_explicit(spec: Struct, *names: str) -> bool:
    """Whether a command for the same request must contain at least one of the options in `names`.

    The settings file that the field `config` names is part of the command, so its values are not repeated.
    Without a file, the command contains values that differ from the defaults, and options that are always
    spelled out.

    Args:
        spec: Record with declared options.
        names: Names of fields.
    """
    if getattr(spec, "config", ""):
        origins = dict(getattr(spec, "origins", ()))
        return any(origins.get(name) == COMMAND_LINE for name in names)
    declared_options = (find_option(type(spec), name) for name in names)
    return any(
        getattr(spec, option.name) != option.default or option.declared.spelled for option in declared_options
    )


def write_words(spec: Struct, *, without: Sequence[str] = ()) -> list[str]:
    """Writes the command-line options for the same request, the settings file first.

    Args:
        spec: Record with declared options.
        without: Names of fields to leave out.
    """
    config = "" if "config" in without else getattr(spec, "config", "")
    words = ["--config", write_path_word(config)] if config else []
    for option in list_declared_options(type(spec)):
        if option.name not in ("config", *without) and is_explicit(spec, option.name):
            words += _write_option_words(option, getattr(spec, option.name))
    return words


def _write_option_words(option: DeclaredOption, value: Any) -> list[str]:
    """Writes one option with its value as command-line words; no words for a switch that is off."""
    if option.is_switch:
        return [option.flag] if value else []
    if option.is_mapping:
        value = value.items()
    option_values = value if option.many and not option.declared.joined else (value,)
    return [
        word
        for option_value in option_values
        for word in write_option_words(option.flag, option.declared.write(option_value))
    ]


def list_toml_values(spec: Struct) -> dict[str, Any]:
    """Returns the values of a record for a TOML table: the options that differ from their defaults."""
    values: dict[str, Any] = {}
    for option in list_declared_options(type(spec)):
        value = getattr(spec, option.name)
        if not option.declared.in_file or value in (None, option.default):
            continue
        is_toml_value = isinstance(value, (bool, int, float, tuple)) and option.declared.write is str
        values[option.name] = value if is_toml_value else option.declared.write(value)
    return values


# readers of values


def read_text(value: Any, where: str) -> str:
    """Reads a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise Misuse(f"'{value}' is not a text", where=where, hint='write "..."')
    return value


def read_flag(value: Any, where: str) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise Misuse(f"'{value}' is neither true nor false", where=where)
    return value


def read_shape(value: Any, where: str) -> str:
    """Checks conditions on the sizes M, K and N of a site, such as 'M>=64 N<=1000'; returns their text."""
    conditions = read_text(value, where)
    parse_conditions(conditions, where)
    return conditions


def _read_tile(value: Any, where: str) -> tuple[int, int, int]:
    sizes = value if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, str):
        return parse_tile(value, where)
    if all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return parse_tile(sizes_text(sizes), where)
    raise Misuse(f"'{value}' is not a tile size", where=where, hint='write 64, "64x32x16" or [64, 32, 16]')


def _read_number(value: Any) -> float | None:
    """Reads a number, or a text that is a number. Returns None for other values."""
    if isinstance(value, str):
        try:
            return float(value) if not value.strip().isdecimal() else int(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_accumulator(value: Any, where: str) -> int:
    bits = _read_number(value)
    if isinstance(bits, int) and (bits == 0 or 2 <= bits <= 64):
        return bits
    raise Misuse(f"an accumulator cannot have '{value}' bits", where=where, hint="give 2 to 64")


def _read_block(value: Any, where: str) -> int:
    size = _read_number(value)
    if isinstance(size, int) and (size == 0 or 2 <= size <= 1 << 16):
        return size
    raise Misuse(
        f"a block cannot have '{value}' weights", where=where, hint="give 2 to 65,536, or 0 for none"
    )


def _read_seconds(value: Any, where: str) -> float:
    seconds = _read_number(value)
    if seconds is not None and 0 < seconds <= 1e9:
        return float(seconds)
    raise Misuse(f"'{value}' is not a number of seconds above 0", where=where)


def _read_percentile(value: Any, where: str) -> float:
    percent = _read_number(value)
    if percent is not None and 50 < percent <= 100:
        return float(percent)
    raise Misuse(f"'{value}' % is not a share of values above 50 %", where=where, hint="99.999")


def _parse_statistics(value: Any, where: str) -> str:
    """Checks the names of statistics and returns their text."""
    parse_statistics(value, where)
    return str(value)


def _read_token_count(value: Any, where: str) -> int:
    counts = parse_tokens(read_text(value, where), where)
    if len(counts) > 1:
        raise Misuse("takes one number of tokens", where=where, hint="give one number")
    return counts[0]


def _build_budget_reader(unit: BudgetUnit) -> Reader:
    return lambda value, where: check_budget(value, unit, where)


_READERS: Mapping[str, Reader] = {
    "accumulator": _read_accumulator,
    "assignments": parse_assignments,
    "axes": parse_axes,
    "axis": lambda value, where: parse_axis(str(value), where),
    "batch": lambda value, where: parse_batch(str(value), where),
    "block": _read_block,
    "bytes_budget": _build_budget_reader("bytes"),
    "count_budget": _build_budget_reader("count"),
    "coverage_budget": _build_budget_reader("share"),
    "dynamic": parse_dynamic,
    "map_size": lambda value, where: parse_map_size(read_text(value, where), where),
    "memory_size": lambda value, where: parse_card(read_text(value, where), where),
    "names": lambda value, where: parse_names(read_text(value, where), where),
    "percentile": _read_percentile,
    "place": lambda value, where: parse_place(read_text(value, where), where),
    "rate": lambda value, where: parse_rate(read_text(value, where), where=where),
    "seconds": _read_seconds,
    "seconds_budget": _build_budget_reader("seconds"),
    "shape": read_shape,
    "share": lambda value, where: parse_share(str(value), where),
    "sizes": lambda value, where: parse_sizes(read_text(value, where), where),
    "span": lambda value, where: parse_span(read_text(value, where), where),
    "statistics": _parse_statistics,
    "tile": _read_tile,
    "token_count": _read_token_count,
    "tokens": lambda value, where: parse_tokens(read_text(value, where), where),
    "words": lambda value, where: parse_words(read_text(value, where), where),
}
"""Readers by the name that an option declares."""


def _read_integer(option: DeclaredOption, value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return parse_count(read_text(value, where), where, int(option.least or 0))


def _read_real(option: DeclaredOption, value: Any, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    return parse_limit(read_text(value, where), where)


_BY_TYPE: Mapping[Any, Callable[[DeclaredOption, Any, str], Any]] = {
    str: lambda option, value, where: read_text(value, where),
    bool: lambda option, value, where: read_flag(value, where),
    int: _read_integer,
    float: _read_real,
}
