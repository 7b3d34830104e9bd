"""Models of every family of torchvision, at the first try, against the figures that torchvision publishes.

torchvision says of each set of trained weights how many parameters the model has and how many operations it
takes: `_ops`, in units of 1e9 multiply-accumulates, rounded to three decimals. Both are compared for every
entry of the first and the last model of a family, at the input size of that entry. Where a figure stands for
something else, the table below says for what, and the test works it out.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torchvision import models  # noqa: E402
from torchvision.models import WeightsEnum  # noqa: E402

from explorer.engine.compat import torchvision as patches  # noqa: E402
from explorer.engine.costs.torch.analyse import examine  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import load, wrap_module  # noqa: E402
from explorer.facts import Analysis  # noqa: E402

ROUNDED = 0.0005e9 + 1
"""How far a figure of three decimals may lie from the true one."""

SIZES = {"raft_large": (512, 512), "raft_small": (512, 512)}
"""Input sizes that no preset tells. RAFT's figures are those of 512 x 512 and 12 updates: 211,007,045,632 and
47,655,157,760 MACs, to the last printed digit of both models."""

COUNTED: dict[str, dict[str, float]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn.COCO_V1": {"roi_heads": 0},
    "fasterrcnn_mobilenet_v3_large_fpn.COCO_V1": {"roi_heads": 0},
    "maskrcnn_resnet50_fpn.COCO_V1": {"roi_heads.mask_head": 0, "roi_heads.mask_predictor": 0},
    "keypointrcnn_resnet50_fpn.COCO_LEGACY": {
        "roi_heads.keypoint_head": 0,
        "roi_heads.keypoint_predictor": 0,
    },
    "keypointrcnn_resnet50_fpn.COCO_V1": {
        "roi_heads.keypoint_head": 1 / 100,
        "roi_heads.keypoint_predictor": 1 / 100,
    },
}
"""Shares of a part that a published figure contains. We take proposals and detections at their upper bound;
torchvision counted one run. No proposal came through the score threshold of the two small Faster R-CNNs
(0.05), so their second stage never ran; nothing was detected that had a mask, or a person's keypoints, but
for one person of a hundred possible ones in the newer Keypoint R-CNN."""

BUILT_BY_WEIGHTS = (".detection", ".segmentation", ".vision_transformer")
"""Families whose builder makes another model when it is given weights: batch norms that are frozen, an
auxiliary head that was trained too, a table of positions for the size that it was trained at."""


def published(name: str) -> list[Any]:
    return list(models.get_model_weights(name))


def as_trained(name: str, entry: Any) -> nn.Module:
    """The model that torchvision builds around an entry's weights, without fetching them."""
    with (
        mock.patch.object(WeightsEnum, "get_state_dict", return_value={}),
        mock.patch.object(nn.Module, "load_state_dict", return_value=None),
        torch.device("meta"),
    ):
        module: nn.Module = models.get_model_builder(name)(weights=entry, progress=False)
    return module


def size_of(name: str, entry: Any) -> tuple[int, ...] | None:
    """Height and width that the entry's own transforms make; None for those of detection, which keep a
    picture's proportions.
    """
    options = getattr(entry.transforms, "keywords", {})
    size = options.get("crop_size") or options.get("resize_size") or SIZES.get(name)
    return None if size is None else tuple(size) if isinstance(size, (tuple, list)) else (size, size)


def sized(loaded: Any, size: tuple[int, ...] | None, inputs: tuple[Any, ...]) -> Analysis:
    shapes = {i.name: (None, (*i.shape[:-2], *size)) for i in inputs} if size else {}
    return examine(loaded, input_shapes=shapes).analysis


def ends() -> list[str]:
    """The first and the last model of every family, and those of which a table above says something."""
    families: dict[str, list[str]] = {}
    for name in models.list_models():
        families.setdefault(models.get_model_builder(name).__module__, []).append(name)
    told = {*SIZES, *(entry.partition(".")[0] for entry in COUNTED)}
    return [name for some in families.values() for name in some if name in {some[0], some[-1]} | told]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ends())
