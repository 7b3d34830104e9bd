"""Hugging Face folders: opens config.json and the weights in a folder as one model.

The weights are in one file, or in several files (shards) with an index of the tensors. The index is not
trusted. Notes list missing and additional tensors, and contradictions between config.json and the tensors.
All files must be in the folder; only links of huggingface_hub's cache may point outside.
"""

from __future__ import annotations

import os

from explorer.base.errors import BadModel
from explorer.base.units import many_do_text, many_text, printable
from explorer.engine.formats.files import open_regular, resolve_inside
from explorer.engine.formats.format import Format, SourceProbe, import_on_call
from explorer.engine.formats.tensor_index import (
    CountNote,
    CountRule,
    StoredTensor,
    TensorIndex,
    build_outline,
    drop_duplicates,
    format_names,
    parse_part_name,
    shorten_text,
)
from explorer.engine.formats.weights import safetensors
from explorer.engine.formats.weights.stored_forms import find_quantization, group_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from explorer.base.outline import Outline

INDEX = ".index.json"
"""Ending of the file name of an index."""
_STEMS = ("model", "diffusion_pytorch_model", "adapter_model", "pytorch_model")
_WEIGHTS = tuple(
    f"{stem}.{ending}{index}" for ending in ("safetensors", "bin") for stem in _STEMS for index in (INDEX, "")
)
"""File names of weights, in order of preference: safetensors before pickles, and an index before a single
file, which may be left over from an older version."""

_CONFIGS = ("config.json", "adapter_config.json")

_MAX_INDEX_BYTES = 32 << 20
"""Maximum bytes of an index; the index of 92,000 tensors has nine million."""

_MAX_CONFIG_BYTES = 4 << 20
_MAX_FILES = 10_000
"""Maximum number of files of a model, and of folder entries that are examined."""

NO_WEIGHTS = "no weights are in this folder"
_WEIGHT_ENDINGS = (
    *(".safetensors", ".bin", ".gguf", ".onnx", ".pt", ".pth", ".pt2", ".ckpt", ".tflite", ".h5"),
    *(".pb", ".npz"),
    *(".msgpack", ".pkl", ".ot", ".mlmodel", INDEX),
)
"""Endings of files with weights, supported or not. A folder with such a file contains more than a
configuration."""


def read_contents(source: str) -> TensorIndex:
    """Reads the headers of a model.

    Args:
        source: Path of a folder, or of an index or a weights file in it.

    Raises:
        BadModel: A file or the index is broken, or the folder has neither weights nor a model_type.
    """
    if os.path.isdir(source):
        folder, name, model_file = source, _find_main_file(source), ""
    else:
        folder, name = os.path.split(source)
        folder, model_file = folder or ".", source
    notes: list[str] = []
    missing_names: list[str] = []
    extra_data: list[tuple[str, str]] = []
    if name.endswith(INDEX):
        tensors, files, metadata = _read_indexed_tensors(
            folder, name, model_file, notes, missing_names, extra_data
        )
    else:
        files = [name] if name else _find_only_weights(folder)
        if not files and _has_only_configuration(folder):
            tensors, metadata = [], {}
        else:
            tensors, metadata = _read_unindexed_tensors(
                folder, files, model_file, notes, missing_names, extra_data
            )
    paths = [os.path.join(folder, file) for file in files]
    if not paths:
        notes.append(NO_WEIGHTS)
    _, config, config_error = read_configuration(
        folder, _CONFIGS[::-1] if name.startswith("adapter_") else _CONFIGS
    )
    notes += [config_error] if config_error else []
    facts = [
        (key, shorten_text(text)) for key, text in (*_flatten_settings(config, "", 0), *metadata.items())
    ]
    tied_notes = safetensors.describe_tied_names(tensors, metadata)
    if paths:
        notes += [
            *tied_notes,
            *_list_contradictions(config, tensors, bool(tied_notes)),
            *safetensors.note_packing(tensors),
        ]
    others = [n for n in _find_other_weights(folder, name) if n not in files]
    if others:
        notes.append(
            f"the folder has other weights, which are not part of this model: {format_names(others)}"
        )
    architecture = config.get("architectures")
    return TensorIndex(
        FORMAT.name,
        source,
        tensors,
        paths,
        sum(os.path.getsize(path) for path in paths),
        facts=facts,
        notes=notes,
        producer=shorten_text(_format_json(architecture[:3])) if isinstance(architecture, list) else "",
        missing=missing_names,
        config=config,
        extra_data=extra_data,
        quantization=_describe_quantization(config),
    )


