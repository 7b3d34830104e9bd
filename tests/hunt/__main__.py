"""`python -m tests.hunt KIND [--minutes N | --seed N]`: tries random cases, keeps the files of finds.

`screen` presses random keys, and keeps what was pressed before a find. `faults` plants thirty faults in
fifteen real models instead, and says how many `blame` names.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from tests.hunt import faults
from tests.hunt.hunting import KINDS, hunt_one, steps_of

NAMED_AT_LEAST = 28
"""Of thirty faults."""


def main() -> int:
    """Hunts; the exit code is 1 if there was a find, 2 if nothing was tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument(
        "kind",
        choices=(*KINDS, "screen", "faults"),
        help="tile random graphs, change them, press random keys, or plant faults",
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, help="this case alone")
    parser.add_argument("--first", type=int, help="the first seed; else one of the clock")
    parser.add_argument("--keep", type=Path, default=Path("hunt-finds"), help="folder for files of finds")
    given = parser.parse_args()
    first = given.seed if given.seed is not None else given.first
    seed = first if first is not None else int(time.time()) % 10**9
    print(f"{given.kind} from seed {seed}", flush=True)
    if given.kind == "faults":
        return plant(seed)
    end = time.monotonic() + 60 * given.minutes
    if given.kind == "screen":
        return press(seed, end, given.keep, once=given.seed is not None)
    tried = finds = 0
    with tempfile.TemporaryDirectory() as scratch:
        while time.monotonic() < end:
            find = hunt_one(given.kind, seed, Path(scratch))
            tried += 1
            if find is not None:
                finds += 1
                kept = given.keep / f"{given.kind}-{seed}"
                kept.mkdir(parents=True, exist_ok=True)
                for path in Path(scratch).glob("*.onnx"):
                    shutil.copy(path, kept)
                again = f"python -m tests.hunt {given.kind} --seed {seed}"
                print(f"seed {seed}, {find.steps} of {steps_of(seed)} steps: {find.what}", flush=True)
                print(f"  {kept}; again: {again}", flush=True)
            if given.seed is not None:
                break
            seed += 1
    print(f"{tried} tried, {finds} found")
    return 2 if not tried else 1 if finds else 0


def press(seed: int, end: float, keep: Path, *, once: bool) -> int:
    """Plays cases of random keys until `end`; the exit code is as for `main`."""
    from tests.hunt import random_hands  # imported here: it takes a second

    keep, tried, finds = keep.resolve(), 0, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as scratch, random_hands.playground(Path(scratch)):
            what, case = random_hands.hunt(seed)
        tried += 1
        if what:
            finds += 1
            keep.mkdir(parents=True, exist_ok=True)
            actions = "".join(f"{action}\n" for action in case.done)
            (keep / f"screen-{seed}.txt").write_text(f"{case.model}\n{what}\n{actions}", encoding="utf-8")
            print(f"seed {seed}, {case.model}, after {len(case.done)} actions: {what}", flush=True)
            print(
                f"  {keep / f'screen-{seed}.txt'}; again: python -m tests.hunt screen --seed {seed}",
                flush=True,
            )
        if once:
            break
        seed += 1
    print(f"{tried} tried, {finds} found")
    return 2 if not tried else 1 if finds else 0


def plant(seed: int) -> int:
    """Plants faults of a seed; the exit code is 1 if too few are named, or one is missed."""
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for fault in faults.hunt(seed, Path(scratch)):
            found.append(fault)
            said = "named" if fault.named else "behind" if fault.behind else "MISSED"
            print(f"{said}: {fault.model}, {fault.kind} {fault.node}: {fault.answer}", flush=True)
    named = sum(fault.named for fault in found)
    behind = sum(fault.behind and not fault.named for fault in found)
    print(f"{len(found)} planted, {named} named, {behind} by a node marked as behind the fault")
    return 0 if named >= NAMED_AT_LEAST and named + behind == len(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
