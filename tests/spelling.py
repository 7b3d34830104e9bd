"""British spellings in texts that people read: docstrings, messages, the manual and the README.

Names stay as they are: a text without a space is a name (a JSON key such as `utilisation`), and so is a word
between backticks or with a dot, an underscore or a hyphen beside it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["misspelled", "texts"]

_STEMS = (
    "author|categor|character|custom|discret|emphas|factor|final|general|initial|linear|local|material|maxim|minim|"
    "normal|optim|organ|orthogonal|parallel|parameter|penal|polar|priorit|quant|random|real|recogn|regular|serial|"
    "special|stabil|standard|summar|symbol|synchron|token|util|vector|visual"
)
_WORDS = (
    "artefact|behaviour|catalogue|centimetre|colour|favour|flavour|fulfil|grey|honour|judgement|kilometre|labour|"
    "learnt|licence|neighbour|programme|rigour|spelt|towards|vapour|whilst|amongst"
)
BRITISH = re.compile(
    rf"(?<![\w.`/-])(?:\w*?(?:{_STEMS})is(?:e|ed|er|ers|es|ing|ation|ations)|analys(?:e|ed|er|ers|ing)"
    rf"|(?:labell|modell|signall|travell)(?:ed|ing)|(?-i:cancell(?:ed|ing))|cent(?:re|red|res|ring)"
    rf"|(?:{_WORDS})(?:ed|ing|s|al|less)?)(?![\w`/(:-]|\.\w)",
    re.IGNORECASE,
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that a person reads, each with its line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        prose = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.S | re.M)
        yield from enumerate(re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", prose).splitlines(), 1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, re.sub(r"`[^`]*`|^\s*(?:\w+, ?)+$", " ", node.value, flags=re.M)


@cache
def _is_british(word: str) -> bool:
    return BRITISH.search(word) is not None


def misspelled(path: Path) -> list[str]:
    """Return the British spellings of a file, each with its line."""
    # each word is looked at once, and few files need to be parsed
    if not any(map(_is_british, set(re.findall(r"\w+", path.read_text(encoding="utf-8"))))):
        return []
    return [f"{path.name}:{line}: {word[0]}" for line, text in texts(path) for word in BRITISH.finditer(text)]
