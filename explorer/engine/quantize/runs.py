"""Runs of the original on samples, with few of its weights in memory at a time.

onnxruntime maps weights, and what was read of them stays in memory as long as their session: a model whose
weights are more than the largest of them and a little room is run in stages, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine import shapes
from explorer.engine.graph.dtypes import element_type
from explorer.engine.graph.model import Model, Value
from explorer.engine.proof.structure.probes import GraphProducers
from explorer.engine.runtime.batching import batches
from explorer.engine.runtime.observer import WIDER, Observer, nbytes, observe
from explorer.engine.runtime.samples import Samples
from explorer.facts import TensorInfo

_ROOM = 32 << 20
"""Bytes of weights, and of values that are looked at, of a stage beside those of the largest layer."""

Step = Callable[[int, int], None]


class _Stage(Struct, frozen=True):
    """A part of a graph, run on what those before it made.

    Attributes:
        model: Whose inputs are these values.
        values: What it makes that is looked at, or read later.
        kept: Names of what later stages read, of whatever was made before.
    """

    model: Model
    values: tuple[TensorInfo, ...]
    kept: frozenset[str]


def infos(model: Model, names: Iterable[str], samples: Samples) -> list[TensorInfo]:
    """Types and shapes of values, as far as they are known, at the first of the samples."""
    known = _known(model, samples)
    return [known.get(name, TensorInfo(name, None, None)) for name in names]


def observe_values(
    model: Model,
    names: Iterable[str],
    samples: Samples,
    take: Callable[[str, Any], None],
    step: Step = lambda done, total: None,
) -> None:
    """Hands over values of the model on every sample, as `observe` does; none is kept.

    Args:
        model: What to run.
        names: Of the values.
        samples: What it is run on.
        take: Called with the name of a value and the value.
        step: Called before each run, with how much is done and how much there is; raises `Cancelled` to stop.

    Raises:
        BadModel: onnxruntime cannot load or run the model.
    """
    known, wanted = _known(model, samples), list(dict.fromkeys(names))
    stages = _stages(model, known, frozenset(wanted))
    if len(stages) < 2:
        observe(model, [known.get(n, TensorInfo(n, None, None)) for n in wanted], samples, take, step)
        return
    for number, feeds in enumerate(samples):
        held: dict[str, Any] = dict(feeds)
        for name in [name for name in wanted if name in held]:
            take(name, held[name])
        for at, stage in enumerate(stages):
            step(number * len(stages) + at, samples.count * len(stages))
            given = {value.name: held[value.name] for value in stage.model.graph.inputs}
            made = Observer(stage.model, stage.values).run(given)
            for name in [name for name in wanted if name in made]:
                take(name, made[name])
            held = {name: value for name, value in {**held, **made}.items() if name in stage.kept}


def _known(model: Model, samples: Samples) -> Mapping[str, TensorInfo]:
    first = next(iter(samples), {})
    return shapes.infer(model, None, {n: (element_type(a), a.shape) for n, a in first.items()}).values


def _stages(model: Model, known: Mapping[str, TensorInfo], wanted: frozenset[str]) -> list[_Stage]:
    """The graph in stages; none where it is not known of what type a value between two of them is."""
    wiring, stored = GraphProducers(model), model.graph.initializers
    if not wanted <= wiring.live:
        return []

    def behind(starts: Iterable[int], live: bool) -> Iterator[int]:
        """The nodes that these read from, and they; those of constants alone, or all."""
        seen, queue = set(starts), list(starts)
        while queue:
            at = queue.pop()
            yield at
            for name in wiring.reads[at]:
                maker = wiring.producer.get(name)
                if maker is not None and maker not in seen and (live or name not in wiring.live):
                    seen.add(maker)
                    queue.append(maker)

    def size(at: int) -> int:
        read = {name for node in behind([at], live=False) for name in wiring.reads[node]}
        seen = [known[name] for name in wiring.nodes[at].outputs if name in wanted and name in known]
        return sum(stored[name].nbytes for name in read & stored.keys()) + sum(map(nbytes, seen))

    needed = behind([wiring.producer[name] for name in wanted if name in wiring.producer], live=True)
    flowing = [at for at in sorted(needed) if not wiring.live.isdisjoint(wiring.nodes[at].outputs)]
    sizes = {at: size(at) for at in flowing}
    groups = list(batches(flowing, sizes.__getitem__, max(sizes.values(), default=0) + _ROOM))
    if len(groups) < 2:
        return []
    stages: list[_Stage] = []
    later: frozenset[str] = frozenset()
    declared = {value.name: value for value in model.graph.inputs}
    for group in reversed(groups):
        nodes = [wiring.nodes[at] for at in sorted(behind(group, live=False))]
        read = {name for at in behind(group, live=False) for name in wiring.reads[at]}
        made = {name for at in group for name in wiring.nodes[at].outputs if name}
        given = (read & wiring.live) - made
        values = [known.get(name, TensorInfo(name, None, None)) for name in sorted(made & (wanted | later))]
        if any(info.name in later and (info.dtype is None or info.dtype in WIDER) for info in values):
            return []
        inputs = [known.get(name, TensorInfo(name, None, None)) for name in sorted(given)]
        graph = replace(
            model.graph,
            nodes=tuple(nodes),
            inputs=tuple(declared.get(info.name) or Value(info.name, info.dtype, None) for info in inputs),
            outputs=(),
            initializers={name: tensor for name, tensor in stored.items() if name in read},
            values=(),
            extra=(),
        )
        stages.append(_Stage(replace(model, graph=graph), tuple(values), later))
        later = (later | given) - made
    return stages[::-1]
