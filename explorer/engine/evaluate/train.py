"""Trains a small nn.Module on a data file with PyTorch Lightning's loop on the CPU.

It is meant for exercises: the data is held in memory, the loss is cross entropy or squared error, and a seed
makes runs reproducible. The weights of the best epoch are written as a Lightning checkpoint, which
`--weights-file` accepts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from explorer.base.checked import PathText
from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.evaluate.data_file import DataFile, convert_samples
from explorer.engine.evaluate.score import create_metrics, suggest_task
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.formats.torch_module.width_mismatch import describe_failure
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.runtime.input_files import InputSpec
from explorer.facts.evaluate.evaluation import LOSSES, Task
from explorer.facts.evaluate.training_run import EpochScore, TrainingRun, TrainSpec
from explorer.host.optional_packages import format_error

_MIN_PARALLEL_PARAMETERS = 1 << 18
"""Number of parameters below which threads wait for each other longer than they work."""
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
}


class TrainingOptions(TrainSpec, frozen=True):
    """Options of a training run, as in `Session.train`; `save_to` is the path for the best weights."""

    task: Task | None = None
    save_to: PathText | None = None
    on_progress: OnProgress = None
    cancel: Cancel = None


class _Loop(lightning.LightningModule):
    """The model and its loss as a LightningModule.

    Attributes:
        model: Model that is trained.
        bound: Arguments that turn a batch into a call of the model.
        options: Options of the run.
        task: Task, or None before it is known.
        epochs: Scores of each epoch.
        began: Start of the run, in seconds of `time.perf_counter`.
    """

    def __init__(self, model: nn.Module, bound_inputs: BoundInputs, options: TrainingOptions) -> None:
        super().__init__()
        self.model, self.bound, self.options = model, bound_inputs, options
        self.task, self.epochs, self.began = options.task, list[EpochScore](), time.perf_counter()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        args, kwargs = self.bound.pack_arguments(inputs)
        return next(tensor for _, tensor in walk_tensors(self.model(*args, **kwargs)))

    @property
    def best(self) -> int:
        """Number of the epoch with the lowest held-out loss, or the first such epoch."""
        return min(self.epochs, key=lambda epoch: epoch.held_loss).epoch

    def training_step(self, batch: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        stop_if(self.options.cancel)
        loss = self._compute_loss_and_accuracy(batch)["loss"]
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: Sequence[torch.Tensor], index: int) -> None:
        scores = self._compute_loss_and_accuracy(batch)
        held_out_scores = {f"held_out_{name}": value for name, value in scores.items()}
        self.log_dict(held_out_scores, on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return _OPTIMIZERS[self.options.optimizer](self.parameters(), lr=self.options.rate)

    def on_train_epoch_end(self) -> None:
        """Records the scores of an epoch, and saves the weights if it is the best so far."""
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        loss, held_out_loss = metrics["loss"], metrics["held_out_loss"]
        epoch = len(self.epochs) + 1
        if not (math.isfinite(loss) and math.isfinite(held_out_loss)):
            raise Misuse(f"the loss is NaN or Inf in epoch {epoch}", where="--lr", hint="try a smaller one")
        seconds = time.perf_counter() - self.began
        accuracy = metrics.get("held_out_accuracy")
        self.epochs.append(EpochScore(epoch, loss, held_out_loss, accuracy, seconds))
        if self.options.save_to is not None and self.best == epoch:
            self.trainer.save_checkpoint(self.options.save_to, weights_only=True)
        report(
            self.options.on_progress, None, f"training, loss {held_out_loss:.4g}", epoch, self.options.epochs
        )

    def _compute_loss_and_accuracy(self, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs the model on a batch; returns the 'loss', and the 'accuracy' (0 to 1) of a classification."""
        *inputs, labels = batch
        output = self(*inputs)
        if self.task == "regression":
            return {"loss": functional.mse_loss(output, labels.reshape(output.shape).to(output.dtype))}
        if labels.shape == output.shape:
            labels = labels.argmax(-1)
        if labels.shape == (len(output), *output.shape[2:]):
            output = output.movedim(1, -1)
        output, labels = output.flatten(0, -2), labels.flatten()
        accuracy = (output.argmax(-1) == labels).float().mean()
        return {"loss": functional.cross_entropy(output, labels), "accuracy": accuracy}


