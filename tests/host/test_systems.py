"""Other systems: macOS runs everything, Windows names WSL, and neither is asked for what Linux alone has."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.systems import environment, explored, python
from tests.terminal import PATIENCE, Terminal

Sample = Callable[[str], Path]

if sys.platform != "linux":
    pytest.skip("other systems are acted out on Linux", allow_module_level=True)


def test_windows_has_the_help_of_every_verb_and_wsl_for_the_rest(tmp_path: Path) -> None:
    code = (
        "import contextlib, io, json, os, sys\n"
        "import explorer\n"
        "from explorer.cli.commands import VERBS\n"
        "from explorer.cli.main import main\n"
        "told = {}\n"
        "for verb in ('', *VERBS):\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        helped = main([*filter(None, [verb]), '--help'])\n"
        "        anywhere = bool(verb) and VERBS[verb].runs_anywhere\n"
        "        code = None if anywhere else main([*filter(None, [verb]), 'x.onnx'])\n"
        "    told[verb] = helped, len(out.getvalue()), code, err.getvalue(), anywhere\n"
        "print(json.dumps([os.name, sys.platform, hasattr(os, 'fork'), told]))\n"
    )
    done = python("windows", tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    name, system, forks, told = json.loads(done.stdout)
    assert (name, system, forks) == ("nt", "win32", False), "it is acted out"
    assert len(told) > 30
    for verb, (helped, length, code, said, anywhere) in told.items():
        assert helped == 0, verb
        assert length > 200, verb
        if not anywhere:
            assert code == 2, (verb, said)
            assert said.count("\n") == 1, (verb, said)
            assert "WSL" in said, (verb, said)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("lenet.onnx",),
        ("info", "lenet.onnx"),
        ("list",),
        ("--resume",),
        ("tile", "m.onnx"),
        ("info", "--frob"),
    ],
)
def test_windows_refuses_what_it_cannot_do_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = explored("windows", tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "WSL" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "site-windows"], "nothing is written"


def test_windows_imports_the_package_and_a_session_names_wsl(tmp_path: Path) -> None:
    code = (
        "import explorer, explorer.session\n"
        "print(explorer.__version__, explorer.Misuse.__name__)\n"
        "both = explorer, explorer.session\n"
        "for home, name in zip((*both, explorer), ('Session', 'list_models', 'to_torch')):\n"
        "    try:\n"
        "        getattr(home, name)\n"
        "    except explorer.ExplorerError as error:\n"
        "        print(error)\n"
    )
    done = python("windows", tmp_path, "-c", code)
    assert done.stderr == ""
    assert done.stdout.count("WSL") == 3
    assert explored("windows", tmp_path, "--version").stdout.startswith("explorer ")


@pytest.mark.parametrize(("system", "name"), [("windows", "Windows"), ("macos", "macOS")])
def test_the_doctor_comes_to_every_system(system: str, name: str, tmp_path: Path) -> None:
    done = explored(system, tmp_path, "doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["machine"]["system"].startswith(name)


def test_macos_is_acted_out(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.platform, hasattr(os, 'waitid'), os.path.exists('/proc/self/statm'))"
    assert python("macos", tmp_path, "-c", code).stdout.split() == ["darwin", "False", "False"]


@pytest.mark.parametrize(
    "words",
    [
        ("info",),
        ("layers",),
        ("outline",),
        ("weights",),
        ("memory",),
        ("profile", "--steps", "2"),
        ("graph", "-o", "graph.svg"),
    ],
    ids=lambda words: str(words[0]),
)
def test_macos_answers_as_linux_does(words: tuple[str, ...], sample: Sample, tmp_path: Path) -> None:
    model = shutil.copy(sample("lenet"), tmp_path)
    there = explored("macos", tmp_path, words[0], Path(model).name, *words[1:])
    assert (there.returncode, there.stderr) == (0, "")
    if words[0] not in {"profile", "graph"}:
        here = python("linux", tmp_path, "-m", "explorer", words[0], Path(model).name, *words[1:])
        assert there.stdout == here.stdout


def test_macos_tiles_and_proves(sample: Sample, tmp_path: Path) -> None:
    shutil.copy(sample("mlp_128"), tmp_path / "m.onnx")
    tiled = explored("macos", tmp_path, "tile", "m.onnx", "-o", "t.onnx", "--tile", "32,32,32")
    assert tiled.returncode == 0, tiled.stderr
    proved = explored("macos", tmp_path, "verify", "m.onnx", "t.onnx")
    assert (proved.returncode, proved.stderr) == (0, "")
    assert "equal" in proved.stdout
    limited = explored("macos", tmp_path, "info", "m.onnx", "--memory", "2G")
    assert (limited.returncode, limited.stderr.count("\n")) == (2, 1)
    assert "Linux only" in limited.stderr


def test_macos_has_the_screen_and_takes_up_a_session_whose_line_dropped(
    sample: Sample, tmp_path: Path
) -> None:
    there = environment("macos", tmp_path)
    program = (sys.executable, "-m", "explorer")
    with Terminal([*program, str(sample("lenet"))], env=there) as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        terminal.press("t")
        terminal.wait_for("tile matmuls")
        terminal.press("\r")
        terminal.wait_for("Proven equal")
        terminal.press("escape")
        terminal.settle(1.2)
        children = terminal.children()
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) != 0
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1], "no process stays behind"
    with Terminal([*program, "--resume"], env=there) as terminal:
        terminal.wait_for("resumed")
        terminal.settle()
        assert "not saved" in terminal.text()
        terminal.press("q")
        terminal.wait_for("Quit without saving?")
        terminal.press("y")
        assert terminal.end() == 0
    assert not list((tmp_path / "state" / "explorer" / "sessions").iterdir())


def test_macos_ends_the_work_of_a_command_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from explorer.process import supervisor\n"
        "def work():\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(300)\n"
        "    return 0\n"
        "supervisor.run(work)\n"
    )
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment("macos", tmp_path)
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        assert not psutil.wait_procs([child], timeout=PATIENCE)[1], "the work ends with who waits for it"
