"""`explorer pipeline`: stages of a folder as processes, and how fast micro-batches go through them."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING, Option
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.run_pipeline(
        given.models[0],
        input=given.input,
        batch=given.batch,
        micro_batches=given.micro_batches,
        dims=given.dim,
        threads=given.threads,
        seed=given.seed,
        output=given.output,
        overwrite=given.force,
        scheduler=given.scheduler,
        on_progress=progress,
    )
    return Answer(
        lambda: plain(fact), lambda: present("pipeline_words", __package__).pipeline(given.models[0], fact)
    )


COMMAND = Command(
    "pipeline",
    "run the stages of a folder as processes, beside the forecast",
    ("FOLDER",),
    (
        Option(
            "--micro-batches", "how many random micro-batches (default: what a second takes)", "N", least=1
        ),
        Option("--batch", "samples of a micro-batch, where the first size is open", "N", least=1),
        Option("--threads", "threads of each stage's operators (default 1)", "N", "1", least=1),
        Option("--scheduler", "a Dask cluster that runs it, all of it trusted: tcp://host:8786", "ADDRESS"),
        *("--input", "--dim", "--seed"),
        Option("--output", "a .npz file for what comes out", "FILE.npz", short="-o"),
        "--force",
        "--memory",
        *PRINTING,
    ),
    (
        "explorer pipeline stages/",
        "explorer pipeline stages/ --micro-batches 64 --threads 2",
        "explorer pipeline stages/ --input samples.npz -o outputs.npz",
        "explorer pipeline stages/ --scheduler tcp://host:8786",
    ),
    _run,
    usage="pipeline FOLDER",
    subject="folder",
    meaning="a folder of stages, as explorer split MODEL -n 2 -o FOLDER writes it",
    manual="runs the stages that `split` wrote, each in a process of its own, with micro-batches through"
    " them; times each stage alone first, and holds the throughput against the forecast of these times",
)
