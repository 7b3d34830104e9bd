"""Reads and writes stages.json, the manifest of a folder of stages.

The manifest lists the file of each stage, with its inputs, outputs and SHA-256 digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from explorer.base.compat import build_type
from explorer.base.errors import BadModel, Misuse
from explorer.engine.graph.model import Model, Value
from explorer.facts import TensorInfo
from explorer.facts.split.split import Split, Stage
from explorer.host import input_files

NAME = "stages.json"


_Size = Annotated[int, Meta(ge=0)]


class ManifestTensor(Struct, frozen=True):
    """An input or output: its name, element type and shape. An open size is a dimension name."""

    name: str
    dtype: str | None
    shape: tuple[_Size | str | None, ...] | None


class ManifestStage(Struct, frozen=True):
    """A stage; `facts.split.Stage` describes the fields."""

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
    """A cut: the names of the tensors that cross it, and their bytes in total."""

    bytes: int
    tensors: tuple[str, ...]


class ManifestWeight(Struct, frozen=True):
    """A parameter that several torch stages share.

    Attributes:
        name: Its name in the original module.
        dtype: Its element type.
        shape: Its shape.
        names: Its name in each stage that uses it, by the stage's number from 1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: dict[str, str]


class Manifest(Struct, frozen=True):
    """The contents of stages.json.

    Attributes:
        model: Name of the model that was split.
        by: The cost that was balanced between the stages.
        inputs, outputs: Inputs and outputs of the original model.
        stages: The stages, in execution order.
        cuts: The cuts between the stages.
        balance: Mean cost of the stages divided by the largest.
        shared: Parameters that several torch stages share. Training must sum their gradients.
    """

    model: str
    by: str
    inputs: tuple[ManifestTensor, ...]
    outputs: tuple[ManifestTensor, ...]
    stages: tuple[ManifestStage, ...]
    cuts: tuple[ManifestCut, ...]
    balance: float
    shared: tuple[ManifestWeight, ...] = ()


def encode(manifest: Manifest) -> bytes:
    """Returns the contents of stages.json as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read(folder: str) -> Manifest:
    """Reads the manifest of a folder, and checks that its files exist and have not changed.

    Raises:
        Misuse: The folder does not exist or contains no manifest.
        BadModel: The manifest is invalid, or the file of a stage is missing, outside the folder, or changed.
    """
    path = os.path.join(folder, NAME)
    try:
        input_files.check(path)
    except OSError:
        hint = "explorer split MODEL -n 2 -o FOLDER writes one"
        raise Misuse(f"there is no {NAME}", where=folder, hint=hint) from None
    manifest = read_unchecked(path)
    for name, digest in list_digests(manifest).items():
        _check_digest(os.path.join(folder, name), digest)
    _check_wiring(manifest, path)
    return manifest


def read_unchecked(path: str) -> Manifest:
    """Reads a manifest without checking the files that it names.

    Raises:
        BadModel: The manifest is invalid, or names a file outside its folder.
    """
    try:
        manifest = msgspec.json.decode(input_files.read_content(path), type=build_type(Manifest))
    except OSError as error:
        raise BadModel(f"cannot be read ({error.strerror or error})", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadModel(f"is not a manifest of stages: {error}", where=path) from None
    if not manifest.stages:
        raise BadModel("names no stages", where=path)
    for stage in manifest.stages:
        if os.path.basename(stage.file) != stage.file or stage.file in ("", ".", ".."):
            raise BadModel(f"names a file outside its folder: '{stage.file}'", where=path)
    return manifest


def list_digests(manifest: Manifest) -> dict[str, str]:
    """Returns the digests of the stages' files and of their external data, by file name."""
    external_data = {
        f"{stage.file}.data": stage.data_sha256 for stage in manifest.stages if stage.data_sha256
    }
    return {stage.file: stage.sha256 for stage in manifest.stages} | external_data


def _check_digest(path: str, digest: str) -> None:
    if not os.path.isfile(path):
        raise BadModel("a stage is missing", where=path, hint="split the model again")
    if compute_sha256(path) != digest:
        raise BadModel("this stage was changed: its digest differs", where=path, hint="split the model again")


def _check_wiring(manifest: Manifest, path: str) -> None:
    """Raises an error if an input of a stage or an output of the model comes from no earlier stage."""
    available = {tensor.name for tensor in manifest.inputs}
    for stage in manifest.stages:
        missing = [tensor.name for tensor in stage.inputs if tensor.name not in available]
        if missing:
            raise BadModel(f"nothing before {stage.file} makes '{missing[0]}'", where=path)
        available |= {tensor.name for tensor in stage.outputs}
    missing = [tensor.name for tensor in manifest.outputs if tensor.name not in available]
    if missing:
        raise BadModel(f"no stage makes '{missing[0]}'", where=path)


def compute_sha256(path: str) -> str:
    """Computes the SHA-256 digest of a file, in hexadecimal."""
    with input_files.open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_values(values: Iterable[Value]) -> tuple[ManifestTensor, ...]:
    """Converts graph inputs or outputs to manifest entries, which keep the names of open sizes."""
    return tuple([ManifestTensor(value.name, value.dtype, value.shape) for value in values])


def describe_tensors(infos: Iterable[TensorInfo]) -> tuple[ManifestTensor, ...]:
    """Converts types of tensors to manifest entries."""
    return tuple([ManifestTensor(info.name, info.dtype, info.shape) for info in infos])


def describe_cuts(split: Split) -> tuple[ManifestCut, ...]:
    """Converts the cuts of a split to manifest entries."""
    return tuple([ManifestCut(cut.bytes, tuple([t.name for t in cut.tensors])) for cut in split.cuts])


def describe_onnx_stage(fact: Stage, model: Model) -> ManifestStage:
    """Builds the manifest entry of an ONNX stage."""
    graph = model.graph
    return describe_stage(fact, describe_values(graph.required_inputs), describe_values(graph.outputs))


def describe_stage(
    fact: Stage, inputs: tuple[ManifestTensor, ...], outputs: tuple[ManifestTensor, ...]
) -> ManifestStage:
    """Builds the manifest entry of a stage with the given inputs and outputs."""
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
