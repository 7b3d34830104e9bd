"""Subprocess for onnx.shape_inference.

onnx's inference is native code that a malformed graph can crash: an index beyond a list aborts the process,
and a count of 2^62 makes it run without end. Python cannot catch either, so the inference runs in a process
of its own. The process starts on first use and answers many requests. Its limits are one second of processor
time for each request (more for a large one), 1 GiB of memory, and no access to the terminal.

This file contains the code of both processes. The child process runs this file as a script and imports onnx,
so the parent process does not import onnx.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import sys
import threading
from typing import IO, Any

MEMORY_LIMIT = 1 << 30
"""Maximum bytes of memory of the child process."""

BYTES_PER_SECOND = 1 << 16
"""Bytes of a graph for which the time limit grows by one second. Inference needs about 10 ms for them."""

_HEADER_BYTES = 8
"""Bytes of the length that precedes each message."""


class GraphRefused(Exception):
    """onnx's inference rejects the graph."""


class InferenceDied(Exception):
    """The inference ended without an answer, or took too long."""


class _Child:
    """The child process, if it runs, and the lock for its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, model: bytes) -> Any:
        """Sends a model to the child process and returns its answer. Starts the process if necessary.

        Raises:
            InferenceDied: The process gave no answer.
        """
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
                answer = _receive(self.process.stdout)
            except OSError:
                answer = None
            if answer is None:
                self.end()
                raise InferenceDied
            return json.loads(answer)

    def end(self) -> None:
        """Kills the child process."""
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


def infer(model: bytes) -> list[tuple[str, int, list[int | str | None] | None, bytes]]:
    """Infers the types of the values of an encoded model without weights.

    Returns:
        Name, element type code, and shape (or None if unknown) of every value that onnx describes. A value
        that is not a tensor, such as a sequence, has code 0, and its encoded TypeProto is the last item.

    Raises:
        GraphRefused: onnx rejects the graph; the message is onnx's.
        InferenceDied: The process gave no answer.
    """
    answer = _CHILD.ask(model)
    if isinstance(answer, str):
        raise GraphRefused(answer)
    return [(name, code, shape, bytes.fromhex(encoded)) for name, code, shape, encoded in answer]


def _send(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(len(content).to_bytes(_HEADER_BYTES, "little"))
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Reads the next message, or returns None at the end of the pipe."""
    head = pipe.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        return None
    size = int.from_bytes(head, "little")
    content = pipe.read(size)
    return content if len(content) == size else None


# -- code of the child process --------------------------------------------------------------------


def _describe_dim(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value)
    return str(dim.dim_param) if kind == "dim_param" else None


def _infer_in_child(content: bytes) -> list[Any] | str:
    """Infers an encoded model. Returns the values as `infer` does, or onnx's error message."""
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(content, data_prop=True).graph
    except Exception as error:  # onnx may raise any error for one bad node
        return str(error)[:2000]
    typed_values = []
    for value in (*graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            kind = value.type.tensor_type
            shape = [_describe_dim(d) for d in kind.shape.dim] if kind.HasField("shape") else None
            typed_values.append((value.name, int(kind.elem_type), shape, ""))
        elif value.type.WhichOneof("value") is not None:
            typed_values.append((value.name, 0, None, value.type.SerializeToString().hex()))
    return typed_values


def _serve() -> None:
    """Answers requests until the parent closes the pipe."""
    import math
    import os
    import resource
    import signal

    # Ctrl+C stops the parent, and then the pipe closes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # only answers go through the pipe; output of native code goes to stderr
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    import onnx.shape_inference  # noqa: F401

    while (content := _receive(sys.stdin.buffer)) is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(usage.ru_utime + usage.ru_stime + 0.5 + len(content) / BYTES_PER_SECOND)
        # the user's hard limit cannot be raised
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        limit = seconds if hard_limit == resource.RLIM_INFINITY else min(seconds, hard_limit)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard_limit))
        _send(answers, json.dumps(_infer_in_child(content)).encode())


if __name__ == "__main__":
    _serve()
