"""Tensor conversion for all targets: collect the tensors, check the room, write, and compare the bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from explorer.base.units import bytes_text, many_text, printable, shape_text
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files.bundle import StateDict, check_room, copying, gather
from explorer.facts.conversion import StoredEvidence


def convert(
    job: ConversionJob, write: Callable[[StateDict], Sequence[str]], reread: Callable[[str], StateDict]
) -> ConversionResult:
    """Converts the tensors of a job's model.

    Args:
        job: The conversion.
        write: Writes them to `job.path`; returns notes.
        reread: Reads the written file.

    Raises:
        BadModel: A tensor is missing or broken, or of a type that the target does not support.
        Misuse: The disk has too little room.
        Cancelled: `job.cancel` said so.
    """
    job.tell("reading the header")
    bundle = gather(job)
    check_room(job, bundle.pieces)
    notes = write(bundle)
    evidence = compare(job, bundle, reread(job.path)) if job.verify else None
    return ConversionResult(
        how=copying(bundle.pieces),
        stored=evidence,
        notes=(*bundle.notes, *notes),
        unknown=tuple(bundle.unknown),
    )


def compare(job: ConversionJob, source: StateDict, result: StateDict) -> StoredEvidence:
    """Compares the tensors and metadata of a source with those of the written file.

    Args:
        job: Receives the progress.
        source: The state dict that was to be written.
        result: The state dict read from the written file.

    Raises:
        BadModel: A file became shorter in the meantime.
        Cancelled: `job.cancel` said so.
    """
    started = time.perf_counter()
    before = source.pieces
    written = {piece.name: piece for piece in result.pieces}
    differing: list[tuple[str, str]] = []
    digest, nbytes = hashlib.sha256(), 0
    tied: dict[Hashable, Hashable] = {}
    for at, piece in enumerate(sorted(before, key=lambda p: p.name)):
        counterpart = written.pop(piece.name, None)
        if counterpart is None:
            differing.append((piece.name, "it is not in the result"))
            continue
        if (piece.dtype, piece.shape) != (counterpart.dtype, counterpart.shape):
            texts = [f"{p.dtype} {shape_text(p.shape)}" for p in (piece, counterpart)]
            differing.append((piece.name, f"{texts[0]} became {texts[1]}"))
            continue
        if piece.same is not None and counterpart.same is not None:
            if tied.get(piece.same) == counterpart.same:
                continue
            tied[piece.same] = counterpart.same
        job.tell("comparing byte for byte", at, len(before))
        for old, new in _paired_pieces(piece.read(), counterpart.read()):
            digest.update(old)
            nbytes += old.nbytes
            if old.nbytes != new.nbytes or not np.array_equal(
                np.frombuffer(old, "u1"), np.frombuffer(new, "u1")
            ):
                differing.append((piece.name, "its bytes differ"))
                break
            job.tell("comparing byte for byte", at, len(before))
    differing += [(name, "it is not in the source") for name in sorted(written)]
    differing += [(name, "it is not in the result") for name in _lost_metadata(source, result)]
    differing += [(name, f"it is not understood: {why}") for name, why in source.unknown]
    count = f"{many_text(len(before), 'tensor')}, {bytes_text(nbytes)}"
    verdict = f"equal byte for byte: {count}"
    if source.left:
        verdict += f"; not compared: {many_text(source.left, 'tensor')} beside the model"
    if differing:
        name, why = differing[0]
        verdict = f"different: {len(differing):,} of {count}: '{printable(name)}': {why}"
    return StoredEvidence(
        tensors=len(before),
        nbytes=nbytes,
        differing=tuple(differing),
        sha256="" if differing else digest.hexdigest(),
        passed=not differing,
        verdict=verdict,
        seconds=time.perf_counter() - started,
    )


def _lost_metadata(source: StateDict, result: StateDict) -> list[str]:
    """Keys of the source's metadata that are missing or different in the written file."""
    lost = [f"metadata {key}" for key, text in source.metadata.items() if result.metadata.get(key) != text]
    return lost if source.versions == result.versions else [*lost, "_metadata"]


def _paired_pieces(
    a: Iterator[memoryview], b: Iterator[memoryview]
) -> Iterator[tuple[memoryview, memoryview]]:
    """Two byte streams in pieces of equal length; a longer stream's surplus comes with an empty piece."""
    rest_a, rest_b = memoryview(b""), memoryview(b"")
    while True:
        rest_a = rest_a or next(a, memoryview(b""))
        rest_b = rest_b or next(b, memoryview(b""))
        size = min(rest_a.nbytes, rest_b.nbytes)
        if not size:
            break
        yield rest_a[:size], rest_b[:size]
        rest_a, rest_b = rest_a[size:], rest_b[size:]
    if rest_a.nbytes or rest_b.nbytes:
        yield rest_a, rest_b
