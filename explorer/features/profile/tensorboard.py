"""A profile as TensorBoard's events: times as scalars, those of the layers as a histogram; a batch is a step.

tensorboardX writes them, an extra: it is small and needs no TensorFlow.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Profile
from explorer.host import input_files, output_files
from explorer.host.optional_packages import require
from explorer.host.output_files import atomic_write, made_folder

_ODD = re.compile(r"[^-/\w.]")
"""What TensorBoard has in no tag."""


def check(folder: str) -> None:
    """Refuses a folder before any work is done.

    Raises:
        Misuse: It is a file.
        MissingExtra: tensorboardX is not installed.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Misuse("is no folder", where=folder, hint="name a folder; TensorBoard reads all files in it")
    if not os.path.isdir(os.path.dirname(os.path.abspath(folder))):
        raise Misuse("there is no such folder", where=os.path.dirname(folder), hint="create it first")
    require("tensorboardX", "--tensorboard")


@contextmanager
def written(profiles: Sequence[Profile], folder: str) -> Iterator[str]:
    """A file of events in a folder once the block ends well; the folder is made where there is none, and
    what is in it stays.

    Yields:
        Its path.

    Raises:
        Misuse: It cannot be written.
    """
    writer = require("tensorboardX", "--tensorboard").SummaryWriter
    with tempfile.TemporaryDirectory() as place:
        # two of one second are two files
        with writer(place, filename_suffix=f".{uuid.uuid4().hex[:8]}") as log:
            for profile in profiles:
                step = profile.batch or profile.rows or 1
                for tag, value in _scalars(profile):
                    log.add_scalar(tag, value, step)
                times = [one.seconds.median for one in profile.layers if one.seconds is not None]
                if times:
                    log.add_histogram("layer_seconds", times, step)
        (name,) = os.listdir(place)
        target = os.path.join(folder, name)
        with made_folder(folder), atomic_write(target) as temporary:
            with (
                input_files.binary(os.path.join(place, name), internal=True) as events,
                output_files.binary(temporary) as file,
            ):
                shutil.copyfileobj(events, file)
            yield target


def _scalars(profile: Profile) -> Iterator[tuple[str, float]]:
    """Tags, and seconds."""
    yield "wall_seconds", profile.wall_seconds
    yield "overhead_seconds", profile.overhead_seconds
    groups = (
        ("layers", [(one.path, one.seconds.median) for one in profile.layers if one.seconds is not None]),
        ("operators", [(one.op, one.seconds) for one in profile.operators]),
        ("modules", [(one.path, one.seconds) for one in profile.modules]),
        ("other", [(one.name, one.seconds) for one in profile.other]),
        ("phases", [(one.name, one.seconds.median) for one in profile.phases]),
    )
    for group, rows in groups:
        for name, seconds in rows:
            yield f"{group}/{_ODD.sub('_', name).strip('/') or 'unnamed'}", seconds
