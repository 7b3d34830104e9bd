"""A session as a script: run in another folder, it makes the session's files again, byte for byte."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

import explorer
from explorer import Misuse, Session, TileSpec
from explorer.cli import main
from explorer.facts import History, HistoryEntry, TileRule
from explorer.facts.quantize import QuantizeRule, QuantizeSpec
from explorer.session.parts.scripts import write_tiling_words
from explorer.settings.tiling import build_spec, escape_glob

Sample = Callable[[str], Path]
ROOT = Path(explorer.__file__).parent.parent


def run(script: str, folder: Path, *arguments: object, shell: str = "sh") -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EXPLORER": f"{sys.executable} -m explorer"}
    return subprocess.run(
        [shell, script, *map(str, arguments)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def state(session: Session, at: int) -> bytes:
    path = session.history().entries[at].path
    assert path is not None
    return Path(path).read_bytes()


@pytest.mark.slow
def test_a_script_makes_the_sessions_files_again_byte_for_byte(sample: Sample, tmp_path: Path) -> None:
    """What options can say is said by options; rules and very many sites stand in a file of the script's."""
    script = str(tmp_path / "a script.sh")
    with Session(sample("lenet")) as session:
        session.tile(TileSpec((16, 16, 16), ("/fc1/Gemm",)), draws=2, seed=5)
        session.name(1, "it's\na 'first' one $(touch bad)")
        rules = (
            TileRule("/fc3/Gemm", tile=(8, 4, 2), on=True, origin="chosen by hand"),
            TileRule(op="*", on=False, origin="npu.toml:7"),
        )
        session.tile(TileSpec(rules=rules), verify=False)
        saved = session.save(str(tmp_path / "third.onnx"))
        session.tile(TileSpec((32, 32, 32), ("/fc2/Gemm",), "padded", "unrolled"))
        assert session.script(script) == script
        made = [state(session, at) for at in (1, 2, 3)]
    done = run(script, tmp_path / "again")
    assert done.returncode == 0, done.stderr
    again = tmp_path / "again"
    names = ["lenet_1.onnx", "third.onnx", "lenet_3.onnx"]
    assert [(again / name).read_bytes() for name in names] == made
    assert (again / "third.onnx").read_bytes() == Path(saved).read_bytes()
    assert sorted(os.listdir(again)) == sorted([*names, "third.onnx.toml"]), "a name is not a command"
    text = Path(script).read_text()
    assert "--draws 2 --seed 5" in text
    assert text.count("--no-verify") == 1
    assert os.access(script, os.X_OK)


@pytest.mark.slow
def test_a_script_never_writes_over_a_file(sample: Sample, tmp_path: Path) -> None:
    script = str(tmp_path / "lenet.sh")
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(sites=("/fc1/Gemm",)), verify=False)
        session.tile(TileSpec(rules=(TileRule("/fc2/Gemm", on=True), TileRule(on=False))), verify=False)
        session.script(script)
        with pytest.raises(Misuse, match="the file exists"):
            session.script(script)
        session.script(script, overwrite=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "lenet_2.onnx.toml").write_text("mine")
    assert run(script, mine).returncode != 0
    assert (mine / "lenet_2.onnx.toml").read_text() == "mine"
    again = run(script, mine)
    assert again.returncode == 2
    assert "lenet_1.onnx: the file exists" in again.stderr


@pytest.mark.slow
def test_very_many_sites_do_not_make_a_command_longer_than_a_shell_takes(
    sample: Sample, tmp_path: Path
) -> None:
    script = str(tmp_path / "lenet.sh")
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(sites=("/fc1/Gemm", *["/fc1/*"] * 1_000)), verify=False)
        session.script(script)
        made = state(session, 1)
    assert len(Path(script).read_text().splitlines()[-1]) < 1_000
    assert run(script, tmp_path / "again").returncode == 0
    assert (tmp_path / "again" / "lenet_1.onnx").read_bytes() == made


