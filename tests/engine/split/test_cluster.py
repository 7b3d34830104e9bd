"""Stages on the workers of a Dask cluster: the same outputs, and who ends is named, so nothing waits on."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer import EngineDied, Session
from explorer.engine.split.run import cluster
from explorer.facts.split.split import SplitSpec
from explorer.session import run_pipeline
from tests.engine.sweep.test_cluster import address_of, spawn

__all__ = ["spawn"]


@pytest.mark.slow
def test_stages_run_on_workers_and_one_that_is_killed_or_stopped_is_named(
    spawn: Callable[..., subprocess.Popen[str]],
    sample: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(tmp_path / "stages")
    with Session(sample("lenet")) as session:
        session.split(SplitSpec(3), output=folder, verify=False)
    scheduler = spawn("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    address = address_of(scheduler)
    words = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
    workers = [spawn("worker", address, *words) for _ in range(2)]
    outputs = [str(tmp_path / name) for name in ("there.npz", "here.npz")]
    fact = run_pipeline(folder, micro_batches=5, output=outputs[0], scheduler=address)
    run_pipeline(folder, micro_batches=5, output=outputs[1])
    with np.load(outputs[0]) as there, np.load(outputs[1]) as here:
        np.testing.assert_array_equal(there["logits"], here["logits"])
    assert {one.worker.startswith("tcp://") for one in fact.stages} == {True}
    assert {one.pid for one in fact.stages} <= {one.pid for one in workers}

    def ended_by(process: subprocess.Popen[str], number: signal.Signals) -> str:
        def on_progress(progress: Any) -> None:
            if progress.phase == "running":
                process.send_signal(number)

        with pytest.raises(EngineDied) as told:
            run_pipeline(folder, micro_batches=100_000, scheduler=address, on_progress=on_progress)
        return str(told.value)

    with monkeypatch.context() as soon:
        soon.setattr(cluster, "_MAX_SILENT_SECONDS", 3.0)
        said = ended_by(workers[1], signal.SIGSTOP)
        assert re.search(r"the worker tcp://\S+ of stage \d no longer answers", said)
        workers[1].send_signal(signal.SIGCONT)
    assert re.search(r"the worker tcp://\S+ of stage \d ended", ended_by(workers[0], signal.SIGKILL))
    assert "the scheduler does not answer" in ended_by(scheduler, signal.SIGSTOP)
    scheduler.send_signal(signal.SIGCONT)
    assert "the scheduler ended" in ended_by(scheduler, signal.SIGKILL)
