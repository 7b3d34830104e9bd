"""Which execution provider of onnxruntime runs which layer, and what goes from one to another."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import onnx
import onnx.helper as h
import onnxruntime
import pytest
from onnx import TensorProto

import explorer
from explorer.cli.main import main
from explorer.facts.external.placement import Placement
from tests.documents import schema

LENET = "sample_models/lenet.onnx"
BERT = "sample_models/bert_tiny.onnx"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], bool]], None]:
    """Has onnxruntime tell that some nodes, by their operators, run on a GPU that is not here."""
    real = onnxruntime.InferenceSession.get_provider_graph_assignment_info

    def install(there: Callable[[str], bool]) -> None:
        def told(session: Any) -> list[Any]:
            parts = [(part, part.get_nodes()) for part in real(session)]
            return [
                SimpleNamespace(
                    ep_name=CUDA if there(nodes[0].op_type) else part.ep_name,
                    get_nodes=lambda nodes=nodes: nodes,
                )
                for part, nodes in parts
            ]

        monkeypatch.setattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info", told)

    return install


def asked(source: str = LENET, providers: Sequence[str] = ()) -> Placement:
    with explorer.Session(source) as session:
        return session.placement(providers)


def test_on_a_cpu_all_runs_on_it_in_one_partition() -> None:
    found = asked()
    with explorer.Session(LENET) as session:
        rows = session.analysis().layers
    assert {found.providers[row.id] for row in rows} == {"CPU"}
    (part,) = found.partitions
    assert (part.provider, {*part.layers}) == (CPU, {row.path for row in rows if not row.group})
    assert (found.boundaries, found.bytes, found.removed) == ((), 0, ())
    assert found.asked == found.available
    assert found.asked[-1] == CPU


def test_layers_that_run_as_one_operator_are_told() -> None:
    found = {one.layers: one.op for one in asked().fused}
    assert found == {
        ("/conv1/Conv", "/Relu"): "FusedConv",
        ("/conv2/Conv", "/Relu_1"): "FusedConv",
        ("/fc1/Gemm", "/Relu_2"): "FusedGemm",
        ("/fc2/Gemm", "/Relu_3"): "FusedGemm",
    }


def test_partitions_and_what_crosses_them(cuda: Callable[[Callable[[str], bool]], None]) -> None:
    cuda(lambda op: op == "Gemm")
    found = asked()
    assert [(part.provider, len(part.layers)) for part in found.partitions] == [
        *((CPU, 7), (CUDA, 1), (CPU, 1), (CUDA, 1), (CPU, 1), (CUDA, 1))
    ]
    assert found.layers == {CPU: 9, CUDA: 3}
    # an output of the model is read on the CPU
    assert [(one.maker, one.target, one.readers, one.bytes) for one in found.boundaries] == [
        ("/Flatten", CUDA, ("/fc1/Gemm",), 4 * 400),
        ("/fc1/Gemm", CPU, ("/Relu_2",), 4 * 120),
        ("/Relu_2", CUDA, ("/fc2/Gemm",), 4 * 120),
        ("/fc2/Gemm", CPU, ("/Relu_3",), 4 * 84),
        ("/Relu_3", CUDA, ("/fc3/Gemm",), 4 * 84),
        ("/fc3/Gemm", CPU, (), 4 * 10),
    ]
    assert found.bytes == 4 * (400 + 120 + 120 + 84 + 84 + 10)


def test_an_input_of_the_model_is_copied_to_a_provider_with_memory_of_its_own(
    cuda: Callable[[Callable[[str], bool]], None],
) -> None:
    cuda(lambda op: True)
    found = asked()
    assert [(one.tensor, one.source, one.target) for one in found.boundaries] == [
        ("input", CPU, CUDA),
        ("logits", CUDA, CPU),
    ]
    assert len(found.partitions) == 1


@pytest.mark.parametrize("seed", range(3))
def test_however_layers_are_placed_no_partition_waits_for_a_later_one(
    cuda: Callable[[Callable[[str], bool]], None], seed: int
) -> None:
    chosen = random.Random(seed)
    ops: dict[str, bool] = {}
    cuda(lambda op: ops.setdefault(op, chosen.random() < 0.5))
    found = asked(BERT)
    model = onnx.load(BERT)
    placed = {path: at for at, part in enumerate(found.partitions) for path in part.layers}
    assert len(placed) == sum(len(part.layers) for part in found.partitions) == sum(found.layers.values())
    assert all(a.provider != b.provider for a, b in zip(found.partitions, found.partitions[1:], strict=False))
    maker = {name: node.name for node in model.graph.node for name in node.output}
    crossed = 0
    for node in model.graph.node:
        for name in node.input:
            if node.name in placed and maker.get(name) in placed:
                assert placed[maker[name]] <= placed[node.name]
                crossed += placed[maker[name]] != placed[node.name]
    assert crossed
    assert {path for path in maker.values() if path not in placed} == set(found.removed)


def test_bodies_functions_and_constants(tmp_path: Any) -> None:
    def body(op: str) -> onnx.GraphProto:
        out = h.make_tensor_value_info("out", TensorProto.FLOAT, [2])
        return h.make_graph([h.make_node(op, ["x"], ["out"], name=f"in_{op}")], op, [], [out])

    call = h.make_function(
        "own", "F", ["a"], ["b"], [h.make_node("Abs", ["a"], ["b"], name="abs")], [h.make_opsetid("", 17)]
    )
    nodes = [
        h.make_node(
            "Constant", [], ["k"], value=h.make_tensor("k", TensorProto.FLOAT, [2], [1, 2]), name="k"
        ),
        h.make_node("Exp", ["k"], ["e"], name="exp"),
        h.make_node("If", ["c"], ["y"], then_branch=body("Relu"), else_branch=body("Neg"), name="if"),
        h.make_node("F", ["y"], ["z"], domain="own", name="call"),
        h.make_node("Add", ["z", "e"], ["o"], name="add"),
    ]
    graph = h.make_graph(
        nodes,
        "g",
        [
            h.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            h.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [h.make_tensor_value_info("o", TensorProto.FLOAT, [2])],
    )
    path = str(tmp_path / "model.onnx")
    opsets = [h.make_opsetid("", 17), h.make_opsetid("own", 1)]
    onnx.save(h.make_model(graph, functions=[call], opset_imports=opsets, ir_version=9), path)
    with explorer.Session(path) as session:
        found = session.placement()
        rows = {row.name: found.providers[row.id] for row in session.analysis().layers}
    assert rows == {
        **dict.fromkeys(("k", "exp"), ""),
        **dict.fromkeys(("if", "then_branch", "else_branch", "in_Relu", "in_Neg", "call", "add"), "CPU"),
    }
    assert found.removed == ("k", "exp")


def test_a_function_whose_nodes_have_no_names_and_are_fused_runs_where_they_do(tmp_path: Path) -> None:
    body = [
        h.make_node("Relu", ["a"], ["t"]),
        h.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
        h.make_node("MatMul", ["t", "u"], ["b"]),
    ]
    block = h.make_function("own", "Block", ["a"], ["b"], body, [h.make_opsetid("", 17)])
    calls = [h.make_node("Block", [x], [y], domain="own", name=y) for x, y in (("x", "one"), ("one", "two"))]
    ports = [h.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in ("x", "two")]
    graph = h.make_graph(calls, "g", ports[:1], ports[1:])
    opsets = [h.make_opsetid("", 17), h.make_opsetid("own", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(h.make_model(graph, functions=[block], opset_imports=opsets, ir_version=9), path)
    with explorer.Session(path) as session:
        found = session.placement()
        rows = [row.id for row in session.analysis().layers]
    assert {found.providers[row] for row in rows} == {"CPU"}
    assert (found.removed, len(found.partitions)) == ((), 1)


def test_what_one_provider_compiles_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnxruntime.InferenceSession.get_provider_graph_assignment_info

    def told(session: Any) -> list[Any]:
        nodes = [node for part in real(session) for node in part.get_nodes()]
        first, rest = nodes[:6], nodes[6:]
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes)
            for name, nodes in ((CUDA, first), (CPU, rest[:1]), (CPU, rest[1:]))
        ]

    monkeypatch.setattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info", told)
    found = asked()
    assert found.fused[0].op == "compiled graph"
    assert found.fused[0].layers == tuple(found.partitions[0].layers)


def test_the_command_has_a_column_a_filter_and_the_partitions(
    cuda: Callable[[Callable[[str], bool]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cuda(lambda op: op == "Conv")
    words = ["layers", LENET, "--provider", "all", "--filter", "provider:cuda"]
    assert main([*words, "--columns", "provider"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "conv1 CUDA conv2 CUDA total of 2 found" in text
    assert "Partitions 4" in text
    assert "1 CUDA 1 /conv1/Conv" in text
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema("layers"))
    assert [row["provider"] for row in document["table"]] == ["CUDA", "CUDA"]
    assert document["placement"]["layers"] == {CPU: 10, CUDA: 2}
    assert len(document["placement"]["partitions"]) == 4


def test_providers_are_chosen_by_name() -> None:
    assert asked(providers=["cpu"]).asked == (CPU,)
    assert asked(providers=["CPUExecutionProvider"]).asked == (CPU,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([LENET, "--provider", "npu"], "onnxruntime has no provider 'npu' here"),
        (
            ["sample_models/three_inputs.onnx", "--columns", "provider"],
            "needs to ask onnxruntime: --provider",
        ),
        ([LENET, "--filter", "provider:cpu"], "needs to ask onnxruntime: --provider"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    assert main(["layers", *words]) == 2
    assert said in capsys.readouterr().err


def test_only_graphs_are_asked_of() -> None:
    torch = pytest.importorskip("torch")
    with (
        explorer.Session(torch.nn.Linear(2, 2), inputs=torch.zeros(1, 2)) as session,
        pytest.raises(explorer.Misuse, match="runs ONNX graphs, and this model is not one"),
    ):
        session.placement()


@pytest.mark.slow
def test_a_tiled_model_and_a_call_whose_nodes_run_on_several_providers(
    tmp_path: Any, cuda: Callable[[Callable[[str], bool]], None]
) -> None:
    path = str(tmp_path / "tiled.onnx")
    assert main(["tile", "sample_models/mlp_128.onnx", "--tile", "64", "-o", path, "--quiet"]) == 0
    with explorer.Session(path) as session:
        assert {session.placement().providers[row.id] for row in session.analysis().layers} == {"CPU"}
    cuda(lambda op: op in ("MatMul", "Gemm"))
    with explorer.Session(path) as session:
        found = session.placement()
        assert set(found.providers[0].split(", ")) == {"CPU", "CUDA"}
    assert found.notes == (
        "calls of functions on several providers, each counted in the partition of one: 1",
    )


def test_a_graph_without_nodes_runs_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    onnx.save(h.make_model(h.make_graph([], "g", [], []), opset_imports=[h.make_opsetid("", 17)]), path)
    with explorer.Session(path) as session:
        told = session.placement()
    assert (dict(told.layers), list(told.partitions), list(told.boundaries)) == ({}, [], [])
