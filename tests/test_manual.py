"""Manual and README: what they show is what the program does, and nothing is left out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.manual import GROUPS, TOPICS, page, titles
from tests import documents, manual
from tests.fresh import loaded, tops

TEXTS = {topic: manual.where(topic).read_text(encoding="utf-8") for topic in (*TOPICS, "README")}
SLOW = dict.fromkeys(("profile", "tutorial", "labs"), (pytest.mark.slow,))
ANEW = "python -m tests.manual writes it anew"


@pytest.mark.parametrize("topic", manual.GENERATED)
def test_a_table_of_the_reference_is_that_of_the_program(topic: str) -> None:
    assert manual.section(TEXTS[topic], topic) == manual.GENERATED[topic](), ANEW


def measured(text: str) -> list[str]:
    """Lines without what differs from run to run, and between machines and releases of torch."""
    text = re.sub(
        r"\b\d+(\.\d+)?e-\d\d\b|\b(\d+ min )?\d+(\.\d+)? (s|ms)\b|(torch|torchinfo) \d\S*|\d\S* MiB$",
        "#",
        text,
        flags=re.M,
    )
    text = re.sub(r"\d+(\.\d+)? u, limit|\s[█▌]*·+(?=\s)|[\d.]+ % of the limit", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    "topic", [pytest.param(t, marks=SLOW.get(t, ())) for t in TEXTS if "```console" in TEXTS[t]]
)
def test_commands_print_what_their_page_shows(topic: str, tmp_path: Path) -> None:
    if topic in SLOW:
        pytest.importorskip("torch")
    assert measured(manual.played(TEXTS[topic], tmp_path)) == measured(TEXTS[topic]), ANEW


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("furo", "myst_parser", "sphinx"):
        pytest.importorskip(package)
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-d", str(tmp_path / "read"), "explorer/manual"]
    made = subprocess.run(
        [*words, str(tmp_path / "site")], cwd=manual.ROOT, capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")
    assert (tmp_path / "site" / "tutorial.html").exists()


@pytest.mark.parametrize("topic", ["python", "notebooks"])
def test_python_on_a_page_runs(topic: str, tmp_path: Path) -> None:
    if topic == "notebooks":
        pytest.importorskip("torch")
    manual.played(TEXTS[topic], tmp_path)
    assert (tmp_path / "lenet_tiled.onnx").exists() == (topic == "python")


@pytest.mark.slow
def test_the_program_of_the_labs_in_cpp_prints_five_outputs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    home = Path(torch.__file__).parent
    if not (home / "include" / "torch").exists() or shutil.which("cmake") is None:
        pytest.skip("needs cmake and the headers of torch")
    for block in manual.blocks(TEXTS["labs"]):
        if block["kind"] in ("cpp", "cmake"):
            (tmp_path / block["mark"].removeprefix("file ")).write_text(block["body"], encoding="utf-8")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 7, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    ).eval()
    ones = torch.ones(1, 3, 224, 224)
    torch.jit.trace(net, ones).save(str(tmp_path / "net.pt"))
    for words in (["-B", "build", f"-DTORCH={home}"], ["--build", "build"]):
        subprocess.run(["cmake", *words], cwd=tmp_path, capture_output=True, check=True)
    printed = subprocess.run(
        ["build/load", "net.pt"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with torch.no_grad():
        expected = net(ones)[0, :5].tolist()
    assert [float(line) for line in printed.stdout.split()] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("topic", TEXTS)
def test_no_command_stands_where_nothing_runs_it(topic: str) -> None:
    for block in manual.blocks(TEXTS[topic]):
        alone = (block["mark"] or "").startswith(("command: ", "needs a cluster"))
        assert (
            alone
            or topic == "verbs"
            or "explorer " not in block["body"]
            or block["kind"] in ("console", "python", "toml")
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        "memory lenet.onnx",
        "roofline lenet.onnx --peak-macs 4T --bandwidth 100GB/s",
        "training lenet.onnx --batch 2",
        "weights lenet.onnx",
        "activations lenet.onnx",
        "compare lenet.onnx mlp_128.onnx",
        "plot lenet.onnx -o memory.svg",
        "report lenet.onnx -o lenet.md",
        "plan lenet.onnx --machine npu.toml",
        "settings lenet.onnx --tile 32",
        "sweep lenet.onnx --tile 16,32 --machine npu.toml --verify",
        "convert lenet.onnx -o lenet.pt",
        "rebatch lenet.onnx 8 -o lenet_8.onnx",
        "outline lenet.onnx",
        "formats",
        "machines",
    ],
    ids=lambda words: words.split()[0],
)
def test_json_is_what_its_page_says(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = words.split()[0]
    if verb == "convert":
        pytest.importorskip("torch")
    for name in ("lenet", "mlp_128"):
        (tmp_path / f"{name}.onnx").symlink_to(manual.ROOT / "sample_models" / f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    Path("npu.toml").write_text(
        'macs_per_cycle = 4096\nbytes_per_cycle = 64\nclock = "1 GHz"\narray = "64x64"\n'
    )
    assert main([*words.split(), "--json"]) in (0, 1)
    jsonschema.validate(json.loads(capsys.readouterr().out), documents.schema(verb))


@pytest.mark.parametrize("topic", TEXTS)
def test_pictures_and_links_lead_somewhere(topic: str) -> None:
    here = manual.where(topic).parent
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", TEXTS[topic]):
        assert not target or (here / target).exists(), target
        text = (here / target).read_text(encoding="utf-8") if target.endswith(".md") else TEXTS[topic]
        headings = [
            re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
            for head in re.findall("^#+ (.*)", text, re.M)
        ]
        assert not anchor or anchor in headings, anchor


@pytest.mark.parametrize(
    "topic", ["notebooks", "passes", "shapes", "ci", "pyproject", "github", "pytest", "lightning"]
)
def test_the_page_of_a_door_is_about_one_screen(topic: str) -> None:
    assert len(page(topic).splitlines()) <= 60


def test_each_way_to_miss_work_has_a_mark_and_a_test() -> None:
    section = TEXTS["counting"].partition("## What a count can miss")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [line.strip("|").split("|") for line in lines if not line.startswith("| what happens")]
    assert len(rows) > 20
    for happening, mark, tested_in in rows:
        assert mark.strip(), happening
        files = re.findall("`([^`]+)`", tested_in)
        assert files, happening
        assert all((Path(__file__).parent / "engine" / file).is_file() for file in files), files


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert len(TEXTS["README"].splitlines()) <= 180
    for topic in TOPICS:
        assert f"[{topic}](explorer/manual/{topic}.md)" in TEXTS["README"]


def test_the_readmes_commands_need_python_alone() -> None:
    for name in ("first", "job", "tests"):
        assert manual.command(name).startswith("python3.11 -m venv .venv")
    assert "pip install . && .venv/bin/explorer tile sample_models/lenet.onnx" in manual.command("first")
    assert "explorer tile alexnet -o alexnet_64.onnx" in manual.command("job")
    assert "-m pytest" in manual.command("tests")


def test_every_page_has_a_title_and_none_of_the_marks_for_programs() -> None:
    assert set(titles()) == {path.stem for path in manual.PAGES.glob("*.md")} - {"index", "api"}
    for topic, title in titles().items():
        assert title
        assert "<!--" not in page(topic)
    with pytest.raises(Misuse, match="did you mean 'proof'"):
        page("prof")


def test_help_lists_the_pages_prints_one_and_names_the_nearest_to_a_mistyped_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == list(TOPICS)
    assert main(["help", "plan"]) == 0
    assert capsys.readouterr().out.startswith("usage: explorer plan MODEL"), (
        "a verb without a page of its name"
    )
    assert main(["help", "proof"]) == 0
    assert capsys.readouterr().out == page("proof")
    assert main(["help", "prof"]) == 2
    assert capsys.readouterr() == ("", "explorer: prof: the manual has no such page; did you mean 'proof'?\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["help", "proof"]) == 0
    drawn = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "A tiled model is written only if its proof succeeds." in drawn
    assert "# How" not in drawn
    assert max(map(len, drawn.splitlines())) <= 60


def test_help_that_is_piped_imports_nothing_that_draws() -> None:
    assert not tops(loaded("help", "ssh")) & {"rich", "textual", "numpy", "onnx", "torch", "msgspec"}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_on_the_screen_fits_and_keeps_what_commands_print(topic: str) -> None:
    from explorer.tui.dialogs.manual import manual_lines
    from explorer.tui.text.lines import line_text, line_width

    wide = "\n".join(line_text(line).removeprefix("  ") for line in manual_lines(topic, 1000))
    for block in manual.blocks(TEXTS[topic]):
        assert block["body"].rstrip("\n") in wide
    prose = manual.BLOCK.sub("", page(topic))
    said = re.findall(r"\w+", re.sub(r"!\[.*?\]\(.*?\)|(?<=\])\(.*?\)", "", prose))
    assert said == re.findall(r"\w+", without_blocks(wide, topic))
    narrow = manual_lines(topic, 60)
    assert max(map(line_width, narrow)) < 60
    # the keys '#' and '|' are no heading and no table: two blanks are behind them
    assert not [line for line in map(line_text, narrow) if re.match(r"\| \S|```|#+ \S", line)]


def without_blocks(text: str, topic: str) -> str:
    for block in manual.blocks(TEXTS[topic]):
        text = text.replace(block["body"].rstrip("\n"), "", 1)
    return text


TYPED = {"README": "strict", "python": "strict", "counting": "strict", "notebooks": "standard"}
"""Pages whose Python passes type checkers, with the mode of pyright; torch lacks types for `strict`."""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize("topic", TYPED)
def test_the_python_of_a_page_passes_type_checkers(topic: str, checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    program = "\n".join(block["body"] for block in manual.blocks(TEXTS[topic]) if block["kind"] == "python")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    strict = {"typeCheckingMode": TYPED[topic], "pythonVersion": "3.11", "extraPaths": [str(manual.ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(strict), encoding="utf-8")
    options = {
        "mypy": ["--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"],
        "pyright": ["--project", ".", "--pythonpath", sys.executable],
    }
    done = subprocess.run(
        [sys.executable, "-m", checker, *options[checker]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": str(manual.ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_groups_of_help_are_those_of_the_site() -> None:
    index = (manual.PAGES / "index.md").read_text(encoding="utf-8")
    captions = re.findall(r":caption: (.+)\n:maxdepth: 1\n\n((?:\w+\n)+)", index)
    groups = {title: tuple(topic for topic in topics.split() if topic != "api") for title, topics in captions}
    assert groups == GROUPS
