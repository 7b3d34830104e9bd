"""Nothing that a user has is lost by writing a result."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from explorer import Session, TileSpec
from explorer.base.errors import Misuse
from explorer.facts.quantize import QuantizeSpec
from explorer.host import scratch
from explorer.host.output_files import check_target, write_atomically
from explorer.process import saved_sessions
from explorer.process.client import EngineProcess

Sample = Callable[[str], Path]


def test_a_file_that_comes_with_a_result_replaces_nothing_unasked(tmp_path: Path) -> None:
    out, beside = tmp_path / "out.onnx", tmp_path / "out.onnx.data"
    beside.write_text("somebody else's")

    def write() -> None:
        with write_atomically(str(out)) as staged:
            Path(staged).write_text("model")
            Path(f"{staged}.data").write_text("weights")

    with pytest.raises(Misuse, match=r"out\.onnx\.data: the file exists"):
        write()
    assert beside.read_text() == "somebody else's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx.data"], "nothing half-written is left"
    with write_atomically(str(out), overwrite=True) as staged:
        Path(staged).write_text("model")
        Path(f"{staged}.data").write_text("weights")
    assert (out.read_text(), beside.read_text()) == ("model", "weights")


@pytest.mark.parametrize("name", ["net.py:net", "net:net"])
def test_the_source_of_a_module_is_kept_even_when_forced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("source")
    with pytest.raises(Misuse, match="this is the model itself"):
        check_target("net.py", overwrite=True, models=[name], weights=())


def test_samples_that_ranges_come_from_are_kept_even_when_forced(sample: Sample, tmp_path: Path) -> None:
    data = tmp_path / "samples.npz"
    np.savez(data, x=np.zeros((1, 16), np.float32))
    with Session(sample("jsc_tiny")) as session, pytest.raises(Misuse, match="choose another name"):
        session.quantize(QuantizeSpec(), calibrate=str(data), output=str(data), overwrite=True)
    assert np.load(data)["x"].shape == (1, 16)


def test_weights_that_would_be_written_over_are_kept_even_when_forced(tmp_path: Path) -> None:
    weights = tmp_path / "out.onnx.data"
    weights.write_text("weights")
    with pytest.raises(Misuse, match="weights lie beside it"):
        check_target(str(tmp_path / "out.onnx"), overwrite=True, models=(), weights=[str(weights)])
    check_target(str(tmp_path / "other.onnx"), overwrite=False, models=(), weights=[str(weights)])


def test_the_model_itself_is_no_target_by_any_name(tmp_path: Path) -> None:
    model, link = tmp_path / "m.onnx", tmp_path / "l.onnx"
    model.write_text("model")
    link.symlink_to(model)
    with pytest.raises(Misuse, match="this is the model itself"):
        check_target(str(link), overwrite=True, models=[str(model)], weights=())
    with pytest.raises(Misuse, match="the file exists"):
        check_target(str(model), overwrite=False, models=(), weights=())


def test_a_file_that_came_while_the_result_was_made_is_not_lost(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"

    def write(target: Path, *, overwrite: bool = False) -> None:
        with write_atomically(str(target), overwrite=overwrite) as staged:
            Path(staged).write_text("ours")
            Path(f"{staged}.data").write_text("our weights")
            target.write_text("somebody else's")

    with pytest.raises(Misuse, match=r"out\.onnx: the file exists"):
        write(out)
    assert sorted(os.listdir(tmp_path)) == ["out.onnx"], "what came with it is taken back"
    assert out.read_text() == "somebody else's"
    write(out, overwrite=True)
    assert out.read_text() == "ours"


def test_a_file_system_without_links_loses_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    out = tmp_path / "out.onnx"
    with write_atomically(str(out)) as staged:
        Path(staged).write_text("first")
    with pytest.raises(Misuse, match="the file exists"), write_atomically(str(out)) as staged:
        Path(staged).write_text("second")
    assert out.read_text() == "first"


@pytest.mark.parametrize("overwrite", [True, False])
def test_of_two_who_write_one_file_one_wins_and_the_other_is_told(tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out.onnx"
    with write_atomically(str(out), overwrite=overwrite) as staged:
        Path(staged).write_text("first")
        with pytest.raises(Misuse, match=r"out\.onnx: another process is writing it"):
            with write_atomically(str(out), overwrite=overwrite) as other:
                Path(other).write_text("second")
        with write_atomically(str(tmp_path / "another.onnx")) as other:
            Path(other).write_text("another")
    assert out.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["another.onnx", "out.onnx"]


def test_what_a_dead_process_left_goes_and_what_a_live_one_writes_stays(tmp_path: Path) -> None:
    left = [tmp_path / f".explorer-{mark * 16}.part" for mark in "ab"]
    for folder in (*left, tmp_path / ".explorer-mine.part"):
        folder.mkdir()
        (folder / "half.onnx").write_text("half")
    living = scratch.claim(str(left[1]))
    with write_atomically(str(tmp_path / "out")) as staged:
        Path(staged).write_text("whole")
    os.close(living)
    assert sorted(os.listdir(tmp_path)) == [".explorer-bbbbbbbbbbbbbbbb.part", ".explorer-mine.part", "out"]


@pytest.mark.parametrize("length", [245, 250])
def test_the_longest_names_can_be_written(tmp_path: Path, sample: Sample, length: int) -> None:
    source = tmp_path / f"{'m' * (length - 5)}.onnx"
    source.write_bytes(sample("mlp_128").read_bytes())
    out = f"{'o' * (length - 5)}.onnx"
    with Session(source) as session:
        session.tile(TileSpec((32, 32, 32)), verify=False)
        session.save(str(tmp_path / out))
        session.script(str(tmp_path / f"{'s' * (length - 3)}.sh"))
    assert sorted(map(len, os.listdir(tmp_path))) == [length] * 3


@pytest.mark.slow
def test_a_session_is_for_its_user_alone_and_a_result_as_umask_says(tmp_path: Path, sample: Sample) -> None:
    before = os.umask(0o002)
    try:
        kept = saved_sessions.begin({"XDG_STATE_HOME": str(tmp_path / "state")})
        assert kept is not None
        engine = EngineProcess(str(sample("mlp_128")), folder=lambda: kept.folder)
        try:
            engine.submit("tile", TileSpec((32, 32, 32)), verify=False).future.result(120)
            engine.submit("save", str(tmp_path / "out.onnx")).future.result(120)
            kept.save(
                saved_sessions.SavedSession(
                    str(sample("mlp_128")), str(tmp_path), saved_sessions.Opening(), engine.history
                )
            )
            found = {
                path.relative_to(kept.folder): path.stat().st_mode & 0o777
                for path in Path(kept.folder).rglob("*")
            }
            assert {path.name for path in found} >= {
                "engine.log",
                "lock",
                "session.msgpack",
                "1-mlp_128.onnx",
            }
            assert all(
                mode == (0o600 if path.suffix or path.name == "lock" else 0o700)
                for path, mode in found.items()
            )
            assert Path(kept.folder).stat().st_mode & 0o777 == 0o700
            assert (tmp_path / "out.onnx").stat().st_mode & 0o777 == 0o664
        finally:
            engine.close()
    finally:
        os.umask(before)


def test_what_a_library_exports_into_a_session_is_for_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "mine").chmod(0o644)
    with scratch.keep_files_private(str(tmp_path)) as folder:
        Path(folder, "exported.onnx").write_text("weights")
    assert (tmp_path / "exported.onnx").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o644
