"""Confinement: a process that works for somebody else names files below one folder only.

`explorer serve` sets the folder in the environment of a visitor's processes. Whatever they read or write
under a name that a user typed comes through `input_files` or `output_files`, which ask here.
"""

from __future__ import annotations

import os

from explorer.base.errors import Misuse

VARIABLE = "EXPLORER_SERVED"


def check(path: str) -> None:
    """Refuses a path that leads out of the folder, by whatever links; without a folder none is refused.

    Raises:
        Misuse: It does.
    """
    if not (folder := os.environ.get(VARIABLE)):
        return
    real = os.path.realpath(folder)
    # the folder of what may not be there yet
    if os.path.commonpath([real, os.path.realpath(path)]) != real:
        raise Misuse("this is outside the folder that is served", where=path, hint="name a file in it")


def check_model(source: str) -> None:
    """Refuses to open what is no file in the folder: a path out of it, code, a name; without one nothing.

    Raises:
        Misuse: It is none.
    """
    if not os.environ.get(VARIABLE):
        return
    if not os.path.exists(source):
        raise Misuse("only files of the folder that is served are opened", where=source)
    check(source)
