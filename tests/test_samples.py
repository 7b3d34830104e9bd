"""The sample models: made again they are the same files, and every one is a sound model that runs."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

from explorer.session import Session

FOLDER = Path(__file__).parent.parent / "sample_models"
NAMES = (
    "bert_tiny",
    "jsc_tiny",
    "jsc_tiny_x10",
    "lenet",
    "linear_32x64x128",
    "lstm_tiny",
    "mlp_128",
    "mobilenet_small",
    "three_inputs",
)
DYNAMIC = {"batch": 3, "sequence": 17}


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_builder", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_folder_holds_what_the_script_makes(builder: ModuleType) -> None:
    assert sorted(builder.MODELS) == list(NAMES)
    assert sorted(p.stem for p in FOLDER.glob("*.onnx")) == list(NAMES)
    assert sum(p.stat().st_size for p in FOLDER.glob("*.onnx")) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_building_again_gives_the_same_bytes(builder: ModuleType, name: str) -> None:
    made, kept = onnx.load_from_string(builder.build(name)), onnx.load(FOLDER / f"{name}.onnx")
    assert made.graph.node == kept.graph.node
    assert builder.build(name) == (FOLDER / f"{name}.onnx").read_bytes()


@pytest.mark.parametrize("name", ["jets_test", "jets_train"])
def test_a_data_set_made_again_is_the_same(builder: ModuleType, name: str) -> None:
    assert (
        sorted(builder.SAMPLES) == sorted(p.stem for p in FOLDER.glob("*.npz")) == ["jets_test", "jets_train"]
    )
    made, kept = np.load(io.BytesIO(builder.jets(name))), np.load(FOLDER / f"{name}.npz")
    assert (made["x"] == kept["x"]).all()
    assert (made["y"] == kept["y"]).all()
    assert kept["x"].shape == (builder.SAMPLES[name], 16)
    assert set(kept["y"].tolist()) == set(range(5))


@pytest.mark.parametrize("name", ["jsc_tiny", "jsc_tiny_x10"])
def test_the_modules_are_those_of_the_files(sample: Callable[[str], Path], name: str) -> None:
    with Session(f"{FOLDER}/jsc.py:{name}") as module, Session(sample(name)) as file:
        assert module.info().totals.macs == file.info().totals.macs
        named = {tensor.tensor.name: tensor.tensor.shape for tensor in module.weights().tensors}
        assert {t.tensor.name: t.tensor.shape for t in file.weights().tensors}.items() <= named.items()


@pytest.mark.parametrize("name", NAMES)
def test_the_full_check_passes_and_every_shape_is_inferred(sample: Callable[[str], Path], name: str) -> None:
    model = onnx.load(sample(name))
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    known = {v.name for v in (*inferred.graph.value_info, *inferred.graph.output)}
    assert {out for node in model.graph.node for out in node.output} <= known


@pytest.mark.parametrize("name", NAMES)
def test_the_model_runs_and_depends_on_its_inputs(sample: Callable[[str], Path], name: str) -> None:
    session = onnxruntime.InferenceSession(str(sample(name)), providers=["CPUExecutionProvider"])

    def run(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        feeds = {}
        for value in session.get_inputs():
            shape = [DYNAMIC.get(d, d) for d in value.shape]
            whole = value.type == "tensor(int64)"
            feeds[value.name] = (
                rng.integers(0, 2, shape) if whole else rng.standard_normal(shape).astype(np.float32)
            )
        return session.run(None, feeds)

    first, second = run(0), run(1)
    for a, b in zip(first, second, strict=True):
        assert np.isfinite(a).all()
        assert np.abs(a - b).max() > 1e-3


def test_the_ten_times_larger_classifier_is_the_labs_network(sample: Callable[[str], Path]) -> None:
    """BatchNorm 16, ReLU, Linear 16-40, BatchNorm 40, ReLU, Linear 40-25, BatchNorm 25, ReLU, Linear 25-5."""
    with Session(str(sample("jsc_tiny_x10"))) as session:
        info, layers = session.info(), [x for x in session.analysis().layers if not x.group]
        trained = session.training()
    kinds = ["BatchNormalization", "Relu", "Gemm"] * 3
    assert [x.kind for x in layers] == kinds
    assert [x.outputs[0].shape for x in layers] == [(1, n) for n in (16, 16, 40, 40, 40, 25, 25, 25, 5)]
    assert (len(info.model.inputs), len(info.model.outputs)) == (1, 1)
    # what is stored holds the running means and variances of 16 + 40 + 25 channels, too
    assert trained.gradient_bytes == 4 * 1997
    assert info.totals.params == 1997 + 2 * 81
    assert info.totals.macs == 16 * 40 + 40 * 25 + 25 * 5
