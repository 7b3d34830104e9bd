"""Tensor conversion, as every target does it: gather them, see that there is room, write, compare bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files import byte_evidence
from explorer.engine.convert.tensor_files.bundle import Files, StateDict, check_room, copied, gather


def convert(
    job: ConversionJob,
    write: Callable[[StateDict], Sequence[str]],
    reread: Callable[[str, Files], StateDict],
) -> ConversionResult:
    """Converts the tensors of a model.

    Args:
        job: What is converted.
        write: Writes them to `job.path`; returns what is worth knowing.
        reread: What was written, by its own reader.

    Raises:
        BadModel: A tensor is missing or broken, or of a type that the target has not.
        Misuse: The disk has no room for it.
        Cancelled: `job.cancel` said so.
    """
    job.tell("reading the header")
    with Files() as files:
        bundle = gather(job, files)
        check_room(job, bundle.pieces)
        notes = write(bundle)
        evidence = byte_evidence.compare(job, bundle, reread(job.path, files)) if job.verify else None
    return ConversionResult(how=copied(bundle.pieces), stored=evidence, notes=(*bundle.notes, *notes))
