"""`explorer activations`: statistics of what the layers of a model put out."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about, open_or_stored
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.values import Activations
    from explorer.session import Session


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    def ask(session: Session, info: Info) -> tuple[Info, Activations]:
        found = session.activations(
            given.layer,
            input=given.input,
            seed=given.seed,
            bins=given.bins,
            output=given.output,
            overwrite=given.force,
            on_progress=progress,
        )
        taken = {tensor.name: (tensor.dtype, tensor.shape) for tensor in info.model.inputs}
        if given.past is None and any(taken.get(name) != kind for name, kind in found.sizes.items()):
            info = session.info_at(found.sizes, on_progress=progress)
        return info, found

    # a module does not say what it takes; a file with its inputs does
    opening = None if given.input is None else open_or_stored
    return about(given, progress, ask, "activations", "look.values", "tensors", opening)


COMMAND = Command(
    "activations",
    "runs the model and shows the values that its layers put out",
    ("MODEL",),
    ("--layer", "--input", "--seed", "--output", "--force", "--bins", *OPENING, *TABLE),
    (
        "explorer activations model.onnx",
        "explorer activations resnet18 --layer 'layer1*' --input image.npy -o values.npz",
    ),
    _run,
    usage="activations MODEL",
    manual="runs the model and shows the same of what its layers put out; `-o OUT.npz` keeps the values",
)
