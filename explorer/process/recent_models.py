"""Recent models: which were opened on the screen, kept in the user's state folder, a bounded number.

Only what the list shows is kept, and how a model was opened, but for trust: code runs when the user says so,
each time. A list that cannot be read or written is an empty one, and nobody is told: it is a convenience.
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

from explorer.facts import Info
from explorer.facts.models.listing import RecentModel
from explorer.host import own_files
from explorer.process.saved_sessions import Opening, home

MOST = 40
_FILE = "recent.msgpack"
_MOST_BYTES = 16 << 20
_LONGEST = 4096
"""Characters of a source."""


class RecentOpening(Struct, frozen=True):
    """A model, and how it was opened."""

    model: RecentModel
    opening: Opening = Opening()


def _path(environment: Mapping[str, str]) -> str:
    return os.path.join(os.path.dirname(home(environment)), _FILE)


def openings(environment: Mapping[str, str]) -> list[RecentOpening]:
    """What was opened, the newest first."""
    try:
        stored_openings = msgspec.msgpack.decode(
            own_files.read(_path(environment), _MOST_BYTES), type=list[RecentOpening]
        )
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    return [
        replace(
            opening,
            model=replace(
                opening.model,
                missing=os.path.isabs(opening.model.source) and not _exists(opening.model.source),
            ),
        )
        for opening in stored_openings[:MOST]
        if opening.model.source and "\0" not in opening.model.source and not opening.opening.trust
    ]


def listed(environment: Mapping[str, str]) -> tuple[RecentModel, ...]:
    """The same without how it was opened."""
    return tuple(one.model for one in openings(environment))


def add(source: str, opening: Opening, model: RecentModel, environment: Mapping[str, str]) -> None:
    """A model was opened: it goes to the head of the list.

    Args:
        source: As it was typed.
        opening: How it was opened.
        model: What is known of it; its source and time are set here.
        environment: Says where the list is.
    """
    there = _exists(source)
    named = os.path.abspath(source) if there else source
    if opening.trust or len(named) > _LONGEST:
        return
    model = replace(model, source=named, opened=int(time.time()))
    opening = replace(
        opening, **{name: _absolute(getattr(opening, name)) for name in ("weights", "weights_file", "rules")}
    )
    others = [opening_ for opening_ in openings(environment) if opening_.model.source != named]
    _write([RecentOpening(model, opening), *others][:MOST], environment)


def remember(source: str, options: Mapping[str, Any], info: Info, environment: Mapping[str, str]) -> None:
    """The same of a model that was opened with `options`, and of which `info` is known."""
    known = RecentModel(source, 0, info.model.format, info.totals.params)
    add(source, Opening(**options), known, environment)


def forget(source: str, environment: Mapping[str, str]) -> None:
    """Takes a model off the list."""
    _write([one for one in openings(environment) if one.model.source != source], environment)


def _write(models: list[RecentOpening], environment: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError, UnicodeEncodeError, OverflowError, TypeError):
        data, path = msgspec.msgpack.encode(models), _path(environment)
        own_files.make_folder(os.path.dirname(path))
        own_files.write(path, data)


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:
        return False


def _absolute(path: str | None) -> str | None:
    """A file beside the model, from the root; a name (torchvision's weights) as it is."""
    return os.path.abspath(path) if path is not None and _exists(path) else path
