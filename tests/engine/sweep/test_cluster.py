"""A sweep on several processes: what a worker that dies was doing is done by another, and kept once."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import Cancelled, EngineDied, Misuse
from explorer.engine.sweep import cluster, processes
from explorer.engine.sweep.measure import Task
from explorer.facts.quantize import FormatSweepSpec
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.serving.sweep import ServingSweepSpec
from explorer.facts.sweep import SweepSpec
from explorer.session import sweep_files, sweep_formats, sweep_serving

ROOT = Path(__file__).parent.parent.parent.parent
TILES = tuple((m, k, 32) for m in (8, 16) for k in (8, 16, 32))


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts one of Dask's commands; all of them end with the test."""
    pytest.importorskip("distributed")
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}

    def start(command: str, *words: str) -> subprocess.Popen[str]:
        typed = [sys.executable, "-m", f"distributed.cli.dask_{command}", *words]
        process = subprocess.Popen(
            typed, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def address_of(scheduler: subprocess.Popen[str]) -> str:
    """Where a scheduler says that it listens."""
    assert scheduler.stderr is not None
    for line in scheduler.stderr:
        if found := re.search(r"Scheduler at:\s+(tcp://\S+)", line):
            return found[1]
    raise AssertionError("the scheduler ended")


@pytest.mark.slow
def test_a_worker_that_is_killed_half_way_costs_nothing(
    spawn: Callable[..., subprocess.Popen[str]],
    sample: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    scheduler = spawn("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    address = address_of(scheduler)
    words = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
    workers = [spawn("worker", address, *words) for _ in range(2)]
    kept, told = str(tmp_path / "results.db"), Counter[int]()

    def on_progress(progress: Any) -> None:
        if progress.phase == "sweeping":
            told[progress.done] += 1
            if len(told) == 3:
                workers[0].send_signal(signal.SIGKILL)

    asked = {"spec": SweepSpec(TILES), "verify": True, "draws": 1, "output": kept, "scheduler": address}
    fact = sweep_files(sample("lenet"), **asked, on_progress=on_progress)
    assert workers[0].wait(120) == -signal.SIGKILL
    assert fact.workers >= 1
    assert fact.made == fact.proved == len(fact.rows) == len(TILES)
    assert all(row.verified and row.proof_seconds for row in fact.rows)
    assert told == Counter(range(1, len(TILES) + 1))
    with contextlib.closing(sqlite3.connect(kept)) as found:
        rows = found.execute("select key from rows").fetchall()
    assert len(rows) == len(set(rows)) == len(TILES)
    again = sweep_files(sample("lenet"), **asked)
    assert (again.made, again.proved, again.rows) == (0, 0, fact.rows)

    # and a scheduler that is killed is one line
    def kill_the_scheduler(progress: Any) -> None:
        if progress.phase == "sweeping":
            scheduler.kill()

    with pytest.raises(EngineDied, match="the scheduler ended"):
        sweep_files(sample("lenet"), **asked, first_seed=7, on_progress=kill_the_scheduler)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_number_formats_on_a_cluster_say_what_one_process_says(
    spawn: Callable[..., subprocess.Popen[str]], sample: Callable[[str], Path], tmp_path: Path
) -> None:
    address = address_of(spawn("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"))
    spawn("worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
    spec, kept = FormatSweepSpec(("int8", "mxfp4"), per_layer=True), str(tmp_path / "results.db")
    there = sweep_formats(sample("lenet"), spec=spec, scheduler=address, output=kept)
    assert (there.workers, there.made) == (1, 22)
    here = sweep_formats(sample("lenet"), spec=spec, workers=1)
    assert [(r.key, r.snr_db, r.bitops) for r in there.rows] == [
        (r.key, r.snr_db, r.bitops) for r in here.rows
    ]
    assert sweep_formats(sample("lenet"), spec=spec, output=kept).made == 0


@pytest.mark.slow
def test_layouts_of_serving_on_a_cluster_are_those_of_one_process(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 128}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    address = address_of(spawn("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"))
    spawn("worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
    base = ServingSpec(16, tuple(range(8, 56, 8)), (1, 4), (1, 2))
    spec, kept = ServingSweepSpec(base, ("bf16", "int8")), str(tmp_path / "results.db")
    there = sweep_serving(tmp_path / "model", spec=spec, scheduler=address, output=kept)
    here = sweep_serving(tmp_path / "model", spec=spec)
    assert there.workers == 1
    assert there.made == len(there.rows) == 6 * 2 * 2 * 2
    assert there.rows == here.rows
    assert sweep_serving(tmp_path / "model", spec=spec, output=kept).made == 0


def test_no_weight_travels_to_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = numpy_helper.from_array(np.zeros((2048, 1024), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2048])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])],
        [weight],
    )
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert path.stat().st_size > 8 << 20
    sent: list[Task] = []

    def run(tasks: list[Task], done: Any, **_: Any) -> int:
        sent.extend(tasks)
        for task in tasks:
            done(task, pickle.loads(pickle.dumps(task))())
        return 2

    monkeypatch.setattr(processes, "run", run)
    fact = sweep_files(path, spec=SweepSpec(((64, 64, 64), (128, 128, 128))), verify=True, draws=1, workers=2)
    assert [row.verified for row in fact.rows] == [True, True]
    assert len(sent) == 2
    assert max(len(pickle.dumps(task)) for task in sent) < 4096


def test_every_processor_takes_part_where_that_saves_time(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def run(tasks: list[Task], done: Any, *, workers: int, **_: Any) -> int:
        asked.append(workers)
        for task in tasks:
            done(task, task.rows)
        return workers

    monkeypatch.setattr(processes, "run", run)
    monkeypatch.setattr(processes, "count_processors", lambda: 4)
    monkeypatch.setattr(processes, "count_fitting_workers", lambda nbytes: 3)
    many = SweepSpec(tuple((size, 16, 16) for size in range(1, 101)))
    assert sweep_files(sample("lenet"), spec=many).workers == 0
    assert sweep_files(sample("lenet"), spec=many, verify=True).workers == 3
    assert asked == [3]


def test_a_worker_that_has_another_file_of_that_name_says_so(
    sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(sample("lenet").read_bytes())

    def run(tasks: list[Task], done: Any, **_: Any) -> int:
        path.write_bytes(sample("mlp_128").read_bytes())
        for task in tasks:
            try:
                done(task, task())
            except Exception as error:
                done(task, error)
        return 1

    monkeypatch.setattr(processes, "run", run)
    with pytest.raises(Misuse, match="a different file with this name"):
        sweep_files(path, spec=SweepSpec(((64, 64, 64),)), workers=2)


def test_a_worker_of_another_version_is_refused(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(tasks: list[Task], done: Any, **_: Any) -> int:
        replace(tasks[0], version="0.0")()
        return 1

    monkeypatch.setattr(processes, "run", run)
    with pytest.raises(Misuse, match=r"needs version 0\.0"):
        sweep_files(sample("lenet"), spec=SweepSpec(((64, 64, 64),)), workers=2)


@pytest.mark.slow
def test_an_address_where_nobody_is_is_one_line(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 1.0)
    for address in ("tcp://127.0.0.1:1", "nonsense://x:1", "nowhere"):
        with pytest.raises(Misuse, match="dask scheduler"):
            sweep_files(sample("lenet"), spec=SweepSpec(((64, 64, 64),)), scheduler=address)


@pytest.mark.slow
def test_an_address_that_cannot_be_read_is_one_line_to_the_end(sample: Callable[[str], Path]) -> None:
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "explorer", "sweep", str(sample("lenet")), "--scheduler", "nowhere"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("explorer: nowhere: no scheduler answers there")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The workers that are started on this machine."""
    found: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def starting(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        found.append(popen(*args, **how))
        return found[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", starting)
    return found


@pytest.mark.slow
def test_workers_of_this_machine_say_what_one_process_says_even_if_they_all_die(
    sample: Callable[[str], Path], started: list[subprocess.Popen[bytes]]
) -> None:
    def on_progress(progress: Any) -> None:
        if progress.phase == "sweeping" and progress.done == 1:
            for process in started:
                process.kill()

    models = (sample("lenet"), sample("mlp_128"))
    asked = {"spec": SweepSpec(((16, 16, 16), (64, 64, 64))), "verify": True, "draws": 1}
    spread = sweep_files(*models, **asked, workers=2, on_progress=on_progress)
    assert len(started) == 4
    alone = sweep_files(*models, **asked, workers=1)
    assert (spread.workers, spread.made, spread.proved) == (2, 4, 4)
    assert (alone.workers, alone.made, alone.proved) == (0, 4, 4)
    assert [replace(row, proof_seconds=None, fingerprint="") for row in spread.rows] == [
        replace(row, proof_seconds=None) for row in alone.rows
    ]


def test_a_tiling_that_no_worker_survives_is_a_row_that_says_so(
    sample: Callable[[str], Path],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(processes, "_MAX_DEATHS", 2)
    monkeypatch.setattr("explorer.features.sweep.sweep._make_opener", lambda *_: partial(os._exit, 9))
    kept = str(tmp_path / "results.db")
    spec = SweepSpec(((16, 16, 16),))
    with pytest.raises(Misuse, match="the workers that tried it ended"):
        sweep_files(sample("lenet"), spec=spec, workers=2, verify=True, draws=1, output=kept)
    assert len(started) == 3, "it was tried twice"
    monkeypatch.undo()
    # it is not kept: another day there may be more memory
    assert sweep_files(sample("lenet"), spec=spec, workers=1, output=kept).made == 1


@pytest.mark.slow
def test_a_stop_ends_the_workers(
    sample: Callable[[str], Path], started: list[subprocess.Popen[bytes]]
) -> None:
    done: list[int] = []
    with pytest.raises(Cancelled):
        sweep_files(
            sample("lenet"),
            spec=SweepSpec(TILES),
            verify=True,
            draws=1,
            workers=2,
            cancel=lambda: bool(done),
            on_progress=lambda progress: done.append(1) if progress.phase == "sweeping" else None,
        )
    assert started
    assert all(process.poll() is not None for process in started)
