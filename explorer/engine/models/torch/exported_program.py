"""Opens torch.export programs as an nn.Module rebuilt from their graph, which is read as data.

Without torch, Explorer reads from the file its operators, shapes and modules. It computes the costs of
operators with products by its own rules.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe, import_on_call


def _recognize(probe: SourceProbe) -> bool:
    inner = probe.inner
    return "serialized_exported_program.json" in inner or any(
        name.startswith(("models/", "data/aotinductor/")) and not name.endswith(".tflite") for name in inner
    )


FORMAT = Format(
    "torch.export",
    "an exported program (.pt2)",
    label="torch.export program",
    recognize=_recognize,
    open=import_on_call("models.torch.described_program:open_program"),
    outline=import_on_call("formats.torch_files.exported_program:outline"),
    recognized_by="a zip archive with models/ or serialized_exported_program.json",
    shows="operators, shapes, the module stack, source lines",
    needs="torch",
)
