"""What fuzzing found worth keeping, replayed: every file answers or is refused, in its time and memory.

`python -m tests.fuzz TARGET --minutes 10 --keep` hunts for more; this needs no fuzzer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.limits import attempt, bounded_memory
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"

#: seconds of processor time after which a file hangs: the hunt is stricter, on a machine of its own
SECONDS = 20.0


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzing_found_stays_found(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    if target.needs:
        pytest.importorskip(target.needs)
    files = sorted((CORPUS / name).iterdir())
    assert files
    run = target.prepare()
    path = tmp_path / f"input{target.ending}"
    failed = []
    with bounded_memory():
        for file in files:
            path.write_bytes(file.read_bytes())
            find = attempt(run, str(path), SECONDS)
            if find is not None:
                failed.append(f"{file.name}: {find.key}\n{find.text}")
    assert not failed, "\n".join(failed)


def test_the_corpus_stays_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) > 500
    assert sum(path.stat().st_size for path in files) < 1 << 20
    assert {path.parent.name for path in files} == set(TARGETS)
