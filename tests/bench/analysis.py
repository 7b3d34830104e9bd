"""Speed of analysis against other programs that count: torch models, a model of 70 billion parameters, ONNX.

A model of torch is built before the clock starts, a new one for every call, on the meta device (in memory
for fvcore, which traces with values). All programs take turns in one process, so a slow minute slows all
of them. Ours is shown twice: as it is in a process that has seen such layers before, and with its memory
dropped before every call (`cold`), as it is for the first model of its kind.

Only who is right counts as a rival: the MACs must be ours, or differ by what `CONVENTIONS` explains.

`python -m tests.bench.analysis WHAT [ARGUMENT...]` is one measurement and prints JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "CONVENTIONS",
    "PEERS",
    "encoder",
    "large_graph",
    "onnx_files",
    "onnx_large",
    "process",
    "torch_models",
]

ROOT = Path(__file__).parent.parent.parent
MODELS = ("resnet50", "vit_b_16", "resnet152", "deeplabv3_resnet50", "mobilenet_v2")

Line = tuple[str, str, str, float, float]
"""Work, ours, the other, the ratio that must be kept, the ratio that was seen."""

LLAMA = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = (nn.Linear(8192, 8192, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(8192, 1024, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(8192, 28672, bias=False) for _ in range(2))
        self.down = nn.Linear(28672, 8192, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(8192), nn.RMSNorm(8192)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (
            p(y).view(1, -1, n, 128).transpose(1, 2) for p, n in ((self.q, 64), (self.k, 8), (self.v, 8))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 8192)
        self.layers = nn.ModuleList(Block() for _ in range(80))
        self.norm = nn.RMSNorm(8192)
        self.head = nn.Linear(8192, 32000, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def llama70b():
    return Llama(), torch.zeros(1, 2048, dtype=torch.int64, device="meta")
"""
"""A model of 68,976,648,192 parameters, in a file of its own."""

BERT = """
import torch
from torch import nn


def bert():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), torch.zeros(1, 128, 768)
"""


def said(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


# -- nn.Module


def ours(model: Any, image: Any) -> int:
    from explorer.engine.costs.torch.analyse import examine_module

    return int(examine_module(model, [image]).analysis.info.totals.macs or 0)


def _cold(model: Any, image: Any) -> int:
    from explorer.engine.costs.aten import meta_cache
    from explorer.engine.costs.torch import layer_cache

    meta_cache.clear_answers()
    layer_cache.forget()
    return ours(model, image)


def _ptflops(model: Any, image: Any) -> int:
    import ptflops

    with contextlib.redirect_stdout(io.StringIO()):
        macs, _ = ptflops.get_model_complexity_info(
            model,
            tuple(image.shape[1:]),
            backend="aten",
            as_strings=False,
            print_per_layer_stat=False,
            input_constructor=lambda shape: image,
        )
    return int(macs)


def _torchinfo(model: Any, image: Any) -> int:
    import torchinfo

    return int(torchinfo.summary(model, input_data=image, verbose=0, device=image.device).total_mult_adds)


def _fvcore(model: Any, image: Any) -> int:
    from fvcore.nn import FlopCountAnalysis

    counted = FlopCountAnalysis(model, image)
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    return int(counted.total())


def _flop_counter(model: Any, image: Any) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return int(counter.get_total_flops()) // 2


PEERS: dict[str, tuple[str, str, Callable[[Any, Any], int]]] = {
    "ptflops": ("ptflops", "meta", _ptflops),
    "torchinfo": ("torchinfo", "meta", _torchinfo),
    "fvcore": ("fvcore", "cpu", _fvcore),
    "torch's flop counter": ("torch", "meta", _flop_counter),
}
"""Package, device of the model, and how to count, by name."""


def _biases(model: Any, image: Any) -> int:
    """Elements that a bias is added to: one of them is a MAC for ptflops, an addition for us."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal found
            out = func(*args, **(kwargs or {}))
            name = func._schema.name
            if name == "aten::addmm" or (name == "aten::convolution" and args[2] is not None):
                found += out.numel()
            return out

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), Counting():
            model(image)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return found


CONVENTIONS: dict[str, tuple[str, Callable[[Any, Any], int]]] = {
    "ptflops": ("adding a bias counts as a MAC", _biases),
}
"""Why the number of a program that is right is not ours, and by how many MACs it must differ."""


def _built(name: str, device: str) -> tuple[Any, Any]:
    import torch
    import torchvision

    with torch.device(device):
        options = {"weights_backbone": None} if name.startswith(("deeplab", "fcn", "lraspp")) else {}
        model = torchvision.models.get_model(name, weights=None, **options).eval()
        return model, torch.zeros(1, 3, 224, 224)


def compare(name: str, rounds: str) -> dict[str, Any]:
    """Seconds of every program on one model, in turns; MACs, and whether they are right."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    programs: dict[str, tuple[str, Callable[[Any, Any], int]]] = {
        "ours": ("meta", ours),
        "cold": ("meta", _cold),
    }
    missing = []
    for peer, (package, device, count) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            missing.append(peer)
        else:
            programs[peer] = device, count
    seconds: dict[str, list[float]] = {program: [] for program in programs}
    macs: dict[str, int | str] = {}
    failed: dict[str, str] = {}
    for turn in range(int(rounds) + 1):
        for program, (device, count) in programs.items():
            # what runs on values takes seconds; twice says enough
            if program in failed or (device == "cpu" and turn > 1):
                continue
            model, image = _built(name, device)
            started = time.perf_counter()
            try:
                macs[program] = count(model, image)
            except Exception as error:
                failed[program] = f"{type(error).__name__}: {error}".splitlines()[0]
            elapsed = time.perf_counter() - started
            if turn:  # the first turn pays for imports
                seconds[program].append(elapsed)
    right = {}
    for program in macs:
        reason, difference = CONVENTIONS.get(program, ("", lambda model, image: 0))
        off = int(macs[program]) - int(macs["ours"])
        explained = off == 0 or (off != 0 and off == difference(*_built(name, "meta")))
        right[program] = (reason if off else "equal") if explained else ""
    return {
        "seconds": {p: statistics.median(s) for p, s in seconds.items() if s},
        "macs": macs,
        "right": right,
        "failed": failed,
        "missing": missing,
    }


