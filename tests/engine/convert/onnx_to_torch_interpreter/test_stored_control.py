"""Branches and loops with stored counts and conditions are followed by torch.export, others refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from explorer import BadModel, Session

torch = pytest.importorskip("torch")

from explorer.engine.convert.onnx_to_torch_interpreter.module import load_onnx  # noqa: E402
from explorer.engine.formats.onnx import reader  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 17]>'

STORED = {
    "a loop with a stored condition": f"""{HEAD} g (float[3] x) => (float[3] y)
        <int64 count = {{4}}, bool go = {{1}}> {{
          y = Loop (count, go, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t)
            {{ d = Identity(c)  t = Sin(s) }}> }}""",
    "a condition in the body": f"""{HEAD} g (float[3] x) => (float[3] y) <int64 count = {{3}}> {{
          y = Loop (count, "", x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t)
            {{ k = Constant <value = bool[1] {{1}}> ()  d = Squeeze(k)  t = Cos(s) }}> }}""",
    "a branch": f"""{HEAD} g (float[3] x) => (float[3] y) <bool which = {{0}}> {{
          no = Not(which)
          y = If (no) <then_branch = a () => (float[3] p) {{ p = Exp(x) }},
                       else_branch = e () => (float[3] q) {{ q = Neg(x) }}> }}""",
}


def written(text: str, path: Path) -> str:
    onnx.save(parser.parse_model(text), str(path))
    return str(path)


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_is_followed(name: str, tmp_path: Path) -> None:
    path = written(STORED[name], tmp_path / "m.onnx")
    module = load_onnx(reader.read(path))
    given = torch.tensor([0.5, -1.0, 2.0])
    program = torch.export.export(module, (given,), strict=False)
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    (expected,) = session.run(None, {"x": given.numpy()})
    np.testing.assert_allclose(program.module()(given).numpy(), expected, rtol=1e-6)


def test_a_loop_that_asks_for_values_is_one_line(tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[3] x, int64 n) => (float[3] y) {{
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t)
          {{ d = Identity(c)  t = Sin(s) }}> }}"""
    path = written(text, tmp_path / "m.onnx")
    with (
        Session(path) as session,
        pytest.raises(BadModel, match=r"a branch or a loop depends on values, which torch\.export does not"),
    ):
        session.convert(str(tmp_path / "m.pt2"))
