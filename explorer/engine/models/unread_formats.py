"""Formats that Explorer recognizes and does not read: the error names the format and the way to convert it.

This module is imported only after every format has refused a source.
"""

from __future__ import annotations

import os
import re

from explorer.base.errors import BadModel
from explorer.base.record import record
from explorer.engine.formats.format import SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TF2ONNX = "convert it to ONNX with the packages of the extra 'tensorflow': python -m tf2onnx.convert"
_KERAS = f"{_TF2ONNX} --keras {{file}} --output model.onnx"
_FROZEN = f"{_TF2ONNX} --graphdef {{file}} --output model.onnx --inputs INPUT:0 --outputs OUTPUT:0"
_CORE_ML = (
    "no tool converts Core ML to ONNX: export the original model, for example with"
    " torch.onnx.export(model, inputs, 'model.onnx')"
)
_OPENVINO = (
    "no tool of OpenVINO converts it back: open the ONNX, PyTorch or TensorFlow model that it was made from"
)
_EXECUTORCH = (
    "a .pte file is compiled: save the program before to_edge, with torch.export.save(program, 'model.pt2')"
)
_TENSORRT = "an engine is compiled for one kind of GPU: open the ONNX file that it was built from"
_FLAX = (
    "it has weights and no layers: write them with"
    " safetensors.flax.save_file(flatten_dict(msgpack_restore(open('{file}', 'rb').read()), sep='.'),"
    " 'model.safetensors')"
)
_NCNN = "no tool of ncnn converts it back: open the ONNX or PyTorch model that it was made from"
_ZIPPED = "unpack it with unzip {file}, then open the .tflite file"


@record
class UnreadFormat:
    """A format that is recognized and refused.

    Args:
        name: Name of the format with its article, for a person.
        hint: Next step for the user; `{file}` stands for the source.
        recognise: Function that tells by content whether a source has this format.
        endings: File name endings. They decide only if no content is recognized, as with a damaged file.
    """

    name: str
    hint: str
    recognise: Callable[[SourceProbe], bool]
    endings: tuple[str, ...] = ()


def _begins(pattern: bytes) -> Callable[[SourceProbe], bool]:
    """Creates a function that tells whether the first bytes of a source match a pattern."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda probe: compiled.match(probe.head) is not None


def _is_keras(probe: SourceProbe) -> bool:
    has_weights = any(name.endswith(".h5") for name in probe.names)
    return has_weights and {"config.json", "metadata.json"} <= {*probe.names}


_OPENVINO_XML = re.compile(rb"\s*(<\?xml[^>]*\?>)?\s*(<!--.*?-->\s*)*<net\s[^>]*version=", re.DOTALL)


def _is_openvino(probe: SourceProbe) -> bool:
    """Whether the file is the XML of a network, or the weights beside it, which have no signature."""
    if _OPENVINO_XML.match(probe.head.removeprefix(b"\xef\xbb\xbf")) is not None:
        return True
    path, ending = os.path.splitext(probe.source)
    beside = SourceProbe(path + ".xml")
    return ending.lower() == ".bin" and beside.is_file and _OPENVINO_XML.match(beside.head) is not None


def _is_flax(probe: SourceProbe) -> bool:
    """Whether the file is a msgpack map: its first key is a name, its first value a map or an array."""
    head = probe.head
    start = 1 if 0x81 <= head[0] <= 0x8F else {0xDE: 3, 0xDF: 5}.get(head[0], 0)
    if not start or len(head) < start + 2:
        return False
    key = start + (2 if head[start] == 0xD9 else 1)
    length = head[start + 1] if head[start] == 0xD9 else head[start] - 0xA0
    if not 0 < length <= (255 if head[start] == 0xD9 else 31) or len(head) <= key + length:
        return False
    name, value = head[key : key + length], head[key + length]
    return name.isascii() and name.decode("ascii").isprintable() and _begins_msgpack_value(value)


def _begins_msgpack_value(byte: int) -> bool:
    """Whether a byte begins a map, a list, or an extension, which is how Flax writes an array."""
    return 0x80 <= byte <= 0x9F or 0xC7 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8 or 0xDC <= byte <= 0xDF


UNREAD_FORMATS = (
    UnreadFormat("a Keras model", _KERAS, _is_keras, (".keras",)),
    UnreadFormat(
        "a Keras model or another HDF5 file", _KERAS, _begins(rb"\x89HDF\r\n\x1a\n"), (".h5", ".hdf5")
    ),
    UnreadFormat(
        "a Core ML model",
        _CORE_ML,
        _begins(rb"\x08[\x01-\x20]\x12[\x80-\xff]{0,4}[\x00-\x7f]\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a"),
        (".mlmodel",),
    ),
    UnreadFormat("an OpenVINO model", _OPENVINO, _is_openvino),
    UnreadFormat("an ExecuTorch program", _EXECUTORCH, _begins(rb".{4}ET\d\d"), (".pte",)),
    UnreadFormat("a TensorRT engine", _TENSORRT, _begins(rb"[fp]trt"), (".engine", ".plan", ".trt")),
    UnreadFormat("an ncnn model", _NCNN, _begins(rb"7767517\s")),
    UnreadFormat(
        "a zip archive with a TensorFlow Lite model",
        _ZIPPED,
        lambda probe: any(name.endswith(".tflite") for name in probe.names),
    ),
    UnreadFormat(
        "a frozen TensorFlow graph",
        _FROZEN,
        _begins(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a.[\w./-]"),
        (".pb",),
    ),
    UnreadFormat("a file of Flax weights in msgpack", _FLAX, _is_flax, (".msgpack",)),
)
"""Formats in the order in which they are tried.

HDF5 has the signature of its specification, ExecuTorch the file identifier of its FlatBuffers schema.
TensorRT engines of versions 5 to 10 begin with a tag, ncnn's files with a number. Core ML, OpenVINO and
frozen graphs are recognized by the first fields of their files.
"""


def unread_format(probe: SourceProbe, by_ending: bool = True) -> BadModel | None:
    """Returns the error for a file whose format is known but not read, or None for any other file.

    Args:
        probe: File that no format recognized.
        by_ending: Whether the ending decides if no content is recognized.
    """
    source = probe.source
    if not probe.head:  # a name, a folder or an empty file
        return None
    for format in UNREAD_FORMATS:
        if format.recognise(probe):
            return _error(f"this is {format.name}, which Explorer does not read", format.hint, source)
    for format in UNREAD_FORMATS:
        if by_ending and format.endings and source.lower().endswith(format.endings):
            what = f"by its ending this is {format.name}, which Explorer does not read"
            return _error(what, format.hint, source)
    return None


def unread_folder(folder: str) -> BadModel | None:
    """Returns the error for a folder that is a Core ML package or holds an unread model, or None.

    Only the first entries of the folder are looked at.
    """
    if os.path.isfile(os.path.join(folder, "Manifest.json")) and os.path.isdir(
        os.path.join(folder, "Data", "com.apple.CoreML")
    ):
        return _error("this is a Core ML package, which Explorer does not read", _CORE_ML, folder)
    try:
        names = sorted(os.listdir(folder))[:_LOOKED_AT]
    except OSError:
        return None
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and (error := unread_format(SourceProbe(path))):
            return error
    return None


_LOOKED_AT = 50
"""Most files of a folder that are looked at."""


def _error(what: str, hint: str, source: str) -> BadModel:
    return BadModel(what, where=source, hint=hint.replace("{file}", source))
