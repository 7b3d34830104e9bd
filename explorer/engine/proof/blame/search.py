"""Finds the first layer in which two models differ, and how the error grows from there.

Both models run on the same inputs with their common values exposed. This shows where the error is, but not
its origin: after a fault, every value is wrong. So each layer of the second model also runs on the values of
the first model. A layer introduces an error if the error appears there. All other error is inherited.

The test of the proof (`compare`) decides whether a difference is an error: it must exceed the original's own
error against float64. A layer with coarser number types may be off by the rounding of those types.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import dims_text, many_text, printable
from explorer.engine.diff.pairing import inline_calls_if_named_in
from explorer.engine.graph.model import Model
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.proof.blame.judge import Judge
from explorer.engine.proof.blame.probe import BUDGET, LayerProbe
from explorer.engine.proof.dynamic_sizes import Dims, choose_sizes
from explorer.engine.proof.outputs.run import InputMismatch, pair_inputs
from explorer.engine.proof.regions.trials import FLOATS, round_to_type
from explorer.engine.proof.sites.recovery import recover_plan
from explorer.engine.proof.structure.probes import GraphProducers, Pair, Region
from explorer.engine.runtime import random_inputs
from explorer.engine.runtime.input_files import InputArrays
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.facts import Plan
from explorer.facts.blame import Blame, BlameKind, Probe
from explorer.facts.site_names import format_site

CRITERION = (
    "every layer of the second model runs on the first model's values: unchanged, with zeros replaced, and"
    " for long sums one part at a time; a layer introduces error if its result differs from float64 by more"
    " than the first model's result does, and by more than chance and rounding explain; all other error is"
    " inherited"
)

_MAX_LISTED = 16
"""Number of unpaired values that the answer lists."""

_RUNTIME_CHAIN = 256
"""Number of consecutive additions in a runtime's own kernel. Small tiles of deep products make longer chains.
Rounding errors grow with the square root of the length."""

_ORDER: tuple[BlameKind, ...] = (
    *("fault", "spread", "coarser"),
    *("undecided", "amplified", "rounding", "equal", "unlike"),
)
"""Kinds of answers by priority. If the answers for several sizes differ, the first kind is returned."""

_RENAMED = "its name stands for another value in the second model"


def blame(
    before: Model,
    after: Model,
    *,
    draws: int = 1,
    seed: int = 0,
    dims: Dims | None = None,
    input_shapes: random_inputs.InputShapes | None = None,
    arrays: InputArrays | None = None,
    budget: int = BUDGET,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Blame:
    """Finds the first layer in which `after` departs from `before`, and the error at every common value.

    Args:
        before: Original model.
        after: Model to compare with it.
        draws: Number of random inputs to run.
        seed: Seed of the first draw. Draw i uses seed + i.
        dims: One or several sizes for each symbolic dimension. A size that neither `dims` nor `after` fixes
            is tried at several values (see `dynamic_sizes`).
        input_shapes: Shapes and types that replace the declared shapes and types.
        arrays: Inputs from a file, to use instead of random inputs.
        budget: Bytes of values that may exist at a time. A larger value is compared alone.
        on_progress: Callback for progress.
        cancel: Function that returns True to cancel. It is called between runs and between layers.

    Returns:
        The answer; of the answers for several sizes, the first by kind (see `_ORDER`), then by the earliest
        fault. A difference is a result, not an error.

    Raises:
        Misuse: An option does not fit the model, or no input can be drawn.
        BadModel: onnxruntime cannot load or run one of the models.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    if draws < 1:
        raise Misuse(f"{draws} draws show nothing", where="--draws", hint="give 1 or more")
    before, after = build_plain_form(before), build_plain_form(after)
    before, after = inline_calls_if_named_in(before, after), inline_calls_if_named_in(after, before)
    plan = recover_plan(after)
    if plan is None:
        random_inputs.check_names(before, dims or {}, input_shapes or {})
    try:
        inputs, output_pairs = pair_inputs(before, after, FLOATS), _pair_outputs(before, after)
    except InputMismatch as mismatch:
        return _build_mismatch(before, after, str(mismatch), time.perf_counter() - started)
    seeds = () if arrays is not None else tuple(seed + i for i in range(draws))
    build_probe = partial(
        LayerProbe, before, after, inputs, output_pairs, budget=budget, on_progress=on_progress, cancel=cancel
    )
    probe_inputs = partial(_probe_at_sizes, after, inputs, output_pairs, plan, seeds, build_probe)
    if arrays is not None:
        return replace(
            probe_inputs(random_inputs.read_given_inputs(before, arrays)),
            seconds=time.perf_counter() - started,
        )
    shapes = random_inputs.fill_open_sizes(before, after, inputs, input_shapes or {})
    tested_sizes = choose_sizes(
        before, plan, {**_find_fixed_sizes(before, after, inputs), **(dims or {})}, shapes
    ).tried
    worst = _find_worst_answer(
        lambda sizes: probe_inputs(random_inputs.plan_inputs(before, sizes, shapes)), tested_sizes
    )
    return replace(worst, seconds=time.perf_counter() - started)


