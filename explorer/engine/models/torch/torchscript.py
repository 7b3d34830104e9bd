"""Opens TorchScript files as an nn.Module rebuilt from their code, which is read as data and not run.

Without torch, Explorer reads from the file its modules, tensors, types and calls.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, import_on_call

FORMAT = Format(
    "torchscript",
    "a TorchScript file (.pt)",
    label="TorchScript",
    recognize=lambda probe: "constants.pkl" in probe.inner and "data.pkl" in probe.inner,
    open=import_on_call("models.torch.described_file:open_script"),
    outline=import_on_call("formats.torch_files.torchscript:outline"),
    recognized_by="a zip archive with constants.pkl beside data.pkl",
    shows="the module tree, types, the calls of its code",
    needs="torch",
)
