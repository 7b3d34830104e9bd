"""Module index: the modules that a file describes, with their classes, settings, tensors and operators.

A pickled module, a TorchScript file and an exported program describe their modules, so they can be listed
without building them. Each of these formats has a reader that creates `ModulePart` records. The outline uses
them. The layer tree uses them too if torch is not installed or may not run the file's code.
"""

from __future__ import annotations

from explorer.base.outline import OutlineRow
from explorer.base.record import field, record
from explorer.engine.formats.tensor_index import StoredTensor, list_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Shape = tuple[int | str | None, ...]

SETTINGS = 6
"""Maximum number of settings of a module that an outline shows."""


@record
class OperatorRow:
    """One call in the code or graph of a model.

    Args:
        kind: Name of the operator: 'aten.conv2d', 'torch.relu'.
        name: Name of the call in the graph.
        inputs: (name, type, shape) of each input tensor. Type and shape are None if unknown.
        outputs: (name, type, shape) of each output tensor.
        settings: Other arguments by name.
        line: Location in the source code: 'resnet.py:285'; in TorchScript, the arguments as text.
        calls: Number of equal consecutive calls.
        uses: Names of the input values in the graph.
    """

    kind: str
    name: str = ""
    inputs: Sequence[tuple[str, str | None, Shape | None]] = ()
    outputs: Sequence[tuple[str, str | None, Shape | None]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""
    calls: int = 1
    uses: Sequence[str] = ()


@record
class ModulePart:
    """A module, a group of tensors outside modules, or more operators of a module that was listed before.

    Args:
        path: Dotted path of the module; '' is the model itself.
        kind: Name of the class, or '' for tensors outside modules and for more operators of a listed module.
        depth: Depth in the layer tree. The model itself has no row, so its members have depth 0.
        has_modules: Whether the module contains other modules.
        qualname: Name of the class with its Python module.
        settings: Constructor arguments that the file contains.
        parameters: Parameters of the module, without parameters of inner modules.
        buffers: Other tensors of the module.
        operators: Calls in the module, in the order of the code.
        role: '' for parts of the model. For other objects of the file, a text such as 'optimizer state'.
    """

    path: str
    kind: str = ""
    depth: int = 0
    has_modules: bool = False
    qualname: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    parameters: list[StoredTensor] = field(default_factory=list)
    buffers: list[StoredTensor] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


def format_settings(settings: Mapping[str, Any]) -> str:
    """Formats the first settings of a module in one line: 'in_channels=3, kernel_size=(7, 7)'."""
    parts = [f"{key}={_shorten(value)}" for key, value in list(settings.items())[:SETTINGS]]
    return ", ".join(parts) + (" ..." if len(settings) > SETTINGS else "")


def _shorten(value: Any) -> str:
    """Formats a setting in at most 40 characters."""
    text = str(tuple(value) if isinstance(value, list) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def list_outline_rows(parts: Iterable[ModulePart], notes: Mapping[str, str]) -> Iterator[OutlineRow]:
    """Yields the outline rows of modules, their tensors and their operators.

    Args:
        parts: Modules in pre-order.
        notes: Note on each tensor, by name.
    """
    for part in parts:
        if not part.kind and not part.operators:
            for row in list_rows(part.parameters):
                if row.stored is None:
                    yield OutlineRow(row.path, "module")
                else:
                    yield _build_tensor_row(row.stored, notes, part.role)
            continue
        if part.kind:
            yield OutlineRow(part.path or "(model)", "module", part.kind, note=format_settings(part.settings))
        for tensor in part.parameters:
            yield _build_tensor_row(tensor, notes, part.role)
        for tensor in part.buffers:
            yield _build_tensor_row(tensor, notes, part.role or "buffer")
        for operator in part.operators:
            yield _build_operator_row(part, operator)


def _build_tensor_row(tensor: StoredTensor, notes: Mapping[str, str], role: str) -> OutlineRow:
    note = ", ".join(text for text in (role, notes.get(tensor.name, "")) if text)
    return OutlineRow(tensor.name, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, note)


def _build_operator_row(part: ModulePart, operator: OperatorRow) -> OutlineRow:
    name = operator.name or operator.kind
    path = f"{part.path}.{name}" if part.path else name
    shape = operator.outputs[0][2] if operator.outputs else None
    times = f"x{operator.calls}" if operator.calls > 1 else ""
    note = ", ".join(text for text in (times, format_settings(operator.settings), operator.line) if text)
    return OutlineRow(path, "operator", operator.kind, shape, None, note)
