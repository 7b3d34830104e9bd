"""Conversion job: what a converter is given, and what it gives back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from explorer.base.checked import Count, Spec, Words
from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.graph.model import Value
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.facts import TensorInfo, Verification
from explorer.facts.conversion import StoredEvidence
from explorer.host import output_files
from explorer.host.optional_packages import error_line, require

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule
    from explorer.engine.models.opened_model import OpenedModel


ExporterName = Literal["torchscript", "dynamo"]
"""Which of torch's exporters writes ONNX."""

ScriptMethod = Literal["trace", "script"]
"""How TorchScript is made."""


class ConversionOptions(Spec, frozen=True):
    """How the result should be; what is left out is the converter's to choose.

    Attributes:
        exporter: Of torch's two: 'torchscript' or 'dynamo'.
        opset: Version of ONNX's operators.
        input_names: One for each input.
        output_names: One for each output.
        dynamic: Input to axis to the name of a dimension that is left open.
        method: 'trace' or 'script'.
        fold: Fold batch normalization, constants and what does nothing away.
    """

    exporter: ExporterName | None = None
    opset: Count | None = None
    input_names: tuple[Words, ...] = ()
    output_names: tuple[Words, ...] = ()
    dynamic: Mapping[str, Mapping[int, str]] = {}
    method: ScriptMethod | None = None
    fold: bool = False


class ConversionJob(Struct, frozen=True):
    """One conversion.

    Attributes:
        target: What the user called the result; its ending says what it is to be.
        source: What the user named the model.
        opened: The model as it was opened (an `OpenedModel`, or more: what its format gives).
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of inputs in place of the model's own.
        asked: How the result should be.
        path: Where to write; renamed by the caller when all is well.
        trust: Code in the source may run.
        verify: Whether to show that the result is the same.
        draws: Random inputs for that.
        seed: Of the first.
        on_progress: Told where the job stands.
        cancel: Asked now and then.
    """

    target: str
    source: str = ""
    opened: Any = None
    dims: Mapping[str, int] = {}
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] = {}
    asked: ConversionOptions = ConversionOptions()
    path: str = ""
    trust: bool = False
    verify: bool = True
    draws: int = 3
    seed: int = 0
    on_progress: OnProgress = None
    cancel: Cancel = None

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Reports progress, and stops here if the user wants to stop.

        Raises:
            Cancelled: He does.
        """
        report(self.on_progress, self.cancel, phase, done, total)

    def counted(self, phase: str, total: int) -> Callable[[], None]:
        """What is called before each of so many steps: it reports them as `tell` does."""
        done = itertools.count()
        return lambda: self.tell(phase, next(done), total)

    def write(self, model: Any, save: Callable[[], object]) -> None:
        """Has torch write `path`.

        Args:
            model: A module, or an exported program.
            save: Writes it.

        Raises:
            OSError: There is no room.
            ExplorerError: torch cannot write it.
        """
        tensors = (*model.parameters(), *model.buffers(), *getattr(model, "constants", {}).values())
        nbytes = sum(getattr(tensor, "nbytes", 0) for tensor in tensors)
        output_files.check_room(self.path, nbytes)
        try:
            save()
        except OSError:
            raise
        except Exception as error:
            raise ExplorerError(f"cannot be written ({error_line(error)})", where=self.target) from error


class ConversionResult(Struct, frozen=True):
    """What was written to `ConversionJob.path`, and how it compares; see `facts.conversion.Conversion`."""

    how: str
    opset: int | None = None
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    verification: Verification | None = None
    stored: StoredEvidence | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()


def tensor_infos(values: Iterable[Value]) -> tuple[TensorInfo, ...]:
    """Inputs or outputs as a graph declares them."""
    return tuple(TensorInfo(value.name, value.dtype, value.shape, "declared") for value in values)


def module_of(opened: OpenedModel) -> LoadedModule:
    """The nn.Module of a model, and torch beside it.

    Raises:
        Misuse: It is none.
        MissingExtra: torch is not installed.
    """
    loaded: LoadedModule | None = getattr(opened, "loaded", None)
    if loaded is None:
        raise Misuse(
            f"only layers of an nn.Module can be replaced; a file of the format {opened.format} has none",
            where=opened.source,
            hint="name the code: package.module:callable",
        )
    require("torch", opened.source)
    return loaded
