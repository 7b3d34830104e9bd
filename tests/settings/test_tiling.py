"""A file of tilings: what it may say, what is said back with file and line, and what goes over what."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer import Misuse, Session, TileSpec
from explorer.cli import main
from explorer.engine.tiling.rules import choose_settings
from explorer.facts import TileRule
from explorer.manual import page
from explorer.settings.tiling import build_spec, escape_glob, read, read_text, write_rules, write_toml

Sample = Callable[[str], Path]

WHOLE = """\
# [[site]] in a comment is none
[machine.npu]
peak_macs = "4T"

[tile]
tile = [
  32,
  64,  # depth
  16,
]
edges = "padded"
grouped = "pack"
sites = ["*fc*", "a"]

[[site]]
site = \"\"\"
[[site]]
on = false\"\"\"
tile = 8

  [[ site ]]  # indented
  op = "Gemm"
  shape = "M>=64 N<=1000"
  form = "lab"
  edges = "ragged"
  on = false
"""


def test_everything_that_can_be_said_is_read_with_its_line() -> None:
    found = read_text(WHOLE, "folder/npu.toml")
    assert found == TileSpec(
        tile=(32, 64, 16),
        sites=("*fc*", "a"),
        edges="padded",
        grouped="pack",
        rules=(
            TileRule(site="[[site]]\non = false", tile=(8, 8, 8), origin="npu.toml:15"),
            TileRule(
                op="Gemm",
                shape="M>=64 N<=1000",
                form="lab",
                edges="ragged",
                on=False,
                origin="npu.toml:21",
            ),
        ),
        origins=(
            ("tile", "npu.toml:6"),
            ("edges", "npu.toml:11"),
            ("grouped", "npu.toml:12"),
            ("sites", "npu.toml:13"),
        ),
        config="folder/npu.toml",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tile]\n\ntiles = 3", "npu.toml:3: there is no setting 'tiles'; did you mean 'tile'?"),
        ('[[site]]\nsite = "a"\nform = "skan"', "npu.toml:3: 'skan' is not known; did you mean 'scan'?"),
        ('[tile]\ntile = "3x3"', "npu.toml:2: '3x3' has 2 sizes"),
        ("[tile]\ntile = 0", "npu.toml:2: '0' has a size below 1"),
        ("[tile]\ntile = true", "npu.toml:2: 'True' is not a tile size"),
        ("[tile]\ntile = [1, 2.5, 3]", "npu.toml:2: '[1, 2.5, 3]' is not a tile size"),
        ("[tile]\ntile = 1979-05-27", "npu.toml:2: '1979-05-27' is not a tile size"),
        ("[tile]\nsites = [1]", "npu.toml:2: '1' is not a text"),
        ('[tile]\nsites = [""]', "npu.toml:2: '' is not a text"),
        ("[[site]]\non = 1", "npu.toml:2: '1' is neither true nor false"),
        ("[[site]]\nsite = 3\non = true", "npu.toml:2: '3' is not a text"),
        ('[[site]]\n\n[[site]]\nsite = "a"', "npu.toml:1: it sets nothing; add tile"),
        ('[[site]]\nshape = "M>4 Q<3"\non = true', "npu.toml:2: 'Q<3' is not a condition on a shape"),
        ('[[sites]]\nsite = "a"', "npu.toml:1: there is no table 'sites'; did you mean 'site'?"),
        ("\nedges = 3", "npu.toml:2: there is no table 'edges'"),
        ("[site]\non = true", "npu.toml:1: 'site' is not a list of tables; write [[site]]"),
        ("site = [3]", "npu.toml:1: 'site' is not a list of tables"),
        ("tile = 64", "npu.toml:1: 'tile' is not a table; write [tile]"),
        ("tile.tiles = 64", "npu.toml:1: there is no setting 'tiles'"),
        ("\n[[site]]\non.x = true", "npu.toml:3: '{'x': True}' is neither true nor false"),
        ('site = [{on = true}, {site = "a", on = 3}]', "npu.toml:1: '3' is neither true nor false"),
        ("[tile]\nedges = ragged", "npu.toml:2: this is not TOML: Invalid value"),
        ("[tile", "npu.toml: this is not TOML: Expected ']' at the end of a table declaration"),
        ("x = " + "[" * 5000, "npu.toml: this is not TOML"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        read_text(text, "npu.toml")
    assert str(refused.value).startswith(said)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'[tile]\nedges = "\xe9"')
    for path, said in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (latin, "not text in UTF-8"),
    ):
        with pytest.raises(Misuse, match=said) as refused:
            read(str(path))
        assert str(refused.value).startswith(str(path))
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf[tile]\r\ntile = 8\r\n")
    assert read(str(marked)).origins == (("tile", "marked.toml:2"),), "as Windows' editors write it"


def test_what_was_typed_goes_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "npu.toml"
    path.write_text(
        '[tile]\ntile = 8\nedges = "padded"\n[[site]]\nsite = "a"\ntile = 4\nform = "lab"\non = false\n'
    )

    def of_a(**typed: object) -> tuple[object, ...]:
        choice = choose_settings(build_spec(str(path), typed), "a", "Gemm", (1, 1, 1))
        return choice.tile, choice.edges, choice.form, choice.on, choice.origins["tile"]

    assert of_a() == ((4, 4, 4), "padded", "lab", False, "npu.toml:4")
    assert of_a(tile=(2, 2, 2)) == ((2, 2, 2), "padded", "lab", False, "command line")
    assert of_a(edges="ragged", form="scan") == ((4, 4, 4), "ragged", "scan", False, "npu.toml:4")
    assert of_a(sites=("a",)) == ((4, 4, 4), "padded", "lab", True, "npu.toml:4")
    assert build_spec(None, {}) == TileSpec()


names = st.text(min_size=1, max_size=8)
sizes = st.integers(1, 4096)
tiles = st.tuples(sizes, sizes, sizes)
rules = st.builds(
    TileRule,
    site=st.text(max_size=8),
    op=st.text(max_size=4),
    shape=st.sampled_from(["", "M>=64", "K=3 N<9"]),
    tile=tiles,
    edges=st.sampled_from([None, "ragged", "padded"]),
    form=st.sampled_from([None, "auto", "lab", "scan", "unrolled", "batched"]),
    on=st.sampled_from([None, True, False]),
)
specs = st.builds(
    TileSpec,
    tile=tiles,
    sites=st.lists(names, max_size=3).map(tuple),
    edges=st.sampled_from(["ragged", "padded"]),
    form=st.sampled_from(["auto", "lab", "scan", "unrolled", "batched"]),
    grouped=st.sampled_from(["leave", "pack"]),
    rules=st.lists(rules, max_size=3).map(tuple),
)


@given(specs)
def test_what_is_written_is_read_back_whatever_names_hold(spec: TileSpec) -> None:
    found = read_text(write_toml(spec, ["a heading\x00", "of two lines\n"]), "f")
    said = [TileRule(r.site, r.op, r.shape, r.tile, r.edges, r.form, r.on) for r in found.rules]
    assert tuple(said) == spec.rules
    for name in ("tile", "sites", "edges", "form", "grouped"):
        assert getattr(found, name) == getattr(spec, name)


PIECES = (
    "[tile]", "[[site]]", "[site]", "[[site.x]]", "[tile.x]", 'site = "a"', "tile = 8", "tile.x = 3",
    "on = true", "site = [{tile = 3}, {on = true}]", 'shape = """M>=\n3"""',
    'sites = [\n"a", # c ]\n"b"]', '"form" = "lab"', "'tile' = [1, 2, 3]", "[machine.a]",
    "clock = 3", "a.b.c = 2", "on = nan", "tile = 1e400", "tile = 0x40",
    '[ "tile" ]', '[[ "site" ]]', "tile = [[1]]", 'op = "\\u0000"',
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=6))
def test_whatever_stands_there_is_read_or_refused_in_one_line(pieces: list[str]) -> None:
    said, rules = "f:", ()
    try:
        rules = read_text("\n".join(pieces), "f").rules
    except Misuse as refused:
        said = str(refused)
    assert said.startswith("f:")
    assert "\n" not in said
    assert all(rule.origin.startswith("f:") for rule in rules)


@given(st.text(alphabet="ab*?[]!-", min_size=1, max_size=6), st.text(alphabet="ab*?[]!-", max_size=6))
def test_an_escaped_name_means_that_site_alone(name: str, other: str) -> None:
    spec = TileSpec(rules=(TileRule(site=escape_glob(name), on=False),))
    assert not choose_settings(spec, name, "Gemm", (1, 1, 1)).on
    if other not in (name, escape_glob(name)):
        assert choose_settings(spec, other, "Gemm", (1, 1, 1)).on


# tilings made by hand


def test_what_was_tiled_by_hand_becomes_rules_that_tile_the_same(sample: Sample, tmp_path: Path) -> None:
    path = str(tmp_path / "by_hand.toml")
    with Session(sample("lenet")) as session:
        with pytest.raises(Misuse, match="nothing was tiled yet"):
            session.keep_choices(path)
        session.tile(TileSpec((8, 8, 8), ("/fc1/Gemm",), "padded"), verify=False)
        session.tile(TileSpec((16, 8, 32), ("/fc3/Gemm",), form="unrolled"), verify=False)
        by_hand = [entry.plan for entry in session.history().entries[1:]]
        assert session.keep_choices(path) == path
        with pytest.raises(Misuse, match="the file exists"):
            session.keep_choices(path)
        session.go(0)
        plan = session.plan(build_spec(path, {}))
    assert plan.sites == tuple(site for one in by_hand if one is not None for site in one.sites)
    assert "/fc2/Gemm" in [skip.name for skip in plan.skipped], "what was not chosen stays as it is"
    assert "What was tiled of" in Path(path).read_text()


def test_a_choice_that_was_made_twice_is_the_later_one_and_one_of_everything_switches_nothing_off(
    sample: Sample,
) -> None:
    with Session(sample("mlp_128")) as session:
        plans = [session.plan(TileSpec((size,) * 3)) for size in (8, 16)]
    spec = write_rules(plans, [site.name for site in plans[0].sites])
    assert [(rule.tile, rule.on, rule.edges, rule.form) for rule in spec.rules] == [
        ((16,) * 3, None, None, None)
    ]


# the command line


@pytest.fixture
def npu(tmp_path: Path) -> str:
    path = tmp_path / "npu.toml"
    tables = (
        ["[tile]", 'edges = "padded"', ""],
        ["[[site]]", 'site = "/fc1/Gem"', "tile = 8"],
        ["[[site]]", 'op = "Gemm"', 'shape = "N<=84"', 'form = "unrolled"'],
        ["[[site]]", 'site = "*fc3*"', "on = false"],
        ["[[site]]", 'op = "Conv"', "on = false"],
    )
    path.write_text("\n".join(line for table in tables for line in table))
    return str(path)


def test_tile_does_what_the_file_says(
    sample: Sample, npu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "tiled.onnx")
    assert main.main(["tile", str(sample("lenet")), "--config", npu, "--tile", "32", "-o", out]) == 0
    said, warned = capsys.readouterr()
    assert "npu.toml:4 matches no matmul: site /fc1/Gem; did you mean '/fc1/Gemm'?" in warned
    assert "switched off by npu.toml:11" in said
    assert "switched off by npu.toml:14" in said
    with Session(sample("lenet")) as session:
        plan = session.plan(build_spec(npu, {"tile": (32, 32, 32)}))
    assert {site.name: (site.tile, site.edges, site.form) for site in plan.sites if "fc" in site.name} == {
        "/fc1/Gemm": ((32, 32, 32), "padded", "lab"),
        "/fc2/Gemm": ((32, 32, 32), "padded", "unrolled"),
    }
    assert b"npu.toml" not in Path(out).read_bytes(), "two ways to ask for the same make the same file"


def test_settings_says_of_every_value_where_it_was_said(
    sample: Sample, npu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["settings", str(sample("lenet")), "--config", npu, "--tile", "32"]) == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line}
    assert lines["/fc1/Gemm"].endswith("yes 32x32x32 (command line) padded (npu.toml:2) auto")
    assert lines["/fc2/Gemm"].endswith("32x32x32 (command line) padded (npu.toml:2) unrolled (npu.toml:7)")
    assert lines["/fc3/Gemm"].endswith("84 10 no (npu.toml:11)")
    assert lines["npu.toml:4"].endswith("matches no matmul: site /fc1/Gem; did you mean '/fc1/Gemm'?")


def test_sites_that_were_not_named_are_off_and_who_named_the_others_is_said(
    sample: Sample, npu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["settings", str(sample("lenet")), "--config", npu, "--site", "*fc3*"]) == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line}
    assert lines["/fc1/Gemm"].endswith("400 120 no (command line)")
    assert " yes (command line) 64x64x64 padded (npu.toml:2)" in lines["/fc3/Gemm"]


@pytest.mark.parametrize("verb", ["tile", "settings"])
def test_a_broken_file_is_one_line_and_nothing_is_done(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    path = tmp_path / "npu.toml"
    path.write_text('[tile]\nedge = "padded"\n')
    assert main.main([verb, str(sample("lenet")), "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"explorer: {path}:2: there is no setting 'edge'; did you mean 'edges'?\n"


def test_the_example_of_the_manual_is_read() -> None:
    text = page("tiling")
    example = next(part for part in text.split("```toml\n")[1:] if "[[site]]" in part).partition("```")[0]
    assert len(read_text(example, "manual").rules) == 2
    assert os.linesep in example


def test_a_table_of_sites_shows_tiles_and_edges_only_where_they_differ(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "npu.toml"
    path.write_text('[[site]]\nsite = "/fc1/Gemm"\ntile = "8x4x2"\nedges = "padded"\n')
    assert main.main(["tile", str(sample("lenet")), "--site", "*fc*", "--config", str(path)]) == 0
    said = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert said["matmul"][5:7] == ["tile", "edges"]
    assert said["/fc1/Gemm"][7:9] == ["8x4x2", "padded"]
    assert said["/fc2/Gemm"][7:9] == ["64x64x64", "partial"]
    assert main.main(["tile", str(sample("lenet")), "--site", "*fc*"]) == 0
    assert "edges  grid" not in capsys.readouterr().out


def test_sites_of_a_file_that_are_not_in_the_model_are_refused_with_the_files_line(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "npu.toml"
    path.write_text('[tile]\nsites = ["/fc1/Gem"]\n')
    assert main.main(["tile", str(sample("lenet")), "--config", str(path)]) == 2
    said = "npu.toml:2: no site is called '/fc1/Gem'; did you mean '/fc1/Gemm'?"
    assert capsys.readouterr().err == f"explorer: {said}\n"
    assert main.main(["tile", str(sample("lenet")), "--config", str(path), "--site", "x"]) == 2
    assert capsys.readouterr().err.startswith("explorer: --site: no site is called 'x'")


def test_a_form_that_a_rule_asks_for_and_an_open_size_forbids_leaves_the_site_with_the_reason(
    sample: Sample,
) -> None:
    rules = (
        TileRule(site="*pooler*", form="lab", origin="f:1"),
        TileRule(site="*query*", on=False, origin="f:2"),
    )
    with Session(sample("bert_tiny")) as session:
        left = {skip.name: skip.reason for skip in session.plan(TileSpec(rules=rules)).skipped}
    assert next(why for name, why in left.items() if "query" in name) == "switched off by f:2"
    assert "only form scan can write" in next(why for name, why in left.items() if "pooler" in name)
