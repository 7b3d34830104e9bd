"""The verbs of the command line, declared once: what each is for, what it takes, how it is typed.

Help, complaints and a test of the README derive from here. Every start of the program reads this table, so it
is made of plain classes.
"""

from __future__ import annotations

from explorer.cli.arguments.options import OPTIONS, SEVERAL_SIZES, SWEPT, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MODEL_HELP", "SCREEN", "VERBS", "Verb"]

MODEL_HELP = (
    "a model's file or folder (explorer formats lists the kinds), the name of a\ntorchvision model, or"
    " package.module:callable that returns an nn.Module"
)


class Verb:
    """One verb: what it is for, what it takes, how it is typed.

    Args:
        summary: What it is for.
        models: What stands for each in the help; a last '...' means one or more of the kind before it,
            and one in brackets may be left out.
        options: Flags of those that it takes.
        examples: Commands to show.
        needs: Options without which it cannot answer.
        own: Options that it reads in a way of its own, in place of those of the same flag.
    """

    __slots__ = ("examples", "models", "needs", "options", "own", "summary")

    def __init__(
        self,
        summary: str,
        models: tuple[str, ...],
        options: tuple[str, ...],
        examples: tuple[str, ...],
        needs: tuple[str, ...] = (),
        own: Sequence[Option] = (),
    ) -> None:
        self.summary = summary
        self.models = models
        self.options = options
        self.examples = examples
        self.needs = needs
        self.own = {option.flag: option for option in own}

    def option(self, flag: str) -> Option:
        """One of its options."""
        return self.own.get(flag) or OPTIONS[flag]


_TILING = ("--tile", "--site", "--edges", "--form", "--grouped", "--config")

_OPENING = (
    "--dim",
    "--input-shape",
    "--weights",
    "--trust",
    "--rules",
    "--observe",
    "--decode",
    "--past",
    "--memory",
)
_MACHINE = ("--machine", "--peak-macs", "--bandwidth")
_PRINTING = ("--json", "--quiet", "--version", "--help")
_TABLE = ("--csv", *_PRINTING)

