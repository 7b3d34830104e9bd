"""`explorer graph`: which layer feeds which, in a picture, a page, Graphviz's words, Model Explorer's."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from explorer import Session, TileSpec, make_model
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.facts.graph.drawing import GraphDrawing
from explorer.report.document_schema import build_schema

Sample = Callable[[str], Path]
SVG = "{http://www.w3.org/2000/svg}"


def saved(path: Path, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], **more: Any) -> Path:
    """A model of nodes over x of 2x4."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [2, 4])],
        [value(name, TensorProto.FLOAT, None) for name in outputs],
        **more,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def chain(path: Path, count: int, name: Callable[[int], str] = "relu{}".format) -> Path:
    """A model of so many operators, one behind the other."""
    nodes = [
        helper.make_node("Relu", [f"v{at}" if at else "x"], [f"v{at + 1}"], name=name(at))
        for at in range(count)
    ]
    return saved(path, nodes, [f"v{count}"])


def texts(path: Path) -> list[str]:
    """All text of a picture."""
    return [element.text or "" for element in ElementTree.parse(path).iter(f"{SVG}text")]


def edges(drawing: GraphDrawing) -> set[tuple[str, str]]:
    """The names of the boxes at both ends of every edge."""
    return {(drawing.boxes[e.source].name, drawing.boxes[e.target].name) for e in drawing.edges}


def test_a_picture_names_every_layer_and_what_goes_along_the_edges(sample: Sample, tmp_path: Path) -> None:
    assert main(["graph", str(sample("lenet")), "-o", str(tmp_path / "lenet.svg"), "--quiet"]) == 0
    said = texts(tmp_path / "lenet.svg")
    with Session(str(sample("lenet"))) as session:
        leaves = [layer for layer in session.analysis().layers if not layer.group]
    drawn = [layer for layer in leaves if layer.macs or layer.kind in ("Relu", "MaxPool")]
    assert drawn
    assert all(sum(layer.name in text for text in said) for layer in drawn)
    assert any(re.fullmatch(r"\d+×\d+×\d+×\d+", text) for text in said)
    # self-contained: nothing is fetched
    assert re.findall(r"https?://[^\"']*", (tmp_path / "lenet.svg").read_text()) == [
        "http://www.w3.org/2000/svg"
    ]


def test_a_tiled_site_is_one_box_that_says_its_tiles(sample: Sample, tmp_path: Path) -> None:
    with Session(str(sample("lenet"))) as session:
        plan = session.tile(TileSpec(tile=(16, 16, 16)), output=str(tmp_path / "tiled.onnx")).plan
        drawing = session.graph()
        tiled = {box.path: box for box in drawing.boxes if box.tiles}
        assert set(tiled) == {site.name for site in plan.sites}
        for site in plan.sites:
            assert tiled[site.name].tiles == f"{site.products_total:,} tiles 16x16x16"
            assert tiled[site.name].family == "tile"
        assert len(drawing.boxes) < 20
        assert drawing.width < 40
        # opened, it is made of tiles
        inside = session.graph(plan.sites[0].name)
        assert any("2DMM" in box.kind for box in session.graph(plan.sites[0].name, depth=9).boxes)
        assert all(box.path != plan.sites[0].name for box in inside.boxes if box.role != "outside")


def test_products_and_their_sum_are_one_box_where_a_layer_has_many_tiles(tmp_path: Path) -> None:
    make_model("linear:1x32x12:bias", output=str(tmp_path / "m.onnx"))
    with Session(str(tmp_path / "m.onnx")) as session:
        session.tile(TileSpec(tile=(2, 2, 2)), verify=False)
        drawing = session.graph("fc")
        columns = [box for box in drawing.boxes if box.role == "part"]
        assert [box.name for box in columns] == ["16 products + Sum"] * 6
        assert {box.figures["macs"] for box in columns} == {32 * 2}
        joined = next(index for index, box in enumerate(drawing.boxes) if box.kind.startswith("Concat"))
        assert sum(edge.target == joined for edge in drawing.edges) == 6
        assert columns[2].unfolds is not None
        opened = session.graph("fc", unfold=[columns[2].unfolds])
        assert sum(box.kind.startswith("2DMM") for box in opened.boxes) == 16
        assert sum(box.name == "16 products + Sum" for box in opened.boxes) == 5


