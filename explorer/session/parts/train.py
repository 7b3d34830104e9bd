"""Training of a session's module on a data file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.base.errors import Misuse
from explorer.engine.evaluate import data_file
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts.evaluate.training_run import TrainingRun
from explorer.host.optional_packages import require, silence
from explorer.host.output_files import atomic_write
from explorer.session.parts.evaluate import module_inputs
from explorer.session.parts.models import Models

INSTALL = "pip install 'explorer-nn[train]'"


def trained(
    models: Models,
    data: str,
    *,
    labels: str = "",
    inputs: Sequence[str] = (),
    output: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **how: Any,
) -> TrainingRun:
    """Trains the module that was opened; see `Session.train`."""
    opened: Any = models.opened(0, on_progress)
    if not hasattr(opened, "loaded") or opened.format != "torch":
        hint = "name it as package.module:callable"
        raise Misuse("only an nn.Module is trained here", where=models.source, hint=hint)
    if output is not None:
        models.check_target(output, overwrite, data)
    with silence():
        require("lightning", models.source, install=INSTALL)
    from explorer.engine.evaluate.train import TrainingOptions, train  # torch, lightning

    options = TrainingOptions(**how)
    file = data_file.read(data, labels=labels, inputs=[name for name in inputs if "=" not in name])
    bound, specs = module_inputs(opened, file, inputs)
    taken = file.assigned(specs, inputs, models.source)
    parts = [(spec, taken[spec.name]) for spec in specs]
    told: dict[str, Any] = {"on_progress": on_progress, "cancel": cancel}
    if output is None:
        return train(opened.loaded, bound, file, parts, options, **told)
    with atomic_write(output, overwrite=overwrite) as temporary:
        return train(opened.loaded, bound, file, parts, options, output=output, save_to=temporary, **told)
