"""Lines of code by room: none grows above its limit in `lines.toml`, and no limit grows without a reason.

A commit that raises a limit says why in a line of its message that begins with 'Lines: '.
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = "tests/lines.toml"


def limits(text: str) -> dict[str, int]:
    """The limit of each room."""
    return dict(tomllib.loads(text)["lines"])


def lines(room: str) -> int:
    """Lines of the Python files of a room; of `kernels` those below `explorer` that are in no other room."""
    folder = ROOT / "explorer" if room == "kernels" else ROOT / room
    others = (ROOT / "explorer" / "engine", ROOT / "explorer" / "features") if room == "kernels" else ()
    files = (path for path in folder.rglob("*.py") if not any(other in path.parents for other in others))
    return sum(path.read_bytes().count(b"\n") for path in files)


def reasons(message: str) -> list[str]:
    """What a commit says of limits that it raises."""
    return [line for line in message.splitlines() if line.startswith("Lines: ") and line[7:].strip()]


def raised(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Rooms whose limit grew, and rooms without a limit that had one."""
    return [room for room, limit in before.items() if after.get(room, limit + 1) > limit]


@pytest.mark.parametrize("room", sorted(limits((ROOT / FILE).read_text(encoding="utf-8"))))
def test_no_room_has_more_lines_than_its_limit(room: str) -> None:
    limit = limits((ROOT / FILE).read_text(encoding="utf-8"))[room]
    assert lines(room) <= limit, f"merge or delete; or raise the limit in {FILE}, in a commit that says why"


def test_every_feature_has_a_limit() -> None:
    features = {
        path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("explorer/features/*/__init__.py")
    }
    rooms = set(limits((ROOT / FILE).read_text(encoding="utf-8")))
    assert rooms == features | {"kernels", "explorer/engine", "tests"}


def test_a_limit_that_grows_or_goes_is_found() -> None:
    assert raised({"a": 5, "b": 5, "c": 5}, {"a": 5, "b": 6, "d": 1}) == ["b", "c"]
    assert reasons("Add a verb\n\nLines: the verb prune\n") == ["Lines: the verb prune"]
    assert reasons("Add a verb\n\nLines: \n") == []


def test_commits_that_raised_a_limit_said_why() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True)

    log = git("log", "-20", "--format=%H", "--", FILE)
    if log.returncode:
        pytest.skip("not a git checkout")
    for commit in log.stdout.split():
        before = git("show", f"{commit}^:{FILE}")
        if before.returncode:
            continue  # the file was new, or the checkout is shallow
        grown = raised(limits(before.stdout), limits(git("show", f"{commit}:{FILE}").stdout))
        assert not grown or reasons(git("log", "-1", "--format=%B", commit).stdout), f"{commit}: {grown}"
