"""Answers that are kept are found again as they were, are bounded, and nobody else's are believed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from explorer.host import cache_folder, find_cache_folder
from explorer.host.cache_folder import CacheFolder


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(str(tmp_path / "cache"))


def kept(folder: CacheFolder, name: str) -> bytes | None:
    found = folder.read(name)
    return None if found is None else bytes(found)


def test_what_was_written_is_read_and_only_its_user_can(folder: CacheFolder) -> None:
    assert kept(folder, "a.info") is None
    assert folder.write("a.info", b"answer")
    assert kept(folder, "a.info") == b"answer"
    assert folder.write("a.info", b"another")
    assert kept(folder, "a.info") == b"another"
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(folder.path, "a.info")).st_mode & 0o777 == 0o600
    assert os.listdir(folder.path) == ["a.info"]


def test_any_byte_that_is_damaged_makes_it_no_answer(folder: CacheFolder) -> None:
    folder.write("a.info", b"answer")
    path = Path(folder.path, "a.info")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept(folder, "a.info") is None
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert kept(folder, "a.info") is None
    path.write_bytes(whole)
    os.rename(path, path.with_name("b.info"))
    assert kept(folder, "b.info") is None, "an answer to one question is none to another"


def test_what_others_may_have_written_is_not_believed(folder: CacheFolder, tmp_path: Path) -> None:
    folder.write("a.info", b"answer")
    path = Path(folder.path, "a.info")
    path.chmod(0o620)
    assert kept(folder, "a.info") is None
    path.chmod(0o600)
    Path(folder.path).chmod(0o777)
    assert kept(folder, "a.info") is None
    Path(folder.path).chmod(0o700)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert kept(folder, "a.info") is None
    path.unlink()
    os.mkfifo(path)
    assert kept(folder, "a.info") is None, "and nobody waits for a writer"


def test_a_folder_that_is_a_link_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "cache").symlink_to(tmp_path / "theirs")
    folder = CacheFolder(str(tmp_path / "cache"))
    assert not folder.write("a.info", b"answer")
    assert os.listdir(tmp_path / "theirs") == []
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o755


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), most_bytes=4_000)
    for at in range(5):
        assert folder.write(str(at), b"x" * 500)
        os.utime(tmp_path / str(at), (at, at))
    assert kept(folder, "0") is not None  # used just now
    assert folder.write("large", b"x" * 1_000)
    assert folder.write("more", b"x" * 900)
    assert kept(folder, "0") is not None
    assert kept(folder, "1") is None
    assert kept(folder, "4") is not None
    assert folder.measure_usage().bytes <= 4_000
    assert not folder.write("too much", b"x" * 2_000)


def test_files_are_bounded_in_number_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "MAX_FILES", 10)
    folder = CacheFolder(str(tmp_path))
    for at in range(30):
        folder.write(f"{at:02}", b"")
        os.utime(tmp_path / f"{at:02}", (at, at))
    assert sorted(os.listdir(tmp_path)) == [f"{at:02}" for at in range(20, 30)]


def test_what_a_killed_process_had_begun_to_write_goes_some_day(folder: CacheFolder) -> None:
    folder.write("a", b"")
    left, fresh = Path(folder.path, ".7-00000000.new"), Path(folder.path, ".8-00000000.new")
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    folder.write("b", b"")
    assert not left.exists()
    assert fresh.exists()


def test_where_nothing_can_be_written_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "cache", Path("/proc/self/nowhere")):
        folder = CacheFolder(str(path))
        assert not folder.write("a", b"")
        assert kept(folder, "a") is None
        assert (folder.measure_usage().files, folder.measure_usage().bytes) == (0, 0)
        folder.clear()
    full = CacheFolder(str(tmp_path / "full"))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert not full.write("a", b"")
    assert os.listdir(full.path) == []


def test_two_that_write_and_read_at_once_disturb_nobody(folder: CacheFolder) -> None:
    contents = [bytes([at]) * 50_000 for at in range(4)]
    wrong: list[bytes] = []

    def work(at: int) -> None:
        small = CacheFolder(folder.path, most_bytes=400_000)
        for turn in range(40):
            small.write(f"{turn % 5}", contents[at])
            found = kept(small, f"{(turn + at) % 5}")
            if found is not None and found not in contents:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_lies_where_the_system_keeps_what_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert find_cache_folder({"XDG_CACHE_HOME": "/caches"}) == "/caches/explorer"
    assert find_cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == "/h/.cache/explorer"
    assert find_cache_folder({"HOME": "/h"}) == "/h/.cache/explorer"
