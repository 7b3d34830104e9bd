"""Trains the stages in this folder as a pipeline, with one process for each stage.

    torchrun --nproc-per-node N run.py [--schedule gpipe|1f1b] [--micro-batches M] [--steps K]

Each process loads one stage, and `torch.distributed.pipelining` runs the schedule over gloo on the CPU. If a
stage reads a value of a stage that is not its neighbor, the value passes through the stages between them.
To adapt the script, put your loss into `loss`, your data into `inputs` (or a file for `--input`), and your
optimizer into `train`.

The script needs only torch, not the program that wrote the stages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

HERE = Path(__file__).parent
SCHEDULES: Mapping[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Computes the loss of a micro-batch: in this example the sum of the outputs' mean squares.

    The example ignores the target.
    """
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([tensor.square().mean() for tensor in tensors if tensor.is_floating_point()]).sum()


def inputs(manifest: Mapping[str, Any], micro_batches: int, file: str | None) -> list[torch.Tensor]:
    """Returns the inputs of the model, with all micro-batches concatenated along the first axis.

    Args:
        manifest: The contents of stages.json.
        micro_batches: Number of micro-batches.
        file: File with a dictionary of tensors by name, written by torch.save, or None for random numbers.
    """
    if file is not None:
        saved = torch.load(file, weights_only=True)
        return [saved[entry["name"]] for entry in manifest["inputs"]]
    torch.manual_seed(0)
    tensors = []
    for entry in manifest["inputs"]:
        dtype, (batch_size, *inner_shape) = getattr(torch, entry["dtype"]), entry["shape"]
        shape = (micro_batches * batch_size, *inner_shape)
        floats = dtype.is_floating_point
        tensors.append(torch.randn(shape).to(dtype) if floats else torch.randint(0, 2, shape).to(dtype))
    return tensors


