"""No verb writes over a file that it reads, whatever is forced."""

import pytest

from explorer.base.errors import Misuse
from explorer.cli.arguments.options import WRITTEN
from explorer.cli.commands import VERBS
from explorer.cli.main import main
from explorer.facts import TileSpec
from explorer.session import Session

READ = [
    (name, out, option.flag, option.many)
    for name in VERBS
    for out in WRITTEN
    if out in VERBS[name].options
    for option in VERBS[name].options.values()
    if option.flag not in WRITTEN and ("FILE" in option.metavar or option.metavar == "MODEL")
]


@pytest.mark.parametrize(("verb", "out", "flag", "many"), READ)
def test_a_file_that_is_read_is_never_written(tmp_path, capsys, verb, out, flag, many):
    path = tmp_path / "input.npz"
    path.write_bytes(b"what the user has")
    (tmp_path / "link.npz").symlink_to(path)
    target = f"1:{tmp_path}/link.npz" if out == "--take" else f"{tmp_path}/link.npz"
    force = ["--force"] if "--force" in VERBS[verb].options else []
    command = VERBS[verb]
    models = ["m.onnx"] * len([word for word in command.models if not word.startswith("[")])
    needs = [word for flag_ in command.needs if flag_ not in (flag, out) for word in (flag_, "1")]
    assert main([verb, *models, flag, str(path), out, target, *needs, *force]) == 2
    said = capsys.readouterr().err
    assert "this file is read for it" in said
    assert path.read_bytes() == b"what the user has"


def test_so_it_is_in_python(tmp_path, sample):
    config = tmp_path / "t.toml"
    config.write_text("[tiling]\ntile = [4, 4, 4]\n")
    with Session(sample("jsc_tiny")) as session:
        with pytest.raises(Misuse, match="read for it"):
            session.tile(TileSpec(config=str(config)), output=str(config), overwrite=True)
