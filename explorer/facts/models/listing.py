"""Listing: the models of a folder by what their headers say, and what else there is to be opened."""

from __future__ import annotations

from msgspec import Struct


class StoredType(Struct, frozen=True):
    """Tensors of one type in a file.

    Attributes:
        name: In numpy's spelling; of ggml's blocks in ggml's ('Q4_K').
        tensors: How many.
        elements: Numbers in them; None where a size is not known.
        bytes: That they take; None where that is not known.
    """

    name: str
    tensors: int
    elements: int | None
    bytes: int | None


class ModelFile(Struct, frozen=True):
    """A model by its header: nothing of it was loaded, and no shape inferred.

    Attributes:
        path: Within the folder that is listed; of a model that is a folder with a separator at its end.
        format: As `ModelInfo.format`.
        bytes: Of the file, or of the files that belong together; None of too many.
        modified: When it was last written, in seconds since 1970; of a folder the newest of its files.
        params: Stored parameters: tensors of a type that weights have, each once where the header says
            which are of the same bytes. Of a graph what `info` counts may differ a little: it knows who reads
            each. None where the header does not say, or was not read.
        types: Most bytes first.
        quantization: How weights are quantized, if the header says so: 'QDQ', 'mostly Q4_K, medium'.
        note: Why there is no more.
        architecture: Of a model whose file, or the config.json beside it, names one: 'LlamaForCausalLM'.
        context: The longest text that it says it takes, in tokens; None if it does not say.
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


class RecentModel(Struct, frozen=True):
    """A model that was opened on the screen before.

    Attributes:
        source: A path from the root, or a name.
        opened: When, in seconds since 1970.
        format: As `ModelInfo.format`.
        params: That it had then.
        missing: There is no such file any more.
    """

    source: str
    opened: int
    format: str = ""
    params: int | None = None
    missing: bool = False


class KeptSession(Struct, frozen=True):
    """A session that waits to be resumed.

    Attributes:
        source: The model as it was typed.
        folder: Where it was typed.
        changed: When it was last written down, in seconds since 1970.
        states: Of its history, the model as opened among them.
        note: Why it cannot be resumed as it is.
        kept: The folder that it is kept in.
    """

    source: str
    folder: str
    changed: int
    states: int = 1
    note: str = ""
    kept: str = ""


class NamedModel(Struct, frozen=True):
    """A model of torchvision's.

    Attributes:
        name: What it is opened by.
        params: As torchvision says; None where it does not.
    """

    name: str
    params: int | None = None


class ModelListing(Struct, frozen=True):
    """What there is to be opened.

    Attributes:
        folder: Whose models these are.
        models: In it, in the order of their names.
        note: What was left out of a look at a folder that has too much in it.
        sessions: To be resumed, the newest first.
        recent: The newest first.
        torchvision: None if it is not installed, or was not asked for.
    """

    folder: str
    models: tuple[ModelFile, ...]
    note: str = ""
    sessions: tuple[KeptSession, ...] = ()
    recent: tuple[RecentModel, ...] = ()
    torchvision: tuple[NamedModel, ...] | None = None
