"""TorchScript file: reads its modules, their classes and tensors, and the calls in its code.

A pickle contains the module tree, and text files contain the code of the classes. Both are read as data,
without torch. The code is not parsed, but searched with regular expressions for declarations and calls, which
takes milliseconds even for a large model. `torch_replay` parses the code for analysis.
"""

from __future__ import annotations

import re

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import bytes_text, many_text
from explorer.engine.formats.byte_ranges import TensorView, is_dense
from explorer.engine.formats.module_index import ModulePart, OperatorRow, list_outline_rows
from explorer.engine.formats.tensor_index import (
    StoredTensor,
    TensorIndex,
    count_stored,
    drop_duplicates,
    mark_overlaps,
)
from explorer.engine.formats.torch_files.pickle_machine import ReducedObject
from explorer.engine.formats.torch_files.tensors import BYTES, TensorSpec, read_strictly
from explorer.engine.formats.torch_files.zip_archive import ZipArchive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

DEPTH = 64
"""Maximum depth of nested modules."""
ARGUMENTS = 60
"""Maximum number of characters of a call's arguments that are shown."""
CALLS = 256
"""Maximum number of calls of a module that are listed."""

_CLASS = re.compile(r"^class ([^\s(:]{1,512}+)\(?([A-Za-z]{0,32})\)?:", re.MULTILINE)
_NAMES = re.compile(r"^  __(parameters|buffers)__ = \[([^\n]*)\]", re.MULTILINE)
_NAME = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_CONSTANT = re.compile(r"^  (\w{1,128}+) : Final\[[^\n=]{1,256}\] = ([^\n]{1,256}+)$", re.MULTILINE)
_METHOD = re.compile(r"^  def (\w{1,128}+)\(", re.MULTILINE)
_CALL = re.compile(
    r"(?<![\w.])(?:(?:torch|ops)\.([A-Za-z_][\w.]{0,128}+)\(([^\n]*+)"
    r"|= __torch__\.((?:[\w]{1,128}+\.){1,16}+[a-z_]\w{0,128}+)$)",
    re.MULTILINE,
)
_ARGUMENT = re.compile(r"(\w{1,128}+): ([^\n,]{1,256}?)(?=,\n|, |\) ->|\)\s*:)")


def clean_class_name(qualname: str) -> str:
    """Returns the name of a class without the parts that TorchScript adds: 'torch.nn.modules.conv.Conv2d'."""
    parts = qualname.split(".")
    unmangled = [part for part in parts[1:] if not part.startswith("___torch_mangle_")]
    return ".".join(unmangled) or parts[-1]


class _ScriptClass:
    """A class in the code of the file.

    Args:
        base: Name of the base class, such as 'Module' or 'NamedTuple'.
        text: Code of the class body.

    Attributes:
        base: Name of the base class.
        parameters: Names of the attributes that are parameters.
        buffers: Names of the attributes that are buffers.
        constants: Values of constant attributes, by name.
        calls: Operators and functions that the methods call.
        arguments: (name, type) of each argument of `forward`, without `self`.
    """

    __slots__ = ("arguments", "base", "buffers", "calls", "constants", "parameters")

    def __init__(self, base: str, text: str) -> None:
        self.base = base
        names_by_kind = {kind: frozenset(_NAME.findall(names)) for kind, names in _NAMES.findall(text)}
        self.parameters = names_by_kind.get("parameters", frozenset())
        self.buffers = names_by_kind.get("buffers", frozenset())
        self.constants = {name: _parse_literal(value) for name, value in _CONSTANT.findall(text)}
        self.calls = list(_list_calls(text))
        self.arguments = _list_argument_types(text)


