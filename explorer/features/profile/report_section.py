"""Measured time on the page of `explorer report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.facts.profile.profile import ordered
from explorer.features.profile.profile_words import profile_blocks
from explorer.report.blocks import Chart
from explorer.report.flame_picture import flame_of
from explorer.report.html.page import LeftOut, PageRequest, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import Analysis
    from explorer.facts.profile.profile import Profile
    from explorer.report.blocks import Block
    from explorer.session import Session


def _gather(session: Session, analysis: Analysis, request: PageRequest) -> tuple[Profile, Sequence[float]]:
    if request.measured is None:
        raise LeftOut("the model was not run: --measured")
    profile = session.profile(request.measured, batch=request.batch, machine=request.machine)
    return profile, session.column("measured")


def _blocks(about: Analysis, fact: tuple[Profile, Sequence[float]]) -> Sequence[Block]:
    """Charts of the slowest layers, of a run and of the groups, then tables of all."""
    profile, seconds = fact
    drawn = profile, about.layers
    flame = flame_of("measured", about.info, about.layers, None, (profile, seconds))
    return [
        Chart("time", drawn),
        Chart("timeline", drawn),
        Chart("flame", flame),
        *profile_blocks(replace(profile, layers=ordered(profile.layers)), len(profile.layers)),
    ]


SECTION = Section("Measured time", 2, _gather, _blocks)
