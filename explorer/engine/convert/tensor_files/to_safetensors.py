"""Writer of safetensors files, as a stream.

The layout equals that of safetensors' own writer, to the byte: wide types first, then by name, and a header
padded with spaces to a multiple of eight bytes. The safetensors package needs every tensor in memory at once,
so it is not used. A tensor with several names is stored once, and the metadata lists the aliases.
`safetensors.torch.save_model` does the same, because the format cannot store aliases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files.bundle import VERSIONS, BundledTensor, StateDict, read_safetensors
from explorer.engine.convert.tensor_files.write import convert_tensors
from explorer.engine.formats.tensor_index import format_names
from explorer.engine.formats.weights.safetensors import DTYPES, MAX_HEADER_BYTES
from explorer.host import output_files

_CODES = {dtype: code for code, (dtype, _) in DTYPES.items()}
"""Code of each dtype in a safetensors header."""
_TYPE_RANKS = {dtype: rank for rank, dtype in enumerate(_CODES)}
"""Position of each dtype from narrow to wide. A file stores tensors of the widest type first."""


def convert(job: ConversionJob) -> ConversionResult:
    """Writes one safetensors file.

    Raises:
        BadModel: A tensor is missing or broken, or has a type that safetensors does not support.
        Misuse: The disk has too little free space.
        Cancelled: The user canceled (`job.cancel`).
    """

    def write(bundle: StateDict) -> Sequence[str]:
        tensors, metadata, notes = _find_unique_tensors(bundle)
        if bundle.versions is not None:
            metadata[VERSIONS] = json.dumps(bundle.versions)
        metadata.setdefault("format", "pt")
        header_bytes = _encode_header(tensors, metadata, job.source)
        with output_files.open_binary(job.path) as file:
            file.write(len(header_bytes).to_bytes(8, "little"))
            file.write(header_bytes)
            for index, tensor in enumerate(tensors):
                for part in tensor.read():
                    job.report_progress("writing tensors", index, len(tensors))
                    file.write(part)
        return notes

    return convert_tensors(job, write, reread=read_safetensors)


def _find_unique_tensors(bundle: StateDict) -> tuple[list[BundledTensor], dict[str, str], list[str]]:
    """Returns each tensor under one name, in the order of the format; the metadata; and notes."""
    metadata = dict(bundle.metadata)
    names: dict[object, str] = {}
    for tensor in sorted(bundle.tensors, key=lambda tensor: tensor.name):
        if tensor.shared_key is not None:
            names.setdefault(tensor.shared_key, tensor.name)
    tensors, tie_texts, conflicting_names = [], [], []
    for tensor in bundle.tensors:
        first_name = tensor.name if tensor.shared_key is None else names[tensor.shared_key]
        if first_name == tensor.name:
            tensors.append(tensor)
        elif tensor.name in metadata:
            # the user's metadata already has this key, so store the alias as a separate tensor
            conflicting_names.append(tensor.name)
            tensors.append(tensor)
        else:
            metadata[tensor.name] = first_name
            tie_texts.append(f"{tensor.name} is {first_name}")
    notes = []
    if tie_texts:
        notes.append(
            f"{many_text(len(tie_texts), 'tied tensor')} stored once, with its other names in the metadata:"
            f" {format_names(tie_texts)} (safetensors.torch.load_model reads that)"
        )
    if conflicting_names:
        notes.append(
            f"stored twice, because the metadata has a key of this name: {format_names(conflicting_names)}"
        )
    tensors.sort(key=lambda tensor: (-_TYPE_RANKS.get(tensor.dtype, 0), tensor.name.encode()))
    return tensors, metadata, notes


def _encode_header(tensors: Sequence[BundledTensor], metadata: Mapping[str, str], source: str) -> bytes:
    """Returns the JSON header as bytes.

    Raises:
        BadModel: The format has no such type or name, or the header is too large.
    """
    unknown_types = sorted({tensor.dtype for tensor in tensors if tensor.dtype not in _CODES})
    if unknown_types:
        name = next(tensor.name for tensor in tensors if tensor.dtype == unknown_types[0])
        raise BadModel(
            f"safetensors has no type {unknown_types[0]}, the type of '{printable(name)}'", where=source
        )
    if any(tensor.name == "__metadata__" for tensor in tensors):
        raise BadModel("safetensors has no tensor called '__metadata__'", where=source)
    text = ",".join(_list_header_entries(tensors, metadata))
    header_bytes = f"{{{text}}}".encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    if len(header_bytes) > MAX_HEADER_BYTES:
        raise BadModel(
            f"the header would take {len(header_bytes):,} bytes, safetensors allows {MAX_HEADER_BYTES:,}",
            where=source,
        )
    return header_bytes


def _list_header_entries(tensors: Sequence[BundledTensor], metadata: Mapping[str, str]) -> Iterator[str]:
    def encode(value: object) -> str:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    yield f'"__metadata__":{encode(metadata)}'
    offset = 0
    for tensor in tensors:
        entry = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
        yield f"{encode(tensor.name)}:{encode(entry)}"
