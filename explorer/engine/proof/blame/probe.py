"""Compares two models at their common values: in full runs, and layer by layer on equal inputs.

A runtime returns all outputs of a run at once, so each run compares only as many values as fit a memory
budget. The float64 run of the original follows these runs and drops values that no later layer reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine import shapes
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.model import Model, count_dense_bytes
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.proof.compare import OutputComparison, get_unit_roundoff
from explorer.engine.proof.outputs.quantization import add_float_outputs
from explorer.engine.proof.outputs.run import measure_rms_change, shift_by_one_ulp
from explorer.engine.proof.regions import trials
from explorer.engine.proof.regions.float64_layers import Float64Layers, run_in_float64
from explorer.engine.proof.regions.trials import COMPARABLE
from explorer.engine.proof.structure.probes import GraphProducers, Pair, build_region_model, pair_values
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.facts import TensorInfo

Feeds = dict[str, Array]

BUDGET = 1 << 28
"""Bytes of values that are in memory at a time."""

_ARRAYS_PER_VALUE = 6
"""Number of arrays in memory while one value is compared. They are the outputs of both models, of both layers
alone, of the original with changed inputs, and of float64."""

_MAX_SESSION_NODES = 2048
"""Largest number of nodes in a session of several layers. Loading is quadratic in the number of nodes that
are ready at once."""

_TERMS_PER_TRIAL = 128
"""Number of terms of a sum that one trial covers."""

_MAX_MACS = 1 << 28
"""Largest number of multiplications for all parts of a sum. In float64 they take half a second."""


class _LayerSessions(Struct, frozen=True):
    """Sessions that run some layers of the two models on given inputs.

    Attributes:
        first, second: Session of the original's layers, and session of the other model's layers.
        outputs, outputs_after: Names of the outputs in either session, by value name.
        input_names: Names of the inputs of the original's layers.
        dtypes: Types of the inputs of the second model's layers.
    """

    first: RuntimeSession
    second: RuntimeSession
    outputs: Mapping[str, str]
    outputs_after: Mapping[str, str]
    input_names: tuple[str, ...]
    dtypes: Mapping[str, str]


def _estimate_bytes(info: TensorInfo | None, dtype: str, unknown: int) -> int:
    """Returns the bytes of a value, or `unknown` if its shape is unknown or it has strings."""
    size = None if info is None else count_dense_bytes(info.shape, dtype)
    return unknown if size is None else size


class LayerProbe:
    """Compares two models at their common values.

    Args:
        before: Original model.
        after: Model to compare with it.
        inputs: Name of the input of `after` by the name of the original's input.
        output_pairs: Pairs of the names of the outputs.
        inputs_to_draw: Shapes and types of the inputs.
        feeds: Input arrays for each draw, by the original's names.
        excluded: Reason why a value of the original must not be paired, by value name.
        budget: Bytes of values that may exist at a time.
        on_progress: Callback for progress.
        cancel: Function that returns True to cancel. It is called between runs and between layers.

    Attributes:
        before, after: The two graphs with the producers of their values.
        compared_values: Compared values, in the execution order of the original.
        unpaired: Reason why a value of the original is not compared, by value name.
        original_names: Name of a value in the original by its name in the other model.
        group_count: Number of groups in which the values are compared.
        peak_bytes: Largest estimate of the bytes of one group.

    Raises:
        BadModel: onnxruntime cannot load one of the models.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        inputs: Mapping[str, str],
        output_pairs: Sequence[Pair],
        inputs_to_draw: tuple[RandomInput, ...],
        feeds: Sequence[Feeds],
        *,
        excluded: Mapping[str, str] | None = None,
        budget: int = BUDGET,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> None:
        self.before, self.after = GraphProducers(before), GraphProducers(after)
        after, floats = add_float_outputs(self.before, self.after)
        if floats:
            self.after = GraphProducers(after)
        self.inputs = inputs
        self.feeds = feeds
        self.budget = budget
        self.on_progress = on_progress
        self.cancel = cancel
        self.group_count = self.peak_bytes = 0
        self.report_progress("pairing values")
        self.excluded = excluded or {}
        pairs = pair_values(self.before, self.after, inputs, output_pairs, floats)
        pairs = [p for p in pairs if p.before not in self.excluded]
        inferred = shapes.infer(before, None, {d.name: (d.dtype, d.shape) for d in inputs_to_draw}).values
        pairs = [
            p for p in pairs if p.before not in inferred or inferred[p.before].dtype in (*COMPARABLE, None)
        ]
        self.report_progress("loading the original")
        self._first = RuntimeSession(
            expose(before, [p.before for p in pairs]), label="the original", optimize=False
        )
        self.report_progress("loading the other model")
        self._second = RuntimeSession(
            expose(after, [p.after for p in pairs]), label="the other model", optimize=False
        )
        types, types_after = self._first.types(), self._second.types()
        comparable = [p for p in pairs if _can_subtract(types[p.before], types_after[p.after])]
        self._dtypes = {p.after: str(types_after[p.after]) for p in comparable}
        declared = {v.name: v.dtype for v in after.graph.required_inputs}
        self._dtypes.update((inputs[d.name], declared[inputs[d.name]] or d.dtype) for d in inputs_to_draw)
        self.original_names = {b: a for a, b in inputs.items()} | {p.after: p.before for p in comparable}
        stops, stops_after = {p.before for p in comparable}, {p.after for p in comparable}
        self.compared_values: list[trials.ComparedValue] = []
        for pair in comparable:
            dtype = str(types[pair.before])
            self.compared_values.append(
                trials.ComparedValue(
                    pair,
                    self.before.find_region(pair.before, stops),
                    self.after.find_region(pair.after, stops_after),
                    (dtype, self._dtypes[pair.after]),
                    # an unknown size counts as an eighth of the budget, so that few such values run at once
                    _estimate_bytes(inferred.get(pair.before), dtype, budget // 8),
                    trials.Trial(OutputComparison(get_unit_roundoff(dtype))),
                )
            )
        self.unpaired = self._collect_unpaired({p.before for p in pairs}, stops)
        self._float64_layers = Float64Layers(
            self.before, self.compared_values, feeds[0], self.report_progress
        )

    def _collect_unpaired(self, with_counterpart: set[str], paired: set[str]) -> dict[str, str]:
        """Returns the reason why a value of the original is not compared, by value name.

        Args:
            with_counterpart: Values with a counterpart in the other model, of any type.
            paired: Values that are compared.
        """
        unpaired = {}
        for name in self.before.producer:
            if name in self.before.input_dependent and name not in paired:
                is_in_both = name in with_counterpart
                reason = "of types that cannot be compared" if is_in_both else "not in the second model"
                unpaired[name] = self.excluded.get(name, reason)
        return unpaired

    def report_progress(self, phase: str, completed: int = 0, total: int = 0) -> None:
        """Reports progress, and raises Cancelled if the user canceled."""
        report(self.on_progress, self.cancel, phase, completed, total)

    def run(self) -> None:
        """Compares all values.

        Raises:
            BadModel: onnxruntime cannot run one of the models.
            Cancelled: The user canceled.
        """
        completed = 0
        for chunk in self._split_into_groups():
            self.group_count += 1
            old = self._run_whole(chunk, completed)
            for group in split_into_batches(
                chunk, lambda p: max(len(p.before.nodes), len(p.after.nodes)), _MAX_SESSION_NODES
            ):
                self.report_progress("running layers alone", completed, len(self.compared_values))
                self._compare_alone(group, old)
                completed += len(group)

    def _split_into_groups(self) -> Iterator[list[trials.ComparedValue]]:
        """Yields groups of values that fit the budget together with the inputs of their layers."""
        size = {p.pair.before: p.nbytes for p in self.compared_values}
        chunk: list[trials.ComparedValue] = []
        chunk_names: set[str] = set()
        nbytes = 0
        for value in self.compared_values:
            values = {value.pair.before, *self._collect_layer_inputs(value)} & size.keys()
            extra_bytes = _ARRAYS_PER_VALUE * sum(size[name] for name in values - chunk_names)
            if chunk and nbytes + extra_bytes > self.budget:
                yield chunk
                chunk, chunk_names, nbytes = [], set(), 0
                extra_bytes = _ARRAYS_PER_VALUE * sum(size[name] for name in values)
            chunk.append(value)
            chunk_names |= values
            nbytes += extra_bytes
            self.peak_bytes = max(self.peak_bytes, nbytes)
        if chunk:
            yield chunk

    def _collect_layer_inputs(self, value: trials.ComparedValue) -> set[str]:
        """Collects the inputs of both layers that compute a value, by the original's names."""
        return {*value.before.inputs, *(self.original_names[name] for name in value.after.inputs)}

    def _run_whole(self, chunk: Sequence[trials.ComparedValue], completed: int) -> Feeds:
        """Runs both models on every draw and compares the values of a group.

        Returns:
            The original's values in the first draw: the values of the group, and the inputs of their layers.
        """
        value_names = [p.pair.before for p in chunk]
        layer_inputs = {name for p in chunk for name in self._collect_layer_inputs(p)} - self.inputs.keys()
        first_values: Feeds = {}
        for index, feeds in enumerate(self.feeds):
            self.report_progress("running both models", completed, len(self.compared_values))
            names = list(dict.fromkeys((*value_names, *layer_inputs))) if index == 0 else value_names
            before_values = self._first.run(feeds, names)
            after_feeds = {self.inputs[name]: value for name, value in feeds.items()}
            after_values = self._second.run(
                {name: trials.cast_to_type(value, self._dtypes[name]) for name, value in after_feeds.items()},
                [p.pair.after for p in chunk],
            )
            for offset, value in enumerate(chunk):
                a, b = before_values[value.pair.before], after_values.pop(value.pair.after)
                value.shape = a.shape
                reference = None
                if index == 0 and value.is_float and not trials.is_same(a, b):
                    reference = self._float64_layers.compute_value_at(completed + offset)
                trials.add(value.in_whole_model, a, b, reference)
            if index == 0:
                first_values = {**feeds, **before_values}
        differing = [p for p in chunk if p.is_float and not p.in_whole_model.equal]
        if differing:
            shifted = self._first.run(shift_by_one_ulp(self.feeds[0]), [p.pair.before for p in differing])
            for value in differing:
                name = value.pair.before
                value.in_whole_model.figures.sensitivity = measure_rms_change(
                    first_values[name], shifted.pop(name)
                )
        return first_values

    def _compare_alone(self, group: Sequence[trials.ComparedValue], values: Feeds) -> None:
        """Runs the layers of a group on the original's values. If the group fails, each layer runs alone."""
        try:
            self._try_group(group, values)
        except BadModel as error:
            if len(group) > 1:
                for value in group:
                    value.alone.clear()
                    self._compare_alone([value], values)
            else:
                figures = OutputComparison(group[0].in_whole_model.figures.roundoff)
                group[0].alone.append(trials.Trial(figures, not_run=printable(str(error))))

    def _try_group(self, group: Sequence[trials.ComparedValue], values: Feeds) -> None:
        """Runs the layers of a group on the original's values, then with zeros replaced, then part by part.

        Raises:
            BadModel: onnxruntime cannot load or run one of the layers.
        """
        names = {name for value in group for name in self._collect_layer_inputs(value)}
        layer_inputs = {name: values[name] for name in names}
        sides = []
        for wiring, regions, label in (
            (self.before, [p.before for p in group], "layers of the original alone"),
            (self.after, [p.after for p in group], "layers of the other model alone"),
        ):
            input_names = {name for region in regions for name in region.inputs}
            is_original = wiring is self.before
            dtypes = {
                name: get_element_type(layer_inputs[name]) if is_original else self._dtypes[name]
                for name in input_names
            }
            model, outputs = build_region_model(wiring, regions, dtypes)
            sides.append((RuntimeSession(model, label=label, optimize=False), outputs, dtypes))
        (first, outputs, first_dtypes), (second, outputs_after, dtypes_after) = sides
        sessions = _LayerSessions(first, second, outputs, outputs_after, tuple(first_dtypes), dtypes_after)
        self._run_alone(group, layer_inputs, sessions)
        filled = {
            name: trials.replace_zeros(value, trials.compute_seed(name))
            for name, value in layer_inputs.items()
        }
        if any(filled[name] is not value for name, value in layer_inputs.items()):
            self._run_alone(group, filled, sessions)
        # equal bits without zero inputs need no further trial
        undecided = [p for p in group if p.is_float and trials.is_undecided(p.alone[-1])]
        for parts in sorted({self._count_parts(p) for p in undecided} - {1}):
            split_values = [p for p in undecided if self._count_parts(p) == parts]
            for part in range(parts):
                part_inputs = {
                    name: trials.keep_part(value, part, parts, trials.compute_seed(name))
                    for name, value in filled.items()
                }
                self._run_alone(split_values, part_inputs, sessions, part=part)

    def _run_alone(
        self,
        group: Sequence[trials.ComparedValue],
        layer_inputs: Feeds,
        sessions: _LayerSessions,
        *,
        part: int = 0,
    ) -> None:
        """Runs the layers of both models once on the same inputs, and compares the results.

        Args:
            group: Compared values whose layers run.
            layer_inputs: Input arrays by the original's names.
            sessions: Sessions of the layers.
            part: Index of the part of the inputs. Part 0 starts a new trial; other parts add to it.
        """
        roundings = {self.original_names[name]: dtype for name, dtype in sessions.dtypes.items()}
        before_feeds = {
            name: trials.round_to_type(layer_inputs[name], roundings.get(name))
            for name in sessions.input_names
        }
        after_feeds = {
            name: trials.cast_to_type(
                trials.round_to_type(layer_inputs[self.original_names[name]], dtype), dtype
            )
            for name, dtype in sessions.dtypes.items()
        }
        before_values = sessions.first.run(before_feeds, [sessions.outputs[p.pair.before] for p in group])
        after_values = sessions.second.run(after_feeds, [sessions.outputs_after[p.pair.after] for p in group])
        differing = []
        for value in group:
            a = before_values[sessions.outputs[value.pair.before]]
            b = after_values.pop(sessions.outputs_after[value.pair.after])
            if not part:
                value.alone.append(trials.Trial(OutputComparison(value.in_whole_model.figures.roundoff)))
            differs = value.is_float and not trials.is_same(a, b)
            stop_if(self.cancel)
            trials.add(value.alone[-1], a, b, self._run_reference(value, before_feeds) if differs else None)
            if differs:
                differing.append(value)
        if differing and not part:
            shifted = sessions.first.run(
                shift_by_one_ulp(before_feeds), [sessions.outputs[p.pair.before] for p in differing]
            )
            for value in differing:
                name = sessions.outputs[value.pair.before]
                value.alone[-1].figures.sensitivity = measure_rms_change(before_values[name], shifted[name])

    def _count_parts(self, value: trials.ComparedValue) -> int:
        """Returns the number of parts into which a layer's inputs are split, based on its longest sum.

        In a sum of thousands of terms, rounding hides a weight that is wrong by a thousandth. It does not
        hide the error in a part of the sum, where all other terms are zero.
        """
        initializers = self.before.model.graph.initializers
        shapes = [
            initializers[name].shape
            for name in value.before.initializers
            if len(initializers[name].shape) > 1
        ]
        depths = [max(shape) if len(shape) == 2 else math.prod(shape[1:]) for shape in shapes]
        depth = max(depths, default=1)
        return min(-(-depth // _TERMS_PER_TRIAL), max(1, _MAX_MACS // max(1, depth * math.prod(value.shape))))

    def _run_reference(self, value: trials.ComparedValue, feeds: Feeds) -> Array | None:
        """Runs the original's layer in float64 on `feeds`, or returns None if float64 cannot run it."""
        inputs = {name: feeds[name] for name in value.before.inputs}
        return run_in_float64(self.before, value.before, inputs, self.cancel)


def _can_subtract(before: str | None, after: str | None) -> bool:
    """Whether values of these types can be subtracted from each other."""
    if not {before, after} <= COMPARABLE:
        return False
    return before == after or (before in trials.FLOATS and after in trials.FLOATS)