def _parse_literal(text: str) -> Any:
    """Returns the value of a constant in the code, or its text if it is not a plain value."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        pass
    return text.strip("'\"")


def _list_calls(text: str) -> Iterator[OperatorRow]:
    """Yields the calls in the methods of a class, in order.

    Consecutive calls of one operator become one row with the arguments of the first call.
    """
    start = _METHOD.search(text)
    if start is None:
        return
    last: OperatorRow | None = None
    for match in _CALL.finditer(text, start.start()):
        operator, arguments, function = match.groups()
        kind = f"torch.{operator}" if operator else function
        if kind.startswith("torch.prim.") or (operator and kind in _TRIVIAL):
            continue
        argument_text = (arguments or "")[:ARGUMENTS]
        if last is not None and last.kind == kind:
            last.calls += 1
            continue
        if last is not None:
            yield last
        last = OperatorRow(kind, line=f"({argument_text}" if argument_text else "")
    if last is not None:
        yield last


_SIZES_AND_CONDITIONS = "dim|size|len|eq|ne|lt|gt|le|ge|__is__|__isnot__|__not__|__contains__|__getitem__"
_TEXT_AND_CASTS = "format|warn|append|str|int|bool|float"
_TRIVIAL = frozenset(f"torch.{name}" for name in f"{_SIZES_AND_CONDITIONS}|{_TEXT_AND_CASTS}".split("|"))
"""Calls that are not listed. They compute sizes, conditions and texts, and every scripted layer has many."""


def _list_argument_types(text: str) -> list[tuple[str, str]]:
    """Returns the (name, type) of each argument of `forward`, without `self`."""
    start = text.find("  def forward(")
    if start < 0:
        return []
    signature = text[start : text.find(":\n    ", start + 14) + 1][:8192]
    # the first argument is the module itself, under any name
    return _ARGUMENT.findall(signature)[1:]


class _Code:
    """The classes in the code of an archive; each code file is searched when first needed.

    Attributes:
        classes: Classes by name, for each Python module searched so far.
    """

    def __init__(self, archive: ZipArchive) -> None:
        self.archive = archive
        self.classes: dict[str, dict[str, _ScriptClass]] = {}

    def find_class(self, qualname: str) -> _ScriptClass | None:
        """Returns the class with this qualified name, or None if the archive has no code for it."""
        module, _, name = qualname.rpartition(".")
        if module not in self.classes:
            self.classes[module] = self._read(f"code/{module.replace('.', '/')}.py")
        return self.classes[module].get(name)

    def find_class_text(self, qualname: str) -> str:
        """Finds the code of a class as TorchScript wrote it, from its `class` line on; '' if none."""
        module, _, name = qualname.rpartition(".")
        entry = f"code/{module.replace('.', '/')}.py"
        text = self.archive.decode_text(entry) if entry in self.archive else ""
        starts = list(_CLASS.finditer(text))
        ends = [*(match.start() for match in starts[1:]), len(text)][: len(starts)]
        bodies = (text[m.start() : end] for m, end in zip(starts, ends, strict=True) if m[1] == name)
        return next(bodies, "").rstrip()

    def _read(self, entry: str) -> dict[str, _ScriptClass]:
        if entry not in self.archive:
            return {}
        text = self.archive.decode_text(entry)
        starts = list(_CLASS.finditer(text))
        ends = [*(match.start() for match in starts[1:]), len(text)][: len(starts)]
        return {
            match[1]: _ScriptClass(match[2], text[match.end() : end])
            for match, end in zip(starts, ends, strict=True)
        }


@record
class ScriptDescription:
    """Description of a TorchScript file.

    Attributes:
        contents: Stored tensors, facts and notes.
        parts: Modules in pre-order.
        strides: Strides of each tensor that is not contiguous, in elements, by name.
        notes: Note on each tensor, by name.
        inputs: (name, type, shape) of each input. Only traced models contain the shapes.
    """

    contents: TensorIndex = field(init=False)
    parts: list[ModulePart] = field(default_factory=list)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    inputs: list[tuple[str, str | None, tuple[int | str | None, ...] | None]] = field(default_factory=list)


class _Reader:
    """Collects modules, tensors and inputs of one file.

    Args:
        archive: Archive of the file.
        find_offsets: Whether to find the file offset of each tensor.

    Attributes:
        code: Classes in the code.
        description: Result.
        tensors: Tensors in the order of reading.
        first: First name of each stored tensor, by identity.
        views: Tensors as views of their storages, by name.
    """

    def __init__(self, archive: ZipArchive, find_offsets: bool) -> None:
        self.archive = archive
        self.find_offsets = find_offsets
        self.code = _Code(archive)
        self.description = ScriptDescription()
        self.tensors: list[StoredTensor] = []
        self.first: dict[Any, str] = {}
        self.views: dict[str, TensorView] = {}

    def read_modules(self, root: ReducedObject) -> None:
        """Reads the modules in pre-order; a module that occurs several times is listed once."""
        stack: list[tuple[str, ReducedObject, int]] = [("", root, 0)]
        visited: set[int] = set()
        while stack:
            path, value, depth = stack.pop()
            if id(value) in visited:
                continue
            visited.add(id(value))
            if depth > DEPTH:
                raise BadModel(f"its modules are nested deeper than {DEPTH} levels", where=self.archive.path)
            script_class = self.code.find_class(value.qualname)
            state: Mapping[Any, Any] = value.state if isinstance(value.state, dict) else {}
            children = [(str(k), v) for k, v in state.items() if self.is_module(v)]
            qualname = clean_class_name(value.qualname)
            part = ModulePart(
                path, qualname.rpartition(".")[2], depth, has_modules=bool(children), qualname=qualname
            )
            part.settings = _list_settings(script_class, state)
            part.operators = script_class.calls[:CALLS] if script_class is not None else []
            prefix = f"{path}." if path else ""
            for key, child in state.items():
                if isinstance(child, TensorSpec):
                    is_parameter = script_class is not None and key in script_class.parameters
                    tensor = self.record_tensor(
                        f"{prefix}{key}", child, "data", child.requires_grad if is_parameter else False
                    )
                    (part.parameters if is_parameter else part.buffers).append(tensor)
            self.description.parts.append(part)
            child_depth = depth + (1 if path else 0)
            stack += [(f"{prefix}{key}", child, child_depth) for key, child in reversed(children)]

    def is_module(self, value: Any) -> bool:
        if not isinstance(value, ReducedObject):
            return False
        script_class = self.code.find_class(value.qualname)
        return script_class is not None and script_class.base == "Module"

    def read_constants(self) -> int:
        """Reads the tensors among the constants of the code; a frozen model stores its weights there.

        Returns:
            The number of these tensors.
        """
        if "constants.pkl" not in self.archive:
            return 0
        constants = read_strictly(self.archive.read("constants.pkl"), self.archive.path)
        is_frozen = not any(part.parameters for part in self.description.parts)
        root, count = self.description.parts[0], 0
        for index, constant in enumerate(constants if isinstance(constants, (tuple, list)) else ()):
            if not isinstance(constant, TensorSpec):
                continue
            count += 1
            is_weight = is_frozen and constant.dtype.startswith(("float", "bfloat"))
            tensor = self.record_tensor(f"CONSTANTS_c{index}", constant, "constants", False)
            (root.parameters if is_weight else root.buffers).append(tensor)
        return count

    def record_tensor(self, name: str, spec: TensorSpec, folder: str, trained: bool | None) -> StoredTensor:
        """Records one tensor; `folder` is the folder of its storage in the archive."""
        entry, width = f"{folder}/{spec.storage.key}", BYTES.get(spec.dtype, 0)
        storage_bytes = spec.storage.elements * BYTES.get(spec.storage.dtype, 0)
        if self.archive.size_of(entry) < storage_bytes:
            raise BadModel(f"'{entry}' holds fewer bytes than its tensor", where=self.archive.path)
        unread = "" if width else f"{spec.dtype} is an unknown type"
        if self.archive.entries[entry].method:
            unread = unread or "it is compressed in the file"
        if spec.elements > spec.storage.elements:
            unread = unread or "its elements overlap"
        offset = 0
        if self.find_offsets and not unread:
            offset = self.archive.start_of(entry) + spec.offset * width
        identity = (folder, spec.storage.key, spec.offset, spec.elements) if spec.elements else None
        if identity is not None and not is_dense(spec.shape, spec.stride):
            identity = *identity[:3], hash((spec.shape, spec.stride))
        if width:
            span = entry, spec.offset * width, width, spec.shape, spec.stride, spec.elements * width
            self.views[name] = TensorView(*span)
        if identity is not None:
            first = self.first.setdefault(identity, name)
            if first != name:
                self.description.notes[name] = f"tied to {first}"
        if not spec.is_contiguous:
            self.description.strides[name] = spec.stride
            self.description.notes[name] = f"strides {spec.stride}"
        nbytes = min(spec.elements, spec.storage.elements) * width
        path = self.archive.path
        tensor = StoredTensor(name, spec.dtype, spec.shape, nbytes, path, offset, identity, trained, unread)
        self.tensors.append(tensor)
        return tensor

    def read_inputs(self, root: ReducedObject) -> None:
        """Reads the inputs of `forward`, with their shapes if the model was traced."""
        script_class = self.code.find_class(root.qualname)
        traced: Any = None
        if "traced_inputs.pkl" in self.archive:
            traced = read_strictly(self.archive.read("traced_inputs.pkl"), self.archive.path)
        traced_inputs = traced.get("forward") if isinstance(traced, dict) else None
        specs = traced_inputs if isinstance(traced_inputs, (list, tuple)) else ()
        for index, (name, declared) in enumerate(script_class.arguments if script_class is not None else ()):
            spec = specs[index] if index < len(specs) else None
            if isinstance(spec, TensorSpec):
                self.description.inputs.append((name, spec.dtype, spec.shape))
            else:
                self.description.inputs.append((name, declared, None))


def _list_settings(script_class: _ScriptClass | None, state: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the constructor settings of a module, from its attributes and the constants in its code."""
    settings = dict(script_class.constants) if script_class is not None else {}
    for key, value in state.items():
        if isinstance(key, str) and not key.startswith("_") and key != "training":
            is_plain = isinstance(value, (bool, int, float, str))
            is_short = isinstance(value, (list, tuple)) and len(value) <= 16
            if is_plain or (is_short and all(isinstance(v, (bool, int, float)) for v in value)):
                settings[key] = value[:200] if isinstance(value, str) else value
    # sort, because constants in the code have no order
    return {
        key: settings[key]
        for key in (*filter(settings.__contains__, _FIRST), *sorted(settings.keys() - _FIRST.keys()))
    }