def _find_main_file(folder: str) -> str:
    """Returns the name of the preferred index or weights file in a folder, or '' if it has none."""
    return next((name for name in _WEIGHTS if os.path.isfile(os.path.join(folder, name))), "")


def _find_only_weights(folder: str) -> list[str]:
    """Returns the names of the only safetensors file of a folder, or of the parts of one model, or none."""
    names = sorted(_list_names(folder, (".safetensors",)))
    parts = {part and (part[0], part[2]) for part in map(parse_part_name, names)}
    return names if len(names) == 1 or (len(parts) == 1 and None not in parts) else []


def _list_names(folder: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yields the names in a folder with one of these endings, among its first `_MAX_FILES` entries."""
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _MAX_FILES:
                    break
                if entry.name.endswith(endings):
                    yield entry.name
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}", where=folder) from None


def _find_other_weights(folder: str, name: str) -> list[str]:
    """Returns the names of weights other than `name` in a folder: variants, or the same weights as pickles.

    A .bin file counts only if its name begins as the weights of a model do.
    """
    other_names = (n for n in _list_names(folder, (".safetensors", ".bin", ".gguf", INDEX)) if n != name)
    return sorted(n for n in other_names if not n.endswith(".bin") or n.startswith(_STEMS))


def _resolve_path_inside(folder: str, name: str, model_file: str = "") -> str:
    """Returns the path of a file of the model, which must be in the model's folder (see `resolve_inside`).

    Args:
        folder: Folder, as the user named it.
        name: Name of the file.
        model_file: Weights or index file that the user named, or '' if the user named the folder.

    Raises:
        BadModel: The name has a folder, or is a link to a file outside the allowed folders.
    """
    is_file_name = name == os.path.basename(name) and name not in (".", "..")
    if not is_file_name or not resolve_inside(name, folder, model_file):
        raise BadModel(f"'{printable(name)}' is outside the model's folder", where=folder)
    return os.path.join(folder, name)


# the weights


def _read_file_tensors(
    path: str, notes: list[str], extra_data: list[tuple[str, str]]
) -> tuple[list[StoredTensor], Mapping[str, str]]:
    """Reads the tensors and the metadata of one file.

    Args:
        path: Path of the file.
        notes: List to which notes are added.
        extra_data: List to which (name, reason) of data that is not part of the model is added.
    """
    if path.endswith(".safetensors"):
        header = safetensors.read(path)
        notes += header.notes
        return header.tensors, header.metadata
    from explorer.engine.formats.torch_files.checkpoint_modules import read_checkpoint  # slow to import

    checkpoint = read_checkpoint(path, FORMAT.name)
    notes += [note for note in checkpoint.contents.notes if note not in notes]
    extra_data += checkpoint.extra_data
    for tensor in checkpoint.contents.tensors:
        if tensor.name in checkpoint.strides and not tensor.unread:
            tensor.unread = "its values are not contiguous in the file"
        if tensor.identity is not None:
            # storage keys are unique only within one file
            tensor.identity = path, tensor.identity
            if tensor.count_rule is not None:
                rule = tensor.count_rule
                pieces = [((path, key), elements, size) for key, elements, size in rule.pieces]
                tensor.count_rule = CountRule(rule.elements, pieces, rule.bounded)
    return list(checkpoint.contents.tensors), {}


def _read_unindexed_tensors(
    folder: str,
    files: Sequence[str],
    model_file: str,
    notes: list[str],
    missing_names: list[str],
    extra_data: list[tuple[str, str]],
) -> tuple[list[StoredTensor], Mapping[str, str]]:
    """Reads the tensors of files without an index, and the metadata of the last file.

    Args:
        folder: Folder, as the user named it.
        files: Names of the files.
        model_file: Weights or index file that the user named, or '' if the user named the folder.
        notes: List to which notes are added.
        missing_names: List to which the names of missing parts are added.
        extra_data: List to which (name, reason) of data that is not part of the model is added.

    Raises:
        BadModel: There are no files, a file is broken, or two files contain the same tensor.
    """
    if not files:
        file_names = "model.safetensors or model.safetensors.index.json"
        raise BadModel("no weights are in this folder", where=folder, hint=f"looked for {file_names}")
    part = parse_part_name(files[0])
    if part is not None:
        notes.append(f"there is no index: {len(files):,} of {part[2]:,} parts are here, read as one model")
        ending = files[0].rpartition(".")[2]
        part_names = (f"{part[0]}-{n + 1:05d}-of-{part[2]:05d}.{ending}" for n in range(part[2]))
        missing_names += sorted(set(part_names) - set(files))
    by_name: dict[str, StoredTensor] = {}
    metadata: Mapping[str, str] = {}
    for file in files:
        tensors, metadata = _read_file_tensors(
            _resolve_path_inside(folder, file, model_file), notes, extra_data
        )
        for tensor in tensors:
            if tensor.name in by_name:
                raise BadModel(f"'{printable(tensor.name)}' is in two of its files", where=folder)
            by_name[tensor.name] = tensor
    return list(by_name.values()), metadata


def _read_indexed_tensors(
    folder: str,
    name: str,
    model_file: str,
    notes: list[str],
    missing_names: list[str],
    extra_data: list[tuple[str, str]],
) -> tuple[list[StoredTensor], list[str], Mapping[str, str]]:
    """Reads the tensors of all files in an index.

    Args:
        folder: Folder, as the user named it.
        name: Name of the index.
        model_file: Weights or index file that the user named, or '' if the user named the folder.
        notes: List to which notes are added.
        missing_names: List to which the names of missing files and tensors are added.
        extra_data: List to which (name, reason) of data that is not part of the model is added.

    Returns:
        The tensors, the names of the files that are present, and the metadata of the index.

    Raises:
        BadModel: The index or a file is broken, or no file is present.
    """
    path = _resolve_path_inside(folder, name, model_file)
    index = _read_json(path, _MAX_INDEX_BYTES)
    file_by_tensor = index.get("weight_map")
    if not isinstance(file_by_tensor, dict) or not all(
        isinstance(file, str) for file in file_by_tensor.values()
    ):
        raise BadModel("is not an index: it does not say which tensor is in which file", where=path)
    files = list(dict.fromkeys(file_by_tensor.values()))
    if len(files) > _MAX_FILES:
        raise BadModel(f"names {len(files):,} files", where=path)
    # check all names before opening a file
    paths = {file: _resolve_path_inside(folder, file, model_file) for file in files}
    absent = [file for file in files if not os.path.lexists(paths[file])]
    present = [file for file in files if os.path.lexists(paths[file])]
    if not present:
        raise BadModel(f"none of the {len(files):,} files that it names is here", where=path)
    by_name: dict[str, StoredTensor] = {}
    moved: list[str] = []
    unlisted: list[str] = []
    for file in present:
        for tensor in _read_file_tensors(paths[file], notes, extra_data)[0]:
            if file_by_tensor.get(tensor.name, file) != file:
                moved.append(f"{tensor.name} in {file}")
                extra_data.append(
                    (f"{tensor.name} in {file}", "the index names another file for this tensor")
                )
                continue
            if tensor.name not in file_by_tensor:
                unlisted.append(tensor.name)
            if tensor.name in by_name:
                problem = f"'{printable(tensor.name)}' is in two files, and the index names neither"
                raise BadModel(problem, where=path)
            by_name[tensor.name] = tensor
    missing = [
        tensor for tensor, file in file_by_tensor.items() if file not in absent and tensor not in by_name
    ]
    missing_names += [*absent, *missing]
    _add_index_notes(notes, file_by_tensor, absent, missing, moved, unlisted)
    metadata = index.get("metadata")
    index_metadata = metadata if isinstance(metadata, dict) else {}
    total = index_metadata.get("total_size")
    size = sum(tensor.nbytes for tensor in drop_duplicates(list(by_name.values())))
    # older versions write the total as a float
    if isinstance(total, (int, float)) and total != size and not absent:
        notes.append(f"the index says {shorten_text(str(total))} bytes of tensors, the files hold {size:,}")
    return (
        list(by_name.values()),
        present,
        {key: _format_json(value) for key, value in index_metadata.items()},
    )


def _add_index_notes(
    notes: list[str],
    file_by_tensor: Mapping[str, str],
    absent: Sequence[str],
    missing: Sequence[str],
    moved: Sequence[str],
    unlisted: Sequence[str],
) -> None:
    """Adds notes on the differences between an index and its files.

    Args:
        notes: List to which the notes are added.
        file_by_tensor: Name of the file of each tensor, as the index says.
        absent: Names of the files that are not there.
        missing: Names of the tensors that a present file should have, but does not have.
        moved: Tensors that are in another file than the index says.
        unlisted: Names of the tensors that the index does not name.
    """
    if absent:
        files = set(file_by_tensor.values())
        tensors = sum(1 for file in file_by_tensor.values() if file in absent)
        text = (
            f"{len(absent):,} of {many_text(len(files), 'file')} {'is' if len(absent) == 1 else 'are'}"
            f" missing, with {tensors:,} of {len(file_by_tensor):,} tensors: {format_names(absent)}"
        )
        notes.insert(0, CountNote(text, "here"))
    if missing:
        count = many_do_text(len(missing), "tensor", "is", "are")
        notes.append(f"{count} in the index and in no file: {format_names(missing)}")
    for names, place in (
        (moved, "in another file than the index says"),
        (unlisted, "in a file but not in the index"),
    ):
        if names:
            count = many_do_text(len(names), "tensor", "is", "are")
            notes.append(f"{count} {place}: {format_names(names)}")


def _read_json(path: str, max_bytes: int) -> dict[str, Any]:
    """Reads a JSON object from a file of at most `max_bytes` bytes.

    Raises:
        BadModel: The file is too long, has too many lists and objects, or is not a JSON object.
    """
    import json

    descriptor, size = open_regular(path)
    try:
        if size > max_bytes:
            raise BadModel(f"has {size:,} bytes, more than the limit of {max_bytes:,}", where=path)
        raw = os.read(descriptor, size)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
    finally:
        os.close(descriptor)
    try:
        # an empty list has 3 bytes in the file and 60 in memory
        if raw.count(b"[") + raw.count(b"{") > _MAX_CONTAINERS:
            raise ValueError(f"it has more than {_MAX_CONTAINERS:,} lists and objects")
        decoded = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"is not a JSON object: {_describe_json_error(raw, error)}", where=path) from None
    if not isinstance(decoded, dict):
        raise BadModel(
            f"is not a JSON object: it is {_JSON_TYPE_NAMES.get(type(decoded), 'a number')}", where=path
        )
    return decoded


def _describe_json_error(raw: bytes, error: ValueError | RecursionError) -> str:
    """Returns the reason why bytes are not JSON, as text."""
    if not raw.strip():
        return "it is empty"
    if isinstance(error, RecursionError):
        return "its lists are nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"its byte {error.start:,} is not {error.encoding.upper()}"
    text, offset = getattr(error, "doc", ""), getattr(error, "pos", None)
    if offset is None:
        return str(error)
    message = getattr(error, "msg", "")
    stripped = text.rstrip()
    if offset >= len(stripped) or message.startswith("Unterminated"):
        return f"it is cut off in line {stripped.count(chr(10)) + 1:,}"
    return f"line {getattr(error, 'lineno', 0):,}, column {getattr(error, 'colno', 0):,}: {message}"


_JSON_TYPE_NAMES: dict[type, str] = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
_MAX_CONTAINERS = 100_000
"""Maximum number of lists and objects in a JSON file."""


# config.json


def read_configuration(folder: str, names: Sequence[str] = _CONFIGS) -> tuple[str, dict[str, Any], str]:
    """Reads the configuration file of a folder.

    Returns:
        The name of the file, its contents, and an error as text. All are empty if the folder has no
        configuration file. For a broken file, the contents are empty.
    """
    folder = folder or "."
    for name in names:
        if os.path.lexists(os.path.join(folder, name)):
            try:
                return name, _read_json(_resolve_path_inside(folder, name), _MAX_CONFIG_BYTES), ""
            except BadModel as error:
                return name, {}, f"{name} {error.what}"
    return "", {}, ""


def explain_missing_type(folder: str) -> str:
    """Explains why a folder's configuration has no model_type; '' if it has one or does not exist."""
    name, config, config_error = read_configuration(folder)
    if not name or isinstance(config.get("model_type"), str):
        return ""
    return config_error or f"{name} names no model_type"


def _flatten_settings(value: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yields the (key, text) of each setting; keys in an inner configuration are prefixed with its name."""
    for key, setting in value.items():
        if isinstance(setting, dict) and depth < 2 and len(setting) <= _MAX_LISTED:
            yield from _flatten_settings(setting, f"{prefix}{key}.", depth + 1)
        elif isinstance(setting, (dict, list)) and len(setting) > _MAX_LISTED:
            yield f"{prefix}{key}", f"{len(setting):,} entries"
        elif setting is not None:
            yield f"{prefix}{key}", _format_json(setting)


def _format_json(value: Any) -> str:
    """Formats a JSON value, which may be nested as deeply as the parser allows."""
    try:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    except RecursionError:
        return "lists that are nested too deeply"


_MAX_LISTED = 32
"""Maximum number of entries of an inner configuration that are listed; class labels may have thousands."""

_LAYER_COUNT_SETTINGS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_VOCABULARY_SETTINGS = ("vocab_size",)
_WIDTH_SETTINGS = ("hidden_size", "n_embd", "d_model", "dim")
_EMBEDDING_ENDINGS = (
    "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight",
    "shared.weight",
)  # fmt: skip
_HEAD_ENDINGS = ("lm_head.weight", "output.weight", "embed_out.weight", "lm_head.decoder.weight")
_DTYPE_SETTINGS = ("dtype", "torch_dtype")


def _find_setting(config: Mapping[str, Any], names: Sequence[str], kind: type) -> Any:
    """Returns the first of these settings that has this type, also in `text_config`, or None."""
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for name in names:
            if type(part.get(name)) is kind:
                return part[name]
    return None


def _describe_quantization(config: Mapping[str, Any]) -> str:
    """Returns the quantization in config.json as text, such as 'gptq, 4 bits', or '' if there is none."""
    setting = config.get("quantization_config")
    if not isinstance(setting, dict):
        return ""
    method = shorten_text(_format_json(setting.get("quant_method", "quantized")))
    bits = _read_quantized_bits(config)
    return f"{method}, {bits} bits" if bits else method


def _read_quantized_bits(config: Mapping[str, Any]) -> int:
    """Returns the bits of a quantized weight in config.json, or 0 if unknown."""
    setting = config.get("quantization_config")
    bits = (setting.get("bits") or setting.get("num_bits")) if isinstance(setting, dict) else 0
    return bits if isinstance(bits, int) and 0 < bits <= 8 else 0


def _list_contradictions(config: Mapping[str, Any], tensors: Sequence[StoredTensor], tied: bool) -> list[str]:
    """Returns notes on contradictions between config.json and the tensors, tied weights, and quantization.

    Args:
        config: Contents of config.json.
        tensors: All tensors of the model.
        tied: Whether another note already lists the tied weights.
    """
    notes = []
    embedding = next((t for t in tensors if t.name.endswith(_EMBEDDING_ENDINGS) and len(t.shape) == 2), None)
    rows = _find_setting(config, _VOCABULARY_SETTINGS, int)
    width = _find_setting(config, _WIDTH_SETTINGS, int)
    special_rows = _SPECIAL_ROWS.get(str(config.get("model_type")), 0)
    special_text = f" (and {special_rows} special rows)" if special_rows else ""
    if embedding is not None and rows and width and embedding.shape != (rows + special_rows, width):
        notes.append(
            f"config.json declares a vocabulary of {rows:,}{special_text} and a width of {width:,};"
            f" {embedding.name} is {list(embedding.shape)}"
        )
    head = next((t for t in tensors if t.name.endswith(_HEAD_ENDINGS)), None)
    if _find_setting(config, ("tie_word_embeddings",), bool) and embedding is not None and not tied:
        if head is None:
            notes.append(
                f"tied weights: the head is not stored, it uses {embedding.name} (tie_word_embeddings);"
                " counted once"
            )
        elif head.identity is None or head.identity != embedding.identity:
            notes.append(
                f"config.json ties the head to the embedding, and both are stored: {head.name} and"
                f" {embedding.name}; both are counted"
            )
    notes += _note_layer_count(_find_setting(config, _LAYER_COUNT_SETTINGS, int), tensors)
    dtype = _find_setting(config, _DTYPE_SETTINGS, str)
    dtypes = {t.dtype for t in tensors if "float" in t.dtype}
    if dtype is not None and dtypes and dtype.removeprefix("torch.") not in dtypes:
        notes.append(f"config.json says {shorten_text(dtype)}, the tensors are {', '.join(sorted(dtypes))}")
    if quantization := _describe_quantization(config):
        bits = _read_quantized_bits(config)
        packed = sum(t.elements for t in tensors if t.dtype == "int32" and t.name.endswith(_PACKED_ENDINGS))
        weights = (
            f"; {packed:,} integers stand for {packed * 32 // bits:,} weights" if bits and packed else ""
        )
        note = f"config.json says that weights are quantized ({quantization})"
        notes.append(CountNote(note, "stored", weights))
    return notes


_SPECIAL_ROWS = {"mllama": 8, "mllama_text_model": 8, "moshi": 1}
"""Number of embedding rows beyond the vocabulary, by architecture."""

_PACKED_ENDINGS = (".qweight", ".weight_packed")
"""Endings of names of packed weights. Each int32 contains 32 // bits weights."""


def _note_layer_count(count: int | None, tensors: Sequence[StoredTensor]) -> list[str]:
    """Returns a note if no list of numbered modules has as many layers as config.json declares.

    Args:
        count: Number of layers in config.json, or None if unknown.
        tensors: All tensors of the model.
    """
    if not count or count > len(tensors):
        if count:
            return [f"config.json declares {count:,} layers, but there are only {len(tensors):,} tensors"]
        return []
    lists: dict[str, set[int]] = {}
    for tensor in tensors:
        parts = tensor.name.split(".", 12)
        for index, part in enumerate(parts[:-1]):
            if len(part) < 6 and part.isascii() and part.isdecimal():
                lists.setdefault(".".join(parts[:index]), set()).add(int(part))
    if not lists or any(numbers == set(range(count)) for numbers in lists.values()):
        return []
    path = max(lists, key=lambda p: len(lists[p]) if p.rpartition(".")[2] in _LIST_NAMES else 0)
    numbers = lists[path]
    if path.rpartition(".")[2] not in _LIST_NAMES:
        return []
    missing, extra = sorted(set(range(count)) - numbers), sorted(numbers - set(range(count)))
    sentences = [f"config.json declares {count:,} layers, {path or 'the model'} has {len(numbers):,}"]
    for label, layer_numbers in (("missing", missing), ("more than that", extra)):
        if layer_numbers:
            sentences.append(f"{label}: {format_names([f'{path}.{number}' for number in layer_numbers])}")
    return ["; ".join(sentences)]


_LIST_NAMES = ("layers", "layer", "h", "blocks", "block")
"""Usual names of the list of a model's layers."""


def _reword_parameter_note(note: str) -> str:
    """Removes 'parameters' from a note that figures are those of stored integers; keeps other notes."""
    if isinstance(note, CountNote) and note.counted == "stored":
        return CountNote(note.plain, "types stored", note.text_after)
    return note


def _outline(source: str) -> Outline:
    """Returns the outline of a model.

    For quantized weights, it has the number of parameters before packing, if known.
    """
    stored_index = read_contents(source)
    quantized = find_quantization(stored_index.config)
    if not isinstance(quantized, dict):
        return build_outline(stored_index)
    weights = group_weights(drop_duplicates(stored_index.tensors), quantized)
    elements = [weight.elements for weight in weights if weight.elements is not None]
    if len(elements) < len(weights) or len(weights) == len(stored_index.tensors):
        return build_outline(stored_index)
    as_stored = safetensors.note_packing(stored_index.tensors)
    stored_index.notes = [
        _reword_parameter_note(note) for note in stored_index.notes if note not in as_stored
    ]
    return build_outline(stored_index, weights=sum(elements))


def _recognize(probe: SourceProbe) -> bool:
    if probe.is_file:
        return _is_index(probe)
    if not probe.is_dir:
        return False
    name = _find_main_file(probe.source)
    if name.endswith(INDEX):
        return True
    has_config = any(os.path.exists(os.path.join(probe.source, config)) for config in _CONFIGS)
    return has_config and bool(
        name or _find_only_weights(probe.source) or _has_only_configuration(probe.source)
    )


def _has_only_configuration(folder: str) -> bool:
    """Whether a folder has a configuration with a model_type, no weights, and no inner folders."""
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                is_inner_folder = entry.is_dir() and not entry.name.startswith(".")
                if number >= _MAX_FILES or is_inner_folder or entry.name.lower().endswith(_WEIGHT_ENDINGS):
                    return False
    except OSError:
        return False
    return isinstance(read_configuration(folder)[1].get("model_type"), str)


def _is_index(probe: SourceProbe) -> bool:
    """Whether a file is an index: JSON with a weight map, or with the file name of an index."""
    has_index_name = probe.source.endswith((f".safetensors{INDEX}", f".bin{INDEX}"))
    return probe.head.lstrip()[:1] == b"{" and (has_index_name or b'"weight_map"' in probe.head)


FORMAT = Format(
    "huggingface",
    "a Hugging Face folder (config.json, and weights if there are any), or its index of shards",
    label="Hugging Face folder",
    recognize=_recognize,
    open=import_on_call("models.torch.transformers:open_folder"),
    tensors=read_contents,
    outline=_outline,
    endings=(f".safetensors{INDEX}", f".bin{INDEX}"),
    recognized_by="config.json or an index beside the weights, or only a config.json with a model_type",
    shows="the shards as one model: tensors by module, settings of config.json; with transformers, layers",
)
