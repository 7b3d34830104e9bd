"""Messages that code reads, which it must not: a status is a field, an error has a class or a code.

A sentence is made at the end, for a person. Code that looks for words in it breaks when they improve.
Found are `startswith`, `in`, `partition`, `==` and their like on what is named as a message (`reason`,
`note`, `hint`, `str(error)`), or with a phrase of more than one word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import explorer
from explorer.host.gc_pause import pause_garbage_collector

ROOT = Path(explorer.__file__).parent
ROOMS = ("engine/compat", "base/compat.py", "tui/compat.py", "web/compat.py")
"""Where the words of other libraries may be read: each place says which and what happens when they change."""

LIBRARY = "what Python or a library says, which has no code"
LAYOUT = "breaks or shortens a text where it is shown, and decides nothing"
TAG = "a value from a closed set, which is shown as it is"
CHOICE = "what was chosen in a field of a form"
FORMAT = "a format or a command, not a sentence"
ONCE = "says the same only once"

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "failures.py": {"'surrogates' in _.reason": LIBRARY},
    "huggingface.py": {"_.startswith('Unterminated')": LIBRARY},
    "device.py": {"str(_).partition('\\n')": LIBRARY},
    "modules.py": {"str(_).partition('. ')": LIBRARY},
    "imports.py": {"_MISSING_MODULE.match(_)": LIBRARY, """f"'{_}" in _[_]""": LIBRARY},
    "input_files.py": {"_.search(_POSITION, _)": LIBRARY, "_.sub(_POSITION, '', _)": LIBRARY},
    "version_notes.py": {"_ not in _.hint": ONCE},
    "run.py": {"_.removeprefix('none: ')": LAYOUT},
    "terms.py": {"""_.split("'")""": LAYOUT, "_.partition(': ')": LAYOUT, "_.split('; ')": LAYOUT},
    "chooser.py": {"_.what.removeprefix('this is a directory, not a model, and ')": LAYOUT},
    "models.py": {"_ != 'batch norm'": TAG},
    "weights.py": {
        "_ != _BATCH_NORM": TAG,
        "_.family == _BATCH_NORM": TAG,
        "find_family(_.kind) == _BATCH_NORM": TAG,
        "_.family == _INITIAL_STATE": TAG,
        "_.family == _RECURRENT": TAG,
        "_ == _RECURRENT": TAG,
        "_.family in _MULTIPLYING_FAMILIES": TAG,
        "_ is _FOLDED_NORMS": TAG,
        "_ in (None, _SHARED_HERE, _SHARED_IN_FIRST)": TAG,
    },
    "rewrites.py": {"find_family(_) in ('matrix product', 'convolution')": TAG},
    "torchinfo.py": {"_[0] == _UNKNOWN": TAG},
    "checkpoint_modules.py": {"_ == _COPY": TAG},
    "search.py": {"_.change == 'behind the fault'": TAG, "_.change == 'connected otherwise'": TAG},
    "compare.py": {"_ in ('error old', 'error new', 'true')": TAG},
    "client.py": {"_ == 'all known'": TAG},
    "option_values.py": {"_.get(_) == COMMAND_LINE": TAG},
    "quantize.py": {"(_.site, _.origin) != (_, BY_HAND)": TAG},
    "*": {"_.value == _AS_BEFORE": CHOICE, "_ == SAME": CHOICE, "_ != _STAYS": CHOICE},
    "torchscript.py": {"_.find('  def forward(')": FORMAT},
    "__init__.py": {"_.startswith('assumed')": "for programs that read the JSON"},
    "store.py": {"'tuple' in str(_)": FORMAT, "_ in get_args(_)": FORMAT},
    "dialogs.py": {"_OPTION.sub(\"'\\\\1 \\\\2'\", _DIM.sub('D', _))": FORMAT, "_DIM.sub('D', _)": FORMAT},
    "doctor.py": {"_.startswith('pip ')": FORMAT},
    "doctor_words.py": {"_.partition(' to ')": FORMAT},
    "supervisor.py": {"_.split(b'\\x00')": FORMAT},
}
"""What is no message of the program's, or decides nothing, by the name of the file ('*': any); and why."""

