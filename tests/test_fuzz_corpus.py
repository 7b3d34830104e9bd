"""What fuzzing found worth keeping, replayed: every file answers or is refused, in its time and memory.

`python -m tests.fuzz TARGET --minutes 10 --keep` hunts for more; this needs no fuzzer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz
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


@pytest.mark.parametrize(
    ("starts", "log", "says"),
    [
        (51, "Traceback\nModuleNotFoundError: No module named 'atheris'\n\n", "No module named 'atheris'"),
        (2, "", "the hunt said nothing"),
        (0, "", "no time was left for it"),
    ],
)
def test_a_hunt_that_tried_nothing_fails(
    starts: int,
    log: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def hunted(name: str, folder: Path, minutes: float) -> tuple[int, int, float]:
        folder.mkdir()
        (folder / "log.txt").write_text(log)
        return 0, starts, 3.0

    monkeypatch.setattr(fuzz, "hunted", hunted)
    monkeypatch.setattr("sys.argv", ["fuzz", "gguf", "--minutes", "0", "--out", str(tmp_path)])
    assert fuzz.main() == 1
    printed = capsys.readouterr()
    assert "0 inputs" in printed.out
    assert printed.err.startswith("nothing was fuzzed: ")
    assert says in printed.err


def test_a_list_of_the_targets_is_no_hunt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz"])
    assert fuzz.main() == 1
    printed = capsys.readouterr()
    assert "gguf" in printed.out
    assert printed.err == "nothing was fuzzed: name a target\n"
