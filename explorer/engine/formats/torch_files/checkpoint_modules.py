"""Contents of a checkpoint: tensors of the model, modules if any were pickled, and other data.

A checkpoint may contain any object: a state_dict, a dictionary of model, optimizer and epoch, a module, or
modules in dictionaries. One depth-first traversal of the pickle's description handles all of them. A tensor
outside the model gets a role, such as 'optimizer state', and is not counted as a parameter.
"""

from __future__ import annotations

from math import prod

from explorer.base.errors import BadModel
from explorer.base.outline import Outline
from explorer.base.record import field, record
from explorer.base.units import bytes_text, many_text
from explorer.engine.formats.byte_ranges import TensorView, is_dense
from explorer.engine.formats.module_index import ModulePart, list_outline_rows
from explorer.engine.formats.tensor_index import (
    NO_GRAPH,
    CountRule,
    StoredTensor,
    TensorIndex,
    count_stored,
    format_names,
    mark_overlaps,
)
from explorer.engine.formats.torch_files.checkpoint import SavedFile, list_calls, read, read_array_type
from explorer.engine.formats.torch_files.pickle_machine import PLAIN, ByteSpan, Global, ReducedObject
from explorer.engine.formats.torch_files.tensors import (
    BYTES,
    UNREAD_BYTES,
    Device,
    StorageRef,
    TensorSpec,
    WrappedTensor,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

DEPTH = 64
"""Maximum depth of nested containers or modules."""
TIMES = 10_000
"""Maximum number of names of one tensor, and of repeated containers in a file."""
NAME = 512
"""Maximum length of a name, in characters. A longer name keeps its beginning and its end."""
MAX_LISTED_VALUES = 40
"""Maximum number of plain values that the facts list."""
MAX_TEXT_LENGTH = 200
"""Maximum length of a plain value as text, in characters."""

PICKLED = "the file holds a pickled module, whose code was not run"
"""Reason for unknown MACs of a pickled module."""

_OPTIMIZER = "optimizer state"
_COPY = "averaged copy"
_TRAINING = "training state"

ROLES = {
    **dict.fromkeys(("optimizer", "optimizers", "optimizer_state", "optimizer_states", "optim"), _OPTIMIZER),
    **dict.fromkeys(("optimizer_state_dict", "optim_state", "optimizer_g", "optimizer_d"), _OPTIMIZER),
    **dict.fromkeys(("ema", "model_ema", "ema_state_dict", "state_dict_ema", "ema_model"), _COPY),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedulers", "lr_scheduler_state_dict"), _TRAINING),
    **dict.fromkeys(("scaler", "grad_scaler", "amp", "rng_state", "rng", "cuda_rng_state"), _TRAINING),
    **dict.fromkeys(("random_state", "torch_rng_state", "rng_states", "callbacks", "loops"), _TRAINING),
}
"""Role of an entry of the outermost dictionary, by its key in lower case."""

_UNREAD = {
    "meta": "it is on the meta device",
    "conj": "its numbers are the complex conjugates of those that are stored",
    "neg": "its numbers are the negatives of those that are stored",
}
"""Reason why the values of a tensor cannot be read, by layout (see `TensorSpec`)."""


@record
class Checkpoint:
    """A parsed checkpoint.

    Attributes:
        contents: All tensors of the file, with facts and notes.
        parts: Modules and tensors in the order of the file.
        pickled_modules: (path, class) of each pickled module that is not part of another one.
        strides: Strides of each tensor that is not contiguous, in elements, by name.
        notes: Note on each tensor, by name.
        roles: Role of each tensor outside the model, by name.
        wrapped: Tensors that are stored as several inner tensors, by path.
        extra_data: (name, reason) of data in the file that belongs to no tensor.
        renamed: Names that differ from the path in the file, because the path is too long or not unique.
        is_big_endian: Whether the values are big-endian, which is not the byte order of this machine.
        form: Form of the file: 'zip', 'legacy' or 'pickle' (see `parse_checkpoint`).
    """

    contents: TensorIndex = field(init=False)
    parts: list[ModulePart] = field(default_factory=list)
    pickled_modules: list[tuple[str, str]] = field(default_factory=list)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    wrapped: dict[str, WrappedTensor] = field(default_factory=dict)
    extra_data: list[tuple[str, str]] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    is_big_endian: bool = False
    form: str = ""


class _ContentReader:
    """Collects modules, tensors and other values in one traversal of a pickle's description.

    Attributes:
        tensors: Tensors in the order of the file.
        name_uses: Number of uses of each tensor name.
        visited: Ids of visited containers and objects.
        first_names: First name of each stored tensor, by identity.
        tied_names: Names of tensors that are stored under an earlier name too.
        storages: Name of the first tensor and bytes of each storage, by key.
        bare_storages: Keys of storages that are values themselves, without a tensor.
        values: (path, text) of plain values.
        unlisted_count: Number of plain values beyond `MAX_LISTED_VALUES`.
        repeated_paths: Paths of containers that were visited before.
        name_counts: Number of names of each tensor object, by id.
        views: Tensors as views of their storages, by name.
    """

    def __init__(self, saved: SavedFile) -> None:
        self.saved = saved
        self.checkpoint = Checkpoint()
        self.checkpoint.is_big_endian = saved.is_big_endian
        self.checkpoint.form = saved.form
        self.tensors: list[StoredTensor] = []
        self.name_uses: dict[str, int] = {}
        self.visited: set[int] = set()
        self.first_names: dict[Any, str] = {}
        self.tied_names: list[str] = []
        self.storages: dict[str, tuple[str, int]] = {}
        self.bare_storages: set[str] = set()
        self.values: list[tuple[str, str]] = []
        self.unlisted_count = 0
        self.repeated_paths: list[str] = []
        self.name_counts: dict[int, int] = {}
        self.views: dict[str, TensorView] = {}

    def run(self) -> None:
        """Traverses the description depth-first, in order, without copying long lists."""
        stack = [iter([("", self.saved.root)])]
        # of each level: path; role; depth; whether its keys decide roles; whether it is an attribute of a
        # tensor, so that its tensors are not counted as parameters
        levels: list[tuple[str, str, int, bool, bool]] = [("", "", 0, True, False)]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                levels.pop()
                continue
            key, value = entry
            parent, role, depth, keys_give_roles, is_attribute = levels[-1]
            path = _join_path(parent, key)
            if keys_give_roles and not role:
                role = _find_role(parent, key, value)
            if isinstance(value, TensorSpec):
                self.add_tensor(path, value, role, depth, is_attribute)
            elif isinstance(value, WrappedTensor):
                self.check_names(value)
                members = self.add_wrapped(
                    path, value, role, self.find_unowned_list(role, depth), 0 if is_attribute else None
                )
                stack.append(iter(members))
                levels.append(("", role, depth, False, True))
            elif isinstance(value, StorageRef):
                self.bare_storages.add(value.key)
                self.checkpoint.extra_data.append((path or "storage", "a storage without a tensor"))
            elif isinstance(value, (*PLAIN, Global, Device, ByteSpan)):
                self.record_value(path, value)
            elif id(value) in self.visited and value:
                self.repeated_paths.append(path)
                self.check_count(len(self.repeated_paths))
            else:
                if len(stack) > DEPTH:
                    raise BadModel("it is nested deeper than any model", where=self.saved.source)
                self.visited.add(id(value))
                children = self.open_value(path, value, role, depth)
                if children is not None:
                    stack.append(iter(children))
                    # the names of a module's members do not decide roles
                    is_module = _is_module(value)
                    member_depth = depth + 1 if path and is_module else depth
                    levels.append((path, role, member_depth, keys_give_roles and not is_module, is_attribute))
        self.add_extra_storages()
        mark_overlaps(self.tensors, self.views)

    def add_extra_storages(self) -> None:
        """Records the storages of the pickle that belong to no tensor."""
        for key, (dtype, elements) in self.saved.storages.items():
            if key in self.storages or key in self.bare_storages:
                continue
            size = bytes_text(elements * BYTES.get(dtype, 1))
            self.checkpoint.extra_data.append((f"storage {key}", f"{size} of {dtype} without a tensor"))

    def open_value(self, path: str, value: Any, role: str, depth: int) -> Iterable[tuple[str, Any]] | None:
        """Visits a container, module or object.

        Returns:
            Its members by name, or None if nothing in it needs a visit.
        """
        if _is_module(value):
            return self.record_module(path, value, role, depth)
        if isinstance(value, ReducedObject) and self.record_array(path, value, role, depth):
            return None
        if not value or _has_only_values(value):
            self.record_value(path, value)
            return None
        return _list_members(value)

    def check_count(self, times: int) -> None:
        """Raises an error for a count that no model reaches but a few bytes of a pickle can."""
        if times > TIMES:
            raise BadModel(f"one of its objects has more than {TIMES:,} names", where=self.saved.source)

    def record_value(self, path: str, value: Any) -> None:
        """Records a value that is not a tensor."""
        if len(self.values) < MAX_LISTED_VALUES:
            text = _format_value(value)
            if path and text:
                self.values.append((path, text))
        else:
            self.unlisted_count += 1

    def make_unique(self, name: str) -> str:
        """Makes a tensor name unique by appending '#2', '#3' ... if it is in use."""
        times = self.name_uses.get(name, 0)
        self.name_uses[name] = times + 1
        return self.make_unique(f"{name}#{times + 1}") if times else name

    def check_names(self, value: object) -> None:
        """Counts a name of an object; raises an error for more names than a model gives an object."""
        times = self.name_counts[id(value)] = self.name_counts.get(id(value), 0) + 1
        self.check_count(times)

    def add_tensor(self, path: str, spec: TensorSpec, role: str, depth: int, is_attribute: bool) -> None:
        """Records a tensor outside modules."""
        self.check_names(spec)
        counted_elements = 0 if is_attribute else None
        self.find_unowned_list(role, depth).append(
            self.record_tensor(path or "tensor", spec, role, counted_elements=counted_elements)
        )

    def add_wrapped(
        self,
        path: str,
        value: WrappedTensor,
        role: str,
        inner_tensors: list[StoredTensor],
        counted_elements: int | None,
        trained: bool | None = None,
        depth: int = 0,
    ) -> list[tuple[str, Any]]:
        """Records a tensor that is stored as several inner tensors.

        Args:
            path: Name of the tensor.
            value: Description of the tensor in the file.
            role: Role of the tensor, or '' for the model.
            inner_tensors: List to which the inner tensors are added.
            counted_elements: Number of model elements to count, or None for the elements of its shape.
            trained: Whether the tensor is trained, or None if the module does not decide it.
            depth: Number of wrapped tensors that contain this one.

        Returns:
            (path, value) of its contents that are neither tensors nor plain values.
        """
        if depth > DEPTH:
            raise BadModel("it is nested deeper than any model", where=self.saved.source)
        self.checkpoint.wrapped.setdefault(path, value)
        if counted_elements is None and value.shape is not None:
            counted_elements = prod(value.shape)
        if trained is None and value.is_parameter:
            trained = value.requires_grad
        others = []
        for key, part in value.inner.items():
            name = _join_path(path, _shorten_key(key)) if key else path
            if isinstance(part, TensorSpec):
                inner_tensors.append(
                    self.record_tensor(
                        name or "tensor", part, role, trained, counted_elements=counted_elements
                    )
                )
                counted_elements = 0
            elif isinstance(part, WrappedTensor):
                others += self.add_wrapped(
                    name, part, role, inner_tensors, counted_elements, trained, depth + 1
                )
                counted_elements = 0
            elif not isinstance(part, (*PLAIN, Global, Device)):
                others.append((name, part))
        return others

    def find_unowned_list(self, role: str, depth: int) -> list[StoredTensor]:
        """Returns the list to which a tensor outside modules is added."""
        parts = self.checkpoint.parts
        if not parts or parts[-1].kind or parts[-1].role != role:
            parts.append(ModulePart("", depth=depth, role=role))
        return parts[-1].parameters

    def record_module(self, path: str, value: ReducedObject, role: str, depth: int) -> list[tuple[str, Any]]:
        """Records a pickled module and its tensors.

        Returns:
            (name, value) of the members that need a visit.
        """
        state: Mapping[Any, Any] = value.state
        children = [(_shorten_key(k), v) for k, v in state["_modules"].items() if v is not None]
        kind = value.kind.name.rpartition(".")[2] if isinstance(value.kind, Global) else "Module"
        last_path = self.checkpoint.pickled_modules[-1][0] if self.checkpoint.pickled_modules else None
        if last_path is None or (last_path and not path.startswith(f"{last_path}.")):
            self.checkpoint.pickled_modules.append((path, value.qualname))
        part = ModulePart(
            path,
            kind,
            depth,
            has_modules=bool(children),
            qualname=value.qualname,
            settings={str(k): _simplify_setting(v) for k, v in state.items() if _is_setting(k, v)},
            role=role,
        )
        self.checkpoint.parts.append(part)
        for table, tensors in (("_parameters", part.parameters), ("_buffers", part.buffers)):
            for key, entry in state[table].items() if isinstance(state.get(table), dict) else ():
                name = _join_path(path, _shorten_key(key))
                if isinstance(entry, TensorSpec):
                    trained = entry.requires_grad if table == "_parameters" else False
                    tensors.append(self.record_tensor(name, entry, role, trained))
                elif isinstance(entry, WrappedTensor):
                    trained = entry.requires_grad if table == "_parameters" else False
                    children += self.make_relative(
                        path, self.add_wrapped(name, entry, role, tensors, None, trained)
                    )
                elif entry is not None:
                    children.append((_shorten_key(key), entry))
        for key, entry in state.items():
            # a tensor in a plain attribute: torch does not move it with the model, but it is in the file
            name = _join_path(path, _shorten_key(key))
            if isinstance(entry, TensorSpec):
                part.buffers.append(self.record_tensor(name, entry, role, False))
            elif isinstance(entry, WrappedTensor):
                children += self.make_relative(
                    path, self.add_wrapped(name, entry, role, part.buffers, None, False)
                )
            elif key not in _TABLES and holds_data(entry):
                children.append((_shorten_key(key), entry))
        return children

    def make_relative(self, path: str, entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Makes the paths of entries relative to the module at `path`."""
        return [(name[len(path) + 1 :] if path else name, entry) for name, entry in entries]

    def record_tensor(
        self,
        name: str,
        spec: TensorSpec,
        role: str,
        trained: bool | None = None,
        *,
        counted_elements: int | None = None,
    ) -> StoredTensor:
        """Records one tensor of the file.

        Args:
            name: Path of the tensor in the file.
            spec: Description of the tensor.
            role: Role of the tensor, or '' for the model.
            trained: Whether the tensor is trained, or None to use its description.
            counted_elements: Number of model elements to count, or None to count by the shape.
        """
        stored_name, name = name, self.make_unique(name)
        if name != stored_name or len(name) > NAME:
            self.checkpoint.renamed.append(name)
        ref, width = spec.storage, BYTES.get(spec.dtype, 0)
        storage_bytes = ref.elements * BYTES.get(ref.dtype, 0)
        nbytes, identity, offset = 0, None, 0
        unread = _UNREAD.get(spec.layout, "" if width else f"{spec.dtype} is an unknown type")
        if spec.layout != "meta":
            start_of_storage = self.saved.find_offset(ref)
            self.storages.setdefault(ref.key, (name, storage_bytes))
            if start_of_storage is None:
                unread = unread or "it is compressed in the file"
            elif not unread:
                offset = start_of_storage + spec.offset * width
        if spec.layout != "meta":
            # a tensor whose elements overlap takes at most the bytes of its storage
            nbytes = min(spec.elements * (width or UNREAD_BYTES.get(spec.dtype, 1)), storage_bytes)
            if spec.elements * width > storage_bytes:
                unread = unread or "its elements overlap"
            if spec.elements:
                identity = ref.key, ref.start + spec.offset, spec.elements
                if spec.layout != "strided" or not is_dense(spec.shape, spec.stride):
                    identity = *identity[:2], hash((spec.shape, spec.stride, spec.layout))
                self.note_shared_storage(name, identity, spec)
        if self.saved.is_big_endian:
            unread = unread or "its byte order is not that of this machine"
        if spec.layout == "strided" and not spec.is_contiguous:
            self.checkpoint.strides[name] = spec.stride
        if role:
            self.checkpoint.roles[name] = role
        if spec.is_parameter and trained is None:
            trained = spec.requires_grad
        tensor = StoredTensor(
            name,
            spec.dtype,
            spec.shape,
            nbytes,
            self.saved.source,
            offset,
            identity,
            trained,
            unread,
            None if counted_elements is None else CountRule(counted_elements),
        )
        self.tensors.append(tensor)
        if identity is not None and counted_elements is None and width:
            start = ref.start * BYTES.get(ref.dtype, 1) + spec.offset * width
            span = ref.key, start, width, spec.shape, spec.stride, spec.elements * width
            self.views[name] = TensorView(*span)
        return tensor

    def note_shared_storage(self, name: str, identity: tuple[str, int, int], spec: TensorSpec) -> None:
        """Records a note if the tensor is tied to another one, shares a storage, or is not contiguous."""
        notes = []
        first = self.first_names.setdefault(identity, name)
        if first != name:
            notes.append(f"tied to {first}")
            self.tied_names.append(name)
        elif identity[0] in self.storages and self.storages[identity[0]][0] != name:
            notes.append(f"in the storage of {self.storages[identity[0]][0]}")
        if not spec.is_contiguous:
            notes.append(f"strides {spec.stride}")
        if notes:
            self.checkpoint.notes[name] = ", ".join(notes)

    def record_array(self, path: str, value: ReducedObject, role: str, depth: int) -> bool:
        """Records an object if it is a numpy array. Returns whether it is."""
        description = _decode_array(value)
        if description is None:
            return False
        dtype, is_big_endian, shape, is_fortran, raw = description
        offset, length = 0, raw.size if isinstance(raw, ByteSpan) else len(raw)
        if is_fortran:
            unread = "it is a numpy array in column-major order"
        elif is_big_endian:
            unread = "it is a numpy array of another byte order"
        elif not isinstance(raw, ByteSpan):
            unread = "it is a numpy array that the file stores as text"
        elif self.saved.base is None:
            unread = "it is a numpy array that is compressed in the file"
        else:
            offset = self.saved.base + raw.offset
            unread = "" if dtype in BYTES else f"{dtype} is an unknown type"
        name = self.make_unique(path or "array")
        if role:
            self.checkpoint.roles[name] = role
        tensor = StoredTensor(name, dtype, shape, length, self.saved.source, offset, None, None, unread)
        self.find_unowned_list(role, depth).append(tensor)
        self.tensors.append(tensor)
        return True


_TABLES = frozenset({
    "_modules", "_parameters", "_buffers", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
    "_forward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
})  # fmt: skip
"""Attributes that every module has: tables of its tensors, modules and hooks."""


def _decode_array(value: ReducedObject) -> tuple[str, bool, tuple[int, ...], Any, Any] | None:
    """Decodes the description of a numpy array.

    Returns:
        (element type, whether it is big-endian, shape, whether the order is Fortran's, bytes), or
        None for other objects and for arrays of objects.
    """
    if not value.qualname.endswith("multiarray._reconstruct"):
        return None
    state = value.state if isinstance(value.state, tuple) else ()
    if len(state) != 5 or not isinstance(state[1], tuple) or not isinstance(state[2], ReducedObject):
        return None
    shape, is_fortran, raw = state[1], state[3], state[4]
    dtype, is_big_endian = read_array_type(state[2])
    if any(type(n) is not int or not 0 <= n < 1 << 40 for n in shape) or len(shape) > 64:
        return None
    length = raw.size if isinstance(raw, ByteSpan) else len(raw) if isinstance(raw, bytes) else 0
    return (
        None
        if prod(shape) * BYTES.get(dtype, 0) != length
        else (dtype, is_big_endian, shape, is_fortran, raw)
    )


def is_array(value: Any) -> bool:
    """Whether an object is a numpy array of numbers."""
    return isinstance(value, ReducedObject) and _decode_array(value) is not None


def holds_data(value: Any, max_objects: int = 4096) -> bool:
    """Whether a value contains tensors, storages or arrays, or more than `max_objects` objects."""
    stack, visited = [value], set[int]()
    while stack:
        part = stack.pop()
        if isinstance(part, (TensorSpec, WrappedTensor, StorageRef)) or len(visited) > max_objects:
            return True
        if isinstance(part, (*PLAIN, Global, Device, ByteSpan)) or id(part) in visited:
            continue
        visited.add(id(part))
        if is_array(part):
            return True
        stack.extend(inner for _, inner in _list_members(part))
    return False


def _is_module(value: Any) -> bool:
    if not isinstance(value, ReducedObject) or not isinstance(value.state, dict):
        return False
    return isinstance(value.state.get("_modules"), dict) and isinstance(value.state.get("_parameters"), dict)


def _list_members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the members of a container or an object as pairs of name and value."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield _shorten_key(key), entry
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield str(index), entry
    elif isinstance(value, ReducedObject):
        for group in (value.state, value.args, value.items):
            if isinstance(group, (dict, list, tuple)):
                yield from _list_members(group)
        for key, entry in value.pairs:
            yield _shorten_key(key), entry


def _shorten_key(key: Any) -> str:
    """Returns a key as a name, shortened in the middle if it is too long."""
    text = key.qualname if isinstance(key, (ReducedObject, Global)) else str(key)
    return text if len(text) <= NAME else f"{text[: NAME // 2]}...{text[-NAME // 2 :]}"


def _join_path(parent: str, key: str) -> str:
    return _shorten_key(f"{parent}.{key}" if parent else key)


def _has_only_values(value: Any) -> bool:
    """Whether a list or an object contains only plain values."""
    if isinstance(value, dict):
        return False
    return all(isinstance(part, (*PLAIN, Global)) for _, part in _list_members(value))


def _find_role(path: str, key: str, value: Any) -> str:
    """Returns the role of a dictionary entry, or '' if it may belong to the model."""
    role = ROLES.get(key.lower(), "") if not path else ""
    if isinstance(value, WrappedTensor) or (isinstance(value, TensorSpec) and not _may_be_rng(key, value)):
        return ""  # a parameter may have any name
    if isinstance(value, dict) and "state" in value and "param_groups" in value:
        return _OPTIMIZER
    return role


def _may_be_rng(key: str, tensor: TensorSpec) -> bool:
    """Whether a tensor may be the state of a random number generator, which torch stores as bytes."""
    return "rng" in key and tensor.dtype == "uint8"


def _is_setting(key: Any, value: Any) -> bool:
    """Whether an attribute of a module is a constructor setting."""
    if not isinstance(key, str) or key.startswith("_") or key == "training":
        return False
    return isinstance(value, (*PLAIN, Global)) or (
        isinstance(value, (tuple, list)) and len(value) <= 16 and all(isinstance(v, PLAIN) for v in value)
    )


def _simplify_setting(value: Any) -> Any:
    if isinstance(value, Global):
        return value.qualname
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else value


def _format_value(value: Any) -> str:
    """Formats a value for the facts, or '' for a value that is not shown."""
    if isinstance(value, Global):
        return value.qualname
    if isinstance(value, ReducedObject):
        return f"an object of {value.qualname}" if value.qualname else ""
    if isinstance(value, (bytes, ByteSpan)):
        return f"{len(value) if isinstance(value, bytes) else value.size:,} bytes"
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(element, PLAIN) for element in value):
            return ""
        elements = ", ".join(_format_value(element) for element in value[:8])
        return f"[{elements}{', ...' if len(value) > 8 else ''}]"[:MAX_TEXT_LENGTH]
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of many digits"
    return "" if value is None or isinstance(value, (dict, Device)) else str(value)[:MAX_TEXT_LENGTH]


# -- the whole checkpoint

_FORMS = {
    "zip": "zip archive of torch.save",
    "legacy": "form of torch before 1.6, with a magic number",
    "pickle": "plain pickle",
}
"""Descriptions of the forms of a checkpoint, by `SavedFile.form`."""


def read_checkpoint(path: str, format: str) -> Checkpoint:
    """Reads and parses a file of torch.save; see `parse_checkpoint`."""
    return parse_checkpoint(read(path), format)


def parse_checkpoint(saved: SavedFile, format: str) -> Checkpoint:
    """Parses the contents of a checkpoint.

    Args:
        saved: Contents of the file, from `checkpoint.read`.
        format: Name of the format.

    Raises:
        BadModel: The file contradicts itself, or contains no tensors and no module.
    """
    reader = _ContentReader(saved)
    reader.run()
    parsed = reader.checkpoint
    if all(role == _COPY for role in (parsed.roles.get(t.name, "") for t in reader.tensors)):
        # a file with only an averaged copy: the copy is the model
        parsed.roles.clear()
        for part in parsed.parts:
            part.role = ""
    if not reader.tensors and not parsed.pickled_modules:
        code_names = [_shorten_key(name) for name, _, _ in list_calls(saved)]
        calls_note = (
            f" (its pickle asks for {format_names(code_names)}, which was not run)" if code_names else ""
        )
        raise BadModel(f"it holds no tensors and no module{calls_note}", where=saved.source)
    parsed.contents = TensorIndex(
        format,
        saved.source,
        reader.tensors,
        (saved.source,),
        saved.size,
        facts=tuple(_list_facts(reader)),
        notes=tuple(_list_notes(reader)),
        kinds={part.path: part.kind for part in parsed.parts if part.kind},
        why=PICKLED if parsed.pickled_modules else NO_GRAPH,
        extra_data=parsed.extra_data,
    )
    return parsed


def _list_facts(reader: _ContentReader) -> Iterator[tuple[str, str]]:
    """Yields the (key, text) of each fact on a checkpoint."""
    parsed, saved = reader.checkpoint, reader.saved
    yield "form", _FORMS[saved.form]
    for path, qualname in parsed.pickled_modules[:8]:
        yield "module", f"{qualname} at {path}" if path else qualname
    storage_bytes = sum(size for _, size in reader.storages.values())
    yield (
        "tensors",
        f"{len(reader.tensors):,} in {len(reader.storages):,} storages of {bytes_text(storage_bytes)}",
    )
    for role, tensors in _group_by_role(parsed, reader.tensors).items():
        size = sum(t.nbytes for t in tensors)
        yield role, f"{many_text(len(tensors), 'tensor')}, {bytes_text(size)}, not counted as parameters"
    yield from sorted(reader.values, key=lambda pair: pair[0].count("."))
    if reader.unlisted_count:
        yield "more values", f"{reader.unlisted_count:,} that are not listed here"


def _group_by_role(parsed: Checkpoint, tensors: Sequence[StoredTensor]) -> dict[str, list[StoredTensor]]:
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        role = parsed.roles.get(tensor.name)
        if role:
            groups.setdefault(role, []).append(tensor)
    return groups


def _list_notes(reader: _ContentReader) -> Iterator[str]:
    """Yields notes on code that loading would import, unusual tensors and tied tensors."""
    code_names = list(list_calls(reader.saved))
    if code_names:
        code_names = [(_shorten_key(name), times, suspicious) for name, times, suspicious in code_names]
        suspects = [f"{name} (called {times} times)" for name, times, suspicious in code_names if suspicious]
        others = [name for name, _, suspicious in code_names if not suspicious]
        if suspects:
            yield f"loading this file with torch would run {format_names(suspects, 8)}, which no model needs"
        if others:
            yield (
                f"loading it with torch would import {len(others):,} names of code, none of which was run:"
                f" {format_names(others, 12)}"
            )
    kinds = _group_by_kind(reader.checkpoint.wrapped)
    for kind, names in kinds.items():
        yield (
            f"{many_text(len(names), 'tensor')} of {kind} stored as other tensors: {format_names(names)};"
            " parameters are counted for the outer tensors, bytes for the stored tensors"
        )
    if reader.checkpoint.extra_data:
        extra_data = [f"{name} ({why})" for name, why in reader.checkpoint.extra_data]
        yield f"data that is not understood: {format_names(extra_data)}"
    tied = [f"{name} {reader.checkpoint.notes[name]}" for name in dict.fromkeys(reader.tied_names)]
    if tied:
        yield f"{len(tied):,} tied tensors: {format_names(tied)}"
    if reader.repeated_paths:
        yield f"repeated objects: {format_names(reader.repeated_paths)}"


def _group_by_kind(wrapped: Mapping[str, WrappedTensor]) -> dict[str, list[str]]:
    """Returns paths of tensors that are stored as several inner tensors, by class."""
    groups: dict[str, list[str]] = {}
    for path, tensor in wrapped.items():
        if list(tensor.inner) != [""] and any(
            isinstance(inner, (TensorSpec, WrappedTensor)) for key, inner in tensor.inner.items() if key
        ):
            groups.setdefault(_shorten_key(tensor.kind) or "an unnamed class", []).append(path)
    return groups


def outline(source: str) -> Outline:
    """Returns the outline of a checkpoint: its tensors, and its modules if any were pickled."""
    parsed = parse_checkpoint(read(source, find_offsets=False), "checkpoint")
    contents = parsed.contents
    facts = [*contents.facts, *(("note", note) for note in contents.notes)]
    weights = [tensor for part in parsed.parts if not part.role for tensor in part.parameters]
    params = count_stored(weights)[0]
    return Outline(
        contents.format,
        source,
        contents.file_bytes,
        facts,
        list_outline_rows(parsed.parts, parsed.notes),
        params,
    )
