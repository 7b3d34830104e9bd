"""What a shell is told of the program: Tab offers its verbs, options and values, man shows its page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from explorer.cli import main
from explorer.cli.arguments.screen_options import SCREEN
from explorer.cli.commands import VERBS


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def here(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell}")
    return found


def offered(script: str, *lines: str) -> list[set[str]]:
    """What bash offers for each line, of which the last word is being typed."""
    asked = [script]
    for line in lines:
        words = re.sub(r"=", " = ", line).split(" ")
        words = [word for at, word in enumerate(words) if word or at == len(words) - 1]
        typed = " ".join(f"'{word}'" for word in words)
        asked.append(
            f'COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _explorer; echo "${{COMPREPLY[*]}}"'
        )
    done = subprocess.run(
        [here("bash"), "--norc", "-u"], input="\n".join(asked), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_tab_in_bash_offers_verbs_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    expected: dict[str, set[str]] = {
        "explorer ": {*VERBS},
        "explorer ro": {"roofline"},
        "explorer --dim batch=1 lay": {"layers"},
        "explorer tile m.onnx --edges ": {"partial", "padded"},
        "explorer tile m.onnx --edges pad": {"padded"},
        "explorer tile m.onnx --edges=par": {"partial"},
        "explorer tile m.onnx --edges=": {"partial", "padded"},
        "explorer sweep m.onnx --sort cy": {"cycles"},
        "explorer tile m.onnx --no-v": {"--no-verify"},
        "explorer completion ": {"bash", "fish", "zsh"},
        # files are what the shell offers where it is offered nothing
        "explorer tile ": set(),
        "explorer tile m.onnx -o ": set(),
        "explorer info --dim tile=3 ": set(),
        "explorer --r": {"--rules", "--resume", "--remote"},
    }
    flags = {
        name: {w for option in verb.options.values() for w in (option.flag, option.short) if w}
        for name, verb in VERBS.items()
    }
    lines = [*expected, *(f"explorer {name} x -" for name in VERBS)]
    seen = offered(printed(capsys, "completion", "bash"), *lines)
    assert dict(zip(expected, seen, strict=False)) == expected
    assert dict(zip(VERBS, seen[len(expected) :], strict=True)) == flags


def test_tab_in_fish_offers_verbs_options_and_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "explorer.fish"
    script.write_text(printed(capsys, "completion", "fish"))
    asked = ("explorer roo", "explorer tile m --edg", "explorer tile m --edges pad", "explorer completion z")
    code = "; ".join([f"source {script}", *(f'complete -C "{line}"' for line in asked)])
    done = subprocess.run([here("fish"), "-N", "-c", code], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "roofline",
        "--edges",
        "padded",
        "zsh",
    ]


def test_the_script_for_zsh_is_one_that_zsh_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = printed(capsys, "completion", "zsh")
    for name, verb in VERBS.items():
        case = script[script.index(f"\n    {name}) _arguments") :].split(";;")[0]
        assert all(flag in case for flag in verb.options)
    file = tmp_path / "explorer.zsh"
    file.write_text("autoload -U compinit; compinit -u -D\n" + script)
    done = subprocess.run([here("zsh"), "-f", file], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["completion"], "needs a shell; type explorer completion SHELL"),
        (["completion", "csh.exe"], "choose from: bash, zsh, fish"),
        (["completion", ""], "the name of a shell is empty; a shell is bash, zsh or fish"),
        (["man", "tile"], "tile: one word too many; explorer man"),
    ):
        assert main.main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert said in err


def test_the_manual_page_says_all_verbs_and_options_and_man_has_nothing_against_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = printed(capsys, "man")
    sections = re.findall(r"^\.SH (.*)$", page, re.MULTILINE)
    assert sections == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "VERBS", "OPTIONS", "EXIT STATUS", "EXAMPLES"),
    ]
    done = subprocess.run(
        [here("groff"), "-man", "-ww", "-k", "-Tutf8", "-P-cbou", "-rLL=200n"],
        input=page,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    shown = " ".join(done.stdout.replace("\u2010\n", "").split())
    for command in (SCREEN, *VERBS.values()):
        assert command.prog in shown
        for option in command.options.values():
            assert f"{option.flag} {option.metavar}".rstrip() in shown
    assert "(For tile, quantize, convert.)" in shown
