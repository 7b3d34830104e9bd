"""Manual's generated parts: `python -m tests.manual [TOPIC ...]` writes them anew, a test compares them.

Tables come from the program's own: verbs, options, keys, formats, documents. What a command is shown to print
is what it printed: a block of `console` is run, and the lines that `<!-- show 1-9 -2 -->` above it names
(ranges from the first line, or the last so many) are written below the command. The commands of a page run
one after another in one folder with the sample models; `<!-- file NAME -->` above a block writes it there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from explorer import manual
from explorer.cli.arguments.command import Command

__all__ = ["GENERATED", "PAGES", "ROOT", "blocks", "command", "played", "section"]

ROOT = Path(__file__).parent.parent
PAGES = Path(manual.__file__).parent
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)```\n", re.DOTALL)


def keys() -> str:
    """The keys of the screen, from the table that its bindings are made from."""
    from explorer.tui.commands.help_action import KEYS
    from explorer.tui.text.keys import CHANGE, LOOK, MOVE, PROGRAM

    groups = [LOOK, CHANGE, MOVE, *dict.fromkeys(key.group for key in KEYS)]
    ordered = sorted(KEYS, key=lambda key: len(groups) if key.group == PROGRAM else groups.index(key.group))
    rows = [f"| `{_cell(key.shown)}` | {key.title}: {key.tip} |" for key in ordered]
    return "\n".join(["| key | what it does |", "|---|---|", *rows])


def formats() -> str:
    """The formats that there are."""
    from explorer.report.formats import HEADINGS, format_cells
    from explorer.session import headers

    rows = [HEADINGS, ("---",) * len(HEADINGS), *(format_cells(*one) for one in headers.list_formats())]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def verbs() -> str:
    """Every verb with its options and examples."""
    from explorer.cli.arguments.command import group_commands
    from explorer.cli.arguments.screen_options import SCREEN
    from explorer.cli.commands import VERBS

    screen = [
        (f"{SCREEN.prog} MODEL", "opens the screen"),
        (SCREEN.prog, CHOOSER),
        (f"{SCREEN.prog} FOLDER", FOLDER),
    ]
    lines = _verb_table("The screen", screen)
    for title, group in group_commands(VERBS.values()).items():
        lines += _verb_table(title, [(f"{SCREEN.prog} {verb.usage}", verb.manual) for verb in group])
    for verb in (SCREEN, *VERBS.values()):
        lines += ["", f"## {verb.prog}", "", f"Options: {', '.join(f'`{flag}`' for flag in verb.options)}."]
        lines += ["", "```text", *verb.examples, "```"]
    lines += ["", "## Exit codes", "", *_exit_codes(VERBS)]
    return "\n".join(lines)


def _verb_table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    """A section with a table of commands and what each answers."""
    cells = [f"| `{_cell(usage)}` | {_cell(answer)} |" for usage, answer in rows]
    return [f"## {title}", "", "| command | what it answers |", "|---|---|", *cells, ""]


def _exit_codes(verbs: Mapping[str, Command]) -> list[str]:
    """A row for every way in which some verb can end."""
    from explorer.cli.arguments.help import list_exit_codes

    ends: dict[tuple[int, str], list[str]] = {}
    for name, verb in verbs.items():
        for code, said in list_exit_codes(verb).items():
            ends.setdefault((code, ", ".join(said)), []).append(f"`{name}`")
    rows = ["| code | meaning | of |", "|---|---|---|"]
    for (code, said), names in sorted(ends.items(), key=lambda row: (row[0][0], len(row[1]))):
        most = "all others" if len(names) < len(verbs) else "all"
        rows.append(f"| {code} | {said} | {', '.join(names) if len(names) < len(verbs) / 2 else most} |")
    return rows


CHOOSER = (
    "lists the models that you can open: models here, recent ones, sessions to resume, torchvision's names"
)
FOLDER = "lists the models in a folder, from their headers"


def options() -> str:
    """Every option, with the verbs that take it."""
    from explorer.cli.arguments.screen_options import SCREEN
    from explorer.cli.commands import VERBS

    everyone = {"the screen": SCREEN, **VERBS}
    takers: dict[tuple[str, str], list[str]] = {}
    for name, verb in everyone.items():
        for option in verb.options.values():
            spelled = " ".join(
                filter(None, (option.short and f"{option.short},", option.flag, option.metavar))
            )
            takers.setdefault((f"`{spelled}`", option.manual.replace("\n", " ")), []).append(name)
    rows = ["| option | meaning | for |", "|---|---|---|"]
    for (spelled, meaning), names in takers.items():
        missing = [name for name in everyone if name not in names]
        most = f"all but {', '.join(missing)}" if missing else "all"
        who = most if len(missing) < 7 else ", ".join(names)
        rows.append(f"| {_cell(spelled)} | {_cell(meaning)} | {who} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def documents() -> str:
    """The documents of `--json`."""
    from tests import documents

    return documents.tables()


def columns() -> str:
    """The columns of the layer tree."""
    from explorer.settings.columns import COLUMNS

    rows = [f"| `{column.name}` | {column.about} |" for column in COLUMNS.values()]
    return "\n".join(["| column | what it is |", "|---|---|", *rows])


def glossary() -> str:
    """The words behind the figures."""
    from explorer.report.glossary import GLOSSARY

    rows = []
    for term in GLOSSARY:
        labels = f" ({', '.join(term.labels)})" if term.labels else ""
        rows.append(f"| {term.word}{labels} | {_cell(term.meaning)} |")
    return "\n".join(["| word | what it means |", "|---|---|", *rows])


GENERATED: dict[str, Callable[[], str]] = {
    "keys": keys,
    "glossary": glossary,
    "filter": columns,
    "formats": formats,
    "verbs": verbs,
    "options": options,
    "json": documents,
}
"""What makes a part of a page, by the page's topic."""


