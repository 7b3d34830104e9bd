"""`explorer graph --unfold, --steps, --from, --to`: groups opened in their place, neighbourhoods, paths."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from onnx import helper

from explorer import Session
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.facts.graph.drawing import GraphDrawing
from tests.cli.commands.test_graph import called_twice, chain, edges, in_browser, saved, texts

SVG = "{http://www.w3.org/2000/svg}"


def blocks(path: Path, count: int = 12, kinds: tuple[str, ...] = ("Relu", "Sigmoid", "Tanh")) -> Path:
    """A model of blocks that are built alike, one behind the other."""
    nodes, before = [], "x"
    for block in range(count):
        for at, kind in enumerate(kinds):
            made = f"v{block}.{at}"
            nodes.append(helper.make_node(kind, [before], [made], name=f"/blocks/blocks.{block}/{kind}"))
            before = made
    return saved(path, nodes, [before])


def names(drawing: GraphDrawing) -> list[str]:
    """Boxes of layers and groups, a run with its length."""
    return [
        f"{box.name} x{box.repeat}" if box.repeat > 1 else box.name for box in drawing.boxes if box.layers
    ]


def test_a_group_is_opened_in_its_place_and_the_rest_of_its_run_stays_folded(tmp_path: Path) -> None:
    with Session(str(blocks(tmp_path / "m.onnx"))) as session:
        whole = session.graph(depth=1)
        drawing = session.graph(unfold=["blocks.3"])
        three = [f"blocks.3.{kind}" for kind in ("Relu", "Sigmoid", "Tanh")]
        assert names(drawing) == ["blocks.0 x3", *three, "blocks.4 x8"]
        assert len(drawing.edges) == len(drawing.boxes) - 1
        assert sum(box.layers for box in drawing.boxes) == sum(box.layers for box in whole.boxes) == 36
        # what was opened is told, and what a box holds opens it
        (run,) = [box for box in session.graph("blocks").boxes if box.repeat == 12]
        assert run.unfolds is not None
        opened = session.graph("blocks", unfold=[run.unfolds])
        assert names(opened)[-1] == "1 x11"
        assert opened.unfolded == (run.unfolds,)


@pytest.mark.slow
def test_so_many_layers_that_they_are_parts_are_opened_part_by_part(tmp_path: Path) -> None:
    with Session(str(chain(tmp_path / "m.onnx", 8_000))) as session:
        drawing, unfold = session.graph(), []
        while all(box.role != "layer" for box in drawing.boxes):
            part = next(box for box in drawing.boxes if box.role == "part")
            assert part.unfolds is not None
            unfold.append(part.unfolds)
            drawing = session.graph(unfold=unfold)
            assert len(drawing.boxes) <= 302
            assert sum(box.layers for box in drawing.boxes) == 8_000
        assert len(unfold) <= 3
        # a layer that is named is opened down to, however deep it stands
        path = session.graph(between=("relu4321", "relu4324"))
        assert [box.name for box in path.boxes if box.role == "layer" and box.lit] == [
            f"relu{at}" for at in range(4321, 4325)
        ]


def test_a_group_is_one_box_with_what_stands_so_many_steps_away(tmp_path: Path) -> None:
    with Session(str(blocks(tmp_path / "m.onnx"))) as session:
        near = session.graph("blocks.3", steps=1)
        assert [box.name.rpartition("blocks.")[2] for box in near.boxes] == [
            "2.Sigmoid",
            "2.Tanh",
            "3",
            "4.Relu",
            "4.Sigmoid",
        ]
        assert [box.role for box in near.boxes] == ["outside", "layer", "group", "layer", "outside"]
        assert len(session.graph("blocks.3", steps=3).boxes) == 9
        with pytest.raises(Misuse, match="counted from a layer"):
            session.graph(steps=2)


def test_a_layer_is_named_as_the_picture_has_it(tmp_path: Path) -> None:
    with Session(str(blocks(tmp_path / "m.onnx"))) as session:
        drawing = session.graph(unfold=["blocks.3"])
        (box,) = [box for box in drawing.boxes if box.name == "blocks.3.Tanh"]
        assert box.path != box.name
        assert session.connections(box.name).layer.id == box.row
        assert session.graph(between=("blocks.3.Relu", "blocks.5.Tanh")).route is not None


def ways(after: dict[str, set[str]], at: str, goal: str) -> Iterator[tuple[str, ...]]:
    """Every path from one to another, one by one."""
    if at == goal:
        yield (goal,)
        return
    for other in after.get(at, ()):
        for way in ways(after, other, goal):
            yield (at, *way)


@pytest.mark.parametrize("seed", range(4))
def test_paths_are_those_that_are_found_one_by_one(tmp_path: Path, seed: int) -> None:
    rng, nodes, after = random.Random(seed), [], {}
    for at in range(14):
        makers = rng.sample(range(at), min(at, rng.choice((1, 1, 2, 3))))
        for maker in makers:
            after.setdefault(f"n{maker}", set()).add(f"n{at}")
        reads = [f"v{maker}" for maker in makers] or ["x"]
        nodes.append(helper.make_node("Sum", reads, [f"v{at}"], name=f"n{at}"))
    path = saved(tmp_path / "m.onnx", nodes, [f"v{at}" for at in range(14) if f"n{at}" not in after])
    tried = 0
    with Session(str(path)) as session:
        for start, goal in (("n0", "n13"), ("n1", "n12"), ("n2", "n11"), ("n3", "n9")):
            found = [*ways(after, start, goal)]
            if not found:
                with pytest.raises(Misuse, match="no path leads from"):
                    session.graph(between=(start, goal))
                continue
            tried += 1
            drawing = session.graph(between=(start, goal))
            on = {name for way in found for name in way}
            assert drawing.route is not None
            assert (drawing.route.paths, drawing.route.layers) == (len(found), len(on) - 2)
            assert {box.name for box in drawing.boxes if box.lit} == on
            assert {
                (drawing.boxes[e.source].name, drawing.boxes[e.target].name) for e in drawing.edges if e.lit
            } == {pair for way in found for pair in pairwise(way)}
    assert tried


def test_a_path_through_a_layer_that_is_called_again_leaves_by_the_call_that_it_came_in_by() -> None:
    model, inputs = called_twice()
    with Session(model, inputs=inputs) as session:
        drawing = session.graph(between=("one", "two"))
    lit = [(box.name, box.call[0]) for box in drawing.boxes if box.lit]
    assert lit == [("one", 0), ("relu", 1), ("two", 0)]
    assert drawing.route is not None
    assert (drawing.route.paths, drawing.route.layers) == (1, 1)


@pytest.mark.slow
def test_more_paths_than_can_be_told_have_no_number(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sum", ["x", *(f"v{i}" for i in range(at))], [f"v{at}"], name=f"n{at}")
        for at in range(60)
    ]
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["v59"]))) as session:
        few, many = session.graph(between=("n0", "n20")).route, session.graph(between=("n0", "n59")).route
    assert few is not None
    assert many is not None
    assert few.paths == 2**19
    assert (many.paths, many.layers) == (None, 58)


def test_a_path_is_lit_in_the_picture_and_counted_under_its_name(tmp_path: Path) -> None:
    path, out = blocks(tmp_path / "m.onnx"), tmp_path / "m.svg"
    words = ["--from", "*blocks.2/Sigmoid", "--to", "*blocks.5/Relu", "-o", str(out), "--quiet"]
    with Session(str(path)) as session:
        ends = [layer.path for layer in session.analysis().layers if not layer.group]
    words[1], words[3] = ends[2 * 3 + 1], ends[5 * 3]
    assert main(["graph", str(path), *words]) == 0
    assert any(text.startswith("1 path from") and "7 layers on it" in text for text in texts(out))
    lit = [one for one in ElementTree.parse(out).iter(f"{SVG}rect") if one.get("class") == "p"]
    assert len(lit) == 1 + 1 + 1 + 1  # Sigmoid, Tanh, blocks 3 and 4, Relu
    with Session(str(path)) as session:
        drawing = session.graph(between=(words[1], words[3]))
    assert sum(box.lit for box in drawing.boxes) == len(lit)
    assert edges(drawing)


def test_a_text_has_the_boxes_and_heavy_lines_along_the_path(tmp_path: Path) -> None:
    out = tmp_path / "m.txt"
    words = ["--from", "blocks.2.Tanh", "--to", "blocks.3.Relu", "-o", str(out), "--quiet"]
    assert main(["graph", str(blocks(tmp_path / "m.onnx", 6)), *words]) == 0
    said = out.read_text(encoding="utf-8")
    assert said.startswith(
        "m.onnx\n1 path from /blocks/blocks.2/Tanh to /blocks/blocks.3/Relu, 0 layers on it"
    )
    assert [line.strip("┃ ") for line in said.splitlines() if "┃" in line and "blocks." in line] == [
        "blocks.2.Tanh",
        "blocks.3.Relu",
    ]


@pytest.mark.slow
def test_the_page_lights_the_path_and_finds_a_layer_in_what_is_folded(tmp_path: Path) -> None:
    path, page = blocks(tmp_path / "m.onnx", 6), tmp_path / "m.html"
    with Session(str(path)) as session:
        ends = [layer.path for layer in session.analysis().layers if not layer.group][3 * 1 : 3 * 2]
    assert main(["graph", str(path), "--from", ends[0], "--to", ends[2], "-o", str(page), "--quiet"]) == 0
    lit = in_browser(page)
    assert re.findall(r'class="box\s+lit".*?<text[^>]*>(\w+)', lit)[-3:] == ["Relu", "Sigmoid", "Tanh"]
    assert len(re.findall(r'class="edge lit"', lit)) == 2
    assert main(["graph", str(path), "-o", str(page), "--quiet", "--force"]) == 0
    assert ">Sigmoid</text>" not in in_browser(page)
    typed = page.read_text().replace(
        "draw(); fit();\n</script>", "draw(); fit(); byId('find').value = 'Sigm'; find();\n</script>"
    )
    page.write_text(typed)
    assert ">Sigmoid</text>" in in_browser(page)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "relu1"], "--to"),
        (["--to", "relu1"], "add --from LAYER"),
        (["--from", "relu2", "--to", "relu1"], "swap them"),
        (["--from", "relu1", "--to", "relu1"], "share a layer, so no path leads between them"),
        (["--from", "relu1", "--to", "relu99"], "--to: the model has no layer 'relu99'"),
        (["--unfold", "relu99"], "--unfold: the model has no layer 'relu99'"),
        (["--steps", "2"], "add --layer"),
        (["--layer", "relu1", "--steps", "0"], "--steps"),
    ],
)
def test_what_is_no_path_is_one_line_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = chain(tmp_path / "m.onnx", 3)
    assert main(["graph", str(path), "-o", str(tmp_path / "m.svg"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "m.svg").exists()


def test_a_layer_in_which_nothing_stands_is_not_unfolded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = blocks(tmp_path / "m.onnx"), tmp_path / "out.txt"
    with Session(source) as session:
        leaf = next(layer.path for layer in session.analysis().layers if not layer.group)
    assert main(["graph", str(source), "--unfold", leaf, "-o", str(out)]) == 2
    told = capsys.readouterr().err
    assert told == f"explorer: --unfold: '{leaf}' is a layer, not a group; name a group\n"
    assert not out.exists()


def test_where_the_first_of_a_name_is_not_on_the_way_the_others_are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(kind, [before], [made], name=name)
        for kind, before, made, name in (
            ("Relu", "x", "a", "act"),
            ("Neg", "a", "b", "mid"),
            ("Relu", "b", "c", "act"),
        )
    ]
    with Session(str(saved(tmp_path / "m.onnx", nodes, ["c"]))) as session:
        with pytest.raises(
            Misuse, match=r"no path leads from 'mid' to 'act'; other layers of that name: act#2"
        ):
            session.graph(between=("mid", "act"))
        assert session.graph(between=("mid", "act#2")).route is not None
