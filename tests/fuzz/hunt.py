"""The process that fuzzes: `python -m tests.fuzz.hunt TARGET FOLDER SECONDS`, started by `tests.fuzz`.

libFuzzer ends at the first find. Here a find is written down, with the input and the traceback, once or
twice for each line of the program in which it happens, and the hunt goes on: ten minutes should say more
than that something is wrong. What kills the process (native code) ends it, and it is started again.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import sys
import tempfile
from pathlib import Path

import atheris

from tests.fuzz.limits import MEMORY, SECONDS, Find, attempt, bounded_memory
from tests.fuzz.targets import TARGETS

_SLOWER = 3
"""How much slower instrumented code is: a find of the clock's is tried again without instruments."""


class _Hunt:
    def __init__(self, name: str, folder: Path) -> None:
        self.target = TARGETS[name]
        self.finds = folder / "finds"
        self.corpus = folder / "corpus"
        for made in (self.finds, self.corpus):
            made.mkdir(parents=True, exist_ok=True)
        # in memory, under a name of its own: the last run's file is written over
        held = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
        self.path = os.path.join(held, f"explorer-fuzz-{os.getuid()}-{folder.name}{self.target.ending}")
        self.seen: dict[str, int] = {}
        for known in self.finds.glob("*.txt"):
            key = known.read_text().partition("\n")[0]
            self.seen[key] = self.seen.get(key, 0) + 1
        self.highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def seeds(self) -> None:
        kept = Path(__file__).parent / "corpus" / self.folder_name
        contents = [p.read_bytes() for p in kept.glob("*")] if kept.is_dir() else []
        for content in (*contents, *self.target.seeds()):
            (self.corpus / hashlib.sha1(content).hexdigest()).write_bytes(content)

    @property
    def folder_name(self) -> str:
        return self.finds.parent.name

    def prepare(self) -> None:
        """Imports under instruments, also what is imported at the first use."""
        with atheris.instrument_imports(include=["explorer"], enable_loader_override=False):
            self.run = self.target.prepare()
            for seed in sorted(self.corpus.iterdir())[:40]:
                Path(self.path).write_bytes(seed.read_bytes())
                attempt(self.run, self.path, 60)

    def one(self, data: bytes) -> None:
        with open(self.path, "wb") as file:
            file.write(data)
        find = attempt(self.run, self.path, SECONDS * _SLOWER)
        if find is None:
            # memory that was taken and refused again in time leaves no error behind
            now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if now - self.highest > MEMORY * 0.9 / 1024:
                find = Find("memory", f"{now - self.highest:,} KiB more than before", "?")
            self.highest = max(self.highest, now) if find else self.highest
        if find is not None:
            self.note(find, data)

    def note(self, find: Find, data: bytes) -> None:
        count = self.seen.get(find.key, 0)
        self.seen[find.key] = count + 1
        if count < 3:
            stem = self.finds / f"{hashlib.sha1(data).hexdigest()[:12]}"
            stem.with_suffix(self.target.ending).write_bytes(data)
            stem.with_suffix(".txt").write_text(f"{find.key}\n{find.text}", errors="backslashreplace")
            print(f"find: {find.key}", file=sys.stderr)

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)

        def blind(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max(len(part) + 32, 16)))

        made = self.target.mutate(data, chance, blind)
        return made if len(made) <= most else bytes(atheris.Mutate(data, most))


def main(name: str, folder: str, seconds: str) -> None:
    """Never returns: libFuzzer ends the process."""
    hunt = _Hunt(name, Path(folder))
    hunt.seeds()
    hunt.prepare()
    largest = max(p.stat().st_size for p in hunt.corpus.iterdir())
    atheris.Setup(
        [
            sys.argv[0],
            str(hunt.corpus),
            f"-max_total_time={seconds}",
            f"-max_len={max(2 * largest, 4096)}",
            "-timeout=30",
            "-rss_limit_mb=4096",
            f"-artifact_prefix={hunt.finds}/",
            "-print_final_stats=1",
            "-reload=0",
        ],
        hunt.one,
        custom_mutator=hunt.mutate,
    )
    with bounded_memory():
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
