"""From the words that a user typed to a verb and its options, and from the tables of options to help.

Reading is a dozen lines over the table of options, because every start of the program waits for it:
argparse takes ten milliseconds to import and has to be told the table first, and what it says when
something is wrong would have to be replaced anyway: a mistyped word deserves one line that names the right
one, not a page of usage. Help, which nobody waits for, is laid out by argparse.
"""

from __future__ import annotations

from explorer.base.errors import Misuse, nearest
from explorer.cli.arguments.options import OPTIONS
from explorer.cli.arguments.verb_table import MODEL_HELP, SCREEN, VERBS, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = ["Given", "help_text", "read"]

_EXIT_CODES = "exit codes: 0 done or equal, 1 shown different, 2 misuse or bad input, 130 interrupted"

_WITH_RESUME = ("--resume", "--trust", "--memory", "--remote", "--quiet", "--version", "--help")
"""What may be said anew of a session that is resumed."""


class Given:
    """What was typed: `models`, and every option of the verb by its long name, '-' as '_'.

    `typed` are the names of those that were really typed and are no default.
    """

    models: list[str]
    typed: set[str]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def read(words: Sequence[str]) -> tuple[str | None, Given]:
    """The verb (None: the screen) and its options and models, read and checked.

    With `--help` or `--version` nothing else is checked.

    Raises:
        Misuse: A word that is no option, a value that cannot be read, a model too few or too many.
    """
    name, rest = _split_verb(words)
    verb = SCREEN if name is None else VERBS[name]
    given, unknown = _given(rest, verb)
    if unknown:
        raise _unknown_option(unknown, name, verb)
    if not (given.version or given.help):
        _check_models(name, verb, given)
        for flag in verb.options:
            option = verb.option(flag)
            typed = getattr(given, option.key)
            if option.read is not None and typed is not None:
                setattr(given, option.key, option.read(typed))
        _check_options(name, verb, given)
    return name, given


def _given(words: Sequence[str], verb: Verb) -> tuple[Given, str]:
    """What was typed, unread, and the first word that is no option of this verb."""
    given, unknown = Given(), ""
    given.models, given.typed = [], set()
    options = {}
    for flag in verb.options:
        option = verb.option(flag)
        options[flag] = options[option.short or flag] = option
        setattr(given, option.key, [] if option.many else option.default if option.metavar else False)
    for at, word in enumerate(words):
        if word == "--":
            given.models += words[at + 1 :]
            break
        if word[:1] != "-" or word == "-":
            given.models.append(word)
            continue
        flag, equals, value = word.partition("=") if word[:2] == "--" else (word[:2], word[2:], word[2:])
        found = options.get(flag)
        if found is None:
            unknown = unknown or word
            continue
        given.typed.add(found.key)
        if not found.metavar:
            if equals:
                raise Misuse("takes no value", where=found.flag)
            setattr(given, found.key, True)
        elif not equals:
            raise Misuse("needs a value", where=found.flag, hint=f"write {found.flag} {found.metavar}")
        elif found.many:
            getattr(given, found.key).append(value)
        else:
            setattr(given, found.key, value)
    return given, unknown


def help_text(name: str | None) -> str:
    """The help of a verb, or of the whole program."""
    return _parser(name, SCREEN if name is None else VERBS[name]).format_help()


def _split_verb(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb, wherever it stands among the options, and the words without it.

    A value is tied to its option here (`--tile -1` becomes `--tile=-1`), so that a verb's name may be one.
    """
    valued = {s for option in OPTIONS.values() if option.metavar for s in (option.flag, option.short)}
    verb: str | None = None
    first = True
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return verb, [*rest, word, *words[at:]]
        if word in valued and at < len(words) and not words[at].startswith("--"):
            rest.append(f"{word}{'=' if word.startswith('--') else ''}{words[at]}")
            at += 1
        elif word.startswith("-") and word != "-":
            rest.append(word)
        elif first and word in VERBS:
            verb, first = word, False
        else:
            first = False
            rest.append(word)
    return verb, rest


def _parser(name: str | None, verb: Verb) -> argparse.ArgumentParser:
    import argparse

    prog = "explorer" if name is None else f"explorer {name}"
    usage = f"{prog} {' '.join(verb.models)} [options]"
    if name is None:
        usage = f"{usage}          the screen\n       explorer VERB MODEL... [options]  headless"
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=verb.summary,
        epilog=_epilog(name, verb),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=26, width=100
        ),
        add_help=False,
    )
    for option in map(verb.option, verb.options):
        spellings = [s for s in (option.short, option.flag) if s]
        if option.metavar:
            parser.add_argument(*spellings, metavar=option.metavar, help=option.help)
        else:
            parser.add_argument(*spellings, action="store_true", help=option.help)
    return parser


def _epilog(name: str | None, verb: Verb) -> str:
    kinds = [model.strip("[]") for model in verb.models if model != "..."]
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


def _check_models(name: str | None, verb: Verb, given: Given) -> None:
    models: Sequence[str] = given.models
    many = verb.models[-1] == "..."
    most = len(verb.models) - many
    wanted = most - verb.models[-1].startswith("[")
    if not models and name is None and not given.resume:
        raise Misuse("name a model", hint="try explorer alexnet, explorer FILE.onnx, or explorer --help")
    if name is None and len(models) > 1:
        raise Misuse("no such verb", where=models[0], hint=nearest(models[0], VERBS))
    if len(models) < wanted and name is not None:
        what = "needs a model" if wanted == 1 else "needs two models"
        raise Misuse(what, where=str(name), hint=f"type explorer {name} {' '.join(verb.models)}")
    if len(models) > most and not many:
        raise Misuse("one word too many", where=models[most], hint=f"explorer {name} {' '.join(verb.models)}")
    if not all(models):
        raise Misuse("the name of a model is empty", hint=f"a model is {MODEL_HELP}")


def _check_options(name: str | None, verb: Verb, given: Given) -> None:
    """What one option alone cannot know."""
    for flag in verb.needs:
        if getattr(given, flag[2:]) is None:
            raise Misuse("says nowhere to write", where=str(name), hint=f"add {flag} {OPTIONS[flag].metavar}")
    if "--csv" in verb.options and given.csv and given.json:
        raise Misuse("one answer has one form", where="--csv", hint="leave out --csv or --json")
    if name is None and given.resume:
        for flag in verb.options:
            if flag not in _WITH_RESUME and getattr(given, OPTIONS[flag].key):
                raise Misuse("belongs to the session that is resumed", where=flag, hint="leave it out")
        return
    if "--decode" in verb.options and given.decode != (given.past is not None):
        missing, there = ("--past N", "--decode") if given.decode else ("--decode", "--past")
        raise Misuse(f"needs {missing}", where=there, hint="write --decode --past N")


def _guess(word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""
