"""Proof that the stages compute what the whole does: run in a row, each on the previous stages' outputs.

With one thread and the runtime's optimizations off, both do the same sums in the same order, so the outputs
are equal bit for bit. With default settings the runtime may fuse operators across a cut in the whole but not
in the stages; the outputs are then equal within rounding.

Between float16 operators onnxruntime keeps float32 inside a graph, while a value that crosses a cut is
rounded to float16. There the stages are compared with a whole whose values at the cuts are rounded in the
same way: an Identity forces a value to its type.
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
"""Types for which onnxruntime keeps float32 between operators."""


class SplitRuns(NamedTuple):
    """How closely the parts reproduce the whole.

    Attributes:
        exact: Whether the values were equal bit for bit; None if there is nothing to compare.
        outputs: Evidence from a run with default settings, within rounding.
        rounded: The type to which the whole's values at the cuts had to be rounded; '' for none.
    """

    exact: bool | None
    outputs: tuple[OutputEvidence, ...]
    rounded: str = ""

    @property
    def passed(self) -> bool:
        """Whether no evidence contradicts the parts."""
        return self.exact is not False and all(output.passed for output in self.outputs)


def runs(whole: Model, stages: Sequence[Model], feeds: Mapping[str, Array]) -> SplitRuns:
    """Compares the stages with the whole: bit for bit, and within rounding under default settings.

    Outputs that depend on random numbers are not compared: two runs draw different numbers.

    Args:
        whole: The model.
        stages: The stages, in order.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in whole.graph.outputs]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    whole_outputs = RuntimeSession(whole, what="the whole", **plain).run(feeds)
    stage_outputs = in_turn(stages, feeds, names, **plain)
    drawn = random_outputs(whole)
    exact, rounded = _identical(names, whole_outputs, stage_outputs, drawn), ""
    cut = _narrow_types([value for stage in stages for value in stage.graph.feeds])
    if exact is False and cut:
        whole_outputs = RuntimeSession(rounding(whole, cut, names), what="the whole", **plain).run(feeds)
        exact, rounded = _identical(names, whole_outputs, stage_outputs, drawn), _types(cut)
    usual = RuntimeSession(whole, what="the whole").run(feeds)
    default_outputs = in_turn(stages, feeds, names)
    outputs = _without_random(_compare(whole, names, usual, default_outputs, drawn), drawn)
    return SplitRuns(exact, outputs, rounded)


def _identical(
    names: Sequence[str], expected: Mapping[str, Array], actual: Mapping[str, Array], drawn: Collection[str]
) -> bool | None:
    same = [run.identical(expected[name], actual[name]) for name in names if name not in drawn]
    return all(same) if same else None


def _narrow_types(values: Sequence[Value]) -> dict[str, str]:
    """Types of the values, by name, that are stored in fewer bits than the runtime computes with."""
    return {value.name: value.dtype for value in values if value.dtype in WIDENED}


def _types(narrow: Mapping[str, str]) -> str:
    return " and ".join(sorted(set(narrow.values())))


def rounding(model: Model, names: Collection[str], output_names: Sequence[str]) -> Model:
    """The model with the named values rounded to their type before another node reads them.

    The values become outputs, too: the runtime removes an Identity that stands between two nodes.

    Args:
        model: The whole.
        names: Names of the values.
        output_names: Names of the outputs that are compared.
    """
    nodes: list[Node] = []
    for node in model.graph.nodes:
        cut = [name for name in node.outputs if name in names]
        outputs = tuple(f"{name}::unrounded" if name in cut else name for name in node.outputs)
        nodes.append(node.with_values(node.inputs, outputs) if cut else node)
        nodes += [Node("Identity", (f"{name}::unrounded",), (name,), f"{name}::rounded") for name in cut]
    produced = {name for node in model.graph.nodes for name in node.outputs}
    extra_outputs = [name for name in names if name in produced and name not in output_names]
    return expose(
        replace(model, graph=replace(model.graph, nodes=tuple(nodes))), [*output_names, *extra_outputs]
    )


