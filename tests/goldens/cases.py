"""The cases: groups of command lines, each group run in order in a folder of its own.

A line of a table says by its letters how a command is run: t for text, j with --json, c with --csv.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SAMPLES = sorted(p.stem for p in (ROOT / "sample_models").glob("*.onnx"))
SIZES = dict.fromkeys(("bert_tiny", "lstm_tiny"), "--dim batch=2 --dim sequence=16")
"""Of what a sample model leaves open."""
PROVED = ("bert_tiny", "jsc_tiny", "lenet", "mobilenet_small")
"""Of which proofs and pictures are printed in every way."""
MODELS = ("alexnet", "googlenet", "mobilenet_v2", "resnet18", "squeezenet1_1", "vit_b_16")

LIGHT = (
    "numpy",
    "onnx",
    "onnxruntime",
    "ml_dtypes",
    "msgspec",
    "rich.console",
    "textual.app",
    "textual.pilot",
)
LIGHT += ("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
LIGHT += ("jinja2", "onnx.reference", "onnx.shape_inference", "tomlkit")
TORCH = (*LIGHT, "torch", "torchvision", "torch.export", "torch.onnx", "torch._dynamo", "onnxscript")
TORCH += ("torchinfo", "torch.jit", "safetensors")
"""What is imported before the forks: other people's packages, never our own."""

VOLATILE = (
    (r"goldens-[\w]{8}", "goldens"),
    (r"\b\d{8}-\d{6}-\w+", "<SESSION>"),
    (r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "<DATE>"),
    (r"explorer 0\.\d+\.\d+", "explorer <VERSION>"),
)
"""What differs from run to run, and what stands for it."""

MACHINES = """
[machine.npu]
peak_macs = "4T"
bandwidth = "100GB/s"

[machine.array]
macs_per_cycle = 4096
bytes_per_cycle = 64
clock = "1 GHz"
buffer = "512 KiB"
array = "64x64"
double_buffered = true
"""
RULES = """
[tile]
tile = 32

[[site]]
op = "Gemm"
tile = "16x32x16"
edges = "padded"

[[site]]
op = "Conv"
shape = "M>=64 N<=8"
on = false
"""
OWN = """
from explorer.rules import Call, Cost, matmul, rule


@rule("MatMul")
def ours(call: Call) -> Cost:
    return matmul(call.shape(0), call.shape(1))
"""

