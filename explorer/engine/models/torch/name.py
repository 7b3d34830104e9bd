"""Names of PyTorch models: torchvision models by name, and nn.Modules by `package.module:callable`."""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.models.opened_model import OpenedModel, OpenOptions


def is_code(source: str) -> bool:
    """Whether a source names an object in a Python file: path/file.py:callable."""
    path, _, attribute = source.rpartition(":")
    return path.endswith(".py") and all(part.isidentifier() for part in attribute.split("."))


def _recognise(probe: SourceProbe) -> bool:
    if probe.exists:
        return False
    if is_code(probe.source):
        return True
    module, _, attribute = probe.source.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")) if part)


def _open(source: str, options: OpenOptions) -> OpenedModel:
    from explorer.host.optional_packages import require  # not needed to list formats

    require("torch", source)
    from explorer.engine.models.torch.module import TorchModel  # imports torch, which takes seconds

    return TorchModel(source, options)


FORMAT = Format(
    "torch",
    "a torchvision model's name, or FILE.py:callable or package.module:callable",
    label="PyTorch module",
    recognise=_recognise,
    open=_open,
    recognised="a name that is not a file's",
    shows="the module tree as it runs, every operator, shapes",
    needs="torch",
)
