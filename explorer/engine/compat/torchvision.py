"""Assumptions about torchvision: what detection models loop over, and which package a model is of.

Mask R-CNN pastes every mask at the size of its box, and Keypoint R-CNN enlarges every heatmap to the size
of its own: sizes that no shape implies. A tensor without values answers 1 when it is asked for one, which
is no bound and may not even fit. Where the largest possible value is known (a box is never larger than the
image that it was clipped to), the function is called with that, and the assumption is said.

The originals are put back whatever happens. torchvision is never imported for it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from explorer.base.tested_versions import installed_version

Note = Callable[[str], None]
Wrap = Callable[[Any, Note], Any]


def _mask_of_whole_image(original: Any, note: Note) -> Any:
    """`paste_mask_in_image` with the largest box: the image, grown by the border that masks are padded with.

    A clipped box reaches x1 <= width; grown about its center by g it ends at (x1 + x0 + g (x1 - x0)) / 2,
    which is largest for the whole image.
    """

    @functools.wraps(original)
    def paste(mask: Any, box: Any, im_h: int, im_w: int) -> Any:
        note("mask pasting: every box taken as large as the image")
        padded = int(mask.shape[-1])
        border = (padded / max(padded - 2, 1) - 1) / 2
        whole = [
            int(-im_w * border),
            int(-im_h * border),
            int(im_w + im_w * border),
            int(im_h + im_h * border),
        ]
        return original(mask, whole, im_h, im_w)

    return paste


def _remembering_images(original: Any, note: Note) -> Any:
    """`RoIHeads.forward`, which is the last to know how large the images are."""

    @functools.wraps(original)
    def forward(self: Any, features: Any, proposals: Any, image_shapes: Any, targets: Any = None) -> Any:
        for missing in _missing:
            note(
                f"torchvision {installed_version('torchvision')} has no {missing}:"
                " every box taken to have a side of 1"
            )
        outer, _HERE.image = _HERE.image, tuple(max(sizes) for sizes in zip(*image_shapes, strict=True))
        try:
            return original(self, features, proposals, image_shapes, targets)
        finally:
            _HERE.image = outer

    return forward


def _heatmaps_of_whole_images(original: Any, note: Note) -> Any:
    """`heatmaps_to_keypoints` with boxes that are as large as the image."""

    @functools.wraps(original)
    def locate(maps: Any, rois: Any) -> Any:
        if _HERE.image is None or not rois.is_meta:
            return original(maps, rois)
        note("keypoints: every box taken as large as the image")
        height, width = _HERE.image
        whole = torch.tensor([[0.0, 0.0, width, height]], device="cpu").repeat(len(rois), 1)
        return original(maps, whole)

    return locate


def _suppression_at_once(original: Any, note: Note) -> Any:
    """`_batched_nms_vanilla`, one round for every class, as the other way that torchvision has: all classes
    at once, far apart. Both keep the same boxes; which is faster depends on their number.
    """
    boxes = sys.modules["torchvision.ops.boxes"]
    return getattr(boxes, "_batched_nms_coordinate_trick", original)


def _no_autocast_on_shapes(original: Any, note: Note) -> Any:
    """`torch.is_autocast_enabled`, which raises for the meta device: autocast is off there."""

    @functools.wraps(original)
    def enabled(*args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device_type")
        return False if device == "meta" else original(*args, **kwargs)

    return enabled


def _autocast_of_shapes(original: Any, note: Note) -> Any:
    """`torch.autocast`, which raises for the meta device: there it converts nothing, as the CPU's does."""

    @functools.wraps(original)
    def start(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != "meta":
            original(self, device_type, *args, **kwargs)
            return
        original(self, "cpu", *args, **kwargs)
        if kwargs.get("enabled", True) and False not in args:
            note("autocast: every tensor is counted in the type that it has without autocast")

    return start


STAND_INS: tuple[tuple[str, str, Wrap], ...] = (
    ("torch", "is_autocast_enabled", _no_autocast_on_shapes),
    ("torch", "autocast.__init__", _autocast_of_shapes),
    ("torchvision.models.detection.roi_heads", "paste_mask_in_image", _mask_of_whole_image),
    ("torchvision.models.detection.roi_heads", "RoIHeads.forward", _remembering_images),
    ("torchvision.models.detection.roi_heads", "heatmaps_to_keypoints", _heatmaps_of_whole_images),
    ("torchvision.ops.boxes", "_batched_nms_vanilla", _suppression_at_once),
)
"""Module, attribute in it, and what makes the replacement from the original."""


class _ThreadState(threading.local):
    """Of this thread: whom it tells its assumptions (None while it runs no model on shapes), and height and
    width of the largest image of the RoIHeads that it runs.
    """

    note: Note | None = None
    image: tuple[int, ...] | None = None


_HERE = _ThreadState()
_LOCK = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []
_missing: list[str] = []
"""Functions of `STAND_INS` that an imported torchvision has not."""


def _say(text: str) -> None:
    if _HERE.note is not None:
        _HERE.note(text)


def _only_here(original: Any, replacement: Any) -> Any:
    """The replacement for a thread that runs a model on shapes, the original for every other."""

    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (original if _HERE.note is None else replacement)(*args, **kwargs)

    return chosen


@contextmanager
def replaced(note: Note) -> Iterator[None]:
    """Puts every stand-in in its place, if torchvision is imported, and the originals back at the end.

    Several threads may do so at once: the first puts them there, the last takes them away.

    Assumes: torchvision has the functions of `STAND_INS`, with these arguments, under these names.
    Seen: torchvision 0.24 to 0.29.
    Otherwise: the model runs with boxes of one pixel, and its figures are marked as assumed, with the reason.

    Args:
        note: Told the assumption, in words, each time that one is made in this thread.
    """
    global _users
    with _LOCK:
        if not _users:
            _put_in_place()
        _users += 1
    outer, _HERE.note = _HERE.note, note
    try:
        yield
    finally:
        _HERE.note = outer
        with _LOCK:
            _users -= 1
            while not _users and _undo:
                _undo.pop()()


def part_of(model: nn.Module) -> str:
    """The part of torchvision that a model is of: `detection`, `video`, `optical_flow`; "" for another.

    Assumes: models are defined in packages of these names below `torchvision.models`.
    Seen: torchvision 0.24 to 0.29.
    Otherwise: the model is taken for one of images, and fails on one in a line that names `--input-shape`.
    """
    pieces = type(model).__module__.split(".")
    return next((part for part in ("detection", "video", "optical_flow") if part in pieces), "")


def _put_in_place() -> None:
    _missing.clear()
    for module, attribute, wrap in STAND_INS:
        holder: Any = sys.modules.get(module)
        if holder is None:
            continue
        *outer, name = attribute.split(".")
        for piece in outer:
            holder = getattr(holder, piece, None)
        original = getattr(holder, name, None)
        if original is None:
            _missing.append(attribute)
            continue
        setattr(holder, name, _only_here(original, wrap(original, _say)))
        _undo.append(functools.partial(setattr, holder, name, original))