LOOK = """
tj info {m}
tjc layers {m}
tjc ops {m}
tjc memory {m}
tjc roofline {m} --machine npu
tj roofline {m} --peak-macs 2T --bandwidth 50GB/s
tjc training {m} --batch 4 --optimizer adam
tj training {m}
tjc plan {m} --profile array
tj plan {m} --tile 32x64x16 --edges padded --order output-stationary --formulas
j plan {m} --grouped pack --tile 16 --order mnk
tj tile {m} --tile 32
tjc settings {m} --config rules.toml
"""
VALUES = """
tj outline {m}
tjc weights {m}
tjc activations {m} -o values.npz --force
j activations {m} --seed 3 --bins 8
"""
PICTURES = """
t report {m} -o report.html --machine npu
t report {m} -o report.md --machine npu --batch 2
tj plot {m} -o memory.svg --force
t plot {m} --what roofline --machine npu -o roofline.svg
t plot {m} --what operators -o operators.png
"""
TILE = """
tj tile {m} -o tiled.onnx --force
j tile {m} -o padded.onnx --tile 16x32x16 --edges padded --form unrolled
j tile {m} -o batched.onnx --tile 32 --form batched --no-verify
j tile {m} -o scan.onnx --tile 32 --form scan --no-verify
j tile {m} -o packed.onnx --tile 16 --grouped pack --no-verify
tj info tiled.onnx
tjc layers tiled.onnx
tj outline tiled.onnx
tc ops tiled.onnx
j memory tiled.onnx
t plan tiled.onnx
j verify {m} tiled.onnx --draws 2 --seed 5
tj diff {m} tiled.onnx
j diff tiled.onnx padded.onnx
j blame {m} padded.onnx
tjc compare {m} tiled.onnx padded.onnx
tjc sweep {m} --tile 16,64 --profile array --workers 1
"""
PROVE = """
t tile {m} -o ruled.onnx --config rules.toml
t verify {m} tiled.onnx
t verify {m} packed.onnx
tc blame {m} tiled.onnx
j blame {m} packed.onnx --limit 3 --plot blame.svg
j sweep {m} --tile 32 --edges ragged,padded --verify --workers 1 -o rows.db
tc sweep rows.db --sort traffic
t sweep {m} --tile-m 16,32 --tile-k 64 --tile-n 16 --scalesim gemm.csv --workers 1
t convert {m} -o again.onnx
"""
OPEN = """
j tile {m} -o tiled.onnx --tile 32
t verify {m} tiled.onnx
t diff {m} tiled.onnx
"""
MODULE = """
tj info {m}
tjc layers {m}
j ops {m}
j memory {m}
t roofline {m} --machine npu
j training {m} --batch 8 --optimizer momentum
j info {m} --input-shape x:2,3,256,256
t outline {m}
"""
EXPORTED = """
t convert {m} -o {m}.onnx --no-verify
t info {m}.onnx
j layers {m}.onnx
tj plan {m}.onnx --profile array
j memory {m}.onnx
j tile {m}.onnx -o tiled.onnx
tj diff {m}.onnx tiled.onnx
"""
CONVERT = """
t convert {m} -o out.onnx --dynamic x:0=batch
j convert {m} -o script.onnx --exporter torchscript --opset 17
tj convert {m} -o out.pt2 --force
tj convert {m} -o out.pt --force
j convert out.onnx -o back.pt --dim batch=1
j convert out.pt2 -o back.onnx
t convert {m} -o renamed.onnx --input-names image --output-names scores
tj info out.pt2
tj info out.pt
tj outline out.pt2
t outline out.pt
j layers out.pt2
j layers out.pt
j tile {m} -o tiled.onnx --tile 32
tj verify {m} tiled.onnx
t diff {m} tiled.onnx
j blame {m} tiled.onnx --limit 4
t compare {m} out.onnx
t activations {m} --layer '*0*'
tj weights {m} --layer '*0*'
j tile {m} --to torch -o module.pt2 --dynamic x:0=batch
t tile {m} --to torch -o module.pt
j info torchvision.models:{m}
t layers {m} --style torchinfo --compare
"""
TENSORS = """
tj outline {m}
tj info {m}
tjc layers {m}
tjc weights {m}
t ops {m}
t tile {m}
"""
FILES = {
    "small.safetensors": "tj convert {m} -o out.pt --force",
    "small.pt": "tj convert {m} -o out.safetensors --force",
    "small.gguf": "t convert {m} -o out.safetensors",
    "convolutions.tflite": "tj memory {m}\nj roofline {m} --machine npu\nj training {m}",
    "lstm.tflite": "j memory {m}\nt tile {m} -o out.onnx",
}
"""Kinds of files, and what is asked of each beside TENSORS."""
BAD = """
tj info missing.onnx
t info lenet.onn
t infoo lenet.onnx
t lenet.onnx
t
t --resume
t info
t info lenet.onnx lenet.onnx
t info lenet.onnx --nonsense
t info lenet.onnx --dim
t info lenet.onnx --dim batch
t info lenet.onnx --dim batch=0
t info lenet.onnx --dim batch=4
t info bert_tiny.onnx --dim batch=x
t info lenet.onnx --input-shape input:1,3,28,28
t info lenet.onnx --input-shape nothing:1,3
t info lenet.onnx --decode
t info lenet.onnx --decode --past 4
t info lenet.onnx --rules own.py
t info lenet.onnx --memory 1
t info lenet.onnx --csv
t info rules.toml
t info empty.onnx
t info .
t info nosuch.module:Net
t info torchvision.models:nothing
t layers lenet.onnx --style nonsense
t roofline lenet.onnx
t roofline lenet.onnx --machine nothing
t roofline lenet.onnx --peak-macs fast --bandwidth 1GB/s
t training lenet.onnx --optimizer magic
t training lenet.onnx --batch 0
t weights lenet.onnx --layer nothing
t weights lenet.onnx --bins 0
t activations lenet.onnx --input missing.npy
t activations lenet.onnx --input lenet.onnx
t activations lenet.onnx -o nowhere/out.npz
t compare lenet.onnx
t plot lenet.onnx
t plot lenet.onnx -o out.jpg
t plot lenet.onnx --what nothing -o out.svg
t report lenet.onnx -o out.pdf
t plan lenet.onnx --tile 0
t plan lenet.onnx --tile 8x8
t plan lenet.onnx --site nothing
t plan lenet.onnx --profile nothing
t plan lenet.onnx --order sideways
tj tile lenet.onnx -o lenet.onnx
t tile lenet.onnx -o jsc_tiny.onnx
t tile lenet.onnx -o nowhere/out.onnx
t tile lenet.onnx -o out.onnx --config missing.toml
t tile lenet.onnx -o out.onnx --config machines.toml
t tile lenet.onnx -o out.onnx --edges round
t tile lenet.onnx --to torch -o out.pt2
t sweep lenet.onnx --tile 0,1
t sweep lenet.onnx --sort nothing
t sweep missing.db --sort cycles
t settings lenet.onnx --config missing.toml
t history
t history nothing.onnx
t history -o out.sh
t convert lenet.onnx
t convert lenet.onnx -o out.xyz
t convert missing.pt -o out.onnx
tj verify lenet.onnx mlp_128.onnx
t verify lenet.onnx
t verify lenet.onnx lenet.onnx --draws 0
t verify lenet.onnx lenet.onnx --snr x
tj blame lenet.onnx mlp_128.onnx
tj diff lenet.onnx mlp_128.onnx
t diff lenet.onnx missing.onnx
"""
OTHERS = """
t --version
tj formats
tj formats .
tj outline .
t .
t info lenet.onnx --quiet
t info mlp_128.onnx --rules own.py --trust
t info lenet.onnx --observe
tj verify lenet.onnx lenet.onnx
t verify lenet.onnx lenet.onnx --atol 0.1 --rtol 0.1
t verify lenet.onnx lenet.onnx --snr 30
tj verify bert_tiny.onnx bert_tiny.onnx --dim batch=1,2 --dim sequence=5,16
tj compare lenet.onnx jsc_tiny.onnx bert_tiny.onnx
tj diff jsc_tiny.onnx jsc_tiny_x10.onnx
t layers lenet.onnx --style torchinfo
tj plan lenet.onnx --site '*fc1*' --formulas
tj plan mobilenet_small.onnx --grouped pack --tile 32
tj settings lenet.onnx
tj settings lenet.onnx --config rules.toml --edges padded
tjc sweep lenet.onnx jsc_tiny.onnx --tile 16,32 --sort products --workers 1
t tile lenet.onnx -o fc.onnx --site '*fc*' --form lab
tj blame lenet.onnx fc.onnx
"""

