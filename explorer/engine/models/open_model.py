"""Opens a model, given its path or name."""

from __future__ import annotations

from explorer.engine.formats.tensor_index import TensorIndex
from explorer.engine.models.opened_model import OpenedModel, OpenOptions, load_rules
from explorer.engine.models.registry import recognize
from explorer.engine.models.tensors import TensorFile


def open_model(source: str, options: OpenOptions) -> OpenedModel:
    """Opens the model that `source` names.

    Raises:
        BadModel: The source is not a model, is broken, or has an unknown format.
        Misuse: An option does not fit the model.
        MissingExtra: The model needs a package that is not installed.
    """
    options = load_rules(options)
    opened = recognize(source).open(source, options)
    return TensorFile(opened, options) if isinstance(opened, TensorIndex) else opened


def open_tensors(source: str) -> OpenedModel:
    """Opens a file of weights as its tensors only, and any other model as `open_model` does.

    Raises:
        BadModel: The source is not a model, is broken, or has an unknown format.
        MissingExtra: The model needs a package that is not installed.
    """
    format, options = recognize(source), OpenOptions()
    return TensorFile(format.tensors(source), options) if format.tensors else open_model(source, options)
