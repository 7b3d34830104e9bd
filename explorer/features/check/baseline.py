"""Baseline file: the figures of models, which `explorer check --update` writes and later checks read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import msgspec

from explorer.base.compat import build_type
from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.facts.check import Baseline, BaselineModel
from explorer.host import input_files, output_files

_MAX_BYTES = 64 << 20
"""Maximum size of a baseline in bytes.

A baseline lists the path of each layer with an unknown figure. A tenth of this size is enough for 100,000
paths.
"""


def read_baseline(path: str) -> Baseline:
    """Read a baseline.

    Raises:
        Misuse: The file does not exist, cannot be read, or is not a baseline.
    """
    try:
        content = input_files.read_content(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        raise Misuse("there is no such baseline", where=path, hint="write it with --update") from None
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    try:
        return msgspec.json.decode(content, type=build_type(Baseline))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        reason = str(error)
        if reason[1:2].islower():  # not an abbreviation
            reason = reason[:1].lower() + reason[1:]
        hint = "write a new one with --update --force"
        raise Misuse(f"this is not a baseline: {reason}", where=path, hint=hint) from None


def check_baseline_target(
    path: str, models: tuple[str, ...], inputs: tuple[str, ...], *, overwrite: bool
) -> None:
    """Refuse a path that is a model or an input, or a file that is not a baseline unless `overwrite` is set.

    Raises:
        Misuse: The baseline cannot be written there.
    """
    if os.path.lexists(path) and not overwrite:
        read_baseline(path)
    output_files.check_target(path, overwrite=True, models=models, weights=(), inputs=inputs)


def write_baseline(path: str, models: Mapping[str, BaselineModel], *, overwrite: bool = False) -> None:
    """Write figures into a baseline. The figures of other models in the file stay.

    Args:
        path: Path of the file, which `check_baseline_target` has accepted.
        models: Figures by the name of the model.
        overwrite: Whether to replace a file that is not a baseline.
    """
    old_models: dict[str, BaselineModel] = {}
    if os.path.lexists(path):
        try:
            old_models = read_baseline(path).models
        except Misuse:
            if not overwrite:
                raise
    baseline = Baseline(1, dict(sorted({**old_models, **models}.items())), f"explorer {__version__}")
    with output_files.write_atomically(path, overwrite=True) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(json.dumps(msgspec.to_builtins(baseline), indent=2, ensure_ascii=False) + "\n")


def name_model(source: str, folder: str) -> str:
    """Return the name of a model in a baseline or in `pyproject.toml`.

    The name of a file is its path from the folder of the baseline, with '/' between the parts. It is the same
    in each working folder. Other names, such as 'resnet18', stay as they are.
    """
    path, colon, attribute = source, "", ""
    if not os.path.exists(source):
        path, colon, attribute = source.rpartition(":")
    if not path or not os.path.exists(path):
        return source
    try:
        relative_path = os.path.relpath(os.path.abspath(path), os.path.abspath(folder))
    except ValueError:  # another drive on Windows
        return source
    return relative_path.replace(os.sep, "/") + colon + attribute