MESSAGES = frozenset(
    (
        *("reason", "reasons", "note", "notes", "why", "message", "messages", "hint", "hints", "problem"),
        *(
            "verdict",
            "remark",
            "warning",
            "sentence",
            "what",
            "explanation",
            "grounds",
            "doubt",
            "complaint",
            "guess",
        ),
    )
)
"""Names of what is written for a person."""
READS = frozenset(
    (
        *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"),
        *("find", "index", "count", "split"),
    )
)
PATTERNS = frozenset(("match", "search", "fullmatch", "findall", "finditer", "sub", "split"))
PHRASE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z]|^[A-Za-z]{2,}:? $|^ [A-Za-z]{2,}|^[,;:] [A-Za-z]{2,}")
"""Words with a space between them, or behind or before them: no name, path or format looks so."""


class Reading(NamedTuple):
    """A place that reads a message; in `code`, `_` stands for every local name."""

    file: str
    line: int
    code: str


def new(readings: Iterable[Reading]) -> list[Reading]:
    """Those that are not in `ALLOWED`."""
    anywhere = ALLOWED["*"]
    return [
        one
        for one in readings
        if one.code not in anywhere and one.code not in ALLOWED.get(Path(one.file).name, {})
    ]


def unused(readings: Iterable[Reading]) -> list[str]:
    """Rows of `ALLOWED` for which there is no such place."""
    known = {(name, one.code) for one in readings for name in (Path(one.file).name, "*")}
    return [f"{name}: {code}" for name, rows in ALLOWED.items() for code in rows if (name, code) not in known]


def readings(root: Path = ROOT) -> list[Reading]:
    """Every place that reads a message, in files outside of the rooms."""
    files = [(path, path.relative_to(root).as_posix()) for path in sorted(root.rglob("*.py"))]
    with pause_garbage_collector():
        return [
            Reading(name, node.lineno, _code(node))
            for path, name in files
            if not name.startswith(ROOMS)
            for node in _places(path.read_text(encoding="utf-8"))
        ]


_KINDS = (ast.Call, ast.Compare, ast.MatchValue)


def _places(source: str) -> Iterator[ast.expr]:
    """What reads a message in one file."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, _KINDS):
            continue
        expression = node.value if isinstance(node, ast.MatchValue) else node
        if isinstance(expression, ast.expr) and _reads(node, constants):
            yield expression


def _code(node: ast.expr) -> str:
    """Source of an expression, in which a local name may change."""
    node = ast.parse(ast.unparse(node), mode="eval").body
    called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and id(one) not in called and not one.id.isupper():
            one.id = "_"
    return ast.unparse(node)


def _reads(node: ast.AST, constants: Mapping[str, ast.expr]) -> bool:
    """Whether an expression reads the words of a message."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, subject = node.func.attr, node.func.value
        if method in PATTERNS and any(is_message(one) for one in (*node.args, subject)):
            return bool(node.args)  # split() alone puts spaces in order
        if method not in READS or (isinstance(subject, ast.Name) and subject.id == "str"):
            return False
        return bool(node.args) and (
            is_message(subject) or any(_has_phrase(one, constants) for one in node.args)
        )
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(_has_phrase(one, constants) for one in sides):
            return not any(isinstance(one, ast.Dict) for one in sides)
        where = node.comparators[-1]
        is_search = isinstance(node.ops[-1], ast.In | ast.NotIn)
        if is_search and isinstance(node.left, ast.Attribute) and is_message(node.left):
            return True  # a row is told by its text
        # whether a note is among others is asked to say it once
        return is_search and is_message(where) and (not _is_plural(where) or _is_constant(node.left))
    return isinstance(node, ast.MatchValue) and _has_phrase(node.value, constants)


def is_message(node: ast.expr) -> bool:
    """Whether an expression is named as what is written for a person."""
    if isinstance(node, ast.Attribute):
        return node.attr in MESSAGES
    if isinstance(node, ast.Name):
        return node.id in MESSAGES - {"what"}
    if isinstance(node, ast.Subscript):
        return is_message(node.value)
    if isinstance(node, ast.Call):
        # str(error), terms(fact.verdict), reason.lower()
        if isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
            return any(_is_error(one) for one in node.args)
        inner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return any(is_message(one) for one in (*inner, *node.args))
    return False


def _is_error(node: ast.expr) -> bool:
    return is_message(node) or (isinstance(node, ast.Name) and node.id in ("error", "fault", "exc", "e"))


def _is_plural(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith("s")


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Name) and node.id.isupper())


def _has_phrase(node: ast.expr, constants: Mapping[str, ast.expr]) -> bool:
    return any(PHRASE.search(text) for text in _texts(node, constants))


def _texts(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """The texts of literals, and of constants of the file."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for one in node.elts:
            yield from _texts(one, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _texts(constants[node.id], {})
