"""Runs training steps of the stages in a folder with the folder's script: one process a stage, over gloo."""

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
from explorer.host.output_files import check_disk_space
from explorer.host.stopped_children import StoppedChildren

_POLL_SECONDS = 0.05
"""Seconds between two checks of the processes."""
_TIMEOUT_SECONDS = 120
"""Seconds for which a stage waits for its neighbor."""


def run_steps(
    folder: str,
    files: Sequence[str],
    workdir: str,
    schedules: Sequence[str],
    inputs: Mapping[str, torch.Tensor],
    micro_batches: int,
    cancel: Cancel,
) -> dict[str, list[dict[str, Any]]]:
    """Runs one training step of each schedule, with a learning rate of 0.

    Args:
        folder: Folder with the stages, their manifest and the script.
        files: File names of the stages.
        workdir: Empty folder for inputs and results.
        schedules: Names of the schedules: 'gpipe', '1f1b'.
        inputs: Inputs by name, with all micro-batches concatenated along the first axis.
        micro_batches: Number of micro-batches.
        cancel: Returns whether to stop; polled many times a second.

    Returns:
        For each schedule, a dictionary for each stage: 'gradients' by parameter name, and 'outputs', which
        is empty except for the last stage.

    Raises:
        BadModel: A stage cannot run.
        EngineDied: The process of a stage ended or is suspended.
        OSError: `workdir` has too little free space.
        Cancelled: `cancel` returned True.
    """
    inputs_path = os.path.join(workdir, "inputs.pt")
    check_disk_space(inputs_path, sum(tensor.nbytes for tensor in inputs.values()))
    torch.save(dict(inputs), inputs_path)
    arguments = ["--schedule", *schedules, "--micro-batches", str(micro_batches), "--lr", "0"]
    arguments += ["--input", inputs_path, "--save", workdir, "--timeout", str(_TIMEOUT_SECONDS)]
    store = _open_store()
    address = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    address |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_kill_processes, processes)
        for rank in range(len(files)):
            rank_environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(files)),
                **address,
            }
            log = stack.enter_context(output_files.open_binary(os.path.join(workdir, f"log{rank}")))
            alive, keep_alive = os.pipe()  # a pipe for each process, because only one reader sees it close
            stack.callback(os.close, keep_alive)
            module = "explorer.engine.split.torch.script_process"
            command = child.build_command(module, str(alive), os.path.join(folder, SCRIPT), *arguments)
            options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "pass_fds": [alive]}
            try:
                processes.append(subprocess.Popen(command, env={**os.environ, **rank_environment}, **options))
            finally:
                os.close(alive)
        _wait_for_processes(processes, files, workdir, cancel)
    return {
        name: [
            _load_results(os.path.join(workdir, f"{name}-stage{stage + 1}.pt")) for stage in range(len(files))
        ]
        for name in schedules
    }


def _load_results(path: str) -> Any:
    with input_files.open_binary(path) as file:
        return torch.load(file, weights_only=True)


def _wait_for_processes(
    processes: Sequence[subprocess.Popen[bytes]], files: Sequence[str], workdir: str, cancel: Cancel
) -> None:
    """Waits until all processes have ended; raises an error if a stage fails."""
    stopped = StoppedChildren()
    while any(process.poll() is None for process in processes):
        stop_if(cancel)
        _check_exits(processes, files, workdir)
        stopped.check([process.pid for process in processes], files)
        time.sleep(_POLL_SECONDS)
    _check_exits(processes, files, workdir)


def _check_exits(processes: Sequence[subprocess.Popen[bytes]], files: Sequence[str], workdir: str) -> None:
    """Raises an error if a stage failed.

    It names a killed process first: other stages fail because they lost their neighbor.
    """
    failed = [stage for stage, process in enumerate(processes) if process.poll()]
    if not failed:
        return
    stage = min(failed, key=lambda rank: processes[rank].returncode >= 0)
    code = processes[stage].returncode
    if code < 0:
        raise EngineDied(
            f"the process of stage {stage + 1} ended (killed by signal {-code})",
            where=files[stage],
            hint="the other stages were stopped; did memory run out?",
        )
    with input_files.open_text(os.path.join(workdir, f"log{stage}"), errors="replace") as log:
        log_lines = [line.strip() for line in log if line.strip()]
    raise BadModel(
        f"stage {stage + 1} failed: {log_lines[-1] if log_lines else f'exit code {code}'}", where=files[stage]
    )


def _kill_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _open_store() -> Any:
    """Opens the store through which the processes find each other, on a port reserved by an open socket."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = dist.TCPStore  # type: ignore[attr-defined]
        return store(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
