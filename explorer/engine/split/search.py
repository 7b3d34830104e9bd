"""Search for the cuts of a graph: the cost of a stage, the places of cuts, and the number of stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.base.units import bytes_text, many_text
from explorer.engine.costs.layer_rows import end_of
from explorer.engine.costs.memory.liveness import Schedule
from explorer.engine.costs.memory.roofline import bytes_moved, least_seconds
from explorer.engine.costs.onnx.scopes import module_path
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import dims_of
from explorer.engine.progress import Cancel
from explorer.engine.shapes import infer
from explorer.engine.split import costs
from explorer.engine.split.partition import Array, Cuts, Row, best_cuts
from explorer.engine.split.schedule import in_flight
from explorer.engine.split.units import GraphUnits, crossing, graph_units
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.profile import Profile
from explorer.facts.roofline import Machine
from explorer.facts.split.split import SplitSpec
from explorer.facts.training import Training

_MOST_STAGES = 1024
_HELD = ("param_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
_MOST_TRIED = 64
"""The most stages that are tried to fit a training step into memory."""

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


class SplitSubject(Struct, frozen=True):
    """A model to cut, with its analysis.

    Attributes:
        model: The graph.
        layers: Its rows, at the bound sizes.
        order: Computes the execution order of the rows.
        dims, shapes: The bound sizes.
        machines: One machine for all stages, or one for each; empty if none is named.
        profile: A profile of the same rows, or of `modules`.
        modules: Rows of the module that the graph was exported from, if those were measured.
        training: Memory of a training step, if that is balanced.
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
        elements: Elements of each parameter, by name.
        labels: A name for each unit, used where it has no row.
        layers: The rows.
        free: Names of open sizes.
        macs: MACs of each unit, if more exact than those of the rows.
        took: Seconds of each unit, if modules were measured.
        closed: Units before which no cut may lie, with the reason.
        inside: Peak live bytes in the body of each unit that has one; None if no unit has a body.
        machines, profile, training: See `SplitSubject`.
    """

    units: GraphUnits
    types: Mapping[str, TensorInfo]
    sizes: Mapping[str, int]
    elements: Mapping[str, int]
    labels: Sequence[str]
    layers: Sequence[Layer]
    free: Sequence[str] = ()
    macs: Array | None = None
    took: Array | None = None
    closed: Mapping[int, str] = MappingProxyType({})
    inside: Array | None = None
    machines: tuple[Machine, ...] = ()
    profile: Profile | None = None
    training: Training | None = None


def graph_sequence(subject: SplitSubject) -> CutSequence:
    """The units of a graph."""
    model, layers = subject.model, subject.layers
    types = infer(model, dims_of(model, subject.dims), dict(subject.shapes)).values
    units = graph_units(model, layers, types)
    counted = {tensor.name for layer in layers for tensor in layer.weights}
    initializers = model.graph.initializers
    free = dict.fromkeys(d for v in model.graph.feeds for d in v.shape or () if isinstance(d, str))
    unit_seconds, closed = None, dict[int, str]()
    if subject.profile is not None and subject.modules:
        nodes = [model.graph.nodes[at] for at in units.positions]
        places = [(module_path(node), node.op) for node in nodes]
        unit_seconds, closed = costs.of_modules(places, subject.modules, seconds_of(subject.profile))
    return CutSequence(
        units=units,
        types=types,
        sizes={name: tensor.nbytes for name, tensor in initializers.items()},
        elements={name: tensor.elements for name, tensor in initializers.items() if name in counted},
        labels=[model.graph.nodes[at].label for at in units.positions],
        layers=layers,
        took=unit_seconds,
        closed=closed,
        free=[name for name in free if name not in subject.dims],
        inside=costs.inside(units, layers, subject.order),
        machines=subject.machines,
        profile=subject.profile,
        training=subject.training,
    )


def seconds_of(profile: Profile) -> dict[int, float]:
    """Measured seconds by row id; for a profile of training those of the forward pass."""
    seconds_by_row = {timing.layer: timing.forward_seconds for timing in profile.layers}
    return {row: seconds for row, seconds in seconds_by_row.items() if seconds is not None}


class StageSearch:
    """Costs of the stages of a sequence, and the best cuts."""

    def __init__(self, subject: CutSequence, spec: SplitSpec, cancel: Cancel) -> None:
        self.subject, self.spec, self.cancel = subject, spec, cancel
        self.types, self.units, self.sizes = subject.types, subject.units, subject.sizes
        self.count = len(self.units.positions)
        if self.count < 2:
            raise Misuse("there is nothing to cut: fewer than two operators", where="split")
        self.crossing, sizes_known = crossing(self.units)
        self.known = [size_known and at not in subject.closed for at, size_known in enumerate(sizes_known)]
        alive = costs.live_bytes(self.units)
        alive = alive if subject.inside is None else np.maximum(alive, subject.inside)
        self.memory = costs.both(costs.stored(self.units, self.sizes), costs.largest(alive))
        self.seconds = self._seconds()
        if not spec.cuts:
            self._check_machines(spec.stages)

    def _check_machines(self, stages: int | None) -> None:
        named = len(self.subject.machines)
        if named > 1 and stages != named:
            raise Misuse(
                f"{named:,} machines are not one for each stage",
                where="--machine",
                hint="name one for all, or as many as there are stages",
            )

    # figures of the units

    def _seconds(self) -> list[Array]:
        """Seconds of each unit: measured, else the least on each machine; empty if neither is known."""
        layers = self.subject.layers
        if self.subject.machines:
            return [
                costs.of_units(self.units, layers, partial(_least_seconds, layers, machine))
                for machine in self.subject.machines
            ]
        if self.subject.profile is None or not (seconds_by_row := seconds_of(self.subject.profile)):
            return []  # a module that runs as one kernel has no layer times
        if self.subject.took is not None:
            return [self.subject.took]
        return [costs.of_units(self.units, layers, seconds_by_row.get, groups=True)]

    def kinds(self, stages: int) -> list[int]:
        """The kind of each stage: stages of one kind have the same cost function."""
        if self.spec.by == "training" or len(self.subject.machines) > 1:
            return list(range(stages))
        return [0] * stages

    def cost(self, stages: int) -> Row:
        """The cost that is balanced."""
        if self.spec.by == "training":
            return self._training_memory(stages)
        if self.spec.by != "time":
            return self._fixed_cost
        if not self.seconds:
            raise Misuse(
                "nothing says how long a layer takes",
                where="--by time",
                code="untimed",
                hint="name a machine: --machine NAME; or explorer profile MODEL first, opened alike"
                " (of a model that is your own code nothing is kept)",
            )
        return costs.of_kind(self._stage_seconds(stages))

    def _stage_seconds(self, stages: int) -> list[Row]:
        """Time of each stage on its machine."""
        return [costs.additive(unit_seconds) for unit_seconds in self.seconds] * (
            stages // len(self.seconds) or 1
        )

    @cached_property
    def _fixed_cost(self) -> Row:
        """A cost that does not depend on the number of stages."""
        layers = self.subject.layers
        if self.spec.by == "params":
            return costs.stored(self.units, self.subject.elements)
        if self.spec.by == "memory":
            return self.memory
        if self.subject.macs is not None:
            return costs.additive(self.subject.macs)
        missing = next(
            (layer for layer in layers if not layer.group and layer.counted and layer.macs is None), None
        )
        if missing is not None:
            raise Misuse(f"the MACs of {missing.path} are not known", where="split", **self.remedy())
        return costs.additive(costs.of_units(self.units, layers, lambda at: layers[at].macs))

    def _training_memory(self, stages: int) -> Row:
        """Memory of a training step; activations count once for each micro-batch in flight."""
        *static, activations = self.training.values()
        layers = costs.additive(np.sum(static, axis=0))
        return costs.both(layers, costs.times(costs.additive(activations), self.flights(stages)))

    @cached_property
    def training(self) -> dict[str, Array]:
        """Bytes of a training step by unit: parameters, gradients, optimizer, activations of one micro-batch.

        Raises:
            Misuse: The output size of a layer is not known.
        """
        fact = self.subject.training
        assert fact is not None
        rows = {layer.layer: layer for layer in fact.layers}
        unknown = next((layer.path for layer in fact.layers if layer.activation_bytes is None), None)
        if unknown is not None:
            message = f"how much {unknown} puts out is not known"
            raise Misuse(message, where="--by training", **self.remedy())

        def figure(name: str, at: int) -> int:
            return getattr(rows[at], name) if at in rows else 0

        return {
            name: costs.of_units(self.units, self.subject.layers, partial(figure, name)) for name in _HELD
        }

    def flights(self, stages: int) -> list[int]:
        """Micro-batches whose activations each stage keeps at once."""
        spec = self.spec
        return [in_flight(at, stages, spec.micro_batches, spec.schedule) for at in range(stages)]

    def remedy(self, otherwise: str = "balance something else") -> Mapping[str, Any]:
        """Hint and code of an error about an unknown size: how to bind what is open, or what else to do."""
        free = " ".join(f"--dim {name}=1" for name in self.subject.free)
        return {"hint": f"bind a size: {free}", "code": "open_sizes"} if free else {"hint": otherwise}

    # places of cuts

    def allowed(self) -> list[int]:
        """Units before which a cut may lie.

        Raises:
            Misuse: There are none.
        """
        places = [at for at in range(1, self.count) if self.known[at]]
        if not places:
            if why := next(iter(self.subject.closed.values()), ""):
                raise Misuse(
                    f"no place is left for a cut: {why}", where="split", hint="balance something else"
                )
            remedy = self.remedy("its values have no size of their own")
            raise Misuse("no size of what crosses a cut is known", where="split", **remedy)
        if not self.spec.at:
            return places
        modules = [self._cut_module(row) for row in self.units.rows]
        if not any(modules):
            paths = [layer.path for layer in self.subject.layers if layer.group]
            hint = nearest(self.spec.at[0], paths) or "groups are listed by explorer layers"
            raise Misuse(f"no module is called '{self.spec.at[0]}'", where="--at", hint=hint)
        return [at for at in places if modules[at] != modules[at - 1]]

    def _cut_module(self, row: int | None) -> str:
        """The outermost module around a row that matches a pattern of `--at`; '' for none."""
        outermost = ""
        while row is not None:
            layer = self.subject.layers[row]
            names = (layer.path, layer.path.lstrip("/"), layer.name)
            if any(fnmatchcase(name, glob) for glob in self.spec.at for name in names):
                outermost = layer.path
            row = layer.parent
        return outermost

    def cuts(self) -> Cuts:
        """The best cuts, or the cuts that the user specified.

        Raises:
            Misuse: There are none.
        """
        if self.spec.cuts:
            return self._named_cuts()
        allowed = self.allowed()
        stages = self.spec.stages
        if stages is None:
            stages = self._fewest_stages(allowed)
        if not 1 < stages <= _MOST_STAGES:
            raise Misuse(
                f"{stages:,} stages are no split",
                where="-n",
                hint=f"2 to {min(_MOST_STAGES, len(allowed) + 1):,}",
            )
        if stages > len(allowed) + 1:
            raise Misuse(
                f"only {many_text(len(allowed), 'place')} for {many_text(stages - 1, 'cut')}",
                where="-n",
                hint="fewer stages",
            )
        best = self.best(stages, allowed)
        if best is None:
            raise Misuse(
                f"no {stages:,} stages of {bytes_text(self.spec.stage_memory or 0)} hold the model",
                where="--stage-memory",
                hint="more stages, or more memory",
            )
        return best

    def best(self, stages: int, allowed: Sequence[int]) -> Cuts | None:
        """The best cuts at the allowed places; None if the stages cannot hold the model."""
        cost, limit = self.cost(stages), self.spec.stage_memory
        if limit is not None:
            memory = self._training_memory(stages) if self.spec.by == "training" else self.memory
            cost = costs.limited(cost, memory, limit)
        link, rate = None, self.spec.links
        if rate is not None and self.spec.by == "time":

            def link(crossed: int) -> float:
                return crossed / rate

        return best_cuts(self.count, self.kinds(stages), cost, self.crossing, allowed, link, self.cancel)

    def _fewest_stages(self, allowed: Sequence[int]) -> int:
        """The least number of stages whose memory holds the model: each takes as many units as fit."""
        limit = self.spec.stage_memory
        if limit is None:
            raise Misuse("into how many stages is not said", where="split", hint="-n 4, or --stage-memory 2G")
        if self.spec.by == "training":  # the micro-batches in flight depend on the stages
            for stages in range(2, min(len(allowed) + 1, _MOST_TRIED) + 1):
                if self.best(stages, allowed) is not None:
                    return stages
            self._too_large(limit)
        places = np.array([*allowed, self.count])
        start, stages = 0, 0
        while start < self.count:
            row = self.memory(0, start)
            ends = places[places > start]
            reach = int(np.searchsorted(row[ends - start - 1], limit, "right"))
            if not reach:
                self._too_large(limit, start)
            start, stages = int(ends[reach - 1]), stages + 1
        return max(stages, 2)

    def _too_large(self, limit: int, start: int | None = None) -> None:
        where = "a layer" if start is None else self.path(start) or "a layer"
        raise Misuse(
            f"{where} alone takes more than {bytes_text(limit)}", where="--stage-memory", hint="more memory"
        )

    def _named_cuts(self) -> Cuts:
        """The cuts before the layers that the user named."""
        paths = {layer.path: layer.id for layer in self.subject.layers}
        names: dict[str, int] = {}
        for layer in self.subject.layers:
            names.setdefault(layer.name, layer.id)
        places = []
        for name in self.spec.cuts:
            row = paths.get(name, paths.get(f"/{name}", names.get(name)))
            if row is None:
                raise Misuse(f"no layer is called '{name}'", where="--cuts", hint=nearest(name, list(paths)))
            inside = range(row, end_of(self.subject.layers, row))
            unit = next((at for at, unit_row in enumerate(self.units.rows) if unit_row in inside), None)
            if unit is None or unit == 0 or unit in places:
                raise Misuse(
                    f"no stage can begin with '{name}'", where="--cuts", hint="name layers behind the first"
                )
            if unit in self.subject.closed:
                why = self.subject.closed[unit]
                raise Misuse(f"no stage can begin with '{name}': {why}", where="--cuts")
            if not self.known[unit]:
                raise Misuse(
                    f"what crosses the cut before '{name}' is not known",
                    where="--cuts",
                    **self.remedy("cut elsewhere"),
                )
            places.append(unit)
        places.sort()
        if self.spec.stages is not None and self.spec.stages != len(places) + 1:
            raise Misuse(
                f"{len(places):,} cuts make {len(places) + 1:,} stages", where="-n", hint="leave it out"
            )
        return self.at_places(places)

    def named(self) -> list[int]:
        """Units before which a cut can be specified by a layer's name: the first unit of each layer."""
        layers = self.subject.layers
        paths = {layer.path: layer.id for layer in layers}
        first: dict[int, int] = {}
        for at, row in enumerate(self.units.rows):
            if row is not None and paths[layers[row].path] == row:
                first.setdefault(row, at)
        return sorted(at for at in first.values() if at and self.known[at])

    def at_places(self, places: Sequence[int]) -> Cuts:
        """Cuts before these units.

        Raises:
            Misuse: The units are no valid places, or the number of machines does not match the stages.
        """
        stages = len(places) + 1
        self._check_machines(stages)
        if any(last <= first for first, last in itertools.pairwise((0, *places, self.count))):
            raise Misuse(f"cuts lie before units 1 to {self.count - 1:,}, ascending", where="places")
        each = self.each(places, self.cost(stages), self.kinds(stages))
        return Cuts(tuple(places), max(each), sum(self.crossing[at] for at in places))

    def each(self, places: Sequence[int], cost: Row, kinds: Sequence[int]) -> list[float]:
        """Cost of each stage."""
        ends = [0, *places, self.count]
        spans = zip(kinds, itertools.pairwise(ends), strict=True)
        return [float(cost(kind, first)[last - first - 1]) for kind, (first, last) in spans]

    def took(self, places: Sequence[int], stages: int) -> list[float]:
        """Seconds of each stage; empty if unknown."""
        if not self.seconds:
            return []
        return self.each(places, costs.of_kind(self._stage_seconds(stages)), range(stages))

    def path(self, unit: int) -> str:
        """The path of a unit's layer."""
        row = self.units.rows[unit]
        if row is not None:
            return self.subject.layers[row].path
        return self.subject.labels[unit]


def _least_seconds(layers: Sequence[Layer], machine: Machine, at: int) -> float | None:
    moved, macs = bytes_moved(layers[at]), layers[at].macs
    return None if macs is None or moved is None else least_seconds(macs, moved, machine)
