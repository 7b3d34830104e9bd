"""`explorer training`: counts the cost of one training step."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.training import TrainingStepSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.training import Training
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    def ask(session: Session, info: Info) -> tuple[Info, Training]:
        spec = record_of(args, TrainingStepSpec)
        return info, session.training_over_time(
            batches=spec.batches or (None,),
            optimizer=spec.optimizer,
            checkpoint=spec.checkpoint,
            card=spec.card,
            measured=spec.measured,
        )

    return open_and_answer(
        args, progress, ask, build="training", presenter="training_words", rows="layers", package=__package__
    )


COMMAND = Command(
    "training",
    "print the cost of one training step: MACs, gradients, memory",
    ("MODEL",),
    (
        *list_options(TrainingStepSpec),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer training resnet18 --batch 32 --optimizer adam",
        "explorer training vgg16 --batch 1,8,32,64,128 --card 16G",
        "explorer training resnet18 --batch 32 --checkpoint 'layer?'",
        "explorer training resnet18 --batch 8 --measured",
    ),
    _run,
    usage="training MODEL --batch 32 --optimizer adam",
    manual="one training step: backward MACs, gradients, optimizer state, memory over time, and the largest"
    " batch that fits",
    group="measure",
)
