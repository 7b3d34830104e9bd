"""`explorer activations`: runs the model and measures the outputs of its layers."""

from __future__ import annotations

from msgspec.structs import asdict

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer, open_or_count_stored
from explorer.cli.output.progress import ProgressLine
from explorer.facts.values import StatisticsSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.values import Activations
    from explorer.session import Session


_LOSS = Option(
    "--loss",
    "loss of the backward pass: sum (default), mse, cross-entropy, or a .npy file with the gradient\n"
    "of the first output (with --backward)",
    "NAME|FILE",
    manual="with `--backward`: the loss: `sum` of the outputs (default), `mse`, `cross-entropy`, or a"
    " `.npy` file with the gradient of the first output",
)
_BACKWARD = (
    Option(
        "--backward",
        "statistics of the gradients of layer outputs and weights instead (nn.Module)",
        manual="statistics of the gradients of layer outputs and weights instead (modules only)",
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
    "samples of --input in one run, if the model's batch is open (default: all)",
    "N",
    least=1,
)


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if not args.backward:
        args.refuse(("loss", "target"), "applies only to the backward pass", "--backward")

    def ask(session: Session, info: Info) -> tuple[Info, Activations]:
        answer = session.activations(
            args.layer,
            **asdict(record_of(args, StatisticsSpec)),
            input=args.input,
            batch=args.batch,
            seed=args.seed,
            loss=(args.loss or "sum") if args.backward else None,
            target=args.target,
            output=args.output,
            overwrite=args.force,
            on_progress=progress,
        )
        input_types = {tensor.name: (tensor.dtype, tensor.shape) for tensor in info.model.inputs}
        file_types = answer.sizes
        # arrays of other types or shapes than the opened model's: print the totals of the model that ran
        if args.past is None and any(input_types.get(name) != file_types[name] for name in file_types):
            info = session.info_at(file_types, on_progress=progress)
        return info, answer

    # without input shapes a module cannot be opened, but the arrays of --input have the shapes
    opening = None if args.input is None else open_or_count_stored
    return open_and_answer(
        args,
        progress,
        ask,
        build="activations",
        presenter="weights_words",
        rows="tensors" if args.stat is None and args.axis is None else "statistics",
        open_model=opening,
        package=__package__,
    )


COMMAND = Command(
    "activations",
    "run the model and print statistics of each layer's outputs",
    ("MODEL",),
    (
        "--layer",
        *list_options(StatisticsSpec, without=("bins",)),
        *("--input", _BATCH, "--seed", *_BACKWARD, "--output", "--force"),
        *list_options(StatisticsSpec, "bins"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer activations model.onnx",
        "explorer activations resnet18 --layer 'layer1*' --input image.npy -o values.npz",
        "explorer activations resnet18 --backward --loss cross-entropy --stat rms,absmax",
    ),
    _run,
    usage="activations MODEL",
    manual="runs the model and prints the statistics of `weights` for the outputs of its layers; `-o OUT.npz`"
    " saves the values; `--backward` prints the statistics of the gradients",
    group="look",
)
