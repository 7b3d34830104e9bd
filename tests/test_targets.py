"""Nothing that a user has is lost by writing a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.errors import Misuse
from explorer.targets import check_target, replacing


def test_a_file_that_comes_with_a_result_replaces_nothing_unasked(tmp_path: Path) -> None:
    out, beside = tmp_path / "out.onnx", tmp_path / "out.onnx.data"
    beside.write_text("somebody else's")

    def write() -> None:
        with replacing(str(out)) as staged:
            Path(staged).write_text("model")
            Path(f"{staged}.data").write_text("weights")

    with pytest.raises(Misuse, match=r"out\.onnx\.data: the file exists"):
        write()
    assert beside.read_text() == "somebody else's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx.data"], "nothing half-written is left"
    with replacing(str(out), overwrite=True) as staged:
        Path(staged).write_text("model")
        Path(f"{staged}.data").write_text("weights")
    assert (out.read_text(), beside.read_text()) == ("model", "weights")


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
