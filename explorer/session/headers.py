"""Reads the headers of models and folders without a session.

A session opens a model, which takes time for records, the analysis and a framework. This module reads only
headers. `Session.outline` uses it too. It imports nothing but the module of the file's format, because the
commands that read headers must finish within the time of a key press.
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
    """Formats, each with the formats to which it can be converted."""


MODULE_ENDINGS = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
"""Extensions of files that hold an nn.Module."""


def read_outline(source: str) -> Outline:
    """Reads the header of the file or folder `source`. It runs no code from the file and reads no weights.

    The rows can be iterated once. They are read from the file during the iteration.

    Raises:
        BadModel: The file is not a model or is broken; also raised during the iteration.
        Misuse: The model is not a file.
    """
    format = registry.recognize(source)
    if format.outline is None:
        raise Misuse(
            "this is not a file whose header could be read",
            where=source,
            hint=f"explorer layers {source} opens it if it is a model's name",
        )
    return format.outline(source)


def read_code(source: str, module: str = "") -> Outline:
    """Reads the TorchScript code of a module of the file `source`. It runs no code from the file.

    Args:
        source: Path of a TorchScript file.
        module: Path of the module, such as 'features.0'. '' is the whole model.

    Returns:
        An outline without rows. Its facts are the path of the module, its class, and its code.

    Raises:
        BadModel: The file is broken.
        Misuse: The file is not TorchScript, or it has no such module.
    """
    format = registry.recognize(source)
    if format.name != "torchscript":
        raise Misuse(
            "only a TorchScript file contains code",
            where=source,
            hint=f"explorer convert {source} -o model.pt writes one",
        )
    from explorer.engine.formats.torch_files import torchscript  # outlines of other formats do not need it

    return torchscript.show_code(source, module)


def list_formats() -> KnownFormats:
    """Lists the formats that can be opened, in the order of recognition, each with its conversion targets."""
    from explorer.engine.convert import CONVERTERS  # imports the facts, which `read_outline` does not need

    return tuple(
        (format, tuple(c.format for c in CONVERTERS if format.name in c.sources and c.format != format.name))
        for format in registry.list_formats()
    )


def get_format_label(name: str) -> str:
    """Returns the display name of a format that `ModelInfo.format` names: 'onnx' -> 'ONNX'."""
    return next((format.label or name for format in registry.list_formats() if format.name == name), name)


def has_model_ending(name: str) -> bool:
    """Returns whether a file name has the extension of a model format. Folders of models have none."""
    return registry.find_format_by_ending(name) is not None or name.lower().endswith(MODULE_ENDINGS)


def check_source(source: str) -> None:
    """Refuses a source that does not exist, a file of an unknown format, and an unknown torchvision name.

    Raises:
        BadModel: The file does not exist or is no model, and the source is not the name of a model.
        Misuse: torchvision has no model of this name.
    """
    if not os.path.isdir(source):
        registry.recognize(source)
    if not os.path.exists(source) and source.isidentifier():
        from explorer.engine.models.torch.torchvision_names import check_name  # imports the facts

        check_name(source)


def list_choices(source: str) -> Outline | None:
    """Reads the models in a folder, with paths relative to it. Returns None if the folder is itself a model.

    Raises:
        BadModel: The folder contains no model.
    """
    format = registry.recognize(source)
    return format.outline(source) if format.is_collection and format.outline is not None else None


def list_models(
    folder: str = ".", read: Callable[[Sequence[str]], Iterable[ModelFile | None]] | None = None
) -> ModelListing:
    """Lists the models of a folder with the contents of their headers. It loads no model.

    Args:
        folder: Path of the folder, or of a single model.
        read: Function that reads the headers of several paths, in their order. By default, this process reads
            one after the other.

    Raises:
        BadModel: The folder does not exist or contains no model.
    """
    from explorer.engine.models import listing  # imports the facts, which `read_outline` does not need

    confinement.check(folder)
    return listing.list_models(folder, read or (lambda paths: map(listing.read_model_file, paths)))
