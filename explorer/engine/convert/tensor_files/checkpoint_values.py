"""Values of a checkpoint other than tensors, as text for the metadata of a converted file.

Each leaf of a checkpoint has one of three outcomes. A tensor is copied. A value becomes metadata: a string
unchanged, an object as its class and contents in JSON, and other values as JSON. A value without a text form
is reported by name. No value is dropped silently.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from explorer.base.units import many_text
from explorer.engine.formats.tensor_index import format_names
from explorer.engine.formats.torch_files.checkpoint import read_array_type
from explorer.engine.formats.torch_files.checkpoint_modules import Checkpoint, holds_data, is_array
from explorer.engine.formats.torch_files.pickle_machine import ByteSpan, Global, PickledDict, ReducedObject
from explorer.engine.formats.torch_files.tensors import Device, TensorSpec, WrappedTensor

METADATA = "metadata"
"""Attribute of a state_dict that stores safetensors metadata."""

_MAX_CHARACTERS = 1 << 24
"""Maximum number of characters of one value as text."""
_MAX_VALUES = 1 << 20
"""Maximum number of values in one JSON text."""
_MAX_DEPTH = 32
"""Maximum number of containers around a value."""

_PLAIN_CLASSES = ("torch.nn.parameter.Parameter", "torch.Tensor", "torch._tensor.Tensor", "")
"""Classes of tensors without further attributes."""

_STRUCT_CODES: Mapping[str, str] = {
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
}
"""Codes of the struct module for types of numpy scalars."""


class CheckpointValues(NamedTuple):
    """Values of a checkpoint other than tensors.

    Attributes:
        metadata: Text by key.
        notes: Notes about values that were skipped on purpose.
        unknown: Names of values without a text form, with the reason.
    """

    metadata: dict[str, str]
    notes: list[str]
    unknown: list[tuple[str, str]]


def collect_values(root: Any, checkpoint: Checkpoint, prefix: str) -> CheckpointValues:
    """Collects the values of a checkpoint other than tensors, as text by path.

    Args:
        root: Saved object.
        checkpoint: Tensors of the saved object.
        prefix: Key of the model's state_dict, which is removed from names; '' removes no key.
    """
    values = CheckpointValues({}, [], [])
    skipped_keys = {name.partition(".")[0] for name in checkpoint.roles}
    for path, value in _iterate_values(root, skipped_keys):
        name = path.removeprefix(f"{prefix}.") if prefix else path
        text = _convert_to_text(value)
        if text is None:
            values.unknown.append((path, _explain_exclusion(value)))
        elif text:
            values.metadata.setdefault(name, text)
    dropped_attributes: dict[str, int] = {}
    paths_by_class: dict[str, list[str]] = {}
    for path, tensor in checkpoint.wrapped.items():
        if path.partition(".")[0] in skipped_keys:
            continue
        attributes = {key: entry for key, entry in tensor.inner.items() if not _is_tensor(entry)}
        if tensor.kind in _PLAIN_CLASSES and len(attributes) + ("" in tensor.inner) == len(tensor.inner):
            dropped_attributes |= dict.fromkeys(attributes, 0)
            continue
        paths_by_class.setdefault(tensor.kind or "an unnamed class", []).append(path)
        description = _describe_wrapper(tensor, attributes)
        if description is None:
            values.unknown.append((path, f"attributes of {tensor.kind} cannot be written as text"))
        else:
            values.metadata.setdefault(path.removeprefix(f"{prefix}.") if prefix else path, description)
    for kind, paths in paths_by_class.items():
        count = many_text(len(paths), "tensor")
        values.notes.append(
            f"{count} of {kind} written as the tensors that the file stores, with attributes in the metadata:"
            f" {format_names(paths)}; the code that loads them must rebuild them"
        )
    if dropped_attributes:
        values.notes.append(
            f"not written: attributes of parameters: {format_names(sorted(dropped_attributes))}"
        )
    if checkpoint.pickled_modules:
        kinds = format_names(sorted({kind for _, kind in checkpoint.pickled_modules}))
        values.notes.append(f"not written: the code and the settings of {kinds}")
    if checkpoint.renamed:
        count = many_text(len(checkpoint.renamed), "tensor")
        values.notes.append(
            f"{count} renamed, because another tensor has the name or the name is too long:"
            f" {format_names(checkpoint.renamed)}"
        )
    return values


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (TensorSpec, WrappedTensor)) or is_array(value)


def _iterate_values(root: Any, skipped_keys: set[str]) -> Iterator[tuple[str, Any]]:
    """Yields the path and value of each outermost part that contains no tensor.

    An object that contains tensors yields its class. A second reference to a container with tensors yields
    the first path. Modules, and top-level parts in `skipped_keys`, yield nothing.
    """
    stack: list[tuple[str, Any, int]] = [("", root, 0)]
    first_paths: dict[int, str] = {}
    while stack:
        path, value, depth = stack.pop()
        if _is_tensor(value) or (path and depth == 1 and path in skipped_keys and holds_data(value)):
            continue
        if not holds_data(value):
            if path:
                yield path, value
            continue
        if id(value) in first_paths:
            yield path, {"same object": first_paths[id(value)]}
            continue
        first_paths[id(value)] = path
        if isinstance(value, PickledDict) and isinstance(value.state, dict) and path:
            for key, entry in value.state.items():
                if key != METADATA and not (depth == 1 and key == "_metadata"):
                    yield f"{path}.{key}", entry
        children = list(_list_children(value))
        if isinstance(value, ReducedObject):
            if _is_module(value):
                continue
            yield path or "class", {"class": value.qualname}
        stack.extend(
            (f"{path}.{key}" if path else key, entry, depth + 1) for key, entry in reversed(children)
        )


def _is_module(value: ReducedObject) -> bool:
    return isinstance(value.state, dict) and isinstance(value.state.get("_modules"), dict)


def _list_children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value of each direct part of a container or object; nothing for a leaf."""
    if isinstance(value, dict):
        yield from ((str(key), entry) for key, entry in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), entry) for index, entry in enumerate(value))
    elif isinstance(value, ReducedObject):
        for group in (value.state, value.args, value.items):
            yield from _list_children(group)
        yield from ((str(key), entry) for key, entry in value.pairs)


