"""`explorer pipeline`: stages as processes give what the whole gives, and end together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest

from explorer import EngineDied
from explorer.cli.main import main
from explorer.facts import Progress
from explorer.host import stopped_children
from explorer.session import run_pipeline
from tests.terminal import command_of

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
BERT = str(SAMPLES / "bert_tiny.onnx")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split") / "stages"
    assert main(["split", LENET, "-n", "3", "-o", str(folder), "--quiet"]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["pipeline", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_what_comes_out_is_what_the_whole_gives(
    capsys: pytest.CaptureFixture[str], stages: Path, tmp_path: Path
) -> None:
    samples = np.random.default_rng(0).standard_normal((6, 1, 28, 28)).astype(np.float32)
    np.save(tmp_path / "in.npy", samples)
    before = children()
    words = ["--input", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.npz"), "--json"]
    fact: dict[str, Any] = json.loads(said(capsys, str(stages), *words))
    assert fact["micro_batches"] == 6
    session = onnxruntime.InferenceSession(LENET, providers=["CPUExecutionProvider"])
    whole = np.concatenate([session.run(None, {"input": samples[at : at + 1]})[0] for at in range(6)])
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["logits"], whole, atol=1e-6)
    assert children() == before
    works = {(one["stage"], one["micro_batch"]): one for one in fact["works"]}
    assert len(works) == 18
    for (stage, batch), one in works.items():
        if stage:
            assert one["start"] >= works[stage - 1, batch]["end"]
        if batch:
            assert one["start"] >= works[stage, batch - 1]["end"]
    assert fact["error"] == pytest.approx(fact["predicted"]["throughput"] / fact["throughput"] - 1)


@pytest.mark.slow
def test_the_text_has_the_forecast_beside_what_ran(capsys: pytest.CaptureFixture[str], stages: Path) -> None:
    text = said(capsys, str(stages), "--micro-batches", "4")
    for word in ("Throughput", "predicted", "Latency", "alone", "busy", "from left to right"):
        assert word in text


@pytest.mark.slow
def test_an_open_batch_takes_as_many_samples_as_are_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(tmp_path / "s")
    sizes = ["--dim", "batch=1", "--dim", "sequence=4"]
    assert main(["split", BERT, "-n", "2", "-o", folder, "--quiet", *sizes]) == 0
    capsys.readouterr()
    words = ["--batch", "3", "--dim", "sequence=7", "--micro-batches", "2", "--json"]
    fact = json.loads(said(capsys, folder, *words))
    assert fact["inputs"][0].startswith("input_ids: int64 [3, 7]")


@pytest.mark.slow
def test_a_stage_that_dies_is_named_and_the_others_end(stages: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "explorer", "pipeline", str(stages), "--micro-batches", "100000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        workers: list[psutil.Process] = []
        until = time.monotonic() + 120
        while len(workers) < 3 and time.monotonic() < until:
            every = psutil.Process(process.pid).children(recursive=True)
            workers = [one for one in every if "stage_process" in command_of(one)]
            time.sleep(0.02)
        second = next(one for one in workers if "stage2.onnx" in command_of(one))
        os.kill(second.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2
    assert "stage2.onnx: the process of stage 2 ended (killed by signal 9)" in err
    assert "Traceback" not in err
    psutil.wait_procs(workers, timeout=120)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in workers)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_that_stands_still_is_named_and_all_end(
    stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stopped_children, "MAX_STOPPED_SECONDS", 0.3)
    model, folder = str(tmp_path / "m.onnx"), str(tmp_path / "s")
    assert main(["make", "mlp:64x64-relu-64x64-relu-64x64", "--batch", "batch", "-o", model]) == 0
    assert main(["split", model, "-n", "2", "--dim", "batch=1", "-o", folder, "--no-verify"]) == 0
    before = children()

    def stop(progress: Progress) -> None:
        if progress.phase == "timing the stages":
            every = (psutil.Process(pid) for pid in children() - before)
            one = next(one for one in every if f"stage{stage}.onnx" in command_of(one))
            one.send_signal(signal.SIGSTOP)

    # 256 KiB of a micro-batch are more than a pipe holds
    with pytest.raises(
        EngineDied, match=rf"stage{stage}\.onnx: the process of stage {stage} no longer answers"
    ):
        run_pipeline(folder, batch=1024, on_progress=stop)
    assert children() == before


def test_a_stage_that_was_changed_or_is_missing_is_refused(
    capsys: pytest.CaptureFixture[str], stages: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(stages, folder)
    data = bytearray((folder / "stage2.onnx").read_bytes())
    data[-5] ^= 1
    (folder / "stage2.onnx").write_bytes(data)
    assert "its digest differs" in said(capsys, str(folder), code=2)
    (folder / "stage2.onnx").unlink()
    assert "a stage is missing" in said(capsys, str(folder), code=2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", "is not a manifest of stages"),
        ("[" * 100000, "is not a manifest of stages"),
        (
            '{"model": "m", "by": "macs", "inputs": [], "outputs": [], "stages": [], "cuts": [],'
            ' "balance": 1}',
            "names no",
        ),
        (
            '{"model": "m", "by": "macs", "inputs": [], "outputs": [], "cuts": [], "balance": 1, "stages": [{'
            '"file": "../x.onnx", "inputs": [], "outputs": [], "layers": 1, "params": 0, "macs": 0,'
            ' "weight_bytes": 0, "sha256": "0"}]}',
            "names a file outside its folder",
        ),
        (
            '{"model": "m", "by": "macs", "inputs": [{"name": "x", "dtype": "float32", "shape": [-1, 8]}]}',
            "Expected `int` >= 0",
        ),
        (" " * (17 << 20), "it has more than 16 MiB"),
        ('{"\xec": 1}', "is not a manifest of stages"),
    ],
    ids=["empty", "nested", "no stages", "outside", "negative", "large", "no UTF-8"],
)
def test_a_manifest_of_anything_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, line: str
) -> None:
    (tmp_path / "stages.json").write_text(text, encoding="latin-1")
    err = said(capsys, str(tmp_path), code=2)
    assert line in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--threads", "9999"], "processors"),
        (["-o", "out.csv"], "use .npz"),
        (["--dim", "n=3"], "no dimension 'n'"),
        (["--input", "no.npz"], "no.npz"),
    ],
)
def test_what_does_not_fit_is_one_line(
    capsys: pytest.CaptureFixture[str], stages: Path, words: list[str], line: str
) -> None:
    err = said(capsys, str(stages), *words, code=2)
    assert line in err
    assert len(err.splitlines()) == 1


def test_a_folder_without_stages_says_how_to_make_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "explorer split MODEL" in said(capsys, str(tmp_path), code=2)
