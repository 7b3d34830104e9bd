"""The words that the JSON schemas of the tests are written in."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 0}
FLAG: Schema = {"type": "boolean"}
MEASURED: Schema = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["nan", "inf", "-inf"]}]}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def listed(items: Schema, **how: Any) -> Schema:
    return {"type": "array", "items": items, **how}


def document_of(optional: tuple[str, ...] = (), **properties: Schema) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}