ODD = ("-dash", "--trust", "a b$(touch bad)", "q'uo\"te", "new\nline", "br[ack]*?", "\x1b[31m", "`id`", " ü ")


@pytest.mark.slow
def test_names_that_look_like_options_or_code_come_back_from_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, weight = helper.make_tensor_value_info, np.eye(8, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", [f"v{at}", f"w{at}"], [f"v{at + 1}"], name=name)
        for at, name in enumerate(ODD)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("v0", 1, ["--n", 8])],
        [value(f"v{len(ODD)}", 1, ["--n", 8])],
        [numpy_helper.from_array(weight, f"w{at}") for at in range(len(ODD))],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "--trust.onnx")
    monkeypatch.chdir(tmp_path)
    some = tuple(map(escape_glob, ODD[:-1]))
    with Session("--trust.onnx", dims={"--n": 4}) as session:
        session.tile(TileSpec((4, 4, 4), some), verify=False)
        session.tile(
            TileSpec(rules=(TileRule(escape_glob(ODD[-1]), on=True), TileRule(on=False))), verify=False
        )
        session.script("--script.sh")
        made = [state(session, at) for at in (1, 2)]
        command = session.command(TileSpec((4, 4, 4), some), "-o.onnx")
    again = tmp_path / "again"
    done = run(str(tmp_path / "--script.sh"), again)
    assert done.returncode == 0, done.stderr
    names = ["--trust_1.onnx", "--trust_2.onnx"]
    assert [(again / name).read_bytes() for name in names] == made
    assert sorted(os.listdir(again)) == sorted([*names, "--trust_2.onnx.toml"]), "no name is a command"
    (again / "--rules.onnx").write_bytes((tmp_path / "--trust.onnx").read_bytes())
    (again / names[0]).unlink()
    stopped = run(str(tmp_path / "--script.sh"), again, "--rules.onnx")
    assert (again / names[0]).read_bytes() == made[0]
    assert stopped.returncode != 0, "the second file is there already"
    assert main.main([*shlex.split(command)[1:], "--no-verify", "--quiet"]) == 0
    assert (tmp_path / "-o.onnx").read_bytes() == made[0]


@pytest.mark.slow
def test_a_script_takes_another_model(sample: Sample, tmp_path: Path) -> None:
    script, moved = str(tmp_path / "lenet.sh"), tmp_path / "moved here.onnx"
    moved.write_bytes(sample("lenet").read_bytes())
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(sites=("/fc1/Gemm",)), verify=False)
        session.script(script)
        made = state(session, 1)
    assert run(script, tmp_path / "a", moved).returncode == 0
    assert (tmp_path / "a" / "lenet_1.onnx").read_bytes() == made


@pytest.mark.slow
def test_dimensions_that_an_earlier_step_has_fixed_are_not_asked_for_again(
    sample: Sample, tmp_path: Path
) -> None:
    script = str(tmp_path / "bert.sh")
    with Session(sample("bert_tiny"), dims={"batch": 2, "sequence": 8}) as session:
        for name in ("pooler", "query"):
            session.tile(TileSpec((16, 16, 16), (f"*{name}*",)), verify=False)
        session.script(script)
        made = [state(session, at) for at in (1, 2)]
    done = run(script, tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / "again" / f"bert_tiny_{at}.onnx").read_bytes() for at in (1, 2)] == made
    assert Path(script).read_text().count("--dim batch=2 --dim sequence=8") == 1


def test_a_script_ends_with_the_state_that_it_is_asked_for(sample: Sample, tmp_path: Path) -> None:
    script = str(tmp_path / "lenet.sh")
    with Session(sample("lenet")) as session:
        with pytest.raises(Misuse, match="nothing was done to the model yet"):
            session.script(script)
        for name in ("/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm"):
            session.tile(TileSpec(sites=(name,)), verify=False)
        session.go(1)
        session.script(script)
        assert "/fc1" in Path(script).read_text()
        assert "/fc2" not in Path(script).read_text(), "what is undone is not part of the session"
        session.script(script, index=2, overwrite=True)
        assert "/fc2" in Path(script).read_text()
        assert "/fc3" not in Path(script).read_text()
        with pytest.raises(Misuse, match="the history has no entry 4"):
            session.script(script, index=4)


