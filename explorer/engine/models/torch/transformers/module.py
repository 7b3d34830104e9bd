"""Builds transformers models on the meta device from a configuration, with weights in files.

The module's code determines the computation, and the files determine the bytes of the layers. Weights are
read only when their values are needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.costs.memory.liveness import AnalysisResult, BuiltRows
from explorer.engine.formats.tensor_index import CountNote, TensorIndex, format_names, strip_count_note
from explorer.engine.formats.torch_module import stored_form
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.transformers import gguf_config, matching
from explorer.engine.formats.transformers import module as configured
from explorer.engine.formats.transformers.config import BuildError
from explorer.engine.formats.weights.huggingface import NO_WEIGHTS
from explorer.engine.formats.weights.stored_forms import find_quantization, group_weights
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensors import TensorFile, format_facts
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.values.numbers import Numbers
from explorer.facts import Info, Layer
from explorer.host import input_files
from explorer.host.file_reads import FileRead, create_record, record_full_read
from explorer.host.optional_packages import require


class ConfiguredModule(TorchModel):
    """A module built from a configuration, and the files that hold its weights.

    Args:
        file: Tensors of the files.
        options: Options that the model was opened with.
        loaded: The module.
        match: Tensors of the files for each parameter of the module.
    """

    takes_weights = False
    planned_as_traced = True

    def __init__(
        self, file: TensorFile, options: OpenOptions, loaded: LoadedModule, match: matching.NameMatch
    ) -> None:
        self.file = file
        self.format = file.format
        self.source = file.source
        self.options = options
        self.loaded = loaded
        self.match = match
        self._graph = None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)

        def list_rows() -> BuiltRows:
            built_rows = examined.rows()
            return built_rows._replace(layers=tuple(map(self._add_stored_names, built_rows.layers)))

        return AnalysisResult(
            self._add_file_facts(examined.info), list_rows, examined.bounds, examined.failed_layer
        )

    def _add_stored_names(self, layer: Layer) -> Layer:
        """Returns the row with the names of its tensors in the files as 'stored as', if they differ."""
        if layer.group or not layer.weights:
            return layer
        weight_names = [f"{layer.path}.{weight.name}" for weight in layer.weights]
        names = [name for weight_name in weight_names for name in self.match.names.get(weight_name, ())]
        if not names or names == weight_names:
            return layer
        return replace(layer, attributes={**layer.attributes, "stored as": format_names(names)})

    def stored(self) -> Info:
        """See `TorchModel`."""
        return self._add_file_facts(super().stored())

    def _add_file_facts(self, info: Info) -> Info:
        """Adds facts about the files to those about the module."""
        contents = self.file.contents
        # the explanation of a CountNote is left out: it explains counts of the files, and these figures count
        # the module, with its parameters in missing files
        file_notes = map(strip_count_note, contents.notes)
        notes = tuple(dict.fromkeys((*info.model.notes, *file_notes, *format_facts(contents.facts))))
        model_info = replace(
            info.model,
            source=self.source,
            format=self.format,
            producer=contents.producer or info.model.producer,
            file_bytes=contents.file_bytes,
            notes=notes,
        )
        return replace(info, model=model_info)

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """Returns the tensors as stored in the files, each with the layer of its parameter.

        See `OpenedModel`.
        """
        tensors, notes = self.file.tensors()
        owners = {name: path.rpartition(".")[0] for path, names in self.match.names.items() for name in names}
        return [replace(tensor, layer=owners.get(tensor.name, tensor.layer)) for tensor in tensors], notes

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """See `OpenedModel`.

        For a folder of safetensors files: its configurations, its index and the headers of its shards. The
        version of transformers also matters, but is not a file of the model.

        The result is None for any other source, or if a file cannot be read.
        """
        files = self.file.contents.files
        if not os.path.isdir(self.source) or not all(name.endswith(".safetensors") for name in files):
            return None
        try:
            json_names = [
                name for name in os.listdir(self.source) if name.endswith(("config.json", ".index.json"))
            ]
            reads = [record_full_read(os.path.join(self.source, name)) for name in sorted(json_names)]
            return (*reads, *map(_locate_header, files))
        except OSError:
            return None


def _locate_header(path: str) -> FileRead:
    """Returns the location of the header of a safetensors file.

    Raises:
        OSError: The file cannot be read.
    """
    with input_files.open_binary(path) as file:
        length = int.from_bytes(file.read(8), "little")
    return create_record(path, os.path.getsize(path), ((0, 8 + length),))


def _name_packing_method(packed: Mapping[str, Any]) -> str:
    """Returns the packing method of weights: `quant_method`, or 'mlx', which is stored without that key."""
    return printable(str(packed.get("quant_method") or "mlx"))


def open_folder(contents: TensorIndex, options: OpenOptions) -> OpenedModel:
    """Opens a folder, or a file with a config.json next to it, as the module of the configuration.

    If no module can be built, opens the tensors, with a note that gives the reason.

    Raises:
        BadModel: The configuration asks for larger sizes than any model has.
        MissingExtra: transformers is broken.
    """
    folder = contents.source if os.path.isdir(contents.source) else os.path.dirname(contents.source) or "."
    quantization = find_quantization(contents.config)
    packed: Mapping[str, Any] = quantization if isinstance(quantization, dict) else {}
    try:
        loaded = configured.create_module(
            contents.source,
            contents.config,
            dtype=_choose_compute_dtype(contents),
            trust=options.trust,
            values="" if packed else folder,
            files=() if os.path.isdir(contents.source) else contents.files,
        )
        if not contents.files:
            return _build_without_weights(contents, options, loaded, packed)
        match = matching.match(loaded.build_for_inspection(), contents.tensors, packed)
        # weights in an unknown packed form must not be counted in the module's own form
        method = f"config.json, for '{_name_packing_method(packed)}'," if packed else "config.json"
        _check_match(match, method, requires_all=bool(packed) and not contents.missing)
    except BuildError as error:
        contents.why = str(error)
        return TensorFile(contents, options)
    return _attach_weights(contents, options, loaded, match)


def open_gguf(contents: TensorIndex, options: OpenOptions) -> OpenedModel:
    """Opens a GGUF file as the module that its metadata describes.

    If no module can be built, opens the tensors, with a note that gives the reason.

    Raises:
        BadModel: The metadata asks for larger sizes than any model has.
        MissingExtra: transformers is broken.
    """
    require("transformers", contents.source)
    architecture = str(contents.config["general.architecture"])
    file_tensors = {tensor.name: tensor for tensor in contents.tensors}
    reason = f"transformers does not know llama.cpp's architecture '{printable(architecture)}'"
    try:
        for config, note in gguf_config.list_configurations(contents.config, contents.tensors):
            try:
                loaded = configured.create_module(
                    contents.source, config, dtype=_choose_compute_dtype(contents)
                )
                parameters = loaded.build_for_inspection().state_dict(keep_vars=True)
                layers = contents.config.get(f"{architecture}.block_count")
                names = gguf_config.GgufNames(
                    parameters, architecture, layers if isinstance(layers, int) else 0, file_tensors
                )
                match = matching.match_weights(parameters, group_weights(contents.tensors, {}), names)
                _check_match(match, "its metadata", requires_all=not contents.missing)
            except BuildError as error:
                reason = str(error)
                continue
            loaded.notes = (*loaded.notes, *((note,) if note else ()))
            return _attach_weights(contents, options, loaded, match)
    except BuildError as error:
        reason = str(error)
    contents.why = reason
    return TensorFile(contents, options)


def _build_without_weights(
    contents: TensorIndex, options: OpenOptions, loaded: LoadedModule, packed: Mapping[str, Any]
) -> ConfiguredModule:
    """Returns the module of a configuration without weights, with notes on the assumed types."""
    dtype = _choose_compute_dtype(contents, "")
    type_text = f"in {dtype}" if dtype else "in float32, because it names no type"
    packing_text = f", not packed as '{_name_packing_method(packed)}' would" if packed else ""
    note = f"parameters and bytes are those of the configuration, {type_text}{packing_text}"
    loaded.notes = (*loaded.notes, note)
    loaded.values = partial(_refuse_values, contents.source)
    return ConfiguredModule(TensorFile(contents, options), options, loaded, matching.NameMatch())


def _refuse_values(source: str) -> NoReturn:
    """Refuses to read values, because the folder has no weights."""
    raise BadModel(NO_WEIGHTS, where=source, hint="there is only its config.json; put the weights beside it")


def _attach_weights(
    contents: TensorIndex, options: OpenOptions, loaded: LoadedModule, match: matching.NameMatch
) -> ConfiguredModule:
    """Returns the module with the stored forms of its matched parameters, and with notes on the others."""
    stored_form.attach(loaded.build_for_inspection(), match.stored)
    build = loaded.build

    def attach_weights() -> nn.Module:
        module = build()
        stored_form.attach(module, match.stored)
        return module

    # the module is built again when its values are needed
    loaded.build = attach_weights
    # figures of the module include parameters in missing files
    count_notes = [note for note in contents.notes if isinstance(note, CountNote)]
    absent = [note.plain for note in count_notes if note.counted == "here"]
    loaded.notes = (*loaded.notes, *match.list_notes(), *absent)
    return ConfiguredModule(TensorFile(contents, options), options, loaded, match)


def _check_match(match: matching.NameMatch, source_text: str, *, requires_all: bool = False) -> None:
    """Refuses a module that contradicts the files, or of which the files contain less than half.

    Args:
        match: Tensors of the files for each parameter of the module.
        source_text: Description of the module's source for messages.
        requires_all: Whether the files must contain all parameters. A source that does not fully determine
            the module requires it: a configuration of packed weights, or GGUF metadata.

    Raises:
        BuildError: The module is refused.
    """
    if match.contradictions:
        count = len(match.contradictions)
        tensor_names = format_names(match.contradictions, 2)
        raise BuildError(f"{source_text} contradicts {many_text(count, 'tensor')} ({tensor_names})")
    if len(match.stored) < len(match.missing) or (requires_all and match.missing):
        tensor_names = format_names(match.unexpected, 1) or "nothing"
        raise BuildError(
            f"{len(match.missing):,} of {len(match.stored) + len(match.missing):,} parameters of the module"
            f" that {source_text} describes are in no file ('{format_names(match.missing, 1)}' in the module,"
            f" '{tensor_names}' in the files)"
        )


_FLOATS = ("bfloat16", "float16", "float32", "float64")


def _choose_compute_dtype(contents: TensorIndex, otherwise: str = "float32") -> str:
    """Returns the type that the module computes in.

    It is the type in the configuration, or else the type of most numbers in the files, or else `otherwise`.
    """
    config = contents.config
    for section in (config, config.get("text_config")):
        for key in ("dtype", "torch_dtype"):
            dtype_name = section.get(key) if isinstance(section, dict) else None
            if isinstance(dtype_name, str) and dtype_name.removeprefix("torch.") in _FLOATS:
                return dtype_name.removeprefix("torch.")
    counts: dict[str, int] = {}
    for tensor in contents.tensors:
        # llama.cpp stores keys and values in 16 bits if weights are quantized
        dtype = "float16" if contents.format == "gguf" and tensor.dtype not in _FLOATS else tensor.dtype
        if dtype in _FLOATS:
            counts[dtype] = counts.get(dtype, 0) + tensor.elements
    return max(counts, key=lambda name: counts[name], default=otherwise)
