"""Recognizes formats that Explorer does not read. The error names the format and the way to convert it.

The caller imports this module only if no readable format recognizes a source.
"""

from __future__ import annotations

import codecs
import os
import re

from explorer.base.errors import BadModel
from explorer.base.record import record
from explorer.engine.formats.format import SourceProbe
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TF2ONNX_COMMAND = "convert it to ONNX with the packages of the extra 'tensorflow': python -m tf2onnx.convert"
_KERAS_HINT = "explorer convert {file} -o model.onnx converts it (needs the extra 'tensorflow')"
_FROZEN_HINT = (
    f"{_TF2ONNX_COMMAND} --graphdef {{file}} --output model.onnx --inputs INPUT:0 --outputs OUTPUT:0"
)
_CORE_ML_HINT = (
    "no tool converts Core ML to ONNX: export the original model, for example with"
    " torch.onnx.export(model, inputs, 'model.onnx')"
)
_OPENVINO_HINT = (
    "no tool of OpenVINO converts it back: open the ONNX, PyTorch or TensorFlow model that it was made from"
)
_EXECUTORCH_HINT = (
    "a .pte file is compiled: save the program before to_edge, with torch.export.save(program, 'model.pt2')"
)
_TENSORRT_HINT = "an engine is compiled for one kind of GPU: open the ONNX file that it was built from"
_FLAX_HINT = (
    "it has weights and no layers: write the weights with"
    " safetensors.flax.save_file(flatten_dict(msgpack_restore(open('{file}', 'rb').read()), sep='.'),"
    " 'model.safetensors')"
)
_NCNN_HINT = "no tool of ncnn converts it back: open the ONNX or PyTorch model that it was made from"
_ZIP_HINT = "unpack it with unzip {file}, then open the .tflite file"

_MAX_FILES = 50
"""Maximum number of entries that are examined in a folder."""


@record
class UnreadFormat:
    """A format that Explorer recognizes and does not read.

    Args:
        name: Name of the format with its article: 'a Keras model'.
        hint: Next step for the user; `{file}` stands for the path of the source.
        recognize: Function that tells by content whether a source has this format.
        endings: File name endings. They decide only if no format recognizes the content, as with a damaged
            file.
        converter: Format name under which `explorer convert` reads it, or ''.
    """

    name: str
    hint: str
    recognize: Callable[[SourceProbe], bool]
    endings: tuple[str, ...] = ()
    converter: str = ""


def _build_start_check(pattern: bytes) -> Callable[[SourceProbe], bool]:
    """Returns a function that tells whether the first bytes of a source match a regular expression."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda probe: compiled.match(probe.head) is not None


def _is_keras(probe: SourceProbe) -> bool:
    """Whether the file is a zip archive with Keras's two JSON files and with weights."""
    has_weights = any(name.endswith(".h5") for name in probe.names)
    return has_weights and {"config.json", "metadata.json"} <= {*probe.names}


_OPENVINO_START = re.compile(rb"\s*(<\?xml[^>]*\?>)?\s*(<!--.*?-->\s*)*<net\s[^>]*version=", re.DOTALL)


def _is_openvino(probe: SourceProbe) -> bool:
    """Whether the file is the XML file of a network, or the .bin file with its weights.

    A .bin file has no signature. The XML file of the same name identifies it.
    """
    if _is_openvino_xml(probe):
        return True
    path, ending = os.path.splitext(probe.source)
    xml_file = SourceProbe(path + ".xml")
    return ending.lower() == ".bin" and xml_file.is_file and _is_openvino_xml(xml_file)


def _is_openvino_xml(probe: SourceProbe) -> bool:
    """Whether the file is the XML file of a network, with or without a byte order mark."""
    return _OPENVINO_START.match(probe.head.removeprefix(codecs.BOM_UTF8)) is not None


def _is_flax(probe: SourceProbe) -> bool:
    """Whether the file is a msgpack map whose first key is a name and whose first value is a container.

    The msgpack specification defines the byte values.
    """
    head = probe.head
    # size of the map's header: 1 byte for up to 15 entries, 3 bytes for map 16, 5 bytes for map 32
    key_start = 1 if 0x81 <= head[0] <= 0x8F else {0xDE: 3, 0xDF: 5}.get(head[0], 0)
    if not key_start or len(head) < key_start + 2:
        return False
    # a text of up to 31 bytes has its length in its first byte, a longer text (str 8) in its second byte
    is_long = head[key_start] == 0xD9
    name_start = key_start + (2 if is_long else 1)
    length = head[key_start + 1] if is_long else head[key_start] - 0xA0
    if not 0 < length <= (255 if is_long else 31) or len(head) <= name_start + length:
        return False
    name, value_byte = head[name_start : name_start + length], head[name_start + length]
    return name.isascii() and name.decode("ascii").isprintable() and _starts_msgpack_container(value_byte)


