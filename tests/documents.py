"""The JSON page of the manual, and the golden file of the contract, made from the program's schemas.

`python -m tests.documents` writes the golden file anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from explorer.report.document_schema import Schema, build_components, build_schema
from explorer.report.document_types import DOCUMENTS, INFO, OPTIONAL, Fields

GOLDEN = Path(__file__).parent / "report" / "json_contract.txt"


def schema(verb: str) -> Schema:
    """Return the schema of a verb's document that forbids other keys."""
    return build_schema(verb, closed=True)


def golden() -> str:
    """Return the contract as text: a paragraph for each document and record, a line for each key."""
    documents, definitions = build_components(DOCUMENTS)
    parts = {part["title"]: part for forms in documents.values() for part in forms.values()}
    return "\n".join(
        line for name, part in {**parts, **definitions}.items() for line in _contract(name, part)
    )


def _contract(name: str, part: Schema) -> list[str]:
    keys = [
        f"    {key}{'?' * (key in OPTIONAL)}: {_type(kind)}"
        for key, kind in part.get("properties", {}).items()
    ]
    return [name, *(keys or [f"    {_type(part)}"]), ""]


def _type(part: Schema) -> str:
    """A type in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(one) for one in part["anyOf"]))
    if "enum" in part:
        return ", ".join(f"`{json_text(one)}`" for one in part["enum"])
    kind = part.get("type")
    if kind == "array":
        inside = part.get("items") or next(iter(part.get("prefixItems", ())), {})
        several = f"{len(part['prefixItems'])} " if "prefixItems" in part else ""
        return f"list of {several}{_type(inside)}"
    if kind == "object":
        inside = part.get("additionalProperties")
        return f"object of {_type(inside)}" if isinstance(inside, dict) else "object"
    return {
        "integer": "integer",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "null": "null",
    }.get(str(kind), "anything")


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _table(part: Schema, leave: Fields) -> list[str]:
    if "properties" not in part:
        return [f"A {_type(part)}.", ""]
    rows = ["| key | type | meaning |", "|---|---|---|"]
    for key, kind in part["properties"].items():
        if key not in leave:
            meaning = re.sub(r"([|*])", r"\\\1", kind.get("description", ""))
            rows.append(f"| `{key}`{' ?' * (key in OPTIONAL)} | {_type(kind)} | {meaning} |")
    return [*rows, ""]


def tables() -> str:
    """Return every document, then every record in them, as Markdown."""
    lines: list[str] = []
    documents, definitions = build_components(DOCUMENTS)
    for verb, forms in documents.items():
        lines += [f"## `explorer {verb}`", ""]
        for form, part in forms.items():
            adds = verb != "info" and INFO.keys() <= part["properties"].keys()
            lines += [f"{form.capitalize()}:", ""] if form else []
            lines += ["All of [info](#explorer-info), and", ""] if adds else []
            lines += _table(part, INFO if adds else {})
    lines += ["## Records", ""]
    for name, part in definitions.items():
        about = part.get("description", "")
        lines += [f"### {name}", "", *([about, ""] if about else []), *_table(part, {})]
    return "\n".join(lines).strip()


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8")
