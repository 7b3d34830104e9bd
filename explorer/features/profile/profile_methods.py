"""Profiles: how long a session's models run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.checked import Count, PathText
from explorer.facts.profile.profile import ProfileSpec
from explorer.features.profile.profiles import Profiler
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.facts.profile.profile import Profile
    from explorer.facts.roofline import Machine


def profile(
    session: Facade,
    spec: ProfileSpec | None = None,
    *,
    batch: Count | None = None,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Profile:
    """How long a model runs, layer by layer, and what is no layer; `history` keeps it with the state.

    Args:
        spec: How it is timed: threads, level of optimisation, steps; None: as the runtime likes, until
            the median is sure.
        batch: Size of the open first dimension; None leaves the sizes as they are.
        machine: For the least time of each layer (see `explorer.settings.machines`).
        index: Which model of the history; None is the current one.
        on_progress: Told how many runs were made.
        cancel: Asked between runs; True stops, and no file is left.

    Raises:
        Misuse: There is no such device, there are fewer processors, or the input does not fit.
        BadModel: The model cannot run; at which layer, and what ran before it, is said.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Profiler).profile(
        spec or ProfileSpec(), batch, machine, index, on_progress, cancel
    )


def compare_profiles(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    spec: ProfileSpec | None = None,
    batches: tuple[Count | None, Count | None] = (None, None),
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> ProfileComparison:
    """Two models timed in turn, row by row as `diff` matches them.

    Args:
        before: A state of the history.
        after: Another; None is the current one.
        other: A path or name, as for `Session`: a model in place of `after`.
        spec: How both are timed.
        batches: Sizes of their open first dimensions.
        machine: For the least time of each layer.
        on_progress: Told how many runs were made.
        cancel: Asked between runs; True stops.

    Raises:
        Misuse: As of `profile`, or the history has no such entry.
        BadModel: One of the two cannot run.
        Cancelled: `cancel` said so.
    """
    where = session.parts.models.at(before), session.parts.beside(after, other)
    return session.parts.of(Profiler).compare(
        *where, spec or ProfileSpec(), batches, machine, on_progress, cancel
    )
