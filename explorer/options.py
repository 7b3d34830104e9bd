"""The verbs and options of the command line, declared once: parsing, help and complaints derive from here.

argparse does the reading because it starts in ten milliseconds and is in the standard library; what it
says when something is wrong is replaced, because a mistyped word deserves one line that names the right
one, not a page of usage.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from explorer.arguments import parse_count, parse_dims, parse_input_shapes, parse_tile
from explorer.errors import Misuse, nearest

__all__ = ["OPTIONS", "VERBS", "Option", "Verb", "help_text", "read"]

_EDGES = ("ragged", "padded")
_FORMS = ("auto", "lab", "scan", "unrolled", "batched")
_MODEL_HELP = (
    "an ONNX file, the name of a torchvision model, or package.module:callable\nthat returns an nn.Module"
)
_EXIT_CODES = "exit codes: 0 done or equal, 1 shown different, 2 misuse or bad input, 130 interrupted"


def _choice(where: str, known: Sequence[str], text: str) -> str:
    if text in known:
        return text
    raise Misuse(
        f"'{text}' is not known", where=where, hint=_guess(text, known, f"one of {', '.join(known)}")
    )


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        flag: Its long spelling; `short` is the other one, if any.
        help: What it is for.
        metavar: What stands for its value in the help; empty for a switch.
        default: Its value as the user would type it; None for nothing.
        many: It may be given several times.
        read: Turns what was typed (a list of it with `many`) into the value.
    """

    flag: str
    help: str
    metavar: str = ""
    default: str | None = None
    many: bool = False
    short: str = ""
    read: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: what it is for, what it takes, how it is typed."""

    summary: str
    models: tuple[str, ...]
    options: tuple[str, ...]
    examples: tuple[str, ...]


OPTIONS: dict[str, Option] = {
    option.flag: option
    for option in (
        Option(
            "--output",
            "where to write the tiled model; without it only the plan is shown",
            "FILE",
            short="-o",
        ),
        Option(
            "--tile",
            "tile size, 64 or 64x64x64: rows x depth x columns (default 64x64x64)",
            "SIZE",
            "64x64x64",
            read=parse_tile,
        ),
        Option(
            "--site", "tile only the products whose name matches; repeatable", "GLOB", many=True, read=tuple
        ),
        Option(
            "--edges",
            "the last tile of an axis is smaller (ragged, default) or filled up with zeros (padded)",
            "|".join(_EDGES),
            "ragged",
            read=partial(_choice, "--edges", _EDGES),
        ),
        Option(
            "--form",
            "how tiles are written as ONNX (default auto: lab up to 256 tiles a product, scan above)",
            "|".join(_FORMS),
            "auto",
            read=partial(_choice, "--form", _FORMS),
        ),
        Option("--force", "overwrite FILE if it exists"),
        Option("--no-verify", "write without proving that nothing changed"),
        Option(
            "--draws",
            "how many random inputs to run (default 3)",
            "N",
            "3",
            read=partial(parse_count, where="--draws", least=1),
        ),
        Option(
            "--dim",
            "size of a symbolic dimension, such as batch=8; repeatable",
            "NAME=SIZE",
            many=True,
            read=parse_dims,
        ),
        Option(
            "--input-shape",
            "shape of an input, x:1,3,224,224 or x:[1,3,224,224] or x:f32:1x3x224x224; repeatable",
            "NAME:SHAPE",
            many=True,
            read=parse_input_shapes,
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
            read=partial(parse_count, where="--seed", least=0),
        ),
        Option("--trust", "let code inside a model file run"),
        Option("--json", "the answer as JSON (a contract: see the README)"),
        Option("--quiet", "only the answer and errors: no progress, no messages"),
        Option("--remote", "draw as over a slow line: no animation, no blinking"),
        Option("--version", "print the version"),
        Option("--help", "print this help", short="-h"),
    )
}

_OPENING = ("--dim", "--input-shape", "--weights", "--trust")
_PRINTING = ("--json", "--quiet", "--version", "--help")

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
    "layers": Verb(
        "the tree of layers, each with its shapes and its cost",
        ("MODEL",),
        (*_OPENING, *_PRINTING),
        ("explorer layers alexnet", "explorer layers model.onnx --json"),
    ),
    "ops": Verb(
        "what each operator type costs, and the values its attributes take",
        ("MODEL",),
        (*_OPENING, *_PRINTING),
        ("explorer ops googlenet", "explorer ops model.onnx --json"),
    ),
    "tile": Verb(
        "tile matrix products, prove that nothing changed, write the result",
        ("MODEL",),
        (
            *(
                "--output",
                "--tile",
                "--site",
                "--edges",
                "--form",
                "--force",
                "--no-verify",
                "--draws",
                "--seed",
            ),
            *_OPENING,
            *_PRINTING,
        ),
        (
            "explorer tile alexnet                                          (only the plan)",
            "explorer tile alexnet -o alexnet_tiled.onnx",
            "explorer tile model.onnx -o tiled.onnx --tile 32x64x32 --edges padded",
            "explorer tile model.onnx -o tiled.onnx --site '*classifier*' --form lab",
        ),
    ),
    "verify": Verb(
        "evidence that two models compute the same",
        ("A", "B"),
        ("--draws", "--seed", *_OPENING, *_PRINTING),
        (
            "explorer verify alexnet alexnet_tiled.onnx",
            "explorer verify a.onnx b.onnx --draws 10 --seed 7 --json",
        ),
    ),
    "diff": Verb(
        "what changed from one graph to another, node by node, and in cost",
        ("A", "B"),
        (*_OPENING, *_PRINTING),
        ("explorer diff alexnet alexnet_tiled.onnx", "explorer diff a.onnx b.onnx --json"),
    ),
}

_SCREEN = Verb(
    "Look inside a neural network, tile its matrix products to the size that hardware can do,\n"
    "prove numerically that nothing changed, and see what changed in the graph.",
    ("MODEL",),
    (*_OPENING, "--remote", "--quiet", "--version", "--help"),
    (
        "explorer alexnet",
        "explorer sample_models/lenet.onnx",
        "explorer tile alexnet -o alexnet_tiled.onnx",
        "explorer diff alexnet alexnet_tiled.onnx",
    ),
)


def read(words: Sequence[str]) -> tuple[str | None, argparse.Namespace]:
    """The verb (None: the screen) and its options and models, read and checked.

    The namespace has `models` and every option by its long name; with `--help` or `--version` nothing
    else is checked.

    Raises:
        Misuse: A word that is no option, a value that cannot be read, a model too few or too many.
    """
    name, rest = _split_verb(words)
    verb = _SCREEN if name is None else VERBS[name]
    given, unknown = _parser(name, verb).parse_known_args(rest)
    for word in unknown:
        raise _unknown_option(word, name, verb)
    if not (given.version or given.help):
        _check_models(name, verb, given.models)
        for flag in verb.options:
            option, key = OPTIONS[flag], flag[2:].replace("-", "_")
            if option.read is not None:
                setattr(given, key, option.read(getattr(given, key)))
    return name, given


def help_text(name: str | None) -> str:
    """The help of a verb, or of the whole program."""
    return _parser(name, _SCREEN if name is None else VERBS[name]).format_help()


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are our one line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        where, _, what = message.removeprefix("argument ").rpartition(": ")
        flag = where.split("/")[-1]
        hint = f"{self.prog} --help shows examples"
        if flag in OPTIONS and what == "expected one argument":
            what, hint = "needs a value", f"write {flag} {OPTIONS[flag].metavar}"
        elif what.startswith("ignored explicit argument"):
            what = "takes no value"
        raise Misuse(what, where=flag, hint=hint)


def _split_verb(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb, wherever it stands among the options, and the words without it.

    A value is tied to its option here (`--tile -1` becomes `--tile=-1`): argparse takes one that starts
    with a dash for an option, and could not say what is wrong with it.
    """
    valued = {s for option in OPTIONS.values() if option.metavar for s in (option.flag, option.short)}
    verb: str | None = None
    first = True
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            return verb, [*rest, word, *queue]
        if word in valued and queue and not queue[0].startswith("--"):
            rest.append(f"{word}{'=' if word.startswith('--') else ''}{queue.pop(0)}")
        elif word.startswith("-") and word != "-":
            rest.append(word)
        elif first and word in VERBS:
            verb, first = word, False
        else:
            first = False
            rest.append(word)
    return verb, rest


