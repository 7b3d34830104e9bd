"""Checkpoint of torch.save by its description; a whole pickled module by torch, where the user trusts it."""

from __future__ import annotations

from explorer.engine.formats.torch_files.checkpoint import read
from explorer.engine.formats.torch_files.checkpoint_modules import checkpoint
from explorer.engine.models.opened import Opened, OpenOptions
from explorer.engine.models.torch.described import DescribedFile, leaves_of
from explorer.host.optional_packages import require


def open_checkpoint(source: str, options: OpenOptions, format: str) -> Opened:
    """A checkpoint; with `options.trust` a module in it is loaded, and whatever code is in the file runs.

    Raises:
        BadModel: It is broken, or holds no tensors; or a class of a trusted module cannot be imported here.
        MissingExtra: It is trusted, and torch is not installed.
    """
    found = checkpoint(read(source), format)
    if options.trust and found.whole:
        require("torch", source)
        from explorer.engine.models.torch import rebuilt

        return rebuilt.open_pickled(source, options, format, found)
    why = found.contents.why
    hint = (
        "--trust runs it, if its classes can be imported here"
        if found.whole
        else "name the code that builds it (package.module:callable), or export it to ONNX"
    )
    return DescribedFile(
        found.contents, options, lambda: leaves_of(found.parts, why), strides=found.strides, hint=hint
    )