def test_a_listed_model_is_analysed_and_has_its_published_figures(name: str) -> None:
    loaded = load(name)
    own = examine(loaded).analysis
    assert own.info.totals.coverage == 1.0
    assert not [note for note in own.info.model.notes if "failed" in note]
    assert not [layer.path for layer in own.layers if layer.status == "unknown"]
    assert all(layer.reason for layer in own.layers if layer.status == "bound")
    family = type(loaded.meta()).__module__
    assert any(layer.status == "bound" for layer in own.layers) == (".detection" in family)
    inputs = own.info.model.inputs
    usual = tuple(inputs[0].shape[-2:])
    known: dict[Any, Analysis] = {}
    for entry in published(name):
        size = size_of(name, entry) or usual
        if any(part in family for part in BUILT_BY_WEIGHTS):
            module = as_trained(name, entry)
            same = size, repr(module)
            if same not in known:
                example = [torch.empty((*i.shape[:-2], *size), device="meta") for i in inputs]
                known[same] = examine(
                    wrap_module(module, [example] if ".detection" in family else example)
                ).analysis
        else:
            same = size, ""
            if same not in known:
                known[same] = own if size == usual else sized(loaded, size, inputs)
        analysis = known[same]
        assert analysis.info.totals.params == entry.meta["num_params"]
        counted = analysis.info.totals.macs or 0
        rows = {layer.path: layer.macs or 0 for layer in analysis.layers}
        for path, share in COUNTED.get(f"{name}.{entry.name}", {}).items():
            assert rows[path] > 0
            counted -= round(rows[path] * (1 - share))
        assert abs(counted - entry.meta["_ops"] * 1e9) <= ROUNDED, (entry.name, counted)


def test_every_explained_difference_is_one_of_an_entry_that_exists() -> None:
    entries = {f"{name}.{entry.name}" for name in models.list_models() for entry in published(name)}
    assert COUNTED.keys() <= entries
    assert SIZES.keys() <= set(models.list_models())
    # whoever adds a model should see that these are all
    assert len(entries) >= 166


@pytest.mark.slow
def test_masks_are_pasted_as_large_as_the_image() -> None:
    analysis = examine(load("maskrcnn_resnet50_fpn")).analysis
    assert "mask pasting: every box counts as large as the image (100 times)" in analysis.info.model.notes
    pasted = [layer for layer in analysis.layers if layer.kind == "interpolate"]
    largest = max((layer.outputs[0].shape[-1] for layer in pasted), default=0)
    # a mask of 28 has a border of 1 around it: the box of 800 grows by 30 / 28, and ends on whole pixels
    assert largest == int(828.57) - int(-28.57) + 1
    assert analysis.info.model.outputs[-1].shape == (100, 1, 800, 800)
    assert all(layer.status == "bound" for layer in pasted if layer.outputs[0].shape[-1] == largest)


@pytest.mark.slow
def test_keypoints_are_located_in_heatmaps_as_large_as_the_image() -> None:
    analysis = examine(load("keypointrcnn_resnet50_fpn")).analysis
    assert "keypoints: every box counts as large as the image (1 time)" in analysis.info.model.notes
    enlarged = [layer for layer in analysis.layers if layer.kind == "interpolate" and layer.status == "bound"]
    boxes = enlarged[-1]  # the loop over the boxes is one row
    assert boxes.outputs[0].shape == (17, 1, 800, 800)
    assert boxes.calls == 100


@pytest.mark.slow
def test_torchvisions_functions_are_its_own_again_afterwards() -> None:
    from torchvision.models.detection import roi_heads

    before = roi_heads.paste_mask_in_image, roi_heads.RoIHeads.forward, roi_heads.heatmaps_to_keypoints
    examine(load("maskrcnn_resnet50_fpn"))
    assert before == (
        roi_heads.paste_mask_in_image,
        roi_heads.RoIHeads.forward,
        roi_heads.heatmaps_to_keypoints,
    )


def test_analyses_that_overlap_put_the_originals_back_when_the_last_one_ends() -> None:
    from torchvision.models.detection import roi_heads

    before = roi_heads.paste_mask_in_image
    heard: list[str] = []
    first, second = patches.install_replacements(heard.append), patches.install_replacements(heard.append)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert roi_heads.paste_mask_in_image is not before
    second.__exit__(None, None, None)
    assert roi_heads.paste_mask_in_image is before


def test_a_thread_that_runs_a_model_for_real_has_the_originals() -> None:
    from torchvision.models.detection import roi_heads

    mask, box = torch.ones(30, 30), torch.tensor([2, 3, 11, 12])
    alone = roi_heads.paste_mask_in_image(mask, box, 20, 20)
    with patches.install_replacements(lambda text: None), ThreadPoolExecutor(1) as pool:
        beside = pool.submit(roi_heads.paste_mask_in_image, mask, box, 20, 20).result()
        assert not torch.equal(roi_heads.paste_mask_in_image(mask, box, 20, 20), alone)
    assert torch.equal(beside, alone)