def torch_models(rounds: int) -> Iterator[Line]:
    """Rows for every model: ours with and without memory, against the fastest peer that is right."""
    for name in MODELS:
        seen = measured("compare", name, str(2 * rounds + 1))
        for peer in seen["missing"]:
            print(f"{name}: {peer} is not installed (pip install 'explorer-nn[bench]')", file=sys.stderr)
        for peer, why in seen["failed"].items():
            print(f"{name}: {peer} fails: {why}", file=sys.stderr)
        rivals = {}
        for peer, took in seen["seconds"].items():
            if peer in ("ours", "cold"):
                continue
            right = seen["right"][peer]
            off = seen["macs"][peer] - seen["macs"]["ours"]
            verdict = f"right: {right}" if right else f"not right by {off:+,} MACs"
            print(f"{name}: {peer} {said(took)}, {verdict}", file=sys.stderr)
            if right:
                rivals[peer] = took
        fastest = min(rivals, key=lambda peer: rivals[peer])
        other = f"{said(rivals[fastest])} {fastest}"
        for label, must in (("ours", 0.25), ("cold", 0.5)):
            took = seen["seconds"][label]
            text = f"{name}: analysis{', nothing remembered' if label == 'cold' else ''}"
            yield text, said(took), other, must, took / rivals[fastest]


# -- a whole process


def process(folder: Path, rounds: int) -> Iterator[Line]:
    """The analysis of a 70B model from nothing, against `import torch`."""
    path = folder / "llama_shape.py"
    path.write_text(LLAMA)
    commands = (
        [sys.executable, "-c", "import torch"],
        [sys.executable, "-m", "explorer", "info", f"{path}:llama70b"],
    )
    taken: tuple[list[float], ...] = ([], [])
    for _ in range(2 * rounds + 1):
        for command, seconds in zip(commands, taken, strict=True):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
            seconds.append(time.perf_counter() - started)
    theirs, own = (min(seconds) for seconds in taken)
    yield "Llama 70B: explorer info / import torch", said(own), said(theirs), 1.6, own / theirs


# -- ONNX


def onnx_ours(path: str, again: str = "3") -> dict[str, Any]:
    """One file from its path to its totals, all shapes and costs known; the first call pays for imports."""
    from explorer import Session

    def work() -> None:
        with Session(path) as session:
            assert session.info().totals.nodes

    return {"seconds": _fastest(work, int(again))}


def onnx_rows(path: str, again: str = "3") -> dict[str, Any]:
    """The same, and the facts of every layer as rows of a tree."""
    from explorer import Session

    def work() -> None:
        with Session(path) as session:
            assert session.analysis().layers

    return {"seconds": _fastest(work, int(again))}


def onnx_tool(path: str, again: str = "3") -> dict[str, Any]:
    """The same by onnx-tool."""
    import onnx_tool

    def work() -> None:
        model = onnx_tool.Model(path, {"verbose": False})
        model.graph.shape_infer()
        model.graph.profile()

    with contextlib.redirect_stdout(io.StringIO()):
        return {"seconds": _fastest(work, int(again))}