def test_equal_blocks_in_a_row_are_one_box(tmp_path: Path) -> None:
    kinds = ("Relu", "Sigmoid", "Tanh")
    nodes, before = [], "x"
    for block in range(12):
        for at, kind in enumerate(kinds):
            nodes.append(
                helper.make_node(kind, [before], [f"v{block}.{at}"], name=f"/blocks/blocks.{block}/{kind}")
            )
            before = f"v{block}.{at}"
    with Session(str(saved(tmp_path / "m.onnx", nodes, [before]))) as session:
        drawing = session.graph("blocks")
        (block,) = [box for box in drawing.boxes if box.role == "group"]
        assert (block.repeat, block.layers) == (12, 36)
        assert block.kind_text.endswith("×12")
        assert edges(drawing) == {("x", block.name), (block.name, before)}
        assert [box.name for box in session.graph("blocks.3").boxes if box.role == "layer"] == [*kinds]


def test_joins_and_skips_are_edges_and_no_box_lies_on_another(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Tanh", ["a"], ["b"], name="long"),
        node("Tanh", ["b"], ["c"], name="way"),
        node("Sigmoid", ["a"], ["d"], name="short"),
        node("Sum", ["c", "d", "a"], ["y"], name="join"),
    ]
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["y"]))) as session:
        drawing = session.graph()
    assert edges(drawing) == {
        *(("x", "first"), ("first", "long"), ("first", "short"), ("long", "way")),
        *(("way", "join"), ("short", "join"), ("first", "join"), ("join", "y")),
    }
    for edge in drawing.edges:
        source, target = drawing.boxes[edge.source], drawing.boxes[edge.target]
        assert source.rank < target.rank
        assert not edge.back
        assert edge.points[0][1] >= source.y + source.height
        assert edge.points[-1][1] < target.y
        for box in drawing.boxes:
            inside = [
                p
                for p in edge.points
                if box.x <= p[0] < box.x + box.width and box.y < p[1] < box.y + box.height
            ]
            assert not inside
    cells = [
        (x, y) for b in drawing.boxes for x in range(b.x, b.x + b.width) for y in range(b.y, b.y + b.height)
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < drawing.width and 0 <= y < drawing.height for x, y in cells)


def test_constants_and_shape_arithmetic_are_folded_away_and_counted(tmp_path: Path) -> None:
    node, value = helper.make_node, helper.make_tensor
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Constant", [], ["zero"], name="zero", value=value("z", TensorProto.INT64, [], [0])),
        node("Gather", ["s", "zero"], ["n"], name="gather"),
        node("Unsqueeze", ["n", "axes"], ["n1"], name="unsqueeze"),
        node("Concat", ["n1", "rest"], ["to"], name="concat", axis=0),
        node("Relu", ["x"], ["a"], name="relu"),
        node("Reshape", ["a", "to"], ["y"], name="reshape"),
    ]
    tables = [value("axes", TensorProto.INT64, [1], [0]), value("rest", TensorProto.INT64, [1], [-1])]
    path = saved(tmp_path / "m.onnx", nodes, ["y"], initializer=tables)
    with Session(str(path)) as session:
        drawing = session.graph()
    assert edges(drawing) == {("x", "relu"), ("relu", "reshape"), ("reshape", "y")}
    assert drawing.folded == 5
    assert main(["graph", str(path), "-o", str(tmp_path / "m.svg"), "--quiet"]) == 0
    assert any("5 layers folded away: constants" in text for text in texts(tmp_path / "m.svg"))


def test_a_model_of_no_input_is_drawn_all_the_same(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("RandomNormal", [], ["r"], name="draw", shape=[2, 4]),
        node("Relu", ["r"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, [2, 4])])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with Session(str(tmp_path / "m.onnx")) as session:
        assert ("draw", "relu") in edges(session.graph())


def test_a_layer_is_drawn_with_what_is_around_it(sample: Sample, tmp_path: Path) -> None:
    with Session(str(chain(tmp_path / "m.onnx", 20))) as session:
        names = [box.name for box in session.graph("relu10").boxes]
        assert names == ["from relu7", "relu8", "relu9", "relu10", "relu11", "relu12", "to relu13"]
        assert [box.name for box in session.graph("relu0", depth=1).boxes] == [
            "x",
            "relu0",
            "relu1",
            "to relu2",
        ]


