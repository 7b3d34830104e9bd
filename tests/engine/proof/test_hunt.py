"""Random graphs and random changes on new seeds; a failure names the seed, and how to see it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.hunt import hunting
from tests.hunt.hunting import KINDS, differ, hunt_one, outputs
from tests.hunt.random_graphs import RandomGraph

SECONDS = 15.0


@pytest.mark.parametrize("kind", KINDS)
def test_new_seeds_find_nothing(kind: str, tmp_path: Path) -> None:
    seed = first = int(time.time() * 1000) % 10**9
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        find = hunt_one(kind, seed, tmp_path)
        assert find is None, f"{find.what}: python -m tests.hunt {kind} --seed {seed}"
        seed += 1
    print(f"{kind}: seeds {first} to {seed - 1}")
    assert seed > first


def test_a_case_is_what_its_seed_says() -> None:
    one, other = (RandomGraph(7, 9).model().SerializeToString() for _ in range(2))
    assert one == other
    shorter = RandomGraph(7, 8)
    assert RandomGraph(7, 9).nodes[: len(shorter.nodes)] == shorter.nodes


@pytest.mark.parametrize("kind", KINDS)
def test_a_hunt_finds_a_proof_that_is_wrong(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Believed:
        passed, verdict, verdict_kind = kind == "mutations", "equal, it says", "equal"

    def believe(*given: Any) -> Any:
        return Believed

    monkeypatch.setattr(hunting, "verify_files", believe)
    found = next(find for seed in range(40) if (find := hunt_one(kind, seed, tmp_path)) is not None)
    assert found.steps <= hunting.steps_of(found.seed)
    files = [str(tmp_path / f"{name}.onnx") for name in ("original", "other")]
    apart = differ(*(outputs(Path(path), found.seed) for path in files))
    assert apart or kind == "graphs"
