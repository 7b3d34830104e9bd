"""stages.json, the manifest of a folder of stages: each file, its inputs and outputs, and its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from explorer.base.errors import BadModel, Misuse
from explorer.engine.graph.model import Model, Value
from explorer.facts import TensorInfo
from explorer.facts.split.split import Split, Stage
from explorer.host import input_files

NAME = "stages.json"


_Size = Annotated[int, Meta(ge=0)]


class ManifestTensor(Struct, frozen=True):
    """An input or output: its name, element type and shape (a dimension name where a size is open)."""

    name: str
    dtype: str | None
    shape: tuple[_Size | str | None, ...] | None


class ManifestStage(Struct, frozen=True):
    """A stage: see `facts.split.Stage`."""

    file: str
    inputs: tuple[ManifestTensor, ...]
    outputs: tuple[ManifestTensor, ...]
    layers: int
    params: int
    macs: int | None
    weight_bytes: int
    sha256: str
    data_sha256: str = ""


class ManifestCut(Struct, frozen=True):
    """A cut: the bytes that cross it, and the names of the tensors."""

    bytes: int
    tensors: tuple[str, ...]


class ManifestWeight(Struct, frozen=True):
    """A parameter that several torch stages share: its name in the whole, and in each stage by number."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: dict[str, str]


class Manifest(Struct, frozen=True):
    """The contents of stages.json.

    Attributes:
        model: The model that was split.
        inputs, outputs: Inputs and outputs of the whole model.
        shared: Parameters that several torch stages share, whose gradients must be added.
    """

    model: str
    by: str
    inputs: tuple[ManifestTensor, ...]
    outputs: tuple[ManifestTensor, ...]
    stages: tuple[ManifestStage, ...]
    cuts: tuple[ManifestCut, ...]
    balance: float
    shared: tuple[ManifestWeight, ...] = ()


def encoded(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read(folder: str) -> Manifest:
    """Reads the manifest of a folder, and checks that its files exist and have not changed.

    Raises:
        Misuse: There is no such folder, or no manifest in it.
        BadModel: The manifest is broken, or a stage's file is missing, outside the folder, or has changed.
    """
    path = os.path.join(folder, NAME)
    try:
        input_files.check(path)
    except OSError:
        hint = "explorer split MODEL -n 2 -o FOLDER writes one"
        raise Misuse(f"there is no {NAME}", where=folder, hint=hint) from None
    manifest = listed(path)
    for name, digest in files(manifest).items():
        _check_digest(os.path.join(folder, name), digest)
    _check_wiring(manifest, path)
    return manifest


def listed(path: str) -> Manifest:
    """Reads a manifest without checking the files that it names.

    Raises:
        BadModel: The manifest is broken, or names a file outside its folder.
    """
    try:
        manifest = msgspec.json.decode(input_files.content(path), type=Manifest)
    except OSError as error:
        raise BadModel(f"cannot be read ({error.strerror or error})", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadModel(f"is no manifest of stages: {error}", where=path) from None
    if not manifest.stages:
        raise BadModel("names no stages", where=path)
    for stage in manifest.stages:
        if os.path.basename(stage.file) != stage.file or stage.file in ("", ".", ".."):
            raise BadModel(f"names a file outside its folder: '{stage.file}'", where=path)
    return manifest


def files(manifest: Manifest) -> dict[str, str]:
    """Digests of the stages' files, external data included, by file name."""
    external_data = {
        f"{stage.file}.data": stage.data_sha256 for stage in manifest.stages if stage.data_sha256
    }
    return {stage.file: stage.sha256 for stage in manifest.stages} | external_data


def _check_digest(path: str, digest: str) -> None:
    if not os.path.isfile(path):
        raise BadModel("a stage is missing", where=path, hint="split the model again")
    if sha256(path) != digest:
        raise BadModel(
            "this stage is not what was written: its digest differs", where=path, hint="split again"
        )


def _check_wiring(manifest: Manifest, path: str) -> None:
    available = {tensor.name for tensor in manifest.inputs}
    for stage in manifest.stages:
        missing = [tensor.name for tensor in stage.inputs if tensor.name not in available]
        if missing:
            raise BadModel(f"nothing before {stage.file} makes '{missing[0]}'", where=path)
        available |= {tensor.name for tensor in stage.outputs}
    missing = [tensor.name for tensor in manifest.outputs if tensor.name not in available]
    if missing:
        raise BadModel(f"no stage makes '{missing[0]}'", where=path)


def sha256(path: str) -> str:
    """Digest of a file."""
    with input_files.binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def declared(values: Iterable[Value]) -> tuple[ManifestTensor, ...]:
    """Inputs or outputs as the manifest describes them, with the names of open sizes."""
    return tuple([ManifestTensor(value.name, value.dtype, value.shape) for value in values])


def tensors(infos: Iterable[TensorInfo]) -> tuple[ManifestTensor, ...]:
    """As `declared`, for values whose sizes are known."""
    return tuple([ManifestTensor(info.name, info.dtype, info.shape) for info in infos])


def cuts(split: Split) -> tuple[ManifestCut, ...]:
    """The cuts as the manifest describes them."""
    return tuple([ManifestCut(cut.bytes, tuple([t.name for t in cut.tensors])) for cut in split.cuts])


def stage(fact: Stage, model: Model) -> ManifestStage:
    """A stage of a graph as the manifest describes it."""
    return module_stage(fact, declared(model.graph.feeds), declared(model.graph.outputs))


def module_stage(
    fact: Stage, inputs: tuple[ManifestTensor, ...], outputs: tuple[ManifestTensor, ...]
) -> ManifestStage:
    """A stage as the manifest describes it, with its declared inputs and outputs."""
    return ManifestStage(
        file=fact.file,
        inputs=inputs,
        outputs=outputs,
        layers=fact.layers,
        params=fact.params,
        macs=fact.macs,
        weight_bytes=fact.weight_bytes,
        sha256=fact.sha256,
        data_sha256=fact.data_sha256,
    )
