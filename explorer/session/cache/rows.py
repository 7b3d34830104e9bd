"""Packed rows of the layer tree: compressed pages, from which a row is decoded when it is needed.

A graph of 100,000 nodes is 200 MB of `Layer` objects, and unpickling them blocks the screen for two seconds.
The engine's process therefore packs the rows into pages. The screen stores the pages as they arrive and
decodes only the rows that it draws. The tree needs some properties of every row, visible or not: its parent,
its end, runs of identical siblings, its figures. They are in arrays next to the pages (`Structure`).

A page is MessagePack. The cache may store it, because decoding MessagePack runs no code. Values that
MessagePack cannot represent exactly (a number beyond 64 bits, a list that must not become a tuple) are
pickled. Pickled pages go through a pipe only, never into the cache.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct, field

if TYPE_CHECKING:
    from explorer.facts import Layer

PAGE_ROWS = 32
"""Rows per page. A screen of closed groups can need one page per row, so each page must be cheap to decode.
"""
MAX_PLAIN_CHILDREN = 4_000
"""Number of children above which the tree lists them in ranges."""
RANGE = 1_000
"""Number of children per range."""
COLUMNS = ("macs", "params", "weight_bytes", "activation_bytes")
"""Figures of a layer that `Structure` holds for every row."""
GROUP, UNKNOWN, BOUND, SHARED, ASSUMED = 1, 2, 4, 8, 16
"""Flags of a row. GROUP: the row is a group. UNKNOWN: its figures are unknown. BOUND: its figures are bounds.
SHARED: a parameter of the row, or of a row below it, has other users. ASSUMED: the figures rest on an
assumption and are not a bound.
"""

_MAX_CACHED_PAGES, _MAX_CACHED_ROWS = 128, 1_024
_COMPRESSION_LEVEL = 3
"""Compression level of zlib. With a dictionary, level 3 is as fast as level 1."""
_MESSAGE_PAGES = 16
"""Pages of rows per message."""
_CHUNK_BYTES = 1 << 18
"""Bytes per chunk. Small chunks return the interpreter's lock to the screen quickly."""

Numbers = Sequence[int]


