"""Training of a small nn.Module on a data file: the loop is PyTorch Lightning's, on the CPU.

A course's exercise and no trainer: the data is in memory, the loss is cross entropy or squared error, a seed
makes the run the same again. The weights of the best epoch are written as Lightning's checkpoint, which
`--weights-file` takes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import lightning
import numpy as np
import torch
from msgspec import Struct
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import shape_text
from explorer.engine.evaluate.data_file import DataFile, feed
from explorer.engine.evaluate.score import ClassMetrics, task_of
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded import LoadedModule
from explorer.engine.formats.torch_module.modules import tensors
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import InputSpec
from explorer.facts import Progress
from explorer.facts.evaluate.evaluation import Task
from explorer.facts.evaluate.training_run import EpochScore, TrainingRun
from explorer.host.optional_packages import error_line

_SMALL = 1 << 18
"""Parameters below which threads wait for each other longer than they work."""


class TrainingOptions(Struct, frozen=True):
    """How a model is trained; `held` is the share of samples that is held out."""

    epochs: int = 20
    rate: float = 1e-2
    batch: int = 64
    optimizer: str = "adam"
    seed: int = 0
    held: float = 0.2
    task: Task | None = None


_OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
}


class _Loop(lightning.LightningModule):
    """The model and its loss, as Lightning wants them; its state_dict has 'model.' in front of the names."""

    def __init__(self, model: nn.Module, bound: BoundInputs, task: Task, options: TrainingOptions) -> None:
        super().__init__()
        self.model = model
        self._bound = bound
        self._task = task
        self._options = options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        args, kwargs = self._bound.call(inputs)
        return next(tensor for _, tensor in tensors(self.model(*args, **kwargs)))

    def training_step(self, batch: Sequence[torch.Tensor], at: int) -> torch.Tensor:
        loss = self._loss(batch)[0]
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: Sequence[torch.Tensor], at: int) -> None:
        loss, hits = self._loss(batch)
        found = {"held_loss": loss} | ({} if hits is None else {"accuracy": hits})
        self.log_dict(found, on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return _OPTIMIZERS[self._options.optimizer](self.parameters(), self._options.rate)

    def _loss(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        *inputs, labels = batch
        output = self(*inputs)
        if self._task == "regression":
            return functional.mse_loss(output, labels.reshape(output.shape).to(output.dtype)), None
        if labels.shape == output.shape:
            labels = labels.argmax(-1)
        elif output.ndim == 2:
            labels = labels.reshape(len(labels))
        elif labels.shape != (len(output), *output.shape[2:]):
            output = output.movedim(-1, 1)  # torch has the classes behind the samples
        return functional.cross_entropy(output, labels), (output.argmax(1) == labels).float().mean()


class _Watch(lightning.Callback):
    """Takes each epoch's figures, writes the best weights, tells where the work stands, and stops it."""

    def __init__(
        self, options: TrainingOptions, save_to: str | None, on_progress: OnProgress, cancel: Cancel
    ) -> None:
        self.options, self.save_to, self.on_progress, self.cancel = options, save_to, on_progress, cancel
        self.epochs: list[EpochScore] = []
        self.best = math.inf, 0
        self.began = time.perf_counter()

    def on_train_batch_start(self, *_: Any) -> None:
        stop_if(self.cancel)

    def on_train_epoch_end(self, trainer: lightning.Trainer, loop: lightning.LightningModule) -> None:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        epoch = len(self.epochs) + 1
        if not (math.isfinite(found["loss"]) and math.isfinite(found["held_loss"])):
            raise Misuse(f"the loss is NaN or Inf in epoch {epoch}", where="--lr", hint="try a smaller one")
        seconds = time.perf_counter() - self.began
        score = EpochScore(epoch, found["loss"], found["held_loss"], found.get("accuracy"), seconds)
        self.epochs.append(score)
        if score.held_loss < self.best[0]:
            self.best = score.held_loss, epoch
            if self.save_to is not None:
                trainer.save_checkpoint(self.save_to)
        if self.on_progress is not None:
            said = f"training, loss {score.held_loss:.4g}"
            self.on_progress(Progress(said, epoch, self.options.epochs))


