"""Data files in a session: how well its models do on them, and training on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from explorer.session.methods.base import SessionParts
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from typing import Any

    from explorer.facts.evaluate.evaluation import Evaluation, Task
    from explorer.facts.evaluate.training_run import TrainingRun, TrainingSweep


class DataMethods(SessionParts):
    """What the outputs are worth on a data file, and a small module trained on one."""

    def evaluate(
        self,
        data: str,
        *,
        labels: str = "",
        inputs: Sequence[str] = (),
        scores: str = "",
        batch: int = 64,
        task: Task | None = None,
        states: Sequence[int] = (),
        others: Sequence[str] = (),
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Evaluation:
        """How well states of the session, and other models, do on the samples of a file, side by side.

        Args:
            data: An .npz, .npy or .csv with a sample in each row.
            labels: The array or column that is to be met; by default one that is called labels, label, y,
                targets or target, or the last column.
            inputs: Arrays that go in, in the order of the model's inputs or as 'input=array'; columns of a
                table. By default what is called like the inputs, or what is left.
            scores: The output that is scored; by default the first.
            batch: Samples that run together, where the model does not fix that.
            task: What the labels say; by default told by them and the output.
            states: Models of the history; none means the current one.
            others: Further models, opened as this one was.
            on_progress: Told how many samples are done.
            cancel: Asked at every batch; True stops.

        Raises:
            Misuse: The data does not fit a model, a label is out of range, a number is NaN or Inf.
            BadModel: A model fails.
            Cancelled: `cancel` said so.
        """
        from explorer.session.parts.evaluate import evaluated  # onnxruntime

        own, beside = self._models, [self._models.beside(other) for other in others]
        every = [(own, own.at(at)) for at in states or (None,)] + [(models, 0) for models in beside]
        try:
            return evaluated(
                every,
                data,
                labels=labels,
                inputs=inputs,
                output=scores,
                batch=batch,
                task=task,
                on_progress=on_progress,
                cancel=cancel,
            )
        finally:
            for models in beside:
                models.close()

    def train(
        self,
        data: str,
        *,
        labels: str = "",
        inputs: Sequence[str] = (),
        epochs: int = 20,
        rate: float = 1e-2,
        batch: int = 64,
        optimizer: str = "adam",
        seed: int = 0,
        held: float = 0.2,
        task: Task | None = None,
        output: str | None = None,
        overwrite: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TrainingRun:
        """Trains a copy of the module that was opened, a small one, on the samples of a file.

        Args:
            data: As for `evaluate`; it is held in memory.
            labels: As for `evaluate`.
            inputs: As for `evaluate`.
            epochs: Passes over the samples.
            rate: The learning rate.
            batch: Samples of a step.
            optimizer: 'adam', 'sgd', or 'momentum' (of 0.9).
            seed: Of the shuffling, of what is held out and of what the model draws.
            held: The share of samples that is held out, and says which epoch is best.
            task: As for `evaluate`.
            output: A checkpoint for the weights of the best epoch, which `weights_file` takes.
            overwrite: Whether an existing `output` may be replaced.
            on_progress: Told after every epoch.
            cancel: Asked at every batch; True stops, and nothing is written.

        Raises:
            Misuse: It is no module, the data does not fit it, or the loss is NaN.
            MissingExtra: PyTorch Lightning is not installed.
            BadModel: The model fails.
            Cancelled: `cancel` said so.
        """
        from explorer.session.parts.train import trained  # torch, lightning

        how: dict[str, Any] = {"epochs": epochs, "rate": rate, "batch": batch, "optimizer": optimizer}
        how |= {"seed": seed, "held": held, "task": task}
        return trained(
            self._models,
            data,
            labels=labels,
            inputs=inputs,
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
            **how,
        )

    def sweep_training(
        self,
        data: str,
        over: str,
        *,
        trials: int | None = None,
        seed: int = 0,
        output: str | None = None,
        overwrite: bool = False,
        scheduler: str | None = None,
        workers: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
        **how: Any,
    ) -> TrainingSweep:
        """Trains copies of the module in several ways; which does best on the held out samples.

        Args:
            data: As for `train`.
            over: What is tried: 'lr=1e-4..1e-2,batch=64,256,epochs=20,optimizer=adam,sgd'. All combinations;
                of a range those between its ends by tens (rates) or by doubling.
            trials: So many combinations, drawn at random from the whole of each range.
            seed: Of what is drawn, and of every training.
            output: A checkpoint for the weights of the best, which `weights_file` takes.
            overwrite: Whether an existing `output` may be replaced.
            scheduler: Of a Dask cluster that does the work; data and model lie at the same place there.
            workers: Processes on this machine; 1 is this one, None as many as there are processors where
                that saves time.
            on_progress: Told how many trainings are done.
            cancel: Asked now and then; True stops, and nothing is written.
            how: labels, inputs, held and task, as for `train`.

        Raises:
            Misuse: As for `train`, of all trials, or `over` cannot be read.
            MissingExtra: PyTorch Lightning or Dask is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.session.parts.train import swept  # torch, lightning

        return swept(
            self._models,
            data,
            over,
            trials=trials,
            seed=seed,
            output=output,
            overwrite=overwrite,
            scheduler=scheduler,
            workers=workers,
            on_progress=on_progress,
            cancel=cancel,
            **how,
        )
