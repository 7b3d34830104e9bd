"""State dict: collects the tensors of a model from the files that store them.

A checkpoint, a safetensors file and a folder of shards all become one list. Each entry has a name as in a
state_dict, and a function that reads the tensor's bytes from the file, 16 MiB at a time. Other parts of a
checkpoint (an optimizer, an averaged copy) are skipped, with a note. Values other than tensors become
metadata. A value that is not a tensor and has no text form is reported as unknown.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import bytes_text, many_text, printable
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.tensor_files.checkpoint_values import METADATA, collect_values, convert_to_plain
from explorer.engine.formats.files import open_regular
from explorer.engine.formats.tensor_index import StoredTensor, TensorIndex, format_names
from explorer.engine.formats.torch_files import checkpoint, checkpoint_modules
from explorer.engine.formats.torch_files.checkpoint_modules import holds_data
from explorer.engine.formats.torch_files.tensors import TensorSpec, WrappedTensor
from explorer.engine.formats.weights import safetensors
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.torch.described_file import DescribedFile
from explorer.host import input_files

VERSIONS = "torch.state_dict._metadata"
"""Key in safetensors metadata for the module versions that torch stores in a state_dict, as JSON."""

_CHUNK_BYTES = 1 << 24
"""Maximum bytes of a file that are read at a time."""


class BundledTensor(NamedTuple):
    """One tensor.

    Attributes:
        name: Name in the state_dict.
        dtype: Element type, in numpy's (or ml_dtypes') spelling.
        shape: Shape, outermost dimension first.
        nbytes: Bytes of the elements without gaps.
        read: Function that yields those bytes in order. Each chunk is valid until the next one is read.
        shared_key: Key that all names of one tensor share, or None if the tensor has one name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], Iterator[memoryview]]
    shared_key: Hashable = None


class StateDict(NamedTuple):
    """Tensors of a model.

    Attributes:
        tensors: Tensors, in the order of the source.
        metadata: Metadata of the file, by key.
        versions: Torch's versions of the modules (`_metadata` of a state_dict), or None if absent.
        notes: Notes for the report.
        unknown: Names of source parts that can become neither a tensor nor text, with the reason.
        skipped_count: Number of skipped tensors that do not belong to the model.
    """

    tensors: Sequence[BundledTensor]
    metadata: Mapping[str, str]
    versions: Any
    notes: Sequence[str]
    unknown: Sequence[tuple[str, str]] = ()
    skipped_count: int = 0


def _read_bytes(path: str, offset: int, length: int) -> Iterator[memoryview]:
    """Yields the bytes of a file section in order, in one buffer that is reused.

    Raises:
        BadModel: The file was removed or became shorter.
    """
    buffer = memoryview(bytearray(min(length, _CHUNK_BYTES)))
    descriptor, _ = open_regular(path)
    with input_files.open_unbuffered(descriptor) as file:
        file.seek(offset)
        bytes_read = 0
        while bytes_read < length:
            size = min(length - bytes_read, _CHUNK_BYTES)
            try:
                count = file.readinto(buffer[:size])
            except OSError as error:
                raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
            if not count:
                raise BadModel("has become shorter while it was read", where=path)
            yield buffer[:count]
            bytes_read += count


def describe_copy(tensors: Sequence[BundledTensor]) -> str:
    """Returns a description such as 'copying 12 tensors, 3.50 MiB'."""
    return f"copying {many_text(len(tensors), 'tensor')}, {bytes_text(_count_bytes(tensors))}"


def _count_bytes(tensors: Sequence[BundledTensor]) -> int:
    """Returns the total bytes; a tensor with several names counts once."""
    bytes_by_tensor: dict[Hashable, int] = {
        tensor.shared_key or ("own", tensor.name): tensor.nbytes for tensor in tensors
    }
    return sum(bytes_by_tensor.values())


def check_disk_space(job: ConversionJob, tensors: Sequence[BundledTensor]) -> None:
    """Raises an error if the tensors need more bytes than the disk has free.

    A few bytes of a checkpoint can describe any number of elements (an expanded tensor).

    Raises:
        Misuse: The disk has too little free space.
    """
    size = _count_bytes(tensors)
    free = shutil.disk_usage(os.path.dirname(job.path)).free
    if size > free:
        message = f"would take {bytes_text(size)}, and {bytes_text(free)} are free there"
        raise Misuse(message, where=job.target, hint="nothing was written")


