"""A folder: which models are in it, whoever put them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from explorer.base.errors import BadModel, Misuse
from explorer.engine.models import folder
from explorer.engine.models.listing import read_model_file
from explorer.engine.models.registry import recognize
from explorer.session import Session

Sample = Callable[[str], Path]


@pytest.fixture
def models(tmp_path: Path, sample: Sample) -> Path:
    """Two models, one of them under another name and in a folder of its own, and things that are none."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    shutil.copy(sample("jsc_tiny"), tmp_path / "small.onnx")
    shutil.copy(sample("lenet"), tmp_path / "deep" / "er" / "weights.bin")
    (tmp_path / "notes.onnx").write_text("no model, whatever it is called")
    (tmp_path / "empty.pt").touch()
    os.mkfifo(tmp_path / "pipe.onnx")
    return tmp_path


def found(path: Path) -> list[tuple[str, str, int | None]]:
    return [
        (row.path, row.dtype, row.nbytes) for row in folder.outline(str(path)).rows if row.kind == "model"
    ]


def more(path: Path) -> bool:
    return any(row.kind == "more" for row in folder.outline(str(path)).rows)


def test_its_models_are_found_by_what_is_in_them(models: Path, sample: Sample) -> None:
    assert found(models) == [
        ("small.onnx", "onnx", sample("jsc_tiny").stat().st_size),
        (os.path.join("deep", "er", "weights.bin"), "onnx", sample("lenet").stat().st_size),
    ]
    assert recognize(str(models)).name == "folder"
    assert not more(models)


def test_a_folder_is_no_model_and_says_which_are_in_it(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(Misuse, match=r"a directory, not a model; name a model in it: small\.onnx, deep"):
        Session(models).open()
    with pytest.raises(BadModel, match="a directory, not a model, and no model is in it"):
        folder.outline(str(tmp_path_factory.mktemp("nothing")))


def test_a_saved_model_says_what_it_is_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"any")
    for named in (tmp_path, tmp_path / "saved_model.pb"):
        with pytest.raises(BadModel, match=r"a SavedModel of TensorFlow's, .* explorer convert .* --trust"):
            Session(str(named)).open()


def test_models_in_hugging_faces_cache_are_listed_by_name_and_no_other_link_is_followed(
    tmp_path: Path, sample: Sample
) -> None:
    one, other = (tmp_path / "hub" / f"models--a--{name}" for name in ("one", "other"))
    inside = one / "snapshots" / "0123" / "onnx"
    inside.mkdir(parents=True)
    for place in (one / "blobs" / "aa", other / "blobs" / "bb", tmp_path / "secret.onnx"):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sample("lenet"), place)
    (inside / "model.onnx").symlink_to("../../../blobs/aa")
    (inside.parent / "small.onnx").symlink_to("../../blobs/aa")
    (inside.parent / "out.onnx").symlink_to(tmp_path / "secret.onnx")
    (inside.parent / "neighbour.onnx").symlink_to(other / "blobs" / "bb")
    for folder_ in (inside, inside.parent, one):
        names = {path.rsplit(os.sep)[-1] for path, _, _ in found(folder_)}
        assert names == ({"model.onnx"} if folder_ is inside else {"model.onnx", "small.onnx"})


