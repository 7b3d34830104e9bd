"""Steps of an edit: options of the command line in their order, or a file of steps.

    [[step]]
    rename = "conv1"                  # a node or a value
    to = "stem"

    [[step]]
    set = "layer1.0.conv1"            # a node, and its attribute
    attribute = "strides"
    to = [2, 2]                       # "" removes the attribute

    [[step]]
    delete = "dropout"

    [[step]]
    replace_op = "Relu"               # all nodes of an operator, or one node
    to = "LeakyRelu"

    [[step]]
    rename_weights = "learned_%d"     # all stored tensors, numbered from 0

Steps of the file come before typed steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from explorer.base.errors import Misuse
from explorer.facts.split.edit import EDITS, EditStep
from explorer.settings.option_values import read_text
from explorer.settings.parse import write_option_words
from explorer.settings.tables import Readers, SettingsFile, read_content

_KINDS: tuple[str, ...] = tuple(EDITS)
_SET = re.compile(r"(?P<name>.+?)\.(?P<attribute>[^\W\d]\w*)=(?P<to>.*)", re.DOTALL)
_WITHOUT_TO = ("delete", "rename_weights")
"""Kinds of steps without the key `to`, because they have no new value."""


def read_steps(path: str | None, typed: Iterable[tuple[str, str]]) -> tuple[EditStep, ...]:
    """Reads the steps of a file and the typed steps after them.

    Args:
        path: Path of the file, or None.
        typed: Options with their values.

    Raises:
        Misuse: A step is invalid, or there are no steps.
    """
    steps = [] if path is None else list(_parse_file(read_content(path), path))
    steps += [_parse_words(flag, value) for flag, value in typed]
    if not steps:
        raise Misuse(
            "no edit is named",
            where="edit",
            hint="add --rename, --set, --delete, --replace-op or --rename-weights",
        )
    return tuple(steps)


def write_step_words(steps: Sequence[EditStep]) -> list[str]:
    """Writes steps as command-line words."""
    words: list[str] = []
    for step in steps:
        target = f"{step.name}.{step.attribute}" if step.kind == "set" else step.name
        value = target if step.kind in _WITHOUT_TO else f"{target}={step.to}"
        words += write_option_words(f"--{step.kind.replace('_', '-')}", value)
    return words


def _parse_words(flag: str, value: str) -> EditStep:
    """Parses the step of a typed option, such as '--rename' with 'conv1=stem'."""
    kind: Any = flag.removeprefix("--").replace("-", "_")
    hint = f"write {flag} {EDITS[kind].metavar}"
    if kind == "set":
        if (match := _SET.fullmatch(value)) is None:
            raise Misuse(f"'{value}' names no attribute and value", where=flag, hint=hint)
        return EditStep(kind, match["name"], match["to"], match["attribute"])
    if kind in _WITHOUT_TO:
        name, to = value, ""
    else:
        name, _, to = value.rpartition("=")  # the old name may contain '=', a new name cannot
    if not name or (not to and kind not in _WITHOUT_TO):
        raise Misuse(f"'{value}' cannot be read", where=flag, hint=hint)
    return EditStep(kind, name, to)


def _parse_file(toml: bytes, path: str) -> Iterable[EditStep]:
    """Parses the steps of a TOML file, in order."""
    file = SettingsFile(toml, path)
    for rule in file.read_rules(("step",), file.content.get("step", []), _READERS, _KINDS):
        where = rule["origin"]
        step_kinds = [kind for kind in _KINDS if kind in rule]
        if len(step_kinds) > 1:
            raise Misuse(f"a step does one thing, not {' and '.join(step_kinds)}", where=where)
        kind: Any = step_kinds[0]
        required_keys = {**dict.fromkeys(_WITHOUT_TO, ()), "set": ("attribute", "to")}.get(kind, ("to",))
        keys = [key for key in ("attribute", "to") if key in rule]
        if list(required_keys) != keys:
            extra_keys = [key for key in keys if key not in required_keys]
            missing_keys = [key for key in required_keys if key not in keys]
            fault = f"needs '{missing_keys[0]}'" if missing_keys else f"takes no '{extra_keys[0]}'"
            raise Misuse(f"the step '{kind}' {fault}", where=where)
        yield EditStep(kind, rule[kind], rule.get("to", ""), rule.get("attribute", ""))


def _convert_value(value: Any, where: str) -> str:
    """Converts a TOML value to the text that a user would type."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(member, (int, float, str)) for member in value):
        return json.dumps(value)
    raise Misuse("this is not a value of an attribute", where=where, hint="give a number, a text or a list")


_READERS: Readers = {**dict.fromkeys(_KINDS, read_text), "attribute": read_text, "to": _convert_value}
