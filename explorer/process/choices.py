"""Choices: lists of the models that can be opened, for the screen's chooser and `explorer list`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.facts.models.listing import ModelListing
from explorer.process import recent_models, saved_sessions
from explorer.process.header_reader import HeaderReader
from explorer.session.headers import list_models


def list_folder(folder: str) -> ModelListing:
    """Lists the models of a folder.

    Raises:
        BadModel: The folder does not exist, or contains no model.
    """
    reader = HeaderReader()
    try:
        return list_models(folder, reader.read_all)
    finally:
        reader.close()


def list_choices(environment: Mapping[str, str], folder: str = ".") -> ModelListing:
    """Lists the models of a folder, sessions to resume, recent models, and torchvision's model names.

    A folder without models is not an error; the listing then has a note.
    """
    reader = HeaderReader()
    try:
        try:
            listing = list_models(folder, reader.read_all)
        except BadModel as error:
            listing = ModelListing(folder, (), error.what)
        return replace(
            listing,
            sessions=tuple(saved_sessions.list_kept_sessions(environment)),
            recent=recent_models.list_recent(environment),
            torchvision=reader.list_torchvision_models(),
        )
    finally:
        reader.close()