def collect(job: ConversionJob) -> StateDict:
    """Collects the tensors of a job's model.

    Raises:
        BadModel: Tensors are missing or cannot be read.
    """
    if job.opened.format == "checkpoint":
        return read_checkpoint(job.source)
    contents = job.opened.contents
    if contents.missing:
        message = f"parts of the model are missing: {format_names(contents.missing)}"
        raise BadModel(message, where=job.source, hint="fetch them first")
    metadata: dict[str, str] = {}
    strides: dict[str, Sequence[int]] = {}
    notes: list[str] = []
    unknown = list(contents.extra_data)
    for path in contents.files:
        if path.endswith(".safetensors") or job.opened.format == "safetensors":
            header = safetensors.read(path)
            for key, text in header.metadata.items():
                metadata.setdefault(key, text)
            if header.unused:
                description = f"{bytes_text(header.unused)} that belong to no tensor"
                unknown.append((os.path.basename(path), description))
        else:
            saved = checkpoint.read(path)
            saved_tensors = checkpoint_modules.parse_checkpoint(saved, "checkpoint")
            strides |= saved_tensors.strides
            other_values = collect_values(saved.root, saved_tensors, "")
            for key, text in other_values.metadata.items():
                metadata.setdefault(key, text)
            notes += [note for note in other_values.notes if note not in notes]
            unknown += other_values.unknown
    state_dict = _build_bundle(contents.tensors, strides, metadata, job.source)
    return state_dict._replace(notes=[*notes, *state_dict.notes], unknown=unknown)


def read_safetensors(path: str) -> StateDict:
    """Collects the tensors of one safetensors file.

    Raises:
        BadModel: The file is broken.
    """
    header = safetensors.read(path)
    return _build_bundle(header.tensors, {}, header.metadata, path)


def read_checkpoint(path: str) -> StateDict:
    """Collects the model's tensors in a checkpoint, and skips other parts such as an optimizer.

    Raises:
        BadModel: The checkpoint is broken, or a tensor cannot be copied.
    """
    saved = checkpoint.read(path)
    saved_tensors = checkpoint_modules.parse_checkpoint(saved, "checkpoint")
    tensors = [t for t in saved_tensors.contents.tensors if t.name not in saved_tensors.roles]
    if not tensors:
        raise BadModel("it holds no tensors of a model", where=path)
    key, state = _find_state_dict(saved.root, saved_tensors.roles)
    prefix = f"{key}." if key else ""
    if not all(t.name.startswith(prefix) for t in tensors):
        prefix = ""
    other_values = collect_values(saved.root, saved_tensors, key if prefix else "")
    notes = []
    if prefix:
        notes.append(f"the state_dict is what the checkpoint holds under '{printable(key)}'")
    roles_beside = sorted(set(saved_tensors.roles.values()))
    count = sum(1 for t in saved_tensors.contents.tensors if t.name in saved_tensors.roles)
    if roles_beside:
        notes.append(f"{many_text(count, 'tensor')} outside the model not written: {', '.join(roles_beside)}")
    attributes = getattr(state, "state", None)
    attributes = attributes if isinstance(attributes, dict) else {}
    saved_metadata = attributes.get(METADATA)
    if not isinstance(saved_metadata, dict) or not all(
        isinstance(t, str) for pair in saved_metadata.items() for t in pair
    ):
        saved_metadata = {}
    state_dict = _build_bundle(tensors, saved_tensors.strides, saved_metadata, path, prefix)
    names = {tensor.name for tensor in state_dict.tensors}
    # text that equals a tensor's name would be read as an alias of that tensor
    texts = {key: json.dumps(text) if text in names else text for key, text in other_values.metadata.items()}
    return state_dict._replace(
        metadata={**state_dict.metadata, **texts},
        versions=convert_to_plain(attributes.get("_metadata")) or state_dict.versions,
        notes=[*notes, *other_values.notes, *state_dict.notes],
        unknown=(*saved_tensors.extra_data, *other_values.unknown),
        skipped_count=count,
    )


