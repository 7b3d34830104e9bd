"""Open a model: a path or a name in, an opened model out; `registry` is light, for it answers nothing."""

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
    """As `open_model`, but of a file of weights no more than its tensors.

    Raises:
        BadModel: It is no model, is broken, or is nothing that we know.
        MissingExtra: It needs a package that is not installed.
    """
    format, options = recognise(source), OpenOptions()
    return TensorFile(format.tensors(source), options) if format.tensors else open_model(source, options)