def of_random(proof: Verification, whole: Model) -> Verification:
    """The proof, with outputs that depend on random numbers marked as not comparable.

    Two runs with the same seed draw the same numbers, but only by chance: another runtime or seed would not.
    """
    drawn = random_outputs(whole)
    if not drawn or not proof.passed:
        return proof
    same = sum(output.equal and output.name not in drawn for output in proof.outputs)
    parts = [f"{many_text(proof.nodes or 0, 'node')} equal by construction"]
    if same:
        parts.append(f"{many_text(same, 'output')} bit for bit the same")
    parts.append(f"{many_text(len(drawn), 'output')} made with random numbers, which no two runs share")
    return replace(
        proof,
        verdict_kind="evidence",
        verdict=f"equal on evidence: {'; '.join(parts)}",
        outputs=_without_random(proof.outputs, drawn),
    )


def _without_random(outputs: Sequence[OutputEvidence], drawn: Collection[str]) -> tuple[OutputEvidence, ...]:
    """The evidence, without figures for outputs that depend on random numbers."""
    nothing: dict[str, Any] = dict.fromkeys(_FIGURES)
    return tuple(
        [
            replace(output, drawn=True, equal=False, reference=_RANDOM, reason=NOT_SHARED, **nothing)
            if output.name in drawn
            else output
            for output in outputs
        ]
    )


def part_runs(whole: Model, part: Model, feeds: Mapping[str, Array]) -> SplitRuns:
    """As `runs`, for a part, on the values that the whole has at the part's inputs.

    Outputs that the part draws are not compared; both use the values that the whole drew before the part.

    Args:
        whole: The model.
        part: A part of it, with the same value names.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run one of them.
    """
    names = [value.name for value in part.graph.outputs]
    input_names = [value.name for value in part.graph.feeds]
    drawn = random_outputs(part)
    exposed = [name for name in dict.fromkeys((*input_names, *names)) if name not in feeds]
    plain: dict[str, Any] = {"optimise": False, "threads": 1}
    whole_values = {**feeds, **RuntimeSession(expose(whole, exposed), what="the whole", **plain).run(feeds)}
    part_feeds = {name: whole_values[name] for name in input_names}
    part_values = RuntimeSession(part, what="the part", **plain).run(part_feeds)
    exact, rounded = _identical(names, whole_values, part_values, drawn), ""
    cut = _narrow_types(part.graph.feeds)
    if exact is False and cut:
        whole_values = {
            **feeds,
            **RuntimeSession(rounding(whole, cut, exposed), what="the whole", **plain).run(feeds),
        }
        part_values = RuntimeSession(part, what="the part", **plain).run(
            {name: whole_values[name] for name in input_names}
        )
        exact, rounded = _identical(names, whole_values, part_values, drawn), _types(cut)
    usual = RuntimeSession(part, what="the part").run({name: whole_values[name] for name in input_names})
    compared = _compare(whole, names, whole_values, usual, drawn)
    return SplitRuns(exact, _without_random(compared, drawn), rounded)


def _compare(
    whole: Model,
    names: Sequence[str],
    expected: Mapping[str, Array],
    actual: Mapping[str, Array],
    drawn: Collection[str] = (),
) -> tuple[OutputEvidence, ...]:
    return run.compare(
        run.ModelOutputs(tuple(names), (tuple(expected[name] for name in names),)),
        run.ModelOutputs(tuple(names), (tuple(actual[name] for name in names),)),
        (),
        run.Noise(_REFERENCE, run.depth_of(whole), drawn=(drawn, drawn)),
    )


def in_turn(
    stages: Sequence[Model], feeds: Mapping[str, Array], names: Sequence[str], **options: Any
) -> dict[str, Array]:
    """Outputs of the stages, run one after the other; values that no later stage reads are freed."""
    last = {value.name: at for at, stage in enumerate(stages) for value in stage.graph.feeds}
    values: dict[str, Array] = dict(feeds)
    for at, stage in enumerate(stages):
        session = RuntimeSession(stage, what=f"stage {at + 1}", **options)
        inputs = {value.name: values[value.name] for value in stage.graph.feeds}
        values.update(session.run({name: np.asarray(value) for name, value in inputs.items()}))
        values = {name: value for name, value in values.items() if last.get(name, -1) > at or name in names}
    return values
