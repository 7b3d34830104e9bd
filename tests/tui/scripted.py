"""An engine that answers from a script: the pilot tests need no process and no model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Cancelled, EngineDied, ExplorerError, Misuse
from explorer.engine.costs.overlay import match_overlay
from explorer.engine.costs.selection import filter_rows
from explorer.engine.costs.training.memory import estimate_by_outputs
from explorer.engine.costs.value_flow import ValueFlow, list_connections, list_row_edges
from explorer.engine.graph_view import view
from explorer.engine.graph_view.rows import TreeRows
from explorer.engine.tiling.cost import compute_plan_cost
from explorer.engine.tiling.cost.formulas import add_formulas
from explorer.engine.tiling.cost.steps import tile_steps
from explorer.facts import (
    Analysis,
    Diff,
    History,
    HistoryEntry,
    Info,
    Layer,
    ModelInfo,
    NodeDiff,
    OpDiff,
    OpStat,
    OutputEvidence,
    Plan,
    Progress,
    Range,
    SiteEvidence,
    SitePlan,
    SkippedSite,
    TensorInfo,
    TileResult,
    TileSpec,
    Totals,
    Verification,
    build_total_row,
)
from explorer.facts.comparison import FigureTable, build_figure_table, collect_model_figures
from explorer.facts.cost import Hardware, PlanCost, TileSteps
from explorer.facts.emission import CodeEvidence, CodeProof
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.graph.connections import Connections
from explorer.facts.graph.drawing import GraphDrawing
from explorer.facts.graph.edges import RowEdges
from explorer.facts.mapping import Epilogue, MappingCost, MemoryMachine, ModelMapping, SiteMapping
from explorer.facts.memory import Lifetime, Memory, MemoryStep
from explorer.facts.roofline import Machine, Roofline, RooflinePoint
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.facts.training import OPTIMIZERS, LayerTraining, Optimizer, Training, TrainingMemory
from explorer.facts.values import Activations, Histogram, TensorStats, Weights
from explorer.features.mapping import mapper
from explorer.features.tiling.records import TilingRecord
from explorer.process.client import create_running_future
from explorer.session.parts import history as states
from explorer.session.parts.figures import TableFigures
from explorer.settings.columns import COLUMNS
from explorer.settings.mapping_file import FileSite, read_mapping
from explorer.settings.overlay import read

__all__ = ["ScriptedEngine", "alexnet", "blocks", "flat", "memory", "roofline", "totals", "training"]

_CONVS = (
    # path, cin, cout, kernel, stride, pad, side of the output, MACs
    ("features.0", 3, 64, 11, 4, 2, 55, 70_276_800),
    ("features.3", 64, 192, 5, 1, 2, 27, 223_948_800),
    ("features.6", 192, 384, 3, 1, 1, 13, 112_140_288),
    ("features.8", 384, 256, 3, 1, 1, 13, 149_520_384),
    ("features.10", 256, 256, 3, 1, 1, 13, 99_680_256),
)
_LINEARS = (("classifier.1", 9216, 4096), ("classifier.4", 4096, 4096), ("classifier.6", 4096, 1000))


_MAPPED: dict[str, ModelMapping] = {}
"""Searches that were asked for, by their arguments."""


def _tensor(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, "float32", shape)


def totals(layers: tuple[Layer, ...], **more: Any) -> Totals:
    """Totals over the leaves."""
    leaves = [x for x in layers if not x.group]
    macs = sum(x.macs or 0 for x in leaves)
    base = Totals(
        nodes=len(leaves),
        params=sum(x.params for x in leaves),
        trainable_params=None,
        weight_bytes=sum(x.weight_bytes for x in leaves),
        macs=macs,
        flops=2 * macs,
        elementwise_ops=sum(x.elementwise_ops or 0 for x in leaves),
        activation_bytes_sum=sum(x.activation_bytes or 0 for x in leaves),
        activation_bytes_peak=1_548_800,
        bytes_read=sum(x.bytes_read or 0 for x in leaves),
        bytes_written=sum(x.bytes_written or 0 for x in leaves),
        coverage=1.0,
        peak_at="features.1",
        peak_tensors=(_tensor("features.0.out", 1, 64, 55, 55), _tensor("features.1.out", 1, 64, 55, 55)),
    )
    return replace(base, **more)


def alexnet() -> Analysis:
    """AlexNet in 8 layers with weights and their ReLUs, by hand."""
    leaves: list[tuple[str, Layer]] = []
    previous = _tensor("input", 1, 3, 224, 224)
    for path, cin, cout, kernel, stride, pad, side, macs in _CONVS:
        out = _tensor(f"{path}.out", 1, cout, side, side)
        size = cout * side * side
        count = cout * cin * kernel * kernel + cout
        conv = Layer(
            0,
            None,
            path,
            path.split(".")[1],
            "Conv",
            1,
            False,
            inputs=(previous,),
            outputs=(out,),
            weights=(_tensor(f"{path}.weight", cout, cin, kernel, kernel), _tensor(f"{path}.bias", cout)),
            params=count,
            weight_bytes=4 * count,
            macs=macs,
            elementwise_ops=size,
            formula=f"1 × {cout} × {side}·{side} × {cin} × {kernel}·{kernel}",
            bytes_read=4 * count + 4 * size,
            bytes_written=4 * size,
            activation_bytes=4 * size,
            attributes={
                "kernel_shape": (kernel, kernel),
                "strides": (stride, stride),
                "pads": (pad,) * 4,
                "group": 1,
            },
        )
        relu = Layer(
            0,
            None,
            path.replace(".", ".relu"),
            f"relu{path.split('.')[1]}",
            "Relu",
            1,
            False,
            inputs=(out,),
            outputs=(out,),
            elementwise_ops=size,
            formula=f"{size:,} elements",
            bytes_read=4 * size,
            bytes_written=4 * size,
            activation_bytes=4 * size,
        )
        leaves += [("features", conv), ("features", relu)]
        previous = out
    for path, k, n in _LINEARS:
        out = _tensor(f"{path}.out", 1, n)
        gemm = Layer(
            0,
            None,
            path,
            path.split(".")[1],
            "Gemm",
            1,
            False,
            inputs=(_tensor(f"{path}.in", 1, k),),
            outputs=(out,),
            weights=(_tensor(f"{path}.weight", n, k), _tensor(f"{path}.bias", n)),
            params=k * n + n,
            weight_bytes=4 * (k * n + n),
            macs=k * n,
            elementwise_ops=n,
            formula=f"1 × {k} × {n}",
            bytes_read=4 * (k * n + n + k),
            bytes_written=4 * n,
            activation_bytes=4 * n,
            attributes={"alpha": 1.0, "beta": 1.0, "transB": 1},
        )
        leaves.append(("classifier", gemm))
    layers = _grouped(leaves)
    info = Info(
        model=ModelInfo(
            "alexnet.onnx",
            "onnx",
            (_tensor("input", 1, 3, 224, 224),),
            (_tensor("output", 1, 1000),),
            opset=17,
            producer="pytorch 2.9",
            file_bytes=244_407_408,
        ),
        assumptions={"dims": {"batch": 1}, "weights": "random, seed 0"},
        totals=totals(layers),
    )
    return Analysis(info, layers)


def _grouped(leaves: list[tuple[str, Layer]]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for group in dict.fromkeys(g for g, _ in leaves):
        own = [leaf for g, leaf in leaves if g == group]
        top = len(layers)
        layers.append(
            Layer(
                top,
                None,
                group,
                group,
                "Sequential",
                0,
                True,
                inputs=own[0].inputs,
                outputs=own[-1].outputs,
                params=sum(x.params for x in own),
                weight_bytes=sum(x.weight_bytes for x in own),
                macs=sum(x.macs or 0 for x in own),
                elementwise_ops=sum(x.elementwise_ops or 0 for x in own),
                bytes_read=sum(x.bytes_read or 0 for x in own),
                bytes_written=sum(x.bytes_written or 0 for x in own),
                activation_bytes=sum(x.activation_bytes or 0 for x in own),
            )
        )
        layers.extend(replace(leaf, id=top + 1 + i, parent=top) for i, leaf in enumerate(own))
    return tuple(layers)


def blocks(count: int = 12) -> Analysis:
    """An encoder of identical blocks: layers.0 … layers.11, one unknown operator, hostile names."""
    layers: list[Layer] = [
        Layer(0, None, "encoder", "encoder", "Encoder", 0, True, params=100 * count, macs=1000 * count)
    ]
    for i in range(count):
        at = len(layers)
        layers.append(
            Layer(
                at,
                0,
                f"encoder.layers.{i}",
                f"layers.{i}",
                "Block",
                1,
                True,
                params=100,
                macs=1000,
                repeat=count if i == 0 else 0,
            )
        )
        for j, kind in enumerate(("MatMul", "Add")):
            layers.append(
                Layer(
                    at + 1 + j,
                    at,
                    f"encoder.layers.{i}.{kind}",
                    kind,
                    kind,
                    2,
                    False,
                    params=100 if kind == "MatMul" else 0,
                    macs=1000 if kind == "MatMul" else 0,
                )
            )
    odd = "od\x1b[2J[bold red]d"
    layers.append(
        Layer(
            len(layers),
            None,
            odd,
            odd,
            "Mystery",
            0,
            False,
            macs=None,
            status="unknown",
            reason="no rule for Mystery",
        )
    )
    info = Info(ModelInfo("bert.onnx", "onnx", (), ()), {}, totals(tuple(layers), coverage=0.96))
    return Analysis(info, tuple(layers))


def flat(count: int) -> Analysis:
    """`count` operators without any hierarchy."""
    layers = tuple(
        Layer(i, None, f"node_{i}", f"node_{i}", "Relu", 0, False, macs=i % 7) for i in range(count)
    )
    return Analysis(Info(ModelInfo("flat.onnx", "onnx", (), ()), {}, totals(layers)), layers)


_SKIPPED = (SkippedSite("attention/MatMul", "MatMul", "both operands are activations"),)


def plan(spec: TileSpec) -> Plan:
    """The plan of AlexNet's three Gemm."""
    sites = []
    tm, tk, tn = spec.tile
    for path, k, n in _LINEARS:
        if spec.sites and path not in spec.sites:
            continue
        grid = (-(-1 // tm), -(-k // tk), -(-n // tn))
        count = grid[0] * grid[1] * grid[2]
        form = spec.form if spec.form != "auto" else "lab" if count <= 256 else "scan"
        used = k * n / (count * tm * tk * tn)
        sites.append(
            SitePlan(
                path,
                "Gemm",
                1,
                k,
                n,
                grid,
                count,
                used,
                form,
                spec.edges,
                f"{path}.out",
                f"{path}.weight",
                bias=True,
                tile=spec.tile,
            )
        )
    macs = sum(s.K * s.N for s in sites)
    return Plan(
        spec.tile,
        spec.edges,
        spec.form,
        tuple(sites),
        sum(s.products for s in sites),
        macs,
        714_188_480,
        _SKIPPED,
    )


def proof(passed: bool = True) -> Verification:
    """Evidence for the three sites and the output."""
    output = OutputEvidence(
        "output",
        "float32",
        (1, 1000),
        4.1e-9,
        2.3e-5,
        1.1e-17,
        1.0,
        "float64",
        3.1e-9,
        2.2e-9,
        1e-8,
        9e-9,
        0,
        False,
        passed,
        "no less accurate than the original" if passed else "37 new NaN",
    )
    sites = tuple(
        SiteEvidence(
            p,
            1,
            k,
            n,
            -(-k // 64) * -(-n // 64),
            "",
            3e-9,
            0.0,
            1e-17,
            1.0,
            0.41,
            8.0,
            2e-9,
            1e-9,
            67,
            0,
            True,
            "",
        )
        for p, k, n in _LINEARS
    )
    verdict = (
        "Equal: every tile is its slice of the weight, and the tiled model is no less accurate."
        if passed
        else ("Different: the output has 37 NaN that the original has not.")
    )
    return Verification(
        passed,
        verdict,
        "alexnet.onnx",
        "1-alexnet.onnx",
        (0, 1, 2),
        ("input: normal",),
        sites,
        (output,),
        (),
        2.1,
        verdict_kind="equal" if passed else "different",
    )


def memory(analysis: Analysis) -> Memory:
    """A chain: every layer's output lives until the next has read it; the first until the last, as a skip."""
    leaves = [x for x in analysis.layers if not x.group and x.outputs]
    if not leaves:
        return Memory((), (), 0, 0, 0, 0, 0)
    lives = [Lifetime(_tensor("input", 1, 3, 224, 224), 602_112, 0, 1, 0)]
    for i, layer in enumerate(leaves, 1):
        dies = len(leaves) if i == 1 else min(i + 1, len(leaves))
        size = layer.activation_bytes or 0
        lives.append(Lifetime(replace(layer.outputs[0], name=f"{layer.path}.out"), size, i, dies, 0))
    live = [sum(x.bytes for x in lives if x.born <= i <= x.dies) for i in range(len(leaves) + 1)]
    steps = [MemoryStep("", "", live[0])]
    steps += [MemoryStep(x.path, x.kind, live[i], x.id) for i, x in enumerate(leaves, 1)]
    peak = max(live)
    return Memory(
        tuple(steps),
        tuple(lives),
        sum(x.bytes for x in lives),
        peak,
        live.index(peak),
        peak + 4096,
        analysis.info.totals.weight_bytes,
    )


def roofline(analysis: Analysis, machine: Machine) -> Roofline:
    """Every leaf, by the definitions in `facts.roofline`."""
    leaves = [x for x in analysis.layers if not x.group]
    ridge = 2 * machine.peak_macs / machine.bandwidth
    points = []
    for x in leaves:
        moved = None if x.bytes_read is None or x.bytes_written is None else x.bytes_read + x.bytes_written
        if x.macs is None or moved is None:
            points.append(RooflinePoint(x.id, x.path, x.kind, x.macs, moved, None, "unknown", None, 0.0))
            continue
        seconds = max(x.macs / machine.peak_macs, moved / machine.bandwidth)
        intensity = 2 * x.macs / moved if moved else None
        limit = "compute" if intensity is not None and intensity >= ridge else "memory"
        points.append(RooflinePoint(x.id, x.path, x.kind, x.macs, moved, intensity, limit, seconds, 0.0))  # type: ignore[arg-type]
    whole = sum(p.seconds or 0.0 for p in points)
    points = [replace(p, share=(p.seconds or 0.0) / whole if whole else 0.0) for p in points]
    limits = [p.limit for p in points]
    return Roofline(
        machine,
        ridge,
        tuple(points),
        whole,
        sum(p.macs or 0 for p in points) / machine.peak_macs,
        sum(p.bytes or 0 for p in points) / machine.bandwidth,
        limits.count("compute"),
        limits.count("memory"),
        limits.count("unknown"),
        sum(p.seconds is not None for p in points) / max(1, len(points)),
    )


def training(analysis: Analysis, batch: int | None, optimizer: Optimizer) -> Training:
    """Every figure of the inference times the batch; the first layer has no gradient of its input."""
    times = batch or 1
    rows = []
    for x in analysis.layers:
        if not x.group:
            macs = (x.macs or 0) * times
            kept = OPTIMIZERS[optimizer] * x.weight_bytes
            rows.append(
                LayerTraining(
                    x.id,
                    x.path,
                    x.kind,
                    macs,
                    macs if rows else 0,
                    macs,
                    (x.activation_bytes or 0) * times,
                    x.weight_bytes,
                    kept,
                    x.weight_bytes,
                )
            )
    activations, params = sum(x.activation_bytes or 0 for x in rows), sum(x.param_bytes for x in rows)
    kept = sum(x.optimizer_bytes for x in rows)
    inputs = 602_112 * times
    return Training(
        batch,
        optimizer,
        tuple(rows),
        inputs,
        activations,
        params,
        params,
        kept,
        inputs + activations + 2 * params + kept,
        sum(x.forward_macs or 0 for x in rows),
        sum((x.backward_input_macs or 0) + (x.backward_weight_macs or 0) for x in rows),
        1.0,
    )


_BELL = (
    1,
    0,
    2,
    5,
    9,
    18,
    31,
    52,
    80,
    110,
    142,
    170,
    184,
    188,
    180,
    160,
    138,
    112,
    84,
    60,
    38,
    20,
    12,
    6,
    2,
    1,
)


def _stats(tensor: TensorInfo, layer: str) -> TensorStats:
    count = 1
    for size in tensor.shape or ():
        count *= size if isinstance(size, int) else 1
    edges = tuple(-1.3 + 0.1 * i for i in range(len(_BELL) + 1))
    return TensorStats(
        tensor,
        layer,
        count,
        4 * count,
        -1.2946,
        1.2871,
        0.00125,
        0.41,
        0.125,
        0,
        0,
        tuple(
            zip(
                (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99),
                (-0.98, -0.69, -0.28, 0.0, 0.28, 0.69, 0.98),
                strict=True,
            )
        ),
        True,
        Histogram(edges, _BELL),
    )


@dataclass
class _Job:
    method: str
    future: Future[Any] = field(default_factory=create_running_future)
    progress: Progress | None = None


class ScriptedEngine:
    """The worker's door over a script.

    Args:
        analysis: Of the model as opened.
        hold: Methods that do not answer until `release`.
        errors: Method to the error it fails with.
    """

    def __init__(
        self,
        analysis: Analysis | None = None,
        *,
        hold: tuple[str, ...] = (),
        errors: dict[str, ExplorerError] | None = None,
        tilings: int = 0,
    ) -> None:
        self.model = analysis or alexnet()
        self.hold, self.errors = set(hold), errors or {}
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.waiting: list[tuple[_Job, tuple[Any, ...], dict[str, Any]]] = []
        self.states = History((HistoryEntry("opened", "alexnet.onnx", ""),), 0)
        self.closed = False
        self.curves: dict[str, SizeCurves] = {}
        self.decoded: Decode | None = None
        self.served: Callable[..., Serving] | None = None
        self.emitted: list[FileSite] = []
        self.opened = self.model.info.model.inputs
        self.options: dict[str, Any] = {}
        for _ in range(tilings):
            self._tile(TileSpec())

    pid = 1
    resident = 0

    def start(self) -> None:
        """Nothing to start."""

    def stop_if_idle(self) -> bool:
        """Nothing to end."""
        return False

    def request_outline(self, at: int) -> Future[Any]:
        """No header is read."""
        nothing: Future[Any] = Future()
        nothing.set_result(None)
        return nothing

    def close(self) -> None:
        """Nothing to end."""
        self.closed = True

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> _Job:
        """Answer at once, from another thread as the real one does, or keep it for `release`."""
        self.asked.append((method, args, kwargs))
        job = _Job(method)
        if method in self.hold:
            job.progress = Progress("proving", 3, 14)
            self.waiting.append((job, args, kwargs))
        else:
            self._answer(job, args, kwargs)
        return job

    def release(self) -> None:
        """Answer what waits."""
        self.hold.clear()
        for job, args, kwargs in self.waiting:
            self._answer(job, args, kwargs)
        self.waiting.clear()

    def stop(self, job: _Job) -> None:
        """Fail the job as a stopped one."""
        self.waiting = [w for w in self.waiting if w[0] is not job]
        if not job.future.done():
            job.future.set_exception(Cancelled())

    def die(self) -> None:
        """Fail what waits as when the process was killed."""
        for job, _, _ in self.waiting:
            job.future.set_exception(
                EngineDied("the engine stopped (killed)", hint="the next command restarts it")
            )
        self.waiting.clear()

    def _answer(self, job: _Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def work() -> None:
            try:
                if job.method in self.errors:
                    raise self.errors[job.method]
                job.future.set_result(getattr(self, f"_{job.method}")(*args, **kwargs))
            except ExplorerError as error:
                job.future.set_exception(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def _open(self) -> Info:
        return self.model.info

    def _analysis(self) -> Analysis:
        return self.model

    def _connections(self, layer: int) -> Connections:
        return list_connections(self._flow(), self.model.layers, layer)

    def _edges(self) -> RowEdges:
        return list_row_edges(self._flow())

    def _graph(self, layer: int | None = None, *, depth: int | None = None, **more: Any) -> GraphDrawing:
        tree = TreeRows(self.model.layers, self._flow())
        unfold = [(at, tree.ends[at]) if isinstance(at, int) else at for at in more.pop("unfold", ())]
        return view.draw(tree, "alexnet.onnx", layer, depth, unfold=unfold, **more)

    flow: ValueFlow | None = None
    """The edges; None for those that the names of tensors say."""

    def _flow(self) -> ValueFlow:
        if self.flow is not None:
            return self.flow
        flow = ValueFlow()
        for row in self.model.layers:
            if not row.group:
                for tensor in row.inputs:
                    flow.add_reader(row.id, tensor.name, lambda tensor=tensor: tensor, "input")
                for tensor in row.outputs:
                    flow.add_producer(row.id, tensor.name, lambda tensor=tensor: tensor)
        return flow

    def _ops(self) -> tuple[OpStat, ...]:
        kernels = Range((3, 3), (11, 11), 3, (((3, 3), 3), ((11, 11), 1), ((5, 5), 1)))
        return (
            OpStat(
                "Conv",
                5,
                655_566_528,
                2_469_696,
                484_992,
                {"kernel_shape": kernels, "group": Range(1, 1, 1, ((1, 5),))},
            ),
            OpStat("Gemm", 3, 58_621_952, 58_631_144, 9_192, {"transB": Range(1, 1, 1, ((1, 3),))}),
            OpStat("Relu", 5, 0, 0, 484_992, {}),
        )

    def _memory(self) -> Memory:
        return memory(self.model)

    def _roofline(self, machine: Machine) -> Roofline:
        return roofline(self.model, machine)

    def _column(
        self, name: str, *, machine: Machine | None = None, spec: TileSpec | None = None
    ) -> list[float]:
        column, layers = COLUMNS[name], self.model.layers
        if machine is not None:
            seconds = {point.layer: point.seconds for point in roofline(self.model, machine).points}
            tops = [sum(seconds.get(at) or 0 for at in range(len(layers)))]
            inside = [(row.id, [x.id for x in layers if x.path.startswith(row.path)]) for row in layers]
            return [sum(seconds.get(at) or 0 for at in ids) for _, ids in inside] + tops
        rows = (*layers, build_total_row(self.model.info.totals))
        given = TableFigures(profile=self.states.entries[self.states.current].profile)
        left = filter_rows(self.model.info, layers, None, given.compute_sums(self.model))
        beside = given.compute_column_figures(self.model.info, left.figures)
        found = [column.get_value(row, beside) for row in rows]
        return [float("nan") if value is None or isinstance(value, str | tuple) else value for value in found]

    def _overlay(self, files: Sequence[str]) -> Overlay:
        return match_overlay(self.model.layers, [read(path) for path in files])

    def _placement(self) -> Placement:
        on = {row.id: "CUDA" if row.kind == "Conv" else "CPU" for row in self.model.layers if not row.group}
        return Placement("onnxruntime", ("CUDA", "CPU"), ("CUDA", "CPU"), on, {}, ())

    def _sizes(self, over: str | None = None, *, machine: Machine | None = None) -> SizeCurves:
        if not self.curves:
            raise Misuse("this model leaves no size open")
        fact = self.curves[over or next(iter(self.curves))]
        return replace(fact, names=dict.fromkeys(self.curves, None), machine=machine)

    def _decode(self, tokens: int | None = None) -> Decode:
        if self.decoded is None:
            raise Misuse("it has neither a text input nor cache inputs")
        return replace(self.decoded, tokens=tokens or self.decoded.tokens)

    def _serving(self, spec: ServingSpec, *, machine: Machine | None = None) -> Serving:
        if self.served is None:
            raise Misuse("it has no key-value cache of its own")
        return self.served(spec, machine=machine)

    def _training(self, *, batch: int | None = None, optimizer: Optimizer = "sgd") -> Training:
        return training(self.model, batch, optimizer)

    def _training_over_time(
        self,
        *,
        batches: tuple[int | None, ...],
        optimizer: Optimizer,
        checkpoint: tuple[str, ...],
        card: int | None,
    ) -> Training:
        step = training(self.model, batches[0], optimizer)
        found = estimate_by_outputs(step)
        memory = TrainingMemory(optimizer, card, 218 if card else None, checkpoint, checkpoint, (found,))
        return replace(step, memory=memory)

    def _weights(self, names: list[str]) -> Weights:
        stored = [(x, t) for x in self.model.layers for t in x.weights]
        asked = [(x, t) for x, t in stored if any(fnmatchcase(t.name, name) for name in names)]
        tensors = tuple(_stats(t, x.path) for x, t in asked)
        return Weights("alexnet.onnx", tensors, notes=("random weights, seed 0",))

    def _activations(self, layers: list[str]) -> Activations:
        asked = [x for x in self.model.layers if any(fnmatchcase(x.path, name) for name in layers)]
        tensors = tuple(_stats(t, x.path) for x in asked for t in x.outputs)
        return Activations("alexnet.onnx", ("input float32 (1, 3, 224, 224): random, seed 0",), tensors)

    def _plan(self, spec: TileSpec) -> Plan:
        return plan(spec)

    def _cost(
        self, spec: TileSpec, hardware: Hardware | None = None, *, formulas: bool | None = None
    ) -> PlanCost:
        cost = compute_plan_cost(plan(spec), hardware)
        return add_formulas(cost) if formulas or (formulas is None and len(cost.sites) == 1) else cost

    def _mapping_cost(self, mapping: SiteMapping, machine: MemoryMachine) -> MappingCost:
        return mapper.mapping_cost(None, mapping, machine)

    def _map(self, machine: MemoryMachine, **options: Any) -> ModelMapping:
        asked = repr((machine, options))
        if asked not in _MAPPED:
            planner = SimpleNamespace(
                plan=lambda spec, on_progress: plan(spec),
                epilogues=lambda **_: {"classifier.6": Epilogue(("Add",), bias_bytes=4)},
            )
            _MAPPED[asked] = mapper.map(planner, machine, **options)
        return _MAPPED[asked]

    def _emit(self, *, output: str, mapping: str, sites: Sequence[str], **options: Any) -> CodeProof:
        (site,) = [site for site in plan(TileSpec()).sites if site.name in sites]
        self.emitted.append(read_mapping(mapping).sites[site.name])
        evidence = CodeEvidence(
            name=site.name,
            op=site.op,
            file="site_001.c",
            M=site.M,
            K=site.K,
            N=site.N,
            batch=1,
            values=("original", "dense"),
            exact=False,
            error=2.2,
            limit=8.0,
            counters=16,
            differences=(),
            restored=True,
            verdict_kind="evidence",
            reason="",
            seconds=0.1,
        )
        machine = options["machine"].hardware.name
        verdict = "equal on evidence: 1 matmul compiled and run"
        return CodeProof(output, "c", machine, 2, "cc", (evidence,), "evidence", verdict, 0.2)

    def _tile_steps(self, site: SitePlan, *, order: str, first: int, count: int) -> TileSteps:
        return tile_steps(site, order, first, count)

    def _tile(self, spec: TileSpec) -> TileResult:
        made = plan(spec)
        label = f"tile {'x'.join(map(str, spec.tile))}"
        command = f"explorer tile alexnet.onnx -o alexnet_tiled.onnx --tile {'x'.join(map(str, spec.tile))}"
        entry = HistoryEntry(
            label, "1-alexnet.onnx", command, proof(), change="tile", record=TilingRecord(plan=made)
        )
        self.states = states.append(self.states, entry)
        return TileResult(made, "1-alexnet.onnx", proof(), 2.4, command)

    def _verify(self, before: int = 0, after: int | None = None) -> Verification:
        return proof()

    def _beside(
        self, chosen: tuple[int, ...], *, others: tuple[str, ...] = (), hardware: Hardware | None = None
    ) -> FigureTable:
        nodes = [replace(self.model.info.totals, nodes=20 + at) for at in chosen]
        figures = [collect_model_figures(replace(self.model.info, totals=totals)) for totals in nodes]
        figures += [collect_model_figures(self.model.info) for _ in others]
        names = [*(f"{at} state" for at in chosen), *others]
        return build_figure_table(names, figures, hardware.name if hardware else "")

    def _diff(self, before: int = 0, after: int | None = None) -> Diff:
        whole = self.model.info.totals
        rows = tuple(
            NodeDiff(
                "tiled",
                p,
                p,
                f"Gemm -> {-(-k // 64) * -(-n // 64):,} products",
                "Gemm",
                "Scan",
                "name",
                1.0,
                (("Split2D", 1), ("2DMM_64x64x64", -(-k // 64) * -(-n // 64)), ("Sum", n // 64)),
                became=f"{-(-k // 64) * -(-n // 64):,} products",
            )
            for p, k, n in _LINEARS
        )
        summary = (
            OpDiff("Gemm", 3, 3, 0, 0, 0),
            OpDiff("Conv", 5, 0, 5, 0, 0),
            OpDiff("Relu", 5, 0, 5, 0, 0),
        )
        after = replace(whole, nodes=whole.nodes + 15, activation_bytes_peak=1_600_000)
        return Diff("alexnet.onnx", "1-alexnet.onnx", False, summary, rows, whole, after)

    def _history(self) -> History:
        return self.states

    def _undo(self) -> History:
        self.states = states.step(self.states, -1)
        return self.states

    def _redo(self) -> History:
        self.states = states.step(self.states, 1)
        return self.states

    def _go(self, index: int) -> History:
        self.states = states.go(self.states, index)
        return self.states

    def _name(self, index: int, text: str) -> History:
        entries = list(self.states.entries)
        entries[index] = replace(entries[index], name=text)
        self.states = replace(self.states, entries=tuple(entries))
        return self.states

    def _bind(self, dims: Mapping[str, int]) -> History:
        self.states = replace(self.states, dims=dims)
        inputs = self.model.info.model.inputs
        fed = tuple(replace(t, shape=tuple(dims.get(str(d), d) for d in t.shape or ())) for t in self.opened)
        assert len(fed) == len(inputs)
        info = replace(
            self.model.info,
            model=replace(self.model.info.model, inputs=fed),
            assumptions={**self.model.info.assumptions, "dims": dict(dims)},
        )
        self.model = replace(self.model, info=info)
        return self.states

    def _script(self, path: str, *, index: int, branches: bool, overwrite: bool) -> str:
        return path

    def _keep_choices(self, path: str, *, overwrite: bool) -> str:
        return path

    def _save(self, path: str, *, overwrite: bool = False) -> str:
        entries = list(self.states.entries)
        entries[self.states.current] = replace(entries[self.states.current], saved=path)
        self.states = replace(self.states, entries=tuple(entries))
        return path
