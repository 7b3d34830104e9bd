"""Tensor conversion for all targets: collects the tensors, writes them, and compares the bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from explorer.base.units import bytes_text, many_text, printable, shape_text
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files.bundle import StateDict, check_disk_space, collect, describe_copy
from explorer.facts.conversion import StoredEvidence


def convert_tensors(
    job: ConversionJob, write: Callable[[StateDict], Sequence[str]], reread: Callable[[str], StateDict]
) -> ConversionResult:
    """Converts the tensors of a job's model.

    Args:
        job: The conversion.
        write: Function that writes the tensors to `job.path` and returns notes.
        reread: Function that reads the written file.

    Raises:
        BadModel: A tensor is missing or broken, or has a type that the target does not support.
        Misuse: The disk has too little free space.
        Cancelled: The user canceled (`job.cancel`).
    """
    job.report_progress("reading the header")
    bundle = collect(job)
    check_disk_space(job, bundle.tensors)
    notes = write(bundle)
    evidence = compare(job, bundle, reread(job.path)) if job.verify else None
    return ConversionResult(
        how=describe_copy(bundle.tensors),
        stored=evidence,
        notes=(*bundle.notes, *notes),
        unknown=tuple(bundle.unknown),
    )


def compare(job: ConversionJob, source: StateDict, result: StateDict) -> StoredEvidence:
    """Compares the tensors and metadata of a source with those of the written file.

    Args:
        job: Conversion that receives the progress.
        source: State dict of the source.
        result: State dict read from the written file.

    Raises:
        BadModel: A file became shorter after its header was read.
        Cancelled: The user canceled (`job.cancel`).
    """
    started = time.perf_counter()
    source_tensors = source.tensors
    result_tensors = {tensor.name: tensor for tensor in result.tensors}
    differing: list[tuple[str, str]] = []
    digest, nbytes = hashlib.sha256(), 0
    counterpart_keys: dict[Hashable, Hashable] = {}
    for index, tensor in enumerate(sorted(source_tensors, key=lambda tensor: tensor.name)):
        counterpart = result_tensors.pop(tensor.name, None)
        if counterpart is None:
            differing.append((tensor.name, "it is not in the result"))
            continue
        if (tensor.dtype, tensor.shape) != (counterpart.dtype, counterpart.shape):
            old_type, new_type = (f"{each.dtype} {shape_text(each.shape)}" for each in (tensor, counterpart))
            differing.append((tensor.name, f"{old_type} became {new_type}"))
            continue
        if tensor.shared_key is not None and counterpart.shared_key is not None:
            if counterpart_keys.get(tensor.shared_key) == counterpart.shared_key:
                continue
            counterpart_keys[tensor.shared_key] = counterpart.shared_key
        job.report_progress("comparing byte for byte", index, len(source_tensors))
        for old, new in _iterate_chunk_pairs(tensor.read(), counterpart.read()):
            digest.update(old)
            nbytes += old.nbytes
            if old.nbytes != new.nbytes or not np.array_equal(
                np.frombuffer(old, "u1"), np.frombuffer(new, "u1")
            ):
                differing.append((tensor.name, "its bytes differ"))
                break
            job.report_progress("comparing byte for byte", index, len(source_tensors))
    differing += [(name, "it is not in the source") for name in sorted(result_tensors)]
    differing += [(name, "it is not in the result") for name in _find_differing_metadata(source, result)]
    differing += [(name, f"it is not understood: {why}") for name, why in source.unknown]
    count = f"{many_text(len(source_tensors), 'tensor')}, {bytes_text(nbytes)}"
    verdict = f"equal byte for byte: {count}"
    if source.skipped_count:
        verdict += f"; not compared: {many_text(source.skipped_count, 'tensor')} outside the model"
    if differing:
        name, why = differing[0]
        verdict = f"different: {len(differing):,} of {count}: '{printable(name)}': {why}"
    return StoredEvidence(
        tensors=len(source_tensors),
        nbytes=nbytes,
        differing=tuple(differing),
        sha256="" if differing else digest.hexdigest(),
        passed=not differing,
        verdict=verdict,
        seconds=time.perf_counter() - started,
    )


def _find_differing_metadata(source: StateDict, result: StateDict) -> list[str]:
    """Returns keys of the source's metadata that are missing or different in the written file."""
    lost = [f"metadata {key}" for key, text in source.metadata.items() if result.metadata.get(key) != text]
    return lost if source.versions == result.versions else [*lost, "_metadata"]


def _iterate_chunk_pairs(
    a: Iterator[memoryview], b: Iterator[memoryview]
) -> Iterator[tuple[memoryview, memoryview]]:
    """Yields chunks of two byte streams in pairs of equal length.

    If one stream is longer, its next chunk comes last, paired with an empty chunk, and the iteration ends.
    """
    chunk_a, chunk_b = memoryview(b""), memoryview(b"")
    while True:
        chunk_a = chunk_a or next(a, memoryview(b""))
        chunk_b = chunk_b or next(b, memoryview(b""))
        size = min(chunk_a.nbytes, chunk_b.nbytes)
        if not size:
            break
        yield chunk_a[:size], chunk_b[:size]
        chunk_a, chunk_b = chunk_a[size:], chunk_b[size:]
    if chunk_a.nbytes or chunk_b.nbytes:
        yield chunk_a, chunk_b