def _build_bundle(
    tensors: Sequence[StoredTensor],
    strides: Mapping[str, Sequence[int]],
    metadata: Mapping[str, str],
    source: str,
    prefix: str = "",
) -> StateDict:
    """Builds a state dict from stored tensors.

    The names lose `prefix`. Aliases that the metadata lists become names of the same tensor.

    Raises:
        BadModel: A tensor cannot be copied.
    """
    unread = [tensor for tensor in tensors if tensor.unread]
    if unread:
        others_text = f"; {format_names([t.name for t in unread[1:]])} neither" if unread[1:] else ""
        message = (
            f"'{printable(unread[0].name)}' cannot be copied: {unread[0].unread}{printable(others_text)}"
        )
        raise BadModel(message, where=source)
    strided_readers = _list_strided_readers(tensors, strides)
    renamed = (
        _build_bundle_tensor(t, t.name[len(prefix) :], strides.get(t.name), strided_readers) for t in tensors
    )
    bundled = {bundled_tensor.name: bundled_tensor for bundled_tensor in renamed}
    metadata, versions, tie_texts = dict(metadata), None, []
    for alias, name in list(metadata.items()):
        if alias not in bundled and name in bundled:
            del metadata[alias]
            shared_key = bundled[name].shared_key or ("tied", name)
            bundled[name] = bundled[name]._replace(shared_key=shared_key)
            bundled[alias] = bundled[name]._replace(name=alias)
            tie_texts.append(f"{printable(alias)} is {printable(name)}")
    text = metadata.get(VERSIONS)
    if text is not None:
        try:
            versions = convert_to_plain(json.loads(text))
        except (ValueError, RecursionError):
            versions = None
        if versions is not None:
            del metadata[VERSIONS]
    notes = [f"tied by the metadata: {format_names(tie_texts)}"] if tie_texts else []
    return StateDict(list(bundled.values()), metadata, versions, [*notes, *_list_storage_notes(tensors)])


def _build_bundle_tensor(
    tensor: StoredTensor, name: str, stride: Sequence[int] | None, strided_readers: Mapping[str, Any]
) -> BundledTensor:
    """Builds a tensor called `name`. `stride` is None if the elements are contiguous in the file."""

    def read_strided() -> Iterator[memoryview]:
        import numpy as np

        for slab in strided_readers[tensor.name].slabs():
            yield memoryview(np.ascontiguousarray(slab).view(np.uint8).data)

    shared_key = None if tensor.identity is None else (tensor.path, tensor.identity, tensor.shape, stride)
    contiguous = partial(_read_bytes, tensor.path, tensor.offset, tensor.nbytes)
    read = contiguous if stride is None else read_strided
    return BundledTensor(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        nbytes=tensor.nbytes,
        read=read,
        shared_key=shared_key,
    )


def _list_strided_readers(
    tensors: Sequence[StoredTensor], strides: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Returns readers for tensors whose elements are not contiguous, by name."""
    if not strides:
        return {}
    strided_tensors = [t for t in tensors if t.name in strides]
    contents = TensorIndex("checkpoint", "", strided_tensors, (), 0)
    file = DescribedFile(
        contents, OpenOptions(), lambda: ([], {}), strides={n: tuple(s) for n, s in strides.items()}
    )
    return {numbers.name: numbers for numbers in file.tensors()[0]}


def _list_storage_notes(tensors: Sequence[StoredTensor]) -> list[str]:
    """Returns a note if different tensors share a storage: each tensor is written separately."""
    storages: dict[Hashable, set[Hashable]] = {}
    for tensor in tensors:
        if isinstance(tensor.identity, tuple):
            storages.setdefault((tensor.path, tensor.identity[0]), set()).add(tensor.identity)
    count = sum(len(views) for views in storages.values() if len(views) > 1)
    note = f"{count:,} tensors share storages but are not equal: each is written separately"
    return [note] if count else []


def _find_state_dict(root: Any, roles: Mapping[str, str]) -> tuple[str, Any]:
    """Returns the key of the model's state_dict in a checkpoint, and the state_dict.

    The key is '' for the whole checkpoint. `roles` names the tensors of other parts, such as an optimizer.
    """
    if not isinstance(root, dict) or any(isinstance(v, (TensorSpec, WrappedTensor)) for v in root.values()):
        return "", root
    other_keys = {name.partition(".")[0] for name in roles}
    keys = [key for key, value in root.items() if str(key) not in other_keys and holds_data(value)]
    return (str(keys[0]), root[keys[0]]) if len(keys) == 1 and isinstance(keys[0], str) else ("", root)
