"""Starts and ends child processes of the program.

By default, Python searches modules in the current folder or next to the script first. A json.py among a
user's models must not run when the user opens a model. The option `-P` excludes both folders. The option `-I`
would also exclude the user's own packages and PYTHONPATH. Therefore the child runs this file by its path, and
it finds the package relative to the file.
"""

from __future__ import annotations

import sys


def build_command(module: str, *words: str) -> list[str]:
    """Returns the command that runs `main` of a module in a new process, with `words` in its `sys.argv`."""
    return [sys.executable, "-P", __file__, module, *words]


def die_with_parent(parent_pipe: int) -> None:
    """Makes the system kill this process when the other end of a pipe closes for any reason.

    Linux can do this with a signal. On other systems a thread waits for the end of the pipe; it cannot run
    while native code holds the interpreter's lock.

    Args:
        parent_pipe: Read end of the pipe. The parent process holds the write end.
    """
    import fcntl
    import os
    import select
    import signal

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(parent_pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent_pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        import threading

        def wait() -> None:
            select.select([parent_pipe], [], [])
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, name="parent", daemon=True).start()
    if select.select([parent_pipe], [], [], 0)[0]:
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
