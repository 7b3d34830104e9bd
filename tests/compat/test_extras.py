"""What each extra adds: a training, a sweep on a cluster, event files, quantized tensors, a plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from explorer import Session
from explorer.cli.main import main

SAMPLES = Path(__file__).parents[2] / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
JETS = f"{SAMPLES}/jsc.py:jsc_tiny"


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.png"
    assert main(["plot", LENET, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_module_is_trained(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    with Session(JETS) as session:
        run = session.train(str(SAMPLES / "jets_train.npz"), epochs=1, output=str(tmp_path / "a.ckpt"))
    assert np.isfinite(run.epochs[0].loss)
    assert (tmp_path / "a.ckpt").stat().st_size


def test_event_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert main(["profile", LENET, "--steps", "3", "--tensorboard", str(tmp_path / "events")]) == 0
    assert list((tmp_path / "events").rglob("*tfevents*"))


def test_a_sweep_runs_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    where = {"processes": True, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**where) as cluster:
        words = ["sweep", LENET, "--tile", "32", "-o", str(tmp_path / "rows.db")]
        assert main([*words, "--scheduler", cluster.scheduler_address]) == 0


def test_quantized_weights_are_torchaos_tensors() -> None:
    pytest.importorskip("torchao")
    from explorer.facts.quantize import QuantizeSpec

    with Session(JETS) as session:
        module, result = session.quantize_module(QuantizeSpec(weight="int8", form="torchao"))
    assert {layer.held for layer in result.layers} == {"torchao"}
    assert any("torchao" in type(weight).__module__ for weight in module.state_dict().values())


def test_the_screens_server_is_there() -> None:
    pytest.importorskip("textual_serve")
    import explorer.web  # noqa: F401
