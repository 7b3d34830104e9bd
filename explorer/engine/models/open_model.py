"""Open a model: takes a path or a name and returns an opened model."""

from __future__ import annotations

from explorer.engine.formats.tensor_index import TensorIndex
from explorer.engine.models.opened_model import OpenedModel, OpenOptions, with_rules
from explorer.engine.models.registry import recognise
from explorer.engine.models.tensors import TensorFile


def open_model(source: str, options: OpenOptions) -> OpenedModel:
    """Opens what `source` names.

    Raises:
        BadModel: It is no model, is broken, or is nothing that we know.
        Misuse: An option does not fit the model.
        MissingExtra: It needs a package that is not installed.
    """
    options = with_rules(options)
    opened = recognise(source).open(source, options)
    return TensorFile(opened, options) if isinstance(opened, TensorIndex) else opened


def open_tensors(source: str) -> OpenedModel:
    """Like `open_model`, but opens a file of weights as its tensors only.

    Raises:
        BadModel: It is no model, is broken, or is nothing that we know.
        MissingExtra: It needs a package that is not installed.
    """
    format, options = recognise(source), OpenOptions()
    return TensorFile(format.tensors(source), options) if format.tensors else open_model(source, options)
