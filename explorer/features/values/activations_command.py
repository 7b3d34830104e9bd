"""`explorer activations`: statistics of what the layers of a model put out."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about, open_or_stored
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.values import Activations
    from explorer.session import Session


_LOSS = Option(
    "--loss",
    "what flows back comes from: sum (default), mse, cross-entropy, or a .npy file with the gradient\n"
    "of the first output (with --backward)",
    "NAME|FILE",
    manual="with `--backward`: what flows back comes from `sum` of the outputs (default), `mse`,"
    " `cross-entropy`, or a `.npy` with the gradient of the first output",
)
_OWN = (
    Option(
        "--backward",
        "the gradients that flow back to what layers put out and to weights, in place of that (nn.Module)",
        manual="the same of the gradients that flow back to what layers put out and to their weights"
        " (of modules)",
    ),
    _LOSS,
    Option(
        "--target",
        "a .npy file with the target of mse or the classes of cross-entropy; drawn otherwise",
        "FILE",
        manual="with `--loss`: a `.npy` with the target of `mse` or the classes of `cross-entropy`; drawn"
        " by `--seed` otherwise",
    ),
)
_BATCH = Option(
    "--batch",
    "samples of --input that run at a time, where the model leaves that open (default: all)",
    "N",
    least=1,
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    if not given.backward:
        given.refuse(("loss", "target"), "it is of what flows back", "--backward")

    def ask(session: Session, info: Info) -> tuple[Info, Activations]:
        found = session.activations(
            given.layer,
            kinds=given.op,
            stat=given.stat,
            axis=given.axis,
            input=given.input,
            batch=given.batch,
            seed=given.seed,
            loss=(given.loss or "sum") if given.backward else None,
            target=given.target,
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
    rows = "tensors" if given.stat is None and given.axis is None else "statistics"
    return about(given, progress, ask, "activations", "weights_words", rows, opening, __package__)


COMMAND = Command(
    "activations",
    "runs the model and shows the values that its layers put out",
    ("MODEL",),
    (
        *("--layer", "--op", "--stat", "--axis", "--input", _BATCH, "--seed", *_OWN),
        *("--output", "--force", "--bins", *OPENING, *TABLE),
    ),
    (
        "explorer activations model.onnx",
        "explorer activations resnet18 --layer 'layer1*' --input image.npy -o values.npz",
        "explorer activations resnet18 --backward --loss cross-entropy --stat rms,absmax",
    ),
    _run,
    usage="activations MODEL",
    manual="runs the model and shows the same of what its layers put out; `-o OUT.npz` keeps the values;"
    " `--backward` what flows back",
)
