"""Facts about a conversion: the requested options, and a model that was written in another file format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from explorer.base.checked import Count, Spec, Words
from explorer.base.fact import Fact
from explorer.base.options import option
from explorer.base.units import join_values
from explorer.base.verdicts import PASSED, find_weakest
from explorer.facts import TensorInfo, VerdictKind, Verification

ExporterName = Literal["torchscript", "dynamo"]
"""Torch's exporters to ONNX."""

ScriptMethod = Literal["trace", "script"]
"""Methods that create TorchScript."""


def _format_axes(axes: tuple[str, Mapping[int, str]]) -> str:
    """Formats the open axes of one input as an option value: 'x:0=batch,2=height'."""
    name, dims = axes
    return f"{name}:{','.join(f'{axis}={dim}' for axis, dim in dims.items())}"


class ConversionOptions(Spec, frozen=True):
    """Options for the result. The converter chooses a value for each option that is not set.

    Attributes:
        exporter: Torch's exporter: 'torchscript' or 'dynamo'.
        opset: Version of the ONNX operator set.
        input_names: Name of each input, then names of the first stored tensors.
        output_names: Name of each output.
        dynamic: Open dimensions: input name to axis to dimension name.
        method: TorchScript method: 'trace' or 'script'.
        fold: Whether to fold batch normalization, constants and no-ops.
    """

    exporter: Annotated[
        ExporterName | None,
        option("which of torch's exporters writes ONNX (default: the one that works)"),
    ] = None
    opset: Annotated[
        Count | None,
        option("version of ONNX's operators (default: what the exporter does best)", metavar="N"),
    ] = None
    input_names: Annotated[
        tuple[Words, ...],
        option(
            "names of the inputs in the ONNX file, in order, separated by commas; further names are for the\n"
            "weights",
            metavar="A,B",
            reader="names",
            joined=True,
            write=join_values,
        ),
    ] = ()
    output_names: Annotated[
        tuple[Words, ...],
        option(
            "names of the outputs in the ONNX file, in order, separated by commas",
            metavar="A,B",
            reader="names",
            joined=True,
            write=join_values,
        ),
    ] = ()
    dynamic: Annotated[
        Mapping[str, Mapping[int, str]],
        option(
            "axes of an input that are left open, and their names, such as x:0=batch",
            manual="an axis of an input that is left open, and its name: `x:0=batch`, `x:0=batch,2=height`",
            metavar="NAME:AXIS=DIM",
            reader="dynamic",
            write=_format_axes,
        ),
    ] = {}
    method: Annotated[
        ScriptMethod | None,
        option("how TorchScript is made: traced with inputs (default), or compiled from source"),
    ] = None
    fold: Annotated[
        bool, option("remove batch normalization, constants and no-ops, with proof (to ONNX)")
    ] = False


class RebatchSpec(Spec, frozen=True):
    """Options for a model with another batch size.

    Attributes:
        axes: Batch axis of each input by name. Empty uses the first axis of every input.
    """

    axes: Annotated[
        Mapping[str, int],
        option(
            "which axis of an input is its batch, such as x:1 (default: the first of each)",
            manual="which axis of an input is its batch, such as `x:1`; inputs without this option"
            " have no batch"
            " (default: the first axis of every input)",
            metavar="NAME:AXIS",
            flag="--axis",
            reader="axes",
            write=lambda axis: f"{axis[0]}:{axis[1]}",
        ),
    ] = {}


class StoredEvidence(Fact, frozen=True):
    """Byte-for-byte comparison of the stored tensors of two models.

    Attributes:
        tensors: Number of tensors compared.
        nbytes: Bytes compared. Bytes of a shared tensor count once.
        differing: Name of each tensor that differs, with the reason.
        sha256: SHA-256 digest of the bytes of all tensors in the order of their names, or '' if they differ.
        passed: Whether no tensor differs.
        verdict: Result in one sentence.
    """

    tensors: int
    nbytes: int
    differing: tuple[tuple[str, str], ...]
    sha256: str
    passed: bool
    verdict: str
    seconds: float = 0.0


class Conversion(Fact, frozen=True):
    """A model that was written in another format, with the evidence that the file holds the same model.

    Attributes:
        source: Model that was opened.
        source_format: Format of the source.
        format: Format of the result.
        output: Path of the file, or '' if no file was kept because the evidence is against it.
        file_bytes: Bytes of the file and of the files that belong to it, or None if no file was kept.
        how: Tool that made the result, in words ('the TorchScript exporter, opset 17').
        opset: Opset of an ONNX file.
        inputs: Inputs as the file declares them. Named dimensions are dynamic.
        outputs: Outputs as the file declares them.
        verification: Evidence from running both models, or None if none was requested or there is nothing to
            run.
        stored: Evidence from comparing bytes, if the model consists of tensors only.
        notes: Remarks, such as values that were guessed and parts that the result lacks.
        unknown: Name of each part of the source that the converter did not understand, with the reason. Such
            a part is neither a copied tensor nor a metadata value. With `verify`, no file is written then.
        command: Command that makes the same conversion, or '' for an nn.Module object.
    """

    source: str
    source_format: str
    format: str
    output: str
    file_bytes: int | None
    how: str
    opset: int | None = None
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    verification: Verification | None = None
    stored: StoredEvidence | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    command: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no evidence speaks against the result."""
        return self.verdict_kind in PASSED

    @property
    def verdict_kind(self) -> VerdictKind:
        """Result of the evidence. It is 'equal' even if no evidence was requested.

        It is 'different' if the result lacks a part of the source that the converter did not understand.
        """
        kinds: list[VerdictKind] = []
        if self.verification is not None:
            kinds.append(self.verification.verdict_kind)
        if self.stored is not None:
            kinds.append("equal" if self.stored.passed else "different")
        if self.unknown:
            kinds.append("different")
        return find_weakest(kinds)