@pytest.mark.slow
def test_states_kept_by_an_older_program_have_a_script_too(sample: Sample, tmp_path: Path) -> None:
    script = str(tmp_path / "lenet.sh")
    with Session(sample("lenet")) as session:
        session.tile(TileSpec((8, 8, 8), ("/fc1/Gemm",), "padded", "unrolled"), verify=False)
        made = state(session, 1)
        old, plain = session.history(), HistoryEntry("tile", "x.onnx", "")
        session.restore(
            replace(
                old,
                entries=(
                    old.entries[0],
                    replace(old.entries[1], record=replace(old.entries[1].record, spec=None)),
                ),
            )
        )
        session.script(script)
        session.restore(History((old.entries[0], plain), 1))
        with pytest.raises(Misuse, match="no record says how this state was made"):
            session.script(script, overwrite=True)
    assert run(script, tmp_path / "again").returncode == 0
    assert (tmp_path / "again" / "lenet_1.onnx").read_bytes() == made


@pytest.mark.slow
def test_hostile_names_stay_names(sample: Sample, tmp_path: Path) -> None:
    """A site whose name is an option, a quote or the end of the script's own file is a site."""
    model = onnx.load(sample("lenet"))
    names = iter(["--help", "it's; touch bad", "END OF THE TILING\nEND OF THE TILING"])
    for node in model.graph.node:
        if node.op_type == "Gemm":
            node.name = next(names)
    path, script = tmp_path / "-$(touch bad)'.onnx", str(tmp_path / "s.sh")
    onnx.save(model, path)
    with Session(path) as session:
        sites = [site for site in session.plan(TileSpec()).sites if site.op == "Gemm"]
        session.tile(TileSpec(sites=tuple(site.name for site in sites[:2])), verify=False)
        rules = (TileRule(sites[2].name, on=True), TileRule(on=False))
        session.tile(TileSpec(rules=rules), verify=False)
        session.script(script)
        made = [state(session, at) for at in (1, 2)]
    done = run(script, tmp_path / "again")
    assert done.returncode == 0, done.stderr
    files = sorted(os.listdir(tmp_path / "again"))
    assert not [name for name in files if name == "bad"]
    found = [(tmp_path / "again" / name).read_bytes() for name in files if name.endswith(".onnx")]
    assert found == made


