"""No logic reads a sentence: see `tests.prose`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose


def test_no_logic_reads_the_words_of_a_message() -> None:
    readings = prose.readings()
    assert prose.new(readings) == [], "a status is a field, an error has a class or a code"
    assert prose.unused(readings) == [], "gone: take it out of the list"


@pytest.mark.parametrize(
    "source",
    [
        "def f(layer): return layer.reason.startswith('assumed')",
        "def f(skip): return 'switched off' not in skip.reason",
        "def f(guess): return guess.startswith('did')",
        "def f(text): return text.startswith('the model failed')",
        "def f(error): return 'declared' in str(error)",
        "def f(error): return str(error).lower().endswith('x')",
        "def f(error): return error.hint == 'leave --decode out'",
        "def f(error): return error.what.partition(': ')[0]",
        "def f(fact): return terms(fact.verdict).partition(': ')",
        "_DIED = 'it died of a part'\ndef f(info): return _DIED in info.notes",
        "from a import DIED\ndef f(info): return DIED in info.notes",
        "def f(one, name): return one.startswith(f'weight {name} ')",
        "def f(rows): return [row for row in rows if row.label in ('Activations, sum',)]",
        "def f(rows, texts): return [row for row in rows if row.what not in texts]",
        "import re\ndef f(note): return re.match('[0-9]+ of', note)",
        "def f(error):\n    match error.what:\n        case 'no node':\n            return 1",
    ],
)
def test_a_new_place_that_reads_a_message_is_found(source: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(source, encoding="utf-8")
    assert prose.new(prose.readings(tmp_path)), source
    room = tmp_path / "engine" / "compat"
    room.mkdir(parents=True)
    (tmp_path / "planted.py").rename(room / "planted.py")
    assert prose.readings(tmp_path) == [], "the words of other libraries are read in their rooms"


@pytest.mark.parametrize(
    "source",
    [
        "def f(path): return path.endswith(('.onnx', '.pt2')) or path.startswith('/')",
        "def f(node): return node.op.startswith('QLinear') and 'int8' in node.dtype",
        "def f(error): return type(error).__name__ == 'Misuse' or error.code == 'untimed'",
        "def f(word): return word.startswith('--') and word.partition('=')[0] in ('--dim', '--past')",
        "def f(name): return name.removeprefix('torch.').split('.')",
        "def f(error): return ' '.join(str(error).split())",
        "def f(note, notes): return note if note not in notes else ''",
        "def f(row): return f'{row.reason}; {row.note}' if row.reason else ''",
        "KINDS = str.split('Conv Gemm MatMul')",
    ],
)
def test_names_paths_and_formats_are_no_messages(source: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(source, encoding="utf-8")
    assert prose.readings(tmp_path) == []
