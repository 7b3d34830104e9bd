"""Byte ranges of an ONNX file that an analysis read: everything except the skipped weights."""

from __future__ import annotations

from bisect import bisect_left

from explorer.engine.graph.model import FileSpan, Model
from explorer.host.file_reads import FileRead, create_record, merge_spans

_MIN_SKIPPED_BYTES = 1 << 16
"""Smallest size of a weight that is recorded as skipped, in bytes."""


def list_model_reads(model: Model) -> tuple[FileRead, ...]:
    """Returns the byte ranges that have been read so far from a model's files.

    The reader skips the weights. `FileSpan.view` records those that were read later. From files of external
    data, only these recorded ranges were read.
    """
    source = model.source
    assert source is not None
    viewed = merge_spans(source.spans_read)
    ends = [sum(span) for span in viewed]
    skipped = sorted(
        (payload.offset, payload.size)
        for tensor in model.graph.initializers.values()
        # an external tensor may point into this file, at bytes that were read
        if not tensor.external
        and isinstance(payload := tensor.payload, FileSpan)
        and payload.source is source
        if payload.size >= _MIN_SKIPPED_BYTES
    )
    spans = []
    start = 0
    for offset, size in skipped:
        view_index = bisect_left(ends, offset + 1)
        if view_index == len(viewed) or viewed[view_index][0] >= offset + size:
            spans.append((start, offset - start))
            start = offset + size
    spans.append((start, source.size - start))
    external_reads = [
        create_record(path, external.size, external.spans_read)
        for path, external in sorted(model.externals.items())
    ]
    return create_record(model.path, source.size, spans), *external_reads
