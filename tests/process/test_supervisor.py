"""However the work of a command ends, in native code or never: one line, an exit code, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]
_HEAD = """
import os, sys, time
from explorer.cli import main as cli
from explorer.cli.commands import VERBS
from explorer.cli.output.answer import Answer
from explorer.host import output_files as targets
from explorer.process import supervisor

def run(given, line):
    say("begun")
    work()
    return Answer(pieces=lambda: ["the answer"])

def say(text):
    os.write(3, text.encode() + b" ")

VERBS["info"].run = run
sys.argv[1:] = ["info", "m.onnx"]
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command whose work is what a test says, and waits until it has said a word."""
    started: list[subprocess.Popen[str]] = []

    def start(
        work: str, *, until: str = "begun", words: tuple[str, ...] = (), head: str = ""
    ) -> subprocess.Popen[str]:
        heard, tell = os.pipe()
        body = "".join(f"    {line}\n" for line in work.splitlines())
        code = f"{_HEAD}{head}sys.argv[1:] += {words}\ndef work():\n{body}\nsys.exit(cli.main())"
        code = f"import os; os.dup2({tell}, 3); os.set_inheritable(3, True)\n{code}"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            pass_fds=(tell,),
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        )
        started.append(process)
        os.close(tell)
        said = b""
        while until.encode() not in said and (some := os.read(heard, 100)):
            said += some
        os.close(heard)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


ENDLESS = "import ctypes\nctypes.CDLL(None).poll(None, 0, -1)"
"""Native code in which no handler of Python's runs."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_what_never_ends(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: int, code: int
) -> None:
    process = begin(
        "with targets.write_atomically('out') as path, open(path, 'w') as file:\n"
        "    file.write('half')\n"
        "    file.flush()\n"
        "    say('written')\n"
        "    import signal\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))\n"
        "    time.sleep(1_000)",
        until="written",
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, "")
    assert err == ("explorer: stopped; nothing was written\n" if number == signal.SIGINT else "")
    assert os.listdir(tmp_path) == []


WRITTEN = """
with targets.write_atomically('out') as path, open(path, 'w') as file:
    file.write('whole')
say('written')
"""


def test_a_work_that_is_woken_while_it_is_ended_ends(begin: Callable[..., subprocess.Popen[str]]) -> None:
    """As timeout(1) does: behind its signal it sends SIGCONT to the whole group."""
    head = """
import signal
send, left = os.kill, [3]
def kill(child, number):
    send(child, number)
    if number == signal.SIGSTOP and left[0]:
        left[0] -= 1
        send(child, signal.SIGCONT)
os.kill = kill
"""
    process = begin("while True:\n    pass", head=head)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)
    assert (process.returncode, *said) == (128 + signal.SIGTERM, "", "")


