"""Assumptions about torchvision: the loops of its detection models, and the package of a model.

Mask R-CNN pastes each mask at the size of its box, and Keypoint R-CNN scales each heatmap to the size of its
box. No shape implies these sizes. A tensor without values returns 1 for them, which is not a bound and can
even be invalid. A box is never larger than the image to which it was clipped. This module therefore replaces
these functions by functions that use the largest possible box, and a note states the assumption.

Two functions of torch for autocast are replaced as well, because they raise an error for the meta device. The
original functions are always restored. This module never imports torchvision.
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

from explorer.base.tested_versions import read_installed_version

Note = Callable[[str], None]
Wrap = Callable[[Any, Note], Any]
"""Function that returns the replacement of a function, from the original and a callback for notes."""


def _build_image_sized_paste(original: Any, note: Note) -> Any:
    """Replaces `paste_mask_in_image`: uses the image, grown by the padding of masks, as the box.

    A clipped box ends at x1 <= width. Grown about its center by g, it ends at (x1 + x0 + g (x1 - x0)) / 2,
    which is largest for a box that covers the image.
    """

    @functools.wraps(original)
    def paste(mask: Any, box: Any, im_h: int, im_w: int) -> Any:
        note("mask pasting: every box counts as large as the image")
        padded = int(mask.shape[-1])
        border = (padded / max(padded - 2, 1) - 1) / 2
        largest_box = [
            int(-im_w * border),
            int(-im_h * border),
            int(im_w + im_w * border),
            int(im_h + im_h * border),
        ]
        return original(mask, largest_box, im_h, im_w)

    return paste


def _build_forward_that_stores_size(original: Any, note: Note) -> Any:
    """Replaces `RoIHeads.forward`: stores the size of the largest image, which later functions need."""

    @functools.wraps(original)
    def forward(self: Any, features: Any, proposals: Any, image_shapes: Any, targets: Any = None) -> Any:
        for missing in _missing:
            note(
                f"torchvision {read_installed_version('torchvision')} has no {missing}:"
                " every box counts with a side of 1"
            )
        previous, _STATE.image = _STATE.image, tuple(max(sizes) for sizes in zip(*image_shapes, strict=True))
        try:
            return original(self, features, proposals, image_shapes, targets)
        finally:
            _STATE.image = previous

    return forward


def _build_image_sized_keypoints(original: Any, note: Note) -> Any:
    """Replaces `heatmaps_to_keypoints`: uses boxes as large as the image."""

    @functools.wraps(original)
    def locate(maps: Any, rois: Any) -> Any:
        if _STATE.image is None or not rois.is_meta:
            return original(maps, rois)
        note("keypoints: every box counts as large as the image")
        height, width = _STATE.image
        image_boxes = torch.tensor([[0.0, 0.0, width, height]], device="cpu").repeat(len(rois), 1)
        return original(maps, image_boxes)

    return locate


def _choose_nms_for_all_classes(original: Any, note: Note) -> Any:
    """Replaces `_batched_nms_vanilla`, which loops over classes, with torchvision's other implementation.

    The other implementation handles all classes at once, with their boxes moved far apart. Both keep the same
    boxes. The number of boxes determines which implementation is faster.
    """
    boxes = sys.modules["torchvision.ops.boxes"]
    return getattr(boxes, "_batched_nms_coordinate_trick", original)


def _build_autocast_check_for_meta(original: Any, note: Note) -> Any:
    """Replaces `torch.is_autocast_enabled`, which raises for the meta device: returns False there."""

    @functools.wraps(original)
    def enabled(*args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device_type")
        return False if device == "meta" else original(*args, **kwargs)

    return enabled


def _build_autocast_for_meta(original: Any, note: Note) -> Any:
    """Replaces `torch.autocast`, which raises an error for the meta device: there it acts as for the CPU."""

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
    ("torch", "is_autocast_enabled", _build_autocast_check_for_meta),
    ("torch", "autocast.__init__", _build_autocast_for_meta),
    ("torchvision.models.detection.roi_heads", "paste_mask_in_image", _build_image_sized_paste),
    ("torchvision.models.detection.roi_heads", "RoIHeads.forward", _build_forward_that_stores_size),
    ("torchvision.models.detection.roi_heads", "heatmaps_to_keypoints", _build_image_sized_keypoints),
    ("torchvision.ops.boxes", "_batched_nms_vanilla", _choose_nms_for_all_classes),
)
"""Module, attribute in it, and the function that builds the replacement from the original."""


class _ThreadState(threading.local):
    """State of this thread.

    Attributes:
        note: Callback that receives each assumption as text, or None while the thread runs no model on
            shapes.
        image: Height and width of the largest image of the running RoIHeads, or None.
    """

    note: Note | None = None
    image: tuple[int, ...] | None = None


_STATE = _ThreadState()
_LOCK = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []
_missing: list[str] = []
"""Attributes of `STAND_INS` that the imported libraries lack."""


def _note_assumption(text: str) -> None:
    if _STATE.note is not None:
        _STATE.note(text)


def _wrap_for_thread(original: Any, replacement: Any) -> Any:
    """Returns a function that calls the replacement in threads that run on shapes, else the original."""

    @functools.wraps(original)
    def call_by_thread(*args: Any, **kwargs: Any) -> Any:
        return (original if _STATE.note is None else replacement)(*args, **kwargs)

    return call_by_thread


@contextmanager
def install_replacements(note: Note) -> Iterator[None]:
    """Installs the replacements of `STAND_INS` inside the block, for each module that is imported.

    Several threads may use it at the same time: the first installs them, and the last restores the originals.

    Assumes: torchvision has the functions of `STAND_INS`, with these arguments, under these names.
    Seen: torchvision 0.24 to 0.29.
    Otherwise: the model runs with boxes of one pixel, and its figures are marked as assumed, with the reason.

    Args:
        note: Receives each assumption that is made in this thread, as text.
    """
    global _users
    with _LOCK:
        if not _users:
            _install()
        _users += 1
    previous, _STATE.note = _STATE.note, note
    try:
        yield
    finally:
        _STATE.note = previous
        with _LOCK:
            _users -= 1
            while not _users and _undo:
                _undo.pop()()


def get_model_part(model: nn.Module) -> str:
    """Returns the part of torchvision that defines a model: `detection`, `video`, `optical_flow` or "".

    Assumes: the models are defined in packages with these names below `torchvision.models`.
    Seen: torchvision 0.24 to 0.29.
    Otherwise: the model gets an image as its input and fails, with a line that names `--input-shape`.
    """
    name_parts = type(model).__module__.split(".")
    return next((part for part in ("detection", "video", "optical_flow") if part in name_parts), "")


def _install() -> None:
    """Replaces the functions in `STAND_INS`, and records those that this torchvision lacks in `_missing`."""
    _missing.clear()
    for module, attribute, wrap in STAND_INS:
        owner: Any = sys.modules.get(module)
        if owner is None:
            continue
        *previous, name = attribute.split(".")
        for part_name in previous:
            owner = getattr(owner, part_name, None)
        original = getattr(owner, name, None)
        if original is None:
            _missing.append(attribute)
            continue
        setattr(owner, name, _wrap_for_thread(original, wrap(original, _note_assumption)))
        _undo.append(functools.partial(setattr, owner, name, original))