def train(
    loaded: LoadedModule,
    bound: BoundInputs,
    data: DataFile,
    parts: Sequence[tuple[InputSpec, str]],
    options: TrainingOptions,
    *,
    output: str = "",
    save_to: str | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TrainingRun:
    """Trains a copy of a model.

    Args:
        loaded: The model; it stays as it is.
        bound: Its inputs.
        data: The samples.
        parts: The inputs, in order, and which part of the data goes into each.
        options: How.
        output: What the user calls the checkpoint.
        save_to: Where it is written; None for none.
        on_progress: Told after every epoch.
        cancel: Asked at every batch; True stops, and nothing is written.

    Raises:
        Misuse: The data has no labels, does not fit the model, or the loss is NaN.
        BadModel: The model fails, or has nothing to train.
        Cancelled: `cancel` said so.
    """
    began = time.perf_counter()
    held = _held(data, options)
    whole = next(data.batches(data.count))
    inputs = [torch.from_numpy(feed(whole[name], spec)) for spec, name in parts]
    model = copy.deepcopy(loaded.materialise())
    trained = _parameters(model, loaded.source)
    with loaded.quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        task = _checked(model, bound, inputs, whole[data.labels], data, options.task)
        watch = _Watch(options, save_to, on_progress, cancel)
        sets = _split([*inputs, _labels(whole[data.labels], task)], held, options)
        _fit(watch, _Loop(model, bound, task, options), sets, loaded.source, trained)
    return TrainingRun(
        loaded.source,
        data.path,
        task,
        "squared error" if task == "regression" else "cross entropy",
        data.count - held,
        held,
        trained,
        options.rate,
        options.batch,
        options.optimizer,
        options.seed,
        tuple(watch.epochs),
        watch.best[1],
        output,
        loaded.weights_text,
        time.perf_counter() - began,
    )


def _held(data: DataFile, options: TrainingOptions) -> int:
    """How many samples are held out, where there are labels to train on."""
    if not data.labels:
        raise Misuse("it has no labels", where=data.path, hint="name them with --labels NAME")
    held = min(max(round(data.count * options.held), 1), data.count - 1)
    if held < 1 or data.count - held < 2:
        raise Misuse("there are too few samples to train on", where=data.path)
    return held


def _parameters(model: nn.Module, source: str) -> int:
    """How many numbers are trained."""
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not count:
        raise BadModel("none of its parameters is to be trained", where=source)
    return count


def _labels(labels: Any, task: Task) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.float32 if task == "regression" else np.int64))


def _split(arrays: Sequence[torch.Tensor], held: int, options: TrainingOptions) -> tuple[Any, Any]:
    """Batches of what is trained on, shuffled, and of what is held out."""
    count = len(arrays[0]) - held
    generator = torch.Generator().manual_seed(options.seed)
    sets = random_split(TensorDataset(*arrays), [count, held], generator)
    alone = count % options.batch == 1  # one sample has no spread for a batch norm
    chosen = DataLoader(sets[0], options.batch, shuffle=True, drop_last=alone, generator=generator)
    return chosen, DataLoader(sets[1], 1024)


def _fit(watch: _Watch, loop: _Loop, sets: tuple[Any, Any], source: str, parameters: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if parameters < _SMALL else threads)
    try:
        _trainer(watch).fit(loop.train(), *sets)
    except ExplorerError:
        raise
    except Exception as error:
        raise BadModel(f"training failed: {error_line(error)}", where=source) from error
    finally:
        torch.set_num_threads(threads)


def _trainer(watch: _Watch) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=watch.options.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[watch],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _checked(
    model: nn.Module,
    bound: BoundInputs,
    inputs: Sequence[torch.Tensor],
    labels: Any,
    data: DataFile,
    task: Task | None,
) -> Task:
    """What the labels say, once a run on a few samples has shown that they fit the model's output."""
    args, kwargs = bound.call([tensor[:2] for tensor in inputs])
    try:
        with torch.no_grad():
            output = next(t for _, t in tensors(model.eval()(*args, **kwargs))).float().numpy()
    except Exception as error:
        raise BadModel(f"the model failed: {error_line(error)}") from error
    # the scores do not matter, so those of one sample stand for all
    like = np.broadcast_to(output[:1], (len(labels), *output.shape[1:]))
    chosen = task or task_of(labels, like)
    if chosen == "regression":
        if math.prod(labels.shape[1:]) != math.prod(output.shape[1:]):
            texts = shape_text(labels.shape[1:]), shape_text(output.shape[1:])
            raise Misuse(f"labels {texts[0]} do not go with an output {texts[1]} a sample", where=data.path)
        return chosen
    if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
        raise Misuse(f"'{data.labels}' holds what is no class", where=data.path, hint="or --task regression")
    ClassMetrics().add(like, labels, data.path, 0)
    return chosen
