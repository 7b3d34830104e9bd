"""One measurement in a process of its own: `python -m tests.bench.measure WHAT [ARGUMENT...]` prints JSON.

Imports and first calls are paid on a small model before the clock starts, on both sides of every ratio;
memory is the peak above what the process held at that moment.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMALL = str(Path(__file__).parent.parent.parent / "sample_models" / "mlp_128.onnx")

Work = Callable[..., dict[str, float] | None]


def load_save(source: str, target: str) -> None:
    import onnx

    onnx.save(onnx.load(source), target)


def naive_tile(source: str, target: str) -> None:
    """What a script does that inserts nodes one by one: an initializer a tile, all in memory."""
    import onnx
    from onnx import helper, numpy_helper

    size = 64
    model = onnx.load(source)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for gemm in [node for node in graph.node if node.op_type == "Gemm"]:
        weight = numpy_helper.to_array(stored[gemm.input[1]])
        weight = weight.T if any(a.name == "transB" and a.i for a in gemm.attribute) else weight
        depth, width = weight.shape
        starts, ends = range(0, depth, size), range(0, width, size)
        place = list(graph.node).index(gemm)
        cuts = [min(size, depth - k) for k in starts]
        graph.initializer.append(helper.make_tensor(f"{gemm.name}_cuts", 7, [len(cuts)], cuts))
        blocks = [f"{gemm.name}_x{i}" for i in range(len(cuts))]
        made = [helper.make_node("Split", [gemm.input[0], f"{gemm.name}_cuts"], blocks, axis=1)]
        columns = []
        for j, n in enumerate(ends):
            terms = []
            for i, k in enumerate(starts):
                name = f"{gemm.name}_{i}_{j}"
                tile = weight[k : k + size, n : n + size]
                graph.initializer.append(numpy_helper.from_array(tile.copy(), f"{name}_w"))
                made.append(helper.make_node("MatMul", [blocks[i], f"{name}_w"], [name], name))
                terms.append(name)
            columns.append(f"{gemm.name}_c{j}")
            made.append(helper.make_node("Sum", terms, [columns[-1]]))
        made.append(helper.make_node("Concat", columns, [f"{gemm.name}_y"], axis=1))
        made.append(helper.make_node("Add", [f"{gemm.name}_y", gemm.input[2]], list(gemm.output)))
        for at, node in enumerate(made):
            graph.node.insert(place + at, node)
        graph.initializer.remove(stored[gemm.input[1]])
        graph.node.remove(gemm)
    onnx.save(model, target)


def tile_save(source: str, target: str, form: str = "auto", size: str = "64", sites: str = "") -> None:
    from explorer import Session

    with Session(source) as session:
        session.tile(_spec(form, size, sites), output=target, verify=False)


def _spec(form: str, size: str, sites: str) -> Any:
    from explorer import TileSpec

    edge = int(size)
    return TileSpec((edge, edge, edge), form=form, sites=(sites,) if sites else ())  # type: ignore[arg-type]


def tile_prove(
    source: str, target: str, form: str = "auto", size: str = "64", sites: str = ""
) -> dict[str, float]:
    """Tile, save and prove; `sites` is when layers 1 and 2 were done, beside a run of the whole model."""
    from explorer import Session
    from explorer.facts import Progress

    started = time.perf_counter()
    marks: dict[str, float] = {}

    def on_progress(progress: Progress) -> None:
        marks.setdefault(progress.phase, time.perf_counter() - started)

    with Session(source) as session:
        result = session.tile(_spec(form, size, sites), output=target, on_progress=on_progress)
        assert result.verification is not None
        assert result.verification.passed
    return {"sites": marks["loading the models"]}


def quantize_save(source: str, target: str, words: str, report: str = "") -> None:
    """To a format, or the weights alone to one: 'int8', 'weight=int8'."""
    from explorer import Session
    from explorer.facts.quantize import QuantizeSpec

    part, _, name = words.rpartition("=")
    spec = QuantizeSpec(weight=name, input="float32" if part else name, sites=("*",))
    with Session(source) as session:
        session.quantize(spec, output=target, report=bool(report))


def quantize_static(source: str, target: str) -> None:
    """onnxruntime's own, on the inputs that `quantize_save` draws."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize

    from explorer.engine.formats.onnx import reader
    from explorer.engine.runtime.samples import random_samples

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(random_samples(reader.read(source), 4))

        def get_next(self) -> Any:
            return next(self.left, None)

    how = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize(source, target, Reader(), quant_format=QuantFormat.QDQ, **how)


def sweep(source: str, kept: str = "") -> None:
    """64 tilings of a model that is not open yet."""
    from explorer import Session
    from explorer.facts.cost import Hardware
    from explorer.facts.sweep import SweepSpec, combine_tiles

    sizes = (16, 32, 64, 128)
    machine = Hardware("npu", macs_per_cycle=4096, bytes_per_cycle=64, clock=1e9)
    with Session(source) as session:
        spec = SweepSpec(combine_tiles(None, sizes, sizes, sizes))
        assert len(session.sweep(spec, hardware=machine, output=kept or None).rows) == 64


