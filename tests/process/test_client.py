"""The engine in its own process: it can be stopped at once, and its death is one line, not the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer import BadModel, Cancelled, EngineDied, ExplorerError, Misuse, SweepSpec, TileSpec
from explorer.facts.roofline import Machine
from explorer.process.client import EngineProcess


@pytest.fixture
def engine(sample: Callable[[str], str]) -> Iterator[EngineProcess]:
    engine = EngineProcess(sample("lenet"))
    engine.start()
    yield engine
    engine.close()


def test_it_answers_like_the_session(engine: EngineProcess, sample: Any) -> None:
    from explorer import Session

    with Session(sample("lenet")) as session:
        assert engine.submit("analysis").future.result(120) == session.analysis()
        assert engine.submit("memory").future.result(120) == session.memory()
        machine = Machine("", 1e12, 1e11)
        assert engine.submit("roofline", machine).future.result(120) == session.roofline(machine)
        spec = SweepSpec(tuple((size, 16, 16) for size in range(1, 300)))  # more rows than one message holds
        assert engine.submit("sweep", spec).future.result(120).rows == session.sweep(spec).rows
        # a method that takes long says where it stands because the session's does; all can be asked for
        assert engine.submit("info").future.result(120) == session.info()
        located = engine.submit("locate", [layer.path for layer in session.analysis().layers[:3]])
        assert sorted(located.future.result(120).values()) == [0, 1, 2]


def test_errors_of_the_session_cross_the_process(sample: Any, tmp_path: Path) -> None:
    engine = EngineProcess(str(tmp_path / "nothing.onnx"))
    with pytest.raises(BadModel, match="no such file"):
        engine.submit("open").future.result(120)
    # and the engine still answers
    assert engine.submit("history").future.result(120).current == 0
    engine.close()


async def test_who_gives_up_waiting_for_an_answer_takes_none_from_others(engine: EngineProcess) -> None:
    asyncio.wrap_future(engine.submit("analysis").future).cancel()
    await asyncio.sleep(0.01)
    assert engine.submit("info").future.result(120).totals.params


@pytest.mark.slow
def test_a_misused_method_is_refused(engine: EngineProcess) -> None:
    for method in ("close", "restore", "_history", "nonsense", "source"):
        with pytest.raises(ExplorerError, match=f"no method '{method}'"):
            engine.submit(method).future.result(120)
    with pytest.raises(Misuse):
        engine.submit("plan", TileSpec((0, 0, 0))).future.result(120)


def test_a_killed_engine_is_an_error_and_the_next_job_finds_the_history(engine: EngineProcess) -> None:
    engine.submit("tile", TileSpec((16, 16, 16)), verify=False).future.result(120)
    assert engine.pid is not None
    job = engine.submit("verify")
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed"):
        job.future.result(120)
    history = engine.submit("history").future.result(120)
    assert history.current == 1
    assert engine.submit("diff").future.result(120).equal is False


_NO_MEMORY = b"OpenBLAS blas_thread_init: pthread_create failed: Resource temporarily unavailable\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "end", "said"),
    [
        (True, signal.SIGINT, "needs more memory than the limit"),
        (False, signal.SIGINT, "crashed with SIGINT, perhaps at the limit"),
        (True, signal.SIGSEGV, "crashed with SIGSEGV, perhaps at the limit"),
    ],
)
def test_an_end_is_told_by_what_this_engine_said_not_by_an_earlier_one(
    ours: bool, end: int, said: str, sample: Any, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    if not ours:
        log.write_bytes(_NO_MEMORY)
    engine = EngineProcess(sample("lenet"), folder=lambda: str(tmp_path), memory=1 << 30)
    try:
        engine.submit("info").future.result(120)
        if ours:
            with log.open("ab") as more:
                more.write(_NO_MEMORY)
        assert engine.pid is not None
        # while it is stopped, it cannot answer before it ends
        os.kill(engine.pid, signal.SIGSTOP)
        job = engine.submit("memory")
        os.kill(engine.pid, end)
        os.kill(engine.pid, signal.SIGCONT)
        with pytest.raises(EngineDied, match=said):
            job.future.result(120)
    finally:
        engine.close()


def test_a_job_can_be_stopped_at_once(sample: Any) -> None:
    engine = EngineProcess(sample("bert_tiny"), dims={"batch": 8, "sequence": 32})
    engine.start()
    first = engine.pid
    job = engine.submit("tile", TileSpec((8, 8, 8), form="unrolled"))
    later = engine.submit("history")
    while job.progress is None:
        assert not job.future.done()
        time.sleep(0.01)
    engine.stop(job)
    with pytest.raises(Cancelled):
        job.future.result(120)
    # what waited behind it is done by the new process
    assert later.future.result(120).current == 0
    assert engine.pid != first
    engine.close()


def test_closing_leaves_no_process_and_no_folder(engine: EngineProcess) -> None:
    engine.submit("tile", TileSpec((16, 16, 16)), verify=False).future.result(120)
    pid, folder = engine.pid, engine._workdir
    assert pid is not None
    assert os.listdir(folder)
    engine.close()
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_engine_ends_when_its_parent_does(sample: Any) -> None:
    import subprocess
    import sys

    code = (
        "import os, sys; from explorer.process.client import EngineProcess;"
        "e = EngineProcess(sys.argv[1]); e.start();"
        "e.submit('history').future.result(120); print(e.pid, e._workdir, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code, sample("lenet")], capture_output=True, text=True)
    pid, folder = done.stdout.split()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            assert not os.path.exists(folder)
            return
        time.sleep(0.05)
    raise AssertionError("the engine outlived its parent")
