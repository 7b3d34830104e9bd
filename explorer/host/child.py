"""Child processes of the program's own: how they begin, and end.

Python looks for modules in the current folder first, or beside the script: a json.py that lies among models
is not to be run by who looks at one of them. `-P` leaves both out, and not `-I`: what the user has installed,
and PYTHONPATH, stay. So this file is run by its path, and the package comes from where the file lies.
"""

from __future__ import annotations

import sys


def command(module: str, *words: str) -> list[str]:
    """The command that runs the `main` of a module in a process of its own; `words` are in its `sys.argv`."""
    return [sys.executable, "-P", __file__, module, *words]


def end_with(alive: int) -> None:
    """Has the system kill this process when nobody holds the other end of a pipe any more, however that came.

    Linux alone can. Elsewhere a thread waits for it, which gets no turn while native code keeps the
    interpreter's lock.

    Args:
        alive: The end of the pipe that could be read; the process that this one goes with holds the other.
    """
    import fcntl
    import os
    import select
    import signal

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        import threading

        def wait() -> None:
            select.select([alive], [], [])
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, name="parent", daemon=True).start()
    if select.select([alive], [], [], 0)[0]:
        os._exit(2)


def _run() -> None:
    import importlib
    import importlib.util
    import os

    package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")
    spec = importlib.util.spec_from_file_location("explorer", package)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["explorer"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    _run()
