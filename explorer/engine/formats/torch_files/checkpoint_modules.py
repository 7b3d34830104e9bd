"""Contents of a checkpoint: the model's tensors, the tree of a pickled module, and other data.

A checkpoint may hold anything: a state_dict, a dictionary of model, optimizer and epoch, a whole module, or
modules in dictionaries. One walk over the pickle's description covers all. Tensors get roles, so that the
moments of an optimizer do not count as parameters.
"""

from __future__ import annotations

from math import prod

from explorer.base.errors import BadModel
from explorer.base.outline import Outline
from explorer.base.record import field, record
from explorer.base.units import bytes_text, many_text
from explorer.engine.formats.byte_ranges import TensorView, is_dense
from explorer.engine.formats.module_index import ModulePart, outline_rows
from explorer.engine.formats.tensor_index import (
    NO_GRAPH,
    StoredTensor,
    TensorIndex,
    distinct_elements,
    named_few,
    share_pieces,
)
from explorer.engine.formats.torch_files.checkpoint import SavedFile, array_type, calls, read
from explorer.engine.formats.torch_files.pickle_machine import PLAIN, ByteSpan, Global, ReducedObject
from explorer.engine.formats.torch_files.tensors import BYTES, Device, StorageRef, TensorSpec, WrappedTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

DEPTH = 64
"""Most levels of nested containers or modules."""
TIMES = 10_000
"""Most names of one tensor or container."""
NAME = 512
"""Longest name in characters; a longer name keeps its two ends."""
VALUES = 40
"""Most plain values that are listed beside the tensors."""
TEXT = 200
"""Longest text of such a value, in characters."""

PICKLED = "the file holds a pickled module, whose code was not run"
"""Reason for unknown MACs of a pickled module."""

_OPTIMIZER = "optimizer state"
_COPY = "averaged copy"
_BESIDE = "beside the model"

ROLES = {
    **dict.fromkeys(("optimizer", "optimizers", "optimizer_state", "optimizer_states", "optim"), _OPTIMIZER),
    **dict.fromkeys(("optimizer_state_dict", "optim_state", "optimizer_g", "optimizer_d"), _OPTIMIZER),
    **dict.fromkeys(("ema", "model_ema", "ema_state_dict", "state_dict_ema", "ema_model"), _COPY),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedulers", "lr_scheduler_state_dict"), _BESIDE),
    **dict.fromkeys(("scaler", "grad_scaler", "amp", "rng_state", "rng", "cuda_rng_state"), _BESIDE),
    **dict.fromkeys(("random_state", "torch_rng_state", "rng_states", "callbacks", "loops"), _BESIDE),
}
"""Roles of the contents of a dictionary, by its key in lower case."""

_UNREAD = {
    "meta": "it is on the meta device",
    "sparse": "it is a sparse tensor",
    "conj": "its numbers are the complex conjugates of those that are stored",
    "neg": "its numbers are the negatives of those that are stored",
}
"""Reason for unread values, by layout of a tensor that is not strided."""


@record
class Checkpoint:
    """A parsed checkpoint.

    Attributes:
        contents: The tensors of the model and others, facts and notes.
        parts: The same tensors in the order of the file, with modules.
        whole: Paths and classes of modules that were pickled whole; empty if there are only tensors.
        strides: Strides of the tensors that are not contiguous, in elements.
        notes: Notes on tensors, by name.
        roles: Roles of the tensors outside the model, by name.
        wrapped: Tensors that are stored as other tensors, by path.
        unclaimed: Data of the file outside all tensors: name and reason.
        renamed: Names that differ from the file, because two paths are equal or one is too long.
        swapped: Whether values are stored in the other byte order.
        form: 'zip', 'legacy' or 'pickle'.
    """

    contents: TensorIndex = field(init=False)
    parts: list[ModulePart] = field(default_factory=list)
    whole: list[tuple[str, str]] = field(default_factory=list)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    wrapped: dict[str, WrappedTensor] = field(default_factory=dict)
    unclaimed: list[tuple[str, str]] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    swapped: bool = False
    form: str = ""


