"""HTML report: all facts about a model on one page that needs no network (`explorer report`).

The page contains the answers of the commands, one below the other, as HTML with sortable tables or as
Markdown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.base.errors import ExplorerError, Misuse
from explorer.base.features import load_all
from explorer.base.units import printable
from explorer.facts import Analysis, Info, OpStat
from explorer.host import output_files
from explorer.report import plots
from explorer.report.blocks import Block, Chart, Paragraph
from explorer.report.html.draw import Sections, html, markdown
from explorer.report.present.look.info import build_totals_blocks
from explorer.report.present.look.memory_words import memory_blocks
from explorer.report.present.look.ops import build_operator_blocks
from explorer.report.present.look.roofline_words import build_roofline_blocks
from explorer.report.present.look.table import build_tree_blocks

if TYPE_CHECKING:
    from explorer.facts.memory import Memory
    from explorer.facts.profile.profile import ProfileSpec
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer
    from explorer.session import Session


class PageRequest(Struct, frozen=True):
    """Optional contents of a page.

    Attributes:
        machine: Machine for the roofline and for times, or None for a page without a roofline.
        batch: Batch size of the training step and of the timed run, or None for the model's own.
        optimizer: Optimizer of the training step.
        measured: How to run and time the model, or None to not run it.
    """

    machine: Machine | None = None
    batch: int | None = None
    optimizer: Optimizer = "sgd"
    measured: ProfileSpec | None = None


class Section(Struct, frozen=True):
    """A section of the page that a feature adds.

    Attributes:
        title: Title of the section.
        sort_key: Sort key of the section; sections with small values come first.
        gather: Function that returns the facts of the section. It raises an `ExplorerError` if there are
            none.
        blocks: Function that converts the facts to blocks.
    """

    title: str
    sort_key: int
    gather: Callable[[Session, Analysis, PageRequest], Any]
    blocks: Callable[[Analysis, Any], Sequence[Block]]


class LeftOut(Exception):
    """Raised for a section that is left out. The message is the reason."""


class PageFacts(Struct, frozen=True):
    """All facts of a page. A fact is None if it was not requested, or if it is in `missing`.

    Attributes:
        analysis: Analysis of the model.
        ops: Statistics of the operators.
        memory: Memory over the steps, or None.
        roofline: Roofline on the machine, or None.
        more: Sections of features with their facts.
        missing: Titles of sections that are missing, and the reasons.
    """

    analysis: Analysis
    ops: tuple[OpStat, ...]
    memory: Memory | None = None
    roofline: Roofline | None = None
    more: tuple[tuple[Section, Any], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


def check(path: str) -> None:
    """Check that a page can be written, before any work is done.

    Raises:
        Misuse: The path ends neither in .html nor in .md.
        MissingExtra: matplotlib or Jinja2, which draw the page, is not installed or is broken.
    """
    if os.path.splitext(path)[1].lower() not in _WRITERS:
        raise Misuse("the file name's ending selects the format", where=path, hint="use .html or .md")
    plots.check_library(path)


def gather(session: Session, request: PageRequest) -> PageFacts:
    """Collect all facts about the current model of a session."""
    analysis, machine = session.analysis(), request.machine
    missing: list[tuple[str, str]] = []

    def get_fact(title: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (ExplorerError, LeftOut) as error:
            missing.append((title, str(error)))
            return None

    if machine is None:
        missing.append(("Roofline", "no machine was named: --peak-macs and --bandwidth, or --machine"))
    memory = get_fact("Memory", session.memory)
    roofline = None if machine is None else get_fact("Roofline", lambda: session.roofline(machine))
    feature_sections: list[tuple[Section, Any]] = []
    sections: list[Section] = sorted(load_all("sections"), key=lambda section: section.sort_key)
    for section in sections:
        fact = get_fact(section.title, partial(section.gather, session, analysis, request))
        if fact is not None:
            feature_sections.append((section, fact))
    return PageFacts(analysis, session.ops(), memory, roofline, tuple(feature_sections), tuple(missing))


def write(fact: PageFacts, path: str, tool: str) -> None:
    """Write the page as HTML or Markdown, depending on the ending of `path`."""
    write_page = _WRITERS[os.path.splitext(path)[1].lower()]
    info = fact.analysis.info
    text = write_page(printable(os.path.basename(info.model.source)), _list_sections(fact), info, tool)
    with output_files.open_text(path) as file:
        file.write(text)


def write_blocks(title: str, blocks: Sequence[Block], path: str, tool: str) -> None:
    """Write the answer of a command as a page, as HTML or Markdown depending on the ending of `path`."""
    text = _WRITERS[os.path.splitext(path)[1].lower()](title, [(title, blocks)], None, tool)
    with output_files.open_text(path) as file:
        file.write(text)


def _list_sections(fact: PageFacts) -> Sections:
    """Return the titles and blocks of the sections, in the order of the page."""
    info = fact.analysis.info
    sections: list[tuple[str, Sequence[Block]]] = [
        ("Totals", build_totals_blocks(info)),
        ("Operators", [Chart("operators", fact.ops), *build_operator_blocks(info, fact.ops)]),
        ("Layers", build_tree_blocks(fact.analysis)),
    ]
    if fact.memory is not None:
        sections.append(("Memory", memory_blocks(fact.memory)))
    if fact.roofline is not None:
        sections.append(("Roofline", build_roofline_blocks(fact.roofline)))
    sections += [(section.title, section.blocks(fact.analysis, facts)) for section, facts in fact.more]
    if fact.missing:
        missing: list[Block] = [Paragraph(f"{part}: {why}.") for part, why in fact.missing]
        sections.append(("Not on this page", missing))
    return sections


_WRITERS: dict[str, Callable[[str, Sections, Info | None, str], str]] = {".html": html, ".md": markdown}
