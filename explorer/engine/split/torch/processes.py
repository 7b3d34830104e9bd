"""Training steps of the stages in a folder, run as the folder's script does: processes that use gloo."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from explorer.base.errors import BadModel, EngineDied
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.split.torch.stages import SCRIPT
from explorer.host import child, input_files, output_files
from explorer.host.output_files import check_room
from explorer.host.stopped_children import StoppedChildren

_LOOK = 0.05
"""Seconds between two checks of the processes."""
_SILENCE = 120
"""Seconds after which a stage gives up on its neighbor."""


def steps(
    folder: str,
    files: Sequence[str],
    place: str,
    schedules: Sequence[str],
    inputs: Mapping[str, torch.Tensor],
    micro_batches: int,
    cancel: Cancel,
) -> dict[str, list[dict[str, Any]]]:
    """Runs one step of each schedule, forward and backward, without changing a weight.

    Args:
        folder: The folder with the stages, their manifest and the script.
        files: File names of the stages.
        place: An empty folder for inputs and results.
        schedules: Names of schedules: 'gpipe', '1f1b'.
        inputs: Inputs by name, with all micro-batches concatenated.
        micro_batches: The number of micro-batches.
        cancel: Polled many times a second.

    Returns:
        For each schedule and stage, 'gradients' by parameter name, and for the last stage 'outputs'.

    Raises:
        BadModel: A stage cannot run.
        EngineDied: A stage's process ended, or is stopped.
        OSError: There is no room in `place`.
        Cancelled: `cancel` said so.
    """
    inputs_path = os.path.join(place, "inputs.pt")
    check_room(inputs_path, sum(tensor.nbytes for tensor in inputs.values()))
    torch.save(dict(inputs), inputs_path)
    words = [
        "--schedule",
        *schedules,
        "--micro-batches",
        str(micro_batches),
        "--lr",
        "0",
        "--input",
        inputs_path,
    ]
    words += ["--save", place, "--timeout", str(_SILENCE)]
    store = _meeting_point()
    address = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    address |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_kill, processes)
        for rank in range(len(files)):
            around = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(files)), **address}
            log = stack.enter_context(output_files.binary(os.path.join(place, f"log{rank}")))
            alive, living = os.pipe()  # one per process: only one reader learns that a pipe has closed
            stack.callback(os.close, living)
            module = "explorer.engine.split.torch.script_process"
            command = child.command(module, str(alive), os.path.join(folder, SCRIPT), *words)
            options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "pass_fds": [alive]}
            try:
                processes.append(subprocess.Popen(command, env={**os.environ, **around}, **options))
            finally:
                os.close(alive)
        _await(processes, files, place, cancel)
    return {
        name: [_load_results(os.path.join(place, f"{name}-stage{at + 1}.pt")) for at in range(len(files))]
        for name in schedules
    }


def _load_results(path: str) -> Any:
    with input_files.binary(path) as file:
        return torch.load(file, weights_only=True)


def _await(
    processes: Sequence[subprocess.Popen[bytes]], files: Sequence[str], place: str, cancel: Cancel
) -> None:
    """Waits until all processes have ended successfully."""
    stopped = StoppedChildren()
    while any(process.poll() is None for process in processes):
        stop_if(cancel)
        _check_exits(processes, files, place)
        stopped.check([process.pid for process in processes], files)
        time.sleep(_LOOK)
    _check_exits(processes, files, place)


def _check_exits(processes: Sequence[subprocess.Popen[bytes]], files: Sequence[str], place: str) -> None:
    """Reports a stage that failed; a killed process takes precedence over those that lost their neighbor."""
    failed = [at for at, process in enumerate(processes) if process.poll()]
    if not failed:
        return
    at = min(failed, key=lambda rank: processes[rank].returncode >= 0)
    code = processes[at].returncode
    if code < 0:
        raise EngineDied(
            f"the process of stage {at + 1} ended (killed by signal {-code})",
            where=files[at],
            hint="the other stages were stopped; for want of memory?",
        )
    with input_files.text(os.path.join(place, f"log{at}"), errors="replace") as log:
        log_lines = [line.strip() for line in log if line.strip()]
    raise BadModel(
        f"stage {at + 1} failed: {log_lines[-1] if log_lines else f'exit code {code}'}", where=files[at]
    )


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _meeting_point() -> Any:
    """A store where the processes meet, on a port that no other process can take, as in torchrun."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = dist.TCPStore  # type: ignore[attr-defined]
        return store(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
