"""Judges each layer of two compared models: whether it introduces error or only passes it on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from explorer.base.decibels import compute_relative_decibels
from explorer.base.units import printable
from explorer.engine.costs.onnx.scopes import find_module_path
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.rounding import QUANTIZERS, describe_formats, fold_rounding
from explorer.engine.graph.model import DTYPES, Model, Node, Tensor, list_bodies
from explorer.engine.graph.tile_metadata import SITE_KEY
from explorer.engine.proof.blame.changed_nodes import find_changed_nodes
from explorer.engine.proof.blame.probe import LayerProbe
from explorer.engine.proof.compare import OutputComparison, get_unit_roundoff
from explorer.engine.proof.outputs.run import estimate_depth
from explorer.engine.proof.regions.trials import ComparedValue, Trial
from explorer.engine.proof.structure.probes import GraphProducers, Region, build_region_model_of_one
from explorer.facts.blame import Change, Probe, ProbeState

_COARSE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Unit roundoff of each type that is coarser than float32."""

_ROUNDOFF_OF_QUANTIZED = math.inf
"""Roundoff of quantized numbers: any difference may come from their rounding."""


class Judge:
    """Turns the measurements of two models into a verdict for each layer.

    Args:
        layer_probe: Measurements of the two models.
        growth_by_output: Factor by which rounding errors may grow in a tiled site, by output name.
    """

    def __init__(self, layer_probe: LayerProbe, growth_by_output: Mapping[str, float]) -> None:
        self.before, self.after = layer_probe.before, layer_probe.after
        self.compared_values = layer_probe.compared_values
        self.original_names = layer_probe.original_names
        self.growth_by_output = growth_by_output
        self.depth = estimate_depth(self.before.model)
        self.coarsest_by_function: dict[int, tuple[float, str]] = {}
        self.formats = _find_added_formats(self.before.model, self.after.model)

    def build_probes(self, outputs: set[str]) -> Iterator[Probe]:
        """Yields a probe for every compared value, in execution order.

        `outputs` are the original's outputs.
        """
        growth = 1.0
        judged: list[tuple[ComparedValue, bool, tuple[ProbeState, str, Trial | None]]] = []
        for value in self.compared_values:
            nodes = [self.after.nodes[node_index] for node_index in value.after.nodes]
            value_growth = max(
                (self.growth_by_output.get(o, 1.0) for node in nodes for o in node.outputs), default=1.0
            )
            growth = max(growth, value_growth)
            departs = self._explain_excess(value, value.in_whole_model, self.depth, growth, None) != ""
            state, reason, trial = self._judge_alone(value, value_growth)
            if state == "rounding":
                state = "inherited" if departs else "equal" if value.in_whole_model.equal else "rounding"
            judged.append((value, departs, (state, reason, trial)))
        # one layer of a coarser type is a change of the graph; many are a model in another type
        is_only_coarser = [state for _, _, (state, _, _) in judged].count("coarser") == 1
        for value, departs, (state, reason, trial) in judged:
            is_culprit = state == "introduced" or (state == "coarser" and is_only_coarser)
            is_output = value.pair.before in outputs
            yield self._build_probe(value, departs, state, reason, trial, is_output, is_culprit)

    def _judge_alone(self, value: ComparedValue, growth: float) -> tuple[ProbeState, str, Trial | None]:
        """Judges a layer that ran alone.

        Returns:
            Tuple of three: the state ('introduced', 'coarser', 'unjudged' or 'rounding'); the reason; the
            trial that shows it, for 'rounding' the one with the largest error, or None.
        """
        depth = max(estimate_depth(build_region_model_of_one(self.before, value.before)), 1)
        coarsest_before = self._find_coarsest_type(self.before, value.before, value.dtypes[0])
        coarsest_after = self._find_coarsest_type(self.after, value.after, value.dtypes[1])
        coarser = coarsest_after[0] > max(coarsest_before[0], get_unit_roundoff(value.dtypes[0]))
        worst_trial = max(
            (t for t in value.alone if not t.not_run),
            key=lambda t: _compute_relative_error(t.figures) or 0.0,
            default=None,
        )
        judgment: tuple[ProbeState, str, Trial | None] = ("rounding", "", worst_trial)
        for trial in value.alone:
            if trial.not_run:
                judgment = "unjudged", f"it could not be run alone: {trial.not_run}", None
                continue
            reason = self._explain_excess(value, trial, depth, growth, None)
            if not reason:
                continue
            may_be_coarser = coarser and not trial.fault and not trial.figures.nonfinite
            if not may_be_coarser or (
                coarsest_after[0] != _ROUNDOFF_OF_QUANTIZED
                and self._explain_excess(value, trial, depth, growth, coarsest_after[0])
            ):
                return "introduced", reason, trial
            if judgment[0] == "rounding":
                judgment = "coarser", f"computed in {coarsest_after[1]}", trial
        return judgment

    def _explain_excess(
        self, value: ComparedValue, trial: Trial, depth: int, growth: float, roundoff: float | None
    ) -> str:
        """Returns the reason why rounding cannot explain a difference, or '' if it can.

        With a `roundoff`, the layer may round to a type with this unit roundoff.
        """
        figures = trial.figures
        if trial.fault:
            return trial.fault
        if figures.equal:
            return ""
        if not value.is_float:
            return f"{trial.differing:,} of {trial.elements:,} elements differ" if trial.differing else ""
        type_roundoff = get_unit_roundoff(value.dtypes[0])
        figures.roundoff = type_roundoff
        judged = figures.judged and figures.plausible
        figures.growth = growth
        if roundoff is not None:
            figures.roundoff, figures.growth = roundoff, growth * roundoff / type_roundoff
        return figures.judge() if judged else figures.judge_by_depth(depth)

    def _find_coarsest_type(self, wiring: GraphProducers, region: Region, dtype: str) -> tuple[float, str]:
        """Returns the largest unit roundoff of the number types in a region, and the name of that type.

        The result is (0, '') if no type is coarser than float32. `dtype` is the type of the region's value.
        """
        initializers = wiring.model.graph.initializers
        roundoffs = [
            _get_roundoff(dtype),
            *(_get_roundoff(initializers[name].dtype) for name in region.initializers),
        ]
        roundoffs += [
            self._find_coarsest_type_of_node(wiring.model, wiring.nodes[index]) for index in region.nodes
        ]
        return max(roundoffs, default=(0.0, ""))

    def _find_coarsest_type_of_node(self, model: Model, node: Node) -> tuple[float, str]:
        """Returns the largest unit roundoff in a node, its bodies and its function, and the type's name."""
        if node.domain in QUANTIZERS:
            return _ROUNDOFF_OF_QUANTIZED, "another number format"
        function = model.functions.get(node.key)
        if function is not None:
            if id(function) not in self.coarsest_by_function:
                self.coarsest_by_function[id(function)] = 0.0, ""
                inner_types = [self._find_coarsest_type_of_node(model, inner) for inner in function.nodes]
                self.coarsest_by_function[id(function)] = max(inner_types, default=(0.0, ""))
            return self.coarsest_by_function[id(function)]
        coarse_types = [(0.0, "")]
        if "quantize" in node.op.lower() or node.op.startswith("QLinear") or node.op.endswith("Integer"):
            coarse_types.append((_ROUNDOFF_OF_QUANTIZED, "integers"))
        elif node.op.startswith("MatMulNBits"):
            coarse_types.append((_ROUNDOFF_OF_QUANTIZED, "few bits"))
        if node.op == "Cast":
            code = node.attributes.get("to")
            coarse_types += (
                [_get_roundoff(DTYPES[code].name)] if isinstance(code, int) and code in DTYPES else []
            )
        if node.op == "Constant" and isinstance(value := node.attributes.get("value"), Tensor):
            coarse_types.append(_get_roundoff(value.dtype))
        for _, graph in list_bodies(node):
            coarse_types += [self._find_coarsest_type_of_node(model, inner) for inner in graph.nodes]
            coarse_types += [_get_roundoff(tensor.dtype) for tensor in graph.initializers.values()]
        return max(coarse_types)

    def _build_probe(
        self,
        value: ComparedValue,
        departs: bool,
        state: ProbeState,
        reason: str,
        trial: Trial | None,
        output: bool,
        is_culprit: bool,
    ) -> Probe:
        """Builds the probe of a compared value, named by the changed node if the layer `is_culprit`."""
        index = self.before.producer[value.pair.before]
        node, node_after = self.before.nodes[index], self.after.nodes[self.after.producer[value.pair.after]]
        change: Change = ""
        if is_culprit:
            change, index, node, node_after = self._find_changed_nodes(value, (index, node, node_after))
        figures = value.in_whole_model.figures
        was_compared = bool(figures.elements)
        relative = _compute_relative_error(figures) if value.is_float else None
        did_run = trial is not None and not trial.fault and not trial.not_run
        alone_figures = trial.figures if trial is not None and did_run and value.is_float else None
        input_dependent_nodes = [
            i
            for i in value.before.nodes
            if not self.before.input_dependent.isdisjoint(self.before.nodes[i].outputs)
        ]
        return Probe(
            step=index,
            layer=node.label,
            op=node.op,
            layer_after=node_after.metadata.get(SITE_KEY) or node_after.label,
            value=value.pair.before,
            value_after=value.pair.after,
            layers=len(input_dependent_nodes),
            dtype=value.dtypes[0],
            dtype_after=value.dtypes[1],
            shape=value.shape,
            max_abs=figures.max_abs if was_compared else None,
            rms=math.sqrt(figures.mse) if value.is_float and figures.mse is not None else None,
            relative=relative,
            snr_db=compute_relative_decibels(relative) if relative else None,
            cosine=figures.cosine if value.is_float else None,
            nonfinite=figures.nonfinite,
            noise=_compute_relative_noise(figures),
            introduced=_compute_relative_error(alone_figures) if alone_figures is not None else None,
            introduced_noise=_compute_relative_noise(alone_figures) if alone_figures is not None else None,
            departs=departs,
            state=state,
            reason=printable(reason),
            output=output,
            formats=self.formats.get(self.after.producer[value.pair.after], ""),
            change=change,
            module=find_module_path(node),
        )

    def _find_changed_nodes(
        self, value: ComparedValue, producers: tuple[int, Node, Node]
    ) -> tuple[Change, int, Node, Node]:
        """Finds the changed node in the layer that introduces the error.

        Returns:
            Tuple of four: the change; the index of the node in the first model; the node in the first model;
            the node in the second model.
        """
        index, node, node_after = producers
        changed = find_changed_nodes(
            self.before, self.after, (value.before, value.after), self.original_names
        )
        if not changed.change:
            return "behind the fault", index, node, node_after
        if changed.before:
            index = changed.before[0]
            node = self.before.nodes[index]
        if changed.after:
            node_after = self.after.nodes[changed.after[0]]
        return changed.change, index, node if changed.before else node_after, node_after


