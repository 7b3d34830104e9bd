"""transformers, imported without what no model on shapes uses, and without reading its sources twice."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from explorer.engine.formats.torch_module.late_compiler import put_off_compiler
from explorer.engine.formats.torch_module.late_module import put_off
from explorer.engine.formats.torch_module.late_symbols import put_off_symbols
from explorer.host.optional_packages import require

_FOR_IMAGES = ("torchvision.models", "torchvision.datasets", "torchvision.ops")
"""Parts of torchvision that it imports for whoever turns an image around."""


def imported(source: str) -> Any:
    """The package, with its room of models.

    Args:
        source: What it is needed for.

    Raises:
        MissingExtra: transformers is not installed, or is broken.
    """
    put_off_compiler()
    put_off_symbols()
    if "torchvision" not in sys.modules:
        for name in _FOR_IMAGES:
            put_off(name)
    transformers = require("transformers", source)
    _import_models()
    return transformers


def _import_models() -> None:
    """Imports `transformers.models`.

    What each of its files exports was read from all of them when transformers was imported, and is read again
    for the room itself, since it calls its folder by another name there: a quarter of a second.
    """
    from transformers.utils import import_utils

    name = "create_import_structure_from_path"
    read = getattr(import_utils, name, None)
    if "transformers.models" in sys.modules or not callable(read):
        return

    @functools.wraps(read)
    def read_once(path: Any) -> Any:
        return read(Path(path).parent if os.path.basename(path) == "__init__.py" else path)

    setattr(import_utils, name, read_once)
    try:
        import transformers.models  # noqa: F401
    finally:
        setattr(import_utils, name, read)
