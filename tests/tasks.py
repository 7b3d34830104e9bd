"""Tasks of the manual: questions with the command and the keys that answer them, read from its page.

A test plays each in a real terminal, and the script of the pictures keeps what is then on the screen.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from tests.terminal import ROOT, Terminal

PAGE = ROOT / "explorer" / "manual" / "tasks.md"

_NAMED = {
    "↑": "\x1b[A",
    "↓": "\x1b[B",
    "→": "\x1b[C",
    "←": "\x1b[D",
    "Enter": "\r",
    "Esc": "\x1b",
    "Tab": "\t",
    "Space": " ",
    "Backspace": "\x7f",
    "End": "\x1b[F",
    "Ctrl+P": "\x10",
    "Ctrl+U": "\x15",
}
"""What a terminal sends for a key that is no letter."""


class Task(Struct, frozen=True):
    """A question that somebody has.

    Attributes:
        title: The question.
        command: What is typed in the shell.
        keys: What is then pressed, a key each.
        waits: What stands on the screen before the first key.
        seen: What stands on it after the last.
        picture: File name of what is then seen.
    """

    title: str
    command: str
    keys: tuple[str, ...]
    waits: str
    seen: tuple[str, ...]
    picture: str


def tasks() -> list[Task]:
    """The tasks of the page, in its order."""
    return list(_read(PAGE.read_text(encoding="utf-8")))


def _read(text: str) -> Iterator[Task]:
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = {
            name: re.findall(r"`([^`]+)`", said)
            for name, said in re.findall(r"^\| (\w+) \| (.*) \|$", body, re.M)
        }
        keys = tuple(key for span in rows.get("keys", []) for key in ([span] if span in _NAMED else span))
        (command,), (waits, *seen) = rows["command"], rows["seen"]
        picture = re.search(r"\(\.\./\.\./screenshots/([\w-]+\.svg)\)", body)
        yield Task(title, command, keys, waits, tuple(seen), picture.group(1) if picture else "")


def play(task: Task, folder: Path) -> Terminal:
    """The terminal after the last key of a task, at rest; whoever takes it ends it."""
    words = shlex.split(task.command)
    assert words[0] == "explorer", task.command
    own = {"EXPLORER_CONFIG": "no.toml", "XDG_CONFIG_HOME": str(folder / "config")}
    terminal = Terminal(
        [sys.executable, "-m", "explorer", *words[1:]], columns=120, rows=36, env=own, cwd=folder
    )
    try:
        terminal.wait_for(task.waits, 120)
        terminal.settle()
        for key in task.keys:
            terminal.press(_NAMED.get(key, key))
            terminal.settle()
        for said in task.seen:
            terminal.wait_for(said, 120)
        terminal.settle()
    except BaseException:
        terminal.__exit__(None, None, None)
        raise
    return terminal


def prepare(folder: Path) -> None:
    """The models of the tasks: what the page says lies in the folder that a task is done in."""
    for name in ("lenet", "mobilenet_small", "bert_tiny"):
        shutil.copy(ROOT / "sample_models" / f"{name}.onnx", folder / f"{name}.onnx")
    _retrained(folder / "lenet.onnx", folder / "lenet_2.onnx")
    _quantized(folder / "mobilenet_small.onnx", folder / "mobilenet_int8.onnx")
    (folder / "gpt.py").write_text(_GPT, encoding="utf-8")


_GPT = """
from transformers import GPT2Config, GPT2LMHeadModel


def model():
    return GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=4096))
"""


def _retrained(source: Path, target: Path) -> None:
    """The same model with another number in one weight."""
    model = onnx.load(source)
    weight = next(one for one in model.graph.initializer if len(one.dims) == 4)
    values = numpy_helper.to_array(weight).copy()
    values.reshape(-1)[0] += 1.0
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, target)


def _quantized(source: Path, target: Path) -> None:
    """The same model in 8 bits, calibrated on a few random images."""
    feed = onnx.load(source).graph.input[0]
    shape = [d.dim_value for d in feed.type.tensor_type.shape.dim]
    generator = np.random.default_rng(0)
    images = [{feed.name: generator.standard_normal(shape).astype(np.float32)} for _ in range(4)]

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return images.pop() if images else None

    quantize_static(source, target, Images(), quant_format=QuantFormat.QDQ)