PAGES = {
    "tabs": "down down | 2 | 3 | 3 down enter | 5 | right right p | 6 | m | enter | down down | T",
    "tree": "minus | down right right | G | c c s | slash c o n v enter | escape | z | tab z | n | f | e",
    "dialogs": "a | escape b | escape D | escape x | escape W | escape w | escape K | escape colon",
    "help": "question_mark | pagedown | escape H",
    "tile": "t | 3 2 | escape t enter | enter | 4 down down | d | G up i | right down right_square_bracket",
    "change": "t enter escape | v | escape H | down c up c | escape escape B | n i | escape escape u r",
    "sweep": "S | enter | s s | f | x | r | p | n",
}
"""Keys that lead through the pages; a picture is taken at every bar."""
SHOWN = ("lenet", "mobilenet_small")
SCREENS = ("80x24", "140x40", "200x50")
DROPPED = """
t history
tj history lenet.onnx
t history lenet.onnx -o again.sh
"""


def expanded(table: str, model: str = "", more: str = "") -> list[str]:
    """The commands of a table, for a model; `more` are options that each gets."""
    found = []
    for line in table.strip().splitlines():
        letters, _, words = line.partition(" ")
        command = " ".join(filter(None, ["explorer", words.replace("{m}", model), more]))
        found += [command + {"t": "", "j": " --json", "c": " --csv"}[letter] for letter in letters]
    return found