def _explain_exclusion(value: Any) -> str:
    kind = value.qualname if isinstance(value, ReducedObject) else type(value).__name__
    return f"{kind or 'an object'} cannot be written as text"


def _convert_to_text(value: Any) -> str | None:
    """Returns a string unchanged and any other value as JSON.

    Returns None for a value without a JSON form, and for a text of more than `_MAX_CHARACTERS`.
    """
    if isinstance(value, str):
        return value if len(value) <= _MAX_CHARACTERS else None
    description = _convert_to_json(value, _convert_to_json_form)
    return None if description is _NO_JSON else _encode_json(description)


def _encode_json(value: Any) -> str | None:
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if len(text) <= _MAX_CHARACTERS else None


def _describe_wrapper(tensor: WrappedTensor, attributes: Mapping[str, Any]) -> str | None:
    """Returns the class, type, shape, inner tensors and attributes of a wrapper as JSON, or None."""
    description = _convert_to_json(dict(attributes), _convert_to_json_form)
    if description is _NO_JSON:
        return None
    inner = [key for key, entry in tensor.inner.items() if key and _is_tensor(entry)]
    shape = None if tensor.shape is None else list(tensor.shape)
    facts = {"class": tensor.kind, "dtype": tensor.dtype, "shape": shape, "inner": inner}
    return _encode_json({**facts, "attributes": description})


# -- values as JSON

_NO_JSON = object()
"""Result for a value that has no JSON form."""


def _convert_to_json(value: Any, convert_other: Callable[[Any, Callable[[Any], Any]], Any]) -> Any:
    """Returns the value in JSON types, or `_NO_JSON` if the value has no JSON form or is too large.

    Args:
        value: Value from a pickle.
        convert_other: Converts a value that JSON lacks. Its second argument is a function that converts inner
            values.
    """
    budget, depth = _MAX_VALUES, 0

    def convert_inner(value: Any) -> Any:
        nonlocal budget, depth
        budget -= 1
        depth += 1
        if budget < 0 or depth > _MAX_DEPTH:
            raise ValueError("too much")
        try:
            if value is None or isinstance(value, (str, bool, int, float)):
                return value
            if isinstance(value, dict) and all(isinstance(key, str) for key in value):
                return {key: convert_inner(entry) for key, entry in value.items()}
            if isinstance(value, (list, tuple)):
                return [convert_inner(entry) for entry in value]
            return convert_other(value, convert_inner)
        finally:
            depth -= 1

    try:
        return convert_inner(value)
    except ValueError:
        return _NO_JSON


def convert_to_plain(value: Any) -> Any:
    """Returns a value of numbers, text, lists and dictionaries, or None for any other or too large value."""

    def refuse(value: Any, convert: Callable[[Any], Any]) -> Any:
        raise ValueError("something else")

    plain_value = _convert_to_json(value, refuse)
    return None if plain_value is _NO_JSON else plain_value


def _convert_to_json_form(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns the JSON form of a value that JSON lacks.

    Raises:
        ValueError: The value has no JSON form.
    """
    if isinstance(value, dict):
        return {"dict": [[convert(key), convert(entry)] for key, entry in value.items()]}
    if isinstance(value, Global):
        return {"name": value.qualname}
    if isinstance(value, Device):
        return value.kind if value.index is None else f"{value.kind}:{value.index}"
    if isinstance(value, ByteSpan):
        if value.size > _MAX_CHARACTERS:
            raise ValueError("too much")
        return {"bytes": bytes(value.read(value.size)).hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if _is_tensor(value):
        return {"tensor": "beside"}
    if isinstance(value, ReducedObject):
        number = _read_numpy_scalar(value)
        return _convert_object_to_json(value, convert) if number is None else number
    raise ValueError("something else")


def _convert_object_to_json(value: ReducedObject, convert: Callable[[Any], Any]) -> dict[str, Any]:
    kind = {"class": value.qualname} if value.qualname else {"class of": convert(value.kind)}
    parts: Sequence[tuple[str, Any]] = (
        ("args", value.args),
        ("state", value.state),
        ("items", value.items),
        ("pairs", value.pairs),
    )
    return {**kind, **{key: convert(part) for key, part in parts if part}}


def _read_numpy_scalar(value: ReducedObject) -> float | int | bool | None:
    """Returns the number in a pickled numpy scalar, or None for any other object."""
    if not value.qualname.endswith("multiarray.scalar") or len(value.args) != 2:
        return None
    description, raw = value.args
    if not isinstance(description, ReducedObject) or not isinstance(raw, bytes):
        return None
    dtype, is_big_endian = read_array_type(description)
    code = _STRUCT_CODES.get(dtype)
    if code is None or struct.calcsize(code) != len(raw):
        return None
    number: float | int | bool = struct.unpack(f"{'>' if is_big_endian else '<'}{code}", raw)[0]
    return number