def _find_worst_answer(
    probe_inputs: Callable[[dict[str, int]], Blame], tested_sizes: Sequence[dict[str, int]]
) -> Blame:
    """Returns the first answer in the order of `_rank` among those for several sizes.

    Raises:
        BadModel: The models do not run at some sizes, and do not differ at the others.
    """
    worst: Blame | None = None
    first_error: BadModel | None = None
    for sizes in tested_sizes:
        try:
            answer = replace(probe_inputs(sizes), at=sizes)
        except BadModel as error:
            first_error = first_error or (
                error if len(tested_sizes) == 1 else BadModel(f"{error} (at {dims_text(sizes)})")
            )
            continue
        worst = answer if worst is None or _rank(answer) < _rank(worst) else worst
    if first_error is not None and (worst is None or worst.same):
        raise first_error
    assert worst is not None
    where = f" (at {dims_text(worst.at)})" if len(tested_sizes) > 1 and not worst.same else ""
    return replace(worst, verdict=worst.verdict + where, sizes=tuple(tested_sizes) if tested_sizes[0] else ())


def _rank(answer: Blame) -> tuple[int, int]:
    """Ranks an answer among those for several sizes: by kind, then by the earliest fault."""
    return _ORDER.index(answer.kind), len(answer.probes) if answer.first is None else answer.first


def _probe_at_sizes(
    after: Model,
    inputs: Mapping[str, str],
    output_pairs: Sequence[Pair],
    plan: Plan | None,
    seeds: tuple[int, ...],
    build_probe: Callable[..., LayerProbe],
    inputs_to_draw: tuple[random_inputs.RandomInput, ...],
) -> Blame:
    """Computes the answer for inputs of one set of sizes. `build_probe` builds the probe for such inputs."""
    growth_by_output = (
        {s.output: max(1.0, math.sqrt(s.grid[1] / _RUNTIME_CHAIN)) for s in plan.sites} if plan else {}
    )
    after_types = {v.name: v.dtype for v in after.graph.required_inputs}
    coarser = {
        d.name: other_type
        for d in inputs_to_draw
        if not _can_represent(other_type := after_types[inputs[d.name]], d.dtype)
    }
    feeds = [
        {
            name: round_to_type(value, coarser.get(name))
            for name, value in random_inputs.draw(inputs_to_draw, s).items()
        }
        for s in seeds or (0,)
    ]

    def probe_layers(exclusions: Mapping[str, str]) -> tuple[LayerProbe, tuple[Probe, ...]]:
        layer_probe = build_probe(inputs_to_draw, feeds, excluded=exclusions)
        layer_probe.run()
        outputs = {pair.before for pair in output_pairs}
        return layer_probe, tuple(Judge(layer_probe, growth_by_output).build_probes(outputs))

    layer_probe, probes = probe_layers({})
    renamed_values = _find_renamed_values(layer_probe, probes)
    if renamed_values:
        second_probe = probe_layers(dict.fromkeys(renamed_values, _RENAMED))
        if sum(p.state == "introduced" for p in second_probe[1]) < sum(
            p.state == "introduced" for p in probes
        ):
            layer_probe, probes = second_probe
    texts = (
        d.text() + (f", rounded to {coarser[d.name]}" if d.name in coarser else "") for d in inputs_to_draw
    )
    return _build_answer(layer_probe, probes, seeds, tuple(texts))


def _can_represent(target: str | None, source: str) -> bool:
    """Whether type `target`, or an unknown type (None), represents all values of type `source`."""
    return target in (None, source) or "string" in (target, source) or bool(np.can_cast(source, target))


def _pair_outputs(before: Model, after: Model) -> list[Pair]:
    """Pairs the outputs by name, or by position if the names differ.

    Raises:
        InputMismatch: The models have different numbers of outputs.
    """
    first, second = ([v.name for v in m.graph.outputs] for m in (before, after))
    if len(first) != len(second):
        raise InputMismatch(f"one model has {many_text(len(first), 'output')}, the other {len(second)}")
    return [Pair(a, b) for a, b in zip(first, first if set(first) == set(second) else second, strict=True)]