def test_a_group_is_drawn_with_what_it_reads_and_what_reads_it(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="before"),
        node("Tanh", ["a"], ["b"], name="/block/one/Tanh"),
        node("Relu", ["b"], ["c"], name="/block/two/Relu"),
        node("Relu", ["c"], ["y"], name="after"),
    ]
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["y"]))) as session:
        drawing = session.graph("block")
        assert edges(drawing) == {("from before", "one"), ("one", "two"), ("two", "to after")}
        assert [box.kind for box in session.graph(depth=1).boxes if box.role == "group"] == ["Module"]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "depth"), [(8_000, None), (2_000, 50)])
def test_however_many_layers_stand_in_a_row_the_boxes_are_few(
    tmp_path: Path, count: int, depth: int | None
) -> None:
    with Session(str(chain(tmp_path / "m.onnx", count))) as session:
        drawing = session.graph(depth=depth)
        assert len(drawing.boxes) <= 66
        assert sum(box.layers for box in drawing.boxes) == count
        assert "neighbors are drawn as one box" in drawing.notes[0]
        nested = session.graph(nested=True)
    boxes, inside = 0, [nested]
    while inside:
        boxes += len(inside[-1].boxes)
        inside += [box.inside for box in inside.pop().boxes if box.inside is not None]
    assert boxes < 10_000


@pytest.mark.slow
def test_where_everything_reads_everything_the_picture_stays_small(tmp_path: Path) -> None:
    count = 120
    nodes = [
        helper.make_node("Sum", ["x", *(f"v{i}" for i in range(at))], [f"v{at}"], name=f"n{at}")
        for at in range(count)
    ]
    path = saved(tmp_path / "m.onnx", nodes, [f"v{count - 1}"])
    assert main(["graph", str(path), "-o", str(tmp_path / "m.svg"), "--quiet"]) == 0
    assert (tmp_path / "m.svg").stat().st_size < 1_000_000
    assert any("edges have no room" in text for text in texts(tmp_path / "m.svg"))


def test_a_loop_is_a_group_and_its_body_hangs_together(tmp_path: Path) -> None:
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Relu", ["in"], ["mid"], name="relu"), node("Tanh", ["mid"], ["out"], name="tanh"),
         node("Identity", ["go"], ["on"], name="go_on")],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("in", 1, [2, 4])],
        [value("on", TensorProto.BOOL, []), value("out", 1, [2, 4])],
    )  # fmt: skip
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Loop", ["trips", "", "a"], ["y"], name="loop", body=body),
    ]
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [3])
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["y"], initializer=[trips]))) as session:
        assert {("x", "first"), ("first", "loop"), ("loop", "y")} <= edges(session.graph(depth=1))
        assert ("relu", "tanh") in edges(session.graph("loop"))
        # opened in its place it hangs together with what stands around it
        assert edges(session.graph(depth=2)) == {
            *(("x", "first"), ("first", "into loop"), ("into loop", "loop.relu"), ("loop.relu", "loop.tanh")),
            *(("into loop", "loop.go_on"), ("loop.go_on", "out of loop"), ("loop.tanh", "out of loop")),
            ("out of loop", "y"),
        }


def test_opened_branches_come_out_of_their_if_and_a_body_in_a_body_too(tmp_path: Path) -> None:
    node, value = helper.make_node, helper.make_tensor_value_info

    def branch(name: str, op: str, read: str) -> Any:
        return helper.make_graph(
            [node(op, [read], [f"{name}_out"], name=op)], name, [], [value(f"{name}_out", 1, None)]
        )

    inner = node(
        "If",
        ["go"],
        ["in2"],
        name="inner",
        then_branch=branch("c", "Exp", "in"),
        else_branch=branch("d", "Log", "in"),
    )
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"], name="go_on"), inner],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("in", 1, [2, 4])],
        [value("on", TensorProto.BOOL, []), value("in2", 1, [2, 4])],
    )
    nodes = [
        node("Greater", ["x", "x"], ["more"], name="more"),
        node("ReduceMax", ["more_i"], ["pick_i"], name="pick", keepdims=0),
        node("Cast", ["pick_i"], ["pick_b"], name="as_bool", to=TensorProto.BOOL),
        node(
            "If",
            ["pick_b"],
            ["z"],
            name="choose",
            then_branch=branch("a", "Relu", "x"),
            else_branch=branch("b", "Neg", "x"),
        ),
        node("Loop", ["trips", "pick_b", "z"], ["y"], name="loop", body=body),
    ]
    nodes.insert(1, node("Cast", ["more"], ["more_i"], name="as_int", to=TensorProto.INT32))
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [3])
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["y"], initializer=[trips]))) as session:
        found = edges(session.graph(depth=9))
        assert {
            *(("choose.then_branch.Relu", "out of choose"), ("choose.else_branch.Neg", "out of choose")),
            *(("as_bool", "out of choose"), ("out of choose", "into loop"), ("as_bool", "into loop")),
            *(("into loop", "loop.inner.then_branch"), ("into loop", "out of loop.inner")),
            *(("loop.inner.then_branch", "out of loop.inner"), ("out of loop.inner", "out of loop")),
            ("out of loop", "y"),
        } <= found
        # one that is closed is one box
        found = edges(session.graph(unfold=["loop"]))
        assert {("choose", "into loop"), ("into loop", "loop.inner"), ("loop.inner", "out of loop")} <= found


