"""A running `explorer serve`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.terminal import ROOT


class Served:
    """A running `explorer serve`, its link, and the address without the token."""

    def __init__(self, source: Path, errors: Path | None = None, files: int | None = None) -> None:
        """Starts it.

        Args:
            source: What is served.
            errors: Where standard error goes; None leaves it alone.
            files: Files that it may have open at once.
        """
        command = [sys.executable, "-m", "explorer", "serve", str(source), "--port", "0"]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        with errors.open("wb") if errors is not None else contextlib.nullcontext() as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, text=True
            )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        self.said = self.process.stdout.readline()
        self.address, _, self.token = self.link.partition("/?token=")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def programs(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)
