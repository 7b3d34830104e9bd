"""Shell completion for bash, zsh and fish, generated from the records of the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from explorer.cli.arguments.command import Command
from explorer.cli.arguments.options import Option
from explorer.cli.arguments.screen_options import SCREEN

Verbs = Mapping[str, Command]


def _list_flags(options: Mapping[str, Option]) -> Iterator[str]:
    for option in options.values():
        yield from filter(None, (option.short, option.flag))


def _write_bash(verbs: Verbs) -> Iterator[str]:
    options = {flag: o for command in (SCREEN, *verbs.values()) for flag, o in command.options.items()}
    value_options = {flag: option for flag, option in options.items() if option.metavar}
    yield """\
# bash completion for explorer; in ~/.bashrc: source <(explorer completion bash)
_explorer() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} before= verb= word choices=
    COMPREPLY=()  # where it stays empty, files are offered
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
    for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do
        case $before in
"""
    yield f"            {'|'.join(_list_flags(value_options))}) ;;\n"
    yield f"            *) case $word in {'|'.join(verbs)}) verb=$word; break ;; esac ;;\n"
    yield "        esac\n        before=$word\n    done\n    case $verb:$prev in\n"
    for (flag, choices), names in _find_options_with_choices(verbs).items():
        pattern = "|".join(f"{name}:{flag}" for name in names)
        yield f'        {pattern}) choices="{" ".join(choices)}" ;;\n'
    yield f"        {'|'.join(f'*:{flag}' for flag in _list_flags(value_options))}) return ;;\n"
    yield "        *) case $verb:$cur in\n"
    for name, command in verbs.items():
        yield f'            {name}:-*) choices="{" ".join(_list_flags(command.options))}" ;;\n'
        if command.words:
            yield f'            {name}:*) choices="{" ".join(command.words)}" ;;\n'
    yield f'            :-*) choices="{" ".join(_list_flags(SCREEN.options))}" ;;\n'
    yield f'            :*) choices="{" ".join(verbs)}" ;;\n'
    yield """\
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$cur"))
}
complete -o bashdefault -o default -F _explorer explorer explorer-nn
"""


def _find_options_with_choices(verbs: Verbs) -> Mapping[tuple[str, tuple[str, ...]], list[str]]:
    """Return the names of commands by flag and fixed choices, which differ for `--sort`. The screen is ''."""
    commands: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, command in (("", SCREEN), *verbs.items()):
        for flag, option in command.options.items():
            if option.typed_choices:
                commands.setdefault((flag, option.typed_choices), []).append(name)
    return commands


def _quote_for_zsh(text: str) -> str:
    """Quote a part of an argument of zsh's `_arguments`."""
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.replace("'", "'\\''").split())


def _write_zsh_option(option: Option) -> str:
    description = f"[{_quote_for_zsh(option.help)}]"
    long, short = (f"{option.flag}=", f"{option.short}+") if option.metavar else (option.flag, option.short)
    files = "_files" if "FILE" in option.metavar else " "
    values = f"({' '.join(option.typed_choices)})" if option.typed_choices else files
    value_spec = f":{_quote_for_zsh(option.metavar)}:{values}" if option.metavar else ""
    if option.short:
        return f"'({option.short} {option.flag})'{{{short},{long}}}'{description}{value_spec}'"
    return f"'{'*' if option.many else ''}{long}{description}{value_spec}'"


def _write_zsh(verbs: Verbs) -> Iterator[str]:
    yield "# zsh completion for explorer; in ~/.zshrc, behind compinit: source <(explorer completion zsh)\n"
    yield "_explorer_first() {\n    local -a verbs=(\n"
    for name, command in verbs.items():
        yield f"        '{name}:{_quote_for_zsh(command.summary)}'\n"
    yield "    )\n    _describe verb verbs\n    _files\n}\n"
    yield "_explorer() {\n    local word verb\n    for word in ${words[2,CURRENT-1]}; do\n"
    yield f"        case $word in {'|'.join(verbs)}) verb=$word; break ;; esac\n    done\n    case $verb in\n"
    for name, command in verbs.items():
        values = f"({' '.join(command.words)})" if command.words else "_files"
        yield _write_zsh_case(name, command, f"'*: :{values}'")
    yield _write_zsh_case("*", SCREEN, "'1: :_explorer_first' '*: :_files'")
    yield "    esac\n}\ncompdef _explorer explorer explorer-nn\n"


def _write_zsh_case(pattern: str, command: Command, positional: str) -> str:
    lines = [
        f"    {pattern}) _arguments",
        *map(_write_zsh_option, command.options.values()),
        f"{positional} ;;\n",
    ]
    return " \\\n        ".join(lines)


def _quote_for_fish(text: str) -> str:
    text = " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _write_fish(verbs: Verbs) -> Iterator[str]:
    yield "# fish completion for explorer; in ~/.config/fish/config.fish: explorer completion fish | source\n"
    yield "complete -c explorer-nn -w explorer\n"
    no_subcommand, after_subcommand = "__fish_use_subcommand", "__fish_seen_subcommand_from"
    takers: dict[Option, list[str]] = {}
    for name, command in verbs.items():
        yield f"complete -c explorer -n {no_subcommand} -a {name} -d {_quote_for_fish(command.summary)}\n"
        if command.words:
            words = _quote_for_fish(" ".join(command.words))
            yield f"complete -c explorer -n '{after_subcommand} {name}' -f -a {words}\n"
        for option in command.options.values():
            takers.setdefault(option, []).append(name)
    conditions = [(f"{after_subcommand} {' '.join(names)}", option) for option, names in takers.items()]
    for condition, option in (*conditions, *((no_subcommand, option) for option in SCREEN.options.values())):
        line = f"complete -c explorer -n '{condition}' -l {option.flag[2:]}"
        if option.short:
            line += f" -s {option.short[1:]}"
        if option.typed_choices:
            line += f" -x -a {_quote_for_fish(' '.join(option.typed_choices))}"
        elif option.metavar:
            line += " -rF" if "FILE" in option.metavar else " -x"
        yield f"{line} -d {_quote_for_fish(option.help)}\n"


SHELLS: dict[str, Callable[[Verbs], Iterator[str]]] = {
    "bash": _write_bash,
    "zsh": _write_zsh,
    "fish": _write_fish,
}
"""Function that yields the script of each shell in pieces."""
