"""The table of fast forms: what int8 costs in stock onnxruntime, operator by operator and form by form.

    python -m tests.bench.fast_forms            measures and prints
    python -m tests.bench.fast_forms --write    also puts the rows of this processor into the table

Forms run in turn on one thread, and the shortest run of each counts. Of the forms whose signal to noise is at
most 3 dB below the best one, the fastest is taken; of forms within 10 % of it, the one with the least noise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from explorer import Session
from explorer.base.errors import ExplorerError
from explorer.engine.quantize.speed import fast_form_rows, fast_forms
from explorer.facts.quantize import QuantizeSpec
from explorer.host.processor import find_instruction_set

FORMS: tuple[Mapping[str, Any], ...] = tuple(
    {"weight": weight, "input": inputs, "form": form, "unsaturated": narrow, "bias_correction": True}
    for form in ("qdq", "chain", "qoperator")
    for weight, inputs, narrow in (
        ("int8", "int8", False),
        ("int8", "uint8", False),
        ("int8", "uint8", True),
        ("uint8", "uint8", False),
    )
)
"""What is tried."""

_NOISE, _ALIKE = 3.0, 1.1


class _Network:
    """A network of one operator, made node by node."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.shape, self.last = shape, "x"

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.stored)}"
        values = self.random.standard_normal(shape).astype(np.float32) * np.float32(scale)
        self.stored.append(numpy_helper.from_array(values, name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{op}{len(self.nodes)}", **attributes))
        self.last = output
        return output

    def save(self, path: Path) -> None:
        x = helper.make_tensor_value_info("x", 1, self.shape)
        y = helper.make_tensor_value_info(self.last, 1, None)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _conv() -> _Network:
    """Residual blocks of 3 x 3 convolutions."""
    net, width = _Network((1, 32, 48, 48)), 32
    for _ in range(4):
        kept, scale = net.last, (2 / (9 * width)) ** 0.5
        for _ in range(2):
            weight = net.weight(width, width, 3, 3, scale=scale)
            net.add("Conv", net.last, weight, net.weight(width, scale=0.1), pads=[1, 1, 1, 1])
            if net.last != kept:
                net.add("Relu", net.last)
        net.add("Add", net.last, kept)
        net.add("Relu", net.last)
    return net


def _transposed() -> _Network:
    net = _Network((1, 32, 24, 24))
    for _ in range(2):
        weight = net.weight(32, 32, 2, 2, scale=0.15)
        net.add("ConvTranspose", net.last, weight, net.weight(32, scale=0.1), strides=[2, 2])
        net.add("Relu", net.last)
    return net


def _gemm() -> _Network:
    net = _Network((32, 512))
    for _ in range(5):
        net.add("Gemm", net.last, net.weight(512, 512, scale=0.06), net.weight(512, scale=0.1))
        net.add("Relu", net.last)
    return net


def _matmul() -> _Network:
    net = _Network((1, 64, 256))
    for _ in range(5):
        net.add("MatMul", net.last, net.weight(256, 512, scale=0.06))
        net.add("Add", net.last, net.weight(512, scale=0.1))
        net.add("Relu", net.last)
        net.add("MatMul", net.last, net.weight(512, 256, scale=0.06))
    return net


NETWORKS = {"Conv": _conv, "ConvTranspose": _transposed, "Gemm": _gemm, "MatMul": _matmul}


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measured(operator: str, folder: Path, rounds: int) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """Each form that the operator has, its time in terms of the original's, and its signal to noise in dB."""
    source = folder / f"{operator}.onnx"
    net = NETWORKS[operator]()
    net.save(source)
    paths: list[tuple[Mapping[str, Any], Path]] = []
    for at, form in enumerate(FORMS):
        path = folder / f"{operator}{at}.onnx"
        with Session(str(source)) as session:
            try:
                session.quantize(QuantizeSpec(**form), output=str(path), report=False)
            except ExplorerError as error:
                print(f"  {operator} {form['form']} {form['weight']} {form['input']}: {error}")
                continue
        paths.append((form, path))
    feeds = {"x": np.random.default_rng(1).standard_normal(net.shape).astype(np.float32)}
    sessions = [_session(path) for path in (source, *(path for _, path in paths))]
    outputs = [session.run(None, feeds)[0].astype(np.float64) for session in sessions]
    best = [float("inf")] * len(sessions)
    for _ in range(rounds):
        for at, session in enumerate(sessions):
            began = time.perf_counter()
            session.run(None, feeds)
            best[at] = min(best[at], time.perf_counter() - began)
    for (form, _), took, output in zip(paths, best[1:], outputs[1:], strict=True):
        noise = float(((output - outputs[0]) ** 2).sum())
        yield form, took / best[0], 10 * float(np.log10((outputs[0] ** 2).sum() / noise))


def chosen(
    found: list[tuple[Mapping[str, Any], float, float]],
) -> tuple[Mapping[str, Any], float, float]:
    """The row of an operator: see the module's docstring."""
    quiet = [row for row in found if row[2] >= max(snr for _, _, snr in found) - _NOISE]
    fastest = min(took for _, took, _ in quiet)
    return max((row for row in quiet if row[1] <= fastest * _ALIKE), key=lambda row: row[2])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fast_forms", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="runs of each form (default 40)")
    parser.add_argument("--write", action="store_true", help="put the rows into the table")
    given = parser.parse_args()
    here = find_instruction_set(), fast_forms.shorten_version(onnxruntime.__version__)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for operator in NETWORKS:
            found = [*measured(operator, Path(folder), given.rounds)]
            for form, took, snr in found:
                print(f"  {operator} {' '.join(map(str, form.values()))}: {took:.2f} x, {snr:.1f} dB")
            form, took, snr = chosen(found)
            words = (operator, *here, *form.values(), f"{took:.2f}", f"{snr:.1f}")
            lines.append(
                " ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
            )
            print(lines[-1], flush=True)
    if given.write:
        path = Path(fast_form_rows.__file__)
        kept = [line for line in fast_form_rows.ROWS.strip().split("\n") if tuple(line.split()[1:3]) != here]
        before, _, _ = path.read_text().partition('ROWS = """')
        path.write_text(
            before + 'ROWS = """\n' + "\n".join([kept[0], *sorted([*kept[1:], *lines])]) + '\n"""\n'
        )


if __name__ == "__main__":
    main()
