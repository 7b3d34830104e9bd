"""Proof that stages are the whole: run one after the other, each on what the ones before it handed on.

With the runtime's optimisation off and one thread every operator of both does the same sums in the same
order, so the outputs are equal bit for bit. With what a user has the runtime may fuse over a cut in the
whole, and not in the stages: there they are equal within rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import NOT_SHARED, random_outputs
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.facts import OutputEvidence, Verification

_REFERENCE = "none: what rounding may do is reckoned from the depth of the model"
_RANDOM = "none: random numbers"
_FIGURES = ("max_abs", "max_rel", "mse", "cosine", "relative_rms", "limit_share")


def runs(
    whole: Model, stages: Sequence[Model], feeds: Mapping[str, Array]
) -> tuple[bool | None, tuple[OutputEvidence, ...]]:
    """Whether the stages gave the whole's outputs bit for bit, and how near they come as a user runs them.

    Outputs that depend on random numbers show nothing, whatever two runs drew: they are not compared.

    Args:
        whole: The model.
        stages: In their order.
        feeds: Inputs of the whole, by name.

    Returns:
        None in place of the first where there is no other output.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in whole.graph.outputs]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    one = RuntimeSession(whole, what="the whole", **plain).run(feeds)
    other = in_turn(stages, feeds, names, **plain)
    drawn = random_outputs(whole)
    same = [run.identical(one[name], other[name]) for name in names if name not in drawn]
    usual = RuntimeSession(whole, what="the whole").run(feeds)
    apart = in_turn(stages, feeds, names)
    return all(same) if same else None, _shows_nothing(_compared(whole, names, usual, apart, drawn), drawn)


def of_random(found: Verification, whole: Model) -> Verification:
    """A proof that says of outputs which depend on random numbers that no run compares them.

    A runtime that seeds both runs alike draws the same numbers, which is chance: elsewhere, or with another
    seed, it does not.
    """
    drawn = random_outputs(whole)
    if not drawn or not found.passed:
        return found
    same = sum(one.equal and one.name not in drawn for one in found.outputs)
    parts = [f"{many_text(found.nodes or 0, 'node')} equal by construction"]
    if same:
        parts.append(f"{many_text(same, 'output')} bit for bit the same")
    parts.append(f"{many_text(len(drawn), 'output')} made with random numbers, which no two runs share")
    return replace(
        found,
        verdict_kind="evidence",
        verdict=f"equal on evidence: {'; '.join(parts)}",
        outputs=_shows_nothing(found.outputs, drawn),
    )


def _shows_nothing(outputs: Sequence[OutputEvidence], drawn: Collection[str]) -> tuple[OutputEvidence, ...]:
    """The evidence, without figures for outputs that depend on random numbers."""
    nothing: dict[str, Any] = dict.fromkeys(_FIGURES)
    return tuple(
        [
            replace(one, drawn=True, equal=False, reference=_RANDOM, reason=NOT_SHARED, **nothing)
            if one.name in drawn
            else one
            for one in outputs
        ]
    )


def part_runs(
    whole: Model, part: Model, feeds: Mapping[str, Array]
) -> tuple[bool | None, tuple[OutputEvidence, ...]]:
    """The same of a part, on the values that the whole has where the part begins.

    What the part itself draws shows nothing; what the whole drew before it is given to both.

    Args:
        whole: The model.
        part: Of it, with the names of its values.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in part.graph.outputs]
    given = [value.name for value in part.graph.feeds]
    drawn = random_outputs(part)
    wanted = [name for name in dict.fromkeys((*given, *names)) if name not in feeds]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    known = {**feeds, **RuntimeSession(expose(whole, wanted), what="the whole", **plain).run(feeds)}
    mine = {name: known[name] for name in given}
    apart = RuntimeSession(part, what="the part", **plain).run(mine)
    same = [run.identical(known[name], apart[name]) for name in names if name not in drawn]
    usual = RuntimeSession(part, what="the part").run(mine)
    compared = _compared(whole, names, known, usual, drawn)
    return all(same) if same else None, _shows_nothing(compared, drawn)


def _compared(
    whole: Model,
    names: Sequence[str],
    one: Mapping[str, Array],
    other: Mapping[str, Array],
    drawn: Collection[str] = (),
) -> tuple[OutputEvidence, ...]:
    return run.compare(
        run.ModelOutputs(tuple(names), (tuple(one[name] for name in names),)),
        run.ModelOutputs(tuple(names), (tuple(other[name] for name in names),)),
        (),
        run.Noise(_REFERENCE, run.depth_of(whole), drawn=(drawn, drawn)),
    )


def in_turn(
    stages: Sequence[Model], feeds: Mapping[str, Array], names: Sequence[str], **how: Any
) -> dict[str, Array]:
    """What the stages put out, one after the other; what none reads any more is let go of."""
    last = {value.name: at for at, stage in enumerate(stages) for value in stage.graph.feeds}
    known: dict[str, Array] = dict(feeds)
    for at, stage in enumerate(stages):
        session = RuntimeSession(stage, what=f"stage {at + 1}", **how)
        given = {value.name: known[value.name] for value in stage.graph.feeds}
        known.update(session.run({name: np.asarray(value) for name, value in given.items()}))
        known = {name: value for name, value in known.items() if last.get(name, -1) > at or name in names}
    return known
