"""Proof that stages are the whole: run one after the other, each on what the ones before it handed on.

With the runtime's optimisation off and one thread every operator of both does the same sums in the same
order, so the outputs are equal bit for bit. With what a user has the runtime may fuse over a cut in the
whole, and not in the stages: there they are equal within rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import Model
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.facts import OutputEvidence

_REFERENCE = "none: what rounding may do is reckoned from the depth of the model"


def runs(
    whole: Model, stages: Sequence[Model], feeds: Mapping[str, Array]
) -> tuple[bool, tuple[OutputEvidence, ...]]:
    """Whether the stages gave the whole's outputs bit for bit, and how near they come as a user runs them.

    Args:
        whole: The model.
        stages: In their order.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in whole.graph.outputs]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    one = RuntimeSession(whole, what="the whole", **plain).run(feeds)
    other = in_turn(stages, feeds, names, **plain)
    exact = all(run.identical(one[name], other[name]) for name in names)
    usual = RuntimeSession(whole, what="the whole").run(feeds)
    apart = in_turn(stages, feeds, names)
    return exact, _compared(whole, names, usual, apart)


def part_runs(
    whole: Model, part: Model, feeds: Mapping[str, Array]
) -> tuple[bool, tuple[OutputEvidence, ...]]:
    """The same of a part, on the values that the whole has where the part begins.

    Args:
        whole: The model.
        part: Of it, with the names of its values.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in part.graph.outputs]
    given = [value.name for value in part.graph.feeds]
    wanted = [name for name in dict.fromkeys((*given, *names)) if name not in feeds]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    known = {**feeds, **RuntimeSession(expose(whole, wanted), what="the whole", **plain).run(feeds)}
    mine = {name: known[name] for name in given}
    apart = RuntimeSession(part, what="the part", **plain).run(mine)
    exact = all(run.identical(known[name], apart[name]) for name in names)
    usual = RuntimeSession(part, what="the part").run(mine)
    return exact, _compared(whole, names, known, usual)


def _compared(
    whole: Model, names: Sequence[str], one: Mapping[str, Array], other: Mapping[str, Array]
) -> tuple[OutputEvidence, ...]:
    return run.compare(
        run.ModelOutputs(tuple(names), (tuple(one[name] for name in names),)),
        run.ModelOutputs(tuple(names), (tuple(other[name] for name in names),)),
        (),
        run.Noise(_REFERENCE, run.depth_of(whole)),
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
