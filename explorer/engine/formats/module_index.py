"""Module index: the modules that a file describes, with classes, settings, tensors and operators.

A pickled module, a TorchScript file and an exported program list their modules and the contents of each,
before any module is built. Each format has a reader that makes `ModulePart`s. The outline is built from
these, and so is the layer tree if torch is not installed or may not run the file's code.
"""

from __future__ import annotations

from explorer.base.outline import OutlineRow
from explorer.base.record import field, record
from explorer.engine.formats.tensor_index import StoredTensor, rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Shape = tuple[int | str | None, ...]

SETTINGS = 6
"""Most settings of a module that an outline shows."""


@record
class OperatorRow:
    """One call in the code or graph of a model.

    Args:
        kind: Its name: 'aten.conv2d', 'torch.relu'.
        name: Its name in the graph.
        inputs: Name, type and shape of every input tensor; None where the file does not say.
        outputs: Name, type and shape of every output tensor.
        settings: Its other arguments.
        line: Its place in the source: 'resnet.py:285'.
        calls: Number of equal calls in a row.
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
    """A module, tensors outside modules, or operators of a module that is listed before.

    Args:
        path: Dotted path; '' is the model itself.
        kind: Name of the class; empty for tensors outside modules.
        depth: Depth of its row. The model itself has no row, so its members have depth 0.
        inside: Whether it contains modules.
        qualname: The class with its module.
        settings: Its constructor arguments, as far as the file gives them.
        parameters: Its own parameters.
        buffers: Its own tensors that are no parameters.
        operators: Its own calls, in the order of the code.
        role: '' for the model; for other objects a text such as 'optimizer state'.
    """

    path: str
    kind: str = ""
    depth: int = 0
    inside: bool = False
    qualname: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    parameters: list[StoredTensor] = field(default_factory=list)
    buffers: list[StoredTensor] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last piece of its path."""
        return self.path.rpartition(".")[2]


def settings_text(settings: Mapping[str, Any]) -> str:
    """The first settings of a module in one line: 'in_channels=3, kernel_size=(7, 7)'."""
    parts = [f"{key}={_short(value)}" for key, value in list(settings.items())[:SETTINGS]]
    return ", ".join(parts) + (" ..." if len(settings) > SETTINGS else "")


def _short(value: Any) -> str:
    text = str(tuple(value) if isinstance(value, list) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def outline_rows(parts: Iterable[ModulePart], notes: Mapping[str, str]) -> Iterator[OutlineRow]:
    """Modules, their tensors and their operators, in order.

    Args:
        parts: In pre-order.
        notes: Notes on tensors, by name.
    """
    for part in parts:
        if not part.kind and not part.operators:
            for row in rows(part.parameters):
                if row.stored is None:
                    yield OutlineRow(row.path, "module")
                else:
                    yield _tensor_row(row.stored, notes, part.role)
            continue
        if part.kind:
            yield OutlineRow(part.path or "(model)", "module", part.kind, note=settings_text(part.settings))
        for tensor in part.parameters:
            yield _tensor_row(tensor, notes, part.role)
        for tensor in part.buffers:
            yield _tensor_row(tensor, notes, part.role or "buffer")
        for operator in part.operators:
            yield _operator_row(part, operator)


def _tensor_row(tensor: StoredTensor, notes: Mapping[str, str], role: str) -> OutlineRow:
    note = ", ".join(text for text in (role, notes.get(tensor.name, "")) if text)
    return OutlineRow(tensor.name, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, note)


def _operator_row(part: ModulePart, operator: OperatorRow) -> OutlineRow:
    name = operator.name or operator.kind
    path = f"{part.path}.{name}" if part.path else name
    shape = operator.outputs[0][2] if operator.outputs else None
    times = f"x{operator.calls}" if operator.calls > 1 else ""
    note = ", ".join(text for text in (times, settings_text(operator.settings), operator.line) if text)
    return OutlineRow(path, "operator", operator.kind, shape, None, note)
