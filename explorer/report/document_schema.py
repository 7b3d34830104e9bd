"""JSON Schemas (2020-12) of the documents that `--json` prints, made by msgspec from their types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from explorer.report.document_types import ABOUT, DOCUMENTS, FORMS, OPEN, OPTIONAL, SOURCES, Fields, record

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NOT_FINITE = {"enum": ["nan", "inf", "-inf"]}


def list_forms(verb: str) -> dict[str, Fields]:
    """Return the keys of all documents of a verb by circumstance; '' means the usual document."""
    return {"": DOCUMENTS[verb], **FORMS.get(verb, {})}


def build_schema(verb: str, *, closed: bool = False) -> Schema:
    """Return the JSON Schema of a verb's document.

    Args:
        verb: Verb with the option `--json`.
        closed: Whether the schema forbids other keys. The contract allows new keys, so that the published
            schemas are open.

    Raises:
        KeyError: The verb has no documents.
    """
    schemas, definitions = build_components([verb])
    parts = list(schemas[verb].values())
    body = {**parts[0]} if len(parts) == 1 else {"anyOf": parts}
    body.pop("title", None)
    return {
        "$schema": DIALECT,
        "title": f"explorer {verb} --json",
        **_add_checks(body, closed),
        "$defs": {name: _add_checks(part, closed) for name, part in definitions.items()},
    }


def build_components(verbs: Iterable[str]) -> tuple[dict[str, dict[str, Schema]], dict[str, Schema]]:
    """Return the schemas of the documents by verb and circumstance, and the definitions that they share."""
    names = {f"{verb} {form}": (verb, form) for verb in verbs for form in list_forms(verb)}
    document_types = [record("", list_forms(verb)[form], name) for name, (verb, form) in names.items()]
    references, definitions = msgspec.json.schema_components(document_types, ref_template="#/$defs/{name}")
    _remove_omitted(definitions)
    for definition in definitions.values():
        _describe(definition, {})
    schemas: dict[str, dict[str, Schema]] = {verb: {} for verb in verbs}
    for (verb, form), reference in zip(names.values(), references, strict=True):
        document = definitions.pop(reference["$ref"].rpartition("/")[2])
        source = SOURCES.get(f"{verb} {form}".strip())
        meanings = split_docstring(source.__doc__ or "")[1] if source is not None else {}
        _describe(document, ABOUT | meanings)
        document["title"] = f"explorer {verb} {form}".strip()
        schemas[verb][form] = document
    return schemas, dict(sorted(definitions.items()))


def _describe(part: Schema, meanings: Mapping[str, str]) -> None:
    """Add a description to each key of a record, from `meanings` or from the record's docstring."""
    summary, attributes = split_docstring(part.pop("description", ""))
    if summary:
        part["description"] = summary
    properties = part.get("properties", {})
    for key, text in {**meanings, **attributes}.items():
        if key in properties:
            properties[key] = {**properties[key], "description": text}


def _remove_omitted(definitions: dict[str, Schema], kind: type = msgspec.Struct) -> None:
    """Remove the fields that JSON omits (`NOT_IN_JSON`) from the definitions of facts."""
    for name in getattr(kind, "NOT_IN_JSON", ()):
        definitions.get(kind.__name__, {}).get("properties", {}).pop(name, None)
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        _remove_omitted(definitions, subclass)


def _add_checks(part: Any, closed: bool) -> Any:
    """Return a schema with its required keys, and with the words for numbers that are not finite.

    Defaults are left out. `closed` forbids other keys, except in the records of `OPEN`.
    """
    if isinstance(part, list):
        return [_add_checks(inner, closed) for inner in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "number":
        return {"anyOf": [part, _NOT_FINITE]}
    inside = {key: _add_checks(value, closed) for key, value in part.items() if key != "default"}
    if part.get("type") != "object" or not isinstance(part.get("properties"), dict):
        return inside
    required = [key for key in part["properties"] if key not in OPTIONAL]
    forbids_others = closed and part.get("title") not in OPEN
    return {**inside, "required": required, **({"additionalProperties": False} if forbids_others else {})}


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and the meanings of its attributes, in words of JSON."""
    text = inspect.cleandoc(docstring)
    for python, name in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{python}\b", name, text)
    about, _, attributes = text.partition("Attributes:")
    entries = re.findall(
        r"^ {4}(\w[\w, \n]*?): (.*?)(?=^ {4}\w|\Z)", f"{attributes}\n", re.MULTILINE | re.DOTALL
    )
    meanings: dict[str, str] = {}
    for names, meaning in entries:
        meanings.update(dict.fromkeys(re.split(r",\s*", names), " ".join(meaning.split())))
    return " ".join(about.split()), meanings