VERBS: dict[str, Verb] = {
    "info": Verb(
        "totals: parameters, MACs, memory, bytes moved",
        ("MODEL",),
        (*_OPENING, *_PRINTING),
        (
            "explorer info resnet18",
            "explorer info model.onnx --dim batch=8 --dim sequence=128",
            "explorer info model.onnx --input-shape x:1,3,224,224 --json",
        ),
    ),
    "outline": Verb(
        "what a file's header says, at once: modules, operators, tensors",
        ("MODEL",),
        ("--memory", *_PRINTING),
        (
            "explorer outline model.onnx",
            "explorer outline model.safetensors --json",
            "explorer outline models/",
        ),
    ),
    "formats": Verb(
        "what can be opened; or which models are in a folder, MODEL",
        ("[MODEL]",),
        ("--memory", *_PRINTING),
        ("explorer formats", "explorer formats models/ --json"),
    ),
    "layers": Verb(
        "the tree of layers, each with its shapes and its cost",
        ("MODEL",),
        ("--style", "--compare", *_OPENING, *_TABLE),
        (
            "explorer layers alexnet",
            "explorer layers model.onnx --json",
            "explorer layers resnet18 --style torchinfo --compare",
        ),
    ),
    "ops": Verb(
        "what each operator type costs, and the values its attributes take",
        ("MODEL",),
        (*_OPENING, *_TABLE),
        ("explorer ops googlenet", "explorer ops model.onnx --csv"),
    ),
    "memory": Verb(
        "activation memory step by step, its peak, and the smallest arena",
        ("MODEL",),
        (*_OPENING, *_TABLE),
        ("explorer memory resnet18", "explorer memory model.onnx --dim batch=8 --csv"),
    ),
    "roofline": Verb(
        "which layers compute limits, which memory, and the least time",
        ("MODEL",),
        (*_MACHINE, *_OPENING, *_TABLE),
        (
            "explorer roofline resnet18 --peak-macs 4T --bandwidth 100GB/s",
            "explorer roofline model.onnx --machine npu --json",
        ),
    ),
    "training": Verb(
        "one training step: backward MACs, gradients, optimizer, activations",
        ("MODEL",),
        ("--batch", "--optimizer", *_OPENING, *_TABLE),
        ("explorer training resnet18 --batch 32 --optimizer adam",),
    ),
    "weights": Verb(
        "values of stored tensors: range, mean, zeros, quantiles, duplicates",
        ("MODEL",),
        ("--layer", "--bins", *_OPENING, *_TABLE),
        ("explorer weights model.onnx", "explorer weights resnet18 --layer '*conv1*' --json"),
    ),
    "activations": Verb(
        "runs the model and shows the values that its layers put out",
        ("MODEL",),
        ("--layer", "--input", "--seed", "--output", "--force", "--bins", *_OPENING, *_TABLE),
        (
            "explorer activations model.onnx",
            "explorer activations resnet18 --layer 'layer1*' --input image.npy -o values.npz",
        ),
    ),
    "compare": Verb(
        "totals of two models or more side by side, and why they differ",
        ("M1", "M2", "..."),
        (*_OPENING, *_TABLE),
        ("explorer compare resnet18 resnet18.onnx", "explorer compare a.onnx b.onnx c.onnx --json"),
    ),
    "plot": Verb(
        "a picture, as SVG or PNG: memory over time, roofline, operators",
        ("MODEL",),
        ("--what", "--output", "--force", *_MACHINE, *_OPENING, *_PRINTING),
        (
            "explorer plot resnet18 -o memory.svg",
            "explorer plot resnet18 --what roofline --peak-macs 4T --bandwidth 100GB/s -o roof.png",
        ),
        needs=("--output",),
    ),
    "report": Verb(
        "one page with everything, as HTML or Markdown",
        ("MODEL",),
        ("--output", "--force", "--batch", "--optimizer", *_MACHINE, *_OPENING, *_PRINTING),
        ("explorer report resnet18 -o resnet18.html", "explorer report model.onnx -o model.md"),
        needs=("--output",),
    ),
    "plan": Verb(
        "what a tiling would cost: traffic by loop order, buffers, cycles, time",
        ("MODEL",),
        (
            *_TILING,
            *("--profile", "--order", "--formulas"),
            *_OPENING,
            *_TABLE,
        ),
        (
            "explorer plan alexnet --profile npu.toml",
            "explorer plan model.onnx --tile 32x64x32 --edges padded --order output-stationary",
            "explorer plan model.onnx --site '*fc1*' --formulas",
        ),
    ),
    "tile": Verb(
        "tile matrix products, prove that nothing changed, write the result",
        ("MODEL",),
        (
            "--output",
            *_TILING,
            *("--to", "--dynamic", "--force", "--no-verify", "--draws", "--seed", "--input"),
            *_OPENING,
            *_PRINTING,
        ),
        (
            "explorer tile alexnet                                          (only the plan)",
            "explorer tile alexnet -o alexnet_tiled.onnx",
            "explorer tile model.onnx -o tiled.onnx --tile 32x64x32 --edges padded",
            "explorer tile model.onnx -o tiled.onnx --site '*classifier*' --form lab",
            "explorer tile model.onnx -o tiled.onnx --config npu.toml",
            "explorer tile resnet18 --to torch -o tiled.pt2 --dynamic x:0=batch",
        ),
    ),
    "sweep": Verb(
        "many tilings side by side: cost, proof, and which of them nothing beats",
        ("MODEL", "..."),
        (
            *(
                "--tile",
                "--tile-m",
                "--tile-k",
                "--tile-n",
                "--edges",
                "--form",
                "--site",
                "--grouped",
                "--config",
            ),
            *("--profile", "--order", "--verify", "--draws", "--seed", "--output", "--sort"),
            *("--workers", "--scheduler", "--scalesim", "--force"),
            *_OPENING,
            *_TABLE,
        ),
        (
            "explorer sweep alexnet --tile 16,32,64,128 --profile npu.toml",
            "explorer sweep model.onnx --tile-m 16,64 --tile-k 16,64 --tile-n 16,64 -o results.db",
            "explorer sweep a.onnx b.onnx --tile 32,64 --edges ragged,padded --verify -o results.db",
            "explorer sweep results.db --sort cycles --csv        (what a file of results holds)",
        ),
        own=SWEPT,
    ),
    "settings": Verb(
        "how each product would be tiled, and who said so: file, command line",
        ("MODEL",),
        ("--config", "--tile", "--site", "--edges", "--form", "--grouped", *_OPENING, *_TABLE),
        (
            "explorer settings model.onnx --config npu.toml",
            "explorer settings model.onnx --config npu.toml --edges padded --json",
        ),
    ),
    "history": Verb(
        "what was done in a session whose line was dropped; -o keeps it as a script",
        ("[MODEL]",),
        ("--output", "--force", "--memory", *_PRINTING),
        ("explorer history", "explorer history model.onnx -o model.sh", "explorer history --json"),
    ),
    "convert": Verb(
        "write a model as another kind of file, and show that it is the same",
        ("MODEL",),
        (
            *("--output", "--exporter", "--opset", "--input-names", "--output-names", "--dynamic"),
            *("--method", "--force", "--no-verify", "--draws", "--seed"),
            *_OPENING,
            *_PRINTING,
        ),
        (
            "explorer convert resnet18 -o resnet18.onnx --dynamic x:0=batch",
            "explorer convert my.module:Net -o net.onnx --exporter dynamo --opset 20",
            "explorer convert model.pt2 -o model.pt",
            "explorer convert checkpoint.pth -o model.safetensors",
            "explorer convert model.tflite -o model.onnx",
        ),
        needs=("--output",),
    ),
    "verify": Verb(
        "evidence that two models compute the same",
        ("A", "B"),
        ("--draws", "--seed", "--input", "--atol", "--rtol", "--snr", *_OPENING, *_PRINTING),
        (
            "explorer verify alexnet alexnet_tiled.onnx",
            "explorer verify a.onnx b.onnx --draws 10 --seed 7 --json",
            "explorer verify a.onnx b.onnx --dim seq=5,16,64",
            "explorer verify model.onnx quantized.onnx --input photos.npz --snr 30",
        ),
        own=(SEVERAL_SIZES,),
    ),
    "blame": Verb(
        "the first layer in which two models part, and how the error grows",
        ("A", "B"),
        ("--draws", "--seed", "--input", "--limit", "--plot", "--force", *_OPENING, *_TABLE),
        (
            "explorer blame model.onnx quantized.onnx",
            "explorer blame alexnet alexnet_tiled.onnx --plot growth.svg",
            "explorer blame a.onnx b.onnx --draws 10 --json",
        ),
        own=(SEVERAL_SIZES,),
    ),
    "diff": Verb(
        "what changed from one graph to another, node by node, and in cost",
        ("A", "B"),
        (*_OPENING, *_PRINTING),
        ("explorer diff alexnet alexnet_tiled.onnx", "explorer diff a.onnx b.onnx --json"),
    ),
}

SCREEN = Verb(
    "Look inside a neural network, tile its matrix products to the size that hardware can do,\n"
    "prove numerically that nothing changed, and see what changed in the graph.",
    ("MODEL",),
    (*_OPENING, "--resume", "--remote", "--quiet", "--version", "--help"),
    (
        "explorer alexnet",
        "explorer --resume",
        "explorer sample_models/lenet.onnx",
        "explorer tile alexnet -o alexnet_tiled.onnx",
        "explorer diff alexnet alexnet_tiled.onnx",
    ),
)
