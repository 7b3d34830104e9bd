"""Packed rows of the layer tree, as the screen keeps them: packed, and taken out when they are looked at.

A graph of a hundred thousand nodes is 200 MB of `Layer` objects, and two seconds in which whoever unpickles
them can answer no key. So the engine's process packs them into pages; the screen keeps the pages as they
come and takes out the rows that it draws. What the tree has to know of every row, whether it is on show or
not, lies beside the pages in arrays: what it is in, what is in it, which siblings are alike, what it costs.

A page is MessagePack, which a cache may keep: it is data, whoever wrote it. What MessagePack cannot say
exactly (a number beyond 64 bits, a list that must not come back as a tuple) is pickled, for a pipe alone.
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
    from explorer.facts import Layer  # as above

PAGE = 32
"""Rows a page. A screenful of closed groups lies in as many pages as it has rows: each must be cheap."""
WIDE = 4_000
"""Children that are listed one by one; of more, so many lie in ranges."""
RANGE = 1_000
"""Children a range."""
COLUMNS = ("macs", "params", "weight_bytes", "activation_bytes")
"""Figures of a layer that are known of every row without taking it out."""
GROUP, UNKNOWN, BOUND, SHARED, ASSUMED = 1, 2, 4, 8, 16
"""Flags of a row; SHARED: a parameter of it, or of what is in it, has other users; ASSUMED: and no bound."""

_KEPT_PAGES, _KEPT_ROWS = 128, 1_024
_LEVEL = 3
"""Of zlib: with a dictionary as quick as 1."""
_PAGES = 16
"""Pages of rows a message."""
_SENT = 1 << 18
"""Bytes a chunk: the screen must get the interpreter's lock back soon."""

Numbers = Sequence[int]


