"""Clean-up of an ONNX file that an exporter wrote: external data in one file, and folding."""

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
    """Moves external data of a model into one file, named after the model.

    For a model above 2 GiB the TorchScript exporter writes a file for every tensor, named after the tensor.
    Among a user's own files they could get lost, or overwrite one.
    """
    folder, name = os.path.split(path)
    others = set(os.listdir(folder)) - {name, f"{name}.data"}
    if not others:
        return
    _rewrite(path, reader.read(path), others)


def fold_file(job: ConversionJob) -> tuple[str, ...]:
    """Folds the written file if requested; returns notes. The comparison uses the folded file."""
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
    """Replaces the file that a model was read from, and other files beside it."""
    folder, name = os.path.split(path)
    inner = os.path.join(folder, "joined.part")
    os.mkdir(inner)
    writer.write(model, os.path.join(inner, name))
    for old in others:
        os.unlink(os.path.join(folder, old))
    for new in os.listdir(inner):
        os.replace(os.path.join(inner, new), os.path.join(folder, new))
    os.rmdir(inner)
