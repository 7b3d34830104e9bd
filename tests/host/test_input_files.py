"""Whatever a user names as a small file, the program neither waits for it nor reads it for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.base.errors import Misuse
from explorer.engine.operators import user
from explorer.settings import machines, tiling

MOST = 20.0
"""Seconds of the processor: of what takes for ever, that is little."""

READERS: dict[str, Callable[[str], object]] = {
    "--config": tiling.read,
    "config.toml": machines.read_hardware_profiles,
    "--machine": machines.find_hardware,
    "--rules": lambda path: user.load(path, trust=True),
}


@pytest.mark.parametrize("option", READERS)
def test_a_device_and_a_pipe_are_refused_at_once(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    for path, said in (
        ("/dev/zero", "regular"),
        (str(tmp_path / "pipe.toml"), "regular|machine"),
        (str(large), "16 MiB"),
    ):
        started = time.process_time()
        with pytest.raises(Misuse, match=said):
            READERS[option](path)
        assert time.process_time() - started < MOST


@pytest.mark.parametrize("option", ["--config", "config.toml"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 100_000 + " = 1", ":2: a key has too many parts"),
        ("[" + "'a.b' . " * 100_000 + "a]", ":2: a key has too many parts"),
        ("x = " + "[" * 100_000, "nested too deep"),
        ("x = " + "1" * 5_000, "limit"),
    ],
    ids=["dots", "quoted", "nested", "digits"],
)
def test_what_takes_for_ever_to_read_is_refused_at_once(
    tmp_path: Path, option: str, text: str, said: str
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"# a name may have many dots: {'a ' * 100}\n{text}\n")
    started = time.process_time()
    with pytest.raises(Misuse, match=said):
        READERS[option](str(path))
    assert time.process_time() - started < MOST


def test_names_with_many_dots_and_brackets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    names = [f"{'layer.' * 100}{number}[0]" for number in range(500)]
    lines = "".join(f"  {name!r},\n" for name in names)
    path.write_text(f"[tile]\nsize = 16\n\n[[site]]\nsite = [\n{lines}]\non = false\n")
    started = time.process_time()
    with pytest.raises(Misuse, match="site"):
        tiling.read(str(path))
    path.write_text(f"[[site]]\nsite = {names[0]!r}\non = false\n")
    assert tiling.read(str(path)).rules[0].site == names[0]
    assert time.process_time() - started < MOST
