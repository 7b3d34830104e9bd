"""Bytes of an ONNX file that an analysis read: everything except the skipped weights."""

from __future__ import annotations

from bisect import bisect_left

from explorer.engine.graph.model import FileSpan, Model
from explorer.host.file_reads import FileRead, joined, read_of

_LARGE = 1 << 16
"""Smallest size of a weight that is recorded as skipped, in bytes."""


def model_reads(model: Model) -> tuple[FileRead, ...]:
    """The parts of its files that a model has read so far.

    Between the lengths that the reader walks by, the bytes of a weight were read only if somebody looked at
    them: `FileSpan.view` writes that down. Of files beside the model nothing else was read.
    """
    source = model.source
    assert source is not None
    looked = joined(source.looked)
    ends = [sum(span) for span in looked]
    passed = sorted(
        (payload.offset, payload.size)
        for tensor in model.graph.initializers.values()
        # an external tensor may lie anywhere, even within this file
        if not tensor.external
        and isinstance(payload := tensor.payload, FileSpan)
        and payload.source is source
        if payload.size >= _LARGE
    )
    spans = []
    at = 0
    for offset, size in passed:
        near = bisect_left(ends, offset + 1)
        if near == len(looked) or looked[near][0] >= offset + size:
            spans.append((at, offset - at))
            at = offset + size
    spans.append((at, source.size - at))
    beside = [
        read_of(path, external.size, external.looked) for path, external in sorted(model.externals.items())
    ]
    return read_of(model.path, source.size, spans), *beside