def onnx_itself(path: str, again: str = "3") -> dict[str, Any]:
    """Loading and shape inference by onnx itself."""
    import onnx
    from onnx import shape_inference

    return {"seconds": _fastest(lambda: shape_inference.infer_shapes(onnx.load(path)), int(again))}


def _fastest(work: Callable[[], Any], again: int) -> float:
    seconds = []
    for _ in range(again + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def encoder(folder: Path) -> Path:
    """A BERT-like encoder of 12 layers, 768 wide, at 128 tokens, exported when it is first asked for."""
    source, made = folder / "encoder_shape.py", folder / "encoder.onnx"
    source.write_text(BERT)
    if not made.exists():
        code = "import sys; from explorer import Session; Session(sys.argv[1]).save(sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, f"{source}:bert", str(made)], check=True, cwd=ROOT)
    return made


def onnx_files(models: Callable[[str], Path], folder: Path, rounds: int) -> Iterator[Line]:
    """Every file against onnx-tool."""
    if importlib.util.find_spec("onnx_tool") is None:
        print("onnx-tool is not installed (pip install 'explorer-nn[bench]')", file=sys.stderr)
        return
    names = ("alexnet", "resnet18", *MODELS) if importlib.util.find_spec("torchvision") is not None else ()
    files = [models(name) for name in names]
    for path in (*files, encoder(folder), *sorted((ROOT / "sample_models").glob("*.onnx"))):
        try:
            theirs, own = _turns(("onnx_tool", "onnx_ours"), path, rounds)
        except RuntimeError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        yield f"{path.name}: totals / onnx-tool", said(own), said(theirs), 0.2, own / theirs


def onnx_large(folder: Path, rounds: int) -> Iterator[Line]:
    """A graph of 20,000 nodes against onnx's own loading and shape inference."""
    path = folder / "large.onnx"
    if not path.exists():
        large_graph(path, 20_000)
    theirs, own = _turns(("onnx_itself", "onnx_ours"), path, rounds)
    yield "20,000 nodes: totals / onnx load + infer_shapes", said(own), said(theirs), 1.5, own / theirs
    rows = measured("onnx_rows", str(path))["seconds"]
    yield "20,000 nodes: totals and every row / the same", said(rows), said(theirs), 5.0, rows / theirs


def _turns(works: tuple[str, str], path: Path, rounds: int) -> tuple[float, float]:
    taken: tuple[list[float], ...] = ([], [])
    for _ in range(rounds):
        for work, seconds in zip(works, taken, strict=True):
            seconds.append(measured(work, str(path))["seconds"])
    first, second = (min(seconds) for seconds in taken)
    return first, second


def large_graph(path: Path, nodes: int) -> None:
    """A chain of convolutions, activations, sums and products with scoped names, as an exporter writes it."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights, made, layer = [], [], 0

    def weight(name: str, *shape: int) -> str:
        values = random.standard_normal(shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def add(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        made.append(helper.make_node(kind, inputs, [output], name=f"/{output}", **attributes))
        return output

    value = "image"
    while len(made) + 8 <= nodes:
        scope = f"stages.{layer // 16}/block.{layer % 16}"
        kernel = weight(f"{scope}.conv.weight", 8, 8, 3, 3)
        bias = weight(f"{scope}.conv.bias", 8)
        skip = value
        value = add(
            "Conv", [value, kernel, bias], f"{scope}/conv/Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )
        value = add("Relu", [value], f"{scope}/act/Relu")
        value = add("Add", [value, skip], f"{scope}/Add")
        matrix = weight(f"{scope}.mix.weight", 16, 16)
        value = add("MatMul", [value, matrix], f"{scope}/mix/MatMul")
        value = add("Sigmoid", [value], f"{scope}/gate/Sigmoid")
        value = add("Mul", [value, skip], f"{scope}/Mul")
        value = add("Transpose", [value], f"{scope}/Transpose", perm=[0, 1, 3, 2])
        value = add("Relu", [value], f"{scope}/last/Relu")
        layer += 1
    while len(made) < nodes:
        value = add("Relu", [value], f"tail/Relu_{len(made)}")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 8, 16, 16])
    result = helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 8, 16, 16])
    graph = helper.make_graph(made, "large", [image], [result], weights)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


# -- one measurement


def measured(what: str, *words: str) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "tests.bench.analysis", what, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


WORK: dict[str, Callable[..., dict[str, Any]]] = {
    "compare": compare,
    "onnx_ours": onnx_ours,
    "onnx_rows": onnx_rows,
    "onnx_tool": onnx_tool,
    "onnx_itself": onnx_itself,
}

if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](*sys.argv[2:])))