def called_twice() -> tuple[Any, Any]:
    """A module in which one layer is called twice, and inputs for it."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.two(self.relu(self.one(x))) + x)

    return Block(), (torch.zeros(2, 4),)


def test_a_module_that_is_called_again_has_a_box_for_each_call() -> None:
    model, inputs = called_twice()
    with Session(model, inputs=inputs) as session:
        drawing = session.graph()
    named = [f"{box.name} {box.call[0]}" if box.call[0] else box.name for box in drawing.boxes]
    found = {(named[e.source], named[e.target]) for e in drawing.edges}
    assert found == {
        *(("x", "one"), ("one", "relu 1"), ("relu 1", "two"), ("two", "add"), ("x", "add")),
        *(("add", "relu 2"), ("relu 2", "relu")),
    }
    assert not any(edge.back for edge in drawing.edges)


def test_colours_are_of_a_figure_when_one_is_asked_for(sample: Sample, tmp_path: Path) -> None:
    fills = []
    for color in ("family", "macs"):
        out = tmp_path / f"{color}.svg"
        assert main(["graph", str(sample("lenet")), "-o", str(out), "--color", color, "--quiet"]) == 0
        fills.append({rect.get("fill") for rect in ElementTree.parse(out).iter(f"{SVG}rect")})
    assert "#d94801" in fills[1] - fills[0]  # the largest


def test_a_text_has_the_shapes_beside_its_edges_whole(sample: Sample, tmp_path: Path) -> None:
    out = tmp_path / "m.txt"
    assert main(["graph", str(sample("lenet")), "-o", str(out), "--quiet"]) == 0
    with Session(str(sample("lenet"))) as session:
        edges = [edge for edge in session.graph().edges if edge.points and edge.tensors == 1]
    # each number of channels, and not its first digits
    ends = {"×".join(map(str, edge.tensor.shape or ())) for edge in edges}
    told = out.read_text().split()
    beside = {word for word in told if word.count("×") == 3 and word.replace("×", "").isdecimal()}
    assert beside
    assert beside <= ends


def test_graphviz_takes_what_is_written_for_it(sample: Sample, tmp_path: Path) -> None:
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    hostile = chain(tmp_path / "m.onnx", 3, lambda at: f'n{at}"]; a [label=<b>\\N\\l{{|}}\n</b>')
    for name, model in (("lenet", sample("lenet")), ("hostile", hostile)):
        out = tmp_path / f"{name}.dot"
        assert main(["graph", str(model), "-o", str(out), "--quiet"]) == 0
        drawn = subprocess.run(["dot", "-Tjson", str(out)], capture_output=True, check=True, timeout=120)
        assert not drawn.stderr
        with Session(str(model)) as session:
            drawing = session.graph()
        objects = json.loads(drawn.stdout)
        assert len(objects["objects"]) == len(drawing.boxes)
        assert len(objects["edges"]) == len(drawing.edges)


def test_node_data_is_what_model_explorers_classes_make(sample: Sample, tmp_path: Path) -> None:
    out = tmp_path / "data.json"
    assert (
        main(["graph", str(sample("mobilenet_small")), "-o", str(out), "--color", "params", "--quiet"]) == 0
    )
    written = json.loads(out.read_text())
    nodes = {node.name or node.output[0] for node in onnx.load(sample("mobilenet_small")).graph.node}
    assert set(written["results"]) == nodes
    with Session(str(sample("mobilenet_small"))) as session:
        assert sum(one["value"] for one in written["results"].values()) == session.info().totals.params
    builder = _node_data_builder()
    made = builder.GraphNodeData(
        results={name: builder.NodeDataResult(**one) for name, one in written["results"].items()},
        gradient=[builder.GradientItem(**one) for one in written["gradient"]],
        name=written["name"],
    )
    theirs = json.loads(made.to_json_string())
    assert {key: theirs[key] for key in written} == written


def test_node_data_of_a_node_called_results_is_not_taken_for_that_of_many_graphs(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 2, lambda at: ("results", "other")[at])
    assert main(["graph", str(path), "-o", str(tmp_path / "m.json"), "--quiet"]) == 0
    written = json.loads((tmp_path / "m.json").read_text())
    assert set(written) == {"g"}
    builder = _node_data_builder()
    results = {n: builder.NodeDataResult(**one) for n, one in written["g"]["results"].items()}
    assert set(results) == {"results", "other"}
    made = builder.ModelNodeData({"g": builder.GraphNodeData(results=results, name="macs")})
    assert json.loads(made.to_json_string())["g"]["results"] == written["g"]["results"]


def _node_data_builder() -> Any:
    """The module with the classes."""
    return _of_model_explorer("node_data_builder")


def _of_model_explorer(name: str) -> Any:
    """A module of its package, without the web server that the package imports first (5 s)."""
    found = importlib.util.find_spec("model_explorer")
    if found is None:
        pytest.skip("ai-edge-model-explorer is not installed")
    package = types.ModuleType("model_explorer")
    package.__path__ = list(found.submodule_search_locations or ())
    before = sys.modules.get("model_explorer")
    sys.modules["model_explorer"] = package
    try:
        return importlib.import_module(f"model_explorer.{name}")
    finally:
        sys.modules.pop("model_explorer")
        if before is not None:
            sys.modules["model_explorer"] = before


def in_browser(page: Path) -> str:
    """The page's document after its script has run, in Chromium without a network."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium here")
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]
    words += [f"--user-data-dir={page.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    return subprocess.run(
        [*words, page.as_uri()], capture_output=True, text=True, check=True, timeout=120
    ).stdout


