"""Sweeps of several model files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from explorer.base.checked import checked
from explorer.features.sweep import sweep as sweeps
from explorer.session.files import opened
from explorer.session.session import argument_type, reopen

if TYPE_CHECKING:
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.session.keywords import FormatSweepKeywords, SweepKeywords

_OF_A_SWEEP = (
    *("hardware", "order", "verify", "draws", "output", "scheduler", "workers", "layers"),
    *("first_seed", "on_progress", "cancel"),
)


def sweep_files(*sources: str | os.PathLike[str], spec: SweepSpec, **options: Unpack[SweepKeywords]) -> Sweep:
    """A row for every model and every combination.

    Args:
        sources: As for `Session`.
        spec: What is combined.
        options: Those of `Session.sweep`, its `seed` as `first_seed`, and those of `Session` for all models;
            a dimension or input that they name need only exist in one of them.
    """
    settings, opening = _separated(options)
    settings["seed"] = settings.pop("first_seed", 0)
    with opened(sources, opening, broken=True) as sessions:
        run = checked(sweeps.sweep, argument_type)
        return run([(session, session.parts.models) for session in sessions], spec, reopen, **settings)


def sweep_formats(
    *sources: str | os.PathLike[str], spec: FormatSweepSpec, **options: Unpack[FormatSweepKeywords]
) -> FormatSweep:
    """A row for every model and every choice of number formats.

    Args:
        sources: As for `Session`.
        spec: What is tried.
        options: Those of `Session.sweep_formats`, and those of `Session` for all models.
    """
    settings, opening = _separated(options)
    with opened(sources, opening, broken=True) as sessions:
        run = checked(sweeps.sweep_formats, argument_type)
        return run([(session, session.parts.models) for session in sessions], spec, reopen, **settings)


def _separated(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords of the sweep, and those that open each model."""
    settings = {name: value for name, value in keywords.items() if name in _OF_A_SWEEP}
    return settings, {name: value for name, value in keywords.items() if name not in settings}
