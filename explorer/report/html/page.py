"""HTML report: everything about a model on one page that needs no network (`explorer report`).

The page is what the verbs answer, one below the other, drawn as HTML (tables can be sorted) or Markdown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.base.units import printable
from explorer.facts import Analysis, Info, OpStat
from explorer.facts.profile.profile import ordered
from explorer.host import output_files
from explorer.report import plots
from explorer.report.blocks import Block, Chart, Paragraph
from explorer.report.flame.picture import flame_of
from explorer.report.html.draw import Sections, html, markdown
from explorer.report.present.look.info import totals_blocks
from explorer.report.present.look.memory import memory_blocks
from explorer.report.present.look.ops import ops_blocks
from explorer.report.present.look.roofline import roofline_blocks
from explorer.report.present.look.table import layers_blocks
from explorer.report.present.look.training import training_blocks
from explorer.report.present.look.values import weights_blocks
from explorer.report.present.measure.profile import profile_blocks

if TYPE_CHECKING:
    from explorer.facts.memory import Memory
    from explorer.facts.profile.profile import Profile, ProfileSpec
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Weights
    from explorer.session import Session

_READ_AT_MOST = 1 << 30
"""Bytes of weights whose values are read without being asked for."""


class PageFacts(Struct, frozen=True):
    """All facts of a page. What is None was not asked for, or could not be had: then `missing` says why.

    Attributes:
        measured: A run that was timed, and the time of each row of the tree.
    """

    analysis: Analysis
    ops: tuple[OpStat, ...]
    memory: Memory | None = None
    roofline: Roofline | None = None
    training: Training | None = None
    weights: Weights | None = None
    measured: tuple[Profile, Sequence[float]] | None = None
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


def gather(
    session: Session,
    *,
    machine: Machine | None = None,
    batch: int | None = None,
    optimizer: Optimizer = "sgd",
    measured: ProfileSpec | None = None,
) -> PageFacts:
    """All facts about the current model of a session.

    Args:
        session: The model.
        machine: For the roofline; without one there is none.
        batch: Of the training step, and of a run that is timed; the model's own by default.
        optimizer: Of the training step.
        measured: How the model is run, and timed; None: it is not.
    """
    analysis = session.analysis()
    missing: list[tuple[str, str]] = []

    def asked(what: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ExplorerError as error:
            missing.append((what, str(error)))
            return None

    def timed() -> tuple[Profile, Sequence[float]]:
        return session.profile(measured, batch=batch, machine=machine), session.column("measured")

    if machine is None:
        missing.append(("Roofline", "no machine was named: --peak-macs and --bandwidth, or --machine"))
    if measured is None:
        missing.append(("Measured time", "the model was not run: --measured"))
    weights = None
    if analysis.info.random_weights:
        missing.append(("Weights", "they are random: their values say nothing"))
    elif analysis.info.totals.weight_bytes > _READ_AT_MOST:
        missing.append(("Weights", "more than 1 GiB: explorer weights reads them when asked to"))
    else:
        weights = asked("Weights", session.weights)
    return PageFacts(
        analysis,
        session.ops(),
        memory=asked("Memory", session.memory),
        roofline=None if machine is None else asked("Roofline", lambda: session.roofline(machine)),
        training=asked("Training", lambda: session.training_over_time(batches=(batch,), optimizer=optimizer)),
        weights=weights,
        measured=None if measured is None else asked("Measured time", timed),
        missing=tuple(missing),
    )


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
    if fact.training is not None:
        sections.append(("Training", training_blocks(info, fact.training)))
    if fact.measured is not None:
        sections.append(("Measured time", _measured(fact.analysis, *fact.measured)))
    if fact.weights is not None:
        sections.append(("Weights", weights_blocks(fact.weights)))
    if fact.missing:
        missing: list[Block] = [Paragraph(f"{what}: {why}.") for what, why in fact.missing]
        sections.append(("Not on this page", missing))
    return sections


def _measured(about: Analysis, profile: Profile, seconds: Sequence[float]) -> list[Block]:
    """What took how long: the layers that take most, a run from left to right, groups, and all in tables."""
    drawn = profile, about.layers
    flame = flame_of("measured", about.info, about.layers, None, (profile, seconds))
    return [
        Chart("time", drawn),
        Chart("timeline", drawn),
        Chart("flame", flame),
        *profile_blocks(replace(profile, layers=ordered(profile.layers)), len(profile.layers)),
    ]


_WRITERS: dict[str, Callable[[str, Sections, Info | None, str], str]] = {".html": html, ".md": markdown}