class _Walk:
    """One pass over the description of a pickle."""

    def __init__(self, saved: SavedFile) -> None:
        self.saved = saved
        self.checkpoint = Checkpoint()
        self.checkpoint.swapped = saved.swapped
        self.checkpoint.form = saved.form
        self.tensors: list[StoredTensor] = []
        self.names: dict[str, int] = {}
        self.seen: set[int] = set()
        self.first: dict[Any, str] = {}
        self.tied: list[str] = []
        self.storages: dict[str, tuple[str, int]] = {}
        self.bare: set[str] = set()
        self.values: list[tuple[str, str]] = []
        self.left = 0
        self.again: list[str] = []
        self.times: dict[int, int] = {}
        self.views: dict[str, TensorView] = {}

    def run(self) -> None:
        """Walks everything depth-first and in order, without copying long lists."""
        stack = [iter([("", self.saved.root)])]
        # of each level: its path, role and depth, whether its keys give roles, and whether it is an
        # attribute of a tensor, which has no parameters
        levels: list[tuple[str, str, int, bool, bool]] = [("", "", 0, True, False)]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                levels.pop()
                continue
            key, value = entry
            above, role, depth, telling, attribute = levels[-1]
            path = _joined(above, key)
            if telling and not role:
                role = _role(above, key, value)
            if isinstance(value, TensorSpec):
                self.loose(path, value, role, depth, attribute)
            elif isinstance(value, WrappedTensor):
                self.often_named(value)
                within = self.wrap(path, value, role, self.beside(role, depth), 0 if attribute else None)
                stack.append(iter(within))
                levels.append(("", role, depth, False, True))
            elif isinstance(value, StorageRef):
                self.bare.add(value.key)
                self.checkpoint.unclaimed.append((path or "storage", "a storage that no tensor is of"))
            elif isinstance(value, (*PLAIN, Global, Device, ByteSpan)):
                self.value(path, value)
            elif id(value) in self.seen and value:
                self.again.append(path)
                self.often(len(self.again))
            else:
                if len(stack) > DEPTH:
                    raise BadModel("it is nested deeper than any model", where=self.saved.source)
                self.seen.add(id(value))
                below = self.opened(path, value, role, depth)
                if below is not None:
                    stack.append(iter(below))
                    # the names of a module's members give no roles
                    module = _is_module(value)
                    inner = depth + 1 if path and module else depth
                    levels.append((path, role, inner, telling and not module, attribute))
        self.leftover()
        share_pieces(self.tensors, self.views)

    def leftover(self) -> None:
        """Records storages of the pickle that belong to no tensor of the walk."""
        for key, (dtype, elements) in self.saved.storages.items():
            if key in self.storages or key in self.bare:
                continue
            size = bytes_text(elements * BYTES.get(dtype, 1))
            self.checkpoint.unclaimed.append((f"storage {key}", f"{size} of {dtype} that no tensor is of"))

    def opened(self, path: str, value: Any, role: str, depth: int) -> Iterable[tuple[str, Any]] | None:
        """The members of a container, module or object; None if there are none, or it is recorded already."""
        if _is_module(value):
            return self.module(path, value, role, depth)
        if isinstance(value, ReducedObject) and self.array(path, value, role, depth):
            return None
        if not value or _only_values(value):
            self.value(path, value)
            return None
        return _inside(value)

    def often(self, times: int) -> None:
        """Refuses a count that no model reaches but a few bytes of a pickle can."""
        if times > TIMES:
            raise BadModel(f"it names one thing more than {TIMES:,} times", where=self.saved.source)

    def value(self, path: str, value: Any) -> None:
        """Records a value that is no tensor."""
        if len(self.values) < VALUES:
            text = _text(value)
            if path and text:
                self.values.append((path, text))
        else:
            self.left += 1

    def unique(self, name: str) -> str:
        """`name`, or `name` with '#2' if it is taken."""
        times = self.names.get(name, 0)
        self.names[name] = times + 1
        return self.unique(f"{name}#{times + 1}") if times else name

    def often_named(self, value: object) -> None:
        """Refuses an object with more names than any model gives it."""
        times = self.times[id(value)] = self.times.get(id(value), 0) + 1
        self.often(times)

    def loose(self, path: str, spec: TensorSpec, role: str, depth: int, attribute: bool) -> None:
        """Records a tensor outside modules."""
        self.often_named(spec)
        numbers = 0 if attribute else None
        self.beside(role, depth).append(self.tensor(path or "tensor", spec, role, numbers=numbers))

    def wrap(
        self,
        path: str,
        value: WrappedTensor,
        role: str,
        into: list[StoredTensor],
        numbers: int | None,
        trained: bool | None = None,
        depth: int = 0,
    ) -> list[tuple[str, Any]]:
        """Records a tensor that is stored as other tensors.

        Args:
            path: Its name.
            value: Its description in the file.
            role: Its role; '' for the model.
            into: List that gets its inner tensors.
            numbers: Number of the model's elements that it stands for; None: those of its shape.
            trained: Whether it is trained, if its place tells.
            depth: Number of tensors that contain it.

        Returns:
            Its other contents, by full path.
        """
        if depth > DEPTH:
            raise BadModel("it is nested deeper than any model", where=self.saved.source)
        self.checkpoint.wrapped.setdefault(path, value)
        if numbers is None and value.shape is not None:
            numbers = prod(value.shape)
        if trained is None and value.parameter:
            trained = value.requires_grad
        rest = []
        for key, part in value.inner.items():
            name = _joined(path, _name(key)) if key else path
            if isinstance(part, TensorSpec):
                into.append(self.tensor(name or "tensor", part, role, trained, numbers=numbers))
                numbers = 0
            elif isinstance(part, WrappedTensor):
                rest += self.wrap(name, part, role, into, numbers, trained, depth + 1)
                numbers = 0
            elif not isinstance(part, (*PLAIN, Global, Device)):
                rest.append((name, part))
        return rest

    def beside(self, role: str, depth: int) -> list[StoredTensor]:
        """The list for a tensor outside modules."""
        parts = self.checkpoint.parts
        if not parts or parts[-1].kind or parts[-1].role != role:
            parts.append(ModulePart("", depth=depth, role=role))
        return parts[-1].parameters

    def module(self, path: str, value: ReducedObject, role: str, depth: int) -> list[tuple[str, Any]]:
        """Records a pickled module.

        Returns:
            Its members.
        """
        state: Mapping[Any, Any] = value.state
        children = [(_name(k), v) for k, v in state["_modules"].items() if v is not None]
        kind = value.kind.name.rpartition(".")[2] if isinstance(value.kind, Global) else "Module"
        above = self.checkpoint.whole[-1][0] if self.checkpoint.whole else None
        if above is None or (above and not path.startswith(f"{above}.")):
            self.checkpoint.whole.append((path, value.qualname))
        part = ModulePart(
            path,
            kind,
            depth,
            inside=bool(children),
            qualname=value.qualname,
            settings={str(k): _setting(v) for k, v in state.items() if _is_setting(k, v)},
            role=role,
        )
        self.checkpoint.parts.append(part)
        for table, into in (("_parameters", part.parameters), ("_buffers", part.buffers)):
            for key, entry in state[table].items() if isinstance(state.get(table), dict) else ():
                name = _joined(path, _name(key))
                if isinstance(entry, TensorSpec):
                    trained = entry.requires_grad if table == "_parameters" else False
                    into.append(self.tensor(name, entry, role, trained))
                elif isinstance(entry, WrappedTensor):
                    trained = entry.requires_grad if table == "_parameters" else False
                    children += self.below(path, self.wrap(name, entry, role, into, None, trained))
                elif entry is not None:
                    children.append((_name(key), entry))
        for key, entry in state.items():
            # neither parameter nor buffer: torch does not move it with the model, but it is in the file
            name = _joined(path, _name(key))
            if isinstance(entry, TensorSpec):
                part.buffers.append(self.tensor(name, entry, role, False))
            elif isinstance(entry, WrappedTensor):
                children += self.below(path, self.wrap(name, entry, role, part.buffers, None, False))
            elif key not in _TABLES and holds_data(entry):
                children.append((_name(key), entry))
        return children

    def below(self, path: str, entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Contents of tensors that are no tensors, with names relative to the module."""
        return [(name[len(path) + 1 :] if path else name, entry) for name, entry in entries]

    def tensor(
        self,
        name: str,
        spec: TensorSpec,
        role: str,
        trained: bool | None = None,
        *,
        numbers: int | None = None,
    ) -> StoredTensor:
        """Records one tensor of the file; `numbers` as in `StoredTensor`."""
        stored_name, name = name, self.unique(name)
        if name != stored_name or len(name) > NAME:
            self.checkpoint.renamed.append(name)
        ref, width = spec.storage, BYTES.get(spec.dtype, 0)
        storage_bytes = ref.elements * BYTES.get(ref.dtype, 0)
        nbytes, identity, offset = 0, None, 0
        unread = _UNREAD.get(spec.layout, "" if width else f"{spec.dtype} is a type that is not known")
        if spec.layout != "meta":
            start_of_storage = self.saved.place(ref)
            self.storages.setdefault(ref.key, (name, storage_bytes))
            if start_of_storage is None:
                unread = unread or "the file holds it packed"
            elif not unread:
                offset = start_of_storage + spec.offset * width
        if spec.layout == "strided":
            # a tensor with repeated elements takes at most its storage
            nbytes = min(spec.elements * width, storage_bytes)
            if spec.elements * width > storage_bytes:
                unread = unread or "its elements lie over each other"
            if spec.elements:
                identity = ref.key, ref.start + spec.offset, spec.elements
                if not is_dense(spec.shape, spec.stride):
                    identity = *identity[:2], hash((spec.shape, spec.stride))
                self.shared(name, identity, spec)
        if self.saved.swapped:
            unread = unread or "it is stored in the other byte order"
        if spec.layout == "strided" and not spec.contiguous:
            self.checkpoint.strides[name] = spec.stride
        if role:
            self.checkpoint.roles[name] = role
        if spec.parameter and trained is None:
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
            numbers,
        )
        self.tensors.append(tensor)
        if identity is not None and numbers is None and width:
            start = ref.start * BYTES.get(ref.dtype, 1) + spec.offset * width
            place = ref.key, start, width, spec.shape, spec.stride, spec.elements * width
            self.views[name] = TensorView(*place)
        return tensor

    def shared(self, name: str, identity: tuple[str, int, int], spec: TensorSpec) -> None:
        """Records a note if this tensor is tied to another one, or shares its storage."""
        notes = []
        first = self.first.setdefault(identity, name)
        if first != name:
            notes.append(f"tied to {first}")
            self.tied.append(name)
        elif identity[0] in self.storages and self.storages[identity[0]][0] != name:
            notes.append(f"in the storage of {self.storages[identity[0]][0]}")
        if not spec.contiguous:
            notes.append(f"strides {spec.stride}")
        if notes:
            self.checkpoint.notes[name] = ", ".join(notes)

    def array(self, path: str, value: ReducedObject, role: str, depth: int) -> bool:
        """Records an object if it is a numpy array; returns whether it is one."""
        description = _array_of(value)
        if description is None:
            return False
        dtype, swapped, shape, turned, raw = description
        unread = "it is an array of numpy's that the file holds packed"
        offset, length = 0, len(raw) if isinstance(raw, bytes) else 0
        if isinstance(raw, ByteSpan):
            length = raw.size
            if self.saved.base is not None and not turned and not swapped and dtype in BYTES:
                offset, unread = self.saved.base + raw.at, ""
        name = self.unique(path or "array")
        if role:
            self.checkpoint.roles[name] = role
        tensor = StoredTensor(name, dtype, shape, length, self.saved.source, offset, None, None, unread)
        self.beside(role, depth).append(tensor)
        self.tensors.append(tensor)
        return True


_TABLES = frozenset({
    "_modules", "_parameters", "_buffers", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
    "_forward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
})  # fmt: skip
"""Attributes of every module: its tensors, modules and hooks."""


def _array_of(value: ReducedObject) -> tuple[str, bool, tuple[int, ...], Any, Any] | None:
    """A numpy array as (type, swapped byte order, shape, swapped axes, bytes); None for another object, and
    for an array of anything but numbers.
    """
    if not value.qualname.endswith("multiarray._reconstruct"):
        return None
    state = value.state if isinstance(value.state, tuple) else ()
    if len(state) != 5 or not isinstance(state[1], tuple) or not isinstance(state[2], ReducedObject):
        return None
    shape, turned, raw = state[1], state[3], state[4]
    dtype, swapped = array_type(state[2])
    if any(type(n) is not int or not 0 <= n < 1 << 40 for n in shape) or len(shape) > 64:
        return None
    length = raw.size if isinstance(raw, ByteSpan) else len(raw) if isinstance(raw, bytes) else 0
    return None if prod(shape) * BYTES.get(dtype, 0) != length else (dtype, swapped, shape, turned, raw)


def is_array(value: Any) -> bool:
    """Whether an object is a numpy array of contiguous numbers."""
    return isinstance(value, ReducedObject) and _array_of(value) is not None


def holds_data(value: Any, most: int = 4096) -> bool:
    """Whether a container or an object holds tensors or storages, or more than `most` objects."""
    stack, visited = [value], set[int]()
    while stack:
        part = stack.pop()
        if isinstance(part, (TensorSpec, WrappedTensor, StorageRef)) or len(visited) > most:
            return True
        if isinstance(part, (*PLAIN, Global, Device, ByteSpan)) or id(part) in visited:
            continue
        visited.add(id(part))
        if is_array(part):
            return True
        stack.extend(inner for _, inner in _inside(part))
    return False


def _is_module(value: Any) -> bool:
    if not isinstance(value, ReducedObject) or not isinstance(value.state, dict):
        return False
    return isinstance(value.state.get("_modules"), dict) and isinstance(value.state.get("_parameters"), dict)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The members of a container or an object, by name."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield _name(key), entry
    elif isinstance(value, (list, tuple)):
        for at, entry in enumerate(value):
            yield str(at), entry
    elif isinstance(value, ReducedObject):
        for group in (value.state, value.args, value.items):
            if isinstance(group, (dict, list, tuple)):
                yield from _inside(group)
        for key, entry in value.pairs:
            yield _name(key), entry


def _name(key: Any) -> str:
    text = key.qualname if isinstance(key, (ReducedObject, Global)) else str(key)
    return text if len(text) <= NAME else f"{text[: NAME // 2]}...{text[-NAME // 2 :]}"


def _joined(above: str, key: str) -> str:
    return _name(f"{above}.{key}" if above else key)


def _only_values(value: Any) -> bool:
    """Whether a list or an object holds nothing but plain values."""
    if isinstance(value, dict):
        return False
    return all(isinstance(part, (*PLAIN, Global)) for _, part in _inside(value))


def _role(path: str, key: str, value: Any) -> str:
    """The role of the contents of a key; '' if they may belong to the model."""
    role = ROLES.get(key.lower(), "") if not path else ""
    if isinstance(value, (TensorSpec, WrappedTensor)) and "rng" not in key:
        return ""  # a parameter may have any name
    if isinstance(value, dict) and "state" in value and "param_groups" in value:
        return _OPTIMIZER
    return role


def _is_setting(key: Any, value: Any) -> bool:
    """Whether an attribute of a module is a constructor setting."""
    if not isinstance(key, str) or key.startswith("_") or key == "training":
        return False
    return isinstance(value, (*PLAIN, Global)) or (
        isinstance(value, (tuple, list)) and len(value) <= 16 and all(isinstance(v, PLAIN) for v in value)
    )


def _setting(value: Any) -> Any:
    if isinstance(value, Global):
        return value.qualname
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return value[:TEXT] if isinstance(value, str) else value


def _text(value: Any) -> str:
    """A plain value as text; empty if it has nothing to show."""
    if isinstance(value, Global):
        return value.qualname
    if isinstance(value, ReducedObject):
        return f"an object of {value.qualname}" if value.qualname else ""
    if isinstance(value, (bytes, ByteSpan)):
        return f"{len(value) if isinstance(value, bytes) else value.size:,} bytes"
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(element, PLAIN) for element in value):
            return ""
        inside = ", ".join(_text(element) for element in value[:8])
        return f"[{inside}{', ...' if len(value) > 8 else ''}]"[:TEXT]
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of many digits"
    return "" if value is None or isinstance(value, (dict, Device)) else str(value)[:TEXT]


# -- the whole checkpoint

_FORMS = {
    "zip": "zip archive of torch.save",
    "legacy": "as torch before 1.6 saved, with its magic number",
    "pickle": "plain pickle",
}


def read_checkpoint(path: str, format: str) -> Checkpoint:
    """Parses a file of torch.save; see `checkpoint`."""
    return checkpoint(read(path), format)


def checkpoint(saved: SavedFile, format: str) -> Checkpoint:
    """Parses the contents of a checkpoint.

    Args:
        saved: From `checkpoint.read`.
        format: Name of the format.

    Raises:
        BadModel: It contradicts itself, or holds no tensors and no module.
    """
    walk = _Walk(saved)
    walk.run()
    parsed = walk.checkpoint
    if all(role == _COPY for role in (parsed.roles.get(t.name, "") for t in walk.tensors)):
        # if there is only an averaged copy, it is the model
        parsed.roles.clear()
        for part in parsed.parts:
            part.role = ""
    if not walk.tensors and not parsed.whole:
        ran = [_name(name) for name, _, _ in calls(saved)]
        calls_note = f" (its pickle asks for {named_few(ran)}, which was not run)" if ran else ""
        raise BadModel(f"it holds no tensors and no module{calls_note}", where=saved.source)
    parsed.contents = TensorIndex(
        format,
        saved.source,
        walk.tensors,
        (saved.source,),
        saved.size,
        facts=tuple(_facts(walk)),
        notes=tuple(_notes(walk)),
        kinds={part.path: part.kind for part in parsed.parts if part.kind},
        why=PICKLED if parsed.whole else NO_GRAPH,
        unclaimed=parsed.unclaimed,
    )
    return parsed


def _facts(walk: _Walk) -> Iterator[tuple[str, str]]:
    parsed, saved = walk.checkpoint, walk.saved
    yield "form", _FORMS[saved.form]
    for path, qualname in parsed.whole[:8]:
        yield "module", f"{qualname} at {path}" if path else qualname
    storage_bytes = sum(size for _, size in walk.storages.values())
    yield (
        "tensors",
        f"{len(walk.tensors):,} in {len(walk.storages):,} storages of {bytes_text(storage_bytes)}",
    )
    for role, names in _by_role(parsed, walk.tensors).items():
        size = sum(t.nbytes for t in names)
        yield role, f"{len(names):,} tensors, {bytes_text(size)}, not counted as parameters"
    yield from sorted(walk.values, key=lambda pair: pair[0].count("."))
    if walk.left:
        yield "more values", f"{walk.left:,} that are not named here"


def _by_role(parsed: Checkpoint, tensors: Sequence[StoredTensor]) -> dict[str, list[StoredTensor]]:
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        role = parsed.roles.get(tensor.name)
        if role:
            groups.setdefault(role, []).append(tensor)
    return groups


def _notes(walk: _Walk) -> Iterator[str]:
    ran = list(calls(walk.saved))
    if ran:
        ran = [(_name(name), times, suspicious) for name, times, suspicious in ran]
        bad = [f"{name} (called {times} times)" for name, times, suspicious in ran if suspicious]
        rest = [name for name, _, suspicious in ran if not suspicious]
        if bad:
            yield f"loading this file with torch would run {named_few(bad, 8)}, which no model needs"
        if rest:
            yield (
                f"loading it with torch would import {len(rest):,} names of code, none of which was run:"
                f" {named_few(rest, 12)}"
            )
    kinds = _by_kind(walk.checkpoint.wrapped)
    for kind, names in kinds.items():
        yield (
            f"{many_text(len(names), 'tensor')} of {kind} kept as other tensors: {named_few(names)};"
            " parameters are those of the whole, bytes those of the tensors that are stored"
        )
    if walk.checkpoint.unclaimed:
        lost = [f"{name} ({why})" for name, why in walk.checkpoint.unclaimed]
        yield f"data that is not understood: {named_few(lost)}"
    tied = [f"{name} {walk.checkpoint.notes[name]}" for name in dict.fromkeys(walk.tied)]
    if tied:
        yield f"{len(tied):,} tied tensors: {named_few(tied)}"
    if walk.again:
        yield f"the same object once more: {named_few(walk.again)}"


def _by_kind(wrapped: Mapping[str, WrappedTensor]) -> dict[str, list[str]]:
    """Paths of tensors that are stored as other tensors, by class."""
    groups: dict[str, list[str]] = {}
    for path, tensor in wrapped.items():
        if list(tensor.inner) != [""] and any(
            isinstance(inner, (TensorSpec, WrappedTensor)) for key, inner in tensor.inner.items() if key
        ):
            groups.setdefault(_name(tensor.kind) or "an unnamed class", []).append(path)
    return groups


def outline(source: str) -> Outline:
    """The outline of a checkpoint: modules, if it has any, and tensors."""
    parsed = checkpoint(read(source, places=False), "checkpoint")
    contents = parsed.contents
    facts = [*contents.facts, *(("note", note) for note in contents.notes)]
    params = distinct_elements(
        [tensor for part in parsed.parts if not part.role for tensor in part.parameters]
    )
    return Outline(
        contents.format, source, contents.file_bytes, facts, outline_rows(parsed.parts, parsed.notes), params
    )