class Structure(Struct):
    """What is known of every row of a tree, in arrays as long as it has rows.

    Attributes:
        parent: Row that it lies in; -1 at the top.
        end: The row behind the last one inside it.
        depth: As in `Layer`.
        repeat: As in `Layer`, except that on the others of a run it is minus their place in it: -1, -2, ...
        flags: Of GROUP, UNKNOWN, BOUND, SHARED, ASSUMED.
        columns: The figures of `COLUMNS`; -1 for one that is not known.
        wide: For each row with more than `WIDE` children (-1: the top; runs counted once) every `RANGE`th
            of them.
        deepest: The greatest depth.
        known: The columns of which a figure is known of any row.
    """

    parent: array[int] = field(default_factory=lambda: array("i"))
    end: array[int] = field(default_factory=lambda: array("i"))
    depth: Numbers = field(default_factory=lambda: array("H"))
    repeat: Numbers = field(default_factory=lambda: array("i"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    columns: dict[str, Numbers] = field(default_factory=dict)
    wide: dict[int, Numbers] = field(default_factory=dict)
    deepest: int = 0

    known: tuple[str, ...] = ()


class Chunk(Struct, frozen=True):
    """A part of rows on their way from process to process.

    Attributes:
        name: A field of `Structure`, one of `COLUMNS`, 'page', 'pickled' (a page, too), 'deepest', 'known' or
            'wide' (of row `key`).
        code: Type of the array whose bytes these are; empty if `data` is what it is.
    """

    name: str
    code: str
    data: Any
    key: int = 0


def structure_of(layers: Sequence[Layer]) -> Structure:
    """The structure of rows that are at hand, in two passes over them."""
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
    macs, params, weights, activations = (column.append for column in values)
    for at, layer in enumerate(layers):
        parent[at] = -1 if layer.parent is None else layer.parent
        depth[at] = layer.depth
        repeat[at] = layer.repeat
        flag = GROUP if layer.group else 0
        if layer.status != "exact":
            flag |= UNKNOWN if layer.status == "unknown" else ASSUMED if layer.assumed else BOUND
        if layer.shared_with:
            flag |= SHARED
        flags[at] = flag
        macs(-1 if layer.macs is None else layer.macs)
        params(layer.params)
        weights(layer.weight_bytes)
        activations(-1 if layer.activation_bytes is None else layer.activation_bytes)
    structure.columns = {name: narrow(column) for name, column in zip(COLUMNS, values, strict=True)}
    close(structure)
    return structure


def close(structure: Structure) -> None:
    """Fills in what follows from parents and runs: ends, places in runs, shared parameters, wide rows."""
    parent, end, repeat, flags = (
        structure.parent,
        structure.end,
        array("i", structure.repeat),
        structure.flags,
    )
    count = len(parent)
    structure.deepest = max(structure.depth, default=0)
    structure.depth = narrow(structure.depth)
    structure.known = tuple(
        [name for name, numbers in structure.columns.items() if max(numbers, default=-1) >= 0]
    )
    for at in range(count - 1, -1, -1):
        if end[at] <= at:
            end[at] = at + 1
        above = parent[at]
        if above >= 0:
            if end[above] < end[at]:
                end[above] = end[at]
            if flags[at] & SHARED:
                flags[above] |= SHARED
    children: dict[int, int] = {}
    for at in range(count):
        if repeat[at] > 1:
            size = end[at] - at
            for place in range(1, repeat[at]):
                repeat[at + place * size] = -place
        if repeat[at] > 0:
            above = parent[at]
            children[above] = children.get(above, 0) + 1
    structure.repeat = narrow(repeat)
    for above, many in children.items():
        if many > WIDE:
            structure.wide[above] = _every(structure, above)


def _every(structure: Structure, above: int) -> Numbers:
    """Every `RANGE`th child of a row, runs counted once."""
    starts = array("i")
    at, stop = above + 1, structure.end[above] if above >= 0 else len(structure.parent)
    place = 0
    while at < stop:
        if structure.repeat[at] > 0:
            if place % RANGE == 0:
                starts.append(at)
            place += 1
        at = structure.end[at]
    return starts


def narrow(values: Sequence[int]) -> Numbers:
    """Numbers in the smallest array that holds them."""
    low, high = min(values, default=0), max(values, default=0)
    for code, bits in (("b", 7), ("h", 15), ("i", 31), ("q", 63)):
        if low >= -(1 << bits) and high < 1 << bits:
            return array(code, values)
    return list(values)


def pack(layers: Iterable[Layer]) -> Iterator[Chunk]:
    """The pages of rows, each of `PAGE`; the first is the dictionary of the others, which are like it."""
    import zlib

    rows, start, press = iter(layers), 0, zlib.compressobj(_LEVEL)
    while page := list(islice(rows, PAGE)):
        bodies = _encoded(page, start)
        name = "page"
        if bodies is None:
            import pickle

            name, bodies = "pickled", [pickle.dumps(layer, 5) for layer in page]
        body = array("I", [len(page), *map(len, bodies)]).tobytes() + b"".join(bodies)
        packer = press.copy()
        yield Chunk(name, "", packer.compress(body) + packer.flush())
        if not start:
            press = zlib.compressobj(_LEVEL, zdict=body)
        start += PAGE


def _encoded(page: Sequence[Layer], start: int) -> list[bytes] | None:
    """Rows from row `start` on as MessagePack; None if it cannot say one of them exactly.

    Numbers that count up are set against where they stand: all the same, they take no room.
    """
    from msgspec import msgpack
    from msgspec.structs import replace

    try:
        return [
            msgpack.encode(
                replace(
                    row,
                    id=row.id - at,
                    parent=None if row.parent is None else row.parent - row.id,
                    attributes=_marked(row.attributes) if row.attributes else row.attributes,
                )
            )
            for at, row in enumerate(page, start)
        ]
    except (OverflowError, TypeError, ValueError):  # beyond 64 bits; of no kind that it has; no UTF-8
        return None


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_LIST = 1
"""Type of MessagePack's extension that is a list: its own lists are our tuples."""


def _marked(value: Any) -> Any:
    """A value of no declared type as one that comes back as it went.

    Raises:
        TypeError: There is none.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return tuple([_marked(member) for member in value])
    if kind is dict and all(type(key) is str for key in value):
        return {key: _marked(member) for key, member in value.items()}
    if kind is list:
        from msgspec.msgpack import Ext, encode

        return Ext(_LIST, encode([_marked(member) for member in value]))
    raise TypeError(kind)


class _List(list[Any]):
    """What was a list before it was MessagePack."""


def _list(code: int, body: memoryview) -> Any:
    """What an extension stands for."""
    from msgspec.msgpack import decode

    return _List(decode(body, ext_hook=_list))


@cache
def _decoder() -> Callable[[memoryview, int], Layer]:
    """What makes the row at a place of a page that is MessagePack, or raises msgspec.DecodeError."""
    from msgspec.msgpack import Decoder
    from msgspec.structs import force_setattr

    from explorer.facts import Layer  # as above

    decode = Decoder(Layer, ext_hook=_list).decode

    def row(body: memoryview, at: int) -> Layer:
        layer = decode(body)
        force_setattr(layer, "id", layer.id + at)
        if layer.parent is not None:
            force_setattr(layer, "parent", layer.parent + layer.id)
        if layer.attributes:
            force_setattr(layer, "attributes", tupled(layer.attributes))
        return layer

    return row


def tupled(value: Any) -> Any:
    """A value of no declared type as it was before it was MessagePack, which has one kind of list."""
    kind = type(value)
    if kind is list or kind is tuple:
        return tuple([tupled(member) for member in value])
    if kind is dict:
        return {key: tupled(member) for key, member in value.items()}
    return [tupled(member) for member in value] if kind is _List else value


def messages(layers: Iterable[Layer]) -> Iterator[tuple[Chunk, ...]]:
    """The pages as chunks, a few at a time."""
    pages = pack(layers)
    while some := tuple(islice(pages, _PAGES)):
        yield some


def packed(layers: Sequence[Layer]) -> RowPages:
    """Rows that are at hand, packed."""
    if isinstance(layers, RowPages):
        return layers
    rows = RowPages()
    for chunk in pack(layers):
        rows.add(chunk)
    rows.structure = structure_of(layers)
    return rows


def chunks(structure: Structure) -> Iterator[Chunk]:
    """The structure in parts that are small enough to be taken up between two keys."""
    named: dict[str, Numbers] = {
        name: getattr(structure, name) for name in ("parent", "end", "depth", "repeat", "flags")
    }
    for name, numbers in (named | structure.columns).items():
        yield from _parts(name, numbers, 0)
    for row, numbers in structure.wide.items():
        yield from _parts("wide", numbers, row)
    yield Chunk("deepest", "", structure.deepest)
    yield Chunk("known", "", structure.known)


def _parts(name: str, numbers: Numbers, key: int) -> Iterator[Chunk]:
    code = numbers.typecode if isinstance(numbers, array) else ""
    step = _SENT // (numbers.itemsize if isinstance(numbers, array) else 64)
    for at in range(0, max(1, len(numbers)), step):
        part = numbers[at : at + step]
        yield Chunk(name, code, part.tobytes() if isinstance(part, array) else part, key)


class RowPages(Sequence["Layer"]):
    """The rows of a tree: a sequence of `Layer`, each taken out of its page when it is asked for.

    Attributes:
        structure: What is known of all of them.
        opened: Pages taken out so far.
    """

    def __init__(self) -> None:
        self.structure = Structure()
        self.opened = 0
        self._amend: Callable[[Layer], Layer] = lambda layer: layer
        self._pages: list[bytes] = []
        self._first = b""
        self._pickled: set[int] = set()
        self._bodies: dict[int, bytes] = {}
        self._taken: dict[int, Layer] = {}

    def add(self, chunk: Chunk) -> None:
        """Takes up a part, in the order in which they were made."""
        structure = self.structure
        if chunk.name in ("page", "pickled"):
            if chunk.name == "pickled":
                self._pickled.add(len(self._pages))
            self._pages.append(chunk.data)
            return
        if chunk.name in ("deepest", "known"):
            setattr(structure, chunk.name, tuple(chunk.data) if chunk.name == "known" else chunk.data)
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
        """The parts, in an order in which they can be taken up."""
        for at, page in enumerate(self._pages):
            yield Chunk("pickled" if at in self._pickled else "page", "", page)
        yield from chunks(self.structure)

    def messages(self) -> Iterator[tuple[Chunk, ...]]:
        """The same, so many at a time as the other side can take up between two keys."""
        some: list[Chunk] = []
        for chunk in self.chunks():
            some.append(chunk)
            if len(some) == _PAGES or chunk.code:
                yield tuple(some)
                some = []
        yield tuple(some)

    def restructured(self) -> RowPages:
        """The same pages, those to come too, under a structure that has still to be added."""
        grown = RowPages()
        grown._pages, grown._pickled = self._pages, self._pickled
        return grown

    def amended(self, reason: str) -> RowPages:
        """The same rows with what only the structure knows: sums over groups, runs; and another reason."""
        from msgspec.structs import replace

        structure = self.structure
        params, weights, repeat = (
            structure.columns["params"],
            structure.columns["weight_bytes"],
            structure.repeat,
        )

        def amend(layer: Layer) -> Layer:
            at = layer.id
            return replace(
                layer,
                params=params[at],
                weight_bytes=weights[at],
                repeat=max(0, repeat[at]),
                reason=reason,
                assumed=False,
            )

        grown = RowPages()
        grown.structure, grown._pages, grown._pickled = structure, self._pages, self._pickled
        grown._amend = amend
        return grown

    def __len__(self) -> int:
        return len(self.structure.parent)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the pages."""
        return sum(map(len, self._pages))

    @overload
    def __getitem__(self, at: int) -> Layer: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Layer, ...]: ...

    def __getitem__(self, at: int | slice) -> Layer | tuple[Layer, ...]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                return tuple(self._from(start, stop))
            return tuple([self[i] for i in range(start, stop, step)])
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        layer = self._taken.get(at)
        if layer is None:
            page = at // PAGE
            layer = self._amend(self._row(page)(_spans(self._body(page))[at % PAGE], at))
            if len(self._taken) >= _KEPT_ROWS:
                self._taken.clear()
            self._taken[at] = layer
        return layer

    def _row(self, page: int) -> Callable[[memoryview, int], Layer]:
        """What makes a row of a page from its bytes and its place among all."""
        if page not in self._pickled:
            return _decoder()
        import pickle

        return lambda body, at: pickle.loads(body)

    def _body(self, page: int) -> bytes:
        body = self._bodies.get(page)
        if body is None:
            body = self._take_out(page)
            if len(self._bodies) >= _KEPT_PAGES:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[page] = body
        return body

    def _take_out(self, page: int) -> bytes:
        import zlib

        self.opened += 1
        if not page:
            return zlib.decompress(self._pages[0])
        if not self._first:
            self._first = zlib.decompress(self._pages[0])
        return zlib.decompressobj(zdict=self._first).decompress(self._pages[page])

    def located(self, paths: Iterable[str]) -> dict[str, int]:
        """Which rows have these paths; only pages in which one of them stands are taken apart."""
        encoded = {path: path.encode("utf-8", "surrogatepass") for path in paths}
        ids: dict[str, int] = {}
        for page in range(len(self._pages)):
            if not encoded:
                break
            body = self._bodies.get(page) or self._take_out(page)
            if page in self._pickled or any(path in body for path in encoded.values()):
                for row in map(self._row(page), _spans(body), count(page * PAGE)):
                    if encoded.pop(row.path, None) is not None:
                        ids[row.path] = row.id
        return ids

    def _from(self, start: int, stop: int) -> Iterator[Layer]:
        """Rows one after the other, a page at a time, of which none is kept."""
        at = start
        while at < stop:
            page, first = divmod(at, PAGE)
            last = min(PAGE, first + stop - at)
            row = self._row(page)
            bodies = _spans(self._bodies.get(page) or self._take_out(page))[first:last]
            for place, body in enumerate(bodies, at):
                yield self._amend(row(body, place))
            at += last - first

    def __iter__(self) -> Iterator[Layer]:
        return self._from(0, len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (RowPages, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} rows in {len(self._pages):,} pages>"


def _spans(body: bytes) -> list[memoryview]:
    """The rows of a page, still as bytes."""
    view = memoryview(body)
    count = int.from_bytes(view[:4], sys.byteorder)
    sizes = view[4 : 4 + 4 * count].cast("I")
    spans, at = [], 4 + 4 * count
    for size in sizes:
        spans.append(view[at : at + size])
        at += size
    return spans
