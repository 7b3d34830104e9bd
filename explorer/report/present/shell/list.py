"""Text output of `explorer list`, also used by the chooser: the models that can be opened."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial

from explorer.base.units import printable
from explorer.facts.models.listing import KeptSession, ModelFile, ModelListing, NamedModel, RecentModel
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Paragraph, Rows, Span, Table
from explorer.report.pieces import cut_list
from explorer.report.present.figures import count, share_text, size

Choice = ModelFile | RecentModel | KeptSession | NamedModel

_COLUMNS = (
    Column("model", shrink=True, least=22, paths=True),
    Column("format", drop=2, role="kind"),
    Column("size", "right"),
    Column("params", "right"),
    Column("stored as", shrink=True, drop=3),
    Column("when", drop=1, role="quiet"),
)
_MAX_TYPES = 3
"""Maximum number of dtypes that are listed for a file."""
_MAX_TYPE_LENGTH = 32
"""Maximum length of the name of a number type, in characters."""
_SHORT = 20
"""Maximum characters of notes in a narrow list."""
_MIN_SHARE = 0.005
"""Minimum share of the bytes for a dtype to be listed; smaller shares are sizes and indices."""


def build_listing_blocks(fact: ModelListing) -> list[Block]:
    """Return the answer of `explorer list`."""
    models = f"{len(fact.models):,} model{'s' * (len(fact.models) != 1)}"
    blocks: list[Block] = [Line((Span(printable(fact.folder), "strong"), Span(f"   {models}", "quiet")))]
    if fact.models:
        blocks += [Line(), choice_table(fact.models)]
    if fact.note:
        blocks += [Line(), Paragraph(printable(fact.note), "warning")]
    parts: tuple[tuple[str, str, Sequence[Choice]], ...] = (
        ("Sessions to resume", "explorer --resume goes on with the newest", fact.sessions),
        ("Recent", "", fact.recent),
        ("torchvision", "by name, with random weights", fact.torchvision or ()),
    )
    for title, note, choices in parts:
        if choices:
            blocks += [Line(), Heading(title, note), choice_table(choices)]
    return blocks


def choice_table(
    choices: Sequence[Choice], what: str = "", *, short: bool = False, brief: bool = False
) -> Table:
    """Return a table with one row per choice.

    Args:
        choices: Models and sessions.
        what: Name of the rows, as for `Table`.
        short: Whether notes are shortened.
        brief: Whether the types of a file are shortened to the largest one, to leave room for the names.
    """
    row = partial(choice_row, max_length=_SHORT, brief=brief) if short else choice_row
    return Table(_COLUMNS, Rows(row, choices), what=what)


def choice_row(choice: Choice, max_length: int | None = None, *, brief: bool = False) -> tuple[Cell, ...]:
    """Return the cells of a choice, with notes of at most `max_length` characters."""
    if isinstance(choice, ModelFile):
        params: Cell = count(choice.params) if choice.params is not None else Span("", "quiet")
        note = (
            Span(_cut_text(printable(choice.note), max_length), "warning")
            if choice.note
            else _cut_text((_describe_main_type if brief else describe_stored)(choice), max_length)
        )
        return (
            printable(choice.path),
            choice.format,
            _format_size(choice.bytes),
            params,
            note,
            _format_time(choice.modified, max_length),
        )
    if isinstance(choice, RecentModel):
        note = Span("not there any more", "warning") if choice.missing else ""
        return (
            printable(choice.source),
            choice.format,
            "",
            _format_params(choice.params),
            note,
            _format_time(choice.opened, max_length),
        )
    if isinstance(choice, KeptSession):
        note = (
            Span(printable(choice.note), "warning")
            if choice.note
            else f"{choice.states:,} state{'s' * (choice.states != 1)}"
        )
        name, space, folder = format_session_path(choice).partition(" (")
        path: Cell = (name, Span(space + folder, "quiet")) if space else name
        return path, "session", "", "", note, _format_age(choice.changed, max_length)
    return choice.name, "torchvision", "", _format_params(choice.params), "", ""


def describe_stored(model_file: ModelFile) -> str:
    """Describe a model file: architecture, context length, quantization, and dtypes by size."""
    total_bytes = sum(kind.bytes or 0 for kind in model_file.types)
    large_types = [
        kind for kind in model_file.types if not total_bytes or (kind.bytes or 0) >= _MIN_SHARE * total_bytes
    ]
    # the name of a type comes from the file, which may be broken
    names = [_cut_text(printable(kind.name), _MAX_TYPE_LENGTH) for kind in large_types]
    if len(large_types) > 1 and total_bytes:
        shares = [share_text(kind.bytes, total_bytes) for kind in large_types]
        names = [f"{name} {share}" for name, share in zip(names, shares, strict=True)]
    suffix = "" if len(names) <= _MAX_TYPES else f" and {len(names) - _MAX_TYPES} more"
    types = ", ".join(names[:_MAX_TYPES]) + suffix
    tokens = "" if model_file.context is None else f"{model_file.context:,} tokens"
    model = ", ".join(filter(None, (model_file.architecture, tokens)))
    return printable(": ".join(filter(None, (model, model_file.quantization, types))))


def _describe_main_type(model_file: ModelFile) -> str:
    """Describe a model file briefly: its quantization, or its largest dtype and a sign for more."""
    if model_file.quantization:
        return printable(model_file.quantization)
    types = sorted(model_file.types, key=lambda kind: -(kind.bytes or 0))
    return printable(types[0].name) + ", …" * (len(types) > 1) if types else ""


def format_session_path(session: KeptSession) -> str:
    """Format the path of a session's model: below the current folder, or its name and its folder.

    The name comes first, so that a narrow list cuts the folder. A name of a model, such as resnet18, stays.
    """
    is_file = os.sep in session.source or ("." in session.source and ":" not in session.source)
    path = os.path.join(session.folder, session.source) if is_file and session.folder else session.source
    short_path = shorten_path(os.path.normpath(path))
    if not is_file or not short_path.startswith(("~", os.sep)):
        return printable(short_path)
    folder, name = os.path.split(short_path)
    return printable(f"{name} ({folder})")


def shorten_path(path: str) -> str:
    """Return a path relative to the current folder if it is below it, or with `~` for the home folder."""
    current_folder, home = os.getcwd().rstrip(os.sep) + os.sep, os.path.expanduser("~")
    if path.startswith(current_folder):
        return path[len(current_folder) :]
    return f"~{path[len(home) :]}" if path == home or path.startswith(home.rstrip(os.sep) + os.sep) else path


def _cut_text(text: str, max_length: int | None) -> str:
    if max_length is None or len(text) <= max_length:
        return text
    return cut_list(text, max_length) or f"{text[: max_length - 1]}…"


def _format_size(value: int | None) -> Cell:
    return "" if value is None else size(value)


def _format_params(value: int | None) -> Cell:
    return "" if value is None else count(value)


_AGES = ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h"), (14 * 86_400, 86_400, "d"))
"""Limit of an age in seconds, and the unit in which a smaller age is given."""


def _format_age(seconds: int, max_length: int | None) -> str:
    """Format the time since `seconds`: '5 min ago', or the date if it is two weeks ago or in the future."""
    age = time.time() - seconds
    for limit, size_of_unit, unit in _AGES if age >= 0 else ():
        if age < limit:
            return f"{int(age // size_of_unit)} {unit} ago"
    return _format_time(seconds, max_length)


def _format_time(seconds: int | None, max_length: int | None) -> str:
    """Format a time in the local time zone: date and hour, or in a narrow list the date or the hour of today.

    Returns '?' for a time out of range, because files may contain any number.
    """
    try:
        local_time = time.localtime(seconds)
        is_today = time.strftime("%Y-%m-%d", local_time) == time.strftime("%Y-%m-%d")
        form = "%Y-%m-%d %H:%M" if max_length is None else "%H:%M" if is_today else "%Y-%m-%d"
        return "" if seconds is None else time.strftime(form, local_time)
    except (OSError, OverflowError, ValueError):
        return "?"
