"""Searches the cuts of a graph: cost functions of stages, allowed places of cuts, and number of stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import bytes_text, many_text
from explorer.engine.costs.layer_rows import find_subtree_end
from explorer.engine.costs.memory.liveness import Schedule
from explorer.engine.costs.memory.roofline import compute_minimum_seconds, count_moved_bytes
from explorer.engine.costs.onnx.scopes import find_module_path
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import select_dims
from explorer.engine.progress import Cancel
from explorer.engine.shapes import infer
from explorer.engine.split import costs
from explorer.engine.split.partition import Array, CostFunction, Cuts, find_best_cuts
from explorer.engine.split.schedule import count_in_flight
from explorer.engine.split.units import GraphUnits, count_crossing_bytes, divide_graph
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.profile import Profile
from explorer.facts.roofline import Machine
from explorer.facts.split.split import SplitSpec
from explorer.facts.training import Training

_MAX_STAGES = 1024
"""Maximum number of stages of a split."""
_TRAINING_FIELDS = ("param_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
"""Memory of a training step. The last field counts once for each micro-batch in flight."""
_MAX_TRIED_STAGES = 64
"""Maximum number of stages that the search tries to fit a training step into memory."""

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


class SplitSubject(Struct, frozen=True):
    """A model to cut, with its analysis.

    Attributes:
        model: The model with the graph to cut.
        layers: Rows of the graph's layer tree, at the bound sizes.
        order: Computes the execution order of the rows.
        dims: Bound sizes of open dimensions, by name.
        shapes: Bound element types and shapes of inputs, by name.
        machines: One machine for all stages, or one for each stage; empty if the user named none.
        profile: A profile of the rows or of `modules`, or None if there is none.
        modules: Rows of the module that the graph was exported from, if the profile measured those.
        training: Memory of a training step, or None if the search does not balance it.
    """

    model: Model
    layers: Sequence[Layer]
    order: Callable[[], Schedule]
    dims: Mapping[str, int]
    shapes: InputShapes
    machines: tuple[Machine, ...] = ()
    profile: Profile | None = None
    modules: Sequence[Layer] = ()
    training: Training | None = None


class CutSequence(Struct, frozen=True):
    """The units to cut, in order, with their analysis.

    Attributes:
        units: The units.
        types: Types of their values, by name, at the bound sizes.
        sizes: Bytes of each stored tensor, by name.
        elements: Number of elements of each parameter, by name.
        labels: A name for each unit, for units without a row.
        layers: The rows of the layer tree.
        free: Names of the open dimensions that the user has not bound to a size.
        macs: MACs of each unit, or None to use the rows' MACs.
        unit_seconds: Seconds of each unit, or None if no modules were measured.
        closed: Units before which no cut is allowed, with the reason.
        body_peaks: Peak live bytes in the body of each unit, or None if no unit has a body.
        machines, profile, training: As in `SplitSubject`.
    """

    units: GraphUnits
    types: Mapping[str, TensorInfo]
    sizes: Mapping[str, int]
    elements: Mapping[str, int]
    labels: Sequence[str]
    layers: Sequence[Layer]
    free: Sequence[str] = ()
    macs: Array | None = None
    unit_seconds: Array | None = None
    closed: Mapping[int, str] = MappingProxyType({})
    body_peaks: Array | None = None
    machines: tuple[Machine, ...] = ()
    profile: Profile | None = None
    training: Training | None = None


def build_graph_sequence(subject: SplitSubject) -> CutSequence:
    """Builds the units of a graph, with their analysis."""
    model, layers = subject.model, subject.layers
    types = infer(model, select_dims(model, subject.dims), dict(subject.shapes)).values
    units = divide_graph(model, layers, types)
    counted_names = {tensor.name for layer in layers for tensor in layer.weights}
    initializers = model.graph.initializers
    free = dict.fromkeys(d for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str))
    unit_seconds, closed_units = None, dict[int, str]()
    if subject.profile is not None and subject.modules:
        nodes = [model.graph.nodes[position] for position in units.positions]
        places = [(find_module_path(node), node.op) for node in nodes]
        unit_seconds, closed_units = costs.assign_module_seconds(
            places, subject.modules, get_measured_seconds(subject.profile)
        )
    return CutSequence(
        units=units,
        types=types,
        sizes={name: tensor.nbytes for name, tensor in initializers.items()},
        elements={name: tensor.elements for name, tensor in initializers.items() if name in counted_names},
        labels=[model.graph.nodes[position].label for position in units.positions],
        layers=layers,
        unit_seconds=unit_seconds,
        closed=closed_units,
        free=[name for name in free if name not in subject.dims],
        body_peaks=costs.compute_peak_in_groups(units, layers, subject.order),
        machines=subject.machines,
        profile=subject.profile,
        training=subject.training,
    )


def get_measured_seconds(profile: Profile) -> dict[int, float]:
    """Returns the measured seconds by row id. For a training step, these are the forward pass's seconds."""
    seconds_by_row = {timing.layer: timing.forward_seconds for timing in profile.layers}
    return {row: seconds for row, seconds in seconds_by_row.items() if seconds is not None}


