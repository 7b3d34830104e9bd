"""An assumption about another library says what it assumes, where it was seen and what happens without it."""

import ast
from pathlib import Path

import pytest

from explorer.engine import compat

ROOM = Path(compat.__file__).parent


@pytest.mark.parametrize("file", sorted(ROOM.glob("*.py")), ids=lambda file: file.stem)
def test_an_assumption_says_where_it_was_seen_and_what_happens_without_it(file: Path) -> None:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            said = ast.get_docstring(node) or ""
            missing = [word for word in ("Assumes:", "Seen:", "Otherwise:") if word not in said]
            assert not missing, f"{file.name}, {node.name}: its docstring has no {', '.join(missing)}"
