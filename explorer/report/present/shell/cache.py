"""Text output of `explorer cache`: the stored analyses of models."""

from __future__ import annotations

from explorer.host.cache_folder import CacheUsage
from explorer.report.blocks import Block, Fields, Line, Paragraph, Span
from explorer.report.present.figures import bytes_field, count_field


def cache(fact: CacheUsage) -> list[Block]:
    """Return the answer of `explorer cache`."""
    return [
        Line((Span(fact.folder, "strong"), Span("   analyses of models that were opened before", "quiet"))),
        Line(),
        Fields(
            (
                count_field("Files", fact.files),
                bytes_field("Together", fact.bytes),
                bytes_field("At most", fact.most_bytes, remark="the least recently used goes first"),
            )
        ),
        Line(),
        Paragraph("--clear removes them; --no-cache, or EXPLORER_NO_CACHE=1, leaves them alone.", "quiet"),
    ]
