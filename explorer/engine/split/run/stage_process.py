"""Process of a stage: takes micro-batches from the one before, runs its model, hands on what is read behind.

What arrives is read by a thread, so that the next micro-batch is there when the stage has ended this one; two
wait at most, and whoever sends more waits itself.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from explorer.base.failures import beyond
from explorer.engine.runtime.torch_arrays import as_array, as_tensor
from explorer.host import child

_WAITING = 2
"""Micro-batches that wait for a stage."""


def main() -> None:
    """A stage: one micro-batch after the other, until nobody sends any more."""
    inbound_end, outbound_end, status_end, alive = map(int, sys.argv[1:5])
    child.end_with(alive)
    inbound = Connection(inbound_end, writable=False)
    outbound, status = Connection(outbound_end, readable=False), Connection(status_end, readable=False)
    config = json.loads(sys.argv[5])
    try:
        names, outputs, run = loaded(config)
    except Exception as error:  # whoever started it says which stage this is
        status.send(("failed", " ".join(str(beyond(error) or error).split())))
        return
    status.send(("ready", None))
    waiting: queue.Queue[Any] = queue.Queue(_WAITING)
    threading.Thread(target=_take, args=(inbound, waiting), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        while (message := waiting.get()) is not None:
            batch, values = message
            began = time.monotonic()
            try:
                results = run([values[name] for name in names])
            except Exception as error:
                status.send(("failed", " ".join(str(error).split())))
                return
            ended = time.monotonic()
            values.update(zip(outputs, results, strict=True))
            outbound.send((batch, {name: values[name] for name in config["keep"] if name in values}))
            status.send(("ran", (batch, began, ended, time.monotonic())))


def _take(inbound: Connection, waiting: queue.Queue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(inbound.recv())
    waiting.put(None)


_Stage = tuple[Sequence[str], Sequence[str], Callable[[list[Any]], Sequence[Any]]]
"""Names of what goes in and comes out, and what runs it."""


def loaded(config: Mapping[str, Any]) -> _Stage:
    """A stage, ready to run."""
    load = _module if config["path"].endswith(".pt2") else _session
    return load(config["path"], config["threads"], config["reads"], config["makes"])


def _session(path: str, threads: int, *_: Sequence[str]) -> _Stage:
    import onnxruntime  # the pipes are there before it is

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # a stage that waits leaves the processor to the others
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    outputs = [tensor.name for tensor in session.get_outputs()]
    return names, outputs, lambda values: session.run(outputs, dict(zip(names, values, strict=True)))


def _module(path: str, threads: int, reads: Sequence[str], makes: Sequence[str]) -> _Stage:
    """A .pt2 file, read as data: torch's own loader runs what is in it."""
    import torch  # as late as onnxruntime

    from explorer.engine.formats.torch_replay import exported_program  # torch: seconds

    torch.set_num_threads(threads)
    module = exported_program.load(path).materialise()

    def run(values: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            outputs = module(*map(as_tensor, values))
        return [
            as_array(output) for output in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))
        ]

    return reads, makes, run