def section(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and the next `<!-- end -->`."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None, f"there is no section {name}"
    return found.group(1).rstrip("\n")


def command(name: str) -> str:
    """One of the README's commands, as a newcomer would paste it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return section(text, f"command: {name}").strip("`").removeprefix("sh\n").strip()


def blocks(text: str) -> list[re.Match[str]]:
    """The fenced blocks of a page, each with its mark, its kind and its body."""
    return list(BLOCK.finditer(text))


def played(text: str, folder: Path) -> str:
    """A page as it is when its files are written to a folder and its commands run there."""
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, COLUMNS="80", XDG_STATE_HOME=str(folder), EXPLORER_NO_CACHE="1"),
    ):
        if not os.path.exists("sample_models"):
            os.symlink(ROOT / "sample_models", "sample_models")
        return BLOCK.sub(_played, text)


def _played(block: re.Match[str]) -> str:
    mark, kind, body = block["mark"] or "", block["kind"], block["body"]
    if mark.startswith("file "):
        Path(mark.removeprefix("file ")).write_text(body, encoding="utf-8")
    elif kind == "python":
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(body, "manual", "exec"), {"__name__": "__main__"})
    elif kind == "console":
        lines = [line for line in body.splitlines() if line.startswith("$ ")]
        made = "".join(f"{line}\n{_shown(_printed(line), mark)}" for line in lines)
        return block[0].replace(body, made)
    return block[0]


def _printed(line: str) -> list[str]:
    from explorer.cli.main import main

    words = shlex.split(line.removeprefix("$ explorer "))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    assert code in (0, 1), f"{line}: {code}, {err.getvalue()}"
    return [text.rstrip() for text in out.getvalue().splitlines()]


def _shown(lines: list[str], mark: str) -> str:
    """The lines that a mark names, and `...` where some are left out."""
    chosen = set()
    for span in mark.removeprefix("show").split():
        first, _, last = span.partition("-")
        chosen |= set(
            range(int(first) - 1, int(last)) if first else range(len(lines) - int(last), len(lines))
        )
    shown = [at for at in range(len(lines)) if at in chosen or not mark]
    text, before = "", -1
    for at in [*shown, len(lines)]:
        text += "...\n" if at > before + 1 else ""
        text += f"{lines[at]}\n" if at < len(lines) else ""
        before = at
    return text


def where(topic: str) -> Path:
    """The file of a page; the README's is its own."""
    return ROOT / "README.md" if topic == "README" else PAGES / f"{topic}.md"


def main() -> None:
    for topic in sys.argv[1:] or (*manual.TOPICS, "README"):
        path = where(topic)
        text = path.read_text(encoding="utf-8")
        if topic in GENERATED:
            before, _, after = text.partition(f"<!-- {topic} -->\n")
            text = f"{before}<!-- {topic} -->\n{GENERATED[topic]()}\n{after[after.index('<!-- end -->') :]}"
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(played(text, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
