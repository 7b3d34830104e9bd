"""Bytes of an ONNX file that an analysis read: all but the weights that it passed over."""

from __future__ import annotations

from bisect import bisect_left

from explorer.engine.graph.model import FileSpan, Model
from explorer.host.file_reads import FileRead, joined, read_of

_LARGE = 1 << 16
"""Bytes of a weight from which on it is worth being told apart from what lies around it."""


def model_reads(model: Model) -> tuple[FileRead, ...]:
    """What was read so far of the files of a model that was read from one.

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
        # what says that it lies elsewhere may lie anywhere, also in the midst of this file
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
