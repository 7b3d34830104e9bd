"""Argument parser: converts the typed words to a command with its options and models.

Every start of the program waits for the parser, so it consists of a few functions over the table of options.
argparse is slower: its import takes 10 ms, and it must receive the whole table before it parses. It answers a
mistyped word with a page of usage. This parser answers with one line and a suggestion.
"""

from __future__ import annotations

from explorer.base.errors import Misuse, suggest_name, suggest_only_near
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPTIONS
from explorer.cli.arguments.screen_options import SCREEN, WITH_RESUME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explorer.cli.arguments.options import Option


def read(words: Sequence[str], verbs: Mapping[str, Command]) -> tuple[Command, ParsedArgs]:
    """Return the command and its checked arguments. Without a verb, the command is the screen.

    With `--help` or `--version`, the function checks only the spelling of the options.

    Raises:
        Misuse: An option is unknown, a value is invalid, or there are too few or too many models.
    """
    command, words_without_verb = _extract_verb(words, verbs)
    args, unknown_word = _parse_options(words_without_verb, command)
    if unknown_word:
        if not command.name and args.models:
            _check_verb(args.models[0], verbs)
        raise _build_option_error(unknown_word, command, verbs)
    if not (args.version or args.help):
        _check_models(command, args, verbs)
        for option in command.options.values():
            setattr(args, option.key, option.parse_value(getattr(args, option.key)))
        _check_options(command, args)
    return command, args


def _parse_options(words: Sequence[str], command: Command) -> tuple[ParsedArgs, str]:
    """Return the arguments with option values as text, and the first word with an unknown option or ''.

    Raises:
        Misuse: A value is missing, empty, or typed for a switch.
    """
    args, unknown_word = ParsedArgs(), ""
    args.models, args.explicit = [], set()
    options_by_spelling = command.spellings()
    for declared in command.options.values():
        setattr(args, declared.key, [] if declared.many else declared.default if declared.metavar else False)
    for index, word in enumerate(words):
        if word == "--":
            args.models += words[index + 1 :]
            break
        if word[:1] != "-" or word == "-":
            args.models.append(word)
            continue
        if word.startswith("--"):
            flag, separator, value = word.partition("=")
            has_value = bool(separator)
        else:
            flag, value = word[:2], word[2:]  # the value follows a short flag directly: -oFILE
            has_value = bool(value)
        option = options_by_spelling.get(flag)
        if option is None:
            unknown_word = unknown_word or word
            continue
        args.explicit.add(option.key)
        if not option.metavar:
            if has_value:
                raise Misuse("takes no value", where=option.flag)
            setattr(args, option.key, True)
        elif not has_value:
            raise Misuse("needs a value", where=option.flag, hint=f"write {option.flag} {option.metavar}")
        elif not value.strip():
            hint = f"write {option.flag} {option.metavar}, or leave it out"
            raise Misuse("the value is empty", where=option.flag, hint=hint)
        elif option.many:
            getattr(args, option.key).append((option.flag, value) if option.collected_as else value)
        else:
            setattr(args, option.key, value)
    return args, unknown_word


def _extract_verb(words: Sequence[str], verbs: Mapping[str, Command]) -> tuple[Command, list[str]]:
    """Return the command and the words without its verb. Options may precede the verb.

    The function joins each option with its value: `--tile -1` becomes `--tile=-1`. A value that is spelled
    like a verb therefore stays a value.
    """
    options_by_spelling: dict[str, Option] = {
        spelling: option for option in OPTIONS.values() for spelling in option.spellings
    }
    options_by_spelling.update(SCREEN.spellings())
    command, may_be_verb = SCREEN, True
    remaining_words: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            return command, [*remaining_words, word, *words[index:]]
        if word[:2] == "--" and "=" not in word and word not in options_by_spelling:
            # the option is misspelled, or it belongs to a verb that follows it
            for verb in verbs.values():
                options_by_spelling.update(verb.spellings())
            # two verbs may share a flag that takes a value with only one of them: the typed verb decides
            typed_verb = next((verbs[later] for later in words[index:] if later in verbs), command)
            options_by_spelling.update(typed_verb.spellings())
        takes_value = word in options_by_spelling and options_by_spelling[word].metavar
        if takes_value and index < len(words) and not words[index].startswith("--"):
            remaining_words.append(f"{word}{'=' if word.startswith('--') else ''}{words[index]}")
            index += 1
        elif word.startswith("-") and word != "-":
            remaining_words.append(word)
        elif may_be_verb and word in verbs:
            command, may_be_verb = verbs[word], False
            options_by_spelling.update(command.spellings())
        else:
            may_be_verb = False
            remaining_words.append(word)
    return command, remaining_words