def _starts_msgpack_container(byte: int) -> bool:
    """Whether a value with this first byte is a map, a list or an extension.

    Flax writes an array as an extension.
    """
    # fixmap and fixarray, ext, fixext, array and map
    return 0x80 <= byte <= 0x9F or 0xC7 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8 or 0xDC <= byte <= 0xDF


UNREAD_FORMATS = (
    UnreadFormat("a Keras model", _KERAS_HINT, _is_keras, (".keras",), "keras"),
    UnreadFormat(
        "a Keras model or another HDF5 file",
        _KERAS_HINT,
        _build_start_check(rb"\x89HDF\r\n\x1a\n"),
        (".h5", ".hdf5"),
        "keras",
    ),
    UnreadFormat(
        "a Core ML model",
        _CORE_ML_HINT,
        _build_start_check(
            rb"\x08[\x01-\x20]\x12[\x80-\xff]{0,4}[\x00-\x7f]\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a"
        ),
        (".mlmodel",),
    ),
    UnreadFormat("an OpenVINO model", _OPENVINO_HINT, _is_openvino),
    UnreadFormat("an ExecuTorch program", _EXECUTORCH_HINT, _build_start_check(rb".{4}ET\d\d"), (".pte",)),
    UnreadFormat(
        "a TensorRT engine", _TENSORRT_HINT, _build_start_check(rb"[fp]trt"), (".engine", ".plan", ".trt")
    ),
    UnreadFormat("an ncnn model", _NCNN_HINT, _build_start_check(rb"7767517\s")),
    UnreadFormat(
        "a zip archive with a TensorFlow Lite model",
        _ZIP_HINT,
        lambda probe: any(name.endswith(".tflite") for name in probe.names),
    ),
    UnreadFormat(
        "a frozen TensorFlow graph",
        _FROZEN_HINT,
        _build_start_check(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a.[\w./-]"),
        (".pb",),
    ),
    UnreadFormat("a file of Flax weights in msgpack", _FLAX_HINT, _is_flax, (".msgpack",)),
)
"""Formats in the order in which they are tried.

Zip archives are recognized by the names in them. The start of an HDF5 file is the signature of its
specification. ExecuTorch files have the file identifier of their FlatBuffers schema. TensorRT engines of
versions 5 to 10 begin with a tag, and ncnn's files begin with a number. The other formats are recognized by
the first fields of their files.
"""


def find_file_error(probe: SourceProbe, by_ending: bool = True) -> BadModel | None:
    """Returns the error for a Python file or a file in an unread format, or None for any other file.

    Args:
        probe: File that no readable format recognizes.
        by_ending: Whether the ending decides if no unread format recognizes the content.
    """
    source = probe.source
    if source.endswith(".py") and probe.head:
        return _build_python_error(source)
    if not probe.head:  # a name, a folder or an empty file
        return None
    for unread in UNREAD_FORMATS:
        if unread.recognize(probe):
            return _build_error(f"this is {unread.name}", unread.hint, source)
    for unread in UNREAD_FORMATS:
        if by_ending and unread.endings and source.lower().endswith(unread.endings):
            return _build_error(f"by its ending this is {unread.name}", unread.hint, source)
    return None


def _build_python_error(path: str) -> BadModel:
    """Returns the error for a Python file without `:callable`. The hint names a callable of the file."""
    import ast  # 10 ms, needed only here

    try:
        with input_files.open_text(path) as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        body = []
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    names = [name for name in (*functions, *classes) if not name.startswith("_")]
    message = "a Python file needs the name of the function or class that returns the model"
    hint = f"for example {path}:{names[0]}" if names else f"write {path}:NAME"
    return BadModel(message, where=path, hint=hint)


def find_folder_error(folder: str) -> BadModel | None:
    """Returns the error for a Core ML package or for a file of the folder (see `find_file_error`), or None.

    Only the first entries by name are examined, because a folder may have millions of files.
    """
    if os.path.isfile(os.path.join(folder, "Manifest.json")) and os.path.isdir(
        os.path.join(folder, "Data", "com.apple.CoreML")
    ):
        return _build_error("this is a Core ML package", _CORE_ML_HINT, folder)
    try:
        names = sorted(os.listdir(folder))[:_MAX_FILES]
    except OSError:
        return None
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and (error := find_file_error(SourceProbe(path))):
            return error
    return None


def _build_error(identity: str, hint: str, source: str) -> BadModel:
    """Returns the error for a source; `identity` is a clause such as 'this is a Keras model'."""
    message = f"{identity}, which Explorer does not read"
    return BadModel(message, where=source, hint=hint.replace("{file}", source))
