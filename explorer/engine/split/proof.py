"""Proof that stages are the whole: run one after the other, each on what the ones before it handed on.

With the runtime's optimisation off and one thread every operator of both does the same sums in the same
order, so the outputs are equal bit for bit. With what a user has the runtime may fuse over a cut in the
whole, and not in the stages: there they are equal within rounding.

Between operators of float16 onnxruntime keeps float32 inside of a graph, and what crosses a cut is rounded
to float16. There the stages are held against the whole with its own values at the cuts rounded in the same
way, bit for bit: an Identity keeps a value at the type that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.graph.model import Model, Node, Value
from explorer.engine.graph.random_operators import NOT_SHARED, random_outputs
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.facts import OutputEvidence, Verification

_REFERENCE = "none: what rounding may do is reckoned from the depth of the model"
_RANDOM = "none: random numbers"
_FIGURES = ("max_abs", "max_rel", "mse", "cosine", "relative_rms", "limit_share")


WIDENED = ("float16", "bfloat16")
"""Types between whose operators onnxruntime keeps float32."""


class SplitRuns(NamedTuple):
    """How near parts come to the whole.

    Attributes:
        exact: Whether they gave its values bit for bit; None where there is nothing to compare.
        outputs: The same as a user runs them, within rounding.
        rounded: The type to which the whole's values at the cuts had to be rounded for that; '' for none.
    """

    exact: bool | None
    outputs: tuple[OutputEvidence, ...]
    rounded: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the parts."""
        return self.exact is not False and all(output.passed for output in self.outputs)


def runs(whole: Model, stages: Sequence[Model], feeds: Mapping[str, Array]) -> SplitRuns:
    """Whether the stages gave the whole's outputs bit for bit, and how near they come as a user runs them.

    Outputs that depend on random numbers show nothing, whatever two runs drew: they are not compared.

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
    drawn = random_outputs(whole)
    exact, rounded = _identical(names, one, other, drawn), ""
    cut = _narrow([value for stage in stages for value in stage.graph.feeds])
    if exact is False and cut:
        one = RuntimeSession(rounding(whole, cut, names), what="the whole", **plain).run(feeds)
        exact, rounded = _identical(names, one, other, drawn), _types(cut)
    usual = RuntimeSession(whole, what="the whole").run(feeds)
    apart = in_turn(stages, feeds, names)
    outputs = _shows_nothing(_compared(whole, names, usual, apart, drawn), drawn)
    return SplitRuns(exact, outputs, rounded)


def _identical(
    names: Sequence[str], one: Mapping[str, Array], other: Mapping[str, Array], drawn: Collection[str]
) -> bool | None:
    same = [run.identical(one[name], other[name]) for name in names if name not in drawn]
    return all(same) if same else None


def _narrow(values: Sequence[Value]) -> dict[str, str]:
    """The values, by name, that are stored in fewer bits than the runtime computes with; their types."""
    return {value.name: value.dtype for value in values if value.dtype in WIDENED}


def _types(narrow: Mapping[str, str]) -> str:
    return " and ".join(sorted(set(narrow.values())))


def rounding(model: Model, names: Collection[str], wanted: Sequence[str]) -> Model:
    """The same model, in which each of these values is rounded to its type before another node reads it.

    They are outputs, too: an Identity between two nodes alone is taken away with the casts around it.

    Args:
        model: The whole.
        names: Of the values.
        wanted: Outputs that are compared.
    """
    nodes: list[Node] = []
    for node in model.graph.nodes:
        cut = [name for name in node.outputs if name in names]
        outputs = tuple(f"{name}::unrounded" if name in cut else name for name in node.outputs)
        nodes.append(node.with_values(node.inputs, outputs) if cut else node)
        nodes += [Node("Identity", (f"{name}::unrounded",), (name,), f"{name}::rounded") for name in cut]
    made = {name for node in model.graph.nodes for name in node.outputs}
    kept = [name for name in names if name in made and name not in wanted]
    return expose(replace(model, graph=replace(model.graph, nodes=tuple(nodes))), [*wanted, *kept])


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


def part_runs(whole: Model, part: Model, feeds: Mapping[str, Array]) -> SplitRuns:
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
    exact, rounded = _identical(names, known, apart, drawn), ""
    cut = _narrow(part.graph.feeds)
    if exact is False and cut:
        known = {
            **feeds,
            **RuntimeSession(rounding(whole, cut, wanted), what="the whole", **plain).run(feeds),
        }
        apart = RuntimeSession(part, what="the part", **plain).run({name: known[name] for name in given})
        exact, rounded = _identical(names, known, apart, drawn), _types(cut)
    usual = RuntimeSession(part, what="the part").run({name: known[name] for name in given})
    compared = _compared(whole, names, known, usual, drawn)
    return SplitRuns(exact, _shows_nothing(compared, drawn), rounded)


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
