"""Output of `explorer formats` as text and as JSON."""

from __future__ import annotations

from explorer.report.outline_words import columns, fitted, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from explorer.session.headers import KnownFormats

HEADINGS = ("format", "what", "recognized by", "what is known of it", "analysis", "convert to", "needs")


_RECOGNITION = (
    "Explorer recognizes a file by its content. Its name matters only in the error of a broken file."
)


def format_cells(format: Any, converts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a format for each of `HEADINGS`."""
    return (
        format.name,
        format.about,
        format.recognized_by,
        format.shows,
        "-" if format.is_collection else "MACs, memory" if format.is_analyzed else "sizes, values",
        ", ".join(converts) or "-",
        f"explorer-nn[{format.needs}]" if format.needs else "-",
    )


def compose_text(formats: KnownFormats) -> Iterator[str]:
    """Yield a paragraph per format. A table of these sentences would be too wide for a terminal."""
    terminal_width = width()
    for format, converts in formats:
        name, about, *texts = format_cells(format, converts)
        yield from fitted(f"{name}: {about}", terminal_width)
        lines = [
            (f"  {key}", text) for key, text in zip(HEADINGS[2:], texts, strict=True) if text not in ("", "-")
        ]
        for line in columns(lines):
            yield from fitted(line, terminal_width)
        yield "\n"
    yield from fitted(_RECOGNITION, terminal_width)


def write_json(formats: KnownFormats, head: dict[str, Any]) -> dict[str, Any]:
    """Return the document of `explorer formats`; `head` contains the keys that start every document."""
    return {
        **head,
        "formats": [
            {
                "name": format.name,
                "about": format.about,
                "recognised_by": format.recognized_by,
                "shows": format.shows,
                "endings": list(format.endings),
                "analysed": format.is_analyzed,
                "outline": format.outline is not None,
                "converts_to": list(converts),
                "needs": format.needs or None,
            }
            for format, converts in formats
        ],
    }