def _build_option_error(word: str, command: Command, verbs: Mapping[str, Command]) -> Misuse:
    """Return the error for a word with an option that the command does not have."""
    flag = word.split("=")[0] if word.startswith("--") else word[:2]
    if flag == "--batch" and "--dim" in command.options:
        size = word.partition("=")[2] or "N"
        return Misuse(f"{command.prog} has no such option", where=flag, hint=f"write --dim batch={size}")
    owners = [verb.name for verb in verbs.values() if flag in verb.spellings()]
    message = f"{command.prog if command.name else 'the screen'} has no such option"
    if owners:
        return Misuse(message, where=flag, hint=f"it belongs to explorer {', '.join(owners)}")
    return Misuse(message, where=flag, hint=_suggest_option(flag, command))


def _suggest_option(flag: str, command: Command) -> str:
    """Return the command's option with the most similar spelling, or else the way to list its options."""
    return suggest_only_near(flag, command.spellings()) or f"{command.prog} --help lists them"


def _check_models(command: Command, args: ParsedArgs, verbs: Mapping[str, Command]) -> None:
    """Check the number of positional arguments, and that none of them is empty.

    Raises:
        Misuse: There are too few or too many arguments, or an argument is empty.
    """
    models: Sequence[str] = args.models
    placeholders = command.models
    takes_many = placeholders[-1:] == ("...",)
    max_models = len(placeholders) - takes_many  # '...' stands for no argument of its own
    # a verb has at most one optional argument
    min_models = max_models - any(placeholder.startswith("[") for placeholder in placeholders)
    if not command.name:
        if len(models) > 1:
            _check_verb(models[0], verbs)
        if len(models) > 2:
            hint = "the screen shows at most two models; explorer compare takes more"
            raise Misuse("one model too many", where=models[2], hint=hint)
        if len(models) > 1 and args.resume:
            raise Misuse("--resume takes one session", where=models[1], hint="leave it out")
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


def _check_verb(word: str, verbs: Mapping[str, Command]) -> None:
    """Reject a first word that is similar to a verb and is not an existing path.

    Raises:
        Misuse: The word is a mistyped verb.
    """
    import os

    if not os.path.lexists(word) and suggest_only_near(word, verbs):
        raise Misuse("no such verb", where=word, hint=suggest_name(word, verbs))


def _check_options(command: Command, args: ParsedArgs) -> None:
    """Reject missing options, and options that exclude each other.

    Raises:
        Misuse: The command or an option needs another option, or two options exclude each other.
    """
    for flag in command.required:
        option = command.options[flag]
        if getattr(args, option.key) is None:
            raise Misuse(f"needs {flag}", where=command.name, hint=f"add {flag} {option.metavar}")
    if "--shapes" in command.options and args.shapes and args.output is None:
        hint = f"add --output {command.options['--output'].metavar}, or leave it out"
        raise Misuse(f"{command.name} writes no file without --output", where="--shapes", hint=hint)
    output_flags = [f"--{name}" for name in ("csv", "markdown", "json") if getattr(args, name)]
    if len(output_flags) > 1:
        hint = f"leave out {' or '.join(output_flags)}"
        raise Misuse("only one output format is possible", where=output_flags[0], hint=hint)
    if command is SCREEN and args.resume:
        for option in command.options.values():
            if option.flag not in WITH_RESUME and getattr(args, option.key):
                raise Misuse("is set by the resumed session", where=option.flag, hint="leave it out")
        return
    if "--decode" in command.options and args.decode != (args.past is not None):
        missing_flag, typed_flag = ("--past N", "--decode") if args.decode else ("--decode", "--past")
        raise Misuse(f"needs {missing_flag}", where=typed_flag, hint="write --decode --past N")