VERBS = (
    "info outline formats layers ops memory roofline training weights activations compare plot report plan"
    " tile sweep settings history convert verify blame diff"
)


def groups() -> dict[str, list[str]]:
    """Every group and its commands; the long ones first, so that none is waited for at the end."""
    found: dict[str, list[str]] = {}
    for name in MODELS:
        found[f"exported-{name}"] = expanded(EXPORTED, name)
        found[f"torch-{name}"] = expanded(MODULE, name)
    found["convert-squeezenet1_1"] = expanded(CONVERT, "squeezenet1_1")
    for name in SAMPLES:
        file, sizes = f"{name}.onnx", SIZES.get(name, "")
        found[f"tile-{name}"] = expanded(TILE + (PROVE if name in PROVED else ""), file, sizes)
        found[f"look-{name}"] = expanded(LOOK + VALUES + (PICTURES if name in PROVED else ""), file)
        if sizes:
            found[f"sized-{name}"] = expanded(LOOK, file, sizes)
            found[f"open-{name}"] = expanded(OPEN, file)
    for name in SHOWN:
        for page, keys in PAGES.items():
            for size in SCREENS:
                found[f"screen-{page}-{size}-{name}"] = [f"screen {size} {name}.onnx '{keys}'"]
    found["dropped"] = ["screen 80x24 lenet.onnx 't enter escape drop'", *expanded(DROPPED)]
    for name, more in FILES.items():
        found[f"file-{name}"] = expanded(TENSORS + more, name)
    found["help"] = ["explorer --help", *(f"explorer {verb} --help" for verb in VERBS.split())]
    found["bad"] = expanded(BAD)
    found["others"] = expanded(OTHERS)
    found["hostile"] = [f"explorer {verb} {name}" for name in hostile() for verb in ("outline", "info")]
    return found


def needs_torch(group: str) -> bool:
    return group.split("-")[0] in ("exported", "torch", "convert")


# the files that the cases are run on

CORPUS = ("checkpoint", "gguf", "onnx", "program", "safetensors", "tflite", "torchscript")
EACH = 8


def hostile() -> list[str]:
    return [f"{kind}-{number}" for kind in CORPUS for number in range(EACH)]


def inputs() -> dict[str, bytes]:
    """What the archive keeps of files that are no sample models, as later runs must have the same."""
    import gguf
    import numpy as np
    import safetensors.numpy
    import torch

    made: dict[str, bytes] = {}
    for kind in CORPUS:
        found = sorted((ROOT / "tests/fuzz/corpus" / kind).iterdir())
        made |= {f"{kind}-{i}": found[i * len(found) // EACH].read_bytes() for i in range(EACH)}
    for name in ("convolutions", "lstm"):
        path = ROOT / "tests/engine/formats/tflite_models" / f"{name}.tflite"
        made[path.name] = path.read_bytes()
    rng = np.random.default_rng(0)
    values = {
        f"layers.{i}.{n}": rng.random((8, 32), np.float32) for i in range(3) for n in ("weight", "gate")
    }
    made["small.safetensors"] = safetensors.numpy.save(values, {"made": "for goldens"})
    buffer = io.BytesIO()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4))
    torch.manual_seed(0)
    torch.save({"epoch": 3, "model": net.state_dict()}, buffer)
    made["small.pt"] = buffer.getvalue()
    path = ROOT / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    for name, value in values.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if "gate" in name else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made["small.gguf"] = path.read_bytes()
    path.unlink()
    return made


def prepare(group: str, folder: Path, given: dict[str, bytes]) -> None:
    """Lays out what the commands of a group read."""
    for name, text in (
        ("machines.toml", MACHINES),
        ("rules.toml", RULES),
        ("own.py", OWN),
        ("empty.onnx", ""),
    ):
        (folder / name).write_text(text)
    for name in SAMPLES:
        shutil.copy(ROOT / "sample_models" / f"{name}.onnx", folder)
    if group.startswith(("file-", "hostile")):
        for name, data in given.items():
            (folder / name).write_bytes(data)
