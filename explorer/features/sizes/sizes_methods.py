"""Figures of a session's models over an open size, and decode steps beside whole passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.sizes.serving import Server
from explorer.features.sizes.size_curves import CurveMaker
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving
    from explorer.facts.serving.spec import ServingSpec
    from explorer.facts.sizes.curves import SizeCurves
    from explorer.facts.sizes.decode import Decode


def size_names(session: Facade, index: int | None = None) -> dict[str, int | None]:
    """Sizes that `sizes` can go over, and what the model has now; None for what is open."""
    return session.parts.of(CurveMaker).names(index)


def sizes(
    session: Facade,
    over: str | None = None,
    low: int | None = None,
    high: int | None = None,
    *,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> SizeCurves:
    """MACs, memory and least time over one size, and where one passes another.

    Args:
        over: The size: a dimension that the model leaves open, 'batch' or 'sequence' of a module. None
            takes the length of a text, or what there is.
        low: The least size; 1 by default.
        high: The largest; 1,024 of a batch and 32,768 of another size by default, or as far as it goes.
        machine: Of the times; None leaves them out.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: There is no such size, or the model cannot have it over the range that was asked for.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(CurveMaker).curves(over, low, high, machine, index, on_progress, cancel)


def decode(
    session: Facade,
    tokens: int | None = None,
    *,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Decode:
    """One decode step behind a text beside the pass over the text, and what the cache grows to.

    Args:
        tokens: Of the text; by default those of `past`, else 1,024, or fewer where the model takes fewer.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: The model has no decode step, or not behind so many tokens.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(CurveMaker).decode(tokens, index, on_progress, cancel)


def serving(
    session: Facade,
    spec: ServingSpec,
    *,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Serving:
    """What it costs to run a language model: parameters, prompt and step, cache, times, layouts.

    Args:
        spec: Prompt, contexts, batches, devices and types.
        machine: Of the times, and of each device; None leaves them out.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: The model has no cache of its own, or a size or type cannot be.
        BadModel: It does not run over a prompt, or behind its cache.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Server).serving(spec, machine, index, on_progress, cancel)
