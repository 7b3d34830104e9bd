"""Byte ranges of an ONNX file that an analysis read: everything except the skipped weights."""

from __future__ import annotations

from bisect import bisect_left

from explorer.engine.graph.model import FileSpan, Model
from explorer.host.file_reads import FileRead, create_record, merge_spans

_MIN_SKIPPED_BYTES = 1 << 16
"""Smallest size of a weight that is recorded as skipped, in bytes."""


def list_model_reads(model: Model) -> tuple[FileRead, ...]:
    """Returns the byte ranges of its files that a model has read so far.

    The reader skips the bytes of each weight by its length. `FileSpan.view` records the weights that were
    viewed later. Files of external data count only with the recorded ranges.
    """
    source = model.source
    assert source is not None
    viewed = merge_spans(source.spans_read)
    ends = [sum(span) for span in viewed]
    skipped = sorted(
        (payload.offset, payload.size)
        for tensor in model.graph.initializers.values()
        # the bytes of an external tensor may be anywhere, even in this file
        if not tensor.external
        and isinstance(payload := tensor.payload, FileSpan)
        and payload.source is source
        if payload.size >= _MIN_SKIPPED_BYTES
    )
    spans = []
    start = 0
    for offset, size in skipped:
        nearest_end = bisect_left(ends, offset + 1)
        if nearest_end == len(viewed) or viewed[nearest_end][0] >= offset + size:
            spans.append((start, offset - start))
            start = offset + size
    spans.append((start, source.size - start))
    external_reads = [
        create_record(path, external.size, external.spans_read)
        for path, external in sorted(model.externals.items())
    ]
    return create_record(model.path, source.size, spans), *external_reads
