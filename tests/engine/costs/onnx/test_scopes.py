"""The module hierarchy comes back from what an exporter left in a file."""

from __future__ import annotations

from explorer.engine.costs.onnx.scopes import assign_scoped_names
from explorer.engine.graph.model import Node


def named(*names: str) -> list[tuple[list[str], str]]:
    nodes = [Node("Relu", ["x"], [f"y{i}"], name=name) for i, name in enumerate(names)]
    return [([s.path for s in p.scopes], p.name) for p in assign_scoped_names(nodes)]


def test_torchscript_names_lose_the_repeated_container() -> None:
    assert named(
        "/layer1/layer1.0/conv1/Conv",
        "/layer1/layer1.0/conv1/Extra",
        "/layer1/layer1.0/relu/Relu",
        "/layer1/layer1.1/relu/Relu",
        "/Flatten",
    ) == [
        (["layer1", "layer1.0", "layer1.0.conv1"], "Conv"),
        (["layer1", "layer1.0", "layer1.0.conv1"], "Extra"),
        (["layer1", "layer1.0"], "relu"),
        (["layer1", "layer1.1"], "relu"),
        ([], "Flatten"),
    ]


def test_a_group_of_one_operator_gives_it_its_name() -> None:
    assert named("/features/features.0/Conv", "/features/features.1/Relu") == [
        (["features"], "0"),
        (["features"], "1"),
    ]


def test_a_list_of_modules_becomes_a_group_of_its_own() -> None:
    found = named(
        "/encoder/layer.0/query/MatMul",
        "/encoder/layer.0/query/Add",
        "/encoder/layer.1/query/MatMul",
        "/encoder/layer.1/query/Add",
    )
    assert found[0][0] == ["encoder", "encoder.layer", "encoder.layer.0", "encoder.layer.0.query"]
    assert found[3][0][-1] == "encoder.layer.1.query"


def test_dynamo_scopes_bring_the_classes_along() -> None:
    names = "pkg.torch.onnx.name_scopes"
    classes = "pkg.torch.onnx.class_hierarchy"
    metadata = [
        {
            names: "['', 'features', 'features.0', 'conv2d']",
            classes: "['net.AlexNet', 'torch.nn.Sequential', 'torch.nn.Conv2d', 'aten.conv2d.default']",
        },
        {
            names: "['', 'features', 'features.1', 'relu']",
            classes: "['net.AlexNet', 'torch.nn.Sequential', 'torch.nn.ReLU', 'aten.relu.default']",
        },
    ]
    nodes = [Node("N", ["x"], [f"y{i}"], name=f"n{i}", metadata=m) for i, m in enumerate(metadata)]
    found = assign_scoped_names(nodes)
    assert [([(s.path, s.kind) for s in p.scopes], p.name) for p in found] == [
        ([("features", "Sequential")], "0"),
        ([("features", "Sequential")], "1"),
    ]


def test_plain_names_group_at_slashes_and_dots() -> None:
    assert named("model/block/conv", "model/block/relu", "model/dense") == [
        (["model", "model.block"], "conv"),
        (["model", "model.block"], "relu"),
        (["model"], "dense"),
    ]
    assert named("enc.0.fc", "enc.0.act", "fc1", "Conv_3") == [
        (["enc", "enc.0"], "fc"),
        (["enc", "enc.0"], "act"),
        ([], "fc1"),
        ([], "Conv_3"),
    ]


def test_without_names_nodes_are_numbered_by_type() -> None:
    nodes = [Node("Conv", ["x"], ["1"]), Node("Relu", ["1"], ["2"]), Node("Conv", ["2"], ["3"])]
    assert [p.name for p in assign_scoped_names(nodes)] == ["Conv_0", "Relu_0", "Conv_1"]
    assert all(p.scopes == () for p in assign_scoped_names(nodes))


def test_an_unnamed_node_is_placed_by_its_output() -> None:
    nodes = [
        Node("Conv", ["x"], ["/features/features.0/Conv_output_0"]),
        Node("Relu", ["x"], ["/features/features.1/Relu_output_0"]),
    ]
    assert [[s.path for s in p.scopes] for p in assign_scoped_names(nodes)] == [["features"], ["features"]]


def test_the_nodes_of_a_tiled_site_stand_under_its_name() -> None:
    site = {"tile_hw.site": "/fc/Gemm"}
    nodes = [
        Node("2DMM", ["x"], ["a"], name="/fc/Gemm/p_0", metadata=site),
        Node("2DMM", ["x"], ["b"], name="/fc/Gemm/p_1", metadata=site),
        Node("Relu", ["b"], ["c"], name="/act/Relu"),
    ]
    found = assign_scoped_names(nodes)
    assert [([s.path for s in p.scopes], p.name) for p in found] == [
        (["/fc/Gemm"], "p_0"),
        (["/fc/Gemm"], "p_1"),
        ([], "act"),
    ]
    assert found[0].scopes[0].kind == "tiled"


def test_a_tiled_site_stands_in_the_module_that_dynamo_wrote_for_its_product() -> None:
    scopes = {
        "pkg.torch.onnx.name_scopes": "['', 'classifier', 'classifier.1', 'linear']",
        "pkg.torch.onnx.class_hierarchy": "['m.AlexNet', 'm.Sequential', 'm.Linear', 'aten.linear.default']",
    }
    site = {"tile_hw.site": "node_linear"}
    nodes = [
        Node("Split", ["x"], ["a"], name="node_linear/x", metadata={**site, **scopes}),
        Node("2DMM", ["a"], ["b"], name="node_linear/p_0", metadata=site),
        Node("Relu", ["b"], ["c"], name="/classifier/classifier.2/Relu"),
    ]
    found = assign_scoped_names(nodes)
    assert [[s.name for s in p.scopes] for p in found] == [["classifier", "1"]] * 2 + [["classifier"]]
    assert [s.kind for s in found[1].scopes] == ["Sequential", "tiled"]


def test_names_in_a_body_lose_what_the_body_has_already() -> None:
    nodes = [
        Node("Add", ["x"], ["a"], name="/rnn/Loop/step/Add"),
        Node("Mul", ["a"], ["b"], name="/rnn/Loop/step/Mul"),
    ]
    found = assign_scoped_names(nodes, "/rnn/Loop")
    assert [([s.path for s in p.scopes], p.name) for p in found] == [(["step"], "Add"), (["step"], "Mul")]


def test_hostile_metadata_and_names_do_no_harm() -> None:
    bad = [
        {"pkg.torch.onnx.name_scopes": "__import__('os').getpid()"},
        {"pkg.torch.onnx.name_scopes": "[" * 5000},
        {"pkg.torch.onnx.name_scopes": "{'a': 1}"},
    ]
    nodes = [Node("N", ["x"], [f"y{i}"], name=f"n{i}", metadata=m) for i, m in enumerate(bad)]
    nodes.append(Node("N", ["x"], ["z"], name="/a" * 5000))
    nodes.append(Node("N", ["x"], ["zz"], name="///"))
    found = assign_scoped_names(nodes)
    assert [p.name for p in found[:3]] == ["n0", "n1", "n2"]
    assert len(found[3].scopes) < 100
