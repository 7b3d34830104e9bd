"""Line numbers of keys in a TOML file, for errors: Python's TOML reader does not report them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")


def find_line(text: str, table: Sequence[tuple[str, int]], key: str = "") -> str:
    """Finds the line of a key, or of the header of its table, in a TOML file with one entry on each line.

    Args:
        text: Content of the file.
        table: (name, index) of each nested table, from the outermost in. The index counts the tables of the
            same name in the same enclosing table. Empty for the top of the file.
        key: Key in the table, or '' for the header.

    Returns:
        The line as ':7', or '' if the key is not on a line of its own.
    """
    names = [
        _normalize_table_name(".".join(name for name, _ in table[: depth + 1])) for depth in range(len(table))
    ]
    counts = [-1] * len(table)
    indices = [index for _, index in table]
    is_inside = not table
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header:
            name = _normalize_table_name(header[2])
            if name in names:
                depth = names.index(name)
                counts[depth] += 1
                counts[depth + 1 :] = [-1] * (len(counts) - depth - 1)
            is_inside = bool(table) and name == names[-1] and counts == indices
            if is_inside and not key:
                return f":{number}"
        elif is_inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return f":{number}"
    return ""


def _normalize_table_name(name: str) -> str:
    """Returns the name of a table without spaces and quotes."""
    return re.sub(r"[\s\"']", "", name)
