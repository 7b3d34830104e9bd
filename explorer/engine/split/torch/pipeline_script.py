"""Torch pipeline of the stages in this folder: forward and backward, a process each.

    torchrun --nproc-per-node N run.py [--schedule gpipe|1f1b] [--micro-batches M] [--steps K]

Each process loads one stage, and `torch.distributed.pipelining` runs the schedule over gloo on the CPU. A
value that a stage needs from an earlier stage than its neighbor passes through the stages between. Put your
own loss into `loss`, your own data into `inputs` (or a file of `--input`), and your optimizer into `main`.

This file is copied beside the stages and needs only torch, not the program that wrote them.
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
    """The loss of a micro-batch; this example ignores the target and takes the mean square of the outputs."""
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([tensor.square().mean() for tensor in tensors if tensor.is_floating_point()]).sum()


def inputs(manifest: Mapping[str, Any], micro_batches: int, file: str | None) -> list[torch.Tensor]:
    """Inputs of the model, with all micro-batches concatenated along the first axis.

    Args:
        manifest: The contents of stages.json.
        micro_batches: The number of micro-batches.
        file: A file with a dictionary of tensors by name, written by torch.save; None for random numbers.
    """
    if file is not None:
        saved = torch.load(file, weights_only=True)
        return [saved[entry["name"]] for entry in manifest["inputs"]]
    torch.manual_seed(0)
    tensors = []
    for entry in manifest["inputs"]:
        dtype, (rows, *rest) = getattr(torch, entry["dtype"]), entry["shape"]
        shape = (micro_batches * rows, *rest)
        floats = dtype.is_floating_point
        tensors.append(torch.randn(shape).to(dtype) if floats else torch.randint(0, 2, shape).to(dtype))
    return tensors


class Relay(nn.Module):
    """A stage that also passes on values which later stages read.

    Args:
        stage: The stage itself; its inputs are `reads`, its outputs `makes`.
        inbound: Names of the values that arrive.
        outbound: Names of the values that leave.
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
        """The values that leave, contiguous; a scalar becomes a vector, so that batches can be joined."""
        tensors = dict(zip(self.inbound, values, strict=True))
        # a value that is passed on is cloned, so that gradients flow back through it
        tensors |= {name: tensors[name].clone() for name in self.inbound if name in self.outbound}
        results = self.stage(*[tensors[name] for name in self.reads])
        tensors.update(
            zip(self.makes, results if isinstance(results, (tuple, list)) else (results,), strict=True)
        )
        return tuple([_as_vector(tensors[name]).contiguous() for name in self.outbound])


def _as_vector(value: torch.Tensor) -> torch.Tensor:
    return value if value.dim() else value.reshape(1)


def relay(manifest: Mapping[str, Any], at: int) -> Relay:
    """Loads a stage by its number."""
    stage = manifest["stages"][at]
    path = HERE / stage["file"]
    if not path.is_file():
        _refuse(f"{path}: the stage is missing")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != stage["sha256"]:
            _refuse(f"{path}: this stage is not what was written: its digest differs")
    reads, makes = ([entry["name"] for entry in stage[side]] for side in ("inputs", "outputs"))
    module = torch.export.load(path).module()
    return Relay(module, reads, makes, over(manifest, at), over(manifest, at + 1))


def _refuse(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(2)


def over(manifest: Mapping[str, Any], before: int) -> list[str]:
    """Names of the values that cross the cut before a stage; after the last stage, the model's outputs."""
    stages = manifest["stages"]
    ends = [entry["name"] for entry in manifest["outputs"]]
    if before == len(stages):
        return ends
    produced = [entry["name"] for entry in manifest["inputs"]]
    produced += [entry["name"] for stage in stages[:before] for entry in stage["outputs"]]
    read = {entry["name"] for stage in stages[before:] for entry in stage["inputs"]} | set(ends)
    return produced if before == 0 else [name for name in dict.fromkeys(produced) if name in read]


def add_shared(manifest: Mapping[str, Any], module: nn.Module, at: int) -> None:
    """Sums the gradients of weights that several stages share, so that each copy has the full gradient."""
    parameters = dict(module.named_parameters())
    for weight in manifest["shared"]:
        name = weight["names"].get(str(at + 1))
        gradient = parameters[name].grad if name is not None else None
        total = torch.zeros(weight["shape"], dtype=getattr(torch, weight["dtype"]))
        total = total if gradient is None else gradient.clone()
        dist.all_reduce(total)
        if name is not None:
            parameters[name].grad = total


def train(manifest: Mapping[str, Any], module: Relay, at: int, name: str, words: argparse.Namespace) -> None:
    """Runs the steps of a schedule; the last stage prints the loss of each."""
    count = len(manifest["stages"])
    stage = PipelineStage(module, at, count, torch.device("cpu"))
    schedule = SCHEDULES[name](stage, words.micro_batches, loss_fn=loss)
    weights = list(module.parameters())
    optimizer = torch.optim.SGD(weights, lr=words.lr) if weights and words.lr else None
    feeds = inputs(manifest, words.micro_batches, words.input) if at == 0 else []
    target = torch.zeros(words.micro_batches)
    for step in range(words.steps):
        module.zero_grad()
        began = time.monotonic()
        losses: list[torch.Tensor] = []
        if at == count - 1:
            outputs = schedule.step(*feeds, target=target, losses=losses)
        else:
            outputs = schedule.step(*feeds)
        add_shared(manifest, module.stage, at)
        if losses:
            mean = torch.stack(losses).mean().item()
            seconds = time.monotonic() - began
            sys.stdout.write(f"{name}, step {step + 1}: loss {mean:.6g}, {seconds:.3f} s\n")
        if words.save is not None:
            _save(os.path.join(words.save, f"{name}-stage{at + 1}.pt"), module.stage, outputs)
        if optimizer is not None:
            optimizer.step()


def main() -> None:
    """Trains with one schedule after the other."""
    words = _words()
    manifest = json.loads((HERE / "stages.json").read_text())
    at, count = int(os.environ.get("RANK", "0")), len(manifest["stages"])
    if int(os.environ.get("WORLD_SIZE", "1")) != count:
        _refuse(f"{count} stages are {count} processes: torchrun --nproc-per-node {count} {sys.argv[0]}")
    if "1f1b" in words.schedule and words.micro_batches < count:
        _refuse(f"1F1B needs {count} micro-batches at least, as many as there are stages")
    torch.set_num_threads(words.threads)
    module = relay(manifest, at)
    dist.init_process_group("gloo", timeout=timedelta(seconds=words.timeout))
    for name in words.schedule:
        train(manifest, module, at, name, words)
    dist.barrier()
    dist.destroy_process_group()


def _save(path: str, stage: nn.Module, outputs: Any) -> None:
    """Saves the gradients of a stage, and the outputs of the last one."""
    grads = {
        name: parameter.grad for name, parameter in stage.named_parameters() if parameter.grad is not None
    }
    output_tensors = () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)
    content = {"gradients": grads, "outputs": [tensor.detach() for tensor in output_tensors]}
    torch.save(content, path)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trains the stages in this folder as a pipeline")
    parser.add_argument("--schedule", nargs="+", choices=tuple(SCHEDULES), default=["1f1b"])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01, help="of plain SGD; 0 changes no weight")
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    parser.add_argument("--input", help="a dictionary of tensors by name, as torch.save writes it")
    parser.add_argument("--save", help="a folder for gradients and outputs of the last step")
    parser.add_argument("--timeout", type=float, default=300, help="seconds without an answer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
