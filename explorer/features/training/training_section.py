"""Section `Training` of `explorer report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.training.training_words import training_blocks
from explorer.report.html.page import PageRequest, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import Analysis
    from explorer.facts.training import Training
    from explorer.report.blocks import Block
    from explorer.session import Session


def _gather(session: Session, analysis: Analysis, request: PageRequest) -> Training:
    return session.training_over_time(batches=(request.batch,), optimizer=request.optimizer)


def _build_blocks(about: Analysis, fact: Training) -> Sequence[Block]:
    return training_blocks(about.info, fact)


SECTION = Section("Training", 1, _gather, _build_blocks)
