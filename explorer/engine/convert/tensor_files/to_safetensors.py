"""Writer of safetensors files, as a stream.

The layout equals that of safetensors' own writer, to the byte: wide types first, then by name, and a header
padded with spaces to a multiple of eight bytes. The package itself is not used, because it needs every tensor
in memory at once. A tensor with several names is stored once, and the metadata lists the aliases, as
`safetensors.torch.save_model` does; the format has no other way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files import write as tensors
from explorer.engine.convert.tensor_files.bundle import VERSIONS, BundledTensor, StateDict, of_safetensors
from explorer.engine.formats.tensor_index import named_few
from explorer.engine.formats.weights.safetensors import DTYPES, HEADER_BYTES
from explorer.host import output_files

_CODES = {spelling: (code, rank) for rank, (code, (spelling, _)) in enumerate(DTYPES.items())}


def convert(job: ConversionJob) -> ConversionResult:
    """Writes one safetensors file.

    Raises:
        BadModel: A tensor is missing or broken, or of a type that safetensors does not support.
        Misuse: The disk has too little room.
        Cancelled: `job.cancel` said so.
    """

    def write(bundle: StateDict) -> Sequence[str]:
        pieces, metadata, notes = _unique_pieces(bundle)
        if bundle.versions is not None:
            metadata[VERSIONS] = json.dumps(bundle.versions)
        metadata.setdefault("format", "pt")
        head = _header(pieces, metadata, job.source)
        with output_files.binary(job.path) as out:
            out.write(len(head).to_bytes(8, "little"))
            out.write(head)
            for at, piece in enumerate(pieces):
                for part in piece.read():
                    job.tell("writing tensors", at, len(pieces))
                    out.write(part)
        return notes

    return tensors.convert(job, write, of_safetensors)


def _unique_pieces(bundle: StateDict) -> tuple[list[BundledTensor], dict[str, str], list[str]]:
    """Each tensor under one name, in the format's order; the metadata; and notes."""
    metadata = dict(bundle.metadata)
    names: dict[object, str] = {}
    for piece in sorted(bundle.pieces, key=lambda p: p.name):
        if piece.same is not None:
            names.setdefault(piece.same, piece.name)
    pieces, tied, taken = [], [], []
    for piece in bundle.pieces:
        first = piece.name if piece.same is None else names[piece.same]
        if first == piece.name:
            pieces.append(piece)
        elif piece.name in metadata:
            # the user's metadata under this name has priority: store the alias as a separate tensor
            taken.append(piece.name)
            pieces.append(piece)
        else:
            metadata[piece.name] = first
            tied.append(f"{piece.name} is {first}")
    notes = []
    if tied:
        notes.append(
            f"{many_text(len(tied), 'tied tensor')} stored once, with its other names in the metadata:"
            f" {named_few(tied)} (safetensors.torch.load_model reads that)"
        )
    if taken:
        notes.append(f"stored twice, as the metadata has the name: {named_few(taken)}")
    pieces.sort(key=lambda p: (-_CODES.get(p.dtype, ("", 0))[1], p.name.encode()))
    return pieces, metadata, notes


def _header(pieces: Sequence[BundledTensor], metadata: Mapping[str, str], source: str) -> bytes:
    """The JSON header."""
    unknown = sorted({piece.dtype for piece in pieces if piece.dtype not in _CODES})
    if unknown:
        piece = next(p for p in pieces if p.dtype == unknown[0])
        raise BadModel(
            f"safetensors has no type {unknown[0]}, which '{printable(piece.name)}' is of", where=source
        )
    if any(piece.name == "__metadata__" for piece in pieces):
        raise BadModel("safetensors has no tensor called '__metadata__'", where=source)
    text = ",".join(_header_entries(pieces, metadata))
    head = f"{{{text}}}".encode()
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_BYTES:
        raise BadModel(
            f"the header would take {len(head):,} bytes, safetensors allows {HEADER_BYTES:,}", where=source
        )
    return head


def _header_entries(pieces: Sequence[BundledTensor], metadata: Mapping[str, str]) -> Iterator[str]:
    def plain(value: object) -> str:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    yield f'"__metadata__":{plain(metadata)}'
    at = 0
    for piece in pieces:
        entry = {
            "dtype": _CODES[piece.dtype][0],
            "shape": list(piece.shape),
            "data_offsets": [at, at + piece.nbytes],
        }
        at += piece.nbytes
        yield f"{plain(piece.name)}:{plain(entry)}"
