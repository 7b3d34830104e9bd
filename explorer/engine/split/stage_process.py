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
from multiprocessing.connection import Connection
from typing import Any

from explorer.host import child

_WAITING = 2
"""Micro-batches that wait for a stage."""


def main() -> None:
    """A stage: one micro-batch after the other, until nobody sends any more."""
    given, handed, told, alive = map(int, sys.argv[1:5])
    child.end_with(alive)
    inbound = Connection(given, writable=False)
    outbound, status = Connection(handed, readable=False), Connection(told, readable=False)
    how = json.loads(sys.argv[5])
    try:
        session = _session(how["path"], how["threads"])
    except Exception as error:  # whoever started it says which stage this is
        status.send(("failed", " ".join(str(error).split())))
        return
    status.send(("ready", None))
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    waiting: queue.Queue[Any] = queue.Queue(_WAITING)
    threading.Thread(target=_take, args=(inbound, waiting), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        while (message := waiting.get()) is not None:
            batch, values = message
            began = time.monotonic()
            try:
                made = session.run(outputs, {name: values[name] for name in names})
            except Exception as error:
                status.send(("failed", " ".join(str(error).split())))
                return
            ended = time.monotonic()
            values.update(zip(outputs, made, strict=True))
            outbound.send((batch, {name: values[name] for name in how["keep"] if name in values}))
            status.send(("ran", (batch, began, ended)))


def _take(inbound: Connection, waiting: queue.Queue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(inbound.recv())
    waiting.put(None)


def _session(path: str, threads: int) -> Any:
    import onnxruntime  # the pipes are there before it is

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # a stage that waits leaves the processor to the others
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
