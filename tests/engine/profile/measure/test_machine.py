"""Measuring a machine: of kernels that take known times, on a clock of our own, the rates come out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.base.errors import Cancelled
from explorer.engine.profile.load import LoadWatch
from explorer.engine.profile.measure.kernels import (
    DTYPES,
    ConvShape,
    DenseBlock,
    Kernels,
    ObservedNetwork,
)
from explorer.engine.profile.measure.machine import MATMUL_SIDES, Surroundings, measure
from explorer.engine.profile.measure.probes import OPS, list_network_convolutions
from explorer.engine.profile.measure.speed_check import SpeedCheck
from explorer.engine.profile.predict import TimeModel
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.machine import MeasuredMachine
from explorer.host import processor

RATES = {"float32": 100e9, "int8": 400e9, "float16": 50e9}
ACTIVATIONS = {"Clip": 1e-10, "Sigmoid": 3e-10}
"""Seconds for a number, within a convolution."""
BIAS = 2e-10
"""Seconds for a number, within a matmul."""
CACHES = ((1, 32 << 10, 1), (3, 32 << 20, 4))


class Machine:
    """Kernels that take the time that they are said to take, on a clock that only they move."""

    def __init__(
        self,
        rates: Mapping[str, float] = RATES,
        noise: Callable[[], float] = lambda: 1.0,
        best: int = 512,
    ) -> None:
        self.now, self.rates, self.noise, self.best = 0.0, rates, noise, best
        self.elements, self.apart = 0, 1.0

    def clock(self) -> float:
        return self.now

    def _takes(self, seconds: float) -> Callable[[], object]:
        def run() -> None:
            self.now += seconds * self.noise()

        return run

    def build_gemm(self, dtype: str, size: int, count: int) -> Callable[[], object] | None:
        if dtype not in self.rates:
            return None
        slower = 1 if size == self.best else 2
        return self._takes(count * size**3 / self.rates[dtype] * slower)

    def build_add(self, elements: int) -> Callable[[], object]:
        self.elements = max(self.elements, elements)
        return self._takes(12 * elements / 50e9)

    def build_chain(self, nodes: int) -> Callable[[], object]:
        return self._takes(2e-6 + nodes * 1e-7)

    def build_matmuls(self, m: int, k: int, n: int, count: int) -> Callable[[], object]:
        # of many weights each comes from memory
        moved = 4 * k * n / 50e9 if count > 1 else 0
        return self._takes(count * (m * k * n / self.rates["float32"] + moved))

    def build_biased_matmul(self, m: int, k: int, n: int) -> Callable[[], object]:
        return self._takes(m * k * n / self.rates["float32"] + BIAS * m * n)

    def build_batched_matmul(self, batch: int, m: int, k: int, n: int) -> Callable[[], object]:
        return self._takes(batch * m * k * n / self.rates["float32"])

    def _convolving(self, shape: ConvShape, alone: bool) -> float:
        macs = shape.channels[1] * shape.depth * shape.positions
        after = ACTIVATIONS.get(shape.activation, 0.0) * shape.channels[1] * shape.positions
        slow = (
            3
            if shape.kernel > 5 and shape.groups > 1
            else (2 if alone else 4)
            if shape.groups > 1
            else 2
            if shape.channels[0] < 8
            else 1
        )
        return macs * slow / self.rates.get("float32", 1e9) + after

    def build_convolutions(self, shape: ConvShape, count: int) -> Callable[[], object]:
        return self._takes(count * self._convolving(shape, alone=True))

    def build_network(self, shapes: Sequence[ConvShape]) -> Callable[[], object]:
        return self._takes(self.apart * sum(self._convolving(shape, alone=False) for shape in shapes))

    def build_observed_network(self, shapes: Sequence[ConvShape]) -> ObservedNetwork:
        every = [1.5 * self._convolving(shape, alone=False) for shape in shapes]
        runs: list[tuple[Sequence[float], float]] = []

        def run() -> None:
            noise = self.noise()
            self.now += sum(every) * noise
            runs.append(([one * noise for one in every], sum(every) * noise))

        return ObservedNetwork(run, lambda: runs)

    def build_block(self, block: DenseBlock) -> Callable[[], object]:
        return self._takes(sum(self._joining(block)))

    def _joining(self, block: DenseBlock) -> list[float]:
        places = block.side**2
        return [
            8 * block.count_channels(at) * places / (10e9 if op == "Concat" else 25e9)
            for op, at in block.kernels
        ]

    def build_observed_block(self, block: DenseBlock) -> ObservedNetwork:
        every = [1.5 * one for one in self._joining(block)]
        runs: list[tuple[Sequence[float], float]] = []

        def run() -> None:
            self.now += sum(every)
            runs.append((every, sum(every)))

        return ObservedNetwork(run, lambda: runs)

    def build_elementwise(self, op: str, shape: tuple[int, ...]) -> Callable[[], object]:
        # what has a name of its own is slower than the rest of its operator
        return self._takes((5 if "," in op else 1) * 8 * math.prod(shape) / 50e9)

    def watch(self) -> LoadWatch:
        quiet = LoadWatch(1, switches=lambda: 0, busy=lambda: None, average=lambda: 0.0, clock=self.clock)
        return quiet

    def measured(
        self,
        limit: float = 60.0,
        caches: tuple[tuple[int, int, int], ...] = CACHES,
        free: int | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> MeasuredMachine:
        told = Surroundings("a processor", caches, free, "2026-11-23", self.clock)
        return measure(self, 4, limit, told, self.watch(), cancel=cancel)


@pytest.fixture(scope="module")
def usual() -> MeasuredMachine:
    """What is measured of a machine that is as said above; nobody changes it."""
    return Machine().measured()


def test_the_peak_of_each_type_is_its_best_matmul_and_the_bandwidth_what_an_array_moves(
    usual: MeasuredMachine,
) -> None:
    found = usual
    assert {peak.dtype: peak.macs_per_second for peak in found.peaks} == pytest.approx(RATES)
    assert {peak.sizes for peak in found.peaks} == {(512,) * 3}
    assert found.refused == ("bfloat16",)
    assert found.bandwidth.bytes_per_second == pytest.approx(50e9)
    assert found.launch.median == pytest.approx(1e-7, rel=0.05)
    assert found.call.median == pytest.approx(2.1e-6)
    for one in found.kernels:
        assert one.macs_per_second == pytest.approx(RATES[one.dtype] / (1 if one.sizes[0] == 512 else 2))
    assert (found.threads, found.processor, found.loaded, found.notes) == (4, "a processor", False, ())


class CachedMachine(Machine):
    """As `Machine`; a call takes its time, and arrays that a cache holds come faster."""

    def build_add(self, elements: int) -> Callable[[], object]:
        self.elements = max(self.elements, elements)
        held = 12 * elements
        rate = 1000e9 if held <= 4 * (32 << 10) else 400e9 if held <= 4 * (1 << 20) else 50e9
        return self._takes(2.1e-6 + held / (150e9 if 4 << 20 < held <= 32 << 20 else rate))


def test_each_cache_is_timed_with_what_it_holds_and_those_nearer_do_not() -> None:
    levels = ((1, 32 << 10, 1), (2, 1 << 20, 1), (3, 32 << 20, 4))
    first, second, third = CachedMachine().measured(1.0, levels).caches
    # a call takes 2 µs, what a level 1 holds a tenth of one
    assert first.bytes_per_second is None
    assert second.bytes_per_second == pytest.approx(400e9, rel=1e-3)
    assert third.bytes_per_second == pytest.approx(150e9, rel=1e-3)
    # a last cache that holds no more than all of those before it, and one that memory is too small for
    small = CachedMachine().measured(1.0, ((2, 8 << 20, 1), (3, 32 << 20, 4))).caches
    assert [one.bytes_per_second is None for one in small] == [False, True]
    scarce = CachedMachine().measured(1.0, levels, 16 << 20).caches
    assert [one.bytes_per_second is None for one in scarce] == [True, False, True]


@pytest.mark.parametrize("slow", [1, 30, 300])
def test_the_time_limit_holds_on_slow_machines_and_what_is_not_sure_is_said(slow: int) -> None:
    machine = Machine({dtype: rate / slow for dtype, rate in RATES.items()})
    found = machine.measured(limit=10.0)
    assert found.seconds <= 14
    sides = [one.sizes[0] for one in found.kernels if one.dtype == "float32"]
    assert sides == list(MATMUL_SIDES[: len(sides)])
    assert slow == 1 or len(sides) < len(MATMUL_SIDES)
    assert len(found.peaks) == len(RATES)
    assert slow < 300 or any("may be off by more than 5 %" in said for said in found.notes)


@pytest.mark.slow
def test_the_arrays_are_beyond_the_last_cache_or_it_is_said_that_they_are_not() -> None:
    machine = Machine()
    assert machine.measured().notes == ()
    assert machine.elements * 4 >= 4 * (32 << 20)
    (said,) = machine.measured(free=256 << 20).notes
    assert said == "the bandwidth is measured on 32.00 MiB, but the last cache has 32.00 MiB"
    (said,) = machine.measured(caches=()).notes
    assert "the caches are unknown" in said


@pytest.mark.slow
def test_a_machine_whose_runs_differ_much_is_said_to_be_loaded() -> None:
    steps = itertools.cycle([1.0, 1.0, 1.0, 4.0])
    found = Machine(noise=lambda: next(steps)).measured()
    assert found.loaded
    assert "4.0 times as long as the fastest tenth" in found.load


def test_who_stops_it_gets_no_figures() -> None:
    machine = Machine()
    with pytest.raises(Cancelled):
        machine.measured(cancel=lambda: machine.now > 0.5)
    assert machine.now < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_onnxruntime_runs_every_kernel_that_it_does_not_refuse(dtype: str) -> None:
    kernels = Kernels(1)
    run = kernels.build_gemm(dtype, 8, 3)
    assert run is not None or dtype not in ("float32", "int8")
    convs = (
        ConvShape((4, 6), 5, 3, 2, activation="Clip"),
        ConvShape((3, 6), 8, 3, stride=2, batch=2),
        ConvShape((8, 8), 6, 3, 8, 2, activation="Sigmoid"),
    )
    others = (
        kernels.build_add(100),
        kernels.build_chain(3),
        kernels.build_matmuls(2, 3, 4, 1),
        kernels.build_matmuls(2, 4, 4, 3),
    )
    others = (
        *others,
        kernels.build_batched_matmul(2, 3, 4, 5),
        *(kernels.build_convolutions(shape, 2) for shape in convs),
    )
    for one in (
        run,
        *others,
        *(kernels.build_elementwise(op, (2, 4, 4)) for op in OPS[1:] if op not in PLANES),
        *(kernels.build_elementwise(op, (1, 2, 4, 4)) for op in PLANES),
    ):
        if one is not None:
            one()


def test_convolutions_of_a_network_are_told_one_by_one_run_by_run() -> None:
    shapes = [ConvShape((3, 8), 8, 3, stride=2), ConvShape((8, 8), 4, 3, 8), ConvShape((8, 16), 4, 1)]
    Kernels(1).build_network(shapes)()
    made = Kernels(1).build_observed_network(shapes)
    for _ in range(4):
        made.run()
    runs = made.read_times()
    assert [len(each) for each, _ in runs] == [3] * 4
    assert all(sum(each) <= ran for each, ran in runs)


def test_convolutions_have_their_parts_of_the_time_that_a_network_takes_without_a_profiler(
    usual: MeasuredMachine,
) -> None:
    machine, shapes = Machine(), list_network_convolutions(1)
    took = {one.sizes: one.seconds.median for one in usual.probes if one.op.startswith("Conv")}
    for shape in shapes:
        sizes = shape.channels[1], shape.depth, shape.positions
        assert took[sizes] == pytest.approx(machine._convolving(shape, alone=False)), shape
    for one, other in itertools.pairwise(shapes):
        assert one.channels[1] == other.channels[0]
        assert one.side // one.stride == other.side


def test_joins_and_scalings_of_a_dense_block_are_told_one_by_one_run_by_run() -> None:
    block = DenseBlock(8, 6, 3)
    kernels = [
        ("BatchNormalization", 0),
        *((op, at) for at in (1, 2) for op in ("Concat", "BatchNormalization")),
    ]
    assert block.kernels == kernels
    Kernels(1).build_block(block)()
    made = Kernels(1).build_observed_block(block)
    for _ in range(3):
        made.run()
    runs = made.read_times()
    assert [len(each) for each, _ in runs] == [5] * 3
    assert all(0 <= sum(each) < ran for each, ran in runs)


PLANES = ("MaxPool", "Transpose", "Transpose, last axis")
"""Operators that want four axes."""


def _layer(kind: str, shape: tuple[int, ...], macs: int, moved: int, **more: object) -> Layer:
    made = (TensorInfo("y", "float32", shape),)
    return Layer(
        0,
        None,
        kind,
        kind,
        kind,
        0,
        False,
        outputs=made,
        macs=macs,
        bytes_read=moved,
        bytes_written=0,
        **more,
    )  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_layer_is_predicted_to_take_what_a_kernel_like_it_took(usual: MeasuredMachine) -> None:
    model = TimeModel(usual)
    macs = 512 * 512 * 512
    weights = (TensorInfo("w", "float32", (512, 512)),)
    rows = _layer("MatMul", (8, 64, 512), macs, 3 << 20, weights=weights)
    assert model.predict(rows) == pytest.approx(macs / RATES["float32"], rel=0.05)
    conv = _layer("Conv", (1, 64, 56, 56), 64 * 576 * 3136, 1_753_088, attributes={"group": 1})
    assert model.predict(conv) == pytest.approx(conv.macs / RATES["float32"], rel=0.05)  # type: ignore[operator]
    depthwise = _layer("Conv", (1, 64, 56, 56), 64 * 9 * 3136, 1_607_936, attributes={"group": 64})
    assert model.predict(depthwise) == pytest.approx(4 * depthwise.macs / RATES["float32"], rel=0.05)  # type: ignore[operator]
    image = {"kernel_shape": (7, 7), "strides": (2, 2)}
    first = _layer("Conv", (1, 64, 112, 112), 64 * 147 * 12544, 3_851_264, attributes=image)
    assert model.predict(first) == pytest.approx(2 * first.macs / RATES["float32"], rel=0.05)  # type: ignore[operator]
    for kind in ("Add", "Relu", "Swish", "Softmax"):
        took = model.predict(_layer(kind, (1 << 20,), 0, 8 << 20))
        assert took == pytest.approx((8 << 20) / 50e9, rel=0.05)
    assert model.predict(_layer("Reshape", (4,), 0, 0)) == pytest.approx(1e-7, rel=0.05)


@pytest.mark.parametrize("measured", ["now", "before there were such kernels"])
def test_kernels_of_their_own_have_rates_of_their_own(usual: MeasuredMachine, measured: str) -> None:
    own = ("Conv, grouped, wide window", "Transpose, last axis", "LayerNormalization, short rows")
    own = (*own, "Concat", "BatchNormalization")
    seen = usual
    if measured != "now":
        seen = replace(usual, probes=tuple(one for one in usual.probes if one.op not in own))
    model, image = TimeModel(seen), (1, 128, 28, 28)
    size = 8 * math.prod(image)
    turned = _layer("Transpose", (1, 28, 28, 128), 0, size, attributes={"perm": [0, 2, 3, 1]})
    kept = _layer("Transpose", (1, 28, 128, 28), 0, size, attributes={"perm": [0, 2, 1, 3]})
    short = _layer("LayerNormalization", (1, 28, 28, 128), 0, size)
    long = _layer("LayerNormalization", (28, 7, 512), 0, size)
    joined, scaled = _layer("Concat", image, 0, size), _layer("BatchNormalization", image, 0, size)
    layers = (turned, kept, short, long, joined, scaled)
    rates = (10e9, 50e9, 10e9, 50e9, 10e9, 25e9) if measured == "now" else (50e9,) * 6
    for layer, rate in zip(layers, rates, strict=True):
        assert model.predict(layer) == pytest.approx(size / rate, rel=0.05), layer.kind
    attributes = {"group": 128, "kernel_shape": (7, 7)}
    wide = _layer("Conv", image, 128 * 49 * 784, size, attributes=attributes)
    slow = 3 if measured == "now" else 4
    assert model.predict(wide) == pytest.approx(slow * wide.macs / RATES["float32"], rel=0.05)  # type: ignore[operator]


@pytest.mark.slow
def test_weights_take_the_time_in_which_they_come_from_memory() -> None:
    model = TimeModel(Machine({**RATES, "float32": 2e12}).measured())
    layer = _layer("MatMul", (1, 4096), 4096 * 4096, 4 * 4096 * 4096, weight_bytes_read=4 * 4096 * 4096)
    assert model.predict(layer) == pytest.approx(4 * 4096 * 4096 / 50e9, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(128, 2, 1, 256), (1, 128, 2, 256)])
def test_the_state_of_a_recurrent_layer_takes_a_matmul_a_step(
    usual: MeasuredMachine, sizes: tuple[int, ...]
) -> None:
    one = next(one for one in usual.probes if one.op == "MatMul")
    rates = {1: 1e9, 128: 100e9}
    probes = [replace(one, sizes=(m, 1024, 1024), macs_per_second=rate) for m, rate in rates.items()]
    model = TimeModel(replace(usual, kernels=(), probes=(*usual.probes[-9:], *probes)))
    state, read = 2 * 128 * 1024 * 256, 2 * 128 * 1024 * 1024
    more = {"attributes": {"layout": int(sizes[0] == 1)}, "weights": (TensorInfo("w", "float32", (1, 1)),)}
    layer = _layer("LSTM", sizes, state + read, 1 << 20, **more)
    assert model.predict(layer) == pytest.approx(state / 1e9 + read / 100e9, rel=0.05)


@pytest.mark.slow
def test_weights_that_no_cache_holds_come_from_memory_in_every_run(usual: MeasuredMachine) -> None:
    seen = usual
    weights = (TensorInfo("w", "float32", (1024, 1024)),)
    layer = _layer("MatMul", (1, 128, 1024), 128 << 20, 4 << 20, weights=weights)
    computing = (128 << 20) / RATES["float32"]
    assert TimeModel(seen, 32 << 20).predict(layer) == pytest.approx(computing, rel=0.02)
    streamed = computing + (4 << 20) / 50e9
    assert TimeModel(seen, (32 << 20) + 1).predict(layer) == pytest.approx(streamed, rel=0.02)


@pytest.mark.slow
def test_what_a_kernel_does_beside_its_layer_takes_its_time(usual: MeasuredMachine) -> None:
    model = TimeModel(usual)
    conv = _layer("Conv", (1, 64, 56, 56), 64 * 576 * 3136, 1_753_088, attributes={"group": 1})
    alone = model.predict(conv)
    assert alone is not None
    for kind, each in {"Relu": 0.0, "Clip": 1e-10, "Sigmoid": 3e-10, "Tanh": 3e-10}.items():
        with_it = model.predict(conv, ["Conv"], [_layer(kind, (1, 64, 56, 56), 0, 1_605_632)])
        assert with_it == pytest.approx(alone + 64 * 3136 * each), kind
    # of what multiplies nothing the longest is the kernel's, and what the runtime has a kernel for is it
    add, norm = _layer("Add", (1024, 64), 0, 12 << 16), _layer("LayerNormalization", (1024, 64), 0, 8 << 20)
    assert model.predict(add, ["Fused"], [norm]) == pytest.approx(model.predict(norm))
    assert model.predict(add, ["SkipLayerNormalization"], [norm]) == pytest.approx(8 * 65536 / 50e9, rel=0.1)
    for op in ("Reshape", "Squeeze"):
        assert model.predict(_layer("Gather", (1 << 20,), 0, 8 << 20), [op]) == pytest.approx(1e-7, rel=0.05)


def test_a_bias_in_the_kernel_of_a_matmul_takes_its_time(usual: MeasuredMachine) -> None:
    model, shape = TimeModel(usual), (1, 56, 56, 96)
    weights = [TensorInfo("w", "float32", (384, 96)), TensorInfo("b", "float32", (96,))]
    product = _layer("MatMul", shape, 3136 * 384 * 96, 6 << 20, weights=tuple(weights[:1]))
    fully = _layer("Gemm", (3136, 96), 3136 * 384 * 96, 6 << 20, weights=tuple(weights))
    added, alone = _layer("Add", shape, 0, 2 << 20), model.predict(product, ["MatMul"])
    assert alone is not None
    assert model.predict(product, ["Gemm"], [added]) == pytest.approx(alone + 3136 * 96 * BIAS)
    assert model.predict(fully, ["Gemm"]) == pytest.approx(alone + 3136 * 96 * BIAS)
    without = replace(fully, weights=tuple(weights[:1]))
    assert model.predict(without, ["Gemm"]) == model.predict(product, ["Gemm"]) == pytest.approx(alone)
    older = TimeModel(replace(usual, probes=tuple(one for one in usual.probes if one.op != "MatMul, bias")))
    assert older.predict(product, ["Gemm"], [added]) == pytest.approx(alone)


def test_a_change_of_layout_beside_the_layers_takes_its_time(usual: MeasuredMachine) -> None:
    model, size = TimeModel(usual), 128 * 784 * 4
    for op in ("ReorderOutput", "Transpose"):
        turned = model.predict_unassigned(op, 3, 3 * size, is_turned=True)
        assert turned == pytest.approx(3 * 2 * size / 10e9, rel=0.05)
    assert model.predict_unassigned("Transpose", 1, size, is_turned=False) == pytest.approx(
        2 * size / 50e9, rel=0.05
    )
    assert model.predict_unassigned("Reshape", 2, 0, is_turned=False) == pytest.approx(2e-7, rel=0.05)
    assert model.predict_unassigned("MatMul", 1, size, is_turned=False) is None


@pytest.mark.slow
def test_what_is_not_known_of_a_layer_is_not_predicted(usual: MeasuredMachine) -> None:
    model = TimeModel(usual)
    known = _layer("MatMul", (4, 4), 64, 192)
    assert model.predict(known) is not None
    halves = (TensorInfo("y", "float16", (4, 4)),)
    for change in ({"macs": None}, {"bytes_read": None}, {"outputs": ()}, {"outputs": halves}):
        assert model.predict(replace(known, **change)) is None


def test_caches_and_cores_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    first, second = (processor.list_processors() * 2)[:2]
    for at in {first, second}:
        (tmp_path / f"cpu{at}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{at}" / "topology" / "thread_siblings_list").write_text(f"{first},{second}\n")
    for index, (level, kind, size, shared) in enumerate(
        [(1, "Data", "48K", "0"), (1, "Instruction", "32K", "0"), (3, "Unified", "32M", "0-3,8-11")]
    ):
        folder = tmp_path / f"cpu{first}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        files = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, text in (files | {"ways_of_associativity": str(4 * level)}).items():
            (folder / name).write_text(f"{text}\n")
    assert processor.list_caches(str(tmp_path)) == ((1, 48 << 10, 1), (3, 32 << 20, 8))
    assert processor.read_cache_ways(str(tmp_path)) == {1: 4, 3: 12}
    assert processor.count_cores(str(tmp_path)) == max(
        1, len(processor.list_processors()) - (first != second)
    )


@pytest.mark.parametrize(
    ("times", "slowdown", "speedup"),
    [
        (1.0, "", ""),
        (1.15, "", ""),
        (0.87, "", ""),
        (1.5, "it is 1.5 times slower than when it was measured: a matmul of 512 x 512 x 512 took 2 ms", ""),
        (0.5, "", "it is 2.0 times faster than when it was measured: a matmul of 512 x 512 x 512 took"),
    ],
)
def test_a_machine_that_is_slower_or_faster_than_when_it_was_measured_is_noticed(
    usual: MeasuredMachine, times: float, slowdown: str, speedup: str
) -> None:
    machine = Machine(noise=lambda: times)
    check = SpeedCheck(usual, kernels=machine, clock=machine.clock, idle=lambda: None)
    began = machine.now
    check.add_samples()
    check.add_samples()
    assert machine.now - began < 0.12
    for expected, words in ((slowdown, check.describe_slowdown()), (speedup, check.describe_speedup())):
        assert words.startswith(expected)
        assert bool(words) == bool(expected)
    if slowdown or speedup:
        assert check.adapt_machine() == (usual, "")


def test_a_few_slow_runs_are_no_slower_machine_and_none_says_nothing(usual: MeasuredMachine) -> None:
    each = itertools.cycle([1.0, 1.0, 9.0])
    machine = Machine(noise=lambda: next(each))
    check = SpeedCheck(usual, kernels=machine, clock=machine.clock, idle=lambda: None)
    check.add_samples()
    assert check.describe_slowdown() == ""
    for unknown in (replace(usual, kernels=()), usual):
        nothing = SpeedCheck(unknown, kernels=Machine({}), clock=machine.clock, idle=lambda: None)
        nothing.add_samples()
        assert nothing.describe_slowdown() == ""


@pytest.mark.parametrize("apart", [0.6, 1.0, 1.08, 1.7])
def test_processors_that_hand_on_otherwise_than_when_measured_change_what_convolutions_are_expected_to_take(
    apart: float, usual: MeasuredMachine
) -> None:
    machine, seen = Machine(), usual
    machine.apart = apart
    check = SpeedCheck(seen, kernels=machine, clock=machine.clock, idle=lambda: None)
    check.add_samples()
    now, said = check.adapt_machine()
    assert check.describe_slowdown() == ""  # the processors are as fast as they were
    depthwise = _layer("Conv", (1, 128, 56, 56), 128 * 9 * 3136, 1 << 20, attributes={"group": 128})
    square = _layer("Conv", (1, 64, 56, 56), 64 * 576 * 3136, 1_753_088, attributes={"group": 1})
    rows = _layer("MatMul", (128, 512), 128 * 512 * 512, 1 << 20, weights=(TensorInfo("w", "float32", ()),))
    then, again = TimeModel(seen), TimeModel(now)
    other = apart if abs(apart - 1) > 0.1 else 1.0
    for layer, times in ((depthwise, other), (square, 1.0), (rows, 1.0)):
        before, after = then.predict(layer), again.predict(layer)
        assert before is not None
        assert after == pytest.approx(before * times, rel=0.03)
    assert (said == "") == (other == 1.0)
    if other > 1:
        assert "small convolutions are predicted 1.7 times slower than when the machine was measured" in said
    # where the processors themselves are slower, that is all that is known
    machine.noise = lambda: 2.0
    loaded = SpeedCheck(seen, kernels=machine, clock=machine.clock, idle=lambda: None)
    loaded.add_samples()
    assert loaded.adapt_machine() == (seen, "")
    assert loaded.describe_slowdown()


def test_a_machine_measured_without_a_network_is_taken_as_it_was(usual: MeasuredMachine) -> None:
    machine = Machine()
    old = replace(usual, probes=tuple([one for one in usual.probes if one.op != "Conv, few channels"]))
    machine.apart = 3.0
    check = SpeedCheck(old, kernels=machine, clock=machine.clock, idle=lambda: None)
    check.add_samples()
    assert check.adapt_machine() == (old, "")
