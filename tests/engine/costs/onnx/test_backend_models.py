"""Models that others wrote: onnx's own test data, and the node cases that it generates with their answers.

Every one must open and be counted, or say why not; shapes are held against the arrays that onnx expects
as outputs.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import validate
from explorer.facts import Analysis


def _data() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data"


MODELS = sorted(str(p.relative_to(_data())) for p in _data().rglob("*.onnx"))

#: models in which some figure of a node is not known, by the beginning of their names, and why
UNCOUNTED = {
    "simple/test_gradient_of_add": "part of a training step",
    "simple/test_sequence_model": "the size of a tensor",
    "simple/test_strnorm_model": "the size of a tensor",
}


def uncounted(name: str) -> str | None:
    return next((reason for start, reason in UNCOUNTED.items() if name.startswith(start)), None)


@cache
def analysed(name: str) -> Analysis:
    return analyse(validate(read(str(_data() / name))))


def test_the_models_are_all_there() -> None:
    assert len(MODELS) >= 149
    assert all(any(name.startswith(start) for name in MODELS) for start in UNCOUNTED)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_onnx_is_counted_in_full_or_says_why_not(name: str) -> None:
    analysis = analysed(name)
    reasons = [x.reason for x in analysis.layers if not x.group and x.status == "unknown"]
    expected = uncounted(name)
    if expected is not None:
        assert reasons
        assert all(expected in reason for reason in reasons)
        assert analysis.info.totals.coverage < 1
        assert analysis.info.totals.sign == ">= "
    else:
        assert analysis.info.totals.coverage == 1.0
        assert analysis.info.totals.macs is not None
        assert reasons == []


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        # as torchvision's: the same layers, counted at the ATen level
        ("light_resnet50", 4_089_184_256),
        ("light_densenet121", 2_834_161_664),
        ("light_vgg19", 19_632_062_464),
        # 54 x 54 after the first convolution, two groups in three of the five: worked out by hand
        (
            "light_bvlc_alexnet",
            101_616_768 + 207_360_000 + 127_401_984 + 95_551_488 + 63_700_992 + 58_929_152,
        ),
    ],
)
def test_the_large_models_of_onnx_have_the_figures_that_are_known(name: str, macs: int) -> None:
    assert analysed(f"light/{name}.onnx").info.totals.macs == macs


def _shape(expected: Any) -> tuple[int, ...] | None:
    """Shape of an array or of an encoded tensor; None for a sequence or an absent optional."""
    if expected is None or isinstance(expected, list):
        return None
    return tuple(expected.dims) if hasattr(expected, "dims") else np.asarray(expected).shape


Case = tuple[Any, Analysis]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every generated case with its analysis, by name: about 1,900, in ten seconds."""
    from onnx.backend.test.case.node import collect_testcases

    path = tmp_path_factory.mktemp("cases") / "case.onnx"
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            path.write_bytes(case.model.SerializeToString())
            found[case.name] = case, analyse(validate(read(str(path))))
    return found


#: operators that the generated cases leave without a cost although every shape is known
REASONS = (
    "part of a training step",
    "decoding an image",
    "how often it runs",
    "is unknown",
    "not known",
    "is not given",
)


@pytest.mark.slow
def test_every_node_case_of_onnx_is_analysed_and_its_shapes_hold(cases: dict[str, Case]) -> None:
    """About 1,900 models: no exception, and no shape that the expected output contradicts.

    Where the size of an output depends on the data, the shape is a bound and says so.
    """
    wrong, silent, exact = [], [], 0
    for case, analysis in cases.values():
        for layer in analysis.layers:
            told = layer.group or layer.status != "unknown"
            if not told and not any(reason in layer.reason for reason in REASONS):
                silent.append((case.name, layer.path, layer.reason))
        outputs = analysis.info.model.outputs
        for _, expected in case.data_sets or ():
            for output, array in zip(outputs, expected, strict=False):
                shape = _shape(array)
                if shape is None or output.shape is None:
                    continue
                bound = output.origin == "bound"
                if len(shape) != len(output.shape) or any(
                    isinstance(said, int) and (real > said if bound else real != said)
                    for said, real in zip(output.shape, shape, strict=True)
                ):
                    wrong.append((case.name, output.name, output.shape, shape))
                exact += not bound and all(isinstance(d, int) for d in output.shape)
    assert wrong == []
    assert silent == []
    assert len(cases) > 1500
    # nearly all are known to the last dimension, so that the comparison above means something
    assert exact > 0.95 * len(cases)


#: grids whose size comes with the data: inside their definition it is lost
LOST = ("test_affine_grid_",)


@pytest.mark.slow
def test_an_operator_multiplies_what_its_own_definition_multiplies(cases: dict[str, Case]) -> None:
    """Of 400 cases onnx gives the operator a second time as the body of its definition, in plainer ones.

    Attention in all its forms, linear attention, losses, normalisations: products counted by one rule and
    products counted operator by operator must be the same.
    """
    compared = products = 0
    for name, (_, analysis) in cases.items():
        if f"{name}_expanded" not in cases or name.startswith(LOST):
            continue
        whole = analysis.info.totals.macs
        parts = cases[f"{name}_expanded"][1].info.totals.macs
        # a definition of which nothing is known multiplies nothing that is known
        assert (whole or 0) == (parts or 0), name
        compared += 1
        products += bool(whole)
    assert compared > 300
    assert products > 80


def _width(analysis: Analysis) -> int:
    """Channels that the first convolution writes."""
    shape = next(x for x in analysis.layers if x.kind == "Conv").outputs[0].shape
    assert shape is not None
    assert isinstance(shape[1], int)
    return shape[1]


@pytest.mark.parametrize(
    ("name", "dims", "level", "fused", "more"),
    [
        ("lenet", {}, "EXTENDED", {"FusedConv", "FusedGemm"}, 0),
        ("mobilenet_small", {}, "EXTENDED", {"FusedConv"}, 0),
        ("bert_tiny", {"batch": 2, "sequence": 16}, "EXTENDED", {"FusedMatMul", "BiasGelu", "FusedGemm"}, 0),
        # with vectors of 16 channels more of them are stored than there are
        ("mobilenet_small", {}, "ALL", {"ReorderOutput"}, 0),
        # the first convolution's 6 channels are stored as 8, the width of a vector, and computed so
        ("lenet", {}, "ALL", {"ReorderOutput"}, 2 * 28 * 28 * 25),
    ],
)
def test_what_onnxruntime_fuses_multiplies_what_it_was_made_of(
    tmp_path: Path, sample: Any, name: str, dims: dict[str, int], level: str, fused: set[str], more: int
) -> None:
    """At the level ALL the layout is that of the machine: vectors of 8 or 16 channels."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(str(sample(name)), options, providers=["CPUExecutionProvider"])
    before = analyse(validate(read(str(sample(name)))), dims=dims)
    after = analyse(validate(read(str(tmp_path / "fused.onnx"))), dims=dims)
    kinds = {layer.kind for layer in after.layers}
    if level == "ALL" and "ReorderOutput" not in kinds:
        pytest.skip("onnxruntime keeps the layout on this machine")
    assert fused <= kinds
    if level == "ALL" and _width(after) != 8:
        pytest.skip("vectors of this machine are not 8 wide")
    assert after.info.totals.macs == (before.info.totals.macs or 0) + more
    assert after.info.totals.coverage == 1.0
