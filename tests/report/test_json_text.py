"""JSON of very many records is written another way than that of few, and reads the same to the byte."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from explorer.report.json_text import Records, encode_document

_NAMES = (
    "a/b",
    "",
    'quo"te\\',
    "tab\tand\nline",
    "\x01\x1f",
    "\x7f",
    "größe",
    "层",
    "\U0001f600",
    "\ud800",
    "</a>",
)
_NUMBERS = (0, -1, None, True, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70))
_ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {},
    {"alpha": 1e16, "beta": 1e-05, "gamma": -0.0, "delta": 0.1},
    {"pads": [], "of": {}, "nested": [[1, [2.5]], {"k": "é"}], "\x7f": "\ud800"},
)


def test_a_record_reads_as_json_writes_it() -> None:
    for name, number, attributes in product(_NAMES, _NUMBERS, _ATTRIBUTES):
        tensor = {"name": name, "dtype": None, "shape": [1, "batch", None, number]}
        record = {
            "name": name,
            "macs": number,
            "attributes": attributes,
            "inputs": [tensor, tensor],
            "outputs": [],
        }
        rows = [record, record]
        model = {"source": name, "share": 1e-07, "notes": []}
        document = {"model": model, "layers": rows, "behind": [number]}
        written = "".join(encode_document({**document, "layers": Records(dict, rows)}))
        assert written == json.dumps(document, indent=2) + "\n"


def test_no_record_is_an_empty_list() -> None:
    document: dict[str, Any] = {"layers": Records(dict, ())}
    assert "".join(encode_document(document)) == json.dumps({"layers": []}, indent=2) + "\n"
