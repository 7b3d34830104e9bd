"""Opens PyTorch models by name: torchvision models, and nn.Modules as `package.module:callable`."""

from __future__ import annotations

import os

from explorer.base.errors import Misuse, suggest_name, suggest_only_near
from explorer.engine.formats.files import list_files_by_text
from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.models.opened_model import OpenedModel, OpenOptions


def is_code(source: str) -> bool:
    """Whether a source names an object in a Python file: path/file.py:callable."""
    path, _, attribute = source.rpartition(":")
    return path.endswith(".py") and all(part.isidentifier() for part in attribute.split("."))


def _recognize(probe: SourceProbe) -> bool:
    """Whether a source is no file, and has the form of a model's name or of a callable."""
    if probe.exists:
        return False
    if is_code(probe.source):
        return True
    module, _, attribute = probe.source.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")) if part)


def _open(source: str, options: OpenOptions) -> OpenedModel:
    path = source.rpartition(":")[0]
    if is_code(source) and not os.path.isfile(path):  # found before the import of torch, which takes seconds
        folder, name = os.path.split(path)
        names = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
        hint = suggest_name(name, [file_name for file_name in names if file_name.endswith(".py")])
        raise Misuse("there is no such file", where=path, hint=hint)
    is_file_name = "." in source and ":" not in source  # the names of torchvision's models have no dot
    files = list_files_by_text() if is_file_name else {}
    if near := suggest_only_near(source.lower(), files, files):
        raise Misuse("no such file", where=source, hint=near)
    if ":" not in source:
        from explorer.engine.models.torch.torchvision_names import check_name  # imports the facts

        check_name(source)
    from explorer.host.optional_packages import require  # not needed to list formats

    require("torch", source)
    from explorer.engine.models.torch.module import TorchModel  # imports torch, which takes seconds

    return TorchModel(source, options)


FORMAT = Format(
    "torch",
    "a torchvision model's name, or FILE.py:callable or package.module:callable",
    label="PyTorch module",
    recognize=_recognize,
    open=_open,
    recognized_by="a name that no file has",
    shows="the module tree as it runs, every operator, shapes",
    needs="torch",
)
