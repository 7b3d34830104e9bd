"""Programs that torch.export wrote: rebuilt as an nn.Module from their graph, which is read as data.

Without torch, the file is known by its description: operators, shapes, modules, and what the operators that
multiply cost by our own rules.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.formats.outline import Outline, OutlineRow
    from explorer.engine.formats.torch_files.exported_program import Described
    from explorer.engine.models.opened import Opened, OpenOptions

__all__ = ["FORMAT"]


def _recognise(probe: SourceProbe) -> bool:
    inner = probe.inner
    return "serialized_exported_program.json" in inner or any(
        name.startswith(("models/", "data/aotinductor/")) for name in inner
    )


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.base.errors import MissingExtra
    from explorer.host.optional_packages import require

    try:
        require("torch", source)
    except MissingExtra:
        from explorer.engine.models.torch.described_program import open_described

        return open_described(source, options, FORMAT.name)
    from explorer.engine.formats.torch_replay import exported_program
    from explorer.engine.models.torch.module import RebuiltModule

    return RebuiltModule(FORMAT.name, source, options, exported_program.load(source))


def _outline(source: str) -> Outline:
    from explorer.engine.formats.outline import Outline
    from explorer.engine.formats.torch_files.exported_program import described

    found = described(source, FORMAT.name, "", places=False)
    said = found.contents
    facts = [*([("written by", said.producer)] if said.producer else []), *said.facts]
    return Outline(FORMAT.name, source, said.file_bytes, facts, _rows(found))


def _rows(found: Described) -> Iterator[OutlineRow]:
    from explorer.engine.formats.module_index import outline_rows
    from explorer.engine.formats.outline import OutlineRow

    for name, dtype, shape in found.inputs:
        yield OutlineRow(name, "input", dtype or "", shape)
    yield from outline_rows(found.parts(), found.notes)
    for name, dtype, shape in found.outputs:
        yield OutlineRow(name, "output", dtype or "", shape)


FORMAT = Format(
    "torch.export",
    "an exported program (.pt2)",
    label="torch.export program",
    recognise=_recognise,
    open=_open,
    outline=_outline,
    recognised="a zip archive with models/ or serialized_exported_program.json",
    shows="operators, shapes, the module stack, source lines",
    needs="torch",
)
