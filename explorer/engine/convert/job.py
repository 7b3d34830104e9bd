"""Input and result of a converter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.graph.model import Value
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.facts import TensorInfo, Verification
from explorer.facts.conversion import ConversionOptions, StoredEvidence
from explorer.host import output_files
from explorer.host.optional_packages import format_error, require

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule
    from explorer.engine.models.opened_model import OpenedModel


class ConversionJob(Struct, frozen=True):
    """Input of a converter: the model, the target, and the options.

    Attributes:
        target: User's path for the result; its ending selects the format.
        source: User's name of the model.
        opened: Opened model (an `OpenedModel` or a subclass for its format).
        dims: Sizes of symbolic dimensions.
        input_shapes: Type and shape of inputs by name, which override the model's. The type None keeps the
            model's type.
        options: Options for the result.
        path: Temporary path to write to; the caller renames the file after success.
        trust: Whether code in the source may run.
        shapes: Whether the written ONNX file declares the inferred type and shape of every value.
        verify: Whether to compare the result with the source.
        draws: Number of random inputs for the comparison.
        seed: Seed of the first random input.
        on_progress: Callback that receives the progress.
        cancel: Callback that tells whether the user canceled; polled between steps.
    """

    target: str
    source: str = ""
    opened: Any = None
    dims: Mapping[str, int] = {}
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] = {}
    options: ConversionOptions = ConversionOptions()
    path: str = ""
    trust: bool = False
    shapes: bool = False
    verify: bool = True
    draws: int = 3
    seed: int = 0
    on_progress: OnProgress = None
    cancel: Cancel = None

    def report_progress(self, phase: str, completed: int = 0, total: int = 0) -> None:
        """Reports progress, and stops the conversion if the user canceled.

        Raises:
            Cancelled: The user canceled.
        """
        report(self.on_progress, self.cancel, phase, completed, total)

    def make_step_counter(self, phase: str, total: int) -> Callable[[], None]:
        """Returns a function that reports the finished steps out of `total`; call it before each step."""
        steps = itertools.count()
        return lambda: self.report_progress(phase, next(steps), total)

    def write(self, model: Any, save: Callable[[], object]) -> None:
        """Checks the free disk space, then calls torch's function that writes `path`.

        Args:
            model: A module, or an exported program.
            save: Function that writes the file.

        Raises:
            OSError: The disk is full.
            ExplorerError: torch cannot write the model.
        """
        tensors = (*model.parameters(), *model.buffers(), *getattr(model, "constants", {}).values())
        # `nbytes` of a sparse tensor raises an error; constants may be other objects
        strided = [tensor for tensor in tensors if str(getattr(tensor, "layout", "")) == "torch.strided"]
        nbytes = sum(tensor.nbytes for tensor in strided)
        output_files.check_disk_space(self.path, nbytes)
        try:
            save()
        except OSError:
            raise
        except Exception as error:
            raise ExplorerError(f"cannot be written ({format_error(error)})", where=self.target) from error


class ConversionResult(Struct, frozen=True):
    """The conversion of a model to `ConversionJob.path`, and its comparison with the source.

    Attributes:
        how: Tool that converted the model.
        opset: Operator set version of a written ONNX file, else None.
        inputs, outputs: Inputs and outputs of the result; empty for a file of tensors.
        verification: Comparison of the outputs in runs, or None without one.
        stored: Comparison of the bytes of a file of tensors, or None without one.
        notes: Notes for the report.
        unknown: Names of skipped values, each with the reason.
    """

    how: str
    opset: int | None = None
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    verification: Verification | None = None
    stored: StoredEvidence | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()


def describe_tensors(values: Iterable[Value]) -> tuple[TensorInfo, ...]:
    """Returns the facts of a graph's declared inputs or outputs."""
    return tuple(TensorInfo(value.name, value.dtype, value.shape, "declared") for value in values)


def get_module(opened: OpenedModel) -> LoadedModule:
    """Returns the nn.Module of an opened model.

    Raises:
        Misuse: The model has no nn.Module.
        MissingExtra: torch is not installed.
    """
    loaded: LoadedModule | None = getattr(opened, "loaded", None)
    if loaded is None:
        raise Misuse(
            f"only layers of an nn.Module can be replaced; a file of the format {opened.format} has none",
            where=opened.source,
            hint="name the code: FILE.py:callable or package.module:callable",
        )
    require("torch", opened.source)
    return loaded
