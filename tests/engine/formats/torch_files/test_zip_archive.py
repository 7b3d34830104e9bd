"""Zip archives are read by their directory, as zipfile reads them, and not believed."""

from __future__ import annotations

import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.base.errors import BadModel
from explorer.engine.formats.torch_files.zip_archive import ZipArchive, list_entry_names, read_directory


def written(path: Path, entries: dict[str, bytes], *, packed: bool = False, comment: bytes = b"") -> str:
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.comment = comment
        for name, content in entries.items():
            archive.writestr(name, content)
    return str(path)


ENTRIES = {"m/data.pkl": b"pickle", "m/data/0": bytes(range(256)) * 40, "m/version": b"3\n", "m/größe": b"x"}


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "packed"])
@pytest.mark.parametrize("comment", [b"", b"a comment " * 100], ids=["bare", "with a comment"])
def test_entries_are_those_that_were_written(tmp_path: Path, packed: bool, comment: bytes) -> None:
    path = written(tmp_path / "a.zip", ENTRIES, packed=packed, comment=comment)
    archive = ZipArchive(path)
    assert archive.root == "m/"
    assert {f"m/{name}": archive.read(name) for name in archive.names()} == ENTRIES
    assert list_entry_names(path) == list(ENTRIES)
    if not packed:
        assert bytes(archive.view("data/0")) == ENTRIES["m/data/0"]


@pytest.mark.slow
def test_an_archive_of_more_than_65_535_entries_is_read() -> None:
    names = [f"m/{i:05}".encode() for i in range(66_000)]
    local, central = [], []
    for at, name in enumerate(names):
        local.append(struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name)
        header = at * len(local[0])
        central.append(
            struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, header)
            + name
        )
    begin, length, count = sum(map(len, local)), sum(map(len, central)), len(names)
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + length, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, length, begin, 0)
    content = b"".join([*local, *central, wide, locator, end])
    found = read_directory(lambda size, at: content[at : at + size], len(content))
    assert list(found) == [name.decode() for name in names]


def test_sizes_of_64_bits_are_read_from_where_zip64_keeps_them(tmp_path: Path) -> None:
    """A sparse archive: its last entry lies behind 5 GiB."""
    path, far = tmp_path / "far.zip", 5 << 30
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m/a", b"first")
        archive.start_dir = far
        archive.writestr("m/b", b"last")
    made = ZipArchive(str(path))
    assert (made.entries["b"].header, made.read("b"), made.read("a")) == (far, b"last", b"first")


def _overlapping(content: bytes) -> bytes:
    """The second entry's directory record points at the first's header."""
    at = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)
    return content[: at + 42] + bytes(4) + content[at + 46 :]


def _enlarged(content: bytes) -> bytes:
    at = content.index(b"PK\x01\x02")
    return content[: at + 20] + struct.pack("<2L", 1 << 30, 1 << 30) + content[at + 28 :]


def _outside(content: bytes) -> bytes:
    at = content.rindex(b"PK\x01\x02")
    return content[: at + 42] + struct.pack("<L", 0x7FFFFFFF) + content[at + 46 :]


def _counted(content: bytes) -> bytes:
    at = content.rindex(b"PK\x05\x06")
    return content[: at + 8] + struct.pack("<2H", 60000, 60000) + content[at + 12 :]


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda c: c[:-30], "cut off"),
    "no directory": (lambda c: c[: c.index(b"PK\x01\x02")], "lacks the directory"),
    "entries over each other": (_overlapping, "overlap"),
    "more bytes than there are": (_enlarged, "overlap|outside"),
    "an entry outside the file": (_outside, "outside"),
    "more entries than there are": (_counted, "larger than the file"),
    "a damaged directory": (lambda c: c.replace(b"PK\x01\x02", b"PK\x01\x03"), "damaged"),
    "nothing": (lambda c: b"", "cut off"),
    "zeros": (lambda c: bytes(2000), "cut off"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    change, expected = BROKEN[name]
    content = Path(written(tmp_path / "good.zip", ENTRIES)).read_bytes()
    changed = change(content)
    bad = tmp_path / "bad.zip"
    bad.write_bytes(changed)
    with pytest.raises(BadModel, match=expected) as error:
        ZipArchive(str(bad))
    assert "\n" not in str(error.value)
    assert "bad.zip" in str(error.value)


def test_two_entries_of_one_name_are_refused_as_every_reader_sees_another(tmp_path: Path) -> None:
    content = Path(written(tmp_path / "good.zip", {"m/a": b"one", "m/b": b"two"})).read_bytes()
    (tmp_path / "twice.zip").write_bytes(content.replace(b"m/b", b"m/a"))
    with pytest.raises(BadModel, match="two entries are called 'm/a'"):
        ZipArchive(str(tmp_path / "twice.zip"))


def test_a_bomb_is_refused_by_the_size_that_it_claims(tmp_path: Path) -> None:
    path = written(
        tmp_path / "bomb.zip", {"m/code.py": bytes(70 << 20), "m/data.pkl": bytes(9 << 20)}, packed=True
    )
    assert os.path.getsize(path) < 1 << 20
    archive = ZipArchive(path)
    for name in ("code.py", "data.pkl"):
        with pytest.raises(BadModel, match="bytes unpacked"):
            archive.read(name)


def test_a_size_that_lies_is_found_when_it_is_unpacked(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "lie.zip", {"m/a.py": bytes(1 << 20)}, packed=True))
    content = path.read_bytes()
    at = content.index(b"PK\x01\x02")
    path.write_bytes(content[: at + 24] + struct.pack("<L", 100) + content[at + 28 :])
    with pytest.raises(BadModel, match="damaged"):
        ZipArchive(str(path)).read("a.py")


def test_whatever_a_byte_becomes_it_is_read_or_refused(tmp_path: Path) -> None:
    content, draw = Path(written(tmp_path / "good.zip", ENTRIES)).read_bytes(), random.Random(7)
    begin = content.index(b"PK\x01\x02")
    refused = 0
    for _ in range(1000):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(begin, len(changed))] = draw.randrange(256)
        held = bytes(changed)
        try:
            read_directory(lambda size, at, held=held: held[at : at + size], len(held))
        except BadModel:
            refused += 1
    assert 0 < refused < 1000
