"""Computes the fingerprint of a module: a digest of all that determines its serving figures."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from explorer.engine.formats.torch_module.modules import walk_modules
from explorer.engine.formats.torch_module.stored_form import read_own_forms
from explorer.host import input_files

_LIBRARIES = ("torch", "transformers")
"""Libraries that are identified by their version instead of their code."""
_MAX_CODE = 1 << 30
"""Maximum size in bytes of a file that defines a class; it may be a compiled library."""


def compute_module_digest(model: nn.Module) -> str:
    """Returns a digest of a module. It does not depend on the values of the weights."""
    digest = hashlib.sha256()
    for text in _list_described_parts(model):
        digest.update(text.encode())
        digest.update(b"\0")
    for path in _list_files(model):
        digest.update(input_files.read_content(path, internal=True, max_bytes=_MAX_CODE))
    return digest.hexdigest()


def _list_described_parts(model: nn.Module) -> Iterator[str]:
    """Yields texts with the versions of libraries, the configuration, the modules and their parameters."""
    for name in _LIBRARIES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield name
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        yield str(config.to_json_string())
    yield repr(model)
    for path, module in walk_modules(model):
        for parameter, storage in read_own_forms(module).items():
            yield f"{path} {tuple(parameter.shape)} {parameter.dtype} {storage.dtype} {storage.nbytes}"


def _list_files(model: nn.Module) -> list[str]:
    """Returns the files that define the classes of the module, without files of libraries."""
    names = {type(part).__module__ for part in model.modules()}
    modules = [sys.modules.get(name) for name in names if name.partition(".")[0] not in _LIBRARIES]
    return sorted({path for module in modules if (path := getattr(module, "__file__", None))})
