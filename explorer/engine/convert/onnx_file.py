"""Changes to an ONNX file that was just written: joined external data, a folded graph, declared shapes."""

from __future__ import annotations

import os
from collections.abc import Collection

from explorer.engine.convert.job import ConversionJob
from explorer.engine.fold.fold import fold
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model
from explorer.engine.shapes.declarations import declare_inferred
from explorer.facts.split.fold import FOLDS


def join_external_data(path: str) -> None:
    """Moves external data of a model into one file, named after the model.

    For a model above 2 GiB the TorchScript exporter writes one file for every tensor, named after the tensor.
    Such a file could be overlooked in the user's folder, or overwrite a file of the user.

    Args:
        path: Path in a temporary folder, which holds only the model and its external data.
    """
    folder, name = os.path.split(path)
    other_names = set(os.listdir(folder)) - {name, f"{name}.data"}
    if not other_names:
        return
    _rewrite(path, reader.read(path), other_names)


def fold_file(job: ConversionJob) -> tuple[str, ...]:
    """Folds the written file if requested; returns notes. The later proof uses the folded file."""
    if not job.options.fold:
        return ()
    job.report_progress("folding")
    model = validate(reader.read(job.path))
    changes: list[str] = []
    for kind in FOLDS:
        model, step = fold(model, kind)
        changes += [step.what] if step.folded else []
    if changes:
        _rewrite(job.path, model, ())
    return tuple(changes) or ("nothing to fold",)


def declare_in_file(path: str) -> None:
    """Writes a file anew with the inferred type and shape of every value.

    Args:
        path: Path of an ONNX file in a temporary folder, which holds nothing else but its external data.
    """
    folder, name = os.path.split(path)
    other_names = set(os.listdir(folder)) - {name}
    _rewrite(path, declare_inferred(validate(reader.read(path))), other_names)


def _rewrite(path: str, model: Model, other_names: Collection[str]) -> None:
    """Rewrites a model file, and deletes the given files from its folder."""
    folder, name = os.path.split(path)
    temporary_folder = os.path.join(folder, "joined.part")
    os.mkdir(temporary_folder)
    writer.write(model, os.path.join(temporary_folder, name))
    for name_to_remove in other_names:
        os.unlink(os.path.join(folder, name_to_remove))
    for new_name in os.listdir(temporary_folder):
        os.replace(os.path.join(temporary_folder, new_name), os.path.join(folder, new_name))
    os.rmdir(temporary_folder)
