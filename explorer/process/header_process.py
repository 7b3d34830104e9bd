"""Header process: reads one header after another, with limited memory. `header_reader` starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

from explorer.engine.models.listing import read_model_file
from explorer.engine.models.torch.torchvision_names import list_torchvision_models
from explorer.host import child, memory_limit
from explorer.process.header_reader import MEMORY, TORCHVISION


def main() -> None:
    """Runs the header process. The command-line arguments are the descriptors of its pipes."""
    requests = Connection(int(sys.argv[1]), writable=False)
    answers = Connection(int(sys.argv[2]), readable=False)
    child.die_with_parent(int(sys.argv[3]))  # also in the middle of a header
    os.nice(5)  # the screen must stay responsive
    memory_limit.limit_memory(MEMORY)
    with contextlib.suppress(EOFError, OSError):
        while True:
            path, seconds = requests.recv()
            # the default action of SIGPROF ends the process without running Python code
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answer = list_torchvision_models() if path == TORCHVISION else read_model_file(path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.send(answer)
