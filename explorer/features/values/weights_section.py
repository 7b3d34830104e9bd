"""Section `Weights` of `explorer report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.values.weights_words import weights_blocks
from explorer.report.html.page import LeftOut, PageRequest, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import Analysis
    from explorer.facts.values import Weights
    from explorer.report.blocks import Block
    from explorer.session import Session


_MAX_WEIGHT_BYTES = 1 << 30
"""Maximum size of weights that the report reads, in bytes."""


def _gather(session: Session, analysis: Analysis, request: PageRequest) -> Weights:
    if analysis.info.random_weights:
        raise LeftOut("they are random: their values say nothing")
    if analysis.info.totals.weight_bytes > _MAX_WEIGHT_BYTES:
        raise LeftOut("more than 1 GiB: explorer weights reads them when asked to")
    return session.weights()


def _build_blocks(about: Analysis, fact: Weights) -> Sequence[Block]:
    return weights_blocks(fact)


SECTION = Section("Weights", 3, _gather, _build_blocks)
