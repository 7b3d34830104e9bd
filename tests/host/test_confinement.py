"""Confinement: a visitor of `explorer serve` reads no file outside the served folder, by any call or name.

An audit hook watches what the process opens: a refusal that comes after the file was read is none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer import Session
from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.evaluate import data_file
from explorer.engine.formats.format import SourceProbe
from explorer.facts import TileSpec
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.quantize import FormatSweepSpec, QuantizeSpec
from explorer.host import input_files, output_files
from explorer.session import headers
from explorer.settings import overlay
from explorer.settings import quantize as quantize_settings
from explorer.settings import tiling as tilings
from tests.terminal import ROOT

OUTSIDE = "outside the folder that is served"
watched: list[str] = []
opened: list[str] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if watched and event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(args[0]))
        if any(path.startswith(folder) for folder in watched):
            opened.append(f"{event} {path}")


sys.addaudithook(_watch)


CALLS: dict[str, Callable[[Session, str], object]] = {
    "activations": lambda s, p: s.activations(input=p),
    "activations of a gradient": lambda s, p: s.activations(
        input=p, kinds=("gradients",), loss="mse", target=p
    ),
    "values": lambda s, p: s.values("/conv1/Conv", input=p),
    "heat_map": lambda s, p: s.heat_map("/conv1/Conv", input=p),
    "tile": lambda s, p: s.tile(TileSpec(), input=p),
    "verify": lambda s, p: s.verify(input=p),
    "blame": lambda s, p: s.blame(input=p),
    "quantize": lambda s, p: s.quantize(QuantizeSpec(weight="int8", input="int8"), calibrate=p),
    "quantize_trial": lambda s, p: s.quantize_trial(QuantizeSpec(weight="int8", input="int8"), calibrate=p),
    "evaluate": lambda s, p: s.evaluate(p),
    "run_stages": lambda s, p: s.run_stages(os.path.dirname(p)),
    "verify other": lambda s, p: s.verify(other=p),
    "beside": lambda s, p: s.beside([0], others=(p,)),
    "tile config": lambda s, p: tilings.build_spec(p, {}),
    "profile": lambda s, p: s.profile(ProfileSpec(input=p)),
    "sweep_formats": lambda s, p: s.sweep_formats(FormatSweepSpec(("int8",), calibrate=p)),
    "data file": lambda s, p: data_file.read(p),
    "overlay": lambda s, p: overlay.read(p),
    "quantize config": lambda s, p: quantize_settings.build_spec(p, {}),
    "outline": lambda s, p: headers.read_outline(p),
    "open": lambda s, p: Session(p).open(),
    "values output": lambda s, p: s.values("conv1.weight", output=p, overwrite=True),
    "activations output": lambda s, p: s.activations(output=p, overwrite=True),
}
ENDINGS = {"outline": ".onnx", "open": ".onnx", "verify other": ".onnx", "beside": ".onnx", "overlay": ".csv"}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    folder, secret = tmp_path / "served", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    shutil.copy(ROOT / "sample_models" / "lenet.onnx", folder)
    shutil.copy(ROOT / "sample_models" / "lenet.onnx", secret / "x.onnx")
    np.save(secret / "x.npy", np.zeros((1, 1, 28, 28), np.float32))
    np.savez(secret / "x.npz", input=np.zeros((1, 1, 28, 28), np.float32))
    (secret / "x.csv").write_text("name,ms\n/conv1/Conv,1\n")
    (folder / "link").symlink_to(secret)
    monkeypatch.setenv("EXPLORER_SERVED", str(folder))
    monkeypatch.chdir(folder)
    watched[:] = [os.path.realpath(secret)]
    opened.clear()
    yield folder, secret
    watched.clear()


@pytest.mark.parametrize("way", ["absolute", "link", "up"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_reads_a_file_outside_the_served_folder(
    places: tuple[Path, Path], call: str, way: str
) -> None:
    folder, secret = places
    name = f"x{ENDINGS.get(call, '.npy')}"
    path = {"absolute": secret / name, "link": folder / "link" / name, "up": Path("..", "secret", name)}[way]
    with Session("lenet.onnx", cache=False) as session:
        with pytest.raises(ExplorerError, match=OUTSIDE) as refused:
            CALLS[call](session, str(path))
    assert isinstance(refused.value, ExplorerError)
    assert not opened
    assert sorted(path.name for path in folder.iterdir()) == ["lenet.onnx", "link"]


def test_whether_there_is_a_file_outside_is_not_told(places: tuple[Path, Path]) -> None:
    _, secret = places
    words = set()
    for name in ("x.npy", "nothing.npy", ""):
        for read in (input_files.open_binary, input_files.list_names, data_file.read):
            with pytest.raises(Misuse, match=OUTSIDE) as refused:
                read(str(secret / name))
            words.add(refused.value.what)
    assert len(words) == 1


def test_a_link_that_is_moved_while_it_is_opened_opens_nothing(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, secret = places
    (folder / "x.npy").symlink_to(folder / "lenet.onnx")
    begin = os.open

    def moved(path: str, *how: Any) -> int:
        (folder / "x.npy").unlink()
        (folder / "x.npy").symlink_to(secret / "x.npy")
        return begin(path, *how)

    monkeypatch.setattr(os, "open", moved)
    with pytest.raises(Misuse, match=OUTSIDE):
        input_files.open_binary(str(folder / "x.npy"))


def test_external_data_behind_a_link_is_not_read(places: tuple[Path, Path]) -> None:
    folder, secret = places
    (folder / "x.onnx").symlink_to(secret / "x.onnx")
    assert OUTSIDE in SourceProbe("x.onnx").unreadable
    with pytest.raises(ExplorerError, match=OUTSIDE):
        Session("x.onnx").open()


def test_files_beside_a_snapshot_of_a_hub_are_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, folder = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0f"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    (blobs / "1234").write_bytes(b"x")
    (folder / "x.json").symlink_to("../../blobs/1234")
    monkeypatch.setenv("EXPLORER_SERVED", str(folder))
    assert input_files.read_content(str(folder / "x.json")) == b"x"
    for path in (blobs / "new", folder / "x.json"):
        with pytest.raises(Misuse, match=OUTSIDE), output_files.write_atomically(str(path), overwrite=True):
            pass
    with pytest.raises(Misuse, match=OUTSIDE):
        input_files.read_content(str(tmp_path / "models--a--b" / "refs"))
