"""No verb writes over a file that it reads, whatever is forced."""

import pytest

from explorer.base.errors import Misuse
from explorer.cli.arguments.options import WRITTEN
from explorer.cli.commands import VERBS
from explorer.cli.main import main
from explorer.facts import TileSpec
from explorer.host import output_files
from explorer.session import Session

READ = [
    (name, out, option.flag, option.many)
    for name in VERBS
    for out in WRITTEN
    if out in VERBS[name].options
    for option in VERBS[name].options.values()
    if option.flag not in WRITTEN and ("FILE" in option.metavar or option.metavar == "MODEL")
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("verb", "out", "flag", "many"), READ)
def test_a_file_that_is_read_is_never_written(tmp_path, capsys, verb, out, flag, many):
    path = tmp_path / "input.npz"
    path.write_bytes(b"what the user has")
    (tmp_path / "link.npz").symlink_to(path)
    target = f"1:{tmp_path}/link.npz" if out == "--take" else f"{tmp_path}/link.npz"
    force = ["--force"] if "--force" in VERBS[verb].options else []
    command = VERBS[verb]
    models = ["m.onnx"] * len([word for word in command.models if not word.startswith("[")])
    needs = [word for flag_ in command.required if flag_ not in (flag, out) for word in (flag_, "1")]
    assert main([verb, *models, flag, str(path), out, target, *needs, *force]) == 2
    said = capsys.readouterr().err
    assert "the result would replace its own input" in said
    assert path.read_bytes() == b"what the user has"


WRITING = (
    "tile {jsc_tiny} --tile 8 -o {out}/x.onnx",
    "fold {jsc_tiny_x10} -o {out}/x.onnx",
    "edit {jsc_tiny} --rename x=image -o {out}/x.onnx",
    "rebatch {jsc_tiny} 4 -o {out}/x.onnx",
    "extract {jsc_tiny} --layer layers -o {out}/x.onnx",
    "quantize {jsc_tiny} --to int8 -o {out}/x.onnx",
    "make linear:8x8x8 -o {out}/x.onnx",
    "split {jsc_tiny} -n 2 -o {out}",
    "split {jsc_tiny} -n 2 --plot {out}/x.svg",
    "sweep {jsc_tiny} --tile 8 --workers 1 --scalesim {out}/x.csv",
    "sweep {jsc_tiny} --quantize int8 --workers 1 --take 1:{out}/x.toml",
    "graph {jsc_tiny} -o {out}/x.svg",
    "report {jsc_tiny} -o {out}/x.md",
    "plot {jsc_tiny} -o {out}/x.svg",
    "activations {jsc_tiny} -o {out}/x.npz",
    "values {jsc_tiny} layers.0.weight -o {out}/x.npy",
    "profile {jsc_tiny} --steps 1 -o {out}/x.json",
    "profile {jsc_tiny} --steps 1 --trace {out}/x.json",
)
"""Of each verb that writes a model, a table or a picture, one command."""


@pytest.mark.sampled(9)
@pytest.mark.parametrize("words", WRITING)
def test_without_force_no_verb_loses_a_file_that_came_meanwhile(tmp_path, sample, capsys, monkeypatch, words):
    out = tmp_path / "out"
    out.mkdir()
    came = []
    put = output_files._move_into_place

    def late(staging, folder, name, overwrite, ours):
        if folder == str(out):
            path = out / name
            path.write_text("somebody else's")
            came.append(path)
        put(staging, folder, name, overwrite, ours)

    monkeypatch.setattr(output_files, "_move_into_place", late)
    models = {name: sample(name) for name in ("jsc_tiny", "jsc_tiny_x10")}
    assert main(words.format(out=out, **models).split()) == 2
    assert "the file exists" in capsys.readouterr().err
    assert [path.read_text() for path in came] == ["somebody else's"]
    assert sorted(out.iterdir()) == sorted(came)


def test_so_it_is_in_python(tmp_path, sample):
    config = tmp_path / "t.toml"
    config.write_text("[tiling]\ntile = [4, 4, 4]\n")
    with Session(sample("jsc_tiny")) as session:
        with pytest.raises(Misuse, match="replace its own input"):
            session.tile(TileSpec(config=str(config)), output=str(config), overwrite=True)