def test_external_data_in_hugging_faces_cache_is_read_and_from_nowhere_else(
    tmp_path: Path, sample: Sample
) -> None:
    model = onnx.load(sample("lenet"))
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    made = tmp_path / "made"
    made.mkdir()
    onnx.save(model, made / "m.onnx", save_as_external_data=True, location="m.onnx_data", size_threshold=0)
    for name in ("m.onnx", "m.onnx_data"):
        (made / name).rename(blobs / f"blob of {name}")
        (snapshot / name).symlink_to(f"../../blobs/blob of {name}")
    with Session(snapshot / "m.onnx") as session:
        assert session.info().totals.params == 61_706
    (blobs / "blob of m.onnx_data").rename(tmp_path / "elsewhere")
    (snapshot / "m.onnx_data").unlink()
    (snapshot / "m.onnx_data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadModel, match="points outside the model's folder"):
        Session(snapshot / "m.onnx").open()


def test_a_model_that_git_lfs_did_not_fetch_is_listed_and_says_what_fetches_it(models: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for name in ("large.onnx", "large.safetensors", "large.gguf", "large.pt", "picture.png"):
        (models / name).write_bytes(pointer)
    listed = {path: format for path, format, _ in found(models) if path.startswith(("large", "picture"))}
    assert set(listed) == {"large.onnx", "large.safetensors", "large.gguf", "large.pt"}
    for name in listed:
        with pytest.raises(BadModel, match=r"a pointer of Git LFS's, .* 12,345 bytes; `git lfs pull`"):
            recognize(str(models / name))
        told = read_model_file(str(models / name))
        assert told is not None
        assert "pointer of Git LFS's" in told.note
    # of a folder that is a model, too
    llama = models / "llama"
    llama.mkdir()
    (llama / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (llama / "model.safetensors").write_bytes(pointer)
    with pytest.raises(BadModel, match="`git lfs pull` in its folder fetches it"):
        Session(llama).open()


def test_a_folder_that_is_a_model_is_one_row_with_the_size_of_its_files(models: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    llama = models / "deep" / "llama"
    llama.mkdir()
    (llama / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    numpy.save_file({"w": np.zeros((8, 8), np.float32)}, llama / "model.safetensors")
    size = sum(path.stat().st_size for path in llama.iterdir())
    assert (os.path.join("deep", "llama", ""), "huggingface", size) in found(models)
    assert not [path for path, _, _ in found(models) if "safetensors" in path]


def test_links_are_followed_within_the_folder_and_never_out_of_it(models: Path, sample: Sample) -> None:
    inside = models / "deep"
    (inside / "kept.onnx").symlink_to("er/weights.bin")
    (inside / "out.onnx").symlink_to(sample("lenet"))
    (inside / "up.onnx").symlink_to("../small.onnx")
    (inside / "all").symlink_to(models)
    (inside / "nowhere.onnx").symlink_to("nothing")
    (inside / "itself.onnx").symlink_to("itself.onnx")
    assert [path for path, _, _ in found(inside)] == ["kept.onnx", os.path.join("er", "weights.bin")]
    (note,) = [row.note for row in folder.outline(str(inside)).rows if row.kind == "more"]
    assert note == "3 links lead out of it: open the targets by their own paths"


def test_the_look_is_bounded_and_says_that_there_is_more(
    models: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = models
    for name in "abcdefgh":
        below = below / name
        below.mkdir()
    shutil.copy(sample("jsc_tiny"), below / "too_deep.onnx")
    assert [os.path.basename(path) for path, _, _ in found(models)] == ["small.onnx", "weights.bin"]
    assert more(models)
    shutil.rmtree(models / "a")
    with monkeypatch.context() as patch:
        patch.setattr(folder, "MAX_FOLDERS", 1)
        assert [path for path, _, _ in found(models)] == ["small.onnx"]
        assert more(models)
        patch.setattr(folder, "MAX_FILES", 0)
        with pytest.raises(BadModel, match="no model is among the first 0 files"):
            found(models)
    for n in range(30):
        shutil.copy(sample("jsc_tiny"), models / f"m{n}.onnx")
    monkeypatch.setattr(folder, "MAX_FILES", 10)
    assert 0 < len(found(models)) <= 10
    assert more(models)


def test_folders_that_are_never_models_are_passed_over(models: Path, sample: Sample) -> None:
    for name in (".git", "__pycache__", "node_modules"):
        (models / name).mkdir()
        shutil.copy(sample("jsc_tiny"), models / name / "m.onnx")
    assert len(found(models)) == 2


def test_a_folder_that_may_not_be_read_hides_its_models_and_nothing_else(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refused(path: str) -> object:
        if os.fspath(path).endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert [path for path, _, _ in found(models)] == ["small.onnx"]
