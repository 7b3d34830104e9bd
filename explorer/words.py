"""From the words that a user typed to a verb and its options, and from the tables of options to help.

argparse does the reading because it starts in ten milliseconds and is in the standard library; what it
says when something is wrong is replaced, because a mistyped word deserves one line that names the right
one, not a page of usage.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NoReturn

from explorer.errors import Misuse, nearest
from explorer.options import MODEL_HELP, OPTIONS, SCREEN, VERBS, Verb

__all__ = ["help_text", "read"]

_EXIT_CODES = "exit codes: 0 done or equal, 1 shown different, 2 misuse or bad input, 130 interrupted"


def read(words: Sequence[str]) -> tuple[str | None, argparse.Namespace]:
    """The verb (None: the screen) and its options and models, read and checked.

    The namespace has `models` and every option by its long name; with `--help` or `--version` nothing
    else is checked.

    Raises:
        Misuse: A word that is no option, a value that cannot be read, a model too few or too many.
    """
    name, rest = _split_verb(words)
    verb = SCREEN if name is None else VERBS[name]
    given, unknown = _parser(name, verb).parse_known_args(rest)
    for word in unknown:
        raise _unknown_option(word, name, verb)
    if not (given.version or given.help):
        _check_models(name, verb, given.models)
        for flag in verb.options:
            option, key = OPTIONS[flag], flag[2:].replace("-", "_")
            if option.read is not None:
                setattr(given, key, option.read(getattr(given, key)))
        _check_options(name, verb, given)
    return name, given


def help_text(name: str | None) -> str:
    """The help of a verb, or of the whole program."""
    return _parser(name, SCREEN if name is None else VERBS[name]).format_help()


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
    kinds = [model for model in verb.models if model != "..."]
    subject = f"{kinds[0]} is" if len(kinds) == 1 else f"{' and '.join(kinds)} are each"
    parts = [f"{subject} {MODEL_HELP}."]
    if name is None:
        verbs = "\n".join(f"  {key:<12}{' '.join(v.models):<11}{v.summary}" for key, v in VERBS.items())
        parts = [f"verbs (explorer VERB --help says more):\n{verbs}", *parts]
    examples = "\n".join(f"  {example}" for example in verb.examples)
    return "\n\n".join([*parts, f"examples:\n{examples}", _EXIT_CODES])


def _unknown_option(word: str, name: str | None, verb: Verb) -> Misuse:
    flag = word.split("=")[0] if word.startswith("--") else word[:2]
    prog = "explorer" if name is None else f"explorer {name}"
    long = next((option.flag for option in OPTIONS.values() if flag == option.short), flag)
    owners = [key for key, other in VERBS.items() if long in other.options]
    what = "the screen has no such option" if name is None else f"{prog} has no such option"
    if owners:
        return Misuse(what, where=flag, hint=f"it belongs to explorer {', '.join(owners)}")
    return Misuse(what, where=flag, hint=_guess(flag, verb.options) or f"{prog} --help lists them")


def _check_models(name: str | None, verb: Verb, models: Sequence[str]) -> None:
    many = verb.models[-1] == "..."
    wanted = len(verb.models) - many
    if not models and name is None:
        raise Misuse("name a model", hint="try explorer alexnet, explorer FILE.onnx, or explorer --help")
    if name is None and len(models) > 1:
        raise Misuse("no such verb", where=models[0], hint=nearest(models[0], VERBS))
    if len(models) < wanted:
        what = "needs a model" if wanted == 1 else "needs two models"
        raise Misuse(what, where=str(name), hint=f"type explorer {name} {' '.join(verb.models)}")
    if len(models) > wanted and not many:
        raise Misuse(
            "one word too many", where=models[wanted], hint=f"explorer {name} {' '.join(verb.models)}"
        )
    if not all(models):
        raise Misuse("the name of a model is empty", hint=f"a model is {MODEL_HELP}")


def _check_options(name: str | None, verb: Verb, given: argparse.Namespace) -> None:
    """What one option alone cannot know."""
    for flag in verb.needs:
        if getattr(given, flag[2:]) is None:
            raise Misuse("says nowhere to write", where=str(name), hint=f"add {flag} {OPTIONS[flag].metavar}")
    if "--csv" in verb.options and given.csv and given.json:
        raise Misuse("one answer has one form", where="--csv", hint="leave out --csv or --json")
    if given.decode != (given.past is not None):
        missing, there = ("--past N", "--decode") if given.decode else ("--decode", "--past")
        raise Misuse(f"needs {missing}", where=there, hint="write --decode --past N")


def _guess(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""
