"""Argument parser: converts the typed words to a command with its options and models.

Every start of the program waits for the parser, so it is a few functions over the table of options. argparse
takes ten milliseconds to import and must be given the table first. Its messages would have to be replaced: a
mistyped word should be answered by one line with a suggestion, not by a page of usage.
"""

from __future__ import annotations

from explorer.base.errors import Misuse, nearest, nearest_alone
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPTIONS
from explorer.cli.arguments.screen_options import SCREEN, WITH_RESUME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explorer.cli.arguments.options import Option


def read(words: Sequence[str], verbs: Mapping[str, Command]) -> tuple[Command, ParsedArgs]:
    """Parse and check the words. Without a verb, the command is the screen's.

    With `--help` or `--version`, only the spelling of the options is checked.

    Raises:
        Misuse: An option is unknown, a value is invalid, or there are too few or too many models.
    """
    command, words_without_verb = _split_verb(words, verbs)
    args, unknown = _parse_options(words_without_verb, command)
    if unknown:
        raise _unknown_option(unknown, command, verbs)
    if not (args.version or args.help):
        _check_models(command, args, verbs)
        for option in command.options.values():
            setattr(args, option.key, option.value(getattr(args, option.key)))
        _check_options(command, args)
    return command, args


def _parse_options(words: Sequence[str], command: Command) -> tuple[ParsedArgs, str]:
    """Return the arguments with unparsed values, and the first unknown option or ''."""
    args, unknown = ParsedArgs(), ""
    args.models, args.explicit = [], set()
    options = command.spellings()
    for option in command.options.values():
        setattr(args, option.key, [] if option.many else option.default if option.metavar else False)
    for index, word in enumerate(words):
        if word == "--":
            args.models += words[index + 1 :]
            break
        if word[:1] != "-" or word == "-":
            args.models.append(word)
            continue
        flag, equals, value = word.partition("=") if word[:2] == "--" else (word[:2], word[2:], word[2:])
        match = options.get(flag)
        if match is None:
            unknown = unknown or word
            continue
        args.explicit.add(match.key)
        if not match.metavar:
            if equals:
                raise Misuse("takes no value", where=match.flag)
            setattr(args, match.key, True)
        elif not equals:
            raise Misuse("needs a value", where=match.flag, hint=f"write {match.flag} {match.metavar}")
        elif match.many:
            getattr(args, match.key).append((match.flag, value) if match.into else value)
        else:
            setattr(args, match.key, value)
    return args, unknown


def _split_verb(words: Sequence[str], verbs: Mapping[str, Command]) -> tuple[Command, list[str]]:
    """Return the command, wherever its verb is among the options, and the words without the verb.

    This also joins options with their values (`--tile -1` becomes `--tile=-1`), so that a value may look like
    a verb.
    """
    by_spelling: dict[str, Option] = {s: option for option in OPTIONS.values() for s in option.spellings}
    by_spelling.update(SCREEN.spellings())
    command, is_first_word = SCREEN, True
    remaining_words: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            return command, [*remaining_words, word, *words[index:]]
        if word[:2] == "--" and "=" not in word and word not in by_spelling:
            # an option of a verb before the verb, or a mistake
            by_spelling |= {s: option for verb in verbs.values() for s, option in verb.spellings().items()}
            # verbs may share an option name, with or without a value
            next_verb = next((verbs[later] for later in words[index:] if later in verbs), command)
            by_spelling.update(next_verb.spellings())
        takes_value = word in by_spelling and by_spelling[word].metavar
        if takes_value and index < len(words) and not words[index].startswith("--"):
            remaining_words.append(f"{word}{'=' if word.startswith('--') else ''}{words[index]}")
            index += 1
        elif word.startswith("-") and word != "-":
            remaining_words.append(word)
        elif is_first_word and word in verbs:
            command, is_first_word = verbs[word], False
            by_spelling.update(command.spellings())
        else:
            is_first_word = False
            remaining_words.append(word)
    return command, remaining_words


def _unknown_option(word: str, command: Command, verbs: Mapping[str, Command]) -> Misuse:
    flag = word.split("=")[0] if word.startswith("--") else word[:2]
    if flag == "--batch" and "--dim" in command.options:
        size = word.partition("=")[2] or "N"
        return Misuse(f"{command.prog} has no such option", where=flag, hint=f"write --dim batch={size}")
    owners = [verb.name for verb in verbs.values() if flag in verb.spellings()]
    message = f"{command.prog if command.name else 'the screen'} has no such option"
    if owners:
        return Misuse(message, where=flag, hint=f"it belongs to explorer {', '.join(owners)}")
    return Misuse(message, where=flag, hint=_option_hint(flag, command))


def _option_hint(flag: str, command: Command) -> str:
    """Return a suggestion for an option that a command does not have."""
    return nearest_alone(flag, command.spellings()) or f"{command.prog} --help lists them"


def _check_models(command: Command, args: ParsedArgs, verbs: Mapping[str, Command]) -> None:
    models: Sequence[str] = args.models
    takes_many = command.models[-1:] == ("...",)
    max_models = len(command.models) - takes_many
    min_models = max_models - any(model.startswith("[") for model in command.models)
    if not command.name:
        if len(models) > 1 and _is_no_model(models[0], verbs):
            raise Misuse("no such verb", where=models[0], hint=nearest(models[0], verbs))
        if len(models) > 2:
            hint = "the screen shows two models side by side; explorer compare takes more"
            raise Misuse("one model too many", where=models[2], hint=hint)
        if len(models) > 1 and args.resume:
            raise Misuse("one session is resumed at a time", where=models[1], hint="leave it out")
    elif len(models) < min_models:
        message = f"needs a {command.subject}" if min_models == 1 else "needs two models"
        if command.others:
            message = f"needs a model and a {' and a '.join(command.others).lower()}"
        hint = " ".join(["type", command.prog, *command.models])
        raise Misuse(message, where=command.name, hint=hint)
    elif len(models) > max_models and not takes_many:
        hint = " ".join([command.prog, *command.models])
        raise Misuse("one word too many", where=models[max_models], hint=hint)
    if not all(models):
        raise Misuse(
            f"the name of a {command.subject} is empty", hint=f"a {command.subject} is {command.takes}"
        )


def _is_no_model(word: str, verbs: Mapping[str, Command]) -> bool:
    """Whether the first of several words is a mistyped verb: not an existing path, but similar to a verb."""
    import os

    return not os.path.lexists(word) and bool(nearest_alone(word, verbs))


def _check_options(command: Command, args: ParsedArgs) -> None:
    """Check combinations of options."""
    for flag in command.needs:
        option = command.options[flag]
        if getattr(args, option.key) is None:
            raise Misuse("says nowhere to write", where=command.name, hint=f"add {flag} {option.metavar}")
    forms = [f"--{form}" for form in ("csv", "markdown", "json") if getattr(args, form)]
    if len(forms) > 1:
        raise Misuse("one answer has one form", where=forms[0], hint=f"leave out {' or '.join(forms)}")
    if command is SCREEN and args.resume:
        for option in command.options.values():
            if option.flag not in WITH_RESUME and getattr(args, option.key):
                raise Misuse("belongs to the session that is resumed", where=option.flag, hint="leave it out")
        return
    if "--decode" in command.options and args.decode != (args.past is not None):
        missing, present_option = ("--past N", "--decode") if args.decode else ("--decode", "--past")
        raise Misuse(f"needs {missing}", where=present_option, hint="write --decode --past N")
