"""Trains a session's module on a data file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine import convert
from explorer.engine.evaluate import data_file
from explorer.engine.progress import OnProgress
from explorer.facts.evaluate.training_run import TrainingRun
from explorer.features.training.evaluate import module_inputs
from explorer.host import input_files
from explorer.host.optional_packages import require, silence
from explorer.host.output_files import write_atomically
from explorer.session.parts.models import Models

_MAX_CODE_BYTES = 1 << 30
"""Maximum size, in bytes, of a file that defines a class of a layer. It may be a compiled library."""


def train_module(
    models: Models,
    data: str,
    *,
    labels: str = "",
    inputs: Sequence[str] = (),
    output: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> TrainingRun:
    """Train the opened module; see `Session.train`."""
    opened = _get_module(models, options.get("on_progress"))
    if output is not None:
        models.check_output_path(output, overwrite, data)
        convert.check_name(output, "checkpoint")
    with silence():
        require("lightning", models.source)
    from explorer.engine.evaluate.train import TrainingOptions, train  # imports torch and lightning

    file = data_file.read_within_memory(data, labels=labels, inputs=inputs)
    bound_module, specs = module_inputs(opened, file, inputs)
    sources = file.assign_parts(specs, inputs, models.source)
    parts = [(spec, sources[spec.name]) for spec in specs]
    with nullcontext() if output is None else write_atomically(output, overwrite=overwrite) as temporary:
        run = train(opened.loaded, bound_module, file, parts, TrainingOptions(save_to=temporary, **options))
    return replace(run, output=output or "")


def module_digest(models: Models) -> str:
    """Return a digest of the opened module: its layers, its values, and the files of its classes."""
    module = _get_module(models).loaded.materialize()
    digest = hashlib.sha256(repr(module).encode())
    for chunk in _list_hashed_bytes(module):
        digest.update(chunk)
    return digest.hexdigest()


def _list_hashed_bytes(module: Any) -> Iterator[bytes]:
    """Yield the names, types and values of a module's tensors, then the source files of its classes."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        yield f"{name} {getattr(tensor, 'dtype', '')} {getattr(tensor, 'requires_grad', '')}".encode()
        yield tensor.detach().cpu().double().numpy().tobytes() if hasattr(tensor, "detach") else b""
    python_modules = {sys.modules.get(type(layer).__module__) for layer in module.modules()}
    for path in sorted(path for code in python_modules if (path := getattr(code, "__file__", None))):
        yield input_files.read_content(path, internal=True, max_bytes=_MAX_CODE_BYTES)


def _get_module(models: Models, on_progress: OnProgress = None) -> Any:
    opened: Any = models.open_state(0, on_progress)
    if not hasattr(opened, "loaded") or opened.format != "torch":
        hint = "name it as FILE.py:callable or package.module:callable"
        raise Misuse("only an nn.Module is trained here", where=models.source, hint=hint)
    return opened
