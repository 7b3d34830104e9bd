"""Conversion: what became of a model that was written as another kind of file."""

from __future__ import annotations

from msgspec import Struct

from explorer.base.verdicts import PASSED, weakest
from explorer.facts import TensorInfo, VerdictKind, Verification


class StoredEvidence(Struct, frozen=True):
    """Stored tensors of two models, compared byte for byte.

    Attributes:
        tensors: Names compared.
        nbytes: Bytes of them that were compared, those of a shared tensor once.
        differing: (name, why) of those that are not the same.
        sha256: Digest of the bytes of all tensors in the order of their names, as both have them; empty
            where they differ.
        passed: Nothing differs.
        verdict: One sentence in words.
    """

    tensors: int
    nbytes: int
    differing: tuple[tuple[str, str], ...]
    sha256: str
    passed: bool
    verdict: str
    seconds: float = 0.0


class Conversion(Struct, frozen=True):
    """A model that was written as another kind of file, and the evidence that it is the same.

    Attributes:
        source: What was opened.
        source_format: Its format.
        format: The format that was made.
        output: The file; empty when nothing was kept, because the evidence is against it.
        file_bytes: Of it and what lies beside it; None when nothing was kept.
        how: What made it, in words ('the TorchScript exporter, opset 17').
        opset: Of an ONNX file.
        inputs: What goes in, as the file has it: named dimensions are dynamic.
        outputs: What comes out.
        verification: Evidence from running both; None when it was not asked for, or there is nothing to run.
        stored: Evidence from comparing bytes, where tensors are all there is.
        notes: What is worth knowing: what was guessed, what is not in the result.
        unknown: (name, why) of what the source holds and nobody understood: neither a tensor that was copied
            nor a value that became metadata. With `verify` nothing is written then.
        command: What does the same on the command line; empty for an nn.Module object.
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
        """Whether nothing that was looked at speaks against the result."""
        return self.verdict_kind in PASSED

    @property
    def verdict_kind(self) -> VerdictKind:
        """What was shown of the result; 'equal' also where nothing was asked for.

        'different' where something of the source is missing because it was not understood.
        """
        ran = [] if self.verification is None else [self.verification.verdict_kind]
        bytewise: list[VerdictKind] = []
        if self.stored is not None:
            bytewise.append("equal" if self.stored.passed else "different")
        if self.unknown:
            bytewise.append("different")
        return weakest([*ran, *bytewise])