def sweep_kept(source: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep(source, f"{folder}/results.db")


def onnx_load(source: str) -> None:
    import onnx

    onnx.load(source)


def layer_list(source: str) -> None:
    from explorer import Session

    with Session(source) as session:
        assert session.analysis().layers


def session_creation(source: str) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def module_analysis(name: str) -> None:
    from explorer import Session

    with Session(name) as session:
        assert session.info().totals.macs


def flop_counter(name: str) -> None:
    """torch's own counter on meta tensors; building the model counts on both sides."""
    import torch
    import torchvision
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None).eval()
        image = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert counter.get_total_flops()


def _blank(sizes: tuple[str, ...]) -> Any:
    from explorer.facts.mapping import SiteMapping

    m, k, n = map(int, sizes)
    return SiteMapping("matmul", (m, k, n), (), dtype="int8", accumulator="int32")


def map_energy(*sizes: str) -> dict[str, float]:
    """The search for the least energy on ZigZag's gemm_l1: picojoules of its memory."""
    from explorer.engine.mapping.search import search_mappings
    from explorer.facts.cost import Hardware
    from explorer.facts.mapping import MachineMemory, MemoryMachine

    words: Any = {"A": 64, "B": 64, "C": 256}
    memory = MachineMemory("L1", read_word=words, write_word=words, read_pj=22.9, write_pj=52.01)
    hardware = Hardware("gemm_l1", macs_per_cycle=512)
    machine = MemoryMachine(hardware, (memory,), unit=(8, 8, 8), mac_pj=0.05, first_read=True)
    best = search_mappings(_blank(sizes), machine, "energy").best[0]
    return {"figure": best.memories[0].pj or 0.0}


def systolic_cycles(*sizes: str) -> dict[str, float]:
    """The best mapping to 32 x 32 cells behind 1 MiB, and the cycles as SCALE-Sim counts them."""
    from explorer.engine.mapping.search import search_mappings
    from explorer.engine.tiling.cost import compute_site_cost
    from explorer.facts import SitePlan
    from explorer.facts.cost import Hardware
    from explorer.facts.mapping import MachineMemory, MemoryMachine

    hardware = Hardware("array", array=(32, 32), macs_per_cycle=1024, bytes_per_cycle=32)
    memories = MachineMemory("DRAM", bytes_per_cycle=32), MachineMemory("SRAM", size=1 << 20)
    search_mappings(_blank(sizes), MemoryMachine(hardware, memories, unit=(32, 32, 32)), "cycles")
    m, k, n = map(int, sizes)
    tile = m, k, n
    plan = SitePlan(
        "matmul", "MatMul", m, k, n, (1, 1, 1), 1, 1.0, "lab", "ragged", "y", tile=tile,
        dtype="int8", accumulator="int32",
    )  # fmt: skip
    rows = compute_site_cost(plan, hardware).systolic
    # its report counts from 0
    return {"figure": next(row.scalesim for row in rows if row.dataflow == "output-stationary") - 1}


WORK: dict[str, tuple[Work, tuple[str, ...]]] = {
    "load_save": (load_save, (SMALL, "TARGET")),
    "naive_tile": (naive_tile, (SMALL, "TARGET")),
    "tile_save": (tile_save, (SMALL, "TARGET")),
    "tile_prove": (tile_prove, (SMALL, "TARGET")),
    "quantize_save": (quantize_save, (SMALL, "TARGET", "int8")),
    "quantize_static": (quantize_static, (SMALL, "TARGET")),
    "sweep": (sweep, (SMALL,)),
    "sweep_kept": (sweep_kept, (SMALL,)),
    "onnx_load": (onnx_load, (SMALL,)),
    "layer_list": (layer_list, (SMALL,)),
    "session_creation": (session_creation, (SMALL,)),
    "module_analysis": (module_analysis, ("squeezenet1_0",)),
    "flop_counter": (flop_counter, ("squeezenet1_0",)),
    "map_energy": (map_energy, ("16", "16", "16")),
    "systolic_cycles": (systolic_cycles, ("64", "64", "64")),
}


def _memory(field: str) -> float:
    """A field of /proc/self/status in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(field)


def main(what: str, arguments: list[str]) -> dict[str, Any]:
    work, warm = WORK[what]
    with tempfile.TemporaryDirectory() as folder:
        work(*[word.replace("TARGET", f"{folder}/warm.onnx") for word in warm])
    for word, given in zip(warm, arguments, strict=False):
        if word == "TARGET":
            Path(given).unlink(missing_ok=True)  # what becomes of the file before is the file system's affair
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    held, started = _memory("VmRSS"), time.perf_counter()
    extra = work(*arguments)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "megabytes": _memory("VmHWM") - held, **(extra or {})}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
