"""Subprocess for onnx.shape_inference.

It is native code, and a graph that nobody would write ends it: an index beyond a list aborts the process,
a count of 2^62 keeps it busy for good. Neither can be caught, so it runs where its end is only an answer
that did not come. The process is started when it is first needed, and asked many times; it has a second of
processor time for each question (more for a large one), a GiB of memory, and no way to the terminal.

This file is both ends. The child runs it by its path and imports onnx, which the parent then need not do.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import sys
import threading
from typing import IO, Any

MEMORY = 1 << 30
SECOND_PER = 1 << 16
"""Bytes of a graph for which inference may take another second; it needs some ten milliseconds."""

_HEAD = 8


class GraphRefused(Exception):
    """Inference refuses the graph as wrong."""


class InferenceDied(Exception):
    """Inference ended without an answer, or took too long."""


class _Child:
    """The running process, and the lock for its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, model: bytes) -> Any:
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.end()
                self.process = subprocess.Popen(
                    [sys.executable, "-P", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            try:
                _send(self.process.stdin, model)
                answer = _received(self.process.stdout)
            except OSError:
                answer = None
            if answer is None:
                self.end()
                raise InferenceDied
            return json.loads(answer)

    def end(self) -> None:
        """Ends the process; it holds no data."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


_CHILD = _Child()
atexit.register(_CHILD.end)


def infer(model: bytes) -> list[tuple[str, int, list[int | str | None] | None]]:
    """Inferred types of the values of a model that is encoded without its weights.

    Returns:
        Name, code of the element type, and shape (None: unknown) of every tensor that it describes.

    Raises:
        Refused: It says that the graph is wrong; the words are onnx's.
        Died: It gave no answer.
    """
    answer = _CHILD.ask(model)
    if isinstance(answer, str):
        raise GraphRefused(answer)
    return [(name, code, shape) for name, code, shape in answer]


def _send(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(len(content).to_bytes(_HEAD, "little"))
    pipe.write(content)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the pipe."""
    head = pipe.read(_HEAD)
    if len(head) < _HEAD:
        return None
    size = int.from_bytes(head, "little")
    content = pipe.read(size)
    return content if len(content) == size else None


# the child


def _described(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value)
    return str(dim.dim_param) if kind == "dim_param" else None


def _answer(content: bytes) -> list[Any] | str:
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(content, data_prop=True).graph
    except Exception as error:  # any error: without this node the graph has another answer
        return str(error)[:2000]
    typed_values = []
    for value in (*graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            kind = value.type.tensor_type
            shape = [_described(d) for d in kind.shape.dim] if kind.HasField("shape") else None
            typed_values.append((value.name, int(kind.elem_type), shape))
    return typed_values


def _serve() -> None:
    import math
    import os
    import resource
    import signal

    # Ctrl+C is for the parent; when it ends, the pipe closes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the pipe is for answers: output of native code goes to stderr
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    import onnx.shape_inference  # noqa: F401

    while (content := _received(sys.stdin.buffer)) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(used.ru_utime + used.ru_stime + 0.5 + len(content) / SECOND_PER)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]  # the user's own, which nobody may raise
        least = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (least, hard))
        _send(answers, json.dumps(_answer(content)).encode())


if __name__ == "__main__":
    _serve()
