"""A limit of memory is kept, and meeting it is one line of text; what is not written to does not count."""

from __future__ import annotations

import faulthandler
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer import ExplorerError, TileSpec
from explorer.base.errors import Misuse
from explorer.host import memory_limit
from explorer.process import supervisor
from explorer.process.client import EngineProcess
from explorer.settings.parse import parse_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone limits memory so")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("8G", 8 << 30),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("1t", 1 << 40),
        ("2000000000", 2_000_000_000),
        ("1000000000000001", 10**15 + 1),
        ("9" * 15 + "T", 1 << 62),
    ],
)
def test_sizes_are_read_as_people_write_them(typed: str, size: int) -> None:
    assert parse_memory(typed) == size


@pytest.mark.parametrize("typed", ["", "8X", "-1G", "G", "1e9", "8G8", "1" * 20 + "T", "1K", "0"])
def test_what_is_no_size_is_one_line(typed: str) -> None:
    with pytest.raises(Misuse, match="--memory"):
        parse_memory(typed)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("Exception during initialization: std::bad_alloc"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("Failed to allocate memory for requested buffer of size 150994944"),
        ImportError("libtorch.so: failed to map segment from shared object"),
        ImportError("onnxruntime_pybind11_state.so: cannot map zero-fill pages"),
        RuntimeError("can't start new thread"),
    ],
)
def test_want_of_memory_is_known_in_every_librarys_words(error: Exception) -> None:
    assert memory_limit.is_out_of_memory(error)
    wrapped = ExplorerError("building the model failed")
    wrapped.__cause__ = error
    assert memory_limit.is_out_of_memory(wrapped)


def test_other_failures_are_not_want_of_memory() -> None:
    def parse() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise ExplorerError("nested too deep") from None

    with pytest.raises(ExplorerError) as caught:
        parse()
    assert not memory_limit.is_out_of_memory(caught.value)
    assert not memory_limit.is_out_of_memory(ExplorerError("no such file", where="net.onnx"))


def _in_child(work: Callable[[], int], limit: int = 512 * MIB) -> int:
    return supervisor.run(work, memory=limit)


def test_what_is_mapped_to_be_read_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(64 << 30)

    def work() -> int:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as weights:
            return weights[1 << 35]

    assert _in_child(work) == 0


def test_what_is_taken_counts() -> None:
    def work() -> int:
        try:
            bytearray(1 << 30)
        except MemoryError:
            return 7
        return 0

    assert _in_child(work) == 7


def test_native_code_that_aborts_is_one_line() -> None:
    def work() -> int:
        faulthandler.disable()  # pytest's own
        os.abort()

    with pytest.raises(ExplorerError, match=r"stopped by SIGABRT, perhaps at the limit of 512\.00 MiB"):
        _in_child(work)


def test_native_code_that_exits_is_one_line_too() -> None:
    with pytest.raises(ExplorerError, match=r"stopped by a library, perhaps at the limit"):
        _in_child(lambda: os._exit(1))


_KILLED = """
import os, signal, sys, time
from explorer.process import supervisor

def work():
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1_000)
    return 0

sys.exit(supervisor.run(work, memory=1 << 29))
"""


def test_a_polite_kill_reaches_the_work() -> None:
    # in a process of its own: another thread of this one might take the signal
    assert subprocess.run([sys.executable, "-c", _KILLED], timeout=120).returncode == 143


def test_a_verb_that_needs_more_says_so_in_one_line_and_writes_nothing(
    sample: Callable[[str], Path], tmp_path: Path
) -> None:
    target = tmp_path / "tiled.onnx"
    words = ["tile", str(sample("lenet")), "-o", str(target), "--quiet", "--memory"]
    done = _run([*words, "64M"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "64.00 MiB (--memory)" in done.stderr
    assert os.listdir(tmp_path) == []
    done = _run([*words, "4G"])
    assert done.returncode == 0, done.stderr
    assert target.exists()


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "explorer", *words], capture_output=True, text=True)


@pytest.mark.slow
def test_a_verb_under_a_limit_ends_with_its_parent(sample: Callable[[str], Path]) -> None:
    import psutil

    words = [sys.executable, "-m", "explorer", "tile", str(sample("mobilenet_small")), "--memory", "4G"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    end = time.monotonic() + 120
    while not children and process.poll() is None and time.monotonic() < end:
        children = psutil.Process(process.pid).children()
    assert children
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=120)[1]


@pytest.mark.slow
def test_the_engine_says_in_one_line_that_its_limit_is_met_and_goes_on(sample: Callable[[str], Path]) -> None:
    engine = EngineProcess(str(sample("mlp_128")), memory=160 * MIB)
    try:
        assert engine.submit("open").future.result(120).totals.params
        pid = engine.pid
        with pytest.raises(ExplorerError) as caught:
            engine.submit("tile", TileSpec((2, 2, 2), form="unrolled")).future.result(120)
        assert "\n" not in str(caught.value)
        assert "--memory" in str(caught.value)
        assert engine.submit("history").future.result(120).current == 0
        assert engine.submit("open").future.result(120).totals.params, "what it had opened it opens again"
        assert engine.pid == pid
    finally:
        engine.close()