def train(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    file: DataFile,
    arrays_by_input: Sequence[tuple[InputSpec, str]],
    options: TrainingOptions,
) -> TrainingRun:
    """Trains a copy of a model; `arrays_by_input` pairs each input with its array's name in the data file.

    Raises:
        Misuse: The file has no labels, too few samples, or labels that do not fit the model; or the loss is
            NaN or Inf.
        BadModel: The model has no trainable parameters, or a run of it fails.
        Cancelled: The option `cancel` returned true.
    """
    began = time.perf_counter()
    held_out_count = min(max(round(file.count * options.held), 1), file.count - 1)
    if not file.labels:
        raise Misuse("it has no labels", where=file.path, hint="name them with --labels NAME")
    if held_out_count < 1 or file.count - held_out_count < 2:
        raise Misuse("there are too few samples to train on", where=file.path)
    all_samples = next(file.iterate_batches(file.count))
    inputs = [torch.from_numpy(convert_samples(all_samples[name], spec)) for spec, name in arrays_by_input]
    model = copy_module(loaded.materialize())
    trainable_count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not trainable_count:
        raise BadModel("the model has no trainable parameters", where=loaded.source)
    with loaded.quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        loop = _Loop(model, bound_inputs, options)
        loop.task = task = _find_task(loop, inputs, all_samples[file.labels], file)
        labels = all_samples[file.labels].astype(np.float32 if task == "regression" else np.int64)
        samples = TensorDataset(*inputs, torch.from_numpy(labels))
        _fit(loop, samples, held_out_count, loaded.source, trainable_count)
    fields: dict[str, Any] = {"source": loaded.source, "data": file.path, "weights": loaded.weights_text}
    fields |= {name: getattr(options, name) for name in ("rate", "batch", "optimizer", "seed")}
    fields |= {"loss": LOSSES[task], "epochs": tuple(loop.epochs), "best": loop.best}
    fields["parameters"] = trainable_count
    seconds = time.perf_counter() - began
    return TrainingRun(
        task=task, samples=file.count - held_out_count, held=held_out_count, seconds=seconds, **fields
    )


def _find_task(loop: _Loop, inputs: Sequence[torch.Tensor], labels: Any, file: DataFile) -> Task:
    """Returns the task of the options, or the task that the labels imply.

    Runs the model on two samples, and checks that the labels fit the output.

    Raises:
        BadModel: The model fails.
        Misuse: The labels do not fit the output.
    """
    try:
        with torch.no_grad():
            output = loop.eval()(*(tensor[:2] for tensor in inputs)).float().numpy()
    except Exception as error:
        repeat = partial(loop.model, *(tensor[:2] for tensor in inputs))
        raise BadModel(describe_failure(loop.model, repeat, error), where=file.path) from error
    # create_metrics(task).add checks the labels; it needs scores for each label, and any scores are enough
    scores = np.broadcast_to(output[:1], (len(labels), *output.shape[1:]))
    task = loop.task or suggest_task(labels, scores)
    create_metrics(task).add(scores, labels, file.path, 0)
    return task


def _fit(loop: _Loop, samples: TensorDataset, held_out_count: int, source: str, parameter_count: int) -> None:
    """Trains the model of `loop` on all samples except a random part of `held_out_count` samples."""
    options, count = loop.options, len(samples) - held_out_count
    generator = torch.Generator().manual_seed(options.seed)
    training_part, held_out_part = random_split(samples, [count, held_out_count], generator)
    # batch normalization cannot compute a variance from a single sample
    is_last_batch_single = count % options.batch == 1
    batches = DataLoader(
        training_part, options.batch, shuffle=True, drop_last=is_last_batch_single, generator=generator
    )
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        devices=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if parameter_count < _MIN_PARALLEL_PARAMETERS else threads)
    try:
        trainer.fit(loop.train(), batches, DataLoader(held_out_part, 1024))
    except Exception as error:
        if isinstance(error, ExplorerError):
            raise
        raise BadModel(f"training failed: {format_error(error)}", where=source) from error
    finally:
        torch.set_num_threads(threads)
