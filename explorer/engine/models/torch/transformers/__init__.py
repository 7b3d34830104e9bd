"""Weights whose architecture is told beside them: config.json, the metadata of a GGUF file.

Where transformers can be had, and knows the architecture, the module is built from that without its weights
and answers like any other; where not, the tensors are looked at, and it is said why nothing more is known.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from explorer.base.errors import BadModel, install_command
from explorer.engine.formats.tensor_index import TensorIndex, part_of
from explorer.engine.formats.weights import gguf, huggingface, safetensors
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensors import TensorFile
from explorer.host.gc_pause import gc_pause


def open_folder(source: str, options: OpenOptions) -> OpenedModel:
    """A Hugging Face folder, or the index of its shards.

    Raises:
        BadModel: It is broken, or its configuration asks for what no model has; or there are no weights, and
            no module either.
    """
    opened = _folder(source, options)
    if isinstance(opened, TensorFile) and not opened.contents.files:
        raise BadModel(f"{huggingface.NO_WEIGHTS}, and no module of it: {opened.contents.why}", where=source)
    return opened


def _folder(source: str, options: OpenOptions) -> OpenedModel:
    contents = huggingface.contents(source)
    adapts = isinstance(contents.config.get("base_model_name_or_path"), str)
    if not adapts and not isinstance(contents.config.get("model_type"), str):
        _tell_broken(contents, source if os.path.isdir(source) else os.path.dirname(source))
        return TensorFile(contents, options)
    if _lacks_packages(contents):
        return TensorFile(contents, options)
    return _built(contents, options, adapts=adapts)


def open_safetensors(source: str, options: OpenOptions) -> OpenedModel:
    """A safetensors file; with a config.json beside it the module whose weights it holds.

    Raises:
        BadModel: It is broken, or the configuration asks for what no model has.
    """
    contents = safetensors.contents(source)
    return with_config_beside(source, contents, options) or TensorFile(contents, options)


def with_config_beside(source: str, contents: TensorIndex, options: OpenOptions) -> OpenedModel | None:
    """The module of a file of weights, by the config.json of its folder; None if there is none for it.

    Args:
        source: The file, which holds all weights of its model.
        contents: Its tensors, which are told why where the module cannot be built.
        options: How it is opened.

    Raises:
        BadModel: The configuration asks for what no model has.
    """
    folder, name = os.path.split(source)
    if not isinstance(huggingface.configuration(folder)[1].get("model_type"), str):
        _tell_broken(contents, folder)
        return None
    if part_of(name) or _lacks_packages(contents):
        return None
    folder_contents = huggingface.contents(source)
    folder_contents.format = contents.format
    opened = _built(folder_contents, options)
    if isinstance(opened, TensorFile):
        contents.why = folder_contents.why
        return None
    return opened


def open_gguf(source: str, options: OpenOptions) -> OpenedModel:
    """A GGUF file, with the others of its model.

    Raises:
        BadModel: It is broken, or its metadata asks for what no model has.
    """
    contents = gguf.contents(source)
    if not isinstance(contents.config.get("general.architecture"), str) or _lacks_packages(contents):
        return TensorFile(contents, options)
    return _built(contents, options)


def _tell_broken(contents: TensorIndex, folder: str) -> None:
    """Says that a configuration is broken as why nothing more is known, and not once more beside."""
    wrong = huggingface.configuration(folder)[2]
    if wrong:
        contents.why = f"{contents.why}, and {wrong}"
        contents.notes = [note for note in contents.notes if note != wrong]


@gc_pause()
def _built(contents: TensorIndex, options: OpenOptions, *, adapts: bool = False) -> OpenedModel:
    """The module that an adapter, the metadata of a GGUF file or a config.json describes."""
    from explorer.engine.models.torch.transformers import adapter, module  # torch and transformers: seconds

    if adapts:
        return adapter.open_adapter(contents, options)
    if contents.format == "gguf":
        return module.open_gguf(contents, options)
    return module.open_folder(contents, options)


def _lacks_packages(contents: TensorIndex) -> bool:
    """Whether no module can be built here; then it is said what is missing."""
    missing = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if missing:
        command = install_command("transformers")
        contents.why = f"its module is built with {' and '.join(missing)}, not installed ({command})"
    return bool(missing)