class StageSearch:
    """Computes the costs of a sequence's stages, and searches the best cuts.

    Raises `Misuse` if the sequence has fewer than two units, or the number of machines does not match.

    Attributes:
        subject: The units to cut.
        spec: The user's specification of the split.
        types, units, sizes: As in `CutSequence`.
        count: Number of units.
        crossing: Bytes over a cut before each unit.
        can_cut: Whether a cut is possible before each unit: all sizes are known and no reason forbids it.
        memory: Cost function of a stage's memory: stored tensors and peak activations.
        seconds: Seconds of each unit: one array, or one for each machine; empty if unknown.
    """

    def __init__(self, subject: CutSequence, spec: SplitSpec, cancel: Cancel) -> None:
        self.subject, self.spec, self.cancel = subject, spec, cancel
        self.types, self.units, self.sizes = subject.types, subject.units, subject.sizes
        self.count = len(self.units.positions)
        if self.count < 2:
            raise Misuse("there is nothing to cut: fewer than two operators", where="split")
        self.crossing, sizes_known = count_crossing_bytes(self.units)
        self.can_cut = [is_known and unit not in subject.closed for unit, is_known in enumerate(sizes_known)]
        live_bytes = costs.compute_live_bytes(self.units)
        live_bytes = live_bytes if subject.body_peaks is None else np.maximum(live_bytes, subject.body_peaks)
        self.memory = costs.make_total_cost(
            costs.make_stored_bytes_cost(self.units, self.sizes), costs.make_maximum_cost(live_bytes)
        )
        self.seconds = self._compute_seconds()
        if not spec.cuts:
            self._check_machines(spec.stages)

    def _check_machines(self, stages: int | None) -> None:
        machine_count = len(self.subject.machines)
        if machine_count > 1 and stages != machine_count:
            message = f"{machine_count:,} machines are neither one nor one for each stage"
            raise Misuse(message, where="--machine", hint="name one machine, or one for each stage")

    # figures of the units

    def _compute_seconds(self) -> list[Array]:
        """Computes the seconds of each unit.

        Returns:
            For each machine, the least times by its peak rates; without machines, one array of measured
            times. Empty without machines and measured times.
        """
        layers = self.subject.layers
        if self.subject.machines:
            return [
                costs.sum_by_unit(self.units, layers, partial(_compute_minimum_seconds, layers, machine))
                for machine in self.subject.machines
            ]
        if self.subject.profile is None or not (seconds_by_row := get_measured_seconds(self.subject.profile)):
            return []  # no profile, or one without layer times: the module ran as one kernel
        if self.subject.unit_seconds is not None:
            return [self.subject.unit_seconds]
        return [costs.sum_by_unit(self.units, layers, seconds_by_row.get, groups=True)]

    def list_kinds(self, stages: int) -> list[int]:
        """Returns the kind of each stage. Stages of one kind have the same cost function."""
        if self.spec.by == "training" or len(self.subject.machines) > 1:
            return list(range(stages))
        return [0] * stages

    def make_cost(self, stages: int) -> CostFunction:
        """Returns the function of the cost that the search balances between stages.

        Raises:
            Misuse: The figures for this cost are unknown.
        """
        if self.spec.by == "training":
            return self._make_training_memory(stages)
        if self.spec.by != "time":
            return self._fixed_cost
        if not self.seconds:
            raise Misuse(
                "the times of the layers are unknown",
                where="--by time",
                code="untimed",
                hint="name a machine: --machine NAME; or run explorer profile MODEL first, with the same"
                " options"
                " (for a model of your own code, measured times are not kept)",
            )
        return costs.make_cost_by_kind(self._make_stage_seconds(stages))

    def _make_stage_seconds(self, stages: int) -> list[CostFunction]:
        """Returns the time function of each stage on its machine.

        `seconds` has one array for all stages, or one array for each stage.
        """
        return [costs.make_sum_cost(unit_seconds) for unit_seconds in self.seconds] * (
            stages // len(self.seconds) or 1
        )

    @cached_property
    def _fixed_cost(self) -> CostFunction:
        """Function of a cost that does not depend on the number of stages: 'params', 'memory' or 'macs'.

        Raises:
            Misuse: The MACs of a layer are unknown.
        """
        layers = self.subject.layers
        if self.spec.by == "params":
            return costs.make_stored_bytes_cost(self.units, self.subject.elements)
        if self.spec.by == "memory":
            return self.memory
        if self.subject.macs is not None:
            return costs.make_sum_cost(self.subject.macs)
        missing = next(
            (layer for layer in layers if not layer.group and layer.counted and layer.macs is None), None
        )
        if missing is not None:
            raise Misuse(f"the MACs of {missing.path} are not known", where="split", **self.suggest_remedy())
        return costs.make_sum_cost(costs.sum_by_unit(self.units, layers, lambda row: layers[row].macs))

    def _make_training_memory(self, stages: int) -> CostFunction:
        """Returns the function of a training step's memory.

        The activations of a stage count once for each micro-batch in flight.
        """
        *static, activations = self.training.values()
        static_bytes = costs.make_sum_cost(np.sum(static, axis=0))
        return costs.make_total_cost(
            static_bytes,
            costs.make_scaled_cost(costs.make_sum_cost(activations), self.list_in_flight(stages)),
        )

    @cached_property
    def training(self) -> dict[str, Array]:
        """Bytes of a training step: for each of `_TRAINING_FIELDS`, an array with the bytes of each unit.

        The fields are parameters, gradients, optimizer state, and the activations of one micro-batch.

        Raises:
            Misuse: The output size of a layer is unknown.
        """
        fact = self.subject.training
        assert fact is not None
        rows = {row.layer: row for row in fact.layers}
        unknown = next((layer.path for layer in fact.layers if layer.activation_bytes is None), None)
        if unknown is not None:
            message = f"the output size of {unknown} is not known"
            raise Misuse(message, where="--by training", **self.suggest_remedy())

        def get_figure(name: str, row: int) -> int:
            return getattr(rows[row], name) if row in rows else 0

        return {
            name: costs.sum_by_unit(self.units, self.subject.layers, partial(get_figure, name))
            for name in _TRAINING_FIELDS
        }

    def list_in_flight(self, stages: int) -> list[int]:
        """Computes the number of micro-batches whose activations each stage keeps at the same time."""
        spec = self.spec
        return [count_in_flight(stage, stages, spec.micro_batches, spec.schedule) for stage in range(stages)]

    def suggest_remedy(self, otherwise: str = "balance something else") -> Mapping[str, Any]:
        """Returns the hint and code of an error about an unknown size.

        The hint names the options that bind the open sizes, or is `otherwise` if no size is open.
        """
        options = " ".join(f"--dim {name}=1" for name in self.subject.free)
        return {"hint": f"bind a size: {options}", "code": "open_sizes"} if options else {"hint": otherwise}

    # places of cuts

    def list_allowed_places(self) -> list[int]:
        """Returns the units before which a cut is allowed.

        Raises:
            Misuse: No cut is allowed anywhere, or no module matches `--at`.
        """
        places = [unit for unit in range(1, self.count) if self.can_cut[unit]]
        if not places:
            if why := next(iter(self.subject.closed.values()), ""):
                raise Misuse(
                    f"a cut is not possible anywhere: {why}", where="split", hint="balance something else"
                )
            remedy = self.suggest_remedy("its values have no known sizes")
            raise Misuse("the sizes of the tensors at the cuts are unknown", where="split", **remedy)
        if not self.spec.at:
            return places
        modules = [self._find_cut_module(row) for row in self.units.rows]
        if not any(modules):
            paths = [layer.path for layer in self.subject.layers if layer.group]
            hint = (
                suggest_name(self.spec.at[0], paths, listing="explorer layers MODEL --columns path")
                or "groups are listed by explorer layers"
            )
            raise Misuse(f"no module is called '{self.spec.at[0]}'", where="--at", hint=hint)
        return [unit for unit in places if modules[unit] != modules[unit - 1]]

    def _find_cut_module(self, row: int | None) -> str:
        """Returns the path of the outermost module around a row that matches `--at`, or '' if none does."""
        outermost = ""
        while row is not None:
            layer = self.subject.layers[row]
            names = (layer.path, layer.path.lstrip("/"), layer.name)
            if any(fnmatchcase(name, glob) for glob in self.spec.at for name in names):
                outermost = layer.path
            row = layer.parent
        return outermost

    def find_cuts(self) -> Cuts:
        """Returns the cuts that the user specified, or the best cuts.

        Raises:
            Misuse: The specified cuts are not allowed, or no cuts fulfill the specification.
        """
        if self.spec.cuts:
            return self._find_named_cuts()
        allowed = self.list_allowed_places()
        stages = self.spec.stages
        if stages is None:
            stages = self._find_fewest_stages(allowed)
        if not 1 < stages <= _MAX_STAGES:
            message = f"a model cannot be split into {stages:,}"
            raise Misuse(message, where="-n", hint=f"2 to {min(_MAX_STAGES, len(allowed) + 1):,}")
        if stages > len(allowed) + 1:
            message = f"only {many_text(len(allowed), 'place')} for {many_text(stages - 1, 'cut')}"
            raise Misuse(message, where="-n", hint="fewer stages")
        best = self.find_best(stages, allowed)
        if best is None:
            raise Misuse(
                f"the model does not fit into {stages:,} stages of {bytes_text(self.spec.stage_memory or 0)}",
                where="--stage-memory",
                hint="more stages, or more memory",
            )
        return best

    def find_best(self, stages: int, allowed: Sequence[int]) -> Cuts | None:
        """Returns the best cuts at the allowed places, or None if no partition fits into the memory."""
        cost, limit = self.make_cost(stages), self.spec.stage_memory
        if limit is not None:
            memory = self._make_training_memory(stages) if self.spec.by == "training" else self.memory
            cost = costs.apply_memory_limit(cost, memory, limit)
        link, rate = None, self.spec.links
        if rate is not None and self.spec.by == "time":

            def link(crossed: int) -> float:
                return crossed / rate

        return find_best_cuts(
            self.count, self.list_kinds(stages), cost, self.crossing, allowed, link, self.cancel
        )

    def _find_fewest_stages(self, allowed: Sequence[int]) -> int:
        """Computes the smallest number of stages that hold the model, each with as many units as fit.

        Raises:
            Misuse: No memory limit is given, or a unit alone exceeds it.
        """
        limit = self.spec.stage_memory
        if limit is None:
            raise Misuse("the number of stages is missing", where="split", hint="-n 4, or --stage-memory 2G")
        if self.spec.by == "training":  # the micro-batches in flight depend on the stages
            for stages in range(2, min(len(allowed) + 1, _MAX_TRIED_STAGES) + 1):
                if self.find_best(stages, allowed) is not None:
                    return stages
            self._refuse_size(limit)
        places = np.array([*allowed, self.count])
        start, stages = 0, 0
        while start < self.count:
            costs_from_start = self.memory(0, start)
            ends = places[places > start]
            fitting_count = int(np.searchsorted(costs_from_start[ends - start - 1], limit, "right"))
            if not fitting_count:
                self._refuse_size(limit, start)
            start, stages = int(ends[fitting_count - 1]), stages + 1
        return max(stages, 2)

    def _refuse_size(self, limit: int, start: int | None = None) -> None:
        where = "a layer" if start is None else self.get_path(start) or "a layer"
        raise Misuse(
            f"{where} alone takes more than {bytes_text(limit)}", where="--stage-memory", hint="more memory"
        )

    def _find_named_cuts(self) -> Cuts:
        """Returns the cuts before the layers that the user named.

        Raises:
            Misuse: No layer has a name, no stage can begin there, or the number of stages does not match.
        """
        paths = {layer.path: layer.id for layer in self.subject.layers}
        names: dict[str, int] = {}
        for layer in self.subject.layers:
            names.setdefault(layer.name, layer.id)
        places = []
        for name in self.spec.cuts:
            row = paths.get(name, paths.get(f"/{name}", names.get(name)))
            if row is None:
                raise Misuse(
                    f"no layer is called '{name}'",
                    where="--cuts",
                    hint=suggest_name(name, list(paths), listing="explorer layers MODEL --columns path"),
                )
            members = range(row, find_subtree_end(self.subject.layers, row))
            unit = next(
                (index for index, unit_row in enumerate(self.units.rows) if unit_row in members), None
            )
            if unit is None or unit == 0 or unit in places:
                raise Misuse(
                    f"no stage can begin with '{name}'", where="--cuts", hint="name layers after the first"
                )
            if unit in self.subject.closed:
                why = self.subject.closed[unit]
                raise Misuse(f"no stage can begin with '{name}': {why}", where="--cuts")
            if not self.can_cut[unit]:
                message = f"the tensors that cross the cut before '{name}' are not known"
                raise Misuse(message, where="--cuts", **self.suggest_remedy("cut elsewhere"))
            places.append(unit)
        places.sort()
        if self.spec.stages is not None and self.spec.stages != len(places) + 1:
            raise Misuse(
                f"{len(places):,} cuts make {len(places) + 1:,} stages", where="-n", hint="leave it out"
            )
        return self.cut_at(places)

    def list_named_places(self) -> list[int]:
        """Returns the units at which the user can cut by a layer's name: the first unit of each layer."""
        layers = self.subject.layers
        paths = {layer.path: layer.id for layer in layers}
        first: dict[int, int] = {}
        for unit, row in enumerate(self.units.rows):
            if row is not None and paths[layers[row].path] == row:
                first.setdefault(row, unit)
        return sorted(unit for unit in first.values() if unit and self.can_cut[unit])

    def cut_at(self, places: Sequence[int]) -> Cuts:
        """Returns the cuts before the units `places`, with their cost.

        Raises:
            Misuse: The places are out of range or not ascending, or the number of machines does not match.
        """
        stages = len(places) + 1
        self._check_machines(stages)
        if any(last <= first for first, last in itertools.pairwise((0, *places, self.count))):
            raise Misuse(f"cuts lie before units 1 to {self.count - 1:,}, ascending", where="places")
        stage_costs = self.compute_stage_costs(places, self.make_cost(stages), self.list_kinds(stages))
        return Cuts(tuple(places), max(stage_costs), sum(self.crossing[at] for at in places))

    def compute_stage_costs(
        self, places: Sequence[int], cost: CostFunction, kinds: Sequence[int]
    ) -> list[float]:
        """Computes the cost of each stage between the cuts at `places`."""
        ends = [0, *places, self.count]
        spans = zip(kinds, itertools.pairwise(ends), strict=True)
        return [float(cost(kind, first)[last - first - 1]) for kind, (first, last) in spans]

    def compute_stage_seconds(self, places: Sequence[int], stages: int) -> list[float]:
        """Computes the seconds of each stage between the cuts at `places`; empty if unknown."""
        if not self.seconds:
            return []
        return self.compute_stage_costs(
            places, costs.make_cost_by_kind(self._make_stage_seconds(stages)), range(stages)
        )

    def get_path(self, unit: int) -> str:
        """Returns the path of a unit's layer, or the unit's label if it has no row."""
        row = self.units.rows[unit]
        if row is not None:
            return self.subject.layers[row].path
        return self.subject.labels[unit]


def _compute_minimum_seconds(layers: Sequence[Layer], machine: Machine, row: int) -> float | None:
    """Computes the least seconds of a row by the machine's peak rates, or None if its figures are unknown."""
    moved, macs = count_moved_bytes(layers[row]), layers[row].macs
    return None if macs is None or moved is None else compute_minimum_seconds(macs, moved, machine)
