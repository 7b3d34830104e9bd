"""Sweeps over several model files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from explorer.base.checked import wrap_checked
from explorer.features.sweep import sweep as sweeps
from explorer.session.files import open_sessions
from explorer.session.session import argument_type, reopen

if TYPE_CHECKING:
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.session.parts.keywords import FormatSweepKeywords, SweepKeywords

_SWEEP_OPTIONS = (
    *("hardware", "order", "verify", "draws", "output", "scheduler", "workers", "layers"),
    *("first_seed", "on_progress", "cancel"),
)


def sweep_files(*sources: str | os.PathLike[str], spec: SweepSpec, **options: Unpack[SweepKeywords]) -> Sweep:
    """Compute a row for every model and every combination.

    Args:
        sources: Paths or names of models, as for `Session`.
        spec: Tiles, edges and forms to combine.
        options: Options of `Session.sweep`, with its `seed` as `first_seed`, and options of `Session` for all
            models. A dimension or input needs to exist in only one of the models.
    """
    settings, opening = _separate(options)
    settings["seed"] = settings.pop("first_seed", 0)
    with open_sessions(sources, opening, allow_broken=True) as sessions:
        run = wrap_checked(sweeps.sweep, argument_type)
        return run([(session, session.parts.models) for session in sessions], spec, reopen, **settings)


def sweep_formats(
    *sources: str | os.PathLike[str], spec: FormatSweepSpec, **options: Unpack[FormatSweepKeywords]
) -> FormatSweep:
    """Compute a row for every model and every choice of number formats.

    Args:
        sources: Paths or names of models, as for `Session`.
        spec: Formats to try.
        options: Options of `Session.sweep_formats`, and options of `Session` for all models.
    """
    settings, opening = _separate(options)
    with open_sessions(sources, opening, allow_broken=True) as sessions:
        run = wrap_checked(sweeps.sweep_formats, argument_type)
        return run([(session, session.parts.models) for session in sessions], spec, reopen, **settings)


def _separate(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the options of the sweep from the options that open each model."""
    settings = {name: value for name, value in keywords.items() if name in _SWEEP_OPTIONS}
    return settings, {name: value for name, value in keywords.items() if name not in settings}
