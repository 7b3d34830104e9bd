"""State dict: the tensors of a model, collected from whatever files store them.

A checkpoint, a safetensors file and a folder of shards all become the same list: a name as in a state_dict,
and for each tensor a function that reads its bytes from the file, 16 MiB at a time. Other parts of a
checkpoint (an optimizer, an averaged copy) are left behind, with a note. Values that are no tensors become
metadata; anything else is reported as not understood.
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
from explorer.engine.convert.tensor_files.checkpoint_values import METADATA, plain, values_of
from explorer.engine.formats.files import open_regular
from explorer.engine.formats.tensor_index import StoredTensor, TensorIndex, named_few
from explorer.engine.formats.torch_files import checkpoint, checkpoint_modules
from explorer.engine.formats.torch_files.checkpoint_modules import holds_data
from explorer.engine.formats.torch_files.tensors import TensorSpec, WrappedTensor
from explorer.engine.formats.weights import safetensors
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.torch.described_file import DescribedFile
from explorer.host import input_files

VERSIONS = "torch.state_dict._metadata"
"""The key in safetensors metadata for the versions that torch notes in a state_dict, as JSON."""

_SLAB = 1 << 24

_DEPTH = 32
"""The most containers around a tensor's value."""


class BundledTensor(NamedTuple):
    """One tensor.

    Attributes:
        name: Its name in a state_dict.
        dtype: Its type, in numpy's (or ml_dtypes') spelling.
        shape: Its shape, outermost dimension first.
        nbytes: Bytes of its elements without gaps.
        read: Yields those bytes in order; a piece is valid until the next one is read.
        same: A key that is equal for all names of one tensor; None if it has one name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], Iterator[memoryview]]
    same: Hashable = None


class StateDict(NamedTuple):
    """The tensors of a model.

    Attributes:
        pieces: The tensors, in the order of the source.
        metadata: The file's metadata, by key.
        versions: Torch's versions of the modules (`_metadata` of a state_dict); None if absent.
        notes: Notes for the report.
        unknown: Names of source parts that are neither a tensor that can be copied nor text, with the reason.
        left: The number of tensors that do not belong to the model and are left behind.
    """

    pieces: Sequence[BundledTensor]
    metadata: Mapping[str, str]
    versions: Any
    notes: Sequence[str]
    unknown: Sequence[tuple[str, str]] = ()
    left: int = 0


def _read_bytes(path: str, offset: int, length: int) -> Iterator[memoryview]:
    """Yields the bytes of a file in order, in one buffer that is reused.

    Raises:
        BadModel: The file was removed or has become shorter.
    """
    buffer = memoryview(bytearray(min(length, _SLAB)))
    descriptor, _ = open_regular(path)
    with input_files.unbuffered(descriptor) as file:
        file.seek(offset)
        done = 0
        while done < length:
            size = min(length - done, _SLAB)
            try:
                got = file.readinto(buffer[:size])
            except OSError as error:
                raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
            if not got:
                raise BadModel("has become shorter while it was read", where=path)
            yield buffer[:got]
            done += got


def copying(pieces: Sequence[BundledTensor]) -> str:
    """A description: 'copying 12 tensors, 3.50 MiB'."""
    return f"copying {many_text(len(pieces), 'tensor')}, {bytes_text(_total_bytes(pieces))}"


def _total_bytes(pieces: Sequence[BundledTensor]) -> int:
    """The total bytes; a tensor with several names counts once."""
    once: dict[Hashable, int] = {piece.same or ("own", piece.name): piece.nbytes for piece in pieces}
    return sum(once.values())


def check_room(job: ConversionJob, pieces: Sequence[BundledTensor]) -> None:
    """Refuses to write more than the disk has room for.

    A few bytes of a checkpoint can stand for any number of elements (an expanded tensor).

    Raises:
        Misuse: The disk has too little room.
    """
    size = _total_bytes(pieces)
    free = shutil.disk_usage(os.path.dirname(job.path)).free
    if size > free:
        message = f"would take {bytes_text(size)}, and {bytes_text(free)} are free there"
        raise Misuse(message, where=job.target, hint="nothing was written")


def gather(job: ConversionJob) -> StateDict:
    """Collects the tensors of a job's model.

    Raises:
        BadModel: Tensors are missing or cannot be read.
    """
    if job.opened.format == "checkpoint":
        return of_checkpoint(job.source)
    contents = job.opened.contents
    if contents.missing:
        message = f"parts of the model are missing: {named_few(contents.missing)}"
        raise BadModel(message, where=job.source, hint="fetch them first")
    metadata: dict[str, str] = {}
    strides: dict[str, Sequence[int]] = {}
    notes: list[str] = []
    unknown = list(contents.unclaimed)
    for path in contents.files:
        if path.endswith(".safetensors") or job.opened.format == "safetensors":
            header = safetensors.read(path)
            for key, text in header.metadata.items():
                metadata.setdefault(key, text)
            if header.unused:
                gap = f"{bytes_text(header.unused)} that no tensor is of"
                unknown.append((os.path.basename(path), gap))
        else:
            saved = checkpoint.read(path)
            saved_tensors = checkpoint_modules.checkpoint(saved, "checkpoint")
            strides |= saved_tensors.strides
            beside = values_of(saved.root, saved_tensors, "")
            for key, text in beside.metadata.items():
                metadata.setdefault(key, text)
            notes += [note for note in beside.notes if note not in notes]
            unknown += beside.unknown
    bundle = _bundle(contents.tensors, strides, metadata, job.source)
    return bundle._replace(notes=[*notes, *bundle.notes], unknown=unknown)


def of_safetensors(path: str) -> StateDict:
    """Collects the tensors of one safetensors file.

    Raises:
        BadModel: It is broken.
    """
    header = safetensors.read(path)
    return _bundle(header.tensors, {}, header.metadata, path)


def of_checkpoint(path: str) -> StateDict:
    """Collects the model's tensors in a checkpoint; other parts of it are left behind.

    Raises:
        BadModel: The checkpoint is broken, or a tensor cannot be copied.
    """
    saved = checkpoint.read(path)
    saved_tensors = checkpoint_modules.checkpoint(saved, "checkpoint")
    tensors = [t for t in saved_tensors.contents.tensors if t.name not in saved_tensors.roles]
    if not tensors:
        raise BadModel("it holds no tensors of a model", where=path)
    key, state = _state_dict(saved.root, saved_tensors.roles)
    prefix = f"{key}." if key else ""
    if not all(t.name.startswith(prefix) for t in tensors):
        prefix = ""
    beside = values_of(saved.root, saved_tensors, key if prefix else "")
    notes = []
    if prefix:
        notes.append(f"the state_dict is what the checkpoint holds under '{printable(key)}'")
    roles_beside = sorted(set(saved_tensors.roles.values()))
    count = sum(1 for t in saved_tensors.contents.tensors if t.name in saved_tensors.roles)
    if roles_beside:
        notes.append(f"{many_text(count, 'tensor')} beside the model left behind: {', '.join(roles_beside)}")
    attributes = getattr(state, "state", None)
    attributes = attributes if isinstance(attributes, dict) else {}
    saved_metadata = attributes.get(METADATA)
    if not isinstance(saved_metadata, dict) or not all(
        isinstance(t, str) for pair in saved_metadata.items() for t in pair
    ):
        saved_metadata = {}
    bundle = _bundle(tensors, saved_tensors.strides, saved_metadata, path, prefix)
    names = {piece.name for piece in bundle.pieces}
    # a plain text equal to a tensor's name would be read as an alias of that tensor
    texts = {key: json.dumps(text) if text in names else text for key, text in beside.metadata.items()}
    return bundle._replace(
        metadata={**bundle.metadata, **texts},
        versions=plain(attributes.get("_metadata")) or bundle.versions,
        notes=[*notes, *beside.notes, *bundle.notes],
        unknown=(*saved_tensors.unclaimed, *beside.unknown),
        left=count,
    )


def _bundle(
    tensors: Sequence[StoredTensor],
    strides: Mapping[str, Sequence[int]],
    metadata: Mapping[str, str],
    source: str,
    prefix: str = "",
) -> StateDict:
    """A state dict from stored tensors.

    Removes the prefix of the names, and restores the aliases that the metadata lists.
    """
    unread = [tensor for tensor in tensors if tensor.unread]
    if unread:
        more = f"; {named_few([t.name for t in unread[1:]])} neither" if unread[1:] else ""
        message = f"'{printable(unread[0].name)}' cannot be copied: {unread[0].unread}{printable(more)}"
        raise BadModel(message, where=source)
    gathered = _gather_strided(tensors, strides)
    renamed = (_piece(t, t.name[len(prefix) :], strides.get(t.name), gathered) for t in tensors)
    pieces = {piece.name: piece for piece in renamed}
    metadata, versions, tied = dict(metadata), None, []
    for alias, name in list(metadata.items()):
        if alias not in pieces and name in pieces:
            del metadata[alias]
            same = pieces[name].same or ("tied", name)
            pieces[name] = pieces[name]._replace(same=same)
            pieces[alias] = pieces[name]._replace(name=alias)
            tied.append(f"{printable(alias)} is {printable(name)}")
    text = metadata.get(VERSIONS)
    if text is not None:
        try:
            versions = plain(json.loads(text))
        except (ValueError, RecursionError):
            versions = None
        if versions is not None:
            del metadata[VERSIONS]
    notes = [f"as the metadata says, {named_few(tied)}"] if tied else []
    return StateDict(list(pieces.values()), metadata, versions, [*notes, *_storage_notes(tensors)])


def _piece(
    tensor: StoredTensor, name: str, stride: Sequence[int] | None, gathered: Mapping[str, Any]
) -> BundledTensor:
    def strided() -> Iterator[memoryview]:
        import numpy as np

        for slab in gathered[tensor.name].slabs():
            yield memoryview(np.ascontiguousarray(slab).view(np.uint8).data)

    same = None if tensor.identity is None else (tensor.path, tensor.identity, tensor.shape, stride)
    contiguous = partial(_read_bytes, tensor.path, tensor.offset, tensor.nbytes)
    read = contiguous if stride is None else strided
    return BundledTensor(name, tensor.dtype, tensor.shape, tensor.nbytes, read, same)


def _gather_strided(tensors: Sequence[StoredTensor], strides: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Readers for tensors whose elements are not contiguous."""
    if not strides:
        return {}
    apart = [t for t in tensors if t.name in strides]
    contents = TensorIndex("checkpoint", "", apart, (), 0)
    file = DescribedFile(
        contents, OpenOptions(), lambda: ([], {}), strides={n: tuple(s) for n, s in strides.items()}
    )
    return {numbers.name: numbers for numbers in file.tensors()[0]}


def _storage_notes(tensors: Sequence[StoredTensor]) -> list[str]:
    """A note if different tensors share a storage: each is written separately."""
    storages: dict[Hashable, set[Hashable]] = {}
    for tensor in tensors:
        if isinstance(tensor.identity, tuple):
            storages.setdefault((tensor.path, tensor.identity[0]), set()).add(tensor.identity)
    count = sum(len(views) for views in storages.values() if len(views) > 1)
    note = f"{count:,} tensors share storages without being the same: each is written by itself"
    return [note] if count else []


def _state_dict(root: Any, roles: Mapping[str, str]) -> tuple[str, Any]:
    """The key of the model's state_dict in a checkpoint, and the state_dict; '' for the whole checkpoint."""
    if not isinstance(root, dict) or any(isinstance(v, (TensorSpec, WrappedTensor)) for v in root.values()):
        return "", root
    beside = {name.partition(".")[0] for name in roles}
    keys = [key for key, value in root.items() if str(key) not in beside and holds_data(value)]
    return (str(keys[0]), root[keys[0]]) if len(keys) == 1 and isinstance(keys[0], str) else ("", root)
