"""Help index: what the `?` help finds by typed words.

It contains the keys of the screen, the commands and options of the command line, the terms of the glossary
and the headings of the manual. The commands and options are read from the tables of the manual's pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from explorer.manual import page, titles
from explorer.report.glossary import GLOSSARY
from explorer.tui.text.keys import Key

KINDS = ("key", "option", "term", "manual", "command")
"""Kinds of entries, in the order in which equally good results are listed."""
_TITLE_ONLY = ("json", "changes")
"""Pages of which only the title is searched. Their headings are names of fields and versions."""
_MARKUP = re.compile(r"[|`*]+|-{3,}|!?\[|\]\([^)]*\)")
_ROW = re.compile(r"\|\s*((?:\\\||[^|])+?)\s*\|\s*((?:\\\||[^|])+?)\s*\|(.*)")


class HelpEntry(Struct, frozen=True):
    """An entry of the help.

    Attributes:
        kind: One of `KINDS`.
        title: Name of the key, option, term, heading or command.
        text: Description.
        sign: Keys to press, as shown; '' for other kinds than 'key'.
        topic: Page of the manual that Enter opens; '' for the entry's own text.
        group: Screen or pane of a key; '' for other kinds.
        key: Key that Enter runs; None for other kinds.
    """

    kind: str
    title: str
    text: str
    sign: str = ""
    topic: str = ""
    group: str = ""
    key: Key | None = None


def build_index(keys: Iterable[Key]) -> tuple[HelpEntry, ...]:
    """Build the index from all keys, the glossary and the pages of the manual."""
    return (
        *(HelpEntry("key", key.title, key.tip, key.shown, group=key.group, key=key) for key in keys),
        *_list_rows("option", "options"),
        *(HelpEntry("term", term.word, term.meaning) for term in GLOSSARY),
        *_list_headings(),
        *_list_rows("command", "verbs"),
    )


def _list_rows(kind: str, topic: str) -> Iterator[HelpEntry]:
    """Yield an entry for each table row of a page whose first cell is a code span: that cell and the next."""
    for line in page(topic).splitlines():
        row = _ROW.match(line)
        if row is not None and row[1].startswith("`"):
            title, text = (cell.replace("`", "").replace("\\|", "|") for cell in row.groups()[:2])
            yield HelpEntry(kind, title, text)


def _list_headings() -> Iterator[HelpEntry]:
    """Yield an entry for each heading of the manual, with the text below it."""
    for topic, title in titles().items():
        lines = page(topic).splitlines()
        if topic in _TITLE_ONLY:
            lines = lines[: next((i for i, line in enumerate(lines) if line.startswith("##")), None)]
        is_code = False
        heading, paragraph = "", list[str]()
        for line in [*lines, "# "]:
            is_fence = line.startswith("```")
            is_code ^= is_fence
            if is_code or is_fence or not line.startswith("#"):
                paragraph += [] if is_code or is_fence else [line]
                continue
            if heading:
                text = " ".join(_MARKUP.sub(" ", " ".join(paragraph)).split())
                yield HelpEntry(
                    "manual", heading, text if heading == title else f"{title}: {text}", topic=topic
                )
            heading, paragraph = line.lstrip("# ").replace("`", ""), []


def find_entries(index: Sequence[HelpEntry], typed: str, usable: Iterable[Key] = ()) -> list[HelpEntry]:
    """Return the entries that contain all typed words, the best first.

    An entry whose title contains the words precedes one whose description does. Keys of the current screen
    (`usable`) precede others.

    Args:
        index: All entries.
        typed: Words as typed.
        usable: Keys that the current screen has.
    """
    words = typed.lower().split()
    usable_keys = {id(key) for key in usable}
    ranked: list[tuple[tuple[int, bool, int, int], HelpEntry]] = []
    for index_place, entry in enumerate(index):
        title = entry.title.lower()
        text = f"{entry.kind} {entry.sign} {entry.group} {title} {entry.text}".lower()
        if not all(word in text for word in words):
            continue
        in_title = all(word in title for word in words)
        starts_title = in_title and bool(words) and re.match(rf"\W*{re.escape(words[0])}", title) is not None
        is_other = entry.key is None or id(entry.key) not in usable_keys
        ranked.append(((2 - in_title - starts_title, is_other, KINDS.index(entry.kind), index_place), entry))
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]
