"""HTML report: everything about a model on one page that needs no network (`explorer report`).

The page is what the verbs answer, one below the other, drawn as HTML (tables can be sorted) or Markdown.
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
from explorer.report.present.look.info import totals_blocks
from explorer.report.present.look.memory_words import memory_blocks
from explorer.report.present.look.ops import ops_blocks
from explorer.report.present.look.roofline_words import roofline_blocks
from explorer.report.present.look.table import layers_blocks

if TYPE_CHECKING:
    from explorer.facts.memory import Memory
    from explorer.facts.profile.profile import ProfileSpec
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer
    from explorer.session import Session


class PageRequest(Struct, frozen=True):
    """What a page is asked for beside what every page has.

    Attributes:
        machine: For the roofline, and for times; without one there is no roofline.
        batch: Of the training step, and of a run that is timed; the model's own by default.
        optimizer: Of the training step.
        measured: How the model is run, and timed; None: it is not.
    """

    machine: Machine | None = None
    batch: int | None = None
    optimizer: Optimizer = "sgd"
    measured: ProfileSpec | None = None


class Section(Struct, frozen=True):
    """A part of the page that a feature adds.

    Attributes:
        title: Its heading.
        place: Sections stand by it, the smallest first.
        gather: Asks for its facts; raises an `ExplorerError` with the reason where there are none.
        blocks: Its facts as blocks.
    """

    title: str
    place: int
    gather: Callable[[Session, Analysis, PageRequest], Any]
    blocks: Callable[[Analysis, Any], Sequence[Block]]


class LeftOut(Exception):
    """A section that is left out, with the reason in words."""


class PageFacts(Struct, frozen=True):
    """All facts of a page. What is None was not asked for, or could not be had: then `missing` says why.

    Attributes:
        more: Sections of features, with their facts.
        missing: What is not on the page, and why.
    """

    analysis: Analysis
    ops: tuple[OpStat, ...]
    memory: Memory | None = None
    roofline: Roofline | None = None
    more: tuple[tuple[Section, Any], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


def check(path: str) -> None:
    """Refuses a page that cannot be written, before any work is done.

    Raises:
        Misuse: The ending is neither .html nor .md.
        MissingExtra: matplotlib, which draws its pictures, is not installed, or is broken.
    """
    if os.path.splitext(path)[1].lower() not in _WRITERS:
        raise Misuse("the ending says the format", where=path, hint="use .html or .md")
    plots.check_library(path)


def gather(session: Session, request: PageRequest) -> PageFacts:
    """All facts about the current model of a session."""
    analysis, machine = session.analysis(), request.machine
    missing: list[tuple[str, str]] = []

    def asked(title: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (ExplorerError, LeftOut) as error:
            missing.append((title, str(error)))
            return None

    if machine is None:
        missing.append(("Roofline", "no machine was named: --peak-macs and --bandwidth, or --machine"))
    memory = asked("Memory", session.memory)
    roofline = None if machine is None else asked("Roofline", lambda: session.roofline(machine))
    more: list[tuple[Section, Any]] = []
    sections: list[Section] = sorted(load_all("sections"), key=lambda section: section.place)
    for section in sections:
        fact = asked(section.title, partial(section.gather, session, analysis, request))
        if fact is not None:
            more.append((section, fact))
    return PageFacts(analysis, session.ops(), memory, roofline, tuple(more), tuple(missing))


def write(fact: PageFacts, path: str, tool: str) -> None:
    """Writes the page; the ending of `path` says as what (.html or .md)."""
    drawn = _WRITERS[os.path.splitext(path)[1].lower()]
    info = fact.analysis.info
    text = drawn(printable(os.path.basename(info.model.source)), _sections(fact), info, tool)
    with output_files.text(path) as file:
        file.write(text)


def write_blocks(title: str, blocks: Sequence[Block], path: str, tool: str) -> None:
    """Writes what a verb answers as a page of its own; the ending of `path` says as what."""
    text = _WRITERS[os.path.splitext(path)[1].lower()](title, [(title, blocks)], None, tool)
    with output_files.text(path) as file:
        file.write(text)


def _sections(fact: PageFacts) -> Sections:
    info = fact.analysis.info
    sections: list[tuple[str, Sequence[Block]]] = [
        ("Totals", totals_blocks(info)),
        ("Operators", [Chart("operators", fact.ops), *ops_blocks(info, fact.ops)]),
        ("Layers", layers_blocks(fact.analysis)),
    ]
    if fact.memory is not None:
        sections.append(("Memory", memory_blocks(fact.memory)))
    if fact.roofline is not None:
        sections.append(("Roofline", roofline_blocks(fact.roofline)))
    sections += [(section.title, section.blocks(fact.analysis, about)) for section, about in fact.more]
    if fact.missing:
        missing: list[Block] = [Paragraph(f"{part}: {why}.") for part, why in fact.missing]
        sections.append(("Not on this page", missing))
    return sections


_WRITERS: dict[str, Callable[[str, Sections, Info | None, str], str]] = {".html": html, ".md": markdown}
