"""onnx's own inference may end its process or never end: the analysis goes on without it, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from explorer.engine.shapes import onnx_subprocess

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "onnx"


def encoded(op: str, **attributes: object) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [value], [helper.make_empty_tensor_value_info("y")])
    return bytes(helper.make_model(graph).SerializeToString())


def test_it_answers_with_types_and_shapes() -> None:
    found = {name: (code, shape) for name, code, shape, _ in onnx_subprocess.infer(encoded("Transpose"))}
    assert found["y"] == (TensorProto.FLOAT, [3, 2])


def test_what_it_refuses_is_said_in_its_words() -> None:
    with pytest.raises(onnx_subprocess.GraphRefused, match="parse"):
        onnx_subprocess.infer(b"no model at all")
    assert onnx_subprocess.infer(encoded("Relu"))


@pytest.mark.slow
def test_its_end_is_an_answer_that_did_not_come_and_the_next_question_is_answered() -> None:
    assert onnx_subprocess.infer(encoded("Relu"))
    process = onnx_subprocess._CHILD.process
    assert process is not None
    process.kill()
    process.wait()
    assert onnx_subprocess.infer(encoded("Relu")), "it is started again"


@pytest.mark.slow
def test_the_files_of_which_it_died_are_analysed_without_a_word_on_the_terminal() -> None:
    """In a process of its own: an abort would end the tests."""
    code = (
        "import sys\n"
        "from explorer.cli.main import main\n"
        "for path in sys.argv[1:]:\n"
        "    assert main(['info', path, '--quiet']) in (0, 2), path\n"
    )
    files = [str(path) for path in CORPUS.iterdir() if path.stat().st_size > 500]
    assert files
    done = subprocess.run(
        [sys.executable, "-c", code, *files],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "Assertion" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.slow
def test_it_leaves_no_process_behind() -> None:
    code = (
        "from explorer.engine.shapes import onnx_subprocess as onnx_apart\n"
        f"onnx_apart.infer({encoded('Relu')!r})\n"
        "print(onnx_apart._CHILD.process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert not Path(f"/proc/{done.stdout.strip()}").exists()
