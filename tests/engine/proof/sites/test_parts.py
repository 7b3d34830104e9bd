"""A model that is run piece by piece gives what it gives when it is run at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from explorer.engine.graph.model import Model
from explorer.engine.proof.sites import parts
from explorer.engine.proof.sites.parts import run_in_pieces
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from tests.engine.proof import tiled as t

X = {"x": t.weight(2, 8)}


def branched(path: Path, *, sequence: bool = False) -> Model:
    """Three products in a row; the first one's output is read again at the end."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("SequenceConstruct", ["b", "c"], ["s"]),
        helper.make_node("SequenceAt", ["s", "zero"], ["d"])
        if sequence
        else helper.make_node("Neg", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["e"]),
        helper.make_node("SequenceAt", ["s", "zero"], ["f"]),
        helper.make_node("Add", ["e", "f" if sequence else "a"], ["y"]),
    ]
    if not sequence:
        del nodes[-2], nodes[3]
    return t.model(path, nodes, {"x": (2, 8)}, {"w": t.weight(8, 8), "zero": np.array(0)})


def test_each_portion_has_what_a_whole_run_has(tmp_path: Path) -> None:
    for sequence in (False, True):
        model = branched(tmp_path / f"{sequence}.onnx", sequence=sequence)
        wanted = [["x", "a"], ["b", "c"], [], ["d", "e", "a"], ["y", "x"]]
        names = sorted({n for names in wanted for n in names} - {"x"})
        whole = {**X, **RuntimeSession(expose(model, names), label="it", optimize=False).run(X)}
        for portion, names in zip(run_in_pieces(model, X, wanted, "it"), wanted, strict=True):
            assert portion.keys() == set(names)
            assert all(np.array_equal(portion[n], whole[n]) for n in names)


def test_no_node_runs_twice_and_nothing_is_held_that_is_read_no_more(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    ran: list[tuple[list[str], list[str]]] = []
    real = parts.run_nodes

    def noted(model, nodes, given, *rest):  # type: ignore[no-untyped-def]
        ran.append(([n.outputs[0] for n in nodes], sorted(given)))
        return real(model, nodes, given, *rest)

    monkeypatch.setattr(parts, "run_nodes", noted)
    list(run_in_pieces(branched(tmp_path / "m.onnx"), X, [["a"], ["b", "c"], ["e"], ["y"]], "it"))
    assert ran == [(["a"], ["x"]), (["b", "c"], ["a"]), (["d", "e"], ["c"]), (["y"], ["a", "e"])]
