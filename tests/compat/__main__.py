"""Runs the tests of this folder in an environment for each set of versions, and prints a table."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from tests.compat.environment import Outcome, Unresolved, resolve, run_tests
from tests.compat.version_sets import SETS, VersionSet
from tests.compat.version_table import as_markdown, as_text, write_page
from tests.resolver import MISSING, find_uv


def outcome_of(asked: VersionSet, before: Sequence[Outcome]) -> Outcome:
    """Runs one set, or takes over what came of an earlier one with the same versions."""
    try:
        versions = resolve(asked)
        for other in before:
            if other.versions == versions:
                same = other.same_as or other.name
                return replace(other, name=asked.name, same_as=same, seconds=0.0)
        with tempfile.TemporaryDirectory(prefix="explorer-compat-") as folder:
            return run_tests(asked, versions, Path(folder))
    except Unresolved as error:
        first = next(iter(str(error).splitlines()), "uv said nothing")
        return Outcome(asked.name, {}, failed=1, failures=(first,))


def main(words: Sequence[str] | None = None) -> int:
    """0 where every set passed, 1 where one failed, 2 where uv is missing or a set has no such name."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument(
        "--set", action="append", choices=SETS, metavar="NAME", help="run this set; again for more"
    )
    parser.add_argument("--list", action="store_true", help="name the sets and run none")
    parser.add_argument(
        "--write", action="store_true", help="write the table into the manual's page `versions`"
    )
    given = parser.parse_args(words)
    if given.list:
        width = max(map(len, SETS))
        print("\n".join(f"{one.name:{width}}  {one.about}" for one in SETS.values()))
        return 0
    if given.write and given.set:
        parser.error("--write writes the table of all sets: leave out --set")
    if find_uv() is None:
        print(MISSING, file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    for name in given.set or SETS:
        outcome = outcome_of(SETS[name], outcomes)
        outcomes.append(outcome)
        ran = f"as {outcome.same_as}" if outcome.same_as else f"{outcome.seconds:.0f} s"
        print(
            f"{name}: {outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped, {ran}",
            flush=True,
        )
        print("".join(f"  {line}\n" for line in outcome.failures), end="", flush=True)
    print("", as_text(outcomes), sep="\n")
    if given.write:
        write_page(as_markdown(outcomes, platform.python_version(), date.today()))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
