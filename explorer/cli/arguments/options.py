"""The options of the command line, declared once: parsing, help and complaints derive from here.

Every start of the program reads these tables, so they are made of plain classes, and what reads a value
is imported when there is one to read.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

__all__ = ["OPTIONS", "SEVERAL_SIZES", "SWEPT", "Option"]

_EDGES = ("ragged", "padded")
_FORMS = ("auto", "lab", "scan", "unrolled", "batched")
_GROUPED = ("leave", "pack")
_OPTIMIZERS = ("sgd", "momentum", "adam")
_STYLES = ("tree", "torchinfo")
_PLOTS = ("memory", "roofline", "operators")
_EXPORTERS = ("torchscript", "dynamo")
_METHODS = ("trace", "script")
_TARGETS = ("onnx", "torch")
_SORTS = (
    *("asked", "cycles", "time", "traffic", "buffer", "products"),
    *("utilisation", "padded", "error", "pareto"),
)
_ORDERS = (
    *("best", "mnk", "nmk", "knm", "nkm", "mkn", "kmn"),
    *("output-stationary", "weight-stationary", "input-stationary"),
)


def _by(name: str, **how: Any) -> Callable[[Any], Any]:
    """A function of `explorer.settings.parse`, imported when it is needed."""

    def read(typed: Any) -> Any:
        from explorer.settings import parse

        return getattr(parse, name)(typed, **how)

    return read


def _one_of(flag: str, known: Sequence[str]) -> dict[str, Any]:
    """What an option that takes one of a few words has in common: its metavar and its reader."""
    return {"metavar": "|".join(known), "read": _by("parse_choice", known=known, where=flag)}


def _count(flag: str, least: int) -> Callable[[Any], Any]:
    """Reads a whole number."""
    return _by("parse_count", where=flag, least=least)


def _choice(flag: str, known: Sequence[str]) -> Callable[[str | None], str | None]:
    """Reads one of a few words, or nothing where nothing was typed."""
    read = _by("parse_choice", known=known, where=flag)
    return lambda typed: None if typed is None else read(typed)


def _sizes(flag: str) -> Callable[[Any], Any]:
    """Reads whole numbers between commas."""
    return _by("parse_sizes", where=flag)


def _some_of(flag: str, known: Sequence[str]) -> dict[str, Any]:
    """What an option that takes some of a few words has in common."""
    return {"metavar": ",".join(known), "read": _by("parse_choices", known=known, where=flag)}


class Option:
    """One option.

    Args:
        flag: Its long spelling; `short` is the other one, if any.
        help: What it is for.
        metavar: What stands for its value in the help; empty for a switch.
        default: Its value as the user would type it; None for nothing.
        many: It may be given several times.
        short: See `flag`.
        read: Turns what was typed (a list of it with `many`) into the value; not asked where nothing was
            typed and there is no default.
    """

    __slots__ = ("default", "flag", "help", "many", "metavar", "read", "short")

    def __init__(
        self,
        flag: str,
        help: str,
        metavar: str = "",
        default: str | None = None,
        many: bool = False,
        short: str = "",
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        self.flag = flag
        self.help = help
        self.metavar = metavar
        self.default = default
        self.many = many
        self.short = short
        self.read = read

    @property
    def key(self) -> str:
        """What its value is called among those of a command."""
        return self.flag[2:].replace("-", "_")


OPTIONS: dict[str, Option] = {
    option.flag: option
    for option in (
        Option(
            "--output",
            "where to write the result (tile: without it only the plan is shown)",
            "FILE",
            short="-o",
        ),
        Option(
            "--tile",
            "tile size, 64 or 64x64x64: rows x depth x columns (default 64x64x64)",
            "SIZE",
            "64x64x64",
            read=_by("parse_tile"),
        ),
        Option(
            "--site", "tile only the products whose name matches; repeatable", "GLOB", many=True, read=tuple
        ),
        Option(
            "--edges",
            "the last tile of an axis is smaller (ragged, default) or filled up with zeros (padded)",
            default="ragged",
            **_one_of("--edges", _EDGES),
        ),
        Option(
            "--form",
            "how tiles are written as ONNX (default auto: lab up to 256 tiles a product, scan above)",
            default="auto",
            **_one_of("--form", _FORMS),
        ),
        Option(
            "--grouped",
            "grouped and depthwise convolutions: left to the vector unit (default), or packed into tiles",
            default="leave",
            **_one_of("--grouped", _GROUPED),
        ),
        Option("--config", "a TOML file with tilings by site, operator or shape (see the README)", "FILE"),
        Option(
            "--to",
            "what to make: an ONNX file (default), or a PyTorch module whose layers are tiled",
            default="onnx",
            **_one_of("--to", _TARGETS),
        ),
        Option("--force", "overwrite FILE if it exists"),
        Option("--no-verify", "write without proving that nothing changed"),
        Option(
            "--draws",
            "how many random inputs to run (default 1; 3 for `convert`, `blame` and `tile --to torch`)",
            "N",
            read=_count("--draws", 1),
        ),
        Option(
            "--dim",
            "size of a symbolic dimension, such as batch=8; repeatable",
            "NAME=SIZE",
            many=True,
            read=_by("parse_dims"),
        ),
        Option(
            "--input-shape",
            "shape of an input, x:1,3,224,224 or x:[1,3,224,224] or x:f32:1x3x224x224; repeatable",
            "NAME:SHAPE",
            many=True,
            read=_by("parse_input_shapes"),
        ),
        Option(
            "--weights",
            "torchvision's trained weights, such as DEFAULT; otherwise random ones, always the same",
            "NAME",
        ),
        Option(
            "--seed",
            "seed of the first random input (default 0)",
            "S",
            "0",
            read=_count("--seed", 0),
        ),
        Option("--trust", "let code inside a model file, or in --rules, run"),
        Option("--rules", "a Python file with rules for operators of your own (needs --trust)", "FILE"),
        Option("--observe", "take shapes that inference cannot find from a run on random inputs"),
        Option("--decode", "cost of one decode step of a language model (needs --past)"),
        Option(
            "--past",
            "tokens in the key-value cache before the decode step",
            "N",
            read=_count("--past", 0),
        ),
        Option(
            "--style",
            "our own tree, or torchinfo's table made by torchinfo",
            default="tree",
            **_one_of("--style", _STYLES),
        ),
        Option("--compare", "where torchinfo's numbers are not ours, and which rule decides"),
        Option(
            "--layer", "only layers or tensors whose path matches; repeatable", "GLOB", many=True, read=tuple
        ),
        Option("--input", "a .npy or .npz file with the input; random otherwise", "FILE"),
        *(
            Option(flag, said, metavar, read=_by("parse_limit", where=flag))
            for flag, metavar, said in (
                (
                    "--atol",
                    "X",
                    "outputs may differ by X, of quantized models say; then only they are compared",
                ),
                ("--rtol", "X", "outputs may differ by X times the original's value, beside --atol"),
                ("--snr", "DB", "outputs need a signal to noise ratio of DB decibels or more"),
            )
        ),
        Option(
            "--bins",
            "intervals of a histogram (default 32)",
            "N",
            "32",
            read=_count("--bins", 1),
        ),
        Option(
            "--batch",
            "batch size (default: the model's own)",
            "N",
            read=_count("--batch", 1),
        ),
        Option(
            "--optimizer",
            "whose memory is counted (default sgd)",
            default="sgd",
            **_one_of("--optimizer", _OPTIMIZERS),
        ),
        Option("--machine", "a machine of the config file", "NAME"),
        Option("--peak-macs", "its multiply-accumulates per second, such as 4T", "RATE"),
        Option("--bandwidth", "its bytes per second, such as 100GB/s", "RATE"),
        Option(
            "--profile",
            "the machine that the cost is for: a name in the config file, or a TOML file of its own",
            "FILE|NAME",
        ),
        Option(
            "--order",
            "loops over tiles from the outermost in, such as mnk, or output-stationary; best (default) is\n"
            "the one with the least traffic at each site",
            "ORDER",
            "best",
            read=_by("parse_choice", known=_ORDERS, where="--order"),
        ),
        Option("--formulas", "how every figure of every site comes about"),
        Option("--what", "which picture (default memory)", default="memory", **_one_of("--what", _PLOTS)),
        Option(
            "--exporter",
            "which of torch's exporters writes ONNX (default: the one that works)",
            "|".join(_EXPORTERS),
            read=_choice("--exporter", _EXPORTERS),
        ),
        Option(
            "--opset",
            "version of ONNX's operators (default: what the exporter does best)",
            "N",
            read=_count("--opset", 1),
        ),
        Option(
            "--input-names",
            "names of the inputs in the ONNX file, in order, between commas",
            "A,B",
            read=_by("parse_names", where="--input-names"),
        ),
        Option(
            "--output-names",
            "names of the outputs in the ONNX file, in order, between commas",
            "A,B",
            read=_by("parse_names", where="--output-names"),
        ),
        Option(
            "--dynamic",
            "axes of an input that are left open, and their names, such as x:0=batch; repeatable",
            "NAME:AXIS=DIM",
            many=True,
            read=_by("parse_dynamic"),
        ),
        Option(
            "--method",
            "how TorchScript is made: traced with inputs (default), or compiled from source",
            "|".join(_METHODS),
            read=_choice("--method", _METHODS),
        ),
        Option("--tile-m", "rows of the tile, in place of --tile's", "SIZES", read=_sizes("--tile-m")),
        Option("--tile-k", "its depth, in place of --tile's", "SIZES", read=_sizes("--tile-k")),
        Option("--tile-n", "its columns, in place of --tile's", "SIZES", read=_sizes("--tile-n")),
        Option("--verify", "tile, write and prove each; the tiled files do not stay"),
        Option("--sort", "what the rows are sorted by (default: as asked)", **_one_of("--sort", _SORTS)),
        Option(
            "--workers",
            "processes to spread it over; 1 is this one (default: one a processor, where that pays)",
            "N",
            read=_count("--workers", 1),
        ),
        Option("--scheduler", "a Dask cluster that does it, all of it trusted: tcp://host:8786", "ADDRESS"),
        Option("--scalesim", "also write the products for SCALE-Sim (-i gemm)", "FILE"),
        Option(
            "--limit",
            "rows of the table (default 12)",
            "N",
            "12",
            read=_count("--limit", 1),
        ),
        Option("--plot", "also draw the error along the graph, as SVG or PNG", "FILE"),
        Option("--json", "the answer as JSON (a contract: see the README)"),
        Option("--csv", "the answer's table as CSV"),
        Option("--quiet", "only the answer and errors: no progress, no messages"),
        Option("--remote", "draw as over a slow line: no animation, no blinking"),
        Option("--resume", "take up a session whose line was dropped: MODEL's, or without one the newest"),
        Option(
            "--memory", "most memory that the work may take, such as 8G", "SIZE", read=_by("parse_memory")
        ),
        Option("--version", "print the version"),
        Option("--help", "print this help", short="-h"),
    )
}

SEVERAL_SIZES = Option(
    "--dim",
    "size of a symbolic dimension, or several, such as seq=5,16,64; repeatable: the first sizes are tried\n"
    "together, then the second ones, and so on; a name with fewer begins again",
    "NAME=SIZES",
    many=True,
    read=_by("parse_dim_sizes"),
)

SWEPT = (
    Option(
        "--tile",
        "tiles between commas, each one size or three (default 16,32,64,128)",
        "SIZES",
        read=_by("parse_tiles"),
    ),
    Option(
        "--edges",
        "which edges to try: ragged (default), padded, or both",
        default="ragged",
        **_some_of("--edges", _EDGES),
    ),
    Option("--form", "which forms to try (default auto)", default="auto", **_some_of("--form", _FORMS)),
    Option(
        "--output",
        "a file that keeps the rows (SQLite); the same command goes on where it was stopped",
        "FILE",
        short="-o",
    ),
    Option("--force", "overwrite --scalesim's FILE if it exists"),
)
"""Options that a sweep reads in a way of its own."""
