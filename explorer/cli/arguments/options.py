"""Options of the command line.

Parser, help, errors, completion, man page and README are generated from them. Options that several commands
share are in the table `OPTIONS`; those of one command are in the command's file. Every start of the program
reads the table. It therefore uses plain classes, and the parsers of values are imported on demand.
"""

from __future__ import annotations

from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def derive_key(flag: str) -> str:
    """Return the name of an option's attribute in `ParsedArgs`: its long flag with '_' for '-'."""
    return flag[2:].replace("-", "_")


@record
class Option:
    """An option of the command line.

    Attributes:
        flag: Long spelling, such as `--output`.
        help: Description for the help.
        metavar: Placeholder of the value; '' for a switch. With `choices`, '' becomes 'A|B|C'.
        default: Default value as the user would type it, or None.
        many: Whether the option may be repeated.
        collected_as: Name under which the values of several repeatable options are collected in typed order,
            each with its flag; '' to collect values per option.
        short: Short spelling, such as `-o`; '' for none.
        old: Old spelling that is still accepted but not documented; '' for none.
        parser: Parser of the value: 'tile' for `explorer.settings.parse.parse_tile`. It gets the typed word,
            or with `many` a list of words. '' becomes 'choice' with `choices`, and 'count' with `least`;
            without both, the word is the value.
        choices: Allowed values; empty for any.
        least: Minimum of an integer value, or None.
        declared: Declaration of the option in a record (`explorer.base.options`), which then parses the
            value; or None.
        manual: Description for the README (Markdown), if it differs from `help`.
    """

    flag: str
    help: str
    metavar: str = ""
    default: str | None = None
    many: bool = False
    collected_as: str = ""
    short: str = ""
    old: str = ""
    parser: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    manual: str = ""
    declared: Any = None

    def __post_init__(self) -> None:
        self.metavar = self.metavar or "|".join(self.choices)
        self.parser = self.parser or ("choice" if self.choices else "" if self.least is None else "count")
        self.manual = self.manual or self.help

    @property
    def key(self) -> str:
        """Name of the option's attribute in `ParsedArgs`."""
        return self.collected_as or derive_key(self.flag)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings of the option."""
        return tuple(filter(None, (self.short, self.flag, self.old)))

    @property
    def typed_choices(self) -> tuple[str, ...]:
        """Allowed values as a user types them. If the placeholder lists values, they replace `choices`."""
        return tuple(self.metavar.split("|")) if self.choices and "|" in self.metavar else self.choices

    def parse_value(self, typed: Any) -> Any:
        """Parse a typed word, or a list of words with `many`. None stays None; a switch stays a bool.

        Raises:
            Misuse: The value is invalid.
        """
        if self.declared is not None and typed is not None and self.metavar:
            from explorer.settings.option_values import read_option

            return read_option(self.declared, typed, self.flag)
        if not self.parser:
            return tuple(typed) if self.many else typed
        if typed is None:
            return None
        from explorer.settings import parse  # imported on demand: only typed options need a parser

        choices = {"choices": self.choices} if self.choices else {}
        minimum = {} if self.least is None else {"minimum": self.least}
        return getattr(parse, f"parse_{self.parser}")(typed, where=self.flag, **choices, **minimum)


WRITTEN = ("--output", "--plot", "--scalesim", "--take", "--junit")
"""Options with a path to write to. Other options with a FILE value read the file."""

OPENING = (
    *("--dim", "--input-shape", "--weights", "--weights-file", "--trust", "--rules", "--observe"),
    *("--decode", "--past", "--partial"),
    *("--memory", "--no-cache"),
)
MACHINE = ("--machine", "--peak-macs", "--bandwidth")

MACHINE_SETTINGS = (
    *("--peak-macs", "--bandwidth", "--macs-per-cycle", "--bytes-per-cycle", "--clock"),
    *("--buffer", "--array"),
    "--double-buffered",
)
PROVED = ("--force", "--no-verify", "--draws", "--seed")
PRINTING = ("--json", "--quiet", "--version", "--help")
TABLE = ("--csv", "--top", "--exact", *PRINTING)
"""Groups of options that several commands share. Each command that prints a table takes those of `TABLE`."""

OPTIONS: dict[str, Option] = {
    option.flag: option
    for option in (
        Option(
            "--output",
            "file to write the result to",
            "FILE",
            short="-o",
            manual="where to write the result; `sweep`: the file that keeps the rows",
        ),
        Option("--force", "overwrite the output if it exists"),
        Option(
            "--no-verify",
            "write without the proof",
            manual="write without the proof; `tile` then does not print what changed (`explorer diff` does)",
        ),
        Option(
            "--draws",
            "how many random inputs to run (default 1; 3 for `convert`, `blame` and `tile --to torch`)",
            "N",
            least=1,
        ),
        Option(
            "--dim",
            "size of a symbolic dimension, such as batch=8; repeatable",
            "NAME=SIZE",
            many=True,
            parser="dims",
            manual="size of a symbolic dimension, such as `batch=8`; repeatable; `verify` and `blame` try"
            " several: `seq=5,16,64`",
        ),
        Option(
            "--input-shape",
            "shape of an input, x:1,3,224,224 or x:[1,3,224,224] or x:f32:1x3x224x224; repeatable",
            "NAME:SHAPE",
            many=True,
            parser="input_shapes",
            manual="shape of an input: `x:1,3,224,224`, `x:[1,3,224,224]` or `x:f32:1x3x224x224`; repeatable."
            " A model with one input needs no name: `1,3,224,224`."
            " For a module, it replaces the shape that the example, configuration or first layer sets",
        ),
        Option(
            "--weights",
            "torchvision's trained weights, such as DEFAULT; otherwise random ones, always the same",
            "NAME",
            manual="torchvision's trained weights, such as `DEFAULT` (downloads them); without it weights are"
            " random, and the same every time",
        ),
        Option(
            "--weights-file",
            "weights for a module: a state_dict, .safetensors or a trainer's checkpoint; no code in it runs",
            "FILE",
            manual="weights for a module: a state_dict (`.pt`, `.pth`), `.safetensors` or a trainer's"
            " checkpoint (`.ckpt`). Prefixes that trainers add to names are removed, with a note;"
            " no code in it runs",
        ),
        Option("--seed", "seed of the first random input (default 0)", "S", "0", least=0),
        Option("--trust", "run the code inside a model file, or in --rules"),
        Option("--rules", "a Python file with rules for operators of your own (needs --trust)", "FILE"),
        Option("--observe", "take shapes that inference cannot find from a run on random inputs"),
        Option(
            "--shapes",
            "declare the inferred type and shape of every value in the written ONNX file",
            manual="declare the inferred type and shape of every value in the written ONNX file, as `infer`"
            " does",
        ),
        Option("--partial", "if the model's code fails, use the figures up to the failed layer"),
        Option("--decode", "cost of one decode step of a language model (needs --past)"),
        Option("--past", "tokens in the key-value cache before the decode step", "N", least=0),
        Option(
            "--layer",
            "only layers or tensors whose path matches, or that a filter finds; repeatable",
            "GLOB|FILTER",
            many=True,
        ),
        Option(
            "--input",
            "a .npy or .npz file with the input; random otherwise",
            "FILE",
            manual="a `.npy` (or `.npz` by input name) to run on; random otherwise",
        ),
        Option("--batch", "batch size (default: the model's own)", "N", least=1),
        Option(
            "--optimizer",
            "optimizer whose memory counts; adam also stands for AdamW (default sgd)",
            default="sgd",
            choices=("sgd", "momentum", "adam"),
        ),
        Option(
            "--overlay",
            "a CSV or JSON file of figures by layer (name, path or glob) that become columns; repeatable\n"
            "(explorer help overlay)",
            "FILE",
            many=True,
            manual="a CSV or JSON file with figures by layer name, path or glob, which become columns;"
            " repeatable",
        ),
        Option("--machine", "a machine of the config file, or a preset (explorer machines)", "NAME"),
        Option("--peak-macs", "MACs (multiply-accumulates) of the machine per second, such as 4T", "RATE"),
        Option("--bandwidth", "bytes of the machine per second, such as 100GB/s", "RATE"),
        Option("--macs-per-cycle", "MACs of the machine per cycle", "N"),
        Option("--bytes-per-cycle", "bytes per cycle between memory and the buffer of the tiles", "N"),
        Option("--clock", "cycles of the machine per second, such as 1GHz", "RATE"),
        Option("--buffer", "bytes of the machine's buffer for the current tiles, such as 512KiB", "SIZE"),
        Option("--array", "rows and columns of the machine's systolic array, such as 64x64", "RxC"),
        Option(
            "--double-buffered",
            "whether the next tiles are loaded while the current ones are in use (default yes)",
            choices=("yes", "no"),
        ),
        Option(
            "--save",
            "save the machine of --machine and these settings in the config file under this name",
            "NAME",
        ),
        Option("--json", "the answer as JSON (a contract: explorer help json)", manual="the answer as JSON"),
        Option("--csv", "the answer's table as CSV", manual="the rows of the JSON answer as CSV"),
        Option(
            "--top",
            "only the first N rows of each table (JSON: of the table that --csv prints)",
            "N",
            least=1,
            old="--limit",
            manual="only the first N rows of each table; in JSON only those of the list that `--csv` prints",
        ),
        Option(
            "--exact",
            "all digits of each number in a table: 23,296 in place of 23.30 k",
        ),
        Option("--markdown", "the answer as Markdown"),
        Option(
            "--quiet",
            "no progress and no messages: only the full answer and errors (--top shortens tables)",
            manual="no progress and no messages on standard error. The answer stays complete; `--top`"
            " shortens its tables",
        ),
        Option(
            "--memory",
            "memory limit of the work, such as 8G (Linux)",
            "SIZE",
            parser="memory",
            manual="memory limit of the work, such as `8G` (Linux)",
        ),
        Option(
            "--no-cache",
            "compute everything again, and store nothing for the next call",
            manual="neither use nor write the cache (`EXPLORER_NO_CACHE=1` does this for all commands)",
        ),
        Option("--version", "print the version"),
        Option("--help", "print this help", short="-h"),
    )
}

SEVERAL_SIZES = Option(
    "--dim",
    "size of a symbolic dimension, or several, such as seq=5,16,64; repeatable: the first sizes are tried\n"
    "together, then the second ones, and so on; a name with fewer sizes repeats them",
    "NAME=SIZES",
    many=True,
    parser="dim_sizes",
)
"""Variant of `--dim` for commands that try several sizes."""
