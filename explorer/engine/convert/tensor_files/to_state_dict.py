"""state_dict from tensors, as torch.save writes it, as a stream and without torch."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files import torch_zip
from explorer.engine.convert.tensor_files import write as tensors
from explorer.engine.convert.tensor_files.bundle import StateDict, of_checkpoint


def convert(job: ConversionJob) -> ConversionResult:
    """Writes a state_dict.

    Raises:
        BadModel: A tensor is missing or broken, or of a type that torch has not.
        Misuse: The disk has no room for it.
        Cancelled: `job.cancel` said so.
    """

    def write(bundle: StateDict) -> Sequence[str]:
        for piece in bundle.pieces:
            if piece.dtype not in torch_zip.TYPES:
                what = f"torch has no type {piece.dtype}, which '{printable(piece.name)}' is of"
                raise BadModel(what, where=job.source)
        torch_zip.write(
            job.path,
            bundle.pieces,
            bundle.versions,
            bundle.metadata,
            lambda done: job.tell("writing tensors", done, len(bundle.pieces)),
        )
        return ()

    return tensors.convert(job, write, of_checkpoint)