_FIRST = dict.fromkeys((
    "in_channels", "out_channels", "in_features", "out_features", "num_features", "num_embeddings",
    "embedding_dim", "normalized_shape", "kernel_size", "stride", "padding",
))  # fmt: skip
"""The most important settings, in the order of torch's constructors."""


def read_script(path: str, why: str, *, find_offsets: bool = True) -> ScriptDescription:
    """Reads the description of a TorchScript file.

    Args:
        path: Path of the file.
        why: Why the MACs are unknown without torch; messages and the answer contain this text.
        find_offsets: Whether to find the file offset of each tensor, which reads the header of each entry.

    Raises:
        BadModel: The file is broken, or is not a TorchScript file.
    """
    archive = ZipArchive(path)
    root = read_strictly(archive.read("data.pkl"), path)
    reader = _Reader(archive, find_offsets)
    if not reader.is_module(root):
        raise BadModel("it holds no TorchScript module", where=path)
    reader.read_modules(root)
    constants = reader.read_constants()
    mark_overlaps(reader.tensors, reader.views)
    reader.read_inputs(root)
    description = reader.description
    size = sum(tensor.nbytes for tensor in drop_duplicates(reader.tensors))
    code = [name for name in archive.names() if name.startswith("code/") and name.endswith(".py")]
    version = archive.decode_text("version").strip() if "version" in archive else ""
    description.contents = TensorIndex(
        "torchscript",
        path,
        reader.tensors,
        (path,),
        archive.size,
        facts=(
            ("form", "traced" if "traced_inputs.pkl" in archive else "scripted"),
            ("class", clean_class_name(root.qualname)),
            ("modules", f"{len(description.parts):,}"),
            ("tensors", f"{len(reader.tensors):,}, {bytes_text(size)}"),
            *([("constants of the code", many_text(constants, "tensor"))] if constants else []),
            ("code", f"{many_text(len(code), 'file')} of text, read and not run"),
            *([("archive version", version[:32])] if version else []),
        ),
        kinds={part.path: part.kind for part in description.parts},
        why=why,
    )
    return description


