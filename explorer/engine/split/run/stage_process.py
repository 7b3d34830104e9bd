"""Process of a stage: receives micro-batches, runs its model, and sends the values that later stages read.

A thread receives the inputs into a queue, so that the next micro-batch is ready when the current one ends.
When the queue is full, the sender has to wait.
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

from explorer.base.failures import find_known_failure
from explorer.engine.runtime.torch_arrays import convert_to_array, convert_to_tensor
from explorer.host import child

_WAITING = 2
"""Maximum number of received micro-batches that wait for the stage."""


def main() -> None:
    """Runs the stage on one micro-batch after another, until the input pipe closes or the stage fails.

    The status pipe gets one of these messages: ('ready', None) after loading, ('failed', reason), or ('ran',
    (micro-batch, start, end, time when the outputs were sent)).
    """
    inbound_end, outbound_end, status_end, alive = map(int, sys.argv[1:5])
    child.die_with_parent(alive)
    inbound = Connection(inbound_end, writable=False)
    outbound, status = Connection(outbound_end, readable=False), Connection(status_end, readable=False)
    config = json.loads(sys.argv[5])
    try:
        names, outputs, run = load_stage(config)
    except Exception as error:  # the parent process adds the number of the stage
        status.send(("failed", " ".join(str(find_known_failure(error) or error).split())))
        return
    status.send(("ready", None))
    waiting: queue.Queue[Any] = queue.Queue(_WAITING)
    threading.Thread(target=_read_inputs, args=(inbound, waiting), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        while (message := waiting.get()) is not None:
            batch, values = message
            start = time.monotonic()
            try:
                results = run([values[name] for name in names])
            except Exception as error:
                status.send(("failed", " ".join(str(error).split())))
                return
            end = time.monotonic()
            values.update(zip(outputs, results, strict=True))
            outbound.send((batch, {name: values[name] for name in config["keep"] if name in values}))
            status.send(("ran", (batch, start, end, time.monotonic())))


def _read_inputs(inbound: Connection, waiting: queue.Queue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(inbound.recv())
    waiting.put(None)


_Stage = tuple[Sequence[str], Sequence[str], Callable[[list[Any]], Sequence[Any]]]
"""Names of the inputs and outputs, and the function that runs the stage."""


def load_stage(config: Mapping[str, Any]) -> _Stage:
    """Loads the model of a stage from its .pt2 or ONNX file.

    Args:
        config: 'path' of the file; number of 'threads'; and names of the inputs ('reads') and outputs
            ('makes'), which a .pt2 file does not store.
    """
    load = _load_program if config["path"].endswith(".pt2") else _load_onnx
    return load(config["path"], config["threads"], config["reads"], config["makes"])


def _load_onnx(path: str, threads: int, *_: Sequence[str]) -> _Stage:
    """Loads an .onnx file into onnxruntime, with `threads` threads."""
    import onnxruntime  # here, because the import is slow and the pipes must be connected first

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # a waiting stage must not occupy a processor that other stages need
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    outputs = [tensor.name for tensor in session.get_outputs()]
    return names, outputs, lambda values: session.run(outputs, dict(zip(names, values, strict=True)))


def _load_program(path: str, threads: int, reads: Sequence[str], makes: Sequence[str]) -> _Stage:
    """Loads a .pt2 file as data: torch's own loader would run code from the file."""
    import torch  # here, because the import is slow

    from explorer.engine.formats.torch_replay import exported_program  # imports torch

    torch.set_num_threads(threads)
    module = exported_program.load(path).materialize()

    def run(values: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            outputs = module(*map(convert_to_tensor, values))
        return [
            convert_to_array(output)
            for output in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))
        ]

    return reads, makes, run
