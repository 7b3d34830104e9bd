"""What other people's packages say and raise does not reach the user as it is."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest

from explorer.base import extras
from explorer.base.errors import MissingExtra
from explorer.host.optional_packages import format_error, require, silence


def test_an_exception_is_told_in_one_line() -> None:
    assert format_error(ValueError("a\nb")) == "ValueError: a b"
    assert format_error(KeyError()) == "KeyError"


def test_nothing_that_is_said_in_silence_is_heard_and_all_of_it_afterwards(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with silence():
        print("out")
        print("error", file=sys.stderr)
        logging.error("log")
        warnings.warn("warning", stacklevel=1)
    assert capsys.readouterr() == ("", "")
    assert (caplog.records, list(recwarn)) == ([], [])
    print("later")
    logging.error("later")
    assert (capsys.readouterr().out, len(caplog.records)) == ("later\n", 1)


_IT = "pip install 'explorer-nn[it]'"


@pytest.mark.parametrize(
    ("code", "said_of_it", "hint"),
    [
        (None, "this needs outsider_x, which is not installed", _IT),
        ("import outsider_y", "this needs outsider_y, which is not installed", _IT),
        ("raise OSError('no such library')", "outsider_x is installed but cannot be imported", "repair it"),
        ("raise AttributeError('np.bool')", "outsider_x is installed but cannot be imported", "repair it"),
    ],
)
def test_a_package_that_cannot_be_had_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str | None, said_of_it: str, hint: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    if code is not None:
        (tmp_path / "outsider_x.py").write_text(code)
    monkeypatch.setitem(extras.EXTRAS, "outsider_x", "it")
    with pytest.raises(MissingExtra) as caught:
        require("outsider_x.inner" if code is None else "outsider_x", "m.onnx")
    assert said_of_it in caught.value.what
    assert hint in (caught.value.hint or "")
    assert _IT in (caught.value.hint or "")
    assert caught.value.where == "m.onnx"
