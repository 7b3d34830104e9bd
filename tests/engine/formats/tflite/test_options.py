"""Options of custom operators are told by their names where they are FlexBuffers, and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from explorer.engine.formats.tflite.options import decode_custom_options
from explorer.session import Session
from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, write

CASES: list[dict[str, Any]] = [
    {
        "max_detections": 10,
        "num_classes": 90,
        "nms_iou_threshold": 0.6000000238418579,
        "use_regular_nms": False,
    },
    {"a": -1, "b": 1 << 40, "text": "naïve", "empty": ""},
    {"sizes": (1, 2, 300), "scales": (0.5, 0.25), "mixed": (1, "two", 3.0, True)},
]


def written(options: dict[str, Any]) -> bytes:
    return bytes(flexbuffers.Dumps({k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}))


@pytest.mark.parametrize("options", CASES)
def test_what_the_official_writer_wrote_is_told_by_name(options: dict[str, Any]) -> None:
    data = written(options)
    assert decode_custom_options(b"xxx" + data + b"yyy", 3, len(data)) == options


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x02\x03",
        b"\x00" * 40,
        bytes(flexbuffers.Dumps([1, 2])),
        bytes(flexbuffers.Dumps({"a": {"b": 1}})),
    ],
)
def test_anything_else_is_told_by_its_size(data: bytes) -> None:
    assert decode_custom_options(data, 0, len(data)) == {"options": f"{len(data):,} bytes"}


def test_no_options_are_none() -> None:
    assert decode_custom_options(b"", 0, 0) == {}


def test_bytes_changed_anywhere_lead_nowhere() -> None:
    for options in CASES:
        content = bytes(
            flexbuffers.Dumps({k: list(v) if isinstance(v, tuple) else v for k, v in options.items()})
        )
        for at in range(len(content)):
            for value in (0, 1, 127, 128, 255):
                changed = content[:at] + bytes([value]) + content[at + 1 :]
                assert isinstance(decode_custom_options(changed, 0, len(changed)), dict)
        for end in range(len(content)):
            assert isinstance(decode_custom_options(content[:end], 0, end), dict)


def test_a_custom_operators_row_shows_its_options(tmp_path: Path) -> None:
    data = bytes(flexbuffers.Dumps({"max_detections": 10, "score": 0.5}))
    net = Sub([T((2, 3), name="x"), T((2, 3), name="y")], [Op("Detect", [0], [1], custom=data)], [0], [1])
    with Session(write(tmp_path, net)) as session:
        row = next(r for r in session.analysis().layers if r.kind == "Detect")
    assert dict(row.attributes) == {"max_detections": 10, "score": 0.5}


def test_random_bytes_are_never_mistaken_for_a_crash() -> None:
    drawn = np.random.default_rng(0)
    for _ in range(500):
        data = drawn.integers(0, 256, int(drawn.integers(1, 200)), np.uint8).tobytes() + bytes([36, 1])
        assert isinstance(decode_custom_options(data, 0, len(data)), dict)
