"""Short names: the part by which names differ is never cut, and what they have in common is shown once."""

from __future__ import annotations

import re
from itertools import product

import pytest
from rich.cells import cell_len

from explorer.facts.models.listing import ModelFile, RecentModel
from explorer.report.blocks import Column, Table
from explorer.report.layout import TableLines
from explorer.report.names import NameSet, collapse_repeats, shorten_name
from explorer.report.pieces import join_pieces, split_terms, wrap
from explorer.report.plots import shorten_names
from explorer.report.present.shell.list import choice_table

MOBILE = [
    f"/features/features.{block}/conv/conv.{part}/conv.{part}.{step}/{op}"
    for block, part, (step, op) in product(range(2, 5), range(2), enumerate(("Conv", "Clip")))
]
LLAMA = [
    f"model.layers.{layer}.{part}.weight"
    for layer, part in product(range(12), ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"))
]
STAGES = [
    f"resnetv15_stage{stage}_unit{unit}_conv{conv}" for stage, unit, conv in product(range(1, 4), repeat=3)
]
SETS = {"mobile": MOBILE, "llama": LLAMA, "stages": STAGES, "plain": ["conv1", "conv2", "fc"]}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/features/features.2/features.2.0/Conv", "features.2.0 Conv"),
        ("/features/features.2/features.2.2/Conv", "features.2.2 Conv"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0/conv1 Conv"),
        ("/layer1/layer10/conv/Conv", "layer1/layer10/conv Conv"),
        ("model.layers.0.weight", "model.layers.0.weight"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_modules_that_an_exporter_repeats_are_named_once(name: str, short: str) -> None:
    assert collapse_repeats(name) == short


@pytest.mark.parametrize("names", SETS.values(), ids=SETS)
@pytest.mark.parametrize("prefix_width", [0, 30])
def test_short_names_fit_and_differ_from_the_width_on_that_they_need(
    names: list[str], prefix_width: int
) -> None:
    name_set = NameSet(names)
    assert name_set.least_width <= max(map(len, names))
    for width in range(name_set.least_width, max(map(len, names)) + 1):
        short = name_set.shorten(dict.fromkeys(names, width), prefix_width)
        assert len(set(short.texts.values())) == len(names)
        assert max(map(cell_len, short.texts.values())) <= width


def test_names_differ_in_less_room_than_their_parts_need() -> None:
    short = NameSet(MOBILE).shorten(dict.fromkeys(MOBILE, 8))
    assert len(set(short.texts.values())) == len(MOBILE)
    assert max(map(len, short.texts.values())) <= 8


def test_names_of_one_series_differ_in_a_narrow_column() -> None:
    values = [f"Relu{n}_output_0" for n in ("", "_1", "_2", "_13")]
    layers = ["Relu", "Relu_1", "Relu_2", "Relu_13"]
    names = [
        f"{value}_{end}" for value in values for end in ("quantized", "dequantized", "scale", "zero_point")
    ]
    for width in range(9, 25):
        texts = NameSet([*names, *layers]).shorten(dict.fromkeys([*names, *layers], width)).texts
        assert len(set(texts.values())) == len(names) + len(layers)
        assert max(map(cell_len, texts.values())) <= width
        assert [texts[layer] for layer in layers] == layers
        assert not any("……" in text for text in texts.values())
        for n in ("_1", "_2", "_13"):  # the numbers stay whole
            series = {text for name, text in texts.items() if name.startswith(f"Relu{n}_")}
            assert all(n.strip("_") in re.findall(r"\d+", text) for text in series)


def test_an_ellipsis_replaces_more_than_the_dot_between_two_parts() -> None:
    names = [f"/trunk/trunk.{i}/block/block.{j}" for i in (3, 8, 11) for j in range(4)]
    name_set = NameSet([*names, *(f"/trunk/trunk.{i}/join" for i in (3, 8, 11)), "/head/head.1"])
    for room in range(6, 20):
        texts = name_set.shorten(dict.fromkeys(names, room), collapsed=True).texts
        for name, text in texts.items():
            assert "…" not in text or text.replace("…", ".") not in name, (room, text)
    assert name_set.shorten({names[6]: 10}, collapsed=True).texts[names[6]] == "…8/block.2"
    assert len(set(name_set.shorten(dict.fromkeys(names, 11), collapsed=True).texts.values())) == len(names)


def test_an_operator_that_is_left_of_a_name_begins_with_no_blank() -> None:
    names = ["/stages/0/0/reduce/Conv", "/stages/0/0/Add", "/stages/0/0/skip/Conv"]
    for room in range(6, 24):
        short = NameSet(names).shorten(dict.fromkeys(names, room), 12)
        assert len(set(short.texts.values())) == len(names)
        assert not [text for text in short.texts.values() if text != text.strip()]


def test_names_that_fit_stay_as_they_are_and_placeholders_do_too() -> None:
    names = [*MOBILE, "(inputs)", "-"]
    short = NameSet(names).shorten(dict.fromkeys(names, 60), 30)
    assert (short.prefix, short.texts) == ("", {name: name for name in names})
    assert NameSet(names).shorten(dict.fromkeys(names, 18)).texts["(inputs)"] == "(inputs)"


def test_the_common_start_is_dropped_where_a_heading_can_show_it() -> None:
    rooms = dict.fromkeys(LLAMA, 22)
    short = NameSet(LLAMA).shorten(rooms, 20)
    assert short.prefix == "model.layers"
    assert short.texts["model.layers.3.mlp.up_proj.weight"] == "3.mlp.up_proj.weight"
    assert all(text.startswith("…") for text in NameSet(LLAMA).shorten(rooms).texts.values())


def test_a_start_that_a_heading_shows_is_dropped_also_from_names_that_fit() -> None:
    name_set = NameSet(LLAMA)
    assert name_set.prefix == "model.layers"
    texts = NameSet([*LLAMA, "lm_head"]).drop_prefix(dict.fromkeys([*LLAMA, "lm_head"], 60), "model.layers")
    assert texts["model.layers.3.mlp.up_proj.weight"] == "3.mlp.up_proj.weight"
    assert texts["lm_head"] == "lm_head"
    for width in range(10, 22):
        short = name_set.drop_prefix(dict.fromkeys(LLAMA, width), name_set.prefix)
        assert len(set(short.values())) == len(LLAMA)
        assert max(map(cell_len, short.values())) <= width


def test_a_start_is_dropped_at_the_end_of_a_part_only() -> None:
    texts = NameSet(["model.layers", "model.layer"]).drop_prefix(
        {"model.layers": 20, "model.layer": 20}, "mod"
    )
    assert texts == {"model.layers": "model.layers", "model.layer": "model.layer"}


def test_a_word_keeps_its_beginning_unless_another_word_begins_so() -> None:
    texts = NameSet(["classifier", "features"]).shorten({"classifier": 6, "features": 6}).texts
    assert texts == {"classifier": "class…", "features": "featu…"}
    texts = NameSet(["normalization", "normalizer"]).shorten({"normalization": 6, "normalizer": 6}).texts
    assert texts == {"normalization": "…ation", "normalizer": "…lizer"}


def test_a_short_name_that_says_almost_nothing_keeps_more_of_its_end() -> None:
    texts = NameSet(["AvgPool", "AvgPool_2"]).shorten({"AvgPool": 7, "AvgPool_2": 7}).texts
    assert texts == {"AvgPool": "AvgPool", "AvgPool_2": "…Pool_2"}
    assert NameSet(["a/b", "a/b_1"]).shorten({"a/b": 2, "a/b_1": 2}).texts["a/b_1"] == "…1"


def test_a_name_alone_keeps_its_end() -> None:
    assert shorten_name("model.layers.3.mlp.up_proj.weight", 16) == "…up_proj.weight"
    assert shorten_name("/embeddings/Add", 13) == "…beddings Add"
    assert shorten_name("model.layers.3.mlp", 40) == "model.layers.3.mlp"


@pytest.mark.parametrize("part", ["a.", ".", "x", "層/", "/a/a.b"])
def test_a_hostile_name_is_cut(part: str) -> None:
    name = part * 9_999
    assert cell_len(shorten_name(name, 20, [name + "b", "c" + name])) <= 20


def test_a_table_shows_the_common_start_in_its_title_and_drops_columns_before_it_cuts_names() -> None:
    columns = (Column("layer", shrink=True), Column("what", drop=1), Column("bytes", "right"))
    table = Table(columns, [(name, "a text of some length", "12.00 MiB") for name in MOBILE], indent=0)
    lines = TableLines(table, 44)
    head, *rows = [join_pieces(line) for line in lines]
    assert head.startswith("layer ")
    assert "what" not in head
    assert len({row[:30] for row in rows}) == len(MOBILE)
    assert all(len(row) <= 44 for row in rows)
    names = [row.split("  ")[0] for row in rows]
    assert names[0] == "features.2/conv.0.0 Conv"


def test_the_number_of_other_names_stays_beside_a_short_name() -> None:
    columns = (Column("matmul", shrink=True), Column("tiles", "right"))
    table = Table(columns, [(f"{name} and 3 more", "12") for name in LLAMA[:5]], indent=0)
    rows = [join_pieces(line) for line in TableLines(table, 40)][1:]
    assert all(", 3 more  " in row for row in rows), rows
    assert len(set(rows)) == 5


def test_a_path_of_a_file_stays_a_path_in_little_room() -> None:
    paths = [f"/data/ml/resnet/resnet.{i}/Resnet.onnx" for i in range(3)] + [f"/data/ml/{'long/' * 20}x.onnx"]
    table = Table((Column("model", shrink=True, paths=True),), [(path,) for path in paths], indent=0)
    rows = [join_pieces(line).rstrip() for line in TableLines(table, 40)]
    assert "resnet/resnet.0/Resnet.onnx" in rows, "the heading shows the rest"
    recent = RecentModel(source=paths[3], format="onnx", params=5, opened=1)
    lines = [join_pieces(line) for line in TableLines(choice_table([recent, *map(files, paths)]), 70)]
    assert all("/" in line for line in lines[1:])
    assert any("resnet/resnet.0/Resnet.onnx" in line for line in lines)


def files(path: str) -> ModelFile:
    """A model file in a list."""
    return ModelFile(path, "onnx", 5)


def test_names_on_the_axis_of_a_plot_differ() -> None:
    names = [f"{'encoder/' * 6}layer.{layer}/{'attention/' * 4}output" for layer in range(4)]
    assert len(set(shorten_names(names))) == 4


def test_a_path_that_is_longer_than_a_line_is_broken_after_a_slash() -> None:
    path = "/features/features.2/conv/conv.0/conv.0.1/BatchNormalization"
    lines = [join_pieces(line) for line in wrap([(f"at {path}", "")], 36)]
    assert "".join(lines).replace(" ", "") == f"at{path}"
    assert all(line.endswith("/") for line in lines[1:-1]), lines
    assert all(len(line) <= 36 for line in lines)


def test_a_formula_is_split_before_its_operators() -> None:
    formula = "batch 1 x Cout 64 x out 55x55 = 193,600; bias: 1x64 = 64 elementwise"
    terms = split_terms(formula, 40)
    assert "".join(terms) == formula
    assert terms == [
        *("batch 1", " x Cout 64", " x out 55x55", " = 193,600;", " bias: 1x64", " = 64 elementwise"),
    ]


def test_a_number_is_never_cut_where_a_name_has_room_for_it() -> None:
    names = [
        f"/features/denseblock{block}/denselayer{layer}/{end}"
        for block in (3, 4)
        for layer in range(1, 17)
        for end in ("norm1/BatchNormalization", "Concat")
    ]
    name_set = NameSet([*names, "/Relu", "/classifier/Gemm"])
    for room in range(14, 40):
        texts = name_set.shorten(dict.fromkeys(names, room), collapsed=True).texts
        assert all(len(text) <= room for text in texts.values())
        assert len(set(texts.values())) == len(names)
        for name, text in texts.items():
            numbers = re.findall(r"\d+", name)
            assert set(re.findall(r"\d+", text)) <= set(numbers), (room, name, text)
            assert re.search(rf"(?<!\d){numbers[1]}(?!\d)", text), (room, name, text)


def test_a_list_is_cut_after_an_item_or_a_word_and_never_inside_a_number() -> None:
    texts = [
        "QDQ: float32 66.9 %, int8 33.1 %",
        "llama, 4,096 tokens: Q4_K 61.4 %, Q6_K 38.6 %",
        "int4 12.5 %, bfloat16 87.5 %",
    ]
    columns = [Column("model"), Column("stored as", shrink=True), Column("when")]
    rows = [[f"model_{i}.onnx", text, "today"] for i, text in enumerate(texts)]
    for width in range(34, 80):
        table = TableLines(Table(columns, rows), width)
        for text, line in zip(texts, map(join_pieces, map(table.line, rows)), strict=True):
            shown = line.split("onnx", 1)[1].removesuffix("today").strip()
            kept, mark, rest = shown.partition("…")
            assert text.startswith(kept), line
            assert not rest, line
            assert not mark or kept.endswith(" "), line
            if mark:
                assert "%" in kept[-4:] or not kept.split()[-1][0].isdigit(), line


def test_a_title_that_no_other_follows_has_room_for_the_whole_common_prefix() -> None:
    names = [f"/stages.0/stages.0.0/{name}/Conv" for name in ("expand", "depthwise", "skip")]
    columns = [Column("Outputs", shrink=True), Column(""), Column("")]
    table = Table(columns, [(name, "[2, 24, 48, 48]", "float32") for name in names])
    title, *rows = [join_pieces(line) for line in TableLines(table, 46)]
    assert title.strip() == "Outputs stages.0.0…"
    assert [row.split()[0] for row in rows] == ["expand", "depthwise", "skip"]