def _find_fixed_sizes(before: Model, after: Model, inputs: Mapping[str, str]) -> dict[str, int]:
    """Finds the sizes that are open in the first model and fixed in the second."""
    after_shapes = {v.name: v.shape or () for v in after.graph.required_inputs}
    return {
        a: b
        for value in before.graph.required_inputs
        for a, b in zip(value.shape or (), after_shapes[inputs[value.name]], strict=False)
        if isinstance(a, str) and isinstance(b, int)
    }


def _find_renamed_values(layer_probe: LayerProbe, probes: Sequence[Probe]) -> list[str]:
    """Finds values whose name means another value in the second model, although that model is right.

    Example: the second model folded a normalization into the convolution before it. The output of the
    convolution then differs. The next layer, run on the original's value, lacks the normalization. The model
    as a whole is right.
    """
    readers: dict[str, list[Probe]] = {}
    for compared, probe in zip(layer_probe.compared_values, probes, strict=True):
        for name in compared.before.inputs:
            readers.setdefault(name, []).append(probe)
    renamed_values = []
    for compared, probe in zip(layer_probe.compared_values, probes, strict=True):
        reading_probes = readers.get(compared.pair.before, [])
        is_fault = probe.state == "introduced" and probe.departs and not probe.output
        if (
            is_fault
            and reading_probes
            and all(p.state == "introduced" and not p.departs for p in reading_probes)
        ):
            renamed_values.append(compared.pair.before)
    return renamed_values


def _build_mismatch(before: Model, after: Model, why: str, seconds: float) -> Blame:
    """Builds the answer for two models whose inputs or outputs do not match."""
    return Blame(
        kind="unlike",
        same=False,
        verdict=f"different: {why}",
        criterion=CRITERION,
        before=before.path,
        after=after.path,
        first=None,
        worst=None,
        most=None,
        probes=(),
        unpaired=(),
        unpaired_count=0,
        seeds=(),
        inputs=(),
        chunks=0,
        held_bytes=0,
        seconds=seconds,
    )


def _build_answer(
    layer_probe: LayerProbe, probes: tuple[Probe, ...], seeds: tuple[int, ...], inputs: tuple[str, ...]
) -> Blame:
    """Builds the answer from the probes of all compared values."""
    faulty_indices = [i for i, p in enumerate(probes) if p.state == "introduced"]
    coarser_indices = [i for i, p in enumerate(probes) if p.state == "coarser"]
    weighted_indices = [
        i
        for i, compared in enumerate(layer_probe.compared_values)
        if _has_weights(layer_probe.before, compared.before)
    ]
    kind = _decide_kind(probes, faulty_indices, coarser_indices, len(weighted_indices))
    first = next(iter(faulty_indices or coarser_indices), None)
    worst = _find_largest([(i, p.relative) for i, p in enumerate(probes)])
    largest = _find_largest([(i, probes[i].introduced) for i in faulty_indices or coarser_indices])
    return Blame(
        kind=kind,
        same=kind in ("equal", "rounding"),
        verdict=_write_verdict(kind, probes, faulty_indices, coarser_indices, len(weighted_indices), largest),
        criterion=CRITERION,
        before=layer_probe.before.model.path,
        after=layer_probe.after.model.path,
        first=first,
        worst=worst,
        most=largest,
        probes=probes,
        unpaired=tuple(layer_probe.unpaired.items())[:_MAX_LISTED],
        unpaired_count=len(layer_probe.unpaired),
        seeds=seeds,
        inputs=inputs,
        chunks=layer_probe.group_count,
        held_bytes=layer_probe.peak_bytes,
        seconds=0.0,
    )


def _find_largest(figures: Sequence[tuple[int, float | None]]) -> int | None:
    """Finds the index of the largest figure, or None if no figure is above zero."""
    sized = [(value, -i) for i, value in figures if value]
    return -max(sized)[1] if sized else None


def _has_weights(wiring: GraphProducers, region: Region) -> bool:
    """Whether a region has weights: stored tensors with several axes and several elements."""
    initializers = wiring.model.graph.initializers
    return any(
        len(initializers[name].shape) > 1 and initializers[name].elements > 1 for name in region.initializers
    )


