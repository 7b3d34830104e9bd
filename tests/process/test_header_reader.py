"""Headers are read beside the program: a reader ends with it, and one that breaks is replaced."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from explorer.process.header_reader import HeaderReader

Sample = Callable[[str], Path]

_KILLED = """
import os, sys
from explorer.process.header_reader import HeaderReader
reader = HeaderReader()
assert reader.read(sys.argv[1]).params == 61_706
print(*(one._process.pid for one in reader._running_children), flush=True)
os._exit(1)
"""


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_no_reader_behind(sample: Sample) -> None:
    ran = subprocess.run([sys.executable, "-c", _KILLED, sample("lenet")], stdout=subprocess.PIPE, text=True)
    (pid,) = map(int, ran.stdout.split())
    try:
        psutil.Process(pid).wait(120)
    except psutil.NoSuchProcess:
        pass
    assert not psutil.pid_exists(pid)


def test_a_reader_that_breaks_costs_its_own_header_only(sample: Sample) -> None:
    reader = HeaderReader()
    try:
        assert reader.read(str(sample("lenet"))).params == 61_706
        (child,) = reader._running_children
        os.kill(child._process.pid, signal.SIGKILL)
        child._process.wait()
        broken = reader.read(str(sample("lenet")))
        assert broken is not None
        assert "or breaks its reader" in broken.note
        assert reader.read(str(sample("lenet"))).params == 61_706
    finally:
        reader.close()


def test_a_reader_that_cannot_start_reports_the_reason(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    reader = HeaderReader()
    try:
        note = reader.read(str(sample("lenet"))).note
    finally:
        reader.close()
    assert "Too many open files" in note
    assert "GiB" not in note


def test_a_header_that_is_read_while_the_reader_closes_is_not_read(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = HeaderReader()
    poll = Connection.poll

    def close_first(connection: Connection, timeout: float) -> bool:
        reader.close()
        return poll(connection, timeout)

    monkeypatch.setattr(Connection, "poll", close_first)
    assert reader.read(str(sample("lenet"))).note == "not read"
