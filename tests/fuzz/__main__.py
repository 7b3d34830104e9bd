"""Runs a target for some minutes at low priority, and says honestly what came of it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import keep
from tests.fuzz.limits import attempt, bounded_memory
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
CORPUS = Path(__file__).parent / "corpus"


def hunted(name: str, folder: Path, minutes: float) -> tuple[int, int, float]:
    """Runs the hunt, again if it dies; inputs tried, starts, and seconds of hunting."""
    until = time.monotonic() + 60 * minutes
    tried = starts = 0
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    while (left := until - time.monotonic()) > 5:
        starts += 1
        with open(folder / "log.txt", "ab") as log:
            at = log.tell()
            done = subprocess.run(
                [
                    "nice",
                    "-n",
                    "19",
                    sys.executable,
                    "-m",
                    "tests.fuzz.hunt",
                    name,
                    str(folder),
                    str(int(left)),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "EXPLORER_NO_CACHE": "1",  # nobody opens these again
                },
            )
        text = (folder / "log.txt").read_bytes()[at:].decode(errors="replace")
        counts = re.findall(r"number_of_executed_units:\s*(\d+)", text) or re.findall(r"^#(\d+)", text, re.M)
        tried += int(counts[-1]) if counts else 0
        if done.returncode and starts > 50:
            break
    return tried, starts, time.monotonic() - began


def confirmed(name: str, folder: Path) -> list[str]:
    """The finds that fail without instruments too: each line once."""
    target = TARGETS[name]
    run = target.prepare()
    lines = []
    with bounded_memory():
        for path in sorted((folder / "finds").glob(f"*{target.ending}")):
            find = attempt(run, str(path))
            if find is not None:
                lines.append(f"{find.key}  {path.name}")
    # what ended the process is tried in another
    for path in (folder / "finds").glob("*-*"):
        given = folder / f"again{target.ending}"
        given.write_bytes(path.read_bytes())
        words = [sys.executable, "-m", "tests.fuzz", name, "--one", str(given)]
        if subprocess.run(words, cwd=ROOT, stderr=subprocess.DEVNULL).returncode:
            lines.append(f"died: {path.name}")
    return lines


def once_each(finds: Path, ending: str) -> list[bytes]:
    """An input for each line of the program in which one was found: what is repaired must stay so."""
    chosen: dict[str, bytes] = {}
    for path in sorted(finds.glob("*")):
        if path.suffix == ending and path.with_suffix(".txt").exists():
            key = path.with_suffix(".txt").read_text().partition("\n")[0]
        elif not path.suffix:
            key = path.name  # of what killed the process there is no line
        else:
            continue
        content = path.read_bytes()
        if len(content) <= keep.LARGEST and len(content) < len(chosen.get(key, bytes(keep.LARGEST))):
            chosen[key] = content
    return list(chosen.values())[:20]


def take(name: str, folder: Path) -> tuple[int, int]:
    """Replaces the kept corpus of a target by the best of old and new; files and bytes."""
    target, own = TARGETS[name], CORPUS / name
    run = target.prepare()
    found = once_each(folder / "finds", target.ending)
    given = [p.read_bytes() for p in (*(folder / "corpus").glob("*"), *own.glob("*"))]
    with tempfile.TemporaryDirectory() as held:
        path = Path(held) / f"input{target.ending}"
        total = keep.TOTAL - sum(map(len, found))
        kept = {*found, *keep.chosen(run, [*target.seeds(), *given], path, total)}
    own.mkdir(parents=True, exist_ok=True)
    for old in own.glob("*"):
        old.unlink()
    for content in kept:
        (own / hashlib.sha1(content).hexdigest()[:16]).write_bytes(content)
    return len(kept), sum(map(len, kept))


def _last_line(log: Path) -> str:
    """The last line that the hunt wrote: what it died of."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "the hunt said nothing"


def main() -> int:
    """See the package."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="what to fuzz; without it they are listed")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where finds and inputs go")
    parser.add_argument("--keep", action="store_true", help="put what is worth keeping into the corpus")
    parser.add_argument("--one", type=Path, help="runs this one file, and says nothing if all is well")
    given = parser.parse_args()
    if given.target is not None and given.one is not None:
        with bounded_memory():
            find = attempt(TARGETS[given.target].prepare(), str(given.one), 10.0)
        print(find.text if find else "", end="")
        return 1 if find else 0
    if given.target is None:
        width = max(map(len, TARGETS))
        print("\n".join(f"{name:{width}}  {target.about}" for name, target in TARGETS.items()))
        print("nothing was fuzzed: name a target", file=sys.stderr)
        return 1
    if importlib.util.find_spec("atheris") is None and given.minutes:
        print("atheris is not installed: pip install 'explorer-nn[fuzz]'", file=sys.stderr)
        return 2
    folder = given.out / given.target
    tried, starts, seconds = hunted(given.target, folder, given.minutes)
    finds = confirmed(given.target, folder)
    print(f"{given.target}: {tried:,} inputs in {seconds:,.0f} s, {starts} starts, {len(finds)} finds")
    print("".join(f"  {line}\n" for line in finds), end="")
    if given.keep:
        files, size = take(given.target, folder)
        print(f"  kept: {files} files, {size:,} bytes")
    if not tried:
        why = _last_line(folder / "log.txt") if starts else "no time was left for it"
        print(f"nothing was fuzzed: {why}", file=sys.stderr)
    return 1 if finds or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