def _decide_kind(
    probes: Sequence[Probe], at_fault: Sequence[int], coarser: Sequence[int], weighted: int
) -> BlameKind:
    """Decides the kind of the answer from layer indices and from the number of layers with weights."""
    if not probes:
        return "unlike"
    if at_fault:
        # if most layers with weights add error, no single layer is at fault, unless there is only one
        return "spread" if len(at_fault) > 1 and 2 * len(at_fault) > weighted else "fault"
    if coarser:
        return "coarser"
    if any(p.departs for p in probes):
        return "undecided" if any(p.state == "unjudged" for p in probes) else "amplified"
    # a layer that could not be run alone was still compared in the whole runs
    is_equal = all(p.state == "equal" or (p.state == "unjudged" and p.max_abs == 0) for p in probes)
    return "equal" if is_equal else "rounding"


def _write_verdict(
    kind: BlameKind,
    probes: Sequence[Probe],
    at_fault: Sequence[int],
    coarser: Sequence[int],
    weighted: int,
    largest: int | None,
) -> str:
    """Writes the verdict of an answer of this kind; the indices are those of `_build_answer`."""
    count = many_text(len(probes), "value")
    if kind == "unlike":
        return "different: the two models have no value in common that could be compared"
    if kind in ("equal", "rounding"):
        unseen = sum(p.state == "unjudged" for p in probes)
        unjudged_text = f"; {many_text(unseen, 'layer')} could not be run alone" if unseen else ""
        return f"equal {'bit for bit' if kind == 'equal' else 'within rounding'} at {count}{unjudged_text}"
    if kind == "amplified":
        departing = next(p for p in probes if p.departs)
        return (
            "departs, but no layer introduces more than rounding, which the model amplifies; the"
            f" difference first exceeds the rounding of the original at {_name_probe(departing)}"
        )
    if kind == "undecided":
        departing = next(p for p in probes if p.departs)
        unjudged = next(p for p in probes if p.state == "unjudged")
        where = f"the first difference is at {_name_probe(departing)}"
        return f"not decided: {where}; {_name_probe(unjudged)} is not judged: {unjudged.reason}"
    first = probes[(at_fault or coarser)[0]]
    if kind == "coarser" and len(coarser) == 1:
        share = "" if first.introduced is None else f", {100 * first.introduced:.3g} % of its RMS"
        culprit = f"{_name_probe(first)}{_describe_change(first)}"
        return f"departs because of the coarser number type of {culprit}: {first.reason}{share}"
    largest_text = ""
    if largest is not None and (error := probes[largest].introduced) is not None:
        largest_text = (
            f", with the largest error in {_name_probe(probes[largest])} ({100 * error:.3g} % of its RMS)"
        )
    if kind == "coarser":
        why = " and ".join(dict.fromkeys(probes[i].reason for i in coarser))
        return (
            f"departs because of coarser number types: {len(coarser):,} of {count} are {why}{largest_text};"
            " no single layer is at fault"
        )
    if kind == "spread":
        return (
            f"departs in {len(at_fault):,} layers ({weighted:,} have weights), first in"
            f" {_name_probe(first)}{largest_text}; no single layer is at fault"
        )
    other_count = len(at_fault) - 1
    others_text = ""
    if other_count:
        plural, verb_end = ("s", "") if other_count > 1 else ("", "s")
        others_text = f"; {other_count:,} more layer{plural} introduce{verb_end} error"
    output_probes = [p for p in probes if p.output]
    is_visible = any(p.departs for p in output_probes) or not output_probes
    unseen_text = "" if is_visible else "; the outputs do not show it on these inputs"
    reason = f"{first.reason}{others_text}{unseen_text}"
    return f"departs first in {_name_probe(first)}{_describe_change(first)}: {reason}"


def _describe_change(probe: Probe) -> str:
    """Describes the change of the faulty node as the end of a sentence, as in ', which was inserted'."""
    if not probe.change:
        return ""
    if probe.change == "behind the fault":
        return ", which comes after the fault"
    renamed = probe.change != "inserted" and probe.layer_after != probe.layer
    other_name = f" ('{printable(probe.layer_after)}' in the other model)" if renamed else ""
    is_or_was = "is" if probe.change == "connected otherwise" else "was"
    return f", which {is_or_was} {probe.change}{other_name}"


def _name_probe(probe: Probe) -> str:
    """Names a probe's layer for a message: operator, name, and the module if the name lacks it."""
    name = f"{printable(probe.op)} '{printable(probe.layer)}'"
    return name if format_site(probe.layer, probe.module) == probe.layer else f"{name} in {probe.module}"
