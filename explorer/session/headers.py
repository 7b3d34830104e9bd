"""Headers of what there is to be opened: the look at a glance, that needs no session.

A session opens a model, and opening is what takes time: records, the analysis, a framework. Here only
headers are read. It is the same door as `explorer.session` (whose `outline` is this one's), made so that
nothing beyond the format in question is imported: the verbs that come through here have to be done before
the finger has left the key.
"""

from __future__ import annotations

import os

from explorer.base.errors import Misuse
from explorer.engine.models import registry
from explorer.host import confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from explorer.base.outline import Outline
    from explorer.engine.formats.format import Format
    from explorer.facts.models.listing import ModelFile, ModelListing

    KnownFormats = Sequence[tuple[Format, tuple[str, ...]]]
    """Formats, and what each can be converted to."""


def outline(source: str) -> Outline:
    """What the header of the file (or folder) `source` says; nothing in it runs, no weight is read.

    Its rows are read from the file while they are iterated, once.

    Raises:
        BadModel: It is no model, or broken; also while the rows are iterated.
        Misuse: It is a model that is no file.
    """
    format = registry.recognise(source)
    if format.outline is None:
        raise Misuse(
            "this is no file whose header could be read",
            where=source,
            hint=f"explorer layers {source} opens it if it is a model's name",
        )
    return format.outline(source)


def formats() -> KnownFormats:
    """Every format that can be opened, in the order in which they are asked, and what it can be made into."""
    from explorer.engine.convert import CONVERTERS  # with the facts, which an outline does not wait for

    return tuple(
        (format, tuple(c.format for c in CONVERTERS if format.name in c.sources and c.format != format.name))
        for format in registry.formats()
    )


def label(name: str) -> str:
    """What a person calls the format that `ModelInfo.format` names: 'onnx' -> 'ONNX'."""
    return next((format.label or name for format in registry.formats() if format.name == name), name)


def check(source: str) -> None:
    """Refuses at once a path that leads nowhere.

    Raises:
        BadModel: There is no such file; or this can be no name either.
    """
    if not os.path.exists(source):
        registry.recognise(source)


def choices(source: str) -> Outline | None:
    """The models in a folder, whose paths are relative to it; None if the folder is a model itself.

    Raises:
        BadModel: No model is in it.
    """
    format = registry.recognise(source)
    return format.outline(source) if format.chooses and format.outline is not None else None


def list_models(
    folder: str = ".", read: Callable[[Sequence[str]], Iterable[ModelFile | None]] | None = None
) -> ModelListing:
    """The models of a folder, each with what its header says; nothing is loaded.

    Args:
        folder: Its path, or that of one model.
        read: Reads headers of paths, in their order; by default one after the other, in this process.

    Raises:
        BadModel: There is no such folder, or no model in it.
    """
    from explorer.engine.models import listing  # with the facts, which an outline does not wait for

    confinement.check(folder)
    return listing.list_models(folder, read or (lambda paths: map(listing.model_file, paths)))