class Structure(Struct):
    """Properties of every row of a tree, in arrays with one element per row.

    Attributes:
        parent: Id of the parent row, or -1 at the top.
        end: Id of the row after the last one below this row.
        depth: Depth, as in `Layer`.
        repeat: Length of a run, as in `Layer`, on its first row. On its other rows it is minus their position
            in the run: -1, -2, ...
        flags: Combination of GROUP, UNKNOWN, BOUND, SHARED, ASSUMED.
        columns: Figures of `COLUMNS`, or -1 if unknown.
        wide: For each row with more than `MAX_PLAIN_CHILDREN` children (-1: the top), the ids of every
            `RANGE`th child. A run counts as one child.
        deepest: Largest depth.
        known_columns: Columns with a known figure in at least one row.
    """

    parent: array[int] = field(default_factory=lambda: array("i"))
    end: array[int] = field(default_factory=lambda: array("i"))
    depth: Numbers = field(default_factory=lambda: array("H"))
    repeat: Numbers = field(default_factory=lambda: array("i"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    columns: dict[str, Numbers] = field(default_factory=dict)
    wide: dict[int, Numbers] = field(default_factory=dict)
    deepest: int = 0

    known_columns: tuple[str, ...] = ()


class Chunk(Struct, frozen=True):
    """Part of the packed rows, as it is sent to another process or stored.

    Attributes:
        name: Kind of the part: a field of `Structure`, one of `COLUMNS`, 'page', 'pickled' (a pickled page),
            'deepest', 'known_columns', or 'wide' (for the row `key`).
        code: Type code of the array whose bytes are in `data`, or '' if `data` is the value itself.
    """

    name: str
    code: str
    data: Any
    key: int = 0


def build_structure(layers: Sequence[Layer]) -> Structure:
    """Builds the structure of rows: the properties of each row, then those that follow from them."""
    count = len(layers)
    depth, repeat = array("H", bytes(2 * count)), array("i", bytes(4 * count))
    structure = Structure(
        parent=array("i", bytes(4 * count)),
        end=array("i", bytes(4 * count)),
        depth=depth,
        repeat=repeat,
        flags=array("B", bytes(count)),
    )
    parent, flags = structure.parent, structure.flags
    values: tuple[list[int], ...] = ([], [], [], [])
    add_macs, add_params, add_weight_bytes, add_activation_bytes = (column.append for column in values)
    for row, layer in enumerate(layers):
        parent[row] = -1 if layer.parent is None else layer.parent
        depth[row] = layer.depth
        repeat[row] = layer.repeat
        flag = GROUP if layer.group else 0
        if layer.status != "exact":
            flag |= UNKNOWN if layer.status == "unknown" else ASSUMED if layer.assumed else BOUND
        if layer.shared_with:
            flag |= SHARED
        flags[row] = flag
        add_macs(-1 if layer.macs is None else layer.macs)
        add_params(layer.params)
        add_weight_bytes(layer.weight_bytes)
        add_activation_bytes(-1 if layer.activation_bytes is None else layer.activation_bytes)
    structure.columns = {name: narrow_numbers(column) for name, column in zip(COLUMNS, values, strict=True)}
    complete_structure(structure)
    return structure


def complete_structure(structure: Structure) -> None:
    """Fills in the properties of a structure that follow from parents and runs.

    These are the ends, the positions in runs, the shared flags and the wide rows.
    """
    parent, end, repeat, flags = (
        structure.parent,
        structure.end,
        array("i", structure.repeat),
        structure.flags,
    )
    count = len(parent)
    structure.deepest = max(structure.depth, default=0)
    structure.depth = narrow_numbers(structure.depth)
    structure.known_columns = tuple(
        [name for name, numbers in structure.columns.items() if max(numbers, default=-1) >= 0]
    )
    for row in range(count - 1, -1, -1):
        if end[row] <= row:
            end[row] = row + 1
        parent_row = parent[row]
        if parent_row >= 0:
            if end[parent_row] < end[row]:
                end[parent_row] = end[row]
            if flags[row] & SHARED:
                flags[parent_row] |= SHARED
    children: dict[int, int] = {}
    for row in range(count):
        if repeat[row] > 1:
            size = end[row] - row
            for position in range(1, repeat[row]):
                repeat[row + position * size] = -position
        if repeat[row] > 0:
            parent_row = parent[row]
            children[parent_row] = children.get(parent_row, 0) + 1
    structure.repeat = narrow_numbers(repeat)
    for parent_row, child_count in children.items():
        if child_count > MAX_PLAIN_CHILDREN:
            structure.wide[parent_row] = _list_range_starts(structure, parent_row)


def _list_range_starts(structure: Structure, parent_row: int) -> Numbers:
    """Lists every `RANGE`th child of a row. A run counts as one child."""
    starts = array("i")
    row, stop = parent_row + 1, structure.end[parent_row] if parent_row >= 0 else len(structure.parent)
    position = 0
    while row < stop:
        if structure.repeat[row] > 0:
            if position % RANGE == 0:
                starts.append(row)
            position += 1
        row = structure.end[row]
    return starts


def narrow_numbers(values: Sequence[int]) -> Numbers:
    """Returns numbers in the smallest array type that holds them, or as a list if no array type does."""
    low, high = min(values, default=0), max(values, default=0)
    for code, bits in (("b", 7), ("h", 15), ("i", 31), ("q", 63)):
        if low >= -(1 << bits) and high < 1 << bits:
            return array(code, values)
    return list(values)


def pack(layers: Iterable[Layer]) -> Iterator[Chunk]:
    """Packs rows into pages of `PAGE_ROWS` rows.

    The first page is the compression dictionary of the others.
    """
    import zlib

    rows, start, compressor = iter(layers), 0, zlib.compressobj(_COMPRESSION_LEVEL)
    while page := list(islice(rows, PAGE_ROWS)):
        bodies = _encode(page, start)
        name = "page"
        if bodies is None:
            import pickle

            name, bodies = "pickled", [pickle.dumps(layer, 5) for layer in page]
        body = array("I", [len(page), *map(len, bodies)]).tobytes() + b"".join(bodies)
        page_compressor = compressor.copy()
        yield Chunk(name, "", page_compressor.compress(body) + page_compressor.flush())
        if not start:
            compressor = zlib.compressobj(_COMPRESSION_LEVEL, zdict=body)
        start += PAGE_ROWS


def _encode(page: Sequence[Layer], start: int) -> list[bytes] | None:
    """Encodes rows as MessagePack, or returns None if a value cannot be represented exactly.

    Ids are stored relative to the position of the row, so that all rows hold the same small numbers, which
    compress well. `start` is the id of the first row.
    """
    from msgspec import msgpack
    from msgspec.structs import replace

    try:
        return [
            msgpack.encode(
                replace(
                    row,
                    id=row.id - position,
                    parent=None if row.parent is None else row.parent - row.id,
                    attributes=_make_encodable(row.attributes) if row.attributes else row.attributes,
                )
            )
            for position, row in enumerate(page, start)
        ]
    except (OverflowError, TypeError, ValueError):  # beyond 64 bits; unsupported type; not UTF-8
        return None


_PLAIN_TYPES = frozenset((type(None), bool, int, float, str, bytes))
_LIST = 1
"""Code of the MessagePack extension for lists. MessagePack's own lists are decoded as tuples."""


def _make_encodable(value: Any) -> Any:
    """Converts a value of undeclared type so that decoding restores it exactly.

    Raises:
        TypeError: No conversion exists for the type.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind is tuple:
        return tuple([_make_encodable(member) for member in value])
    if kind is dict and all(type(key) is str for key in value):
        return {key: _make_encodable(member) for key, member in value.items()}
    if kind is list:
        from msgspec.msgpack import Ext, encode

        return Ext(_LIST, encode([_make_encodable(member) for member in value]))
    raise TypeError(kind)


class _List(list[Any]):
    """A list that was encoded as an extension."""


def _decode_list(code: int, body: memoryview) -> Any:
    """Decodes the extension `_LIST`, the only one."""
    from msgspec.msgpack import decode

    return _List(decode(body, ext_hook=_decode_list))


@cache
def _make_decoder() -> Callable[[memoryview, int], Layer]:
    """Returns the function that decodes a row from its bytes and its id. It raises msgspec.DecodeError."""
    from msgspec.msgpack import Decoder
    from msgspec.structs import force_setattr

    from explorer.base.compat import build_type
    from explorer.facts import Layer  # imported late, so that importing this module is fast

    decode = Decoder(build_type(Layer), ext_hook=_decode_list).decode

    def decode_row(body: memoryview, row_id: int) -> Layer:
        layer = decode(body)
        force_setattr(layer, "id", layer.id + row_id)
        if layer.parent is not None:
            force_setattr(layer, "parent", layer.parent + layer.id)
        if layer.attributes:
            force_setattr(layer, "attributes", restore_tuples(layer.attributes))
        return layer

    return decode_row


def restore_tuples(value: Any) -> Any:
    """Restores a decoded value of undeclared type: lists become tuples, and extensions become lists."""
    kind = type(value)
    if kind is list or kind is tuple:
        return tuple([restore_tuples(member) for member in value])
    if kind is dict:
        return {key: restore_tuples(member) for key, member in value.items()}
    return [restore_tuples(member) for member in value] if kind is _List else value


def pack_messages(layers: Iterable[Layer]) -> Iterator[tuple[Chunk, ...]]:
    """Packs rows and yields the chunks, several per message."""
    pages = pack(layers)
    while batch := tuple(islice(pages, _MESSAGE_PAGES)):
        yield batch


def pack_rows(layers: Sequence[Layer]) -> RowPages:
    """Packs rows with their structure. Rows that are already packed are returned unchanged."""
    if isinstance(layers, RowPages):
        return layers
    rows = RowPages()
    for chunk in pack(layers):
        rows.add(chunk)
    rows.structure = build_structure(layers)
    return rows


def split_structure(structure: Structure) -> Iterator[Chunk]:
    """Splits the structure into chunks that the screen can process between two key presses."""
    arrays: dict[str, Numbers] = {
        name: getattr(structure, name) for name in ("parent", "end", "depth", "repeat", "flags")
    }
    for name, numbers in (arrays | structure.columns).items():
        yield from _split_array(name, numbers, 0)
    for row, numbers in structure.wide.items():
        yield from _split_array("wide", numbers, row)
    yield Chunk("deepest", "", structure.deepest)
    yield Chunk("known_columns", "", structure.known_columns)


def _split_array(name: str, numbers: Numbers, key: int) -> Iterator[Chunk]:
    code = numbers.typecode if isinstance(numbers, array) else ""
    step = _CHUNK_BYTES // (numbers.itemsize if isinstance(numbers, array) else 64)
    for start in range(0, max(1, len(numbers)), step):
        part = numbers[start : start + step]
        yield Chunk(name, code, part.tobytes() if isinstance(part, array) else part, key)


class RowPages(Sequence["Layer"]):
    """The rows of a tree as a sequence of `Layer` objects, each decoded from its page on access.

    Attributes:
        structure: Properties of all rows.
        decompressed_count: Number of pages decompressed so far.
    """

    def __init__(self) -> None:
        self.structure = Structure()
        self.decompressed_count = 0
        self._amend: Callable[[Layer], Layer] = lambda layer: layer
        self._pages: list[bytes] = []
        self._first = b""
        self._pickled: set[int] = set()
        self._bodies: dict[int, bytes] = {}
        self._decoded: dict[int, Layer] = {}

    def add(self, chunk: Chunk) -> None:
        """Adds a chunk. Chunks must be added in the order in which they were made."""
        structure = self.structure
        if chunk.name in ("page", "pickled"):
            if chunk.name == "pickled":
                self._pickled.add(len(self._pages))
            self._pages.append(chunk.data)
            return
        if chunk.name in ("deepest", "known_columns"):
            setattr(structure, chunk.name, tuple(chunk.data) if chunk.name == "known_columns" else chunk.data)
            return
        if chunk.name == "wide":
            numbers: Any = structure.wide.get(chunk.key)
        else:
            numbers = (
                structure.columns.get(chunk.name) if chunk.name in COLUMNS else getattr(structure, chunk.name)
            )
        if not numbers:
            numbers = array(chunk.code) if chunk.code else []
            if chunk.name == "wide":
                structure.wide[chunk.key] = numbers
            elif chunk.name in COLUMNS:
                structure.columns[chunk.name] = numbers
            else:
                setattr(structure, chunk.name, numbers)
        if chunk.code:
            numbers.frombytes(chunk.data)
        else:
            numbers.extend(chunk.data)

    def chunks(self) -> Iterator[Chunk]:
        """Splits pages and structure into chunks, in the order in which `add` must receive them."""
        for page_index, page in enumerate(self._pages):
            yield Chunk("pickled" if page_index in self._pickled else "page", "", page)
        yield from split_structure(self.structure)

    def messages(self) -> Iterator[tuple[Chunk, ...]]:
        """Groups the chunks so that the other process can add a group between two key presses."""
        batch: list[Chunk] = []
        for chunk in self.chunks():
            batch.append(chunk)
            if len(batch) == _MESSAGE_PAGES or chunk.code:
                yield tuple(batch)
                batch = []
        yield tuple(batch)

    def without_structure(self) -> RowPages:
        """Makes rows that share these pages and pages added later. Add their structure with `add`."""
        rows = RowPages()
        rows._pages, rows._pickled = self._pages, self._pickled
        return rows

    def with_sums(self, reason: str) -> RowPages:
        """Makes rows with `reason`, whose parameters, weight bytes and runs come from `structure`."""
        from msgspec.structs import replace

        structure = self.structure
        params, weights, repeat = (
            structure.columns["params"],
            structure.columns["weight_bytes"],
            structure.repeat,
        )

        def amend(layer: Layer) -> Layer:
            row_id = layer.id
            return replace(
                layer,
                params=params[row_id],
                weight_bytes=weights[row_id],
                repeat=max(0, repeat[row_id]),
                reason=reason,
                assumed=False,
            )

        rows = RowPages()
        rows.structure, rows._pages, rows._pickled = structure, self._pages, self._pickled
        rows._amend = amend
        return rows

    def __len__(self) -> int:
        return len(self.structure.parent)

    @property
    def packed_bytes(self) -> int:
        """Number of bytes of the pages."""
        return sum(map(len, self._pages))

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Layer, ...]: ...

    def __getitem__(self, index: int | slice) -> Layer | tuple[Layer, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return tuple(self._iterate(start, stop))
            return tuple([self[i] for i in range(start, stop, step)])
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        layer = self._decoded.get(index)
        if layer is None:
            page = index // PAGE_ROWS
            layer = self._amend(
                self._row_decoder(page)(_split_page(self._body(page))[index % PAGE_ROWS], index)
            )
            if len(self._decoded) >= _MAX_CACHED_ROWS:
                self._decoded.clear()
            self._decoded[index] = layer
        return layer

    def _row_decoder(self, page: int) -> Callable[[memoryview, int], Layer]:
        """Returns the function that decodes a row of a page from its bytes and its id."""
        if page not in self._pickled:
            return _make_decoder()
        import pickle

        return lambda body, row_id: pickle.loads(body)

    def _body(self, page: int) -> bytes:
        body = self._bodies.get(page)
        if body is None:
            body = self._decompress(page)
            if len(self._bodies) >= _MAX_CACHED_PAGES:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[page] = body
        return body

    def _decompress(self, page: int) -> bytes:
        import zlib

        self.decompressed_count += 1
        if not page:
            return zlib.decompress(self._pages[0])
        if not self._first:
            self._first = zlib.decompress(self._pages[0])
        return zlib.decompressobj(zdict=self._first).decompress(self._pages[page])

    def find_rows(self, paths: Iterable[str]) -> dict[str, int]:
        """Finds the ids of rows by path. It decodes only pages whose bytes contain one of the paths."""
        missing_paths = {path: path.encode("utf-8", "surrogatepass") for path in paths}
        ids: dict[str, int] = {}
        for page in range(len(self._pages)):
            if not missing_paths:
                break
            body = self._bodies.get(page) or self._decompress(page)
            if page in self._pickled or any(path in body for path in missing_paths.values()):
                for row in map(self._row_decoder(page), _split_page(body), count(page * PAGE_ROWS)):
                    if missing_paths.pop(row.path, None) is not None:
                        ids[row.path] = row.id
        return ids

    def _iterate(self, start: int, stop: int) -> Iterator[Layer]:
        """Iterates over rows page by page, without storing the decoded rows."""
        row_id = start
        while row_id < stop:
            page, first = divmod(row_id, PAGE_ROWS)
            last = min(PAGE_ROWS, first + stop - row_id)
            decode_row = self._row_decoder(page)
            bodies = _split_page(self._bodies.get(page) or self._decompress(page))[first:last]
            for body_row_id, body in enumerate(bodies, row_id):
                yield self._amend(decode_row(body, body_row_id))
            row_id += last - first

    def __iter__(self) -> Iterator[Layer]:
        return self._iterate(0, len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (RowPages, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} rows in {len(self._pages):,} pages>"


def _split_page(body: bytes) -> list[memoryview]:
    """Splits a page into the bytes of its rows."""
    view = memoryview(body)
    count = int.from_bytes(view[:4], sys.byteorder)
    sizes = view[4 : 4 + 4 * count].cast("I")
    spans, start = [], 4 + 4 * count
    for size in sizes:
        spans.append(view[start : start + size])
        start += size
    return spans