@pytest.mark.slow
def test_a_signal_after_the_result_has_its_name_does_not_deny_it(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    answered = begin(f"{WRITTEN}time.sleep(0.1)", until="written", head="supervisor._ANSWER_SECONDS = 120\n")
    answered.send_signal(signal.SIGINT)
    out, err = answered.communicate(timeout=120)
    assert (answered.returncode, out, err) == (0, "the answer", "")
    (tmp_path / "out").unlink()
    slow = begin(f"{WRITTEN}{ENDLESS}", until="written")
    slow.send_signal(signal.SIGINT)
    out, err = slow.communicate(timeout=120)
    assert (slow.returncode, out) == (130, "")
    assert err == f"explorer: stopped; {tmp_path / 'out'} is written and complete\n"
    assert (tmp_path / "out").read_text() == "whole"


SEVERAL = """
with targets.make_folder('stages'), targets.write_atomically('stages/one') as path:
    open(path, 'w').close()
with targets.write_atomically('picture') as path:
    open(path, 'w').close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", "targets.tell('putting', 'table', 1, 1)\n"])
def test_of_several_results_each_that_has_its_name_stays_and_is_told(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, last: str
) -> None:
    head = "supervisor._MOVE_SECONDS = 0\n"
    process = begin(f"{SEVERAL}{last}say('written')\n{ENDLESS}", until="written", head=head)
    process.send_signal(signal.SIGINT)
    done = f"{tmp_path / 'stages' / 'one'}, {tmp_path / 'picture'}"
    assert process.communicate(timeout=120)[1] == f"explorer: stopped; {done} are written and complete\n"
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("picture", "stages", "stages/one"),
    ]


def test_a_folder_for_results_does_not_stay_without_one_nor_takes_others_files_along(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    for others in ("", "theirs"):
        process = begin(
            "with targets.make_folder('stages'), targets.write_atomically('stages/one') as path:\n"
            f"    {others!r} and open('stages/theirs', 'w').close()\n"
            f"    say('half')\n    {ENDLESS.replace(chr(10), '; ')}",
            until="half",
        )
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120) == ("", "explorer: stopped; nothing was written\n")
        left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        assert left == (["stages", "stages/theirs"] if others else [])


@pytest.mark.slow
def test_native_code_that_aborts_is_one_line_that_says_why(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = begin(
        "os.system('echo the library says hello >&2')\n"
        "time.sleep(1.5)\n"
        "with targets.write_atomically('out') as path, open(path, 'w') as file:\n"
        "    os.write(2, b'Assertion failed: n < size\\n')\n"
        "    os.abort()"
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "the library says hello\n"
        "explorer: m.onnx: a library ended the work (SIGABRT: Assertion failed: n < size);"
        " nothing was written\n"
    )
    assert os.listdir(tmp_path) == []


def test_what_ends_is_told_whatever_the_work_printed(begin: Callable[..., subprocess.Popen[str]]) -> None:
    process = begin("print('from python')\nos.write(1, b'from native code\\n')\nos.write(2, b'and more\\n')")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "the answer")
    assert sorted(err.splitlines()) == ["and more", "from native code", "from python"]
    quiet = begin("os.write(2, b'last words\\n')\nos.abort()", words=("--quiet",))
    out, err = quiet.communicate(timeout=120)
    assert (quiet.returncode, out) == (2, "")
    assert err == "explorer: m.onnx: a library ended the work (SIGABRT); nothing was written\n"


def test_who_is_killed_takes_the_work_along_and_the_next_one_clears_up(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    psutil = pytest.importorskip("psutil")
    process = begin(
        "import tempfile\n"
        "tempfile.mkdtemp()\n"
        "with targets.write_atomically('out') as path, open(path, 'w') as file:\n"
        "    file.write('half')\n"
        "    say('writing')\n" + "".join(f"    {line}\n" for line in ENDLESS.splitlines()),
        until="writing",
    )
    work = psutil.Process(process.pid).children()
    assert work
    process.kill()
    process.wait()
    assert not psutil.wait_procs(work, timeout=120)[1]
    left = sorted(os.listdir(tmp_path))
    assert [name.partition("-")[0] for name in left] == [".explorer", "explorer"]
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o700 for name in left)
    other = begin(WRITTEN, until="written")
    assert other.communicate(timeout=120) == ("the answer", "")
    assert os.listdir(tmp_path) == ["out"]


def test_nohup_keeps_its_promise(begin: Callable[..., subprocess.Popen[str]]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = begin("time.sleep(0.2)")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=120)[0] == "the answer"


def _save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, object]) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 8])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def endless(path: Path) -> None:
    """A model whose loop turns 2^62 times."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["on_"]), helper.make_node("Mul", ["s", "s"], ["s_"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("s", 1, [1, 8])],
        [value("on_", TensorProto.BOOL, []), value("s_", 1, [1, 8])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Loop", ["n", "t", "m"], ["y"], body=body),
    ]
    _save(path, nodes, {"n": np.int64(2**62), "t": np.True_, "w": np.eye(8, dtype=np.float32)})


def aborting(path: Path) -> None:
    """A model that ends every process that loads it: a body reads what a DequantizeLinear hands out."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["c", "w"], ["p"])],
        "body",
        [value("w", 1, [8, 4])],
        [value("p", 1, [1, 4])],
    )
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Reshape", ["d", "cut"], ["c"]),
        helper.make_node("Scan", ["tiles"], ["y"], body=body, num_scan_inputs=1, scan_output_axes=[1]),
    ]
    tiles = np.ones((3, 8, 4), np.float32)
    _save(path, nodes, {"s": np.float32(0.03), "z": np.uint8(0), "cut": np.array([1, 8]), "tiles": tiles})


def _command(words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "explorer", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words",
    [
        "verify m.onnx m.onnx",
        "sweep m.onnx --tile 4 --verify --workers 1",
    ],
)
def test_a_model_that_ends_the_runtime_is_one_line(tmp_path: Path, words: str) -> None:
    aborting(tmp_path / "m.onnx")
    process = _command(words, tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("explorer: m.onnx")
    assert "SIGABRT" in err
    assert err.endswith("nothing was written\n")
    assert os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.slow
def test_a_loop_of_2_62_turns_is_stopped(tmp_path: Path) -> None:
    endless(tmp_path / "m.onnx")
    process = _command("activations m.onnx -o values.npz", tmp_path)
    while (
        len(os.listdir(tmp_path)) < 3 and process.poll() is None
    ):  # a folder for temporary files, and beside
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "explorer: stopped; nothing was written\n")
    assert os.listdir(tmp_path) == ["m.onnx"]
