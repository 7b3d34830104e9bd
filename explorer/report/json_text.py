"""JSON encoder: a document indented, in pieces; very many records of one list without a second copy of them.

Python's own encoder takes thirty microseconds for a record of a kilobyte when it indents, msgspec's three.
Both write the same but for characters beyond ASCII and for floats, so what may hold these goes the long way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

# escapes keep control characters of a model's names off the terminal, and need no encoding
_ENCODER = json.JSONEncoder(indent=2, allow_nan=False, ensure_ascii=True)


class Records(list[dict[str, Any]]):
    """Very many records without a float but in `attributes`, each made when it is written.

    It is a list, because `json` takes no other sequence.

    Args:
        make: Makes a record.
        rows: Of what.
    """

    def __init__(self, make: Callable[[Any], dict[str, Any]], rows: Sequence[Any]) -> None:
        super().__init__()
        self.make = make
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.make, self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def pieces(document: dict[str, Any]) -> Iterator[str]:
    """The text of a document, as `json` would write it with an indent of 2."""
    if not any(isinstance(value, Records) for value in document.values()):
        yield from _ENCODER.iterencode(document)
        yield "\n"
        return
    before = "{"
    for key, value in document.items():
        if isinstance(value, Records) and len(value):
            yield f"{before}\n  {_ENCODER.encode(key)}: ["
            for at, record in enumerate(value):
                yield f"{',' if at else ''}\n    {_record(record)}"
            yield "\n  ]"
        else:
            yield f"{before}{_ENCODER.encode({key: value})[1:-2]}"
        before = ","
    yield "\n}\n"


def _record(fields: dict[str, Any]) -> str:
    """A record that stands in a list of the document."""
    record = fields
    try:
        if attributes := record.get("attributes"):
            record = {**record, "attributes": msgspec.Raw(json.dumps(attributes).encode())}
        plain = msgspec.json.encode(record)
        text = msgspec.json.format(plain, indent=2).decode("ascii")
    except (UnicodeError, msgspec.MsgspecError):  # not ASCII, or larger than it takes a number for
        text = "\x7f"
    if "\x7f" in text:
        text = _ENCODER.encode(fields)
    return text.replace("\n", "\n    ")
