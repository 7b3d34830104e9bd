"""Facts about models that can be opened: the models of a folder with their headers, and others."""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact


class StoredType(Fact, frozen=True):
    """Tensors of one number type in a file.

    Attributes:
        name: Name of the type in numpy's spelling, or in ggml's for its blocks ('Q4_K').
        tensors: Number of tensors.
        elements: Number of elements, or None if a size is unknown.
        bytes: Bytes of the tensors, or None if unknown.
    """

    name: str
    tensors: int
    elements: int | None
    bytes: int | None


class ModelFile(Fact, frozen=True):
    """A model as its header describes it. Reading it loads no model and infers no shapes.

    Attributes:
        path: Path relative to the listed folder. It ends with a separator if the model is a folder.
        format: Name of the format, as in `ModelInfo.format`.
        bytes: Bytes of the file, or of all files of the model. None if there are too many files.
        modified: Time of the last change in seconds since 1970. For a folder, that of its newest file.
        params: Number of stored parameters: elements of tensors with a type of weights. A tensor counts once
            if the header shows that several names share it. `info` may count a graph slightly differently,
            because it knows the readers of each tensor. None if the header lacks it or was not read.
        types: Number types of the tensors, most bytes first.
        quantization: Quantization of the weights, if the header records it: 'QDQ', 'mostly Q4_K, medium'.
        note: Reason why details are missing, or ''.
        architecture: Architecture, if the file or the config.json next to it names one: 'LlamaForCausalLM'.
        context: Longest supported text in tokens, or None if the header does not record it.
    """

    path: str
    format: str
    bytes: int | None = None
    modified: int | None = None
    params: int | None = None
    types: tuple[StoredType, ...] = ()
    quantization: str = ""
    note: str = ""
    architecture: str = ""
    context: int | None = None


class RecentModel(Fact, frozen=True):
    """A model that was recently opened on the screen.

    Attributes:
        source: Absolute path or name.
        opened: Time of opening in seconds since 1970.
        format: Name of the format, as in `ModelInfo.format`.
        params: Number of parameters at that time.
        missing: Whether the file no longer exists.
    """

    source: str
    opened: int
    format: str = ""
    params: int | None = None
    missing: bool = False


class KeptSession(Fact, frozen=True):
    """A session that can be resumed.

    Attributes:
        source: Model, as the user typed it.
        folder: Working folder in which the user typed it.
        changed: Time of the last write in seconds since 1970.
        states: Number of states in its history, with the model as opened.
        note: Reason why the session cannot be resumed completely, or ''.
        kept: Path of the folder that stores the session.
    """

    source: str
    folder: str
    changed: int
    states: int = 1
    note: str = ""
    kept: str = ""


class NamedModel(Fact, frozen=True):
    """A model of torchvision.

    Attributes:
        name: Name by which the model is opened.
        params: Number of parameters according to torchvision, or None if it does not list them.
    """

    name: str
    params: int | None = None


class ModelListing(TableFact, frozen=True):
    """Models and sessions that can be opened.

    Attributes:
        folder: Path of the listed folder.
        models: Models of the folder, ordered by name.
        note: Description of the part that was skipped, if the folder has too many entries.
        sessions: Sessions that can be resumed, newest first.
        recent: Recently opened models, newest first.
        torchvision: Models of torchvision, or None if it is not installed or was not requested.
    """

    ROWS: ClassVar[str] = "models"

    folder: str
    models: tuple[ModelFile, ...]
    note: str = ""
    sessions: tuple[KeptSession, ...] = ()
    recent: tuple[RecentModel, ...] = ()
    torchvision: tuple[NamedModel, ...] | None = None
