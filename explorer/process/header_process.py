"""Header process: what `header_reader` starts, which reads one header after the other in little memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

from explorer.engine.models.listing import model_file
from explorer.engine.models.torch.torchvision_names import torchvision_models
from explorer.host import child, memory_limit
from explorer.process.header_reader import MEMORY, TORCHVISION


def main() -> None:
    """The process that reads; its pipes are named on its command line."""
    requests = Connection(int(sys.argv[1]), writable=False)
    answers = Connection(int(sys.argv[2]), readable=False)
    child.end_with(int(sys.argv[3]))  # whatever it is in the middle of
    os.nice(5)  # who looks at the list has keys to press
    memory_limit.apply(MEMORY)
    with contextlib.suppress(EOFError, OSError):
        while True:
            path, seconds = requests.recv()
            # its default action ends the process, and needs no lock
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answer = torchvision_models() if path == TORCHVISION else model_file(path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.send(answer)
