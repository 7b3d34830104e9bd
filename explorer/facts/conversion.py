"""Facts about a conversion: a model that was written in another file format."""

from __future__ import annotations

from msgspec import Struct

from explorer.base.verdicts import PASSED, weakest
from explorer.facts import TensorInfo, VerdictKind, Verification


class StoredEvidence(Struct, frozen=True):
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


class Conversion(Struct, frozen=True):
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
        ran = [] if self.verification is None else [self.verification.verdict_kind]
        bytewise: list[VerdictKind] = []
        if self.stored is not None:
            bytewise.append("equal" if self.stored.passed else "different")
        if self.unknown:
            bytewise.append("different")
        return weakest([*ran, *bytewise])
