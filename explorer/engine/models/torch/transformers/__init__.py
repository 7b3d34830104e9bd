"""Opens weights whose architecture is described in config.json, or in the metadata of a GGUF file.

If torch and transformers are installed and transformers supports the architecture, the module is built on the
meta device and analyzed like any other. Otherwise only the tensors are known, and a note gives the reason.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from explorer.base.errors import BadModel, format_install_command
from explorer.engine.formats.tensor_index import TensorIndex, parse_part_name
from explorer.engine.formats.weights import gguf, huggingface, safetensors
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensors import TensorFile
from explorer.host.gc_pause import pause_garbage_collector


def open_folder(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a Hugging Face folder, or the index of its shards.

    Raises:
        BadModel: The folder is broken, or its configuration asks for larger sizes than any model has; or it
            has no weights, and no module can be built.
    """
    opened = _open_contents(source, options)
    if isinstance(opened, TensorFile) and not opened.contents.files:
        problem = f"{huggingface.NO_WEIGHTS}, and no module can be built: {opened.contents.why}"
        raise BadModel(problem, where=source)
    return opened


def _open_contents(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a folder as a module, or as its tensors if no module can be built."""
    contents = huggingface.read_contents(source)
    is_adapter = isinstance(contents.config.get("base_model_name_or_path"), str)
    if not is_adapter and not isinstance(contents.config.get("model_type"), str):
        _add_configuration_error(contents, source if os.path.isdir(source) else os.path.dirname(source))
        return TensorFile(contents, options)
    if _lacks_packages(contents):
        return TensorFile(contents, options)
    return _build_module(contents, options, is_adapter=is_adapter)


def open_safetensors(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a safetensors file. With a config.json next to it, the result is the module of its weights.

    Raises:
        BadModel: The file is broken, or the configuration asks for larger sizes than any model has.
    """
    contents = safetensors.read_contents(source)
    return open_with_config(source, contents, options) or TensorFile(contents, options)


def open_with_config(source: str, contents: TensorIndex, options: OpenOptions) -> OpenedModel | None:
    """Builds the module of a file of weights from the config.json in its folder.

    Returns None if no module can be built, or if the file is one of several parts of a model.

    Args:
        source: Path of the file.
        contents: The file's tensors. If no module can be built, their `why` becomes the reason.
        options: Options that the file is opened with.

    Raises:
        BadModel: The configuration asks for larger sizes than any model has.
    """
    folder, name = os.path.split(source)
    if not isinstance(huggingface.read_configuration(folder)[1].get("model_type"), str):
        _add_configuration_error(contents, folder)
        return None
    if parse_part_name(name) or _lacks_packages(contents):
        return None
    folder_contents = huggingface.read_contents(source)
    folder_contents.format = contents.format
    opened = _build_module(folder_contents, options)
    if isinstance(opened, TensorFile):
        contents.why = folder_contents.why
        return None
    return opened


def open_gguf(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a GGUF file, with the other files of its model.

    Raises:
        BadModel: The file is broken, or its metadata asks for larger sizes than any model has.
    """
    contents = gguf.read_contents(source)
    if not isinstance(contents.config.get("general.architecture"), str) or _lacks_packages(contents):
        return TensorFile(contents, options)
    return _build_module(contents, options)


def _add_configuration_error(contents: TensorIndex, folder: str) -> None:
    """Adds the error of a broken configuration to `contents.why`, and removes the note with the same text."""
    error = huggingface.read_configuration(folder)[2]
    if error:
        contents.why = f"{contents.why}, and {error}"
        contents.notes = [note for note in contents.notes if note != error]


@pause_garbage_collector()
def _build_module(contents: TensorIndex, options: OpenOptions, *, is_adapter: bool = False) -> OpenedModel:
    """Builds the module of an adapter, GGUF metadata or config.json, or returns the tensors with a reason."""
    from explorer.engine.models.torch.transformers import adapter, module  # torch and transformers: seconds

    if is_adapter:
        return adapter.open_adapter(contents, options)
    if contents.format == "gguf":
        return module.open_gguf(contents, options)
    return module.open_folder(contents, options)


def _lacks_packages(contents: TensorIndex) -> bool:
    """Whether a needed package is missing. If so, `contents.why` becomes the reason."""
    missing = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if missing:
        command = format_install_command("transformers")
        contents.why = f"its module needs {' and '.join(missing)}: install with {command}"
    return bool(missing)
