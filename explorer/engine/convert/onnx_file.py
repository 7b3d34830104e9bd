"""ONNX file that an exporter wrote: its weights in one file beside it, and folded."""

from __future__ import annotations

import os
from collections.abc import Collection

from explorer.engine.convert.job import ConversionJob
from explorer.engine.fold.fold import fold
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model
from explorer.facts.split.fold import FOLDS


def join(path: str) -> None:
    """Puts weights that lie in files beside a model into one file, called after it.

    The TorchScript exporter writes a file for every tensor where a model exceeds 2 GiB, called like the
    tensor: among a user's own files they would be lost, or replace one.
    """
    folder, name = os.path.split(path)
    others = set(os.listdir(folder)) - {name, f"{name}.data"}
    if not others:
        return
    _rewrite(path, reader.read(path), others)


def fold_file(job: ConversionJob) -> tuple[str, ...]:
    """Folds what was written, where that is asked for, and says what went: what is left is compared."""
    if not job.asked.fold:
        return ()
    job.tell("folding")
    model = validate(reader.read(job.path))
    changes: list[str] = []
    for kind in FOLDS:
        model, step = fold(model, kind)
        changes += [step.what] if step.folded else []
    if changes:
        _rewrite(job.path, model, ())
    return tuple(changes) or ("nothing to fold",)


def _rewrite(path: str, model: Model, others: Collection[str]) -> None:
    """Writes a model in the place of the file that it was read from, and of others beside it."""
    folder, name = os.path.split(path)
    inner = os.path.join(folder, "joined.part")
    os.mkdir(inner)
    writer.write(model, os.path.join(inner, name))
    for old in others:
        os.unlink(os.path.join(folder, old))
    for new in os.listdir(inner):
        os.replace(os.path.join(inner, new), os.path.join(folder, new))
    os.rmdir(inner)