class Relay(nn.Module):
    """A stage that also forwards the values which later stages read.

    Args:
        stage: The stage.
        reads, makes: Names of the stage's inputs and outputs.
        inbound: Names of the values that arrive from the previous stage.
        outbound: Names of the values that are sent to the next stage.
    """

    def __init__(
        self,
        stage: nn.Module,
        reads: Sequence[str],
        makes: Sequence[str],
        inbound: Sequence[str],
        outbound: Sequence[str],
    ) -> None:
        super().__init__()
        self.stage, self.reads, self.makes = stage, reads, makes
        self.inbound, self.outbound = inbound, outbound

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the outbound values, contiguous.

        A scalar becomes a vector, so that batches can be joined.
        """
        tensors = dict(zip(self.inbound, values, strict=True))
        # forwarded values are cloned, so that gradients flow back through them
        tensors |= {name: tensors[name].clone() for name in self.inbound if name in self.outbound}
        results = self.stage(*[tensors[name] for name in self.reads])
        tensors.update(
            zip(self.makes, results if isinstance(results, (tuple, list)) else (results,), strict=True)
        )
        return tuple([_make_vector_of_scalar(tensors[name]).contiguous() for name in self.outbound])


def _make_vector_of_scalar(value: torch.Tensor) -> torch.Tensor:
    return value if value.dim() else value.reshape(1)


def load_relay(manifest: Mapping[str, Any], index: int) -> Relay:
    """Loads the stage with an index, from 0, and checks the digest of its file."""
    stage = manifest["stages"][index]
    path = HERE / stage["file"]
    if not path.is_file():
        _exit_with_error(f"{path}: the stage is missing")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != stage["sha256"]:
            _exit_with_error(f"{path}: this stage is not what was written: its digest differs")
    reads, makes = ([entry["name"] for entry in stage[side]] for side in ("inputs", "outputs"))
    module = torch.export.load(path).module()
    return Relay(
        module, reads, makes, list_crossing_names(manifest, index), list_crossing_names(manifest, index + 1)
    )


def _exit_with_error(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(2)


def list_crossing_names(manifest: Mapping[str, Any], index: int) -> list[str]:
    """Returns the names of the values that cross the cut before the stage `index`.

    Before the first stage these are the model's inputs, after the last stage its outputs.
    """
    stages = manifest["stages"]
    outputs = [entry["name"] for entry in manifest["outputs"]]
    if index == len(stages):
        return outputs
    produced = [entry["name"] for entry in manifest["inputs"]]
    produced += [entry["name"] for stage in stages[:index] for entry in stage["outputs"]]
    read = {entry["name"] for stage in stages[index:] for entry in stage["inputs"]} | set(outputs)
    return produced if index == 0 else [name for name in dict.fromkeys(produced) if name in read]


def sum_shared_gradients(manifest: Mapping[str, Any], module: nn.Module, index: int) -> None:
    """Sums the gradients of the weights that several stages share; each copy gets the full gradient."""
    parameters = dict(module.named_parameters())
    for weight in manifest["shared"]:
        name = weight["names"].get(str(index + 1))
        gradient = parameters[name].grad if name is not None else None
        total = torch.zeros(weight["shape"], dtype=getattr(torch, weight["dtype"]))
        total = total if gradient is None else gradient.clone()
        dist.all_reduce(total)
        if name is not None:
            parameters[name].grad = total


def train(
    manifest: Mapping[str, Any], module: Relay, index: int, name: str, options: argparse.Namespace
) -> None:
    """Runs the training steps of a schedule. The last stage prints the loss of each step."""
    count = len(manifest["stages"])
    stage = PipelineStage(module, index, count, torch.device("cpu"))
    schedule = SCHEDULES[name](stage, options.micro_batches, loss_fn=loss)
    weights = list(module.parameters())
    optimizer = torch.optim.SGD(weights, lr=options.lr) if weights and options.lr else None
    feeds = inputs(manifest, options.micro_batches, options.input) if index == 0 else []
    target = torch.zeros(options.micro_batches)
    for step in range(options.steps):
        module.zero_grad()
        began = time.monotonic()
        losses: list[torch.Tensor] = []
        if index == count - 1:
            outputs = schedule.step(*feeds, target=target, losses=losses)
        else:
            outputs = schedule.step(*feeds)
        sum_shared_gradients(manifest, module.stage, index)
        if losses:
            mean = torch.stack(losses).mean().item()
            seconds = time.monotonic() - began
            sys.stdout.write(f"{name}, step {step + 1}: loss {mean:.6g}, {seconds:.3f} s\n")
        if options.save is not None:
            _save(os.path.join(options.save, f"{name}-stage{index + 1}.pt"), module.stage, outputs)
        if optimizer is not None:
            optimizer.step()


def main() -> None:
    """Trains with each of the chosen schedules in turn."""
    options = _parse_arguments()
    manifest = json.loads((HERE / "stages.json").read_text())
    index, count = int(os.environ.get("RANK", "0")), len(manifest["stages"])
    if int(os.environ.get("WORLD_SIZE", "1")) != count:
        _exit_with_error(
            f"{count} stages are {count} processes: torchrun --nproc-per-node {count} {sys.argv[0]}"
        )
    if "1f1b" in options.schedule and options.micro_batches < count:
        _exit_with_error(f"1F1B needs {count} micro-batches at least, as many as there are stages")
    torch.set_num_threads(options.threads)
    module = load_relay(manifest, index)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    for name in options.schedule:
        train(manifest, module, index, name, options)
    dist.barrier()
    dist.destroy_process_group()


def _save(path: str, stage: nn.Module, outputs: Any) -> None:
    """Saves the gradients of a stage, and the outputs if it is the last stage."""
    grads = {
        name: parameter.grad for name, parameter in stage.named_parameters() if parameter.grad is not None
    }
    output_tensors = () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)
    content = {"gradients": grads, "outputs": [tensor.detach() for tensor in output_tensors]}
    torch.save(content, path)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trains the stages in this folder as a pipeline")
    parser.add_argument("--schedule", nargs="+", choices=tuple(SCHEDULES), default=["1f1b"])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate; 0 changes no weight")
    parser.add_argument("--threads", type=int, default=1, help="threads of each stage")
    parser.add_argument("--input", help="a dictionary of tensors by name, as torch.save writes it")
    parser.add_argument("--save", help="a folder for gradients and outputs of the last step")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to wait for an answer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
