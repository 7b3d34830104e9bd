"""Proves that the stages compute the same outputs as the original model, called the whole.

The stages run one after another, each on the outputs of earlier stages. With one thread and without
optimizations, the stages and the whole add in the same order, so the outputs are equal bit for bit. With
default settings the runtime may fuse operators of the whole across a cut; the outputs are then equal within
rounding.

Inside a graph, onnxruntime keeps float32 between float16 operators, but a value that crosses a cut is rounded
to float16. So the stages of such a model are compared with a copy of the whole that rounds its values at the
cuts, by Identity nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.graph.model import Model, Node, Value
from explorer.engine.graph.random_operators import RANDOM_REASON, find_random_outputs
from explorer.engine.proof.outputs import run
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.facts import OutputEvidence, Verification

_REFERENCE = "none: the allowed rounding error follows from the depth of the model"
_RANDOM = "none: random numbers"
_FIGURES = ("max_abs", "max_rel", "mse", "cosine", "relative_rms", "limit_share")
"""Fields of `OutputEvidence` that measure a difference."""

WIDENED = ("float16", "bfloat16")
"""Types for which onnxruntime keeps float32 between operators."""


class SplitRuns(NamedTuple):
    """Results of a comparison of the stages, or of a part, with the whole.

    Attributes:
        exact: Whether the outputs were equal bit for bit, or None if no output can be compared.
        outputs: Evidence for each output from a run with default settings.
        rounded: Types to which the whole's values at the cuts were rounded, or '' if none were.
    """

    exact: bool | None
    outputs: tuple[OutputEvidence, ...]
    rounded: str = ""

    @property
    def passed(self) -> bool:
        """Whether no comparison showed a difference beyond rounding."""
        return self.exact is not False and all(output.passed for output in self.outputs)


def compare_stages(whole: Model, stages: Sequence[Model], feeds: Mapping[str, Array]) -> SplitRuns:
    """Compares the stages with the whole: bit for bit, and within rounding under default settings.

    Outputs that depend on random numbers are not compared: two runs draw different numbers.

    Args:
        whole: The original model.
        stages: The stages, in order.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run the whole or a stage.
    """
    names = [value.name for value in whole.graph.outputs]
    exact_settings: dict[str, Any] = {"optimize": False, "threads": 1}
    whole_outputs = RuntimeSession(whole, label="the whole", **exact_settings).run(feeds)
    stage_outputs = run_stages(stages, feeds, names, **exact_settings)
    random_names = find_random_outputs(whole)
    are_equal, rounded_types = _are_bits_equal(names, whole_outputs, stage_outputs, random_names), ""
    narrow_values = _find_narrow_types([value for stage in stages for value in stage.graph.required_inputs])
    if are_equal is False and narrow_values:
        whole_outputs = RuntimeSession(
            round_values(whole, narrow_values, names), label="the whole", **exact_settings
        ).run(feeds)
        are_equal = _are_bits_equal(names, whole_outputs, stage_outputs, random_names)
        rounded_types = _format_types(narrow_values)
    session = RuntimeSession(whole, label="the whole")
    default_whole_outputs = session.run(feeds)
    default_stage_outputs = run_stages(stages, feeds, names, keeps_signed=session.keeps_signed)
    outputs = _mark_random(
        _compare(whole, names, default_whole_outputs, default_stage_outputs, random_names), random_names
    )
    return SplitRuns(are_equal, outputs, rounded_types)


def _are_bits_equal(
    names: Sequence[str],
    expected: Mapping[str, Array],
    actual: Mapping[str, Array],
    random_names: Collection[str],
) -> bool | None:
    """Whether the outputs are equal bit for bit, or None if all of them depend on random numbers."""
    equal_outputs = [
        run.is_identical(expected[name], actual[name]) for name in names if name not in random_names
    ]
    return all(equal_outputs) if equal_outputs else None


def _find_narrow_types(values: Sequence[Value]) -> dict[str, str]:
    """Returns the types, by name, of the values in `WIDENED` types."""
    return {value.name: value.dtype for value in values if value.dtype in WIDENED}


def _format_types(dtypes: Mapping[str, str]) -> str:
    return " and ".join(sorted(set(dtypes.values())))


def round_values(model: Model, names: Collection[str], output_names: Sequence[str]) -> Model:
    """Returns the model with the named values rounded to their type before other nodes read them.

    The values also become outputs, because the runtime removes an Identity between two nodes.

    Args:
        model: The original model.
        names: Names of the values to round.
        output_names: Names of the outputs to compare.
    """
    nodes: list[Node] = []
    for node in model.graph.nodes:
        rounded_names = [name for name in node.outputs if name in names]
        outputs = tuple(f"{name}::unrounded" if name in rounded_names else name for name in node.outputs)
        nodes.append(node.replace_values(node.inputs, outputs) if rounded_names else node)
        nodes += [
            Node("Identity", (f"{name}::unrounded",), (name,), f"{name}::rounded") for name in rounded_names
        ]
    produced = {name for node in model.graph.nodes for name in node.outputs}
    extra_outputs = [name for name in names if name in produced and name not in output_names]
    return expose(
        replace(model, graph=replace(model.graph, nodes=tuple(nodes))), [*output_names, *extra_outputs]
    )


def exclude_random_outputs(proof: Verification, whole: Model) -> Verification:
    """Returns the proof with the outputs that depend on random numbers marked as not comparable.

    Even if two runs drew the same numbers, this proves nothing for another runtime or seed.
    """
    random_names = find_random_outputs(whole)
    if not random_names or not proof.passed:
        return proof
    equal_count = sum(output.equal and output.name not in random_names for output in proof.outputs)
    parts = [f"{many_text(proof.nodes or 0, 'node')} equal by construction"]
    if equal_count:
        parts.append(f"{many_text(equal_count, 'output')} bit for bit the same")
    parts.append(
        f"{many_text(len(random_names), 'output')} computed from random numbers, which differ in each run"
    )
    return replace(
        proof,
        verdict_kind="evidence",
        verdict=f"equal on evidence: {'; '.join(parts)}",
        outputs=_mark_random(proof.outputs, random_names),
    )


def _mark_random(
    outputs: Sequence[OutputEvidence], random_names: Collection[str]
) -> tuple[OutputEvidence, ...]:
    """Removes the figures of the outputs in `random_names`, which depend on random numbers."""
    no_figures: dict[str, Any] = dict.fromkeys(_FIGURES)
    return tuple(
        [
            replace(output, drawn=True, equal=False, reference=_RANDOM, reason=RANDOM_REASON, **no_figures)
            if output.name in random_names
            else output
            for output in outputs
        ]
    )


def compare_part(whole: Model, part: Model, feeds: Mapping[str, Array]) -> SplitRuns:
    """Compares an extracted part with the whole, as `compare_stages` does for stages.

    The part runs on the values that the whole computed for the part's inputs. Outputs that depend on random
    numbers drawn inside the part are not compared.

    Args:
        whole: The original model.
        part: A part of the model, with the same value names.
        feeds: Inputs of the whole, by name.

    Raises:
        BadModel: onnxruntime cannot load or run the whole or the part.
    """
    names = [value.name for value in part.graph.outputs]
    input_names = [value.name for value in part.graph.required_inputs]
    random_names = find_random_outputs(part)
    exposed = [name for name in dict.fromkeys((*input_names, *names)) if name not in feeds]
    exact_settings: dict[str, Any] = {"optimize": False, "threads": 1}
    whole_values = {
        **feeds,
        **RuntimeSession(expose(whole, exposed), label="the whole", **exact_settings).run(feeds),
    }
    part_feeds = {name: whole_values[name] for name in input_names}
    part_values = RuntimeSession(part, label="the part", **exact_settings).run(part_feeds)
    are_equal, rounded_types = _are_bits_equal(names, whole_values, part_values, random_names), ""
    narrow_values = _find_narrow_types(part.graph.required_inputs)
    if are_equal is False and narrow_values:
        whole_values = {
            **feeds,
            **RuntimeSession(
                round_values(whole, narrow_values, exposed), label="the whole", **exact_settings
            ).run(feeds),
        }
        part_values = RuntimeSession(part, label="the part", **exact_settings).run(
            {name: whole_values[name] for name in input_names}
        )
        are_equal = _are_bits_equal(names, whole_values, part_values, random_names)
        rounded_types = _format_types(narrow_values)
    # without optimizations, the whole keeps its signed weights
    default_part_values = RuntimeSession(part, label="the part", keeps_signed=True).run(
        {name: whole_values[name] for name in input_names}
    )
    evidence = _compare(whole, names, whole_values, default_part_values, random_names)
    return SplitRuns(are_equal, _mark_random(evidence, random_names), rounded_types)


def _compare(
    whole: Model,
    names: Sequence[str],
    expected: Mapping[str, Array],
    actual: Mapping[str, Array],
    drawn: Collection[str] = (),
) -> tuple[OutputEvidence, ...]:
    """Compares outputs within rounding. `drawn` names the outputs that depend on random numbers."""
    return run.compare(
        run.ModelOutputs(tuple(names), (tuple(expected[name] for name in names),)),
        run.ModelOutputs(tuple(names), (tuple(actual[name] for name in names),)),
        (),
        run.Noise(_REFERENCE, run.estimate_depth(whole), drawn=(drawn, drawn)),
    )


def run_stages(
    stages: Sequence[Model], feeds: Mapping[str, Array], names: Sequence[str], **options: Any
) -> dict[str, Array]:
    """Runs the stages one after another.

    A value is freed after the last stage that reads it.

    Args:
        stages: The stages, in order.
        feeds: Inputs of the whole, by name.
        names: Names of the values to return.
        **options: Options of each stage's session.

    Returns:
        The values by name.
    """
    last_use = {v.name: index for index, stage in enumerate(stages) for v in stage.graph.required_inputs}
    values: dict[str, Array] = dict(feeds)
    for index, stage in enumerate(stages):
        session = RuntimeSession(stage, label=f"stage {index + 1}", **options)
        inputs = {value.name: values[value.name] for value in stage.graph.required_inputs}
        values.update(session.run({name: np.asarray(value) for name, value in inputs.items()}))
        values = {
            name: value for name, value in values.items() if last_use.get(name, -1) > index or name in names
        }
    return values