def _parser(name: str | None, verb: Verb) -> _Parser:
    prog = "explorer" if name is None else f"explorer {name}"
    usage = f"{prog} {' '.join(verb.models)} [options]"
    if name is None:
        usage = f"{usage}          the screen\n       explorer VERB MODEL... [options]  headless"
    parser = _Parser(
        prog=prog,
        usage=usage,
        description=verb.summary,
        epilog=_epilog(name, verb),
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=26, width=100),
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="*", help=argparse.SUPPRESS)
    for option in (OPTIONS[flag] for flag in verb.options):
        spellings = [s for s in (option.short, option.flag) if s]
        if not option.metavar:
            parser.add_argument(*spellings, action="store_true", help=option.help)
        elif option.many:
            parser.add_argument(
                *spellings, action="append", default=[], metavar=option.metavar, help=option.help
            )
        else:
            parser.add_argument(*spellings, default=option.default, metavar=option.metavar, help=option.help)
    return parser


def _epilog(name: str | None, verb: Verb) -> str:
    parts = [f"{'MODEL is' if len(verb.models) == 1 else 'A and B are each'} {_MODEL_HELP}."]
    if name is None:
        verbs = "\n".join(f"  {key:<8}{' '.join(v.models):<8}{v.summary}" for key, v in VERBS.items())
        parts = [f"verbs (explorer VERB --help says more):\n{verbs}", *parts]
    examples = "\n".join(f"  {example}" for example in verb.examples)
    return "\n\n".join([*parts, f"examples:\n{examples}", _EXIT_CODES])