# -- the outline


def outline(source: str) -> Outline:
    """Returns the outline of a TorchScript file: inputs, then modules with their tensors."""
    description = read_script(source, "", find_offsets=False)
    contents = description.contents
    params = count_stored(tensor for part in description.parts for tensor in part.parameters)[0]
    return Outline(
        contents.format, source, contents.file_bytes, contents.facts, _list_rows(description), params
    )


def show_code(source: str, module: str) -> Outline:
    """Returns the TorchScript code of one module, as text: nothing in the file runs.

    Args:
        source: Path of the file.
        module: Path of the module, such as 'features.0'. '' is the whole model.

    Returns:
        An outline without rows, with the facts `module`, `class` and `code`.

    Raises:
        BadModel: The file is broken, or is not a TorchScript file.
        Misuse: The model has no module with this path.
    """
    archive = ZipArchive(source)
    reader = _Reader(archive, find_offsets=False)
    target = read_strictly(archive.read("data.pkl"), source)
    if not reader.is_module(target):
        raise BadModel("it holds no TorchScript module", where=source)
    parent_names: list[str] = []
    for name in module.split(".") if module else ():
        state = target.state if isinstance(target.state, dict) else {}
        children = {str(key): child for key, child in state.items() if reader.is_module(child)}
        if name not in children:
            prefix = "".join(f"{part}." for part in parent_names)
            child_paths = [f"{prefix}{child}" for child in children]
            hint = suggest_name(module, child_paths) or f"explorer outline {source} lists the modules"
            raise Misuse("the model has no such module", where=f"--layer {module}", hint=hint)
        target = children[name]
        parent_names.append(name)
    facts = (
        ("module", module or "(model)"),
        ("class", clean_class_name(target.qualname)),
        ("code", reader.code.find_class_text(target.qualname)),
    )
    return Outline("torchscript", source, archive.size, facts, iter(()))


def _list_rows(description: ScriptDescription) -> Iterator[OutlineRow]:
    for name, dtype, shape in description.inputs:
        yield OutlineRow(name, "input", dtype or "", shape)
    yield from list_outline_rows(description.parts, description.notes)