def test_what_no_command_opens_has_no_script(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(8, 8)
    with Session(module, inputs=torch.zeros(2, 8)) as session:
        session.tile(TileSpec((4, 4, 4)), verify=False)
        with pytest.raises(Misuse, match=r"no command opens an nn\.Module object"):
            session.script(str(tmp_path / "s.sh"))


@pytest.mark.slow
def test_a_script_of_a_module_exports_it_again_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tiny_net.py").write_text(
        "import torch\n\ndef net():\n    torch.manual_seed(3)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Session("tiny_net:net", input_shapes={"input": ("float32", (2, 20))}) as session:
        session.tile(TileSpec((8, 8, 8)), verify=False)
        session.script("s.sh")
        made = state(session, 1)
    # what is imported is imported from where the script is started
    done = run(str(tmp_path / "s.sh"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tiny_net_net_1.onnx").read_bytes() == made


@pytest.mark.slow
def test_packed_groups_are_asked_for_by_commands_scripts_and_files_of_choices(
    sample: Sample, tmp_path: Path
) -> None:
    script, choices = str(tmp_path / "m.sh"), str(tmp_path / "m.toml")
    with Session(sample("mobilenet_small")) as session:
        whole = {site.name for site in session.plan(TileSpec()).sites}
        packs = [s.name for s in session.plan(TileSpec(grouped="pack")).sites if s.name not in whole]
        session.tile(TileSpec((16, 16, 16), (packs[0],), grouped="pack"), verify=False)
        assert "--grouped pack" in session.history().entries[1].command
        session.script(script)
        session.keep_choices(choices)
        made = state(session, 1)
    assert run(script, tmp_path / "again").returncode == 0
    assert (tmp_path / "again" / "mobilenet_small_1.onnx").read_bytes() == made
    out = tmp_path / "by_choices.onnx"
    words = [
        "tile",
        str(sample("mobilenet_small")),
        "--config",
        choices,
        "--no-verify",
        "-o",
        str(out),
        "--quiet",
    ]
    assert main.main(words) == 0
    with Session(str(out)) as session:
        tiled = session.tiling()
    assert tiled is not None
    assert [site.name for site in tiled.sites] == [packs[0]], "and nothing else is packed"


@pytest.mark.slow
def test_a_tiling_by_a_file_under_typed_options_is_in_the_script_as_it_came_out(
    sample: Sample, tmp_path: Path
) -> None:
    """The script needs no file but its own, and rules of which nothing is left are none."""
    path, script = tmp_path / "npu.toml", str(tmp_path / "lenet.sh")
    path.write_text(
        '[tile]\nedges = "padded"\n[[site]]\nsite = "/fc1/*"\ntile = 8\n[[site]]\nop = "Conv"\non = false\n'
    )
    with Session(sample("lenet")) as session:
        session.tile(build_spec(str(path), {"tile": (16, 16, 16)}), verify=False)
        session.script(script)
        made = state(session, 1)
    path.unlink()
    done = run(script, tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "lenet_1.onnx").read_bytes() == made


# the command of one tiling


def test_the_command_of_a_tiling_with_a_file_names_the_file_and_what_was_typed(
    sample: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "npu.toml"
    path.write_text('[tile]\ntile = 8\nform = "scan"\n[[site]]\nop = "Conv"\non = false\n')
    spec = build_spec(str(path), {"edges": "padded", "sites": ("-x", "a b")})
    left = build_spec(str(path), {"grouped": "leave"})
    assert write_tiling_words(left) == ["--config", str(path), "--grouped", "leave"], "whatever the file says"
    words = write_tiling_words(spec)
    assert words == ["--config", str(path), "--site=-x", "--site", "a b", "--edges", "padded"]
    with Session(sample("lenet")) as session:
        assert session.command(TileSpec(rules=(TileRule(on=False),))) == "", "no option says this"
        assert f"--config {path}" in session.command(build_spec(str(path), {}))


def test_the_command_that_is_shown_does_what_was_done(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex

    path, again = tmp_path / "npu.toml", tmp_path / "again.onnx"
    path.write_text('[tile]\ntile = 8\n[[site]]\nop = "Conv"\non = false\n')
    with Session(sample("lenet")) as session:
        result = session.tile(build_spec(str(path), {"edges": "padded"}), verify=False)
        made = state(session, 1)
    words = shlex.split(result.command)[1:]
    words[words.index("-o") + 1] = str(again)
    assert main.main([*words, "--no-verify", "--quiet"]) == 0
    assert again.read_bytes() == made


@pytest.mark.slow
def test_quantized_states_are_made_again_too(sample: Sample, tmp_path: Path) -> None:
    """By options, or by a file of the script's where rules were given by hand."""
    rule = QuantizeRule(site="/fc3/Gemm", weight="int4", origin="chosen by hand")
    with Session(sample("lenet")) as session:
        session.quantize(QuantizeSpec(weight="fixed8.4", input="int8"), draws=2, report=False)
        session.go(0)
        session.quantize(QuantizeSpec(rules=(rule,)), seed=3, report=False)
        script = str(tmp_path / "again.sh")
        session.script(script, branches=True)
        wanted = [state(session, at) for at in (1, 2)]
    done = run(script, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / "there" / f"lenet_{at}.onnx").read_bytes() for at in (1, 2)] == wanted