@pytest.mark.slow
def test_the_page_folds_and_unfolds_and_runs_no_name(tmp_path: Path) -> None:
    evil = "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name=evil),
        helper.make_node("Tanh", ["a"], ["b"], name="/block/inner_one/Tanh"),
        helper.make_node("Relu", ["b"], ["y"], name="/block/inner_two/Relu"),
    ]
    page = tmp_path / "m.html"
    assert main(["graph", str(saved(tmp_path / "m.onnx", nodes, ["y"])), "-o", str(page), "--quiet"]) == 0
    source = page.read_text()
    assert "default-src 'none'" in source
    assert "<img" not in source
    assert "</script><script>" not in source.replace("</script>\n", "")
    before, rest = source.split('id="data">')
    assert not re.search(r"(src|href)=|url\((?!#)|@import", before + rest.split("</script>", 1)[1])
    shut = in_browser(page)
    assert "<title>m.onnx</title>" in shut
    assert ">block</text>" in shut
    assert ">inner_one</text>" not in shut
    open_ = tmp_path / "open.html"
    open_.write_text(
        source.replace("draw(); fit();\n</script>", "draw(); fit(); byId('unfold').click();\n</script>")
    )
    assert ">inner_one</text>" in in_browser(open_)
    again = tmp_path / "again.html"
    click = "byId('unfold').click(); byId('fold').click();"
    again.write_text(source.replace("draw(); fit();\n</script>", f"draw(); fit(); {click}\n</script>"))
    assert ">inner_one</text>" not in in_browser(again)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "m.png"], "use .svg, .html, .txt, .dot or .json"),
        (["-o", "m.svg", "--layer", "relu99"], "the model has no layer 'relu99'"),
        (["-o", "m.svg", "--depth", "0"], "--depth"),
        (["-o", "m.json", "--layer", "relu1"], "node data describes the full model"),
        (["-o", "m.svg", "--color", "joules"], "--color"),
        (["-o", "old.svg"], "--force"),
        ([], "add --output FILE.svg (or .html, .txt, .dot, .json)"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_nothing_is_written(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    chain(tmp_path / "m.onnx", 3)
    (tmp_path / "old.svg").write_text("old")
    assert main(["graph", "m.onnx", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "old.svg"]
    assert (tmp_path / "old.svg").read_text() == "old"


def test_a_file_of_tensors_says_why_it_has_none(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    numpy.save_file({"a.w": np.ones((2, 2), np.float32)}, tmp_path / "m.safetensors")
    with (
        Session(str(tmp_path / "m.safetensors")) as session,
        pytest.raises(Misuse, match="order of execution"),
    ):
        session.graph()


def _program_ids(program: Any) -> set[str]:
    """The nodes that Model Explorer's own adapter makes of an exported program, without what it reads."""
    adapter = _of_model_explorer("pytorch_exported_program_adapter_impl")
    (graph,) = adapter.PytorchExportedProgramAdapterImpl(program, {"const_element_count_limit": 1}).convert()[
        "graphs"
    ]
    return {node.id for node in graph.nodes if node.namespace != "inputs" and node.label != "output"}


@pytest.mark.slow
def test_node_data_of_a_pytorch_model_goes_by_the_nodes_that_model_explorer_makes_of_it(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x: Any) -> Any:
            one, other = self.norm(self.conv(x)).flatten(2).transpose(1, 2).split(18, 1)
            return self.layer(one) + self.layer(other)

    module, x = Block().eval(), torch.zeros(1, 3, 8, 8)
    program = torch.export.export(module, (x,))
    with Session(module, inputs=(x,)) as session:
        found = {figure: session.node_figures(figure).values for figure in ("macs", "params")}
        totals = session.info().totals
        assert sum(found["macs"].values()) == totals.macs
        # what runs twice reads its parameters twice
        twice = sum(p.numel() for p in module.layer.parameters())
        assert sum(found["params"].values()) == totals.params + twice
        with pytest.raises(Misuse, match="the nodes of a program have no 'read'"):
            session.node_figures("read")
    torch.export.save(program, tmp_path / "m.pt2")
    with Session(str(tmp_path / "m.pt2")) as session:
        assert {figure: session.node_figures(figure).values for figure in found} == found
    assert set(found["macs"]) == _program_ids(program)
    # and through the command line, from a file
    assert main(["graph", str(tmp_path / "m.pt2"), "-o", str(tmp_path / "m.json"), "--quiet"]) == 0
    written = json.loads((tmp_path / "m.json").read_text())
    assert {name: one["value"] for name, one in written["results"].items()} == found["macs"]
    torch.jit.trace(module.conv, x).save(tmp_path / "m.pt")
    with (
        Session(str(tmp_path / "m.pt"), input_shapes={"input": (None, (1, 3, 8, 8))}) as session,
        pytest.raises(Misuse, match="does not show TorchScript"),
    ):
        session.node_figures()


@pytest.mark.slow
def test_node_data_of_tensorflow_lite_goes_by_the_tensors_that_model_explorer_knows(tmp_path: Path) -> None:
    pytest.importorskip("tflite")
    numpy = pytest.importorskip("numpy")
    from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, build

    weight = T((3, 4), data=numpy.ones((3, 4), numpy.float32), name="w")
    tensors = [T((1, 4), name="x"), weight, T((1, 3), name="net/dense/out"), T((1, 3), name="net/act")]
    ops = [Op("FULLY_CONNECTED", [0, 1, -1], [2]), Op("RELU", [2], [3])]
    path = tmp_path / "m.tflite"
    path.write_bytes(build(Sub(tensors, ops, [0], [3])))
    with Session(str(path)) as session:
        assert edges(session.graph()) == {
            ("x", "net.dense"),
            ("net.dense", "net.act"),
            ("net.act", "net/act"),
        }
        values = session.node_figures("macs").values
    assert values == {"net/dense/out": 12, "net/act": 0}
    adapter = pytest.importorskip("ai_edge_model_explorer_adapter")
    drawn = json.loads(adapter.ConvertFlatbufferDirectlyToJson(adapter.VisualizeConfig(), str(path)))
    named = {
        attribute["value"]: node["label"]
        for node in drawn[0]["subgraphs"][0]["nodes"]
        for made in node["outputsMetadata"]
        for attribute in made["attrs"]
        if attribute["key"] == "tensor_name"
    }
    assert {named[name] for name in values} == {"fully_connected", "relu"}


def test_node_data_says_of_how_many_nodes_the_figure_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, profile, out = chain(tmp_path / "m.onnx", 3), tmp_path / "profile.csv", tmp_path / "m.json"
    for rows, known in (("relu1,4\n", 1), ("relu0,\n", 0)):
        profile.write_text("layer,latency\n" + rows + "elsewhere,4\n")
        words = ["--overlay", str(profile), "--color", "latency", "--force", "--quiet"]
        assert main(["graph", str(path), "-o", str(out), *words]) == 0
        assert f"latency of {3 - known} of 3 nodes is not known" in capsys.readouterr().err
        assert len(json.loads(out.read_text())["results"]) == known


def test_a_name_of_several_opens_all_groups_and_says_that_a_layer_is_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["same", "same", "/a/blk/one", "/a/blk/two", "/b/blk/one", "/b/blk/two"]
    flow = ["x", *(f"t{at}" for at in range(len(names) - 1)), "y"]
    nodes = [helper.make_node("Relu", [flow[at]], [flow[at + 1]], name) for at, name in enumerate(names)]
    path, out = saved(tmp_path / "m.onnx", nodes, ["y"]), tmp_path / "m.svg"
    words = ["graph", str(path), "-o", str(out), "--force", "--quiet"]
    assert main([*words, "--depth", "1", "--unfold", "blk"]) == 0
    picture = out.read_text()
    assert all(f">{end}/one<" in picture or f"{end}/one" in picture for end in ("a/blk", "b/blk"))
    assert main([*words, "--layer", "same"]) == 0
    assert "'same' is the first of 2 layers of that name: the other is same#2" in capsys.readouterr().err
    assert main([*words, "--layer", "same#2"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["layers", str(path), "--layer", "same"]) == 0
    assert "the other is same#2" in capsys.readouterr().out
    assert main([*words, "--unfold", "one"]) == 2
    assert "'one' is 2 layers, no group" in capsys.readouterr().err


def _scripted(path: Path) -> Any:
    torch = pytest.importorskip("torch")
    net = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.ReLU())))
    net.save(str(path))
    return torch.jit.load(str(path))


def _graph_lines(text: str) -> list[str]:
    """Lines without the numbers that torch gives mangled classes, anew in each process."""
    return [re.sub(r"___torch_mangle_\d+\.", "", line) for line in text.splitlines()]


def test_code_is_the_ssa_graph_that_torch_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pt"
    net = _scripted(path)
    inner = {name: module for name, module in net.named_modules() if name in ("", "0", "1.0")}
    assert len(inner) == 3
    for layer, module in inner.items():
        words = ["graph", str(path), "--code", "--trust", *(("--layer", layer) if layer else ())]
        assert main(words) == 0
        lines = _graph_lines(capsys.readouterr().out)
        graph = _graph_lines(str(module.graph).rstrip())
        assert graph[0].startswith("graph(%self")
        assert lines[3:] == graph
        assert lines[0].startswith(str(path))
    assert main(["graph", str(path), "--code", "--trust", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, build_schema("graph", closed=True))
    assert answer["module_class"].endswith("Sequential")
    assert _graph_lines(answer["text"]) == _graph_lines(str(net.graph).rstrip())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "torch runs code of the file to print its graph; add --trust"),
        (["--trust", "--layer", "7"], "--layer 7: the model has no such module; "),
        (["--trust", "-o", "net.svg"], "--output: the text of --code is not a drawing; "),
        (["--trust", "--depth", "2"], "--depth: the text of --code is not a drawing; "),
    ],
)
def test_code_that_cannot_be_printed_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _scripted(tmp_path / "net.pt")
    assert main(["graph", str(tmp_path / "net.pt"), "--code", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt"]


def test_code_of_a_file_without_code_is_refused(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(sample("lenet")), "--code", "--trust"]) == 2
    assert "only a TorchScript file contains code" in capsys.readouterr().err


def test_the_row_of_a_function_has_the_code_of_the_module_that_calls_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Doubling(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.inner(x) + x

    torch.jit.trace(Doubling(), torch.ones(1, 3)).save(str(tmp_path / "net.pt"))
    with Session(str(tmp_path / "net.pt")) as session:
        rows = {layer.path: layer.id for layer in session.analysis().layers}
        modules = {path: session.module_code(row).module for path, row in rows.items()}
    assert modules.pop("inner") == "inner"
    assert set(modules.values()) == {""}
    assert modules
