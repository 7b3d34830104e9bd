"""Facts about emitted code: C files of mapped matrix products, and the proof that they compute the same."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from explorer.base.fact import Fact, TableFact
from explorer.base.verdicts import VerdictKind
from explorer.facts.mapping import GroupForm, MemoryMachine, SiteMapping

MANIFEST = "mapping.json"
"""Name of the manifest in a folder of emitted code."""

MANIFEST_VERSION = 1

CodeForm = Literal["c", "json"]
"""Form of an emission: C files with the manifest, or the manifest alone."""

CodeFusion = Literal["", "epilogue"]
"""Operators that are fused into the products: none, or those that follow them."""

CodeRunner = Literal["cc", "numpy", ""]
"""Runner of a loop nest: the compiled code, NumPy without a compiler, or '' if no nest ran."""

_FileName = Annotated[str, Meta(pattern=r"^(site_\d{3,6}\.c)?$")]


class CodeCounter(Fact, frozen=True):
    """A counter of moved bytes, with the number in the plan.

    Attributes:
        level: Index of the level from 0, from the outermost in; the last is the array.
        operand: 'A', 'B', 'C', 'bias' or 'residual'.
        direction: 'loads' into the level, 'stores' out of it, 'reads' from the memory outside, or 'writes' to
            the memory outside.
        bytes: Bytes of all products of the batch.
    """

    level: int
    operand: Literal["A", "B", "C", "bias", "residual"]
    direction: Literal["loads", "stores", "reads", "writes"]
    bytes: int


class CodeSite(Fact, frozen=True):
    """A matrix product of a manifest.

    Attributes:
        op: Operator type.
        file: Name of the C file, or '' if the folder holds no code.
        mapping: Mapping with the name of the site, its sizes, number types and levels.
        right_dtype: Number type of B.
        memories: Memories of each level, separated by spaces; the last level is the array.
        counters: Bytes that the code must move.
    """

    op: str
    file: _FileName
    mapping: SiteMapping
    right_dtype: str
    memories: tuple[str, ...]
    counters: tuple[CodeCounter, ...]


class CodeManifest(Fact, frozen=True, forbid_unknown_fields=True):
    """Content of `mapping.json`: the machine, and the loop nest of each matrix product.

    Attributes:
        version: Version of the format.
        tool: Name and version of the program that wrote it.
        model: Name or path of the model.
        model_sha256: Digest of the model's file, or '' for a model that is not an ONNX file.
        mapping_sha256: Digest of the mapping file.
        machine: The machine with its memories.
        fuse: Operators that are fused into the products: 'epilogue', or '' for none.
        sites: Matrix products in the order of the model.
        machine_sha256: Digest of the machine, or '' in a manifest that an older version wrote.
        grouped: Handling of grouped convolutions.
    """

    version: int
    tool: str
    model: str
    model_sha256: str
    mapping_sha256: str
    machine: MemoryMachine
    fuse: CodeFusion
    sites: tuple[CodeSite, ...]
    machine_sha256: str = ""
    grouped: GroupForm = "leave"


class CounterDifference(Fact, frozen=True):
    """A counter whose bytes differ from the plan.

    Attributes:
        memory: Memory of the level, or 'array'.
        counter: Operand and direction, such as 'A loads'.
        planned: Bytes in the plan.
        counted: Bytes that the code counted.
    """

    memory: str
    counter: str
    planned: int
    counted: int


BELOW_ZERO = 1 << 63
"""Smallest value of an unsigned 64-bit counter that shows that it was decremented below zero."""


class CodeEvidence(Fact, frozen=True):
    """Runs of the nest of one site, compared with the product and with the plan.

    Attributes:
        name: Name of the site.
        op: Operator type.
        file: Name of the C file, or ''.
        M: Rows of one product.
        K: Depth.
        N: Columns.
        batch: Number of products.
        values: Inputs of the runs: 'original' (from a run of the model) and 'dense' (random).
        exact: Whether the numbers were compared bit for bit.
        error: Largest error of a float in units of u |A| |B|, with the unit roundoff u, or None if none was
            compared.
        limit: Largest allowed `error`, or None.
        counters: Number of counters that were compared.
        differences: Counters that differ from the plan.
        restored: Whether the operators after the product give the model's own output from these sums.
        verdict_kind: Kind of the verdict.
        reason: Reason for the verdict, in words.
        seconds: Seconds of compilation and runs.
    """

    name: str
    op: str
    file: str
    M: int
    K: int
    N: int
    batch: int
    values: tuple[Literal["original", "dense"], ...]
    exact: bool
    error: float | None
    limit: float | None
    counters: int
    differences: tuple[CounterDifference, ...]
    restored: bool
    verdict_kind: VerdictKind
    reason: str
    seconds: float


class CodeProof(TableFact, frozen=True):
    """Emitted code of a model, and its proof.

    Attributes:
        output: Folder of the code, or '' if the code was not written.
        form: Form of the emission.
        machine: Name of the machine.
        files: Number of C files.
        runner: Runner of the nests.
        sites: Evidence of each site; without a proof, empty.
        verdict_kind: Kind of the verdict, or None without a proof.
        verdict: Verdict in one sentence.
        seconds: Seconds of everything.
    """

    ROWS: ClassVar[str] = "sites"

    output: str
    form: CodeForm
    machine: str
    files: int
    runner: CodeRunner
    sites: tuple[CodeEvidence, ...]
    verdict_kind: VerdictKind | None
    verdict: str
    seconds: float