def _unknown_option(word: str, name: str | None, verb: Verb) -> Misuse:
    flag = word.split("=")[0] if word.startswith("--") else word[:2]
    prog = "explorer" if name is None else f"explorer {name}"
    owners = [
        key for key, other in VERBS.items() if flag in other.options or (flag == "-o" and key == "tile")
    ]
    what = "the screen has no such option" if name is None else f"{prog} has no such option"
    if owners:
        return Misuse(what, where=flag, hint=f"it belongs to explorer {', '.join(owners)}")
    return Misuse(what, where=flag, hint=_guess(flag, verb.options, f"{prog} --help lists them"))


def _check_models(name: str | None, verb: Verb, models: Sequence[str]) -> None:
    wanted = len(verb.models)
    if not models and name is None:
        raise Misuse("name a model", hint="try explorer alexnet, explorer FILE.onnx, or explorer --help")
    if name is None and len(models) > 1:
        raise Misuse("no such verb", where=models[0], hint=nearest(models[0], VERBS))
    if len(models) < wanted:
        what = "needs a model" if wanted == 1 else "needs two models"
        raise Misuse(what, where=str(name), hint=f"type explorer {name} {' '.join(verb.models)}")
    if len(models) > wanted:
        raise Misuse(
            "one word too many", where=models[wanted], hint=f"explorer {name} {' '.join(verb.models)}"
        )
    if not all(models):
        raise Misuse("the name of a model is empty", hint=f"a model is {_MODEL_HELP}")


def _spellings(verb: Verb) -> set[str]:
    return {s for flag in verb.options for s in (flag, OPTIONS[flag].short)}


def _guess(word: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else otherwise