def _find_added_formats(before: Model, after: Model) -> dict[int, str]:
    """Finds number formats that only the second model applies, as text by node index."""
    side = DefUse(after)
    folded = fold_rounding(DefUse(before), side)
    if folded is None or folded.side is not side:
        return {}
    return {index: describe_formats(side.nodes[index], node, side) for index, node in folded.nodes.items()}


def _get_roundoff(dtype: str) -> tuple[float, str]:
    """Returns the unit roundoff and the name of a coarse type, or (0, '') for other types."""
    if dtype.startswith(("float8", "float4", "float6")):
        return _ROUNDOFF_OF_QUANTIZED, dtype
    return (_COARSE[dtype], dtype) if dtype in _COARSE else (0.0, "")


def _compute_relative_error(figures: OutputComparison) -> float | None:
    """Returns the RMS difference divided by the RMS of the value, or None if this is unknown."""
    if not figures.elements or figures.mse is None or not figures.scale:
        return 0.0 if figures.equal and figures.elements else None
    return math.sqrt(figures.mse) / figures.scale


def _compute_relative_noise(figures: OutputComparison) -> float | None:
    """Returns the original's RMS error against float64 divided by the value's RMS, or None if unknown."""
    if not figures.judged or not figures.plausible or not figures.scale:
        return None
    return (figures.rms_before or 0.0) / figures.scale
