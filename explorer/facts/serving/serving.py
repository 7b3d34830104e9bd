"""Facts about serving a language model: parameters, passes, cache, times and layouts over devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from explorer.base.fact import Fact, TableFact
from explorer.facts import Reach
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.spec import ServingSpec

_SIGNS: Mapping[Reach, str] = {"bound": "<= ", "assumed": "~ ", "unknown": ">= "}

ServingLimit = Literal["compute", "weights", "cache", "links", "unknown"]


class ServedPart(Fact, frozen=True):
    """Parameters of one kind of layer.

    Attributes:
        name: Path pattern of the modules that hold the parameters, with numbers as '*':
            'model.layers.*.mlp.experts'.
        kind: Class of the modules.
        count: Number of modules.
        params: Number of parameters of all modules. A shared weight counts once.
        active: Number of those parameters that a decode step uses for one token. An embedding table counts in
            full. An encoder or a vision tower that decode steps skip counts 0.
        weight_bytes: Bytes of the parameters as stored.
        dtype: Number types of the parameters, separated by commas.
    """

    name: str
    kind: str
    count: int
    params: int
    active: int
    weight_bytes: int
    dtype: str


class PassFigures(Fact, frozen=True):
    """Work of one pass for one sequence. A figure is None if it is unknown.

    Attributes:
        macs: All multiply-accumulates.
        weight_macs: Multiply-accumulates of products with stored weights. The others belong to attention and
            states.
        weight_bytes: Bytes of weights that the pass reads, each once.
        cache_bytes: Bytes of the cache that the pass reads.
        activation_bytes: Other bytes that the model's code reads and writes, with copies of the cache.
        status: Status of the multiply-accumulates, as in `Totals`: 'exact', or another if they depend on
            values.
    """

    macs: int | None
    weight_macs: int | None
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int | None
    status: Reach = "exact"

    @property
    def sign(self) -> str:
        """Sign in front of the multiply-accumulates, as in `Totals.sign`."""
        return _SIGNS.get(self.status, "")


class ServedLayer(Fact, frozen=True):
    """A layer that multiplies or reads the cache (never a group), with its work in prefill and decode."""

    path: str
    kind: str
    prefill_macs: int | None
    decode_macs: int | None
    weight_bytes: int
    cache_bytes: int


class CacheGroup(Fact, frozen=True):
    """Layers that have the same kind of cache.

    Attributes:
        kind: Class of the cache for these layers.
        layers: Number of layers.
        shapes: Shapes of the cache tensors of one sequence at the context, by name, with the model's axis
            order.
        growing: Number of elements of keys and values that each token adds, or 0 for a state of fixed size.
        window: Largest number of tokens that the cache keeps, or None for all.
        elements: Number of elements at the context.
    """

    kind: str
    layers: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    growing: int
    window: int | None
    elements: int


class ServedCache(Fact, frozen=True):
    """Cache of one sequence, as the model's own code allocates it.

    Attributes:
        groups: Groups of layers, in the order of the layers.
        token_bytes: Bytes that each token adds while the caches of all layers grow.
        bytes: Bytes of keys, values and states, as a function of the context.
        state_bytes: Bytes of states of fixed size.
        passes_weights: Smallest context at which the cache of one sequence is larger than the weights, or
            None if it never is.
    """

    groups: tuple[CacheGroup, ...]
    token_bytes: int
    bytes: ClosedForm
    state_bytes: int
    passes_weights: int | None


class ServingTime(Fact, frozen=True):
    """Least times of one batch at one context on one machine, limited only by computation and transfers.

    Attributes:
        context: Number of tokens in the cache at the decode step.
        batch: Number of sequences in the batch.
        memory: Bytes of weights and cache.
        fits: Whether the memory of a device holds them, or None if its size is unknown.
        first_token: Least seconds to the first token: the prompts of the batch. None if unknown.
        first_limit: Resource that bounds the time to the first token.
        token_limit: Resource that bounds a decode step.
        token: Least seconds of a decode step, or None if unknown.
        rate: Tokens per second of the full batch, or None if unknown.
        first_token_predicted: Predicted seconds to the first token from kernels measured on the machine. None
            if the machine was not measured in the model's number type.
        token_predicted: Predicted seconds of a decode step, in the same way.
    """

    context: int
    batch: int
    memory: int
    fits: bool | None
    first_token: float | None
    first_limit: ServingLimit
    token: float | None
    token_limit: ServingLimit
    rate: float | None
    first_token_predicted: float | None = None
    token_predicted: float | None = None


class DeviceShare(Fact, frozen=True):
    """Share of the model on each device of one stage of a layout. All devices of a stage have equal shares.

    Attributes:
        devices: Number of devices.
        first: Index of the first layer of the stage.
        last: Index of the last layer of the stage.
        weight_bytes: Bytes of weights on one device.
        cache_bytes: Bytes of cache on one device.
        link_bytes: Bytes that one device sends in a decode step.
        busy: Least seconds that one device works on a decode step of the full batch, or None if unknown.
        limit: Resource that bounds that time.
    """

    devices: int
    first: int
    last: int
    weight_bytes: int
    cache_bytes: int
    link_bytes: int
    busy: float | None
    limit: ServingLimit


class DeviceLayout(Fact, frozen=True):
    """One way to distribute a model over devices, at one context and batch.

    Attributes:
        devices: Number of devices, the product of the next three.
        tensor: Tensor parallelism: devices that share each layer, by heads and by columns of the feed-forward
            layers.
        pipeline: Pipeline parallelism: consecutive stages of layers.
        expert: Expert parallelism: devices that divide the experts and the batch.
        weight_bytes: Bytes of weights on the fullest device.
        cache_bytes: Bytes of cache on the fullest device.
        fits: Whether the memory of that device holds both, or None if its size is unknown.
        link_bytes: Bytes that a device sends in a decode step, of the device that sends most.
        token: Least seconds of a decode step, or None if unknown.
        rate: Tokens per second of the full batch, or None if the bandwidth of the links is unknown.
        limit: Resource that bounds the decode step.
        first_token: Least seconds to process the prompts of the batch. None if the figures of a prompt are
            not known by layer or the bandwidth of the links is unknown.
        first_limit: Resource that bounds that time.
        shares: Share of each device, by stage.
    """

    context: int
    batch: int
    devices: int
    tensor: int
    pipeline: int
    expert: int
    weight_bytes: int
    cache_bytes: int
    fits: bool | None
    link_bytes: int
    token: float | None
    rate: float | None
    limit: ServingLimit
    first_token: float | None = None
    first_limit: ServingLimit = "unknown"
    shares: tuple[DeviceShare, ...] = ()


class Serving(TableFact, frozen=True):
    """Cost of running a language model.

    Attributes:
        spec: Settings of the request.
        architecture: Class of the module.
        params: Number of parameters, each once.
        active: Number of parameters that a decode step uses for one token. Embedding tables count in full.
        embedding: Number of parameters of embedding tables.
        weight_bytes: Bytes of the weights as stored.
        parts: Parameters by kind of layer.
        prefill: Work of a pass over the prompt.
        decode: Work of a decode step at the first context.
        prefill_macs: Multiply-accumulates of the prefill, as a function of the prompt.
        decode_macs: Multiply-accumulates of a decode step, as a function of the context.
        cache: Cache of one sequence.
        layers: Layers with their work in both passes.
        longest: Largest number of tokens that the model's configuration allows, or None if it names none.
        machine: Machine to which the times apply, or None.
        times: Least times by context and batch.
        longest_context: Each batch with the largest number of tokens that the memory of a device holds: 0 if
            it holds none, None if no cache grows or the size of the memory is unknown.
        largest_batch: Each context with the largest number of sequences that the memory of a device holds,
            with the same special values.
        layouts: Layouts over several devices. Those that fit come first, the fastest of them first.
        notes: Further remarks, in words.
        uncut: Reasons why the model cannot be distributed over more devices.
    """

    ROWS: ClassVar[str] = "times"

    spec: ServingSpec
    architecture: str
    params: int
    active: int
    embedding: int
    weight_bytes: int
    parts: tuple[ServedPart, ...]
    prefill: PassFigures
    decode: PassFigures
    prefill_macs: ClosedForm
    decode_macs: ClosedForm
    cache: ServedCache
    layers: tuple[ServedLayer, ...]
    longest: int | None
    machine: Machine | None
    times: tuple[ServingTime, ...]
    longest_context: tuple[tuple[int, int | None], ...]
    largest_batch: tuple[tuple[int, int | None], ...]
    layouts: tuple[DeviceLayout, ...]
    notes: tuple[str, ...] = ()
    uncut: tuple[str, ...] = ()

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("uncut",)


def choose_drawn_contexts(fact: Serving, places: int) -> list[int]:
    """Chooses the contexts at the ends of `places` equal steps of a chart, from one token to the longest.

    The longest one is that of the request or of the model's configuration, whichever is larger, but at least
    `places` tokens.
    """
    longest = max(*fact.spec.contexts, fact.longest or 0, places)
    return sorted({max(1, longest * place // places) for place in range(places + 1)})


def count_drawn_devices(fact: Serving) -> int:
    """Returns the number of devices in the chart of rates: the most devices with a known rate, or 1."""
    return max((layout.devices for layout in fact.layouts if layout.rate is not None), default=1)


def select_drawn_rates(fact: Serving, context: int) -> list[ServingTime | DeviceLayout]:
    """Selects a row per batch for a chart at a context: times, or layouts over `count_drawn_devices`."""
    devices = count_drawn_devices(fact)
    rows = fact.times if devices == 1 else [layout for layout in fact.layouts if layout.devices == devices]
    row_by_batch: dict[int, ServingTime | DeviceLayout] = {}
    for row in rows:
        if row.context == context and row.rate is not None:
            row_by_batch.setdefault(row.batch, row)
    return [row_by_batch[batch] for batch in sorted(row_by_batch)]
