"""Recent models: the models that the screen opened most recently, in a file in the user's state folder.

The file stores the facts that the list shows, and the options with which each model was opened. Models that
were opened with trust are not stored, because their code runs only when the user allows it, each time. A file
that cannot be read counts as an empty list, without a message.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.facts import Info
from explorer.facts.models.listing import RecentModel
from explorer.host import own_files
from explorer.process.saved_sessions import Opening, find_home

MAX_RECENT = 40
_FILE = "recent.msgpack"
_MAX_BYTES = 16 << 20
_MAX_CHARACTERS = 4096
"""Most characters of a source."""


class RecentOpening(Struct, frozen=True):
    """A model, and the options with which it was opened."""

    model: RecentModel
    opening: Opening = Opening()


def _find_path(environment: Mapping[str, str]) -> str:
    return os.path.join(os.path.dirname(find_home(environment)), _FILE)


def list_openings(environment: Mapping[str, str]) -> list[RecentOpening]:
    """Lists the recent models with their options, newest first.

    The field `missing` tells whether the file of a model no longer exists.
    """
    try:
        stored_openings = msgspec.msgpack.decode(
            own_files.read(_find_path(environment), _MAX_BYTES), type=build_type(list[RecentOpening])
        )
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    openings = []
    for recent_opening in stored_openings[:MAX_RECENT]:
        model = recent_opening.model
        if not model.source or "\0" in model.source or recent_opening.opening.trust:
            continue
        is_missing = os.path.isabs(model.source) and not _is_existing(model.source)
        openings.append(replace(recent_opening, model=replace(model, missing=is_missing)))
    return openings


def list_recent(environment: Mapping[str, str]) -> tuple[RecentModel, ...]:
    """Lists the recent models without their options, newest first."""
    return tuple(recent_opening.model for recent_opening in list_openings(environment))


def add(source: str, opening: Opening, model: RecentModel, environment: Mapping[str, str]) -> None:
    """Puts a model at the head of the list. A model opened with trust is not added.

    Args:
        source: Path or name that the user typed.
        opening: Options with which the model was opened.
        model: Known facts of the model; this function sets its source and time.
        environment: Environment variables, which determine the state folder.
    """
    exists = _is_existing(source)
    full_source = os.path.abspath(source) if exists else source
    if opening.trust or len(full_source) > _MAX_CHARACTERS:
        return
    model = replace(model, source=full_source, opened=int(time.time()))
    opening = replace(
        opening,
        **{name: _resolve_path(getattr(opening, name)) for name in ("weights", "weights_file", "rules")},
    )
    other_openings = [
        opening_record
        for opening_record in list_openings(environment)
        if opening_record.model.source != full_source
    ]
    _write([RecentOpening(model, opening), *other_openings][:MAX_RECENT], environment)


def remember(source: str, options: Mapping[str, Any], info: Info, environment: Mapping[str, str]) -> None:
    """Adds a model that was opened with `options`; its facts come from `info`."""
    recent_model = RecentModel(source, 0, info.model.format, info.totals.params)
    add(source, Opening(**options), recent_model, environment)


def forget(source: str, environment: Mapping[str, str]) -> None:
    """Removes a model from the list."""
    openings = [opening for opening in list_openings(environment) if opening.model.source != source]
    _write(openings, environment)


def _write(models: list[RecentOpening], environment: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError, UnicodeEncodeError, OverflowError, TypeError):
        content, path = msgspec.msgpack.encode(models), _find_path(environment)
        own_files.make_folder(os.path.dirname(path))
        own_files.write(path, content)


def _is_existing(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:
        return False


def _resolve_path(path: str | None) -> str | None:
    """Returns the absolute path of an existing file, or any other text unchanged: the name of weights."""
    return os.path.abspath(path) if path is not None and _is_existing(path) else path
