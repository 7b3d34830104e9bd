"""The README's generated parts: `python -m tests.readme` writes them anew, a test compares them.

The key table comes from the table that the screen's own bindings are made from.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def keys() -> str:
    """The key table in Markdown."""
    from explorer.tui.actions.commands import key_table

    rows = [f"| `{shown}` | {what} |" for shown, what in key_table()]
    return "\n".join(["| key | what it does |", "|---|---|", *rows])


def formats() -> str:
    """The table of formats in Markdown."""
    from explorer.report.formats import as_markdown
    from explorer.session import headers

    return as_markdown(headers.formats())


def section(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and the next `<!-- end -->`."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None, f"the README has no section {name}"
    return found.group(1)


def command(name: str) -> str:
    """One of the README's two commands, as a newcomer would paste it."""
    return (
        section(README.read_text(encoding="utf-8"), f"command: {name}")
        .strip("`")
        .removeprefix("sh\n")
        .strip()
    )


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for name, made in GENERATED.items():
        before, after = text.split(f"<!-- {name} -->\n{section(text, name)}\n")
        text = f"{before}<!-- {name} -->\n{made()}\n{after}"
    README.write_text(text, encoding="utf-8")


GENERATED = {"keys": keys, "formats": formats}


if __name__ == "__main__":
    main()
